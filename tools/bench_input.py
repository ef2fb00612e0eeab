"""The input pipeline alone, beside what the train step eats, on the same cores.

    python tools/bench_input.py [--quick] [--files 'DIR/*.parquet']

Prints a Markdown table: scenes and observations a second (a scene has two texts or two images), and
how many times as fast the pipeline is as the step. The cases are those of configs/emoji.py, and the
stream of configs/recap_940m.py with its vocabulary and length; its step is that of 109M parameters
at a batch of 8. Rows come from `--files`, or are written: words at random, about as long as the
real ones.
"""

import argparse
import importlib.util
import os
import pathlib
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from absl import flags
from ml_collections import ConfigDict

from platojax import sharding
from platojax.data.pipeline import make_pipeline
from platojax.data.recap import RecapScenes
from platojax.data.scenes import EMOJI_TOKENIZER, Scene, SceneStream, load_emoji
from platojax.data.tokenizer import Tokenizer, train_tokenizer
from platojax.data.views import ViewPolicy, make_views
from platojax.program import make_program
from platojax.runs import resolve_runs

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"
WORKERS = (0, 2)
ALT_TEXT_WORDS, RECAPTION_WORDS = 10, 50  # means; the data set's own averages
GOAL = 5


def load_config(name: str) -> ConfigDict:
    """The config of this name in configs/."""
    spec = importlib.util.spec_from_file_location(name, CONFIGS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config()


def arm_config(config: ConfigDict, arm: str) -> ConfigDict:
    """Of the first run of this arm."""
    return next(run.config for run in resolve_runs(config) if run.arm == arm)


def pipeline_rate(
    scenes: Any, views: ViewPolicy, batch_size: int, workers: int, seconds: float
) -> float:
    """Scenes a second of the pipeline alone, once its workers are there."""
    batches = make_pipeline(scenes, views, batch_size=batch_size, seed=0, num_workers=workers)
    for _ in range(2 * workers + 2):
        next(batches)
    count = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        next(batches)
        count += 1
    elapsed = time.perf_counter() - start
    batches.close()
    return count * batch_size / elapsed


def step_rate(
    config: ConfigDict, vocabulary: Any, scenes: Any, views: ViewPolicy, repetitions: int
) -> float:
    """Scenes a second of the train step on one batch that is already there, by the median."""
    batches = make_pipeline(scenes, views, batch_size=config.batch_size, seed=0)
    batch = next(batches)
    batches.close()
    example = jax.tree.map(lambda x: x[:, :1], batch)
    program = make_program(config, vocabulary, example, sharding.make_mesh(**config.mesh))
    state, metrics = program.step(program.init(np.uint32(0)), batch)
    jax.block_until_ready(metrics)
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        state, metrics = program.step(state, batch)
        jax.block_until_ready((state, metrics))
        times.append(time.perf_counter() - start)
    return config.batch_size / statistics.median(times)


def write_files(folder: str, files: int, rows: int) -> str:
    """Parquet files in the format of Recap-DataComp-1B; words are as frequent as Zipf has it."""
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfw"))
    words = ["".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(20_000)]
    shares = 1 / np.arange(1, len(words) + 1)
    shares /= shares.sum()

    def texts(mean: int) -> list[str]:
        lengths = rng.poisson(mean, rows) + 1
        drawn = rng.choice(len(words), lengths.sum(), p=shares)
        parts = np.split(drawn, np.cumsum(lengths)[:-1])
        return [" ".join(words[i] for i in part) for part in parts]

    for file in range(files):
        table = {
            "url": [f"https://example.org/{file}/{row}.jpg" for row in range(rows)],
            "re_caption": texts(RECAPTION_WORDS),
            "org_caption": texts(ALT_TEXT_WORDS),
            "sha256": [f"{file * rows + row:064x}" for row in range(rows)],
        }
        pq.write_table(pa.table(table), f"{folder}/{file:05d}.parquet")
    return f"{folder}/*.parquet"


def bench(
    name: str,
    config: ConfigDict,
    tokenizer: Tokenizer,
    scenes: Sequence[Scene] | SceneStream,
    batch_size: int,
    repetitions: int,
    seconds: float,
) -> None:
    """One case: a row for each number of workers."""
    views = make_views(config.views, config.encoder, tokenizer)
    eaten = step_rate(config, tokenizer, scenes, views, repetitions)
    for workers in WORKERS:
        made = pipeline_rate(scenes, views, batch_size, workers, seconds)
        print(
            f"| {name} | {workers} | {made:,.0f} | {2 * made:,.0f} | {eaten:,.4g} "
            f"| {made / eaten:,.4g} |",
            flush=True,
        )


def main() -> None:
    """Reads the arguments, and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a minute; rough numbers")
    parser.add_argument("--files", help="a pattern of Parquet files of Recap-DataComp-1B")
    arguments = parser.parse_args()
    flags.FLAGS.mark_as_parsed()  # grain's workers read absl's flags

    repetitions, seconds = (3, 1) if arguments.quick else (15, 8)
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, {platform.machine()}, jax {jax.__version__}, numpy {np.__version__}.")
    print(f"The goal is a pipeline {GOAL} times as fast as the step.\n")
    print("| data | workers | scenes/s | texts or images/s | the step eats, scenes/s | ratio |")
    print("|---|---|---|---|---|---|", flush=True)
    emoji = load_config("emoji")
    for arm, name in (("text_good", "emoji, texts"), ("image_good", "emoji, images at 32 pixels")):
        config = arm_config(emoji, arm)
        tokenizer = Tokenizer(EMOJI_TOKENIZER)
        scenes = load_emoji("train")
        bench(name, config, tokenizer, scenes, config.batch_size, repetitions, seconds)

    with tempfile.TemporaryDirectory() as folder:
        files = arguments.files or write_files(folder, 4, 5_000 if arguments.quick else 25_000)
        stream = RecapScenes.find(files)
        model = f"{folder}/tokenizer.model"
        blocks = iter(stream.blocks(10_000, seed=0))
        texts = [text.name for _, scene in next(blocks) for text in scene.texts]
        blocks.close()
        vocabulary = 8_000 if arguments.quick else 32_000
        train_tokenizer(texts, model, vocab_size=vocabulary)
        config = arm_config(load_config("recap_940m"), "text_good")
        config.batch_size = 8
        name = f"Parquet captions, {vocabulary // 1000}k tokens, length {config.encoder.max_length}"
        bench(name, config, Tokenizer(model), stream, 256, 2, seconds)


if __name__ == "__main__":
    main()
