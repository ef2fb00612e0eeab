"""mini-vec2vec (arXiv 2510.02348): a rotation without pairs from relative representations."""

import numpy as np
from jax.typing import ArrayLike

from platojax.evaluation.rotation import Rotation, polar, unit_around
from platojax.evaluation.unpaired.clusters import centred_gram, k_means, restarts
from platojax.evaluation.unpaired.progress import OnProgress, report
from platojax.evaluation.unpaired.qap import quadratic_assignment
from platojax.evaluation.unpaired.refinement import neighbor_means, unit
from platojax.evaluation.unpaired.sides import check_settings, distinct_rows

# The share of a new fit in the running rotation.
_SMOOTHING = 0.5


def mini_vec2vec(
    x: ArrayLike,
    y: ArrayLike,
    *,
    seed: int = 0,
    num_clusters: int = 20,
    num_restarts: int = 30,
    batch_size: int = 10_000,
    num_neighbors: int = 50,
    num_rounds: int = 100,
    round_size: int = 1000,
    num_fine_clusters: int = 500,
    on_progress: OnProgress | None = None,
) -> Rotation:
    """Fits a rotation from x's space into y's without pairs, for comparison with `rosetta`.

    As published (Dar, 2025, algorithms 1 to 4, and the author's notebook, whose numbers are the
    defaults): cluster centres of both sides, matched by quadratic assignment, are anchors; an item
    is represented by its cosines to all anchors; each item of x is paired with the mean of its
    nearest items of y in that representation, which gives a first rotation. Refinement 1: random
    items of x are paired with the mean of their nearest items of y, and half of the new fit enters
    the rotation. Refinement 2: y's fine clustering starts at x's mapped centres, which pairs them.

    Two deviations. The assignments come from `qap.quadratic_assignment` in place of scipy's 2-opt
    from 30 random starts. The notebook returns the average of orthogonal matrices, which is none;
    here its polar factor is returned.

    Args:
        x: [N, Dx] features.
        y: [M, Dy] features of other items of the same kind; Dy may differ from Dx. Copies of an
            item count once.
        seed: of the subsets, the starts and the rounds.
        num_clusters: centres per restart.
        num_restarts: pairs of clusterings.
        batch_size: rows per clustering, at most.
        num_neighbors: neighbours in a mean; all items of y where there are fewer.
        num_rounds: of refinement 1.
        round_size: items of x in a round, at most.
        num_fine_clusters: of refinement 2; a third of the smaller side where that is less.
        on_progress: called with the stage, the parts done and their number.

    Returns:
        The rotation.

    Raises:
        ValueError: as `rosetta.unpaired_rotation`.
    """
    check_settings(
        seed,
        num_clusters,
        batch_size,
        num_restarts=num_restarts,
        num_neighbors=num_neighbors,
        num_rounds=num_rounds,
        round_size=round_size,
        num_fine_clusters=num_fine_clusters,
    )
    rng = np.random.default_rng(seed)
    means, units = [], []
    for name, side in (("x", x), ("y", y)):
        rows = distinct_rows(name, side, num_clusters=num_clusters)
        means.append(rows.mean(axis=0, dtype=np.float64).astype(np.float32))
        units.append(unit_around(name, rows, means[-1]))
    units_x, units_y = units
    num_neighbors = min(num_neighbors, len(units_y))
    centres_x, centres_y = restarts(
        units_x,
        units_y,
        num_clusters=num_clusters,
        num_restarts=num_restarts,
        batch_size=batch_size,
        rng=rng,
        on_progress=on_progress,
    )
    anchors_x, anchors_y = _matched(centres_x, centres_y, seed)
    report(on_progress, "assignment", 1, 1)
    relative_x, relative_y = _relative(units_x, anchors_x), _relative(units_y, anchors_y)
    partners = neighbor_means(relative_x, relative_y, units_y, num_neighbors)
    rotation = polar(units_x.T @ partners)
    for done in range(num_rounds):
        sample = units_x[rng.permutation(len(units_x))[:round_size]]
        partners = neighbor_means(unit(sample @ rotation), units_y, units_y, num_neighbors)
        rotation = _smoothed(rotation, sample, partners)
        report(on_progress, "refinement", done + 1, num_rounds)
    fine = min(num_fine_clusters, max(1, min(len(units_x), len(units_y)) // 3))
    fine_x = k_means(units_x, fine, seed=seed)
    fine_y = k_means(units_y, fine, seed=seed, start=fine_x @ rotation)
    report(on_progress, "clustering", 1, 1)
    return Rotation(polar(_smoothed(rotation, fine_x, fine_y)), *means)


def _matched(
    centres_x: np.ndarray, centres_y: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """[S C, Dx] and [S C, Dy]: row i of both is taken for the same anchor."""
    matching = quadratic_assignment(centred_gram(centres_x), centred_gram(centres_y), seed=seed)
    matched = np.take_along_axis(centres_y, matching.permutation[:, :, None], axis=1)
    return np.concatenate(centres_x), np.concatenate(matched)


def _relative(units: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """[N, S C]: cosines to the anchors, of unit rows."""
    return unit(units @ unit(anchors).T)


def _smoothed(rotation: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (1 - _SMOOTHING) * rotation + _SMOOTHING * polar(x.T @ y)
