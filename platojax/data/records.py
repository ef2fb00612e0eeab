"""Rows of texts and images that users bring: files of rows, and folders of images.

A row has an id (`scene_id` or `id`), texts (`caption`, `captions` or `text`: one or a list), an
image (`image`: a path relative to the file, or in Parquet the encoded bytes), and perhaps the
`label` of its class. Rows of one id are observations of one item. Without ids, each row is an item,
known by its number. A row about a class has a `name` and perhaps a `definition`; its texts are
prompts made of them.
"""

import csv
import dataclasses
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from platojax.data.cifar import read_cifar
from platojax.data.images import IMAGE_SUFFIXES, ImageSource
from platojax.data.prompts import class_prompts

_ID_FIELDS = ("scene_id", "id")
_TEXT_FIELDS = ("caption", "captions", "text")
_IMAGE_FIELDS = ("image",)
_EXAMPLE = '{"scene_id": "1", "caption": "a red bus", "image": "photos/1.jpg"}'
_SHOWN_ERRORS = 5


@dataclasses.dataclass(frozen=True, eq=False)
class Records:
    """Items as they were read.

    Attributes:
      ids: in the order of their first row.
      texts: of each item; None where no row has any.
      images: of each item; None where no row has any.
      labels: the class of each item; None where no row has one.
    """

    ids: tuple[str, ...]
    texts: tuple[tuple[str, ...], ...] | None = None
    images: tuple[tuple[ImageSource, ...], ...] | None = None
    labels: tuple[str, ...] | None = None


