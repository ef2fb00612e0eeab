"""Files that are there whole or not at all."""

import pathlib


def write_whole(path: pathlib.Path, text: str) -> None:
    """Writes the text beside the path and renames it there, so that a kill leaves no half file."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
