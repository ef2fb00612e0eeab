"""Which pictures and clips can be used."""

import pathlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from platojax.data import rejects
from platojax.data.images import ImageTooLargeError, open_image
from platojax.data.raw.scene import Encoded
from platojax.data.rejects import Rejected
from platojax.data.video import read_frames

MAX_PICTURE_BYTES = 1 << 27
MAX_CLIP_BYTES = 1 << 30
_CHECKED_MOMENTS = (0.0, 0.5, 0.99)
_AHEAD = 64

Item = TypeVar("Item")
Result = TypeVar("Result")


def usable_picture(
    content: pathlib.Path | bytes | None, source: str, where: str
) -> Encoded | Rejected:
    """A picture whose bytes are kept as they are, once it is known that all of it can be decoded.

    Args:
      content: the file, or its bytes; None where there is none.
      source: where the picture comes from.
      where: it was found, for whoever wants to mend it.
    """
    return _usable(content, source, where, MAX_PICTURE_BYTES, _picture_fault)


def usable_clip(
    content: pathlib.Path | bytes | None, source: str, where: str
) -> Encoded | Rejected:
    """A clip, as `usable_picture`; frames at its beginning, middle and end are decoded.

    Raises:
      ImportError: PyAV is not installed.
    """
    return _usable(content, source, where, MAX_CLIP_BYTES, _clip_fault)


def _usable(
    content: pathlib.Path | bytes | None,
    source: str,
    where: str,
    max_bytes: int,
    fault: Callable[[bytes], str | None],
) -> Encoded | Rejected:
    if isinstance(content, pathlib.Path):
        content = _read(content, max_bytes)
    if content is None:
        return Rejected(rejects.MISSING_FILE, where)
    if len(content) > max_bytes:
        return Rejected(rejects.LARGE_FILE, where)
    reason = fault(content) if content else rejects.EMPTY_FILE
    return Encoded(source, content) if reason is None else Rejected(reason, where)


def _read(path: pathlib.Path, max_bytes: int) -> bytes | None:
    """The file, of which a byte more than allowed will do; None where there is none."""
    try:
        if not path.is_file():  # a device or a pipe may have no end
            return None
        with path.open("rb") as file:
            return file.read(max_bytes + 1)
    except OSError:  # such as of a file that may not be read, or a name that is too long
        return None


def _picture_fault(content: bytes) -> str | None:
    try:
        open_image(content, at_least=(1, 1))  # the least work in which a JPEG is read to its end
    except ImageTooLargeError:
        return rejects.LARGE_PICTURE
    except ValueError:
        return rejects.BAD_PICTURE
    return None


def _clip_fault(content: bytes) -> str | None:
    try:
        read_frames(content, _CHECKED_MOMENTS)
    except ValueError:
        return rejects.BAD_CLIP
    return None


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """`function` of each item, in their order, on all cores and a little ahead.

    Reading files and decoding release the interpreter's lock.
    """
    with ThreadPoolExecutor() as pool:
        left = iter(items)
        waiting = [pool.submit(function, item) for item in islice(left, _AHEAD)]
        while waiting:
            yield waiting.pop(0).result()
            waiting += [pool.submit(function, item) for item in islice(left, 1)]
