"""Two spaces that share a skewed, clustered geometry, with disjoint items and held-out pairs."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Spaces:
    """Training items without pairs, and held-out pairs."""

    x: np.ndarray
    y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def clustered(rng, num_items, width, num_clusters=40):
    """Clusters of unequal weight and spread, in directions of falling variance."""
    scales = 1 / np.sqrt(1 + np.arange(width))
    centres = rng.exponential(size=(num_clusters, width)) * scales
    weights = rng.dirichlet(np.full(num_clusters, 2.0))
    spreads = rng.uniform(0.2, 0.5, num_clusters)
    label = rng.choice(num_clusters, num_items, p=weights)
    return centres[label] + spreads[label, None] * scales * rng.standard_normal((num_items, width))


def semi_orthogonal(rng, rows, columns):
    q, _ = np.linalg.qr(rng.standard_normal((max(rows, columns), min(rows, columns))))
    return q if rows >= columns else q.T


def spaces(seed=0, num_items=800, width=20, width_y=20, noise=0.02, num_test=300):
    """y is a rotated, shifted and scaled x with noise; no training item is in both."""
    rng = np.random.default_rng(seed)
    items = clustered(rng, 2 * num_items + num_test, width)
    rotation = semi_orthogonal(rng, width, width_y)
    other = 3.0 * (items @ rotation + noise * rng.standard_normal((len(items), width_y))) + 1.0
    items, other = items.astype(np.float32), other.astype(np.float32)
    train, test = np.s_[:num_items], np.s_[2 * num_items :]
    return Spaces(items[train], other[num_items : 2 * num_items], items[test], other[test])
