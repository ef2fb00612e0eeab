"""Writes prepared data; see `prepared` for what it is.

`write_prepared` is for data sets that one process goes through. What prepares in many processes
takes its parts: each process fills shards with a `ShardWriter`, and `write_metadata` comes last.
"""

import collections
import contextlib
import dataclasses
import fcntl
import hashlib
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from array_record.python import array_record_module
from tensorflow_datasets.proto import tf_example_pb2

from platojax.data.prepared import INFO, Info, Kind, Shard, Signature, SplitInfo, signature
from platojax.data.raw.scene import SPLIT_NAME, RawScene
from platojax.data.rejects import DUPLICATE_SCENE, EMPTY_TEXT, Rejected, Rejects
from platojax.data.tokenizer import Tokenizer
from platojax.files import to_json, write_whole

MAX_KINDS = 256
_SHARD_BYTES = 256 << 20  # before compression
_NAME = re.compile(r"[a-z][a-z0-9_]*")
# What a killed preparation can leave: shards and metadata, whole or being written.
_LEFT_BEHIND = re.compile(r"\.array_record-\d|^(info|dataset_info|features)\.json")
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}"

FEATURES = tfds.features.FeaturesDict(
    {
        "scene_id": tfds.features.Text(),
        "label": tfds.features.Text(),
        "texts": tfds.features.Sequence(
            {
                "source": tfds.features.Text(),
                "language": tfds.features.Text(),
                "text": tfds.features.Text(),
                "ids": tfds.features.Scalar(np.object_),
            }
        ),
        "pictures": tfds.features.Sequence(
            {
                "source": tfds.features.Text(),
                "image": tfds.features.Image(shape=(None, None, 3)),
            }
        ),
        "clips": tfds.features.Sequence(
            {"source": tfds.features.Text(), "video": tfds.features.Scalar(np.object_)}
        ),
    }
)


@dataclasses.dataclass(frozen=True)
class WrittenShard:
    """A shard, and what is in it.

    Attributes:
      shard: the file.
      texts: how many.
      pictures: how many.
      clips: how many.
      kinds: of its scenes; their `first` counts from the shard's beginning. None if too many.
    """

    shard: Shard
    texts: int
    pictures: int
    clips: int
    kinds: tuple[Kind, ...] | None


