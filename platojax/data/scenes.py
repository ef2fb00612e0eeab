"""Scenes: states of the world, each seen as several texts, several pictures, or both.

Scenes come as a sequence, or where there are too many for that as a `SceneStream`. `load_emoji` is
the embedded sequence: emojis as several artists draw them and as several languages name them.
"""

import functools
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import grain
import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from platojax.hashing import hash_items

EMOJI_FOLDER = Path(__file__).parent / "emoji"
EMOJI_TOKENIZER = EMOJI_FOLDER / "tokenizer.model"

Split = Literal["train", "heldout", "all"]


@dataclass(frozen=True)
class Text:
    """One text about a scene.

    Attributes:
      source: where the words come from, such as "cldr_en", "emojilib" or "org_caption".
      language: the ISO 639-1 code, such as "en"; empty where unknown.
      name: a short name in that language, or a caption.
      keywords: words and phrases about the scene in that language; may be empty.
    """

    source: str
    language: str
    name: str
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Picture:
    """One picture of a scene.

    Attributes:
      artist: who drew it, such as "noto".
      image: uint8 [height, width, 3], read-only; emojis are 64 x 64 on white.
    """

    artist: str
    image: np.ndarray


@dataclass(frozen=True, eq=False)
class Scene:
    """One state of the world and its views.

    Attributes:
      scene_id: unique over all splits; for an emoji its code points, such as "1f422".
      texts: by their sources.
      pictures: by their artists.
      emoji: the character; empty for all other scenes, as the three below.
      name: of the emoji in English.
      group: of Unicode's, such as "Animals & Nature".
      subgroup: such as "animal-reptile".
    """

    scene_id: str
    texts: tuple[Text, ...] = ()
    pictures: tuple[Picture, ...] = ()
    emoji: str = ""
    name: str = ""
    group: str = ""
    subgroup: str = ""


# Epoch, file and row of a scene: what its views' randomness is keyed by.
SceneKey = tuple[int, int, int]


@runtime_checkable
class SceneStream(Protocol):
    """Scenes that can only be read in an order: of files too large for random access."""

    @property
    def content_hash(self) -> str:
        """SHA-256 (hexadecimal) of what the stream reads; a checkpoint records it."""
        ...

    def first(self) -> Scene:
        """Any one scene: what its views look like is what all look like."""
        ...

    def blocks(
        self, size: int, *, seed: int, process_index: int, process_count: int
    ) -> grain.IterDataset:
        """Endless lists of `size` pairs of `SceneKey` and `Scene`, shuffled anew every epoch.

        The dataset has `set_slice`, by which each of several workers makes every n-th block of the
        same stream, and its iterator's state says exactly where it is.

        Args:
          size: scenes in a block.
          seed: of the order.
          process_index: which of `process_count` processes reads; no two read the same scene.
          process_count: see above.

        Raises:
          ValueError: if there is nothing to read for some process.
        """
        ...


def first_scene(scenes: Sequence[Scene] | SceneStream) -> Scene:
    """One scene; what its views look like is what all look like."""
    return scenes.first() if isinstance(scenes, SceneStream) else scenes[0]


def hash_scenes(scenes: Sequence[Scene] | SceneStream) -> str:
    """SHA-256 (hexadecimal) by which a checkpoint knows the training scenes again."""
    if isinstance(scenes, SceneStream):
        return scenes.content_hash
    return hash_items([scene.scene_id for scene in scenes])


def load_emoji(split: Split, *, folder: Path | str = EMOJI_FOLDER) -> Sequence[Scene]:
    """Loads emoji scenes, decoded in memory; a second call returns the same objects.

    Args:
      split: "train", "heldout", or "all", which is train and then heldout.
      folder: a folder made by `tools/build_emoji.py`.

    Returns:
      The scenes, in the order of their code points' text within a split.

    Raises:
      ValueError: the split is unknown, or a file of the folder is missing or damaged.
      FileNotFoundError: the folder is missing.
    """
    if split not in get_args(Split):
        raise ValueError(f"split is {split!r}; choose one of {', '.join(get_args(Split))}")
    if split == "all":
        return _load_split("train", Path(folder)) + _load_split("heldout", Path(folder))
    return _load_split(split, Path(folder))


@functools.lru_cache
def _load_split(split: str, folder: Path) -> tuple[Scene, ...]:
    """Reads and decodes one split."""
    remedy = "reinstall platojax, or rebuild the folder with tools/build_emoji.py"
    if not (folder / "dataset_info.json").is_file():
        raise FileNotFoundError(f"no emoji data in {folder}: {remedy}")
    try:
        source = tfds.builder_from_directory(folder).as_data_source(
            split,
            decoders={"pictures": {"image": _ImageDecoder()}},
        )
        return tuple(_scene(record) for record in source)
    except Exception as error:  # each reader below raises its own kind for a damaged file
        raise ValueError(f"emoji data in {folder} is damaged ({error}): {remedy}") from error


def _scene(record: dict[str, Any]) -> Scene:
    """Turns a TFDS record into a scene."""
    pictures, texts = record["pictures"], record["texts"]
    return Scene(
        scene_id=record["scene_id"].decode(),
        emoji=record["emoji"].decode(),
        name=record["name"].decode(),
        group=record["group"].decode(),
        subgroup=record["subgroup"].decode(),
        texts=tuple(
            Text(
                source=source.decode(),
                language=language.decode(),
                name=name.decode(),
                keywords=tuple(keywords.decode().split(", ")) if keywords else (),
            )
            for source, language, name, keywords in zip(
                texts["source"], texts["language"], texts["name"], texts["keywords"], strict=True
            )
        ),
        pictures=tuple(
            Picture(artist=artist.decode(), image=image)
            for artist, image in zip(pictures["artist"], pictures["image"], strict=True)
        ),
    )


class _ImageDecoder(tfds.decode.Decoder):
    """Decodes with Pillow whether or not OpenCV is there, whose absence TFDS would warn about."""

    def decode_example(self, serialized_image: Any) -> np.ndarray:
        raise NotImplementedError("the records are read without TensorFlow")

    def decode_batch_example_np(self, serialized_images: Iterable[bytes]) -> list[np.ndarray]:
        """Returns uint8 [height, width, 3] for each image, read-only."""
        return [_decode(image) for image in serialized_images]


def _decode(encoded: bytes) -> np.ndarray:
    """Decodes an image file to uint8 [height, width, 3], read-only."""
    with Image.open(io.BytesIO(encoded), formats=("WEBP", "PNG", "JPEG")) as image:
        array = np.array(image.convert("RGB"))
    array.flags.writeable = False
    return array
