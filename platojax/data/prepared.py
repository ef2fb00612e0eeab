"""Prepared data: scenes in ArrayRecord shards, read at random.

A folder of prepared data holds, beside its shards, `info.json` (see `Info`) and what
tensorflow-datasets needs to read it (`tfds.builder_from_directory(folder).as_data_source(split)`):

    scene_id  Text
    texts     Sequence: source, language, text; ids: little-endian uint16 or uint32 token ids where
              the texts were tokenised, and `text` is then empty
    pictures  Sequence: source; image, the encoded file
    clips     Sequence: source; video, the encoded file
    label     Text

`PreparedScenes` parses the records itself, because tensorflow-datasets takes five times as long
(docs/benchmarks.md).
"""

import bisect
import collections
import dataclasses
import functools
import itertools
import json
import operator
import pathlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from array_record.python import array_record_module
from tensorflow_datasets.proto import tf_example_pb2

from platojax.data.scenes import Clip, Observation, Picture, Scene, Text
from platojax.hashing import hash_items

INFO = "info.json"
FORMAT = 1  # of info.json and of the records
_MAX_SAMPLE = 4096
_READ_TOGETHER = 256
# An open shard holds a file descriptor, of which a process often has 1,024, and its index.
_MAX_OPEN_SHARDS = 128


@dataclasses.dataclass(frozen=True)
class Kind:
    """Scenes that have the same observations by number, source and language.

    Attributes:
      texts: `(source, language, number)`, sorted.
      pictures: `(source, number)`, sorted.
      clips: `(source, number)`, sorted.
      scenes: how many there are.
      first: index of the first.
    """

    texts: tuple[tuple[str, str, int], ...]
    pictures: tuple[tuple[str, int], ...]
    clips: tuple[tuple[str, int], ...]
    scenes: int
    first: int

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Kind":
        """Of what JSON makes of one."""
        observations = {
            field: tuple(map(tuple, content[field])) for field in ("texts", "pictures", "clips")
        }
        return cls(**observations, scenes=content["scenes"], first=content["first"])


class Described(Protocol):
    """A scene: what all kinds of them say of their observations."""

    @property
    def texts(self) -> Sequence[Text]:
        """In any order, as all."""

    @property
    def pictures(self) -> Sequence[Observation]:
        """Decoded or not."""

    @property
    def clips(self) -> Sequence[Observation]:
        """Decoded or not."""


# Of a `Kind`, what its scenes have in common: texts, pictures and clips.
Signature = tuple[
    tuple[tuple[str, str, int], ...], tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]
]


def signature(scene: Described) -> Signature:
    """What a scene has, before or after it is written."""
    texts = collections.Counter((text.source, text.language) for text in scene.texts)
    pictures = collections.Counter(picture.source for picture in scene.pictures)
    clips = collections.Counter(clip.source for clip in scene.clips)
    return (
        tuple((source, language, n) for (source, language), n in sorted(texts.items())),
        tuple(sorted(pictures.items())),
        tuple(sorted(clips.items())),
    )


@dataclasses.dataclass(frozen=True)
class Shard:
    """One file of scenes.

    Attributes:
      file: its name.
      scenes: how many.
      bytes: of the file.
      sha256: of the scenes, not of the file, whose compression may change.
    """

    file: str
    scenes: int
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class SplitInfo:
    """One split.

    Attributes:
      shards: in their order.
      texts: how many.
      pictures: how many.
      clips: how many.
      kinds: of the scenes; None where there are more kinds than `preparation.MAX_KINDS`.
    """

    shards: tuple[Shard, ...]
    texts: int
    pictures: int
    clips: int
    kinds: tuple[Kind, ...] | None

    @property
    def scenes(self) -> int:
        """How many."""
        return sum(shard.scenes for shard in self.shards)

    @property
    def content_hash(self) -> str:
        """SHA-256 (hexadecimal) of the scenes in their order."""
        return hash_items([shard.sha256 for shard in self.shards])


