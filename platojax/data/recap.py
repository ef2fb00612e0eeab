"""Recap-DataComp-1B: web images known by two texts, read as a stream of scenes.

The Parquet files of UCSC-VLAA/Recap-DataComp-1B (Hugging Face) have a row for each image:
`org_caption` is the web's alt text, `re_caption` what a vision-language model wrote when it saw the
image (arXiv 2406.08478). Their other columns are not read.

Rows are too many to be shuffled as a whole. Each process takes every n-th file; in each epoch it
puts its files into a new order, keeps some open, and shuffles the rows within windows, each of
which holds pieces of all open files. A row that cannot be used is counted by its reason and
skipped.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pyarrow as pa

from platojax.data.captions import MAX_CHARACTERS
from platojax.data.parquet import ParquetReader, check_names, count_rows
from platojax.data.paths import find_files
from platojax.data.scenes import Scene, SceneKey, Text
from platojax.data.text_columns import REASONS, RECAP_TEXTS, check_texts
from platojax.hashing import hash_items

SOURCES = tuple(source for source, _ in RECAP_TEXTS)
_TEXTS = pa.schema([(source, pa.large_string()) for source in SOURCES])
_CLOSED = -1  # in a saved state, the number of no file
# Of a window's columns beside the texts: where a row is from.
_FILE, _ROW = "file", "row"


@dataclasses.dataclass(frozen=True)
class RecapScenes:
    """A `SceneStream` over Parquet files in the format of Recap-DataComp-1B.

    Attributes:
      files: sorted.
      open_files: how many files a process reads at the same time.
      window: rows among which a process shuffles; they are what it holds in memory.
      max_characters: a row with a longer text is skipped.
      max_bad_fraction: more rows than this share of those read so far must not be skipped.
    """

    files: tuple[str, ...]
    open_files: int = 16
    window: int = 65_536
    max_characters: int = MAX_CHARACTERS
    max_bad_fraction: float = 0.05

    def __post_init__(self) -> None:
        for field in ("open_files", "window", "max_characters"):
            if getattr(self, field) < 1:
                raise ValueError(f"data.{field} must be at least 1; got {getattr(self, field)}.")
        if not 0 <= self.max_bad_fraction < 1:
            raise ValueError(
                f"data.max_bad_fraction must be in [0, 1); got {self.max_bad_fraction}."
            )

    @classmethod
    def find(cls, pattern: str, **fields: Any) -> "RecapScenes":
        """The scenes of all files that match, each of which is known to be usable.

        Args:
          pattern: see `paths.find_files`.
          **fields: of this class.

        Raises:
          FileNotFoundError: no file matches.
          ValueError: a file cannot be used or is empty, two have one name, or a field is unknown or
            impossible.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for field in fields:
            if field not in known:
                raise ValueError(f"data.{field} is no field; data has {', '.join(known)}.")
        scenes = cls(find_files(pattern), **fields)
        check_names(scenes.files)
        for file, rows in zip(scenes.files, scenes.num_rows, strict=True):
            if not rows:
                raise ValueError(f"{file} has no rows; take it out of data.files.")
        return scenes

    @functools.cached_property
    def num_rows(self) -> tuple[int, ...]:
        """Of each file, the unusable ones included; raises what `parquet.count_rows` does."""
        return count_rows(self.files, SOURCES)

    @functools.cached_property
    def content_hash(self) -> str:
        """Of the files' names and numbers of rows, wherever they are."""
        names = (Path(file).name for file in self.files)
        return hash_items([f"{n} {rows}" for n, rows in zip(names, self.num_rows, strict=True)])

    def first(self) -> Scene:
        """The first scene of the first window of the first file."""
        blocks = iter(dataclasses.replace(self, files=self.files[:1]).blocks(1, seed=0))
        _, scene = next(next(blocks))
        blocks.close()
        return scene

    def blocks(
        self, size: int, *, seed: int, process_index: int = 0, process_count: int = 1
    ) -> "RecapBlocks":
        """See `SceneStream`.

        Raises:
          ValueError: there are fewer files than processes.
        """
        if len(self.files) < process_count:
            raise ValueError(
                f"data.files are {len(self.files)}, but {process_count} processes each need one of "
                "their own; split the files, or start fewer processes."
            )
        files = tuple(range(process_index, len(self.files), process_count))
        return RecapBlocks(self, files, size, seed)


