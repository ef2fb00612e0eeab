"""Files that others wrote, read so that none can take all memory."""

import gzip
import pathlib
import zlib
from collections.abc import Iterator
from typing import IO

MAX_LINE = 1 << 22  # bytes; captions.MAX_CHARACTERS are a hundredth of it
MAX_FILE = 1 << 30  # bytes; the largest of the annotations that are read whole have 150 MB
_CHUNK = 1 << 20


def read_whole(path: pathlib.Path, limit: int = MAX_FILE) -> bytes:
    """The content of a file; one whose name ends in `.gz` is unpacked.

    Args:
      path: of the file.
      limit: bytes that the content may have.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the content is larger, or the compressed file is damaged or not whole.
    """
    if not path.is_file():  # nor a device or a pipe, which may have no end
        raise FileNotFoundError(f"{path} does not exist.")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(limit + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is no whole gzip file ({error}); fetch it again.") from error
    if len(content) > limit:
        raise ValueError(
            f"{path} holds more than {limit:,} bytes; it is not what is expected here."
        )
    return content


def read_lines(file: IO[bytes], limit: int = MAX_LINE) -> Iterator[bytes | None]:
    r"""The lines of a file without their `\n`; None for one of more than `limit` bytes."""
    rest, dropped = b"", False
    while chunk := file.read(_CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield None if dropped or len(line) > limit else line
            dropped = False
        if len(rest) > limit:
            rest, dropped = b"", True
    if rest or dropped:
        yield None if dropped else rest
