"""Alignment and neighbour search side by side with PyTorch and faiss, on the same cores.

    taskset -c 0,1 python tools/bench_alignment.py [--quick]

Prints Markdown tables: medians, ratios, threads, and the peak memory of a process of its own. The
PyTorch side is the formulation of the Platonic Representation Hypothesis's code (Huh et al., arXiv
2405.07987), written anew: for each pair of layers both similarity matrices, both neighbour lists,
masks of items x items, and the mean of their product. Needs torch and faiss-cpu.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

K = 10
PERMUTATIONS = 200


def median_seconds(run: Callable[[], Any], repetitions: int) -> float:
    """The median of several runs, after one that does not count (compilation, warm caches)."""
    run()
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def related_features(n: int, layers: tuple[int, int], width: int) -> list[np.ndarray]:
    """Two sides that share part of a signal."""
    rng = np.random.default_rng(0)
    signal = rng.standard_normal((n, 1, width), np.float32)
    return [signal + 2 * rng.standard_normal((n, count, width), np.float32) for count in layers]


def unit_vectors(n: int, width: int) -> np.ndarray:
    """Random directions [n, width]."""
    x = np.random.default_rng(0).standard_normal((n, width), np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x


def published_pair(a: Any, b: Any) -> float:
    """Mutual k-NN of two layers [N, D] of unit rows, as the published code computes it."""
    import torch

    masks = []
    for x in (a, b):
        similarities = (x @ x.T).fill_diagonal_(-1e8)
        neighbors = similarities.argsort(dim=1, descending=True)[:, :K]
        mask = torch.zeros(len(x), len(x))
        masks.append(mask.scatter_(1, neighbors, 1.0))
    return float((masks[0] * masks[1]).sum(dim=1).mean() / K)


def bench_table(n: int, layers: tuple[int, int], width: int, pairs: int, repetitions: int) -> None:
    """All pairs of layers, alone and with a null."""
    import torch

    from platojax.evaluation.alignment import alignment
    from platojax.evaluation.calibration import calibrate

    a, b = related_features(n, layers, width)
    ours = median_seconds(lambda: alignment(a, b, k=K), repetitions)
    calibrated = median_seconds(
        lambda: calibrate(a, b, k=K, num_permutations=PERMUTATIONS), repetitions
    )
    x, y = (
        torch.nn.functional.normalize(torch.from_numpy(side), dim=-1).unbind(dim=1)
        for side in (a, b)
    )
    chosen = [(i % layers[0], i % layers[1]) for i in range(pairs)]
    table = alignment(a, b, k=K)
    worst = max(abs(published_pair(x[i], y[j]) - table[i, j]) for i, j in chosen)
    one = median_seconds(lambda: [published_pair(x[i], y[j]) for i, j in chosen], repetitions)
    theirs = one / pairs * layers[0] * layers[1]

    print(f"\nMutual {K}-NN of {n:,} items, {layers[0]} x {layers[1]} layers, width {width}.")
    print(f"PyTorch: {pairs} pairs timed and scaled to all pairs, and to one table for each of")
    print(f"{PERMUTATIONS} permutations. Largest difference of a score: {worst:.1e}.\n")
    print("| | platojax | PyTorch, published formulation | ratio |")
    print("|---|---|---|---|")
    print(f"| table | {ours:.2f} s | {theirs:.1f} s | {theirs / ours:.0f} |")
    total = theirs * (PERMUTATIONS + 1)
    print(
        f"| with {PERMUTATIONS} permutations | {calibrated:.2f} s | {total:.0f} s "
        f"| {total / calibrated:.0f} |"
    )


def search_once(library: str, x: np.ndarray) -> np.ndarray:
    """[N, K] indices of the nearest other rows."""
    if library == "platojax":
        from platojax.evaluation.neighbors import nearest_neighbors

        return np.asarray(nearest_neighbors(x, K)[0])
    import faiss

    faiss.omp_set_num_threads(threads())
    index = faiss.IndexFlatIP(x.shape[1])
    index.add(x)
    found = index.search(x, K + 1)[1]  # the item itself is among them, nearly always first
    others = found != np.arange(len(x))[:, None]
    others[others.all(axis=1), -1] = False
    return found[others].reshape(len(x), K)


def search_alone(library: str, n: int, width: int, repetitions: int, out: str) -> None:
    """What a process of its own does: searches, saves the indices, prints seconds and memory."""
    x = unit_vectors(n, width)
    search_once(library, x[: 2 * K])  # what the library itself needs
    before = peak_bytes()
    if repetitions > 1:
        seconds = median_seconds(lambda: search_once(library, x), repetitions)
    start = time.perf_counter()
    np.save(out, search_once(library, x))
    if repetitions == 1:
        seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "before": before, "peak": peak_bytes()}))


def bench_search(n: int, width: int, repetitions: int) -> None:
    """Exact neighbours of all rows against faiss."""
    results, indices = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for library in ("platojax", "faiss"):
            out = f"{folder}/{library}.npy"
            arguments = [library, n, width, repetitions, out]
            child = [sys.executable, __file__, "--search", *map(str, arguments)]
            printed = subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True).stdout
            results[library] = json.loads(printed.splitlines()[-1])
            indices[library] = np.load(out)
    ours, theirs = indices["platojax"], indices["faiss"]
    same_order = np.mean((ours == theirs).all(axis=1))
    same_set = np.mean((np.sort(ours, axis=1) == np.sort(theirs, axis=1)).all(axis=1))
    runs = "one run, compilation included" if repetitions == 1 else f"median of {repetitions}"
    print(f"\nThe {K} nearest of {n:,} items of width {width} ({n * width * 4 / 2**20:.1f} MiB),")
    print(f"{runs}. Lists that agree: {same_order:.4%} in order, {same_set:.4%} as sets.\n")
    print("| | platojax | faiss IndexFlatIP | ratio |")
    print("|---|---|---|---|")
    for row, key, scale, unit in (
        ("time", "seconds", 1, "s"),
        ("peak memory of the process", "peak", 2**20, "MiB"),
        ("before the search", "before", 2**20, "MiB"),
    ):
        a, b = (results[library][key] / scale for library in ("platojax", "faiss"))
        print(f"| {row} | {a:.4g} {unit} | {b:.4g} {unit} | {b / a:.2f} |")


def peak_bytes() -> int:
    """The largest resident set of this program; getrusage would count the process it came from."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if "VmHWM" in line).split()[1]) * 1024


def threads() -> int:
    """How many cores this process may use; every library gets as many threads."""
    return len(os.sched_getaffinity(0))


def main() -> None:
    """Runs everything, or one search where this program started itself."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, half a minute")
    parser.add_argument("--search", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.search:
        library, n, width, repetitions, out = arguments.search
        search_alone(library, int(n), int(width), int(repetitions), out)
        return

    import faiss
    import jax
    import torch

    torch.set_num_threads(threads())
    print(f"{threads()} cores and as many threads for each library; {platform.machine()}, ", end="")
    print(
        f"jax {jax.__version__}, torch {torch.__version__}, faiss {faiss.__version__}.", flush=True
    )
    if arguments.quick:
        bench_table(256, (3, 4), 128, pairs=4, repetitions=3)
        bench_search(2_000, 64, repetitions=3)
    else:
        bench_table(1024, (13, 25), 768, pairs=13, repetitions=3)
        bench_search(10_000, 1024, repetitions=3)
        bench_search(100_000, 768, repetitions=1)


if __name__ == "__main__":
    main()
