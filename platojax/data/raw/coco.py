"""COCO captions: photographs with five captions each (arXiv 1504.00325).

Files are the official `captions_train2017.json` and so on (`images` with `id` and `file_name`,
`annotations` with `image_id` and `caption`), or Karpathy's `dataset_coco.json`, see `karpathy`,
plain or with `.gz`. Of an official file the split is in its name; those on which captioning is
compared are Karpathy's, by which official captions can be split too.
"""

import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from platojax.data.captions import usable_texts
from platojax.data.raw import karpathy
from platojax.data.raw.json_files import read_json
from platojax.data.raw.media import in_threads
from platojax.data.raw.pictures import Pictures
from platojax.data.raw.scene import RawRows, RawScene
from platojax.data.rejects import Rejected
from platojax.data.scenes import Text

SOURCE = "coco"
UNKNOWN_IMAGE = "caption of an unknown image"
NO_SPLIT = "image in none of Karpathy's splits"
_NAME = re.compile(r"captions_([A-Za-z0-9]+)")
_EXPECTED = (
    "COCO's captions have `images` with `id` and `file_name`, and `annotations` with `image_id` "
    "and `caption`"
)


def read(
    captions: Sequence[pathlib.Path],
    images: pathlib.Path | None = None,
    splits: pathlib.Path | None = None,
) -> RawRows:
    """Yields the scenes: COCO's number of the image is their id, "coco" the source.

    Args:
      captions: see the module.
      images: the folder of the images, which may lie in folders of their own; None for texts alone.
      splits: Karpathy's JSON, by whose splits official captions are split; None for COCO's own.

    Raises:
      FileNotFoundError: a file or folder is missing.
      ValueError: a file is not what the module says, or the folder holds no image.
    """
    split_of = None if splits is None else _read_splits(splits)
    pictures = Pictures(images, SOURCE)
    for path in captions:
        content = read_json(path)
        if karpathy.is_karpathy(content):
            yield from karpathy.read(path, content, SOURCE, pictures)
            continue
        try:
            yield from _read_official(path, content, pictures, split_of)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not as expected ({error!r}): {_EXPECTED}.") from error


def _read_splits(path: pathlib.Path) -> dict[str, str]:
    try:
        images = read_json(path)["images"]
        return {karpathy.scene_id(image): karpathy.split_of(image) for image in images}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not as expected ({error!r}): {karpathy.EXPECTED}.") from error


def _read_official(
    path: pathlib.Path,
    content: Mapping[str, Any],
    pictures: Pictures,
    split_of: Mapping[str, str] | None,
) -> RawRows:
    name = _NAME.match(path.name)
    if split_of is None and name is None:
        raise ValueError(
            f"{path} tells no split in its name, as captions_val2017.json does; rename it, or give "
            "Karpathy's JSON as --karpathy."
        )
    texts: dict[int, list[Text]] = {image["id"]: [] for image in content["images"]}
    for annotation in content["annotations"]:
        where = f"{path.name} annotation {annotation['id']}"
        if annotation["image_id"] not in texts:
            yield Rejected(UNKNOWN_IMAGE, where)
            continue
        usable, rejected = usable_texts([annotation["caption"]], SOURCE, "en", where)
        texts[annotation["image_id"]] += usable
        yield from rejected

    def rows_of(image: Mapping[str, Any]) -> list[RawScene | Rejected]:
        scene_id, where = str(image["id"]), f"{path.name} image {image['id']}"
        if split_of is None:
            assert name is not None
            split = name[1]
        elif scene_id in split_of:
            split = split_of[scene_id]
        else:
            return [Rejected(NO_SPLIT, where)]
        own, missing = pictures.read(image["file_name"])
        return [*missing, RawScene(scene_id, split, tuple(texts[image["id"]]), own)]

    for rows in in_threads(rows_of, content["images"]):
        yield from rows
