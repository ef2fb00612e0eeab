"""Cluster centres of both sides, on random subsets: the points whose geometry is compared."""

import numpy as np
from sklearn.cluster import KMeans

from platojax.evaluation.unpaired.progress import OnProgress, report

# Lloyd's centres move little afterwards, and the average over restarts forgives the rest.
_MAX_ITERATIONS = 50


def k_means(
    x: np.ndarray, num_clusters: int, *, seed: int, start: np.ndarray | None = None
) -> np.ndarray:
    """Centres by Lloyd's algorithm from one start.

    Args:
        x: [N, D] float32.
        num_clusters: at most the number of distinct rows.
        seed: of k-means++.
        start: [num_clusters, D], centres to start at in place of k-means++.

    Returns:
        [num_clusters, D] float32; row i comes from row i of the start.
    """
    model = KMeans(
        num_clusters,
        init="k-means++" if start is None else start,
        n_init=1,
        max_iter=_MAX_ITERATIONS,
        algorithm="lloyd",
        random_state=seed,
    )
    return model.fit(x).cluster_centers_.astype(np.float32)


def restarts(
    x: np.ndarray,
    y: np.ndarray,
    *,
    num_clusters: int,
    num_restarts: int,
    batch_size: int,
    rng: np.random.Generator,
    on_progress: OnProgress | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Clusters random subsets of both sides, again and again.

    Args:
        x: [N, Dx] float32.
        y: [M, Dy] float32.
        num_clusters: C.
        num_restarts: S.
        batch_size: rows per subset, drawn without replacement; all rows where there are fewer.
        rng: of the subsets and starts.
        on_progress: told of each restart.

    Returns:
        Centres [S, C, Dx] and [S, C, Dy], float32. Row i of one side has nothing to do with row i
        of the other.
    """
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for done in range(num_restarts):
        found.append(
            (
                _subset_centres(x, num_clusters, batch_size, rng),
                _subset_centres(y, num_clusters, batch_size, rng),
            )
        )
        report(on_progress, "clusters", done + 1, num_restarts)
    centres_x, centres_y = zip(*found, strict=True)
    return np.stack(centres_x), np.stack(centres_y)


def _subset_centres(
    x: np.ndarray, num_clusters: int, batch_size: int, rng: np.random.Generator
) -> np.ndarray:
    rows = rng.permutation(len(x))[:batch_size]
    return k_means(x[rows], num_clusters, seed=int(rng.integers(2**31)))


def centred_gram(centres: np.ndarray) -> np.ndarray:
    """Inner products of centres around their mean.

    Args:
        centres: [S, C, D].

    Returns:
        [S, C, C] float64.
    """
    around = centres.astype(np.float64)
    around -= around.mean(axis=1, keepdims=True)
    return around @ around.swapaxes(1, 2)