class RecapBlocks(grain.IterDataset):
    """Endless blocks, see `SceneStream`."""

    def __init__(self, scenes: RecapScenes, own: tuple[int, ...], size: int, seed: int) -> None:
        """Describes the stream; nothing is read.

        Args:
          scenes: where to read.
          own: numbers of the files of this process.
          size: scenes in a block.
          seed: of the order.
        """
        super().__init__()
        self.scenes, self.own, self.size, self.seed = scenes, own, size, seed
        self.offset, self.stride = 0, 1

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Makes this every n-th block of the stream; called by grain in its worker processes."""
        if sequential_slice:
            raise ValueError("the stream has no end, of which a worker could take a part.")
        self.offset, self.stride = sl.start, sl.step

    def __iter__(self) -> "_BlockIterator":
        return _BlockIterator(self)


@dataclasses.dataclass(frozen=True)
class _Position:
    """Where a window begins.

    Attributes:
      epoch: of the files.
      next_file: place in the epoch's order of the file to be opened next.
      open: number and next row of each open file.
      window: how many windows came before, in this epoch.
      rows: read so far, over all epochs.
      skipped: of them, by the order of `REASONS`.
    """

    epoch: int = 0
    next_file: int = 0
    open: tuple[tuple[int, int], ...] = ()
    window: int = 0
    rows: int = 0
    skipped: tuple[int, ...] = (0,) * len(REASONS)


class _BlockIterator(grain.DatasetIterator):
    """Reads a window, hands out its blocks, reads the next."""

    def __init__(self, blocks: RecapBlocks) -> None:
        super().__init__()
        self._blocks = blocks
        self._start = self._after = _Position()  # of the window, and of the one after it
        self._window: pa.Table | None = None  # read when the first row is asked for
        self._taken = 0  # rows of the window
        self._to_skip = blocks.offset * blocks.size  # rows of other workers' blocks
        self._readers: dict[int, ParquetReader] = {}

    def __next__(self) -> Iterator[tuple[SceneKey, Scene]]:
        parts = []
        missing = self._blocks.size
        while missing:
            if self._window is None:
                self._window, self._after = self._read_window(self._start)
            left = self._window.num_rows - self._taken
            if not left:
                self._start, self._window, self._taken = self._after, None, 0
            elif self._to_skip:
                skipped = min(left, self._to_skip)
                self._to_skip -= skipped
                self._taken += skipped
            else:
                parts.append((self._start.epoch, self._window.slice(self._taken, missing)))
                self._taken += parts[-1][1].num_rows
                missing -= parts[-1][1].num_rows
        self._to_skip = (self._blocks.stride - 1) * self._blocks.size
        return itertools.chain.from_iterable(self._scenes(*part) for part in parts)

    def get_state(self) -> dict[str, Any]:
        """Where the next block is: strict JSON, of one shape throughout."""
        position = dataclasses.asdict(self._start)
        closed = self._blocks.scenes.open_files - len(self._start.open)
        position["open"] = [*map(list, self._start.open), *[[_CLOSED, 0]] * closed]
        position["skipped"] = dict(zip(REASONS, self._start.skipped, strict=True))
        return {"window": position, "taken": self._taken, "to_skip": self._to_skip}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to where another iterator over the same stream was."""
        position = dict(state["window"])
        position["open"] = tuple((f, row) for f, row in position["open"] if f != _CLOSED)
        position["skipped"] = tuple(position["skipped"][reason] for reason in REASONS)
        self._start = _Position(**position)
        self._window = None
        self._taken, self._to_skip = state["taken"], state["to_skip"]

    def close(self) -> None:
        """Closes all files."""
        super().close()
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _scenes(self, epoch: int, rows: pa.Table) -> Iterator[tuple[SceneKey, Scene]]:
        files = self._blocks.scenes.files
        names = {number: Path(files[number]).name for number in self._blocks.own}
        alt_text, recaption = RECAP_TEXTS
        columns = [rows[name].to_pylist() for name in (_FILE, _ROW, *SOURCES)]
        for file, row, one, other in zip(*columns, strict=True):
            texts = Text(*alt_text, one), Text(*recaption, other)
            yield (epoch, file, row), Scene(f"{names[file]}:{row}", texts)

    def _read_window(self, start: _Position) -> tuple[pa.Table, _Position]:
        """The usable rows of a window in random order, and where the next window begins."""
        scenes, own, seed = self._blocks.scenes, self._blocks.own, self._blocks.seed
        order = np.random.default_rng([seed, start.epoch]).permutation(len(own))
        opened = list(start.open)
        next_file = start.next_file
        while len(opened) < scenes.open_files and next_file < len(own):
            opened.append((own[order[next_file]], 0))
            next_file += 1
        share = -(-scenes.window // len(opened))
        pieces, found, left = [], [], []
        for file, row in opened:
            piece, end = self._read(file, row, share)
            checked = check_texts(piece, SOURCES, scenes.max_characters)
            pieces.append(checked[0])
            found.append(checked[1])
            if end is not None:
                left.append((file, end))
        window, reasons = pa.concat_tables(pieces), np.concatenate(found)
        skipped = np.bincount(reasons, minlength=len(REASONS) + 1)[1:] + start.skipped
        after = _Position(
            epoch=start.epoch,
            next_file=next_file,
            open=tuple(left),
            window=start.window + 1,
            rows=start.rows + window.num_rows,
            skipped=tuple(int(count) for count in skipped),
        )
        self._check_share(after, window, reasons)
        if not left and next_file == len(own):
            after = dataclasses.replace(after, epoch=start.epoch + 1, next_file=0, window=0)
        usable = np.flatnonzero(reasons == 0)
        rng = np.random.default_rng([seed, start.epoch, start.window, own[0]])
        return window.take(rng.permutation(usable)), after

    def _read(self, file: int, row: int, count: int) -> tuple[pa.Table, int | None]:
        """A piece of a file, and the row after it, or None at the end."""
        reader = self._readers.pop(file, None)
        if reader is None or reader.row != row:
            if reader is not None:
                reader.close()
            reader = ParquetReader(self._blocks.scenes.files[file], SOURCES, row)
        texts = reader.read(count).cast(_TEXTS)
        numbers = np.arange(row, reader.row)
        piece = texts.append_column(_FILE, pa.array(np.full(len(numbers), file)))
        piece = piece.append_column(_ROW, pa.array(numbers))
        if reader.exhausted:
            reader.close()
            return piece, None
        self._readers[file] = reader
        return piece, reader.row

    def _check_share(self, after: _Position, window: pa.Table, reasons: np.ndarray) -> None:
        limit = self._blocks.scenes.max_bad_fraction
        if sum(after.skipped) <= limit * after.rows:
            return
        first = int(np.flatnonzero(reasons)[0])
        file = self._blocks.scenes.files[window[_FILE][first].as_py()]
        counts = {name: count for name, count in zip(REASONS, after.skipped, strict=True) if count}
        raise ValueError(
            f"{sum(after.skipped)} of the {after.rows} rows read so far cannot be used, more than "
            f"data.max_bad_fraction {limit:g}: "
            + ", ".join(f"{name} {count}" for name, count in counts.items())
            + f". The last window's first is row {window[_ROW][first].as_py()} of {file}: "
            f"{REASONS[reasons[first] - 1]}. Mend the files, or raise the limit."
        )
