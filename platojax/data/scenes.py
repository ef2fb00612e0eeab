"""Scenes: states of the world, each seen as several texts, pictures or video clips.

Scenes come as a sequence, or where there are too many for that as a `SceneStream`. `load_emoji` is
the embedded sequence: emojis as several artists draw them and as several languages name them.
"""

import functools
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, get_args, runtime_checkable

import grain
import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from platojax.data.images import open_image
from platojax.hashing import hash_items

EMOJI_FOLDER = Path(__file__).parent / "emoji"
EMOJI_TOKENIZER = EMOJI_FOLDER / "tokenizer.model"

Split = Literal["train", "heldout", "all"]


# Nothing changes one; but to make a frozen one takes four times as long.
@dataclass(slots=True, unsafe_hash=True)
class Text:
    """One text about a scene.

    Attributes:
      source: where the words come from, such as "cldr_en", "emojilib" or "org_caption".
      language: the ISO 639-1 code, such as "en"; empty where unknown.
      name: a short name in that language, or a caption.
      keywords: words and phrases about the scene in that language; may be empty.
      ids: the tokens, without special ones, where the text was tokenised when the data was
        prepared; `name` is then empty.
    """

    source: str
    language: str
    name: str
    keywords: tuple[str, ...] = ()
    ids: np.ndarray | None = field(default=None, compare=False)

    @property
    def content(self) -> str | np.ndarray:
        """What an encoder reads: `name, keyword, keyword, ...`, or `ids` where there are such."""
        if self.ids is not None:
            return self.ids
        return ", ".join([self.name, *self.keywords]) if self.keywords else self.name


@dataclass(frozen=True, eq=False)
class Picture:
    """One picture of a scene.

    Attributes:
      source: where it comes from, such as "coco"; of an emoji the artist, such as "noto".
      content: the pixels, or the bytes of an image file, which are decoded when they are asked for.
    """

    source: str
    content: np.ndarray | bytes

    @property
    def image(self) -> np.ndarray:
        """uint8 [height, width, 3], read-only; emojis are 64 x 64 on white.

        Raises:
          ValueError: the bytes are no whole image.
        """
        if isinstance(self.content, np.ndarray):
            return self.content
        return np.asarray(open_image(self.content))


@dataclass(frozen=True, eq=False)
class Clip:
    """One clip of a scene.

    Attributes:
      source: where it comes from, such as "msrvtt".
      content: the bytes of a video file.
    """

    source: str
    content: bytes


@dataclass(slots=True, eq=False)
class Scene:
    """One state of the world and its views.

    Attributes:
      scene_id: unique over all splits; for an emoji its code points, such as "1f422".
      texts: by their sources.
      pictures: by their sources.
      clips: by their sources.
      label: of its class; empty where it has none.
      emoji: the character; empty for all other scenes, as the three below.
      name: of the emoji in English.
      group: of Unicode's, such as "Animals & Nature".
      subgroup: such as "animal-reptile".
    """

    scene_id: str
    texts: tuple[Text, ...] = ()
    pictures: tuple[Picture, ...] = ()
    clips: tuple[Clip, ...] = ()
    label: str = ""
    emoji: str = ""
    name: str = ""
    group: str = ""
    subgroup: str = ""


class MissingObservationsError(ValueError):
    """A scene lacks observations that views of it need."""

    def __init__(self, scene: Scene, lacking: str) -> None:
        """Says what the scene has.

        Args:
          scene: that lacks them.
          lacking: such as "1 of the 2 texts".
        """
        self.lacking = lacking
        has = [text.source for text in scene.texts]
        has += [picture.source for picture in scene.pictures]
        has += [clip.source for clip in scene.clips]
        super().__init__(f"scene {scene.scene_id} has {lacking} that the views need; it has {has}.")


class Observation(Protocol):
    """What is known of a text, a picture or a clip alike."""

    @property
    def source(self) -> str:
        """Where it comes from."""


_Observed = TypeVar("_Observed", bound=Observation)


def of_sources(
    scene: Scene,
    observations: Sequence[_Observed],
    what: str,
    sources: tuple[str, ...],
    *,
    at_least: int,
) -> Sequence[_Observed]:
    """Of a scene's observations, those that a view policy may take.

    Args:
      scene: whose they are.
      observations: all of one kind.
      what: that kind is, for the message: "texts", "pictures" or "clips".
      sources: as `views.sources` names them; all where empty.
      at_least: how many the policy needs.

    Raises:
      MissingObservationsError: there are fewer.
    """
    found = [one for one in observations if one.source in sources] if sources else observations
    if len(found) < at_least:
        wanted = f" of views.sources {sources}" if sources else ""
        raise MissingObservationsError(scene, f"{len(found)} of the {at_least} {what}{wanted}")
    return found


# Epoch, file and row of a scene: what its views' randomness is keyed by.
SceneKey = tuple[int, int, int]


@runtime_checkable
class Hashed(Protocol):
    """Scenes that know what they are."""

    @property
    def content_hash(self) -> str:
        """SHA-256 (hexadecimal) of what is read; a checkpoint records it."""
        ...


@runtime_checkable
class BatchedReads(Protocol):
    """Scenes of which reading several at a time is quicker."""

    def read(self, indices: Sequence[int]) -> Sequence[Scene]:
        """The scenes of these numbers, in their order."""
        ...


@runtime_checkable
class SceneStream(Hashed, Protocol):
    """Scenes that can only be read in an order: of files too large for random access."""

    def first(self) -> Scene:
        """Any one scene: what its views look like is what all look like."""
        ...

    def blocks(
        self, size: int, *, seed: int, process_index: int, process_count: int
    ) -> grain.IterDataset:
        """Endless blocks of `size` pairs of `SceneKey` and `Scene`, shuffled anew every epoch.

        A block makes its scenes one by one, when they are asked for: most are needed but once.
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


def hash_scenes(scenes: Sequence[Scene] | Hashed) -> str:
    """SHA-256 (hexadecimal) by which a checkpoint knows the training scenes again."""
    if isinstance(scenes, Hashed):
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
            Picture(source=artist.decode(), content=image)
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
