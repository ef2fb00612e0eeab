"""Ten million rows and ten thousand shards: memory, speed of preparation, time to the first batch.

    python tools/bench_data_scale.py rows [--rows 10000000] [--folder DIR] [--workers N]
    python tools/bench_data_scale.py shards [--shards 10000] [--folder DIR]

`rows` writes synthetic Parquet files in the format of Recap-DataComp-1B, prepares them with a
tokenizer, and goes through all rows once as a stream of Parquet files and once as prepared data;
memory is that of the process, at ten points on the way. `shards` writes as many small files of both
kinds, and times what a run does before its first step: opening them, and the first batch.
"""

import argparse
import os
import pathlib
import platform
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from absl import flags
from ml_collections import ConfigDict

from platojax.data import bulk
from platojax.data.pipeline import make_pipeline
from platojax.data.preparation import ShardWriter, shard_name, write_metadata
from platojax.data.prepared import PreparedScenes
from platojax.data.raw.scene import RawScene
from platojax.data.recap import RecapScenes
from platojax.data.rejects import Rejects
from platojax.data.scenes import EMOJI_TOKENIZER, Text, load_emoji
from platojax.data.tokenizer import Tokenizer
from platojax.data.views import make_views

ROWS_PER_FILE = 500_000
POOL = 20_000  # texts that rows are made of, with a number that no other row has
BATCH = 1_000
VIEWS = ConfigDict(dict(name="two_texts"))
ENCODER = ConfigDict(dict(max_length=64))


