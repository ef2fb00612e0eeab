"""What `bulk` does, as a pipeline of Apache Beam: on Dataflow, Flink or Spark, or here.

The result is that of `bulk.prepare`, byte by byte. Only hashes and positions of rows travel between
machines; the files are read twice.
"""

import bisect
import os
import pathlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam as beam
import fsspec
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions

from platojax.data import preparation
from platojax.data.bulk import (
    ALL_REASONS,
    DUPLICATE_IMAGE,
    DUPLICATE_TEXTS,
    REASONS,
    Piece,
    Plan,
    check_usable,
    scan_piece,
    write_piece,
)
from platojax.data.paths import is_url
from platojax.data.preparation import WrittenShard
from platojax.data.prepared import INFO
from platojax.data.rejects import Rejects

# How many, the smallest and the one after it; of rows that are known by position.
_Ends = tuple[int, Any, Any]
_REJECTED = "rejected"


def run(plan: Plan, out: str, arguments: Sequence[str]) -> None:
    """Runs the pipeline to its end.

    Args:
      plan: what to do; all machines must see its files and its tokenizer.
      out: the folder to be, or a URL that fsspec knows; all machines must see it. A folder is there
        whole or not at all; under a URL, `info.json` comes last.
      arguments: of Beam, such as `--runner=DataflowRunner`.

    Raises:
      ValueError: there is something at `out`, or another process is writing it, or it cannot be
        opened; or whatever went wrong in the pipeline.
    """
    if not is_url(out):
        with preparation.being_written(pathlib.Path(out)) as partial:
            _run_pipeline(plan, str(partial.absolute()), arguments)
        return
    system, root = fsspec.url_to_fs(out)
    if system.exists(root) and system.ls(root):
        raise ValueError(f"{out} is not empty; name another folder, or delete it.")
    _run_pipeline(plan, out, arguments)


def _run_pipeline(plan: Plan, target: str, arguments: Sequence[str]) -> None:
    try:
        with beam.Pipeline(options=PipelineOptions(list(arguments))) as pipeline:
            build(pipeline, plan, target)
    except RuntimeError as error:  # in which Beam puts a worker's whole traceback
        lines = str(error).strip().splitlines() or [repr(error)]
        raise ValueError(f"the pipeline of --beam failed: {lines[-1]}") from error


def build(pipeline: beam.Pipeline, plan: Plan, target: str) -> None:
    """Adds all steps to a pipeline; they write into `target`, and `info.json` last."""
    scanned = (
        pipeline
        | "pieces" >> beam.Create(plan.pieces)
        | "spread" >> beam.Reshuffle()
        | "scan" >> beam.ParDo(_Scan(), plan).with_outputs(_REJECTED, main="rows")
    )
    unusable = _sum(scanned[_REJECTED], "unusable")
    usable = unusable | "check" >> beam.Map(_check, plan)

    images = _keep_first(scanned.rows, "images", DUPLICATE_IMAGE)
    texts = _keep_first(images.kept, "texts", DUPLICATE_TEXTS)
    rejects = _sum(
        (scanned[_REJECTED], images[_REJECTED], texts[_REJECTED]) | "all reasons" >> beam.Flatten(),
        "all",
    )
    begins = [piece.begin for piece in plan.pieces]
    rows = texts.kept | "to pieces" >> beam.Map(_to_piece, begins)
    counts = rows | "rows of pieces" >> beam.combiners.Count.PerKey()
    written = (
        rows
        | "rows together" >> beam.GroupByKey()
        | "write"
        >> beam.Map(
            _write,
            plan,
            target,
            beam.pvalue.AsDict(counts),
            beam.pvalue.AsSingleton(usable),
        )
    )
    _ = (
        pipeline
        | "once" >> beam.Create([None])
        | "finish"
        >> beam.Map(
            _finish, plan, target, beam.pvalue.AsList(written), beam.pvalue.AsSingleton(rejects)
        )
    )


class _Scan(beam.DoFn):
    """A piece -> (hash of the image, (position, hash of the texts)) of each usable row."""

    def process(self, piece: Piece, plan: Plan) -> Iterator[Any]:
        scanned = scan_piece(plan, piece)
        for index in range(1, len(REASONS) + 1):
            found = np.flatnonzero(scanned.reasons == index)
            if len(found):
                first = piece.begin + int(found[0])
                yield beam.pvalue.TaggedOutput(_REJECTED, (REASONS[index - 1], (len(found), first)))
        for row in np.flatnonzero(scanned.reasons == 0).tolist():
            position = piece.begin + row
            # An image that is unknown is like no other.
            image = int(scanned.images[row]) or -1 - position
            yield image, (position, int(scanned.texts[row]))