def shard_name(name: str, split: str, index: int) -> str:
    """The name of a shard's file, as tensorflow-datasets finds it.

    Args:
      name: of the data set.
      split: of the shard.
      index: of the shard in its split.

    Raises:
      ValueError: a name cannot be part of a file's.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"name {name!r} must be lower-case letters, digits and _, a letter first.")
    if not SPLIT_NAME.fullmatch(split):
        raise ValueError(f"split {split!r} must be letters, digits and _.")
    return f"{name}-{split}.array_record-{index:05d}"


class ShardWriter:
    """Writes one shard; it is there under its name once it is closed, whole, or not at all."""

    def __init__(self, path: pathlib.Path, tokenizer: Tokenizer | None = None) -> None:
        """Opens the file.

        Args:
          path: of the shard, see `shard_name`.
          tokenizer: of the texts, which are otherwise kept as they are.
        """
        self._path = path
        self._partial = path.with_name(path.name + ".tmp")
        self._tokenizer = tokenizer
        self._id_type = np.dtype("<u2" if tokenizer and tokenizer.vocab_size <= 1 << 16 else "<u4")
        # A scene is a group, which is what random access reads. Compression gains a tenth of one
        # scene's texts, nothing of a JPEG, and doubles the time of a read.
        self._writer = array_record_module.ArrayRecordWriter(
            str(self._partial), "group_size:1,uncompressed"
        )
        self._digest = hashlib.sha256()
        self._counts: collections.Counter[str] = collections.Counter()
        self._kinds: dict[Signature, list[int]] = {}  # number of scenes, and the first
        self.num_bytes = 0  # before compression

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer.is_open():  # of a shard that was not finished
            self._writer.close()
            self._partial.unlink(missing_ok=True)

    def add(self, scene: RawScene) -> list[Rejected]:
        """Writes a scene after those before.

        Returns:
          The texts of which the tokenizer makes nothing. They are not written, nor is the scene
          where it has nothing else.
        """
        ids = None
        rejected = []
        if self._tokenizer is not None:
            encoded = self._tokenizer.encode_all([text.name for text in scene.texts])
            tokens = list(zip(scene.texts, encoded, strict=True))
            ids = [one for _, one in tokens if len(one)]
            texts = tuple(text for text, one in tokens if len(one))
            where = f"scene {scene.scene_id} of {scene.split}"
            rejected = [Rejected(EMPTY_TEXT, where)] * (len(tokens) - len(texts))
            scene = dataclasses.replace(scene, texts=texts)
        if scene.texts or scene.pictures or scene.clips:
            self._write(scene, ids)
        return rejected

    def _write(self, scene: RawScene, ids: Sequence[np.ndarray] | None) -> None:
        record = self._serialise(scene, ids)
        self._digest.update(len(record).to_bytes(8, "little") + record)
        self._writer.write(record)
        if len(self._kinds) <= MAX_KINDS:  # too many are as good as none
            kind = self._kinds.setdefault(signature(scene), [0, self._counts["scenes"]])
            kind[0] += 1
        self.num_bytes += len(record)
        for field in ("texts", "pictures", "clips"):
            self._counts[field] += len(getattr(scene, field))
        self._counts["scenes"] += 1

    def finish(self) -> WrittenShard:
        """Closes the file and gives it its name."""
        self._writer.close()
        size = self._partial.stat().st_size
        self._partial.replace(self._path)
        counts = {field: self._counts[field] for field in ("texts", "pictures", "clips")}
        shard = Shard(self._path.name, self._counts["scenes"], size, self._digest.hexdigest())
        kinds = (Kind(*sign, scenes=n, first=first) for sign, (n, first) in self._kinds.items())
        few = len(self._kinds) <= MAX_KINDS
        return WrittenShard(shard, **counts, kinds=tuple(kinds) if few else None)

    def _serialise(self, scene: RawScene, ids: Sequence[np.ndarray] | None) -> bytes:
        example = tf_example_pb2.Example()
        feature = example.features.feature

        def column(name: str, values: Iterable[bytes]) -> None:
            feature[name].bytes_list.value.extend(values)

        column("scene_id", [scene.scene_id.encode()])
        column("label", [scene.label.encode()])
        column("texts/source", [text.source.encode() for text in scene.texts])
        column("texts/language", [text.language.encode() for text in scene.texts])
        if ids is None:
            column("texts/text", [text.name.encode() for text in scene.texts])
            column("texts/ids", [b""] * len(scene.texts))
        else:
            column("texts/text", [b""] * len(scene.texts))
            column("texts/ids", [np.asarray(one, self._id_type).tobytes() for one in ids])
        column("pictures/source", [one.source.encode() for one in scene.pictures])
        column("pictures/image", [one.content for one in scene.pictures])
        column("clips/source", [one.source.encode() for one in scene.clips])
        column("clips/video", [one.content for one in scene.clips])
        # The features are a map, whose order is otherwise another one in each process.
        return example.SerializeToString(deterministic=True)


def write_prepared(
    rows: Iterable[RawScene | Rejected],
    out: pathlib.Path,
    *,
    name: str,
    source: Mapping[str, Any],
    settings: Mapping[str, Any],
    tokenizer: Tokenizer | None = None,
    exclude: Collection[str] = (),
    max_bad_fraction: float = 0.05,
    shard_bytes: int = _SHARD_BYTES,
    on_progress: Callable[[int], None] = lambda scenes: None,
) -> Info:
    """Writes the scenes that a reader yields.

    A scene without any observation is left out: what it had was rejected. So is one whose id was
    there before; it is counted, but is no bad one, as in `bulk`. Scenes with the same texts stay,
    as they may have other pictures; only tables of captions (`bulk`) drop them.

    Args:
      rows: of a reader in `platojax.data.raw`.
      out: the folder to be; it is there whole, or not at all.
      name: of the data set.
      source: what is read, as JSON takes it.
      settings: that shape the result beside the arguments here, as JSON takes them.
      tokenizer: of the texts, which are otherwise kept as they are.
      exclude: ids of scenes to be left out.
      max_bad_fraction: the largest share of what is read that may be rejected. Duplicates do not
        count.
      shard_bytes: size at which a shard ends, before compression.
      on_progress: called with the number of scenes so far.

    Raises:
      ValueError: `out` is not empty, too much cannot be used, nothing is left, or no scene has an
        id of `exclude`.
    """
    rejects, repeated = Rejects(), Rejects()
    written: dict[str, list[WrittenShard]] = {}
    writers: dict[str, ShardWriter] = {}
    seen: set[bytes] = set()  # hashes: the ids, often URLs, take several times as much
    excluded, example = 0, ""
    with being_written(out) as partial, contextlib.ExitStack() as stack:
        for row in rows:
            if isinstance(row, Rejected):
                rejects.add(row)
                continue
            if row.scene_id in exclude:
                excluded += 1
                continue
            if not (row.texts or row.pictures or row.clips):
                continue
            key = hashlib.blake2b(row.scene_id.encode(), digest_size=8).digest()
            if key in seen:
                repeated.add(Rejected(DUPLICATE_SCENE, f"scene {row.scene_id} of {row.split}"))
                continue
            seen.add(key)
            example = example or row.scene_id
            shards = written.setdefault(row.split, [])
            if row.split not in writers:
                path = partial / shard_name(name, row.split, len(shards))
                writers[row.split] = stack.enter_context(ShardWriter(path, tokenizer))
            writer = writers[row.split]
            for rejected in writer.add(row):
                rejects.add(rejected)
            on_progress(len(seen))
            if writer.num_bytes >= shard_bytes:
                shards.append(writers.pop(row.split).finish())
        for split, writer in writers.items():
            written[split].append(writer.finish())
        used = sum(s.texts + s.pictures + s.clips for shards in written.values() for s in shards)
        rejects.check(used, max_bad_fraction, "max_bad_fraction")
        if not used:
            raise ValueError(f"no scene is left to write to {out}: {excluded} were excluded.")
        if exclude and not excluded:
            raise ValueError(
                f"none of the {len(exclude)} ids to exclude, such as {min(exclude)!r}, is a "
                f"scene's; those are such as {example!r}."
            )
        return write_metadata(
            partial,
            name=name,
            shards=written,
            rejects=Rejects(rejects.counts | repeated.counts, rejects.first | repeated.first),
            excluded=excluded,
            source=source,
            settings=settings,
            tokenizer=tokenizer,
        )


@contextlib.contextmanager
def being_written(out: pathlib.Path) -> Iterator[pathlib.Path]:
    """An empty folder that takes the name `out` at the end, and is gone where there is an error.

    Raises:
      ValueError: there is something at `out`, another process is writing it, or what lies beside it
        under the name of its beginning is something else.
    """
    partial = claim(out)
    try:
        partial.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"--out {out} cannot be made there ({error.strerror}); name another folder."
        ) from error
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(f"another process is writing {partial}; wait for it.") from error
        left = list(partial.iterdir())  # by a preparation that was killed, if by nobody else
        for one in left:
            if one.is_dir() or not _LEFT_BEHIND.search(one.name):
                raise ValueError(
                    f"{partial} holds {one.name}, which no preparation left there; rename the "
                    "folder, or give another --out."
                )
        for one in left:
            one.unlink()
        try:
            yield partial
            publish(partial, out)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    finally:
        os.close(descriptor)


def claim(out: pathlib.Path) -> pathlib.Path:
    """The folder beside `out` in which it is written, until it is whole.

    Raises:
      ValueError: there is something at `out`, or it is a link or names nothing.
    """
    if not out.name:
        raise ValueError(f"--out {str(out)!r} names no folder to be.")
    if out.is_symlink():
        raise ValueError(f"--out {out} is a link; name the folder it leads to, or another.")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ValueError(f"{out} is not empty; name another folder, or delete it.")
    partial = out.with_name(out.name + ".partial")
    if partial.is_symlink():
        raise ValueError(f"{partial} is a link; delete it, or give another --out.")
    return partial


def publish(partial: pathlib.Path, out: pathlib.Path) -> None:
    """Gives the whole folder its name."""
    if out.exists():
        out.rmdir()
    partial.rename(out)


def write_metadata(
    folder: pathlib.Path,
    *,
    name: str,
    shards: Mapping[str, Sequence[WrittenShard]],
    rejects: Rejects,
    excluded: int,
    source: Mapping[str, Any],
    settings: Mapping[str, Any],
    tokenizer: Tokenizer | None,
) -> Info:
    """Writes `info.json` and what tensorflow-datasets needs beside the shards.

    Args:
      folder: of the shards.
      name: see `write_prepared`, as all arguments that are not here.
      shards: of each split, in the order of their indices.
      rejects: what could not be used.
      excluded: scenes that were left out by wish.
      source: see `write_prepared`.
      settings: see `write_prepared`.
      tokenizer: see `write_prepared`.
    """
    splits = {split: _split_info(several) for split, several in sorted(shards.items())}
    info = Info(
        name=name,
        splits=splits,
        rejected=dict(sorted(rejects.counts.items())),
        first_rejected=dict(sorted(rejects.first.items())),
        excluded=excluded,
        source=source,
        settings=settings,
        tokenizer={}
        if tokenizer is None
        else {"hash": tokenizer.hash, "vocab_size": tokenizer.vocab_size},
    )
    tfds.folder_dataset.write_metadata(
        data_dir=folder,
        features=FEATURES,
        split_infos=[
            tfds.core.SplitInfo(
                name=split,
                shard_lengths=[shard.scenes for shard in one.shards],
                num_bytes=sum(shard.bytes for shard in one.shards),
                filename_template=tfds.core.ShardedFileTemplate(
                    data_dir=folder,
                    template=_TEMPLATE,
                    dataset_name=name,
                    split=split,
                    filetype_suffix="array_record",
                ),
            )
            for split, one in splits.items()
        ],
        filename_template=_TEMPLATE,
        version="1.0.0",
        check_data=False,
    )
    write_whole(folder / INFO, to_json(info.to_dict()))
    return info


def _split_info(written: Sequence[WrittenShard]) -> SplitInfo:
    return SplitInfo(
        shards=tuple(one.shard for one in written),
        texts=sum(one.texts for one in written),
        pictures=sum(one.pictures for one in written),
        clips=sum(one.clips for one in written),
        kinds=_merge_kinds(written),
    )


def _merge_kinds(written: Sequence[WrittenShard]) -> tuple[Kind, ...] | None:
    kinds: dict[Signature, Kind] = {}
    start = 0
    for one in written:
        if one.kinds is None:
            return None
        for kind in one.kinds:
            has = (kind.texts, kind.pictures, kind.clips)
            # The first scene of a kind is that of the first shard that has it.
            first = kinds.get(has, dataclasses.replace(kind, scenes=0, first=start + kind.first))
            kinds[has] = dataclasses.replace(first, scenes=first.scenes + kind.scenes)
        start += one.shard.scenes
    return tuple(kinds.values()) if len(kinds) <= MAX_KINDS else None
