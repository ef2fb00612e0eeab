"""Checks that the methods without pairs share."""

import numpy as np
from jax.typing import ArrayLike

from platojax.evaluation.alignment import as_layers


def distinct_rows(name: str, x: ArrayLike, *, num_clusters: int) -> np.ndarray:
    """Checks one side, and leaves out copies of items.

    Copies of an item count once: they say how often it was collected, which the sides need not
    share.

    Args:
        name: what errors call the features.
        x: [N, D], or [N, 1, D].
        num_clusters: clusters to be found.

    Returns:
        [N', D] float32, the distinct rows in the order of x.

    Raises:
        ValueError: x is not finite, has more than one layer, is the same for all items, or has
            fewer distinct items than twice the clusters.
    """
    layers = as_layers(name, x)
    if layers.shape[1] != 1:
        raise ValueError(f"{name} has {layers.shape[1]} layers; select one")
    rows = _distinct(layers[:, 0])
    if len(rows) == 1:
        raise ValueError(f"{name} is the same for all items: it has collapsed, and matches nothing")
    if len(rows) < 2 * num_clusters:
        raise ValueError(
            f"{name} has {len(rows)} distinct items, too few for {num_clusters} clusters: needed "
            f"are at least {2 * num_clusters}; give more items or set fewer clusters"
        )
    return rows


def _distinct(rows: np.ndarray) -> np.ndarray:
    # Hashes of 64 bits: sorting the rows themselves takes a copy of all and is slow. A collision
    # among a million items (one in 10**7) would leave out one item.
    hashes = np.array([hash(row.tobytes()) for row in rows])
    first = np.unique(hashes, return_index=True)[1]
    return rows if len(first) == len(rows) else rows[np.sort(first)]


def check_settings(seed: int, num_clusters: int, batch_size: int, **at_least_one: int) -> None:
    """Refuses numbers that no method can use.

    Args:
        seed: not negative.
        num_clusters: at least 2: fewer have no geometry.
        batch_size: at least two rows per cluster.
        **at_least_one: other settings by name.

    Raises:
        ValueError: a number is too small.
    """
    least = {"num_clusters": 2, "batch_size": 2 * num_clusters, "seed": 0}
    given = {"num_clusters": num_clusters, "batch_size": batch_size, "seed": seed} | at_least_one
    for name, value in given.items():
        if value < least.get(name, 1):
            raise ValueError(f"{name}={value} must be at least {least.get(name, 1)}")
