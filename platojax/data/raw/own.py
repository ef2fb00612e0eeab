"""Scenes of your own: a file of rows, or a folder of images.

A row has a `scene_id` (or `id`), texts (`caption`, `captions`, `text`: one or a list each), perhaps
an `image` (a path relative to the file, or in Parquet the encoded bytes); rows of one id are one
scene. It may also have the `language` and the `source` of its texts, the `split` of its scene, and
the `label` of its class. Formats are those of `records.read_records`. Of a folder of images each
image is a scene, and the first of the folders it lies in its label.
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from platojax.data import records
from platojax.data.captions import fault, usable_texts
from platojax.data.raw.media import in_threads, usable_picture
from platojax.data.raw.scene import SPLIT_NAME, RawRows, RawScene
from platojax.data.rejects import IDENTICAL_TEXTS, Rejected
from platojax.data.scenes import Text

SOURCE = "own"
BAD_ROW = "row that cannot be read"
BAD_ID = "scene id that is missing, or no text or whole number"
BAD_FIELD = "label, source, language or split that is no text"
BAD_SPLIT = "split that is not letters, digits and _"
BAD_IMAGE_FIELD = "image field that is no path"
SECOND_VALUE = "second label or split of one scene"
NOTHING = "row without text and image"


@dataclasses.dataclass
class _Gathered:
    """What the rows of one scene said so far."""

    scene_id: str
    split: str = ""
    label: str = ""
    texts: dict[Text, None] = dataclasses.field(default_factory=dict)  # in their order
    images: dict[pathlib.Path | bytes, str] = dataclasses.field(default_factory=dict)


def read(path: pathlib.Path, heldout: float = 0.0) -> RawRows:
    """Yields the scenes in the order of their last rows.

    Rows are read twice where they have ids, so that of the scenes, which may have large images,
    only those of which another row is to come are in memory.

    Args:
      path: see the module.
      heldout: this share of the scenes without a `split` are "heldout", the others "train"; chosen
        by a hash of the id, so that a scene stays where it is when others are added.

    Raises:
      FileNotFoundError: there is nothing at `path`.
      ValueError: the format is unknown, or the file cannot be read as what its name says.
    """
    if not 0 <= heldout < 1:
        raise ValueError(f"heldout must be in [0, 1); got {heldout}.")

    def rows_of(gathered: _Gathered | Rejected) -> list[RawScene | Rejected]:
        if isinstance(gathered, Rejected):
            return [gathered]
        found = [
            usable_picture(image, SOURCE, where if isinstance(image, bytes) else str(image))
            for image, where in gathered.images.items()
        ]
        pictures = tuple(one for one in found if not isinstance(one, Rejected))
        split = gathered.split or ("heldout" if _share(gathered.scene_id) < heldout else "train")
        scene = RawScene(
            gathered.scene_id, split, tuple(gathered.texts), pictures, label=gathered.label
        )
        return [*(one for one in found if isinstance(one, Rejected)), scene]

    of_images = path.is_dir() and not any(path.rglob("*.parquet"))
    for rows in in_threads(rows_of, _gather_folder(path) if of_images else _gather_rows(path)):
        yield from rows


def _share(scene_id: str) -> float:
    digest = hashlib.sha256(scene_id.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _gather_folder(path: pathlib.Path) -> Iterator[_Gathered]:
    found = records.read_image_folder(path)
    labels = found.labels or [""] * len(found.ids)
    assert found.images is not None
    for scene_id, (image,), label in zip(found.ids, found.images, labels, strict=True):
        yield _Gathered(scene_id, label=label, images={image: str(image)})  # type: ignore[dict-item]


def _gather_rows(path: pathlib.Path) -> Iterator[_Gathered | Rejected]:
    """The scenes, each after its last row, and what cannot be used."""
    base = path if path.is_dir() else path.parent
    last = {
        scene_id: number
        for number, scene_id, _ in _rows_with_ids(path, images=False)
        if isinstance(scene_id, str)
    }
    scenes: dict[str, _Gathered] = {}
    for number, scene_id, (where, row) in _rows_with_ids(path, images=True):
        if isinstance(scene_id, Rejected):
            yield scene_id
            continue
        yield from _add_row(scenes, scene_id, row, where, base)
        if last[scene_id] == number and scene_id in scenes:
            yield scenes.pop(scene_id)


def _rows_with_ids(
    path: pathlib.Path, *, images: bool
) -> Iterator[tuple[int, str | Rejected, tuple[str, Mapping[str, Any]]]]:
    """Of each row the number, the scene or why there is none, and where and what it is."""
    numbered: bool | None = None
    for number, (place, row) in enumerate(records.read_rows(path, images=images)):
        where = f"{path.name} {place}"
        if isinstance(row, ValueError):
            yield number, Rejected(BAD_ROW, where), (where, {})
            continue
        given = records.field_of(row, records.ID_FIELDS)
        if numbered is None:
            numbered = given is None  # the first row says whether rows have ids
        scene_id = str(number) if numbered else _scene_id(given)
        if scene_id is None or numbered != (given is None):
            yield number, Rejected(BAD_ID, where), (where, row)
        else:
            yield number, scene_id, (where, row)


def _scene_id(value: Any) -> str | None:
    """An id as text; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value).strip() if fault(str(value)) is None else None


def _add_row(
    scenes: dict[str, _Gathered],
    scene_id: str,
    row: Mapping[str, Any],
    where: str,
    base: pathlib.Path,
) -> Iterator[Rejected]:
    try:
        label, source, language, split = (
            _word(row.get(name)) for name in ("label", "source", "language", "split")
        )
    except ValueError:
        yield Rejected(BAD_FIELD, where)
        return
    if split and not SPLIT_NAME.fullmatch(split):
        yield Rejected(BAD_SPLIT, where)
        return
    try:
        image = records.image_source(records.field_of(row, records.IMAGE_FIELDS), base)
    except ValueError:
        yield Rejected(BAD_IMAGE_FIELD, where)
        return
    captions = records.captions_of(row)
    if image is not None and captions == [""]:  # how a table says that there is none
        captions = []
    if image is None and not captions:
        yield Rejected(NOTHING, where)
        return
    texts, rejected = usable_texts(captions, source or SOURCE, language, where)
    yield from rejected
    gathered = scenes.setdefault(scene_id, _Gathered(scene_id))
    # A row may leave out what another row of its scene says.
    if split not in ("", gathered.split or split) or label not in ("", gathered.label or label):
        yield Rejected(SECOND_VALUE, where)
        return
    gathered.split, gathered.label = gathered.split or split, gathered.label or label
    for text in texts:
        # A row with another image of the scene may repeat its text.
        if text in gathered.texts and image is None:
            yield Rejected(IDENTICAL_TEXTS, where)
        gathered.texts[text] = None
    if image is not None:
        gathered.images.setdefault(image, where)  # its rows may each repeat the scene's image


def _word(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError
    str(value).encode()  # raises where it cannot be written
    return str(value)