@dataclasses.dataclass(frozen=True)
class Info:
    """What is known of a folder of prepared data; the content of its `info.json`.

    Attributes:
      name: of the data set, such as "multi30k".
      splits: by name.
      rejected: what could not be used, by the reason.
      first_rejected: where the first of each reason was.
      excluded: scenes that were left out by wish.
      source: what was read.
      settings: of the preparation.
      tokenizer: `hash` and `vocab_size`, or empty where the texts are kept as they are.
    """

    name: str
    splits: Mapping[str, SplitInfo]
    rejected: Mapping[str, int]
    first_rejected: Mapping[str, str]
    excluded: int
    source: Mapping[str, Any]
    settings: Mapping[str, Any]
    tokenizer: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it, with totals for whoever reads the file."""
        content = {"format": FORMAT, **dataclasses.asdict(self)}
        for name, split in self.splits.items():
            content["splits"][name] = {
                "scenes": split.scenes,
                "content_hash": split.content_hash,
                **content["splits"][name],
            }
        return content


def is_prepared(folder: pathlib.Path) -> bool:
    """Whether it looks like prepared data."""
    return (folder / INFO).is_file()


def read_info(folder: pathlib.Path) -> Info:
    """Reads the `info.json` of prepared data.

    Raises:
      FileNotFoundError: there is none.
      ValueError: it is damaged, or of another version.
    """
    path = folder / INFO
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} is no prepared data: it has no {INFO}; make it with `platojax prepare`."
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        splits = {name: _split_info(split) for name, split in content.pop("splits").items()}
        return Info(splits=splits, **content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} cannot be used ({error}); prepare the data again.") from error


def _split_info(content: dict[str, Any]) -> SplitInfo:
    kinds = content["kinds"]
    return SplitInfo(
        shards=tuple(Shard(**shard) for shard in content["shards"]),
        texts=content["texts"],
        pictures=content["pictures"],
        clips=content["clips"],
        kinds=None if kinds is None else tuple(map(Kind.from_dict, kinds)),
    )


class PreparedScenes(Sequence[Scene]):
    """The scenes of one split, each read when it is asked for; can be pickled.

    Attributes:
      folder: of the prepared data.
      split: its name.
      info: of the split.
      content_hash: SHA-256 (hexadecimal) of the scenes in their order.
    """

    def __init__(self, folder: pathlib.Path | str, split: str) -> None:
        """Looks whether all shards are there; opens none.

        Args:
          folder: made by `platojax prepare`.
          split: one of those in its `info.json`.

        Raises:
          FileNotFoundError: it is no prepared data, or a shard is missing.
          ValueError: there is no such split, or a file is damaged.
        """
        self.folder, self.split = pathlib.Path(folder), split
        info = read_info(self.folder)
        if split not in info.splits:
            raise ValueError(f"{folder} has no split {split!r}; it has {', '.join(info.splits)}.")
        self.info = info.splits[split]
        for shard in self.info.shards:
            self._check(shard)
        self.content_hash = self.info.content_hash
        self._ends = list(itertools.accumulate(shard.scenes for shard in self.info.shards))
        self._id_type = None
        if info.tokenizer:
            small = info.tokenizer["vocab_size"] <= 1 << 16
            self._id_type = np.dtype("<u2" if small else "<u4")
        self._open_nothing()

    def _open_nothing(self) -> None:
        self._lock = threading.Lock()
        self._readers: collections.OrderedDict[int, Any] = collections.OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        own = ("_lock", "_readers", "_found_kinds")  # of this process
        return {k: v for k, v in self.__dict__.items() if k not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open_nothing()

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Of the scenes; where `info.json` does not list them, all scenes are read to know."""
        return self._found_kinds[0] if self.info.kinds is None else self.info.kinds

    @property
    def kind_of_each(self) -> np.ndarray:
        """int32 `[len(self)]`, the position in `kinds`; all scenes are read to know."""
        return self._found_kinds[1]

    @functools.cached_property
    def _found_kinds(self) -> tuple[tuple[Kind, ...], np.ndarray]:
        numbers: dict[Signature, int] = {}
        firsts = []
        kind_of_each = np.empty(len(self), np.int32)
        for index, scene in enumerate(self):
            kind = signature(scene)
            if kind not in numbers:
                numbers[kind] = len(numbers)
                firsts.append(index)
            kind_of_each[index] = numbers[kind]
        counts = np.bincount(kind_of_each, minlength=len(numbers)).tolist()
        kinds = (Kind(*kind, counts[n], firsts[n]) for kind, n in numbers.items())
        return tuple(kinds), kind_of_each

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: Any) -> Any:
        """The scene of this number.

        Raises:
          IndexError: there is none.
          FileNotFoundError: its shard is missing.
          ValueError: its shard is damaged.
        """
        return self.read([range(len(self))[operator.index(index)]])[0]

    def __iter__(self) -> Iterator[Scene]:
        for start in range(0, len(self), _READ_TOGETHER):
            yield from self.read(range(start, min(start + _READ_TOGETHER, len(self))))

    def read(self, indices: Sequence[int]) -> Sequence[Scene]:
        """The scenes of these numbers, none negative; a fraction of the cost of one by one.

        Their records are read first, and each is parsed when it is asked for: of a block of
        scenes in memory, Python's search for garbage would take a tenth of the time.

        Raises:
          FileNotFoundError, ValueError: as of one.
        """
        shards: dict[int, list[int]] = {}  # and the positions in `indices`
        for position, index in enumerate(indices):
            shards.setdefault(bisect.bisect_right(self._ends, index), []).append(position)
        records = [b""] * len(indices)
        for shard, positions in shards.items():
            start = self._ends[shard] - self.info.shards[shard].scenes
            rows = [indices[position] - start for position in positions]
            for position, record in zip(positions, self._read(shard, rows), strict=True):
                records[position] = record
        return _ReadScenes(self, indices, records)

    def parse(self, index: int, record: bytes) -> Scene:
        """The scene of this number, of its record; raises ValueError as of one."""
        try:
            return parse_scene(record, self._id_type)
        except (ValueError, IndexError) as error:
            shard = bisect.bisect_right(self._ends, index)
            row = index - self._ends[shard] + self.info.shards[shard].scenes
            raise self._damage(shard, [row], error) from error

    def _read(self, shard: int, rows: list[int]) -> list[bytes]:
        try:
            # One reader must not be asked from two threads, nor closed while it reads.
            with self._lock:
                reader = self._reader(shard)
                # Not `read(rows)`: it goes through all records of the shard at each call, which
                # takes 1.5 ms where there are 500,000.
                return [reader.read(row, row + 1)[0] for row in rows]
        except (RuntimeError, ValueError, IndexError) as error:
            raise self._damage(shard, rows, error) from error

    def _damage(self, shard: int, rows: list[int], error: Exception) -> ValueError:
        self._check(self.info.shards[shard])
        path = self.folder / self.info.shards[shard].file
        return ValueError(
            f"{path} is damaged, among the scenes {sorted(rows)[:5]} ({error}); prepare the data "
            "again."
        )

    def _reader(self, shard: int) -> Any:
        if shard in self._readers:
            self._readers.move_to_end(shard)
            return self._readers[shard]
        self._check(self.info.shards[shard])
        while len(self._readers) >= _MAX_OPEN_SHARDS:
            self._readers.popitem(last=False)[1].close()
        reader = array_record_module.ArrayRecordReader(
            str(self.folder / self.info.shards[shard].file),
            # Scenes are asked for in random order, so that reading ahead reads in vain.
            options="readahead_buffer_size:0",
            file_reader_buffer_size=1 << 12,
        )
        self._readers[shard] = reader
        return reader

    def _check(self, shard: Shard) -> None:
        path = self.folder / shard.file
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing; restore it, or prepare the data again.")
        if (size := path.stat().st_size) != shard.bytes:
            raise ValueError(
                f"{path} has {size} bytes, not the {shard.bytes} that it was written with; restore "
                "it, or prepare the data again."
            )