def read_records(path: pathlib.Path, prompts: str | None = None) -> Records:
    """Reads items.

    Args:
      path: `.jsonl`; `.csv` or `.tsv` with a header; `.parquet` (also a folder of them, as a
        snapshot of the Hugging Face hub has); `.txt`, one text per line; `.bin` of CIFAR, see
        `cifar.read_cifar`; or a folder of images, each an item known by its path in the folder
        without the suffix. Where the images are in folders, the first of them is the class.
      prompts: for rows about classes, the style of the texts made of them, see
        `prompts.class_prompts`.

    Raises:
      FileNotFoundError: there is nothing at `path`.
      ValueError: the format is unknown, or rows cannot be used; the message names the rows.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if path.is_dir():
        parquet = sorted(path.rglob("*.parquet"))
        return _collect(path, _parquet_rows(parquet), prompts) if parquet else _image_folder(path)
    if path.suffix == ".bin":
        ids, images, labels = read_cifar(path)
        return Records(ids, None, tuple((image,) for image in images), labels)
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
        return _collect(path, readers[path.suffix](path), prompts)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error}); convert it") from error
    except csv.Error as error:
        raise ValueError(f"{path} is not a table of fields: {error}") from error


# Where it is, and its fields or what is wrong with it.
Row = tuple[str, Mapping[str, Any] | ValueError]


def _jsonl_rows(path: pathlib.Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"line {number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:  # also of numbers without end
                yield where, ValueError(f"is not JSON ({error})")
                continue
            if isinstance(row, dict):
                yield where, row
            else:
                kind = type(row).__name__
                yield where, ValueError(f"is a {kind}, not an object such as {_EXAMPLE}")


def _csv_rows(path: pathlib.Path) -> Iterator[Row]:
    # In tables with tabs, quotes stand for themselves.
    form: dict[str, Any] = {"strict": True}
    if path.suffix == ".tsv":
        form = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, **form)
        names = reader.fieldnames or []
        if len(set(names)) < len(names):
            raise ValueError(f"{path}: two columns have one name ({', '.join(names)}); rename one")
        for row in reader:
            wrong = None in row or None in row.values()
            error = ValueError("has another number of fields than the header")
            yield f"line {reader.line_num}", error if wrong else row


def _text_rows(path: pathlib.Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            yield f"line {number}", {"text": line.rstrip("\r\n")}


def _parquet_rows(paths: list[pathlib.Path]) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    wanted = (*_ID_FIELDS, *_TEXT_FIELDS, *_IMAGE_FIELDS, "label", "name", "definition")
    for path in paths:
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                names = file.schema_arrow.names
                columns = [name for name in names if name in wanted]
                if not columns:
                    raise ValueError(f"{path} has the columns {names}, but none of {list(wanted)}")
                number = 0
                for batch in file.iter_batches(256, columns=columns):
                    for row in batch.to_pylist():
                        number += 1
                        yield f"{path.name} row {number}", row
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(f"{path} is not a whole Parquet file: {error}") from error


def _collect(path: pathlib.Path, rows: Iterator[Row], prompts: str | None) -> Records:
    """Groups rows by id; refuses with the first of the rows that cannot be used."""
    base = path if path.is_dir() else path.parent
    texts: dict[str, list[str]] = {}
    images: dict[str, list[ImageSource]] = {}
    labels: dict[str, list[str]] = {}
    errors = []
    count = without_id = 0
    for count, (where, row) in enumerate(rows, 1):
        try:
            if isinstance(row, ValueError):
                raise row
            found_id = _field(row, _ID_FIELDS)
            if found_id is not None:
                _check_id(found_id)
            without_id += found_id is None
            item = str(count - 1) if found_id is None else str(found_id)
            row_texts = (
                class_prompts(prompts, row) if prompts else _texts(_field(row, _TEXT_FIELDS))
            )
            row_images = _images(_field(row, _IMAGE_FIELDS), base)
            if not row_texts and not row_images:
                raise ValueError(
                    f"has neither {', '.join(_TEXT_FIELDS)} nor image (it has {sorted(row)})"
                )
            label = row.get("label")
            texts.setdefault(item, []).extend(row_texts)
            # Rows of one item that differ in the caption may repeat its image and its label.
            _add_new(images.setdefault(item, []), row_images)
            _add_new(labels.setdefault(item, []), [] if label is None else [str(label)])
            if len(labels[item]) > 1:
                raise ValueError(f"gives item {item} a second label, {label!r}")
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
    found = _complete(path, "label", labels)
    return Records(
        tuple(texts),
        _complete(path, "text", texts),
        _complete(path, "image", images),
        None if found is None else tuple(label for (label,) in found),
    )


def _check_id(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"has an id of type {type(value).__name__}; give text or a whole number")
    if isinstance(value, str):
        if not value.strip():
            raise ValueError("has an empty id")
        _check_unicode("an id", value)


def _check_unicode(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can spell
        raise ValueError(f"has {what} that is not valid Unicode ({error.reason})") from error


def _add_new(known: list[Any], found: Iterable[Any]) -> None:
    known.extend(one for one in found if one not in known)


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


def _texts(value: Any) -> list[str]:
    texts = value if isinstance(value, list | tuple) else [] if value is None else [value]
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"has a caption of type {type(text).__name__}, not text")
        if not text.strip():
            raise ValueError("has an empty caption")
        _check_unicode("a caption", text)
    return list(texts)


def _images(value: Any, base: pathlib.Path) -> list[ImageSource]:
    if isinstance(value, Mapping):  # how the datasets library stores an image
        value = value["bytes"] if value.get("bytes") is not None else value.get("path")
    if value is None or value == "":
        return []
    if isinstance(value, bytes):
        return [value]
    if not isinstance(value, str):
        raise ValueError(f"has an image of type {type(value).__name__}; give a path")
    image = base / value
    try:
        exists = image.is_file()
    except OSError as error:  # such as a name that is too long
        raise ValueError(f"names an image that cannot be looked up ({error.strerror})") from error
    if not exists:
        raise ValueError(f"names the image {image}, which does not exist")
    return [image]


def _image_folder(path: pathlib.Path) -> Records:
    files = sorted(
        file
        for file in path.rglob("*")
        if file.suffix.lower() in IMAGE_SUFFIXES
        and not file.is_dir()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    if not files:
        raise ValueError(f"{path} holds no images ({', '.join(IMAGE_SUFFIXES)}) and no .parquet")
    if lost := [file for file in files if not file.exists()]:
        raise ValueError(f"{lost[0]} is a link to nowhere ({len(lost)} such files); delete it")
    ids = tuple(str(file.relative_to(path).with_suffix("")) for file in files)
    if len(set(ids)) < len(ids):
        twice = next(item for item in ids if ids.count(item) > 1)
        raise ValueError(f"{path} has two images called {twice}; rename one")
    folders = [file.relative_to(path).parts[:-1] for file in files]
    labels = tuple(parts[0] for parts in folders) if all(folders) else None
    return Records(ids, None, tuple((file,) for file in files), labels)
