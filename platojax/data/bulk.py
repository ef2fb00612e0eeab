"""Prepares tables of web captions, of any length, in many processes or on many machines.

A plan cuts the rows of Parquet files into pieces, each of which becomes a shard:

1. Each piece is scanned: which of its rows can be used, and hashes of their image and their texts.
2. Of the rows of one image the first is kept; of those left, of the rows with the same texts, too.
3. Each piece is read again; what is kept of it is tokenised, once and for all, and written.

`prepare` does so in the processes of one machine; what a killed one has finished is not done again.
`bulk_beam` does the same, with the same result, as a pipeline of Apache Beam.
"""

import dataclasses
import fcntl
import json
import multiprocessing
import os
import pathlib
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from platojax.data import preparation
from platojax.data.captions import MAX_CHARACTERS
from platojax.data.parquet import ParquetReader, check_names, count_rows, stamp_files
from platojax.data.paths import file_name
from platojax.data.preparation import ShardWriter, WrittenShard
from platojax.data.prepared import Info, Kind, Shard
from platojax.data.raw.scene import RawScene
from platojax.data.raw.url_text import TEXT_COLUMNS, URL_COLUMNS
from platojax.data.rejects import Rejects
from platojax.data.scenes import Text
from platojax.data.text_columns import REASONS, RECAP_TEXTS, check_texts, hash_rows
from platojax.data.tokenizer import Tokenizer
from platojax.files import to_json, write_whole

