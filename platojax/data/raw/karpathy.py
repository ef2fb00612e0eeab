"""Karpathy's JSON files of Flickr8k, Flickr30k and COCO, with the splits that all compare on.

`dataset_flickr30k.json` and `dataset_coco.json` (cs.stanford.edu/people/karpathy/deepimagesent)
have `images`, each with `filename`, `split`, `sentences` (`raw` is the caption) and, of COCO,
`cocoid`. COCO's split "restval" belongs to training.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from platojax.data.captions import usable_texts
from platojax.data.raw.media import in_threads
from platojax.data.raw.pictures import Pictures
from platojax.data.raw.scene import RawRows, RawScene
from platojax.data.rejects import Rejected

EXPECTED = "a Karpathy JSON has `images` with `filename`, `split` and `sentences`"
_SPLITS = {"restval": "train"}


def is_karpathy(content: Any) -> bool:
    """Whether a JSON file is one of these."""
    return isinstance(content, Mapping) and "images" in content and "annotations" not in content


def read(path: pathlib.Path, content: Any, source: str, pictures: Pictures) -> RawRows:
    """Yields the scenes: COCO's image id or else the file's name is theirs.

    Args:
      path: of the JSON file.
      content: of the file.
      source: of the texts.
      pictures: of the images.

    Raises:
      ValueError: the file is not what the module says.
    """

    def rows_of(number_and_image: tuple[int, Mapping[str, Any]]) -> list[RawScene | Rejected]:
        number, image = number_and_image
        texts, rejected = usable_texts(
            [sentence["raw"] for sentence in image["sentences"]],
            source,
            "en",
            f"{path.name} image {number + 1}",
        )
        own, missing = pictures.read(image["filename"])
        scene = RawScene(scene_id(image), split_of(image), tuple(texts), own)
        return [*rejected, *missing, scene]

    try:
        for rows in in_threads(rows_of, enumerate(content["images"])):
            yield from rows
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not as expected ({error!r}): {EXPECTED}.") from error


def scene_id(image: Mapping[str, Any]) -> str:
    """The id of an image: COCO's number, or the file's name."""
    return str(image["cocoid"]) if "cocoid" in image else str(image["filename"])


def split_of(image: Mapping[str, Any]) -> str:
    """The split of an image."""
    return _SPLITS.get(image["split"], image["split"])