class _ReadScenes(Sequence[Scene]):
    """Scenes whose records were read; see `PreparedScenes.read`."""

    def __init__(
        self, scenes: PreparedScenes, indices: Sequence[int], records: Sequence[bytes]
    ) -> None:
        self._scenes, self._indices, self._records = scenes, indices, records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return _ReadScenes(self._scenes, self._indices[place], self._records[place])
        return self._scenes.parse(self._indices[place], self._records[place])


def parse_scene(record: bytes, id_type: np.dtype | None) -> Scene:
    """The scene of a record.

    Args:
      record: a serialised `tf.train.Example` in the layout of this module.
      id_type: of the token ids; None where the texts were not tokenised.

    Raises:
      ValueError: it is none.
    """
    try:
        features = tf_example_pb2.Example.FromString(record).features.feature
    except Exception as error:  # google.protobuf's own, in a place that moves
        raise ValueError(f"no record of a scene: {error}") from error

    sources = map(_decode, features["texts/source"].bytes_list.value)
    languages = map(_decode, features["texts/language"].bytes_list.value)
    if id_type is None:
        words = features["texts/text"].bytes_list.value
        texts = [
            Text(source, language, text.decode())
            for source, language, text in zip(sources, languages, words, strict=True)
        ]
    else:
        tokens = features["texts/ids"].bytes_list.value
        texts = [
            Text(source, language, "", (), np.frombuffer(ids, id_type) if ids else None)
            for source, language, ids in zip(sources, languages, tokens, strict=True)
        ]
    (scene_id,) = features["scene_id"].bytes_list.value
    (label,) = features["label"].bytes_list.value
    return Scene(
        scene_id.decode(),
        tuple(texts),
        _encoded(Picture, features, "pictures/source", "pictures/image"),
        _encoded(Clip, features, "clips/source", "clips/video"),
        _decode(label),
    )


def _encoded(kind: Any, features: Any, source: str, content: str) -> tuple[Any, ...]:
    """Pictures or clips; most scenes of most data sets have none of one."""
    if not (found := features[content].bytes_list.value):
        return ()
    pairs = zip(features[source].bytes_list.value, found, strict=True)
    return tuple([kind(_decode(one), encoded) for one, encoded in pairs])


@functools.lru_cache(maxsize=1 << 10)
def _decode(name: bytes) -> str:
    """A source, language or label; there are few, and all their scenes share one string."""
    return name.decode()


def sample_scenes(scenes: PreparedScenes) -> list[Scene]:
    """One scene of each kind, of the first thousands of kinds."""
    return [scenes[kind.first] for kind in scenes.kinds[:_MAX_SAMPLE]]
