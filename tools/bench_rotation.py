"""Rotations without pairs side by side with mini-vec2vec's published procedure, on the same cores.

    taskset -c 0,1 python tools/bench_rotation.py [FEATURES.npz] [--seeds 3] [--quick]

FEATURES.npz holds "features" [N, D]: they are split into disjoint halves, one of which is rotated
and gets noise of .01 per coordinate. The second set is synthetic: clusters in a space of low
effective rank, 100,000 items of width 768 on each side and their rotated like. Each run has a
process of its own, whose peak memory is reported, and prints a row of a Markdown table. --quick
takes 4,000 synthetic items of width 128 and one seed.

The published side follows algorithms 1 to 4 of arXiv 2510.02348 and the author's notebook in numpy,
scipy and scikit-learn, written anew; similarities in blocks, without which 100,000 items take 40
GB.
"""

import argparse
import concurrent.futures
import dataclasses
import multiprocessing
import os
import platform
import resource
import sys
import time
from collections.abc import Callable

import numpy as np

TEST_ITEMS = 2000
NOISE = 0.01


@dataclasses.dataclass(frozen=True)
class Task:
    """Training items of two sides without pairs, and pairs to be found, all [*, D] float32."""

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def random_rotation(rng: np.random.Generator, width: int) -> np.ndarray:
    """[width, width] float32."""
    return np.linalg.qr(rng.standard_normal((width, width)))[0].astype(np.float32)


