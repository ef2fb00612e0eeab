"""Files by pattern, on this machine's disks or in a bucket."""

import contextlib
import glob
import pathlib
from collections.abc import Iterator
from typing import IO

import fsspec


def find_files(pattern: str, field: str = "data.files") -> tuple[str, ...]:
    """The files that a pattern such as `data/train-*.parquet` matches, sorted.

    Args:
      pattern: a path or, with the package that fsspec asks for, a URL such as
        `gs://bucket/train-*.parquet`; with `*`, `?`, `[...]` and `**`.
      field: what the pattern is the value of, for messages.

    Raises:
      FileNotFoundError: if there is none.
      ValueError: the URL's kind is unknown, or its package is missing.
    """
    if is_url(pattern):
        files = _glob_url(pattern, field)
    else:
        found = map(pathlib.Path, glob.glob(pattern, recursive=True))
        files = [str(path) for path in found if not path.is_dir()]
    if not files:
        raise FileNotFoundError(
            f"{field} {pattern!r} matches no file; give a path, perhaps with * in it."
        )
    return tuple(sorted(files))


def is_url(path: str) -> bool:
    """Whether fsspec opens it."""
    return "://" in path


@contextlib.contextmanager
def open_bytes(path: str) -> Iterator[IO[bytes]]:
    """Opens a file for reading from its beginning; a `.gz` is unpacked on the way.

    Raises:
      FileNotFoundError: it is missing.
    """
    with fsspec.open(path, "rb", compression="infer") as file:
        yield file


def file_name(path: str) -> str:
    """The last part of a path or URL."""
    return pathlib.PurePosixPath(path).name


def _glob_url(pattern: str, field: str) -> list[str]:
    try:
        system, path = fsspec.url_to_fs(pattern)
    except (ImportError, ValueError) as error:  # fsspec names the package, or the kinds it knows
        raise ValueError(f"{field} {pattern!r} cannot be opened: {error}") from error
    return [system.unstrip_protocol(found) for found in system.glob(path)]