class _FirstTwo(beam.CombineFn):
    """Counts values, and finds the two smallest."""

    def create_accumulator(self) -> _Ends:
        return 0, None, None

    def add_input(self, accumulator: _Ends, value: Any) -> _Ends:
        return self.merge_accumulators([accumulator, (1, value, None)])

    def merge_accumulators(self, accumulators: Iterable[_Ends]) -> _Ends:
        total, ends = 0, list[Any]()
        for count, *some in accumulators:
            total += count
            ends = sorted([*ends, *(value for value in some if value is not None)])[:2]
        return total, *ends, *[None] * (2 - len(ends))

    def extract_output(self, accumulator: _Ends) -> _Ends:
        return accumulator


class _Split(beam.DoFn):
    """The first row of each key, with what comes next as its key; counts the others."""

    def process(self, item: tuple[int, _Ends], reason: str) -> Iterator[Any]:
        _, (count, first, second) = item
        if count > 1:
            yield beam.pvalue.TaggedOutput(_REJECTED, (reason, (count - 1, second[0])))
        position, *following = first
        yield (following[0], (position,)) if following else position


def _keep_first(rows: Any, name: str, reason: str) -> Any:
    return (
        rows
        | f"first of {name}" >> beam.CombinePerKey(_FirstTwo())
        | f"keep {name}" >> beam.ParDo(_Split(), reason).with_outputs(_REJECTED, main="kept")
    )


def _sum(reasons: Any, name: str) -> Any:
    """Pairs of a reason, and its count and first position -> one dictionary."""
    return (
        reasons
        | f"sum {name}" >> beam.CombinePerKey(_sum_counts)
        | f"together {name}" >> beam.combiners.ToDict()
    )


def _sum_counts(found: Iterable[tuple[int, int]]) -> tuple[int, int]:
    counts, firsts = zip(*found, strict=True) if (found := list(found)) else ((0,), (1 << 62,))
    return sum(counts), min(firsts)


def _rejects(plan: Plan, found: Mapping[str, tuple[int, int]]) -> Rejects:
    rejects = Rejects()
    for reason in ALL_REASONS:
        if reason in found:
            rejects.counts[reason], first = found[reason]
            rejects.first[reason] = plan.where(first)
    return rejects


def _check(unusable: Mapping[str, tuple[int, int]], plan: Plan) -> bool:
    check_usable(plan, _rejects(plan, unusable))
    return True


def _to_piece(position: int, begins: Sequence[int]) -> tuple[int, int]:
    piece = bisect.bisect_right(begins, position) - 1
    return piece, position - begins[piece]


def _write(
    rows: tuple[int, Iterable[int]], plan: Plan, target: str, counts: Mapping[int, int], _: bool
) -> tuple[int, WrittenShard]:
    """Writes a shard; shards are numbered without gaps, as pieces may be without rows."""
    piece = plan.pieces[rows[0]]
    kept = np.zeros(piece.rows, bool)
    kept[list(rows[1])] = True
    index = sum(other < piece.index for other in counts)
    name = preparation.shard_name(plan.layout.name, plan.split, index)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, name)
        written = write_piece(plan, piece, kept, path, plan.open_tokenizer())
        _put([path], target)
    return index, written


def _finish(
    _: None,
    plan: Plan,
    target: str,
    written: Sequence[tuple[int, WrittenShard]],
    rejects: Mapping[str, tuple[int, int]],
) -> None:
    shards = [shard for _, shard in sorted(written, key=lambda one: one[0])]
    with tempfile.TemporaryDirectory() as folder:
        for one in shards:  # tensorflow-datasets wants to see their names, and only those
            pathlib.Path(folder, one.shard.file).touch()
        preparation.write_metadata(
            pathlib.Path(folder),
            name=plan.layout.name,
            shards={plan.split: shards},
            rejects=_rejects(plan, rejects),
            excluded=0,
            source=plan.source,
            settings=plan.settings,
            tokenizer=plan.open_tokenizer(),
        )
        for one in shards:
            pathlib.Path(folder, one.shard.file).unlink()
        _put(sorted(pathlib.Path(folder).iterdir(), key=lambda path: path.name == INFO), target)


def _put(paths: Sequence[pathlib.Path], target: str) -> None:
    system, root = fsspec.url_to_fs(target)
    system.makedirs(root, exist_ok=True)
    for path in paths:
        system.put_file(os.fspath(path), f"{root}/{path.name}")