DUPLICATE_IMAGE, DUPLICATE_TEXTS = "duplicate image", "duplicate texts"
ALL_REASONS = (*REASONS, DUPLICATE_IMAGE, DUPLICATE_TEXTS)
ROWS_PER_SHARD = 1 << 19
_CHUNK = 65_536  # rows that a process holds
_SORTED = 1 << 26  # hashes that are sorted at a time, about
# Of the rows of a piece; the reasons last: where they are, all is.
_SCANNED = {"images": np.uint64, "texts": np.uint64, "reasons": np.uint8}
_LOCK, _WORKERS_LOCK = ".lock", ".workers.lock"

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Layout:
    """What the columns of a data set are.

    Attributes:
      name: of the data set.
      texts: `(column, source, language)` of each text of a scene.
      image: the column that says which image a row is about, such as its hash or URL. Where it is
        missing or blank in a row, the image is taken for another one than all others.
    """

    name: str
    texts: tuple[tuple[str, str, str], ...]
    image: str

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the texts."""
        return tuple(column for column, _, _ in self.texts)


RECAP = Layout(
    "recap", tuple((source, source, language) for source, language in RECAP_TEXTS), "sha256"
)


def find_layout(columns: Sequence[str]) -> Layout:
    """The layout of a table with a URL and a caption in each row, by its columns' names.

    Args:
      columns: of which one is called `caption` or `text` and one `url` or `image_url`, in any case.

    Raises:
      ValueError: there are no such two.
    """
    known = {column.lower(): column for column in reversed(columns)}
    text, url = (
        next((known[name] for name in names if name in known), None)
        for names in (TEXT_COLUMNS, URL_COLUMNS)
    )
    if text is None or url is None:
        raise ValueError(
            f"expected a column called {' or '.join(TEXT_COLUMNS)} and one called "
            f"{' or '.join(URL_COLUMNS)}, in any case; there are {', '.join(columns)}."
        )
    return Layout("web", ((text, "caption", ""),), url)


@dataclasses.dataclass(frozen=True)
class Piece:
    """Rows that become a shard.

    Attributes:
      index: among the pieces.
      file: index of the file.
      row: the first.
      rows: how many.
      begin: how many rows there are in all pieces before.
    """

    index: int
    file: int
    row: int
    rows: int
    begin: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that the result depends on.

    Attributes:
      layout: of the files.
      files: paths or URLs, sorted.
      num_rows: of each file.
      stamps: of each file, by which one that changes is known.
      tokenizer: path of the model file, or None to keep the texts as they are.
      split: the name of the only one.
      rows_per_shard: at most, before rows are left out.
      max_characters: a row with a longer text is left out.
      max_bad_fraction: the largest share of rows that may be unusable. Duplicates do not count.
    """

    layout: Layout
    files: tuple[str, ...]
    num_rows: tuple[int, ...]
    stamps: tuple[str, ...]
    tokenizer: str | None = None
    split: str = "train"
    rows_per_shard: int = ROWS_PER_SHARD
    max_characters: int = MAX_CHARACTERS
    max_bad_fraction: float = 0.05

    @classmethod
    def make(cls, layout: Layout, files: Sequence[str], **fields: Any) -> "Plan":
        """Looks at the footers of all files.

        Args:
          layout: of the files.
          files: paths or URLs.
          **fields: of this class.

        Raises:
          ValueError: a file cannot be used, two have one name, or a field is impossible; the
            message names it.
          FileNotFoundError: a file is missing.
        """
        files = tuple(sorted(files))
        check_names(files)
        stamps = stamp_files(files)
        num_rows = count_rows(files, (*layout.columns, layout.image))
        plan = cls(layout, files, num_rows, stamps, **fields)
        for field in ("rows_per_shard", "max_characters"):
            if getattr(plan, field) < 1:
                raise ValueError(f"{field} must be at least 1; got {getattr(plan, field)}.")
        if not 0 <= plan.max_bad_fraction < 1:
            raise ValueError(f"max_bad_fraction must be in [0, 1); got {plan.max_bad_fraction}.")
        preparation.shard_name(layout.name, plan.split, 0)
        if not plan.pieces:
            raise ValueError(f"the {len(files)} files, the first of them {files[0]}, have no rows.")
        return plan

    @property
    def pieces(self) -> list[Piece]:
        """In the order of files and rows."""
        pieces: list[Piece] = []
        begin = 0
        for file, length in enumerate(self.num_rows):
            for row in range(0, length, self.rows_per_shard):
                rows = min(self.rows_per_shard, length - row)
                pieces.append(Piece(len(pieces), file, row, rows, begin))
                begin += rows
        return pieces

    @property
    def source(self) -> dict[str, Any]:
        """What is read, as `info.json` tells."""
        names = [file_name(file) for file in self.files]
        return {"files": names, "rows": list(self.num_rows)}

    @property
    def settings(self) -> dict[str, Any]:
        """What else the result depends on, beside the tokenizer."""
        fields = ("rows_per_shard", "max_characters", "max_bad_fraction")
        return {
            "columns": [list(text) for text in self.layout.texts],
            "image": self.layout.image,
            **{field: getattr(self, field) for field in fields},
        }

    def open_tokenizer(self) -> Tokenizer | None:
        """Raises what `Tokenizer` does."""
        return None if self.tokenizer is None else Tokenizer(self.tokenizer)

    def where(self, position: int) -> str:
        """File and row of a row among all."""
        for file, rows in zip(self.files, self.num_rows, strict=True):
            if position < rows:
                return f"{file_name(file)} row {position}"
            position -= rows
        raise IndexError(position)


# ---- Of a piece -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Scanned:
    """What is known of the rows of a piece.

    Attributes:
      reasons: `[rows]` uint8; 0, or 1 + the index in `REASONS`.
      images: `[rows]` uint64, hashes; 0 where there is none.
      texts: `[rows]` uint64, hashes of all texts of a row together.
    """

    reasons: np.ndarray
    images: np.ndarray
    texts: np.ndarray


