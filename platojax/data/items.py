"""Items to evaluate frozen encoders on: texts, images or both, known by an id.

An item is one state of the world; row i of every feature array made from the same items is the same
one. Where an item has several observations (five captions), its features are their mean.
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, get_args

from platojax.data.images import ImageSource, hash_image
from platojax.data.prepared import PreparedScenes, is_prepared
from platojax.data.records import read_records
from platojax.data.scenes import Scene, Split, load_emoji
from platojax.hashing import hash_items

# The defaults of `emoji_items`: English names, and the artists in the order of preference.
EMOJI_SOURCES = ("cldr_en",)
EMOJI_ARTISTS = ("noto", "noto_v1", "twemoji", "fluent_flat", "emojione", "fxemoji")


@dataclasses.dataclass(frozen=True, eq=False)
class Items:
    """What is evaluated.

    Attributes:
      name: of the data set and split.
      ids: one per item, all different.
      texts: the texts of each item, or None where there are none.
      images: the images of each item, or None where there are none.
      labels: the class of each item, or None where there are none.
    """

    name: str
    ids: tuple[str, ...]
    texts: tuple[tuple[str, ...], ...] | None = None
    images: tuple[tuple[ImageSource, ...], ...] | None = None
    labels: tuple[str, ...] | None = None
    _hashes: dict[str, str] = dataclasses.field(default_factory=dict, init=False, repr=False)

    @property
    def modalities(self) -> list[Literal["text", "image"]]:
        """Of which there are observations."""
        found: list[Literal["text", "image"]] = []
        if self.texts is not None:
            found.append("text")
        if self.images is not None:
            found.append("image")
        return found

    def observations(self, modality: str) -> Sequence[tuple[Any, ...]]:
        """The texts or the images of each item.

        Raises:
          ValueError: there are none of this modality.
        """
        found = self.texts if modality == "text" else self.images
        if found is None:
            other = "images" if modality == "text" else "texts"
            raise ValueError(
                f"the encoder is for {modality}s, and data {self.name} has {other} only; give "
                "another encoder or other data"
            )
        return found

    def first(self, count: int) -> "Items":
        """The same items with at most `count` texts and `count` images of each."""
        if count < 1:
            raise ValueError(f"observations must be at least 1; got {count}")
        return dataclasses.replace(
            self,
            texts=self.texts and tuple(one[:count] for one in self.texts),
            images=self.images and tuple(one[:count] for one in self.images),
        )

    def content_hash(self, modality: str) -> str:
        """SHA-256 (hexadecimal) of the texts or images themselves, in their order."""
        if modality in self._hashes:  # of a list of encoders, each asks
            return self._hashes[modality]
        observations = self.observations(modality)
        flat = [one for several in observations for one in several]
        if modality == "image":
            with ThreadPoolExecutor() as pool:  # hashing releases the interpreter's lock
                flat = list(pool.map(hash_image, flat))
        self._hashes[modality] = hash_items([*(len(several) for several in observations), *flat])
        return self._hashes[modality]

    def stamp(self) -> str:
        """A quick hash by which the same items are known again: files count by size and time."""
        parts: list[str | int] = [self.name, *self.ids]
        for texts in self.texts or ():
            parts += [len(texts), *texts]
        for images in self.images or ():
            parts.append(len(images))
            for image in images:
                if isinstance(image, pathlib.Path):
                    status = image.stat()
                    parts.append(f"{image.resolve()} {status.st_size} {status.st_mtime_ns}")
                else:
                    parts.append(hash_image(image))
        return hash_items(parts)


def load_items(spec: str, prompts: str | None = None) -> Items:
    """Loads the items that `--data` names.

    Args:
      spec: `emoji`, `emoji:train` or `emoji:heldout`; a folder of images; a file of rows, which is
        .jsonl, .csv, .tsv, .parquet or .txt, see `records.read_records`; or prepared data, as
        `FOLDER:SPLIT`, or `FOLDER:SPLIT:SOURCE` for the texts of one source.
      prompts: for rows about classes, the style of the texts made of them.

    Raises:
      ValueError: the file or folder holds nothing usable; the message names rows and fixes.
      FileNotFoundError: there is nothing at this path.
    """
    name, _, split = spec.partition(":")
    if name == "emoji" and (split or not pathlib.Path(spec).exists()):
        split = split or "all"
        if split not in get_args(Split):
            raise ValueError(
                f"data {spec!r}: choose one of emoji:{', emoji:'.join(get_args(Split))}"
            )
        return emoji_items(load_emoji(split), name=f"emoji:{split}")  # type: ignore[arg-type]
    folder, _, split = spec.partition(":")
    if is_prepared(pathlib.Path(folder)):
        return prepared_items(pathlib.Path(folder), *split.split(":", 1))
    path = pathlib.Path(spec)
    records = read_records(path, prompts)
    name = f"{path.name}, prompts {prompts}" if prompts else path.name
    return Items(name, records.ids, records.texts, records.images, records.labels)


def prepared_items(folder: pathlib.Path, split: str, source: str = "") -> Items:
    """One split of prepared data as items, in memory; pictures stay encoded.

    Texts, images or labels that some scenes lack are left out: all items must have them.

    Args:
      folder: of the prepared data.
      split: its name.
      source: of the texts; all where empty.

    Raises:
      FileNotFoundError: a shard is missing.
      ValueError: there is no such split or source, or the texts are tokenised.
    """
    scenes = PreparedScenes(folder, split)
    ids, texts, images, labels = [], [], [], []
    for scene in scenes:
        own = [text for text in scene.texts if source in ("", text.source)]
        if any(text.ids is not None for text in own):
            raise ValueError(
                f"the texts of {folder} were tokenised when they were prepared, and other encoders "
                "need words; prepare the data without a tokenizer."
            )
        ids.append(scene.scene_id)
        texts.append(tuple(text.name for text in own))
        images.append(tuple(picture.content for picture in scene.pictures))
        labels.append(scene.label)
    if source and not any(texts):
        known = sorted({name for kind in scenes.kinds for name, _, _ in kind.texts})
        raise ValueError(f"{folder}:{split} has no texts of source {source!r}; it has {known}.")

    name = ":".join([folder.name, split, *([source] if source else [])])
    return Items(
        name,
        tuple(ids),
        tuple(texts) if all(texts) else None,
        tuple(images) if all(images) else None,
        tuple(labels) if all(labels) else None,
    )


def emoji_items(
    scenes: Sequence[Scene],
    *,
    name: str,
    sources: Sequence[str] = EMOJI_SOURCES,
    artists: Sequence[str] = EMOJI_ARTISTS,
    drawings: int = 3,
) -> Items:
    """Emoji as items: their texts by these sources, and drawings.

    Args:
      scenes: N scenes.
      name: of the items.
      sources: whose name and keywords of each scene count, one text by each.
      artists: in the order of preference.
      drawings: by the first so many of the artists who drew the scene.

    Raises:
      ValueError: if a scene lacks a source, or has fewer drawings.
    """
    texts, images = [], []
    for scene in scenes:
        by_source = {text.source: text for text in scene.texts}
        missing = [source for source in sources if source not in by_source]
        if missing:
            raise ValueError(
                f"evaluation.sources {missing} do not describe scene {scene.scene_id}; "
                f"it has {sorted(by_source)}."
            )
        texts.append(tuple(", ".join([by_source[s].name, *by_source[s].keywords]) for s in sources))
        by_artist = {picture.source: picture.image for picture in scene.pictures}
        chosen = [by_artist[artist] for artist in artists if artist in by_artist][:drawings]
        if len(chosen) < drawings:
            raise ValueError(
                f"scene {scene.scene_id} has {len(chosen)} drawings by evaluation.artists "
                f"{tuple(artists)}, not {drawings}; it has {sorted(by_artist)}."
            )
        images.append(tuple(chosen))
    ids = tuple(scene.scene_id for scene in scenes)
    labels = tuple(scene.group for scene in scenes)
    return Items(name, ids, tuple(texts), tuple(images), labels)
