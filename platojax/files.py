"""Files that are there whole or not at all, and are what was meant."""

import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any


def write_whole(path: pathlib.Path, content: str | bytes) -> None:
    """Writes beside the path and renames the file there, so that a kill leaves no half one.

    Args:
      path: of the file.
      content: bytes, or text, which becomes UTF-8.
    """
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    temporary.replace(path)


def to_json(content: Any, indent: int = 2) -> str:
    """Strict JSON: a NaN is an error here, not a word that other parsers refuse."""
    return json.dumps(content, indent=indent, allow_nan=False) + "\n"


def check_writable(path: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str]]) -> None:
    """Looks whether a result can be written: a slip in its path should not cost the computation.

    Args:
      path: of the file to be.
      inputs: what is read, and must not be overwritten.

    Raises:
      FileNotFoundError: its folder does not exist.
      ValueError: the path is no file's, or that of an input or of a file in it.
    """
    path = pathlib.Path(path)
    if not path.name:
        raise ValueError(f"{str(path)!r} names no file to write")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent} does not exist, so {path} cannot be written")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no file; give the path of one")
    whole = path.resolve()
    read = {pathlib.Path(one).resolve() for one in inputs}
    if whole in read or (path.exists() and read & set(whole.parents)):
        raise ValueError(f"{path} is read, and would be overwritten; give another path")
