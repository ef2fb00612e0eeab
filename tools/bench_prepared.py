"""How quickly scenes of prepared data are read in random order, beside tensorflow-datasets' reader.

    python tools/bench_prepared.py prepared/multi30k --split train

Scenes per second of CPU time of this process, best of three rounds, in each of which the readers
take turns on the same scenes: tensorflow-datasets' data source, `PreparedScenes` one by one, and
`PreparedScenes` 256 at a time, as the pipeline reads them.
"""

import argparse
import pathlib
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow_datasets as tfds

from platojax.data.prepared import PreparedScenes

_ROUNDS = 3
_TOGETHER = 256  # as in platojax/data/pipeline.py


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--split", default="train")
    parser.add_argument("--scenes", type=int, default=5120)
    args = parser.parse_args()
    scenes = PreparedScenes(args.folder, args.split)
    source = tfds.builder_from_directory(args.folder).as_data_source(args.split)
    order = np.random.default_rng(0).permutation(len(scenes))[: args.scenes].tolist()

    def one_by_one(items: Sequence) -> None:
        for index in order:
            items[index]

    def together() -> None:
        for start in range(0, len(order), _TOGETHER):
            scenes.read(order[start : start + _TOGETHER])

    readers: dict[str, Callable[[], None]] = {
        "tensorflow-datasets": lambda: one_by_one(source),
        "one by one": lambda: one_by_one(scenes),
        f"{_TOGETHER} at a time": together,
    }
    best = dict.fromkeys(readers, float("inf"))
    for _ in range(_ROUNDS):
        for name, read in readers.items():
            start = time.process_time()
            read()
            best[name] = min(best[name], time.process_time() - start)
    for name, seconds in best.items():
        ratio = best["tensorflow-datasets"] / seconds
        print(f"{name:20}  {len(order) / seconds:8,.0f} scenes/s  {ratio:5.1f}x")


if __name__ == "__main__":
    main()
