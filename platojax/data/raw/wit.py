"""WIT-1024: the images and captions of Wikipedia on which the hypothesis's authors score encoders.

Hugging Face `minhuh/prh`, revision `wit_1024`, as a local snapshot: Parquet files with `image` (a
struct with `bytes`) and `text` (captions, of which published scores take the first). Row i of the
files in their order is item i.
"""

import pathlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from platojax.data.captions import usable_texts
from platojax.data.raw.media import in_threads, usable_picture
from platojax.data.raw.scene import RawRows, RawScene
from platojax.data.rejects import Rejected

SOURCE = "wit"
_COLUMNS = ("image", "text")


def input_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files that are read.

    Raises:
      FileNotFoundError: there are none.
    """
    if not (files := sorted(folder.rglob("*.parquet"))):
        raise FileNotFoundError(
            f"{folder} holds no Parquet files; give a snapshot of minhuh/prh at revision wit_1024."
        )
    return files


def read(folder: pathlib.Path) -> RawRows:
    """Yields the scenes, called by their number: a picture and captions of source "wit".

    The split is "test". A row without a usable picture or a first caption is left out whole, so
    that no other caption takes the first one's place.

    Args:
      folder: see the module.

    Raises:
      FileNotFoundError: there are no Parquet files.
      ValueError: a file is truncated, or lacks a column.
    """
    rows = (row for path in input_files(folder) for row in _rows(path))
    for found in in_threads(_scene, enumerate(rows)):
        yield from found


def _scene(numbered: tuple[int, dict[str, Any]]) -> list[RawScene | Rejected]:
    number, row = numbered
    where = f"item {number}"
    captions = row["text"] if isinstance(row["text"], list) else [row["text"]]
    texts, rejected = usable_texts(captions[:1] or [None], SOURCE, "", where)
    picture = usable_picture(row["image"] and row["image"]["bytes"], SOURCE, where)
    if isinstance(picture, Rejected) or not texts:
        return [*rejected, *([picture] if isinstance(picture, Rejected) else [])]
    others, rejected = usable_texts(captions[1:], SOURCE, "", where)
    texts += others
    return [*rejected, RawScene(f"{number:04d}", "test", tuple(texts), pictures=(picture,))]


def _rows(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            if missing := [name for name in _COLUMNS if name not in schema.names]:
                raise ValueError(f"{path} has no columns {missing}; it has {schema.names}.")
            kind = schema.field("image").type
            if not pa.types.is_struct(kind) or kind.get_field_index("bytes") < 0:
                raise ValueError(f"{path}: column image is {kind}, not a struct with bytes.")
            for batch in file.iter_batches(64, columns=list(_COLUMNS)):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a whole Parquet file: {error}") from error
