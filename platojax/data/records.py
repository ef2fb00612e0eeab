"""Rows of texts and images that users bring: files of rows, and folders of images.

A row has an id (`scene_id` or `id`), texts (`caption`, `captions` or `text`: one or a list) and an
image (`image`: a path relative to the file, or in Parquet the encoded bytes). Rows of one id are
observations of one item. Without ids, each row is an item, known by its number.
"""

import csv
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from platojax.data.images import IMAGE_SUFFIXES, ImageSource

Records = tuple[
    tuple[str, ...],
    tuple[tuple[str, ...], ...] | None,
    tuple[tuple[ImageSource, ...], ...] | None,
]

_ID_FIELDS = ("scene_id", "id")
_TEXT_FIELDS = ("caption", "captions", "text")
_IMAGE_FIELDS = ("image",)
_EXAMPLE = '{"scene_id": "1", "caption": "a red bus", "image": "photos/1.jpg"}'
_SHOWN_ERRORS = 5


def read_records(path: pathlib.Path) -> Records:
    """Reads items.

    Args:
      path: `.jsonl`; `.csv` or `.tsv` with a header; `.parquet` (also a folder of them, as a
        snapshot of the Hugging Face hub has); `.txt`, one text per line; or a folder of images,
        each an item known by its path in the folder without the suffix.

    Returns:
      The ids in the order of their first row, the texts of each id, and the images of each id; None
      for a modality that no row has.

    Raises:
      FileNotFoundError: there is nothing at `path`.
      ValueError: the format is unknown, or rows cannot be used; the message names the rows.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if path.is_dir():
        parquet = sorted(path.rglob("*.parquet"))
        return _collect(path, _parquet_rows(parquet)) if parquet else _image_folder(path)
    readers = {
        ".jsonl": _jsonl_rows,
        ".csv": _csv_rows,
        ".tsv": _csv_rows,
        ".txt": _text_rows,
        ".parquet": lambda path: _parquet_rows([path]),
    }
    if path.suffix not in readers:
        raise ValueError(
            f"{path}: expected a folder of images or a file {', '.join(readers)}; a row of .jsonl "
            f"is such as {_EXAMPLE}"
        )
    try:
        return _collect(path, readers[path.suffix](path))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error}); convert it") from error
    except csv.Error as error:
        raise ValueError(f"{path} is not a table of fields: {error}") from error


Row = tuple[str, Mapping[str, Any] | str]  # where it is, and its fields or what is wrong with it


def _jsonl_rows(path: pathlib.Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                row = f"is not JSON ({error.msg})"
            if not isinstance(row, dict | str):
                row = f"is a {type(row).__name__}, not an object such as {_EXAMPLE}"
            yield f"line {number}", row


def _csv_rows(path: pathlib.Path) -> Iterator[Row]:
    delimiter = "\t" if path.suffix == ".tsv" else ","
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter=delimiter)
        for row in reader:
            wrong = None in row or None in row.values()
            yield f"line {reader.line_num}", "has another number of fields" if wrong else row


def _text_rows(path: pathlib.Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            yield f"line {number}", {"text": line.rstrip("\r\n")}


def _parquet_rows(paths: list[pathlib.Path]) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    wanted = (*_ID_FIELDS, *_TEXT_FIELDS, *_IMAGE_FIELDS)
    for path in paths:
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                columns = [name for name in file.schema_arrow.names if name in wanted]
                number = 0
                for batch in file.iter_batches(256, columns=columns):
                    for row in batch.to_pylist():
                        number += 1
                        yield f"{path.name} row {number}", row
        except pyarrow.ArrowInvalid as error:
            raise ValueError(f"{path} is not a whole Parquet file: {error}") from error


def _collect(path: pathlib.Path, rows: Iterator[Row]) -> Records:
    """Groups rows by id; refuses with the first of the rows that cannot be used."""
    base = path if path.is_dir() else path.parent
    texts: dict[str, list[str]] = {}
    images: dict[str, list[ImageSource]] = {}
    errors = []
    count = without_id = 0
    for count, (where, row) in enumerate(rows, 1):
        try:
            if isinstance(row, str):
                raise ValueError(row)
            found_id = _field(row, _ID_FIELDS)
            without_id += found_id is None
            item = str(count - 1) if found_id is None else str(found_id)
            row_texts = list(_texts(_field(row, _TEXT_FIELDS)))
            row_images = list(_images(_field(row, _IMAGE_FIELDS), base))
            if not row_texts and not row_images:
                raise ValueError(
                    f"has neither {', '.join(_TEXT_FIELDS)} nor image (it has {sorted(row)})"
                )
            texts.setdefault(item, []).extend(row_texts)
            # Rows of one item that differ in the caption may repeat its image.
            known = images.setdefault(item, [])
            known.extend(image for image in row_images if image not in known)
        except ValueError as error:
            errors.append(f"{where} {error}")
    if errors:
        raise ValueError(
            f"{path}: {len(errors)} of {count} rows cannot be used; fix or delete them: "
            + "; ".join(errors[:_SHOWN_ERRORS])
            + ("; ..." if len(errors) > _SHOWN_ERRORS else "")
        )
    if 0 < without_id < count:
        raise ValueError(
            f"{path}: {without_id} of {count} rows have no {' or '.join(_ID_FIELDS)}, the others "
            "have; give all rows an id, or none"
        )
    if not count:
        raise ValueError(f"{path} has no rows; a row of .jsonl is such as {_EXAMPLE}")
    return tuple(texts), _complete(path, "text", texts), _complete(path, "image", images)


def _complete(
    path: pathlib.Path, modality: str, observations: Mapping[str, list[Any]]
) -> tuple[tuple[Any, ...], ...] | None:
    """All items have this modality, or none has."""
    missing = [item for item, found in observations.items() if not found]
    if len(missing) == len(observations):
        return None
    if missing:
        raise ValueError(
            f"{path}: {len(missing)} of {len(observations)} items have no {modality}, the others "
            f"have: {', '.join(missing[:_SHOWN_ERRORS])}; complete them or leave them out"
        )
    return tuple(tuple(found) for found in observations.values())


def _field(row: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """The value of the first of these fields that is there and not null."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def _texts(value: Any) -> Iterator[str]:
    for text in value if isinstance(value, list | tuple) else () if value is None else (value,):
        if not isinstance(text, str):
            raise ValueError(f"has a caption of type {type(text).__name__}, not text")
        if not text.strip():
            raise ValueError("has an empty caption")
        yield text


def _images(value: Any, base: pathlib.Path) -> Iterator[ImageSource]:
    if isinstance(value, Mapping):  # how the datasets library stores an image
        value = value["bytes"] if value.get("bytes") is not None else value.get("path")
    if value is None or value == "":
        return
    if isinstance(value, bytes):
        yield value
        return
    if not isinstance(value, str):
        raise ValueError(f"has an image of type {type(value).__name__}; give a path")
    image = base / value
    if not image.is_file():
        raise ValueError(f"names the image {image}, which does not exist")
    yield image


def _image_folder(path: pathlib.Path) -> Records:
    files = sorted(
        file
        for file in path.rglob("*")
        if file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".")
    )
    if not files:
        raise ValueError(f"{path} holds no images ({', '.join(IMAGE_SUFFIXES)}) and no .parquet")
    ids = tuple(str(file.relative_to(path).with_suffix("")) for file in files)
    if len(set(ids)) < len(ids):
        twice = next(item for item in ids if ids.count(item) > 1)
        raise ValueError(f"{path} has two images called {twice}; rename one")
    return ids, None, tuple((file,) for file in files)
