"""A random sample of the texts of anything, of a size that fits in memory."""

import glob
import pathlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from platojax.data.captions import fault
from platojax.data.parquet import read_row_groups
from platojax.data.paths import find_files
from platojax.data.prepared import PreparedScenes, is_prepared
from platojax.data.recap import SOURCES as RECAP_COLUMNS
from platojax.data.scenes import Scene, load_emoji

_READ_TOGETHER = 256  # scenes
_ENOUGH = 4  # times the sample: so many texts of Parquet files are looked at, at most


def sample_texts(
    spec: str, count: int, *, sources: Sequence[str] = (), split: str = "train", seed: int = 0
) -> list[str]:
    """Up to `count` texts, drawn at random; all of them, in their order, where there are fewer.

    Texts that `captions.fault` finds unusable are left out.

    Args:
      spec: "emoji"; a folder of prepared data; a pattern of `.parquet` files; or of text files, one
        text a line. Of scenes, the training split is sampled. Of Parquet files, random row groups
        are read until there are a few times `count` texts to draw from.
      count: texts at most.
      sources: of scenes, the sources of the texts; of Parquet files, their columns. Where empty,
        all sources, and the two columns of Recap-DataComp-1B.
      split: of prepared data.
      seed: of the sample.

    Raises:
      FileNotFoundError: nothing is there.
      ValueError: there are no usable texts, prepared data is tokenised, or a column is missing.
    """
    if count < 1:
        raise ValueError(f"sample must be at least 1; got {count}.")
    rng = np.random.default_rng(seed)
    found = _texts(spec, count, sources, split, rng)
    usable = (text for text in found if text is not None and fault(text) is None)
    texts = (text.decode() if isinstance(text, bytes) else text for text in usable)
    if sample := _reservoir(texts, count, rng):
        return sample
    chosen = f" of the sources {tuple(sources)}" if sources else ""
    raise ValueError(f"{spec} has no usable texts{chosen}; name other data or other sources.")


def _texts(
    spec: str, count: int, sources: Sequence[str], split: str, rng: np.random.Generator
) -> Iterator[str | bytes | None]:
    path = pathlib.Path(spec)
    if spec == "emoji":
        for scene in load_emoji("train"):
            yield from _texts_of(scene, sources)
    elif is_prepared(path):
        scenes = PreparedScenes(path, split)
        seen = 0
        for indices in _order(scenes, count, rng):
            for begin in range(0, len(indices), _READ_TOGETHER):
                for scene in scenes.read(indices[begin : begin + _READ_TOGETHER].tolist()):
                    if seen >= count:
                        return
                    for text in _texts_of(scene, sources):
                        seen += 1
                        yield text
    elif path.suffix == ".parquet":
        columns = tuple(sources) or RECAP_COLUMNS
        seen = 0
        for rows in read_row_groups(find_files(spec), columns, rng):
            if seen >= _ENOUGH * count:
                return
            for column in columns:
                # As bytes: Parquet's strings are whatever the writer put there.
                values = rows[column].cast(pa.large_binary()).to_pylist()
                seen += len(values)
                yield from values
    else:
        files = sorted(glob.glob(spec, recursive=True))
        if not files:
            raise FileNotFoundError(f"{spec!r} matches no file, and is no prepared data.")
        for file in files:
            with open(file, encoding="utf-8", errors="surrogateescape") as lines:
                yield from (line.rstrip("\r\n") for line in lines)


def _order(scenes: PreparedScenes, count: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """The numbers of all scenes, in their order where all are wanted, or else a random one."""
    if scenes.info.texts <= count:
        yield np.arange(len(scenes))
        return
    # Random access: no more is read than is needed, nor are the numbers of all scenes shuffled.
    yield (first := rng.choice(len(scenes), min(count, len(scenes)), replace=False))
    # Scenes may have no text of the sources that are wanted, or none that is usable.
    rest = np.setdiff1d(np.arange(len(scenes)), first)
    rng.shuffle(rest)
    yield rest


def _texts_of(scene: Scene, sources: Sequence[str]) -> Iterator[str]:
    for text in scene.texts:
        if sources and text.source not in sources:
            continue
        if text.ids is not None:
            raise ValueError(
                "the data was tokenised when it was prepared: its words are gone. Prepare it "
                "without a tokenizer to train one on it."
            )
        yield from (text.name, *text.keywords)


def _reservoir(texts: Iterable[str], count: int, rng: np.random.Generator) -> list[str]:
    """Each text with the same probability, and no more than `count` in memory."""
    sample: list[str] = []
    for number, text in enumerate(texts):
        if number < count:
            sample.append(text)
        elif (place := int(rng.integers(number + 1))) < count:
            sample[place] = text
    return sample
