"""Rows of texts and images that users bring: files of rows, and folders of images.

A row has an id (`scene_id` or `id`), texts (`caption`, `captions`, `text`: one or a list each), an
image (`image`: a path relative to the file, or in Parquet the encoded bytes), and perhaps the
`label` of its class. Rows of one id are observations of one item. Without ids, each row is an item,
known by its number. A row about a class has a `name` and perhaps a `definition`; its texts are
prompts made of them.
"""

import csv
import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from platojax.data.cifar import read_cifar
from platojax.data.images import IMAGE_SUFFIXES, ImageSource
from platojax.data.prompts import class_prompts

ID_FIELDS = ("scene_id", "id")
TEXT_FIELDS = ("caption", "captions", "text")
IMAGE_FIELDS = ("image",)
_OBSERVED = (*TEXT_FIELDS, *IMAGE_FIELDS, "name")  # of these a table needs one
_EXAMPLE = '{"scene_id": "1", "caption": "a red bus", "image": "photos/1.jpg"}'
_SHOWN_ERRORS = 5
_ROWS_TOGETHER = 64  # of Parquet, which may hold images
_BROKEN = "surrogateescape"  # a byte that is no UTF-8 is a fault of its row, too
# A text that is too long is a fault of its row, not of the file.
csv.field_size_limit(1 << 27)


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
    if path.is_dir() and not _parquet_files(path):
        found = read_image_folder(path)
        for (file,) in found.images or ():
            if isinstance(file, pathlib.Path) and not file.is_file():
                raise ValueError(f"{file} is a link to nowhere, or a pipe; delete it")
        return found
    if path.suffix == ".bin":
        ids, images, labels = read_cifar(path)
        return Records(ids, None, tuple((image,) for image in images), labels)
    return _collect(path, read_rows(path), prompts)


# Where it is, and its fields or what is wrong with it.
Row = tuple[str, Mapping[str, Any] | ValueError]


def read_rows(path: pathlib.Path, *, images: bool = True) -> Iterator[Row]:
    """The rows of a file, one after the other; see `read_records` for the formats.

    Args:
      path: see `read_records`.
      images: False where encoded images of Parquet need not be read.

    Raises:
      FileNotFoundError: there is nothing at `path`.
      ValueError: the format is unknown, the file cannot be read as what its name says, or it has
        no rows, or no column of texts or images.
    """
    readers: dict[str, Callable[[pathlib.Path], Iterator[Row]]] = {
        ".jsonl": _jsonl_rows,
        ".csv": _csv_rows,
        ".tsv": _csv_rows,
        ".txt": _text_rows,
        ".parquet": lambda path: _parquet_rows([path], images),
    }
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if path.is_dir():
        yield from _parquet_rows(_parquet_files(path), images)
        return
    if not path.is_file():
        raise ValueError(f"{path} is a pipe or a device; write its content to a file")
    if path.suffix not in readers:
        raise ValueError(
            f"{path}: expected a folder of images or a file {', '.join(readers)}; a row of .jsonl "
            f"is such as {_EXAMPLE}"
        )
    row = None
    try:
        for row in readers[path.suffix](path):
            yield row
    except csv.Error as error:
        raise ValueError(f"{path} is not a table of fields: {error}") from error
    if row is None:
        raise ValueError(f"{path} has no rows; a row of .jsonl is such as {_EXAMPLE}")


