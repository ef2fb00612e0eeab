"""Captions a second of one core: our two ways in, Hugging Face `datasets` and `webdataset`.

    pip install datasets webdataset
    python tools/bench_captions.py [--quick] [--files 'DIR/*.parquet']

All read the same rows (`--files`, of Recap-DataComp-1B, or rows written as in bench_input.py), in
random order, and give the same: batches of tokenised pairs, `[2, 1024, 64]` int32, by one function,
which is given all texts of a batch. They take turns in one process; what counts is the processor's
time, threads included, so that other work on the machine matters little. `datasets` is timed as its
documentation streams, row by row; also by its batches, which are quicker; and by batches of which
it has left out the rows that we leave out, which is what they must do to train on the same.
"""

import argparse
import importlib.metadata
import pathlib
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator

import datasets
import numpy as np
import pyarrow.parquet as pq
import webdataset
from absl import flags
from bench_input import write_files
from ml_collections import ConfigDict

from platojax.data import bulk
from platojax.data.captions import MAX_CHARACTERS
from platojax.data.corpus import sample_texts
from platojax.data.mixture import Scenes
from platojax.data.observations import TextCodec
from platojax.data.paths import find_files
from platojax.data.pipeline import make_pipeline
from platojax.data.prepared import PreparedScenes
from platojax.data.recap import SOURCES, RecapScenes
from platojax.data.tokenizer import Tokenizer, train_tokenizer
from platojax.data.views import make_views

BATCH, LENGTH = 1024, 64
WINDOW = 10_000  # rows that each shuffles among, but for prepared data, which shuffles all

Batches = Iterator[np.ndarray]


def ours(scenes: Scenes, tokenizer: Tokenizer) -> Callable[[], Batches]:
    """Our pipeline, with no worker processes."""
    views = make_views(
        ConfigDict(dict(name="two_texts")), ConfigDict(dict(max_length=LENGTH)), tokenizer
    )

    def batches() -> Batches:
        pipeline = make_pipeline(scenes, views, batch_size=BATCH, seed=0)
        while True:
            yield next(pipeline)

    return batches


def pairs_of(rows: Callable[[], Iterator[tuple[str, str]]], codec: TextCodec) -> Callable:
    """Batches of rows, epoch after epoch; the texts of a batch become tokens together, as ours."""

    def batches() -> Batches:
        pairs: list[tuple[str, str]] = []
        while True:
            for texts in rows():
                pairs.append(texts)
                if len(pairs) == BATCH:
                    tokens = codec.encode_all(
                        [text for side in zip(*pairs, strict=True) for text in side]
                    )
                    yield tokens.reshape(2, BATCH, LENGTH)
                    pairs = []

    return batches


def stream(files: list[str]) -> datasets.IterableDataset:
    """The captions, as the documentation of `datasets` streams and shuffles them."""
    rows = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    return rows.select_columns(list(SOURCES)).shuffle(seed=0, buffer_size=WINDOW)


def datasets_rows(files: list[str]) -> Callable[[], Iterator[tuple[str, str]]]:
    """Row by row."""
    return lambda: ((row[SOURCES[0]], row[SOURCES[1]]) for row in stream(files))


def datasets_batches(
    rows: datasets.IterableDataset,
) -> Callable[[], Iterator[tuple[str, str]]]:
    """By batches."""
    return lambda: (
        pair
        for batch in rows.iter(batch_size=BATCH)
        for pair in zip(*(batch[source] for source in SOURCES), strict=True)
    )


def usable(batch: dict[str, list[str | None]]) -> list[bool]:
    """Which rows ours would use."""
    return [
        all(text and not text.isspace() and "\0" not in text for text in texts)
        and max(map(len, texts)) <= MAX_CHARACTERS
        and texts[0].strip() != texts[1].strip()
        for texts in zip(*(batch[source] for source in SOURCES), strict=True)
    ]


def webdataset_rows(shards: list[str]) -> Callable[[], Iterator[tuple[str, str]]]:
    """Sample by sample."""
    samples = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(WINDOW).decode()
    return lambda: (tuple(sample["json"][source] for source in SOURCES) for sample in samples)


def write_shards(files: list[str], folder: pathlib.Path) -> list[str]:
    """The rows as shards of webdataset."""
    shards = []
    for number, file in enumerate(files):
        shards.append(str(folder / f"{number:05d}.tar"))
        rows = pq.read_table(file, columns=list(SOURCES)).to_pylist()
        with webdataset.TarWriter(shards[-1]) as tar:
            for row, texts in enumerate(rows):
                tar.write({"__key__": f"{number:05d}{row:07d}", "json": texts})
    return shards


def captions_per_second(batches: Batches, seconds: float) -> float:
    """Of the processor's time."""
    count, start = 0, time.process_time()
    while time.process_time() - start < seconds:
        batch = next(batches)
        assert batch.shape == (2, BATCH, LENGTH)
        count += 2 * BATCH
    return count / (time.process_time() - start)


def main() -> None:
    """Reads the arguments, and prints a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="rough numbers")
    parser.add_argument("--files", help="a pattern of Parquet files of Recap-DataComp-1B")
    arguments = parser.parse_args()
    flags.FLAGS.mark_as_parsed()
    rounds, seconds, rows = (3, 1.0, 10_000) if arguments.quick else (5, 4.0, 50_000)

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        pattern = arguments.files or write_files(name, 4, rows)
        files = list(find_files(pattern))
        model = folder / "tokenizer.model"
        train_tokenizer(sample_texts(pattern, 10_000), model, vocab_size=8_000)
        tokenizer = Tokenizer(model)
        codec = TextCodec(tokenizer, LENGTH)
        plan = bulk.Plan.make(bulk.RECAP, files, tokenizer=str(model))
        bulk.prepare(plan, folder / "prepared", workers=1)
        shards = write_shards(files, folder)
        cases = {
            "platojax, Parquet": ours(RecapScenes.find(pattern, window=WINDOW), tokenizer),
            "platojax, prepared": ours(PreparedScenes(folder / "prepared", "train"), tokenizer),
            "datasets, rows": pairs_of(datasets_rows(files), codec),
            "datasets, batches": pairs_of(datasets_batches(stream(files)), codec),
            "datasets, batches of usable rows": pairs_of(
                datasets_batches(stream(files).filter(usable, batched=True, batch_size=BATCH)),
                codec,
            ),
            "webdataset": pairs_of(webdataset_rows(shards), codec),
        }
        running = {case: batches() for case, batches in cases.items()}
        tokens = [
            np.mean(next(batches) != tokenizer.pad_id) * LENGTH for batches in running.values()
        ]
        rates: dict[str, list[float]] = {case: [] for case in cases}
        for _ in range(rounds):
            for case, batches in running.items():
                rates[case].append(captions_per_second(batches, seconds))
    versions = {name: importlib.metadata.version(name) for name in ("datasets", "webdataset")}
    print(
        f"{platform.machine()}, {versions}; {tokens[0]:.1f} tokens a caption, both ends included."
    )
    print("\n| | captions/s of a core, median | least, most | of our Parquet |\n|---|---|---|---|")
    base = statistics.median(rates["platojax, Parquet"])
    for case, several in rates.items():
        middle = statistics.median(several)
        print(
            f"| {case} | {middle:,.0f} | {min(several):,.0f}, {max(several):,.0f} "
            f"| {middle / base:.2f} |"
        )


if __name__ == "__main__":
    main()