def resident() -> float:
    """MiB of this process."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def write_rows(folder: pathlib.Path, rows: int) -> str:
    """Parquet files of distinct texts, 4 and 8 words long on average; returns a pattern."""
    rng = np.random.default_rng(0)
    names = " ".join(scene.name for scene in load_emoji("train"))
    words = np.array(sorted(set(names.lower().split())))

    def pool(mean: int) -> pa.Array:
        lengths = rng.poisson(mean, POOL) + 1
        return pa.array([" ".join(rng.choice(words, n)) for n in lengths])

    pools = {"org_caption": pool(4), "re_caption": pool(8)}
    for file, begin in enumerate(range(0, rows, ROWS_PER_FILE)):
        numbers = np.arange(begin, min(begin + ROWS_PER_FILE, rows))
        text = pa.array(numbers).cast(pa.string())
        columns = {
            name: pc.binary_join_element_wise(
                texts.take(pa.array(rng.integers(POOL, size=len(numbers)))), text, " "
            )
            for name, texts in pools.items()
        }
        columns["sha256"] = pc.utf8_lpad(text, 64, "0")
        pq.write_table(pa.table(columns), folder / f"{file:05d}.parquet", row_group_size=50_000)
    return f"{folder}/*.parquet"


def go_through(name: str, scenes: object, rows: int) -> None:
    """Reads an epoch in batches with views; prints speed and memory at ten points."""
    batches = make_pipeline(
        scenes, make_views(VIEWS, ENCODER, Tokenizer(EMOJI_TOKENIZER)), batch_size=BATCH, seed=0
    )
    start, processor = time.perf_counter(), time.process_time()
    points = np.linspace(0, rows // BATCH, 11).astype(int).tolist()
    memory = []
    for batch in range(1, rows // BATCH + 1):
        next(batches)
        if batch in points:
            memory.append(resident())
            print(f"{name}: {batch * BATCH:,} rows, {memory[-1]:,.0f} MiB", flush=True)
    batches.close()
    elapsed, used = time.perf_counter() - start, time.process_time() - processor
    print(
        f"{name}: {rows:,} rows in {elapsed:,.0f} s, {rows / used:,.0f} rows/s of a core; memory "
        f"{memory[0]:,.0f} MiB after a tenth, {memory[-1]:,.0f} MiB at the end, at most "
        f"{max(memory):,.0f} MiB.",
        flush=True,
    )


def bench_rows(folder: pathlib.Path, rows: int, workers: int) -> None:
    """See the module."""
    files = folder / "rows"
    files.mkdir()
    pattern = write_rows(files, rows)
    size = sum(path.stat().st_size for path in files.iterdir())
    print(f"{rows:,} rows, {size / rows:.0f} bytes each in Parquet.", flush=True)
    paths = sorted(map(str, files.iterdir()))
    plan = bulk.Plan.make(bulk.RECAP, paths, tokenizer=str(EMOJI_TOKENIZER))
    out = folder / "prepared"
    before = os.times()
    start = time.perf_counter()
    info = bulk.prepare(plan, out, workers=workers)
    elapsed = time.perf_counter() - start
    used = sum(os.times()[:4]) - sum(before[:4])  # of this process and of those that it started
    largest = max(
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    size = sum(shard.bytes for shard in info.splits["train"].shards)
    print(
        f"prepared in {elapsed:,.0f} s by {workers} processes, {used / rows * 1e6:.0f} "
        f"core-seconds for a million rows, {size / rows:.0f} bytes a row; the largest process had "
        f"{largest / 1024:,.0f} MiB, this one {resident():,.0f} MiB.",
        flush=True,
    )
    # Each in a process of its own, so that one's memory is not the other's.
    both = [
        subprocess.Popen([sys.executable, __file__, kind, source, str(rows)])
        for kind, source in (("stream", pattern), ("prepared", str(out)))
    ]
    if any([process.wait() for process in both]):
        raise SystemExit("one of them failed")


def first_batch(kind: str, source: str) -> None:
    """Prints how long it takes to open the data, and to make the first batch."""
    start = time.perf_counter()
    scenes = open_scenes(kind, source)
    opened = time.perf_counter()
    batches = make_pipeline(
        scenes, make_views(VIEWS, ENCODER, Tokenizer(EMOJI_TOKENIZER)), batch_size=256, seed=0
    )
    next(batches)
    batch = time.perf_counter()
    batches.close()
    print(f"{kind}: opened in {opened - start:.2f} s, first batch after {batch - start:.2f} s.")


def open_scenes(kind: str, source: str) -> RecapScenes | PreparedScenes:
    """The stream of a pattern of files, or the prepared data in a folder."""
    return (
        RecapScenes.find(source) if kind.startswith("stream") else PreparedScenes(source, "train")
    )


def bench_shards(folder: pathlib.Path, shards: int) -> None:
    """See the module."""
    files, out = folder / "shards", folder / "prepared_shards"
    files.mkdir()
    out.mkdir()
    tokenizer = Tokenizer(EMOJI_TOKENIZER)
    written = []
    for shard in range(shards):
        texts = [(f"alt text {shard} {row}", f"recaption {row} {shard}") for row in range(20)]
        org, re = zip(*texts, strict=True)
        table = pa.table({"org_caption": org, "re_caption": re})
        pq.write_table(table, files / f"{shard:05d}.parquet")
        with ShardWriter(out / shard_name("recap", "train", shard), tokenizer) as writer:
            for row, pair in enumerate(texts):
                observed = tuple(
                    Text(source, "", text)
                    for source, text in zip(table.column_names, pair, strict=True)
                )
                writer.add(RawScene(f"{shard}:{row}", "train", observed))
            written.append(writer.finish())
    write_metadata(
        out,
        name="recap",
        shards={"train": written},
        rejects=Rejects(),
        excluded=0,
        source={},
        settings={},
        tokenizer=tokenizer,
    )
    print(f"{shards:,} files of each kind.", flush=True)
    for kind, source in (("stream-start", f"{files}/*.parquet"), ("prepared-start", str(out))):
        subprocess.run([sys.executable, __file__, kind, source], check=True)


def main() -> None:
    """Reads the arguments, and runs what they say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    flags.FLAGS.mark_as_parsed()
    if sys.argv[1:2] in (["stream"], ["prepared"]):
        return go_through(sys.argv[1], open_scenes(*sys.argv[1:3]), int(sys.argv[3]))
    if sys.argv[1:2] in (["stream-start"], ["prepared-start"]):
        return first_batch(*sys.argv[1:3])
    parser.add_argument("what", choices=("rows", "shards"))
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", help="where to write; deleted afterwards")
    arguments = parser.parse_args()
    print(f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}.", flush=True)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        if arguments.what == "rows":
            bench_rows(pathlib.Path(folder), arguments.rows, arguments.workers)
        else:
            bench_shards(pathlib.Path(folder), arguments.shards)
    return None


if __name__ == "__main__":
    main()