def noise(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Gaussian, float32."""
    return NOISE * rng.standard_normal(shape, np.float32)


def feature_task(path: str, seed: int) -> Task:
    """Disjoint halves of real features, the second of them rotated; the pairs are all items."""
    features = np.load(path)["features"].astype(np.float32)
    rng = np.random.default_rng(seed)
    rotated = features @ random_rotation(rng, features.shape[1]) + noise(rng, features.shape)
    order = rng.permutation(len(features))
    half = len(order) // 2
    return Task(features[order[:half]], rotated[order[half:]], features, rotated)


def synthetic_task(num_items: int, width: int, seed: int) -> Task:
    """100 clusters of unequal weight, spread and skew; the variance falls like 1 / rank."""
    rng = np.random.default_rng(seed)
    scales = (1 / np.sqrt(1 + np.arange(width))).astype(np.float32)
    scales /= np.linalg.norm(scales)
    centres = rng.standard_exponential((100, width), np.float32) * scales
    weights = rng.dirichlet(np.full(100, 2.0))
    rotation = random_rotation(rng, width)

    def items(count: int) -> np.ndarray:
        spread = 0.5 * scales * rng.standard_normal((count, width), np.float32)
        return centres[rng.choice(100, count, p=weights)] + spread

    x, y, test = items(num_items), items(num_items) @ rotation, items(TEST_ITEMS)
    y += noise(rng, y.shape)
    test_y = test @ rotation
    return Task(x, y, test, test_y + noise(rng, test_y.shape))


def foscttm(mapped: np.ndarray, y: np.ndarray) -> float:
    """Fraction of items closer than the true match, by cosine, over both directions."""
    cosines = unit(mapped) @ unit(y).T
    true = np.diag(cosines)
    closer = (cosines > true[:, None]).sum() + (cosines > true[None, :]).sum()
    return float(closer / (2 * len(y) * (len(y) - 1)))


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows of length one."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def published_mini_vec2vec(task: Task, seed: int) -> float:
    """FOSCTTM of the published procedure with the notebook's numbers."""
    from scipy.linalg import orthogonal_procrustes
    from sklearn.cluster import KMeans

    rng = np.random.default_rng(seed)
    mean_x, mean_y = task.x.mean(axis=0), task.y.mean(axis=0)
    x, y = unit(task.x - mean_x), unit(task.y - mean_y)
    anchors = [published_anchors(x, y, rng) for _ in range(30)]
    anchors_x, anchors_y = (unit(np.concatenate(side)) for side in zip(*anchors, strict=True))
    partners = nearest_means(unit(x @ anchors_x.T), unit(y @ anchors_y.T), y)
    rotation, _ = orthogonal_procrustes(x, partners)
    for _ in range(100):
        sample = x[rng.permutation(len(x))[:1000]]
        fit, _ = orthogonal_procrustes(sample, nearest_means(sample @ rotation, y, y))
        rotation = (rotation + fit) / 2
    clusters = min(500, len(x) // 3)
    fine_x = KMeans(clusters, random_state=seed).fit(x).cluster_centers_
    start = (fine_x @ rotation).astype(np.float32)
    fine_y = KMeans(clusters, init=start, n_init=1).fit(y).cluster_centers_
    rotation = (rotation + orthogonal_procrustes(fine_x, fine_y)[0]) / 2
    return foscttm(unit(task.test_x - mean_x) @ rotation, task.test_y - mean_y)


def published_anchors(
    x: np.ndarray, y: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """[20, D] each: matched cluster centres, the best of 30 runs of scipy's 2-opt."""
    from scipy.optimize import quadratic_assignment
    from sklearn.cluster import KMeans

    centres, kernels = [], []
    for side in (x, y):
        rows = side[rng.permutation(len(side))[:10_000]]
        model = KMeans(20, random_state=int(rng.integers(2**31))).fit(rows)
        centres.append(model.cluster_centers_)
        around = centres[-1] - centres[-1].mean(axis=0)
        kernels.append(around @ around.T)
    options = {"maximize": True, "rng": rng}  # 2-opt starts at random
    runs = [quadratic_assignment(*kernels, method="2opt", options=options) for _ in range(30)]
    return centres[0], centres[1][max(runs, key=lambda run: run.fun).col_ind]


def nearest_means(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """[N, D]: the mean of the values of the 50 keys most similar to each query."""
    found = []
    for block in np.array_split(queries, -(-len(queries) // 1000)):
        nearest = np.argpartition(-(block @ keys.T), 50, axis=1)[:, :50]
        found.append(np.stack([values[rows].mean(axis=0) for rows in nearest]))
    return np.concatenate(found)


def ours(task: Task, seed: int) -> float:
    """FOSCTTM of `unpaired_rotation`."""
    from platojax.evaluation.unpaired import unpaired_rotation

    fitted = unpaired_rotation(task.x, task.y, seed=seed)
    return foscttm(fitted.apply(task.test_x), fitted.target(task.test_y))


def our_mini_vec2vec(task: Task, seed: int) -> float:
    """FOSCTTM of our `mini_vec2vec`."""
    from platojax.evaluation.unpaired import mini_vec2vec

    fitted = mini_vec2vec(task.x, task.y, seed=seed)
    return foscttm(fitted.apply(task.test_x), fitted.target(task.test_y))


METHODS: dict[str, Callable[[Task, int], float]] = {
    "platojax unpaired_rotation": ours,
    "platojax mini_vec2vec": our_mini_vec2vec,
    "mini-vec2vec as published": published_mini_vec2vec,
}


def measure(method: str, make: Callable[..., Task], *args: str | int) -> tuple[float, float, float]:
    """FOSCTTM, seconds and peak memory in GB of one run, of which the last argument is the seed."""
    task = make(*args)
    start = time.perf_counter()
    score = METHODS[method](task, int(args[-1]))
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Kilobytes on Linux, bytes on macOS.
    return score, seconds, peak / (1e9 if sys.platform == "darwin" else 1e6)


def in_own_process(*args: object) -> tuple[float, float, float]:
    """Calls `measure` where nothing else has used memory or compiled anything."""
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(measure, *args).result()  # type: ignore[arg-type]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("features", nargs="?", help='an .npz file with "features" [N, D]')
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    seeds = range(1 if args.quick else args.seeds)
    size = (4000, 128) if args.quick else (100_000, 768)
    runs: list[tuple[str, tuple[object, ...]]] = []
    if args.features:
        runs += [("halves of FEATURES", (feature_task, args.features, seed)) for seed in seeds]
    runs += [(f"synthetic, {size[0]} x {size[1]} a side", (synthetic_task, *size, 0))]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"{platform.machine()}, {cores} cores, Python {platform.python_version()}\n")
    print("| Data | Seed | Method | FOSCTTM | Seconds | Peak memory, GB |")
    print("|---|---|---|---|---|---|")
    for name, task in runs:
        for method in METHODS:
            score, seconds, peak = in_own_process(method, *task)
            print(
                f"| {name} | {task[-1]} | {method} | {score:.5f} | {seconds:.1f} | {peak:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