def _jsonl_rows(path: pathlib.Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", errors=_BROKEN) as file:
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
    with path.open(encoding="utf-8-sig", errors=_BROKEN, newline="") as file:
        reader = csv.DictReader(file, **form)
        names = reader.fieldnames or []
        try:
            "".join(names).encode()
        except UnicodeEncodeError as broken:
            raise ValueError(f"{path} is not UTF-8; convert it") from broken
        if names and not set(names) & set(_OBSERVED):
            raise ValueError(
                f"{path} has the columns {list(names)}, but none of {list(_OBSERVED)}; rename one"
            )
        if len(set(names)) < len(names):
            raise ValueError(f"{path}: two columns have one name ({', '.join(names)}); rename one")
        for row in reader:
            wrong = None in row or None in row.values()
            error = ValueError("has another number of fields than the header")
            yield f"line {reader.line_num}", error if wrong else row


def _text_rows(path: pathlib.Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", errors=_BROKEN) as file:
        for number, line in enumerate(file, 1):
            yield f"line {number}", {"text": line.rstrip("\r\n")}


def _parquet_files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(folder.rglob("*.parquet"))


def _parquet_rows(paths: list[pathlib.Path], images: bool) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    wanted = (
        *(*ID_FIELDS, *TEXT_FIELDS, *IMAGE_FIELDS),
        *("label", "name", "definition", "source", "language", "split"),
    )
    for path in paths:
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                names = file.schema_arrow.names
                columns = [name for name in names if name in wanted]
                if not set(columns) & set(_OBSERVED):
                    raise ValueError(
                        f"{path} has the columns {names}, but none of {list(_OBSERVED)}; rename one"
                    )
                if not images:  # a column is needed to count the rows
                    columns = [name for name in columns if name not in IMAGE_FIELDS] or columns
                number = 0
                for batch in file.iter_batches(_ROWS_TOGETHER, columns=columns):
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
            found_id = field_of(row, ID_FIELDS)
            if found_id is not None:
                _check_id(found_id)
            without_id += found_id is None
            item = str(count - 1) if found_id is None else str(found_id).strip()
            row_texts = _checked_texts(
                list(class_prompts(prompts, row)) if prompts else captions_of(row)
            )
            row_images = _images(field_of(row, IMAGE_FIELDS), base)
            if not row_texts and not row_images:
                raise ValueError(
                    f"has neither {', '.join(TEXT_FIELDS)} nor image (it has {sorted(row)})"
                )
            label = row.get("label")
            _check_unicode("a label", str(label))
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
            f"{path}: {without_id} of {count} rows have no {' or '.join(ID_FIELDS)}, the others "
            "have; give all rows an id, or none"
        )
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


def field_of(row: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """The value of the first of these fields that is there and not null."""
    return next((row[name] for name in names if row.get(name) is not None), None)


def captions_of(row: Mapping[str, Any]) -> list[Any]:
    """The texts in all fields of texts, of whatever type; an empty field beside others is none."""
    values = [row[name] for name in TEXT_FIELDS if row.get(name) is not None]
    if len(values) > 1:
        values = [value for value in values if value != ""] or [""]
    return [
        text for value in values for text in (value if isinstance(value, list | tuple) else [value])
    ]


def _checked_texts(texts: list[Any]) -> list[str]:
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"has a caption of type {type(text).__name__}, not text")
        if not text.strip():
            raise ValueError("has an empty caption")
        _check_unicode("a caption", text)
    return texts


def _images(value: Any, base: pathlib.Path) -> list[ImageSource]:
    image = image_source(value, base)
    if image is None:
        return []
    if not isinstance(image, pathlib.Path):
        return [image]
    try:
        exists = image.is_file()
    except OSError as error:  # such as a name that is too long
        raise ValueError(f"names an image that cannot be looked up ({error.strerror})") from error
    if not exists:
        raise ValueError(f"names the image {image}, which does not exist")
    return [image]


def image_source(value: Any, base: pathlib.Path) -> pathlib.Path | bytes | None:
    """What an image field names; whether it is there is not looked at.

    Args:
      value: of the field: a path, encoded bytes, or either as the datasets library stores it.
      base: of paths.

    Raises:
      ValueError: it is none of these.
    """
    if isinstance(value, Mapping):  # how the datasets library stores an image
        value = value["bytes"] if value.get("bytes") is not None else value.get("path")
    if value is None or value == "":
        return None
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise ValueError(f"has an image of type {type(value).__name__}; give a path")
    _check_unicode("an image", value)
    return base / value


def read_image_folder(path: pathlib.Path) -> Records:
    """The images of a folder, see `read_records`; some may be links to nowhere, or pipes."""
    files = sorted(
        file
        for file in path.rglob("*")
        if file.suffix.lower() in IMAGE_SUFFIXES
        and not file.is_dir()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    if not files:
        raise ValueError(f"{path} holds no images ({', '.join(IMAGE_SUFFIXES)}) and no .parquet")
    ids = tuple(str(file.relative_to(path).with_suffix("")) for file in files)
    if len(set(ids)) < len(ids):
        twice = next(item for item in ids if ids.count(item) > 1)
        raise ValueError(f"{path} has two images called {twice}; rename one")
    folders = [file.relative_to(path).parts[:-1] for file in files]
    labels = tuple(parts[0] for parts in folders) if all(folders) else None
    return Records(ids, None, tuple((file,) for file in files), labels)