def scan_piece(plan: Plan, piece: Piece) -> Scanned:
    """Reads a piece and finds what is wrong with it.

    Raises:
      ValueError: the file is damaged, or another one than when the plan was made.
      FileNotFoundError: the file is missing.
    """
    layout = plan.layout
    parts = []
    for rows, reasons in _checked_chunks(plan, piece, (*layout.columns, layout.image)):
        images, texts = hash_rows(rows, [layout.image]), hash_rows(rows, layout.columns)
        parts.append((reasons.astype(np.uint8), images, texts))
    return Scanned(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def write_piece(
    plan: Plan, piece: Piece, kept: np.ndarray, path: pathlib.Path, tokenizer: Tokenizer | None
) -> WrittenShard:
    """Writes the shard of a piece.

    Args:
      plan: of the preparation.
      piece: of the plan.
      kept: `[rows]` bool.
      path: of the shard.
      tokenizer: of the plan.

    Raises: as `scan_piece`.
    """
    name = file_name(plan.files[piece.file])
    texts = plan.layout.texts
    begin = 0
    with ShardWriter(path, tokenizer) as writer:
        for rows, _ in _checked_chunks(plan, piece, plan.layout.columns):
            numbers = np.flatnonzero(kept[begin : begin + rows.num_rows])
            taken = rows.take(numbers)
            columns = [taken[column].to_pylist() for column in plan.layout.columns]
            for number, *row in zip((numbers + begin + piece.row).tolist(), *columns, strict=True):
                observed = (
                    Text(source, language, text)
                    for (_, source, language), text in zip(texts, row, strict=True)
                )
                writer.add(RawScene(f"{name}:{number}", plan.split, tuple(observed)))
            begin += rows.num_rows
        return writer.finish()


def _checked_chunks(
    plan: Plan, piece: Piece, columns: Sequence[str]
) -> Iterator[tuple[pa.Table, np.ndarray]]:
    """The rows of a piece, some at a time, with the reasons against them."""
    path = plan.files[piece.file]
    if stamp_files([path]) != (plan.stamps[piece.file],):
        raise ValueError(f"{path} was changed while it was prepared; begin again.")
    reader = ParquetReader(path, columns, piece.row)
    schema = pa.schema([(column, pa.large_string()) for column in columns])
    try:
        for begin in range(0, piece.rows, _CHUNK):
            rows = reader.read(min(_CHUNK, piece.rows - begin)).cast(schema)
            yield check_texts(rows, plan.layout.columns, plan.max_characters)
    finally:
        reader.close()


# ---- Which rows are the same ----------------------------------------------------------------


def mark_duplicates(reasons: np.ndarray, hashes: np.ndarray, reason: int) -> None:
    """Of the usable rows of one hash, rejects all but the first.

    Args:
      reasons: `[rows]` uint8, changed in place.
      hashes: `[rows]` uint64; a row with 0 is like no other.
      reason: what is written where a row is rejected.
    """
    # A share of the hashes at a time: sorting is what takes memory.
    parts = -(-len(hashes) // _SORTED)
    for part in range(parts):
        mine = (reasons == 0) & (hashes != 0)
        if parts > 1:
            mine &= hashes % np.uint64(parts) == part
        rows = np.flatnonzero(mine)
        _, first = np.unique(hashes[rows], return_index=True)
        again = np.ones(len(rows), bool)
        again[first] = False
        reasons[rows[again]] = reason


def count_reasons(plan: Plan, reasons: np.ndarray) -> Rejects:
    """Counts rejected rows, and finds the first of each reason."""
    counts = np.zeros(len(ALL_REASONS) + 1, np.int64)
    for begin in range(0, len(reasons), _SORTED):  # what is counted is copied as 64 bits
        counts += np.bincount(reasons[begin : begin + _SORTED], minlength=len(counts))
    rejected = Rejects()
    for index, reason in enumerate(ALL_REASONS, 1):
        if counts[index]:
            rejected.counts[reason] = int(counts[index])
            rejected.first[reason] = plan.where(int(np.argmax(reasons == index)))
    return rejected


def check_usable(plan: Plan, rejected: Rejects) -> None:
    """Raises ValueError where too many rows of the plan cannot be used; duplicates can."""
    usable = sum(plan.num_rows) - sum(rejected.counts.values())
    rejected.check(usable, plan.max_bad_fraction, "max_bad_fraction")
    if not usable:
        raise ValueError(f"none of the {sum(plan.num_rows)} rows can be used.")


# ---- On one machine -------------------------------------------------------------------------


def prepare(
    plan: Plan,
    out: pathlib.Path,
    *,
    workers: int,
    on_progress: Callable[[str, int, int], None] = lambda stage, rows, total: None,
) -> Info:
    """Prepares the data of a plan, going on where an earlier call was killed.

    Args:
      plan: what to do.
      out: the folder to be; it is there whole, or not at all. Until then, its work is in
        `OUT.partial` and `OUT.work` beside it.
      workers: processes; 1 is this one, 0 is one for each core.
      on_progress: called with "scan" or "write", and how many rows of how many are done.

    Raises:
      ValueError: `out` is not empty; what is beside it is of another plan, or being written; too
        many rows cannot be used; a file is damaged.
      OSError: a file is missing, the disk is full, or a process was killed.
    """
    tokenizer = plan.open_tokenizer()
    partial = preparation.claim(out)
    work = out.with_name(out.name + ".work")
    with _claimed(plan, partial, work, tokenizer), _pool(workers, work) as pool:
        pieces, total = plan.pieces, sum(plan.num_rows)
        reasons_file = work / "reasons.npy"
        if not reasons_file.exists():
            scans = [work / f"scan-{piece.index:05d}" for piece in pieces]
            _run(
                pool,
                _scan_into,
                [(plan, piece, scan) for piece, scan in zip(pieces, scans, strict=True)],
                [(scan / "reasons.npy").exists() for scan in scans],
                lambda rows: on_progress("scan", rows, total),
            )
            reasons = _load(scans, "reasons", pieces)
            check_usable(plan, count_reasons(plan, reasons))
            for part, reason in (("images", DUPLICATE_IMAGE), ("texts", DUPLICATE_TEXTS)):
                mark_duplicates(reasons, _load(scans, part, pieces), 1 + ALL_REASONS.index(reason))
            _save_whole(reasons_file, reasons)
            for scan in scans:
                shutil.rmtree(scan)
        reasons = np.load(reasons_file, mmap_mode="r")
        full = [p for p in pieces if (reasons[p.begin : p.begin + p.rows] == 0).any()]
        shards = [
            partial / preparation.shard_name(plan.layout.name, plan.split, index)
            for index in range(len(full))
        ]
        records = [work / f"{shard.name}.json" for shard in shards]
        _run(
            pool,
            _write_into,
            [
                (plan, piece, reasons_file, *paths)
                for piece, *paths in zip(full, shards, records, strict=True)
            ],
            [_is_written(*paths) for paths in zip(shards, records, strict=True)],
            lambda rows: on_progress("write", rows, total),
        )
        on_progress("write", total, total)  # pieces of which nothing is left, too
        info = preparation.write_metadata(
            partial,
            name=plan.layout.name,
            shards={plan.split: [_written_from_json(path.read_text()) for path in records]},
            rejects=count_reasons(plan, np.asarray(reasons)),
            excluded=0,
            source=plan.source,
            settings=plan.settings,
            tokenizer=tokenizer,
        )
        preparation.publish(partial, out)
        shutil.rmtree(work)
    return info


@contextmanager
def _claimed(
    plan: Plan, partial: pathlib.Path, work: pathlib.Path, tokenizer: Tokenizer | None
) -> Iterator[None]:
    """Holds the working folders for this plan alone; the kernel frees the lock at any end."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / _LOCK).open("w") as lock, (work / _WORKERS_LOCK).open("w") as workers:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(f"another process is writing {partial}; wait for it.") from error
        # Workers whose parent was killed write until they notice, which takes them no time.
        fcntl.flock(workers, fcntl.LOCK_EX)
        fcntl.flock(workers, fcntl.LOCK_UN)
        described = to_json(
            {
                "source": {**plan.source, "stamps": list(plan.stamps)},
                "settings": plan.settings,
                "split": plan.split,
                "tokenizer": tokenizer and tokenizer.hash,
            }
        )
        known = work / "plan.json"
        if not (known.exists() and partial.is_dir()):
            # What is left of another plan must not be taken for this one's, now or after a kill.
            known.unlink(missing_ok=True)
            for left in [
                path for path in work.iterdir() if path.name not in (_LOCK, _WORKERS_LOCK)
            ]:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            if partial.exists():
                shutil.rmtree(partial)
            partial.mkdir()
            write_whole(known, described)
        elif json.loads(known.read_text()) != json.loads(described):
            raise ValueError(
                f"{partial} is the beginning of other files, settings or tokenizer (see {known}); "
                f"set them back to go on with it, or delete it and {work}."
            )
        yield


@contextmanager
def _pool(workers: int, work: pathlib.Path) -> Iterator[Executor | None]:
    if workers < 0:
        raise ValueError(f"workers must be 0 or more; got {workers}.")
    workers = workers or len(os.sched_getaffinity(0))
    if workers == 1:
        yield None
        return
    # Arrow has threads of its own by now, so a fork could hang.
    with ProcessPoolExecutor(
        workers,
        multiprocessing.get_context("spawn"),
        initializer=_begin_worker,
        initargs=(work / _WORKERS_LOCK,),
    ) as pool:
        try:
            yield pool
        except BrokenProcessPool as error:
            raise OSError(
                "a worker process was killed, for want of memory perhaps; the same command goes on "
                "from here, with fewer workers if need be."
            ) from error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _begin_worker(lock: pathlib.Path) -> None:
    """Lets no other plan begin before this worker's end, which is its parent's at the latest."""
    fcntl.flock(os.open(lock, os.O_RDONLY), fcntl.LOCK_SH)  # until the process ends
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    if not parent.is_alive():  # it may have gone before the lock was held
        os._exit(1)
    threading.Thread(target=follow, daemon=True).start()


def _run(
    pool: Executor | None,
    function: Callable[..., int],
    tasks: Sequence[tuple[Any, ...]],
    finished: Sequence[bool],
    on_progress: Callable[[int], None],
) -> None:
    """Does those tasks that are not finished; a task returns how many rows it was about."""
    done = sum(task[1].rows for task, is_done in zip(tasks, finished, strict=True) if is_done)
    on_progress(done)
    left = [task for task, is_done in zip(tasks, finished, strict=True) if not is_done]
    for rows in _results(pool, function, left):
        done += rows
        on_progress(done)


def _results(
    pool: Executor | None, function: Callable[..., Result], tasks: Iterable[tuple[Any, ...]]
) -> Iterator[Result]:
    if pool is None:
        yield from (function(*task) for task in tasks)
    else:
        yield from (
            one.result() for one in as_completed([pool.submit(function, *t) for t in tasks])
        )


def _scan_into(plan: Plan, piece: Piece, folder: pathlib.Path) -> int:
    scanned = scan_piece(plan, piece)
    folder.mkdir(exist_ok=True)
    for name in _SCANNED:
        _save_whole(folder / f"{name}.npy", getattr(scanned, name))
    return piece.rows


def _write_into(
    plan: Plan,
    piece: Piece,
    reasons: pathlib.Path,
    shard: pathlib.Path,
    record: pathlib.Path,
) -> int:
    kept = np.load(reasons, mmap_mode="r")[piece.begin : piece.begin + piece.rows] == 0
    written = write_piece(plan, piece, kept, shard, plan.open_tokenizer())
    write_whole(record, _written_to_json(written))
    return piece.rows


def _is_written(shard: pathlib.Path, record: pathlib.Path) -> bool:
    if not (record.exists() and shard.exists()):
        return False
    return _written_from_json(record.read_text()).shard.bytes == shard.stat().st_size


def _written_to_json(written: WrittenShard) -> str:
    return to_json(dataclasses.asdict(written))


def _written_from_json(text: str) -> WrittenShard:
    content = json.loads(text)
    kinds = content.pop("kinds")
    return WrittenShard(
        shard=Shard(**content.pop("shard")),
        kinds=None if kinds is None else tuple(map(Kind.from_dict, kinds)),
        **content,
    )


def _load(scans: Sequence[pathlib.Path], name: str, pieces: Sequence[Piece]) -> np.ndarray:
    rows = np.empty(sum(piece.rows for piece in pieces), _SCANNED[name])
    for scan, piece in zip(scans, pieces, strict=True):
        rows[piece.begin : piece.begin + piece.rows] = np.load(scan / f"{name}.npy")
    return rows


def _save_whole(path: pathlib.Path, array: np.ndarray) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        np.save(file, array)
    temporary.replace(path)
