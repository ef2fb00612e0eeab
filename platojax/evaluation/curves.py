"""How a score depends on the number of items and on k: without both it cannot be compared.

Mutual k-NN falls as items are added, because the same k neighbours become a smaller part of them,
and so does its chance level. To clip outliers, do so first, to the threshold of all items: see
`alignment.clip_outliers`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.typing import ArrayLike

from platojax.evaluation.alignment import (
    Metric,
    alignment,
    as_layers,
    best_pair,
    check_same_number,
    check_seed,
    check_settings,
    prepare_sides,
    score_table,
)


@dataclasses.dataclass(frozen=True)
class ItemsPoint:
    """The score at one number of items.

    Attributes:
        n: number of items.
        chance: k / (n - 1) for mutual_knn, of one pair of layers; None for the other metrics.
        mean: of `scores`.
        spread: their sample standard deviation; None for a single one.
        scores: one per repetition, each the maximum over the pairs of layers.
    """

    n: int
    chance: float | None
    mean: float
    spread: float | None
    scores: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        """All fields, as values that JSON knows."""
        return dataclasses.asdict(self) | {"scores": list(self.scores)}


@dataclasses.dataclass(frozen=True)
class KPoint:
    """The score at one number of neighbours.

    Attributes:
        k: number of neighbours.
        chance: k / (N - 1) for mutual_knn, of one pair of layers; None for the other metrics.
        score: the maximum over the pairs of layers.
        layers: (i, j), the layers that attain it.
    """

    k: int
    chance: float | None
    score: float
    layers: tuple[int, int]

    def to_json(self) -> dict[str, Any]:
        """All fields, as values that JSON knows."""
        return dataclasses.asdict(self) | {"layers": list(self.layers)}


def score_against_items(
    a: ArrayLike,
    b: ArrayLike,
    sizes: Sequence[int],
    *,
    metric: Metric = "mutual_knn",
    k: int = 10,
    repetitions: int = 10,
    seed: int = 0,
) -> list[ItemsPoint]:
    """Scores random subsets of the items, of several sizes.

    Each repetition draws one order of the items and takes its first n, for each size n: subsets are
    nested within a repetition, without duplicates. All items at once are scored once.

    Args:
        a: [N, La, Da] or [N, Da] features.
        b: [N, Lb, Db] or [N, Db] features of the same items in the same order.
        sizes: numbers of items, each at most N.
        metric: see `alignment`.
        k: neighbours, the same at all sizes.
        repetitions: subsets of each size.
        seed: of the subsets.

    Returns:
        One point per size, in the order of `sizes`. The spread is over subsets of the same N items:
        close to N it understates the uncertainty, see `confidence.confidence_interval`.

    Raises:
        ValueError: as `alignment`, or sizes, repetitions or seed are out of range.
    """
    check_settings(metric, k)
    check_seed(seed)
    sides = [as_layers(name, x) for name, x in (("a", a), ("b", b))]
    count = len(sides[0])
    check_same_number("a", count, "b", len(sides[1]))
    if not all(1 <= n <= count for n in sizes):
        raise ValueError(f"sizes={list(sizes)} must be numbers of items in 1..{count}")
    if repetitions < 1:
        raise ValueError(f"repetitions={repetitions} must be at least 1")
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(count) for _ in range(repetitions)]

    def score(items: np.ndarray) -> float:
        x, y = (side[np.sort(items)] for side in sides)
        return float(alignment(x, y, metric=metric, k=k).max())

    points = []
    for n in sizes:
        scores = tuple(score(order[:n]) for order in (orders if n < count else orders[:1]))
        points.append(
            ItemsPoint(
                n=n,
                chance=_chance(metric, k, n),
                mean=float(np.mean(scores)),
                spread=float(np.std(scores, ddof=1)) if len(scores) > 1 else None,
                scores=scores,
            )
        )
    return points


def score_against_k(
    a: ArrayLike,
    b: ArrayLike,
    ks: Sequence[int],
    *,
    metric: Metric = "mutual_knn",
) -> list[KPoint]:
    """Scores at several k, from one search with the largest.

    Memory may grow as k x k x N, for the largest k.

    Args:
        a: [N, La, Da] or [N, Da] features.
        b: [N, Lb, Db] or [N, Db] features of the same items in the same order.
        ks: numbers of neighbours, each less than N.
        metric: one that uses neighbours: mutual_knn, cycle_knn, lcs_knn or cknna.

    Returns:
        One point per k, in the order of `ks`; each equals `alignment` at that k.

    Raises:
        ValueError: as `alignment`, the metric has no k, or there are no ks.
    """
    if not ks:
        raise ValueError("ks is empty; give at least one number of neighbours")
    for k in ks:
        spec = check_settings(metric, k)
    if not spec.uses_neighbors:
        raise ValueError(f"metric={metric!r} uses no neighbours; choose one that does")
    sides = prepare_sides(a, b, metric=metric, k=max(ks), clip="none")
    points = []
    for k in ks:
        table = score_table(*(side.with_k(k) for side in sides))
        layers = best_pair(table)
        chance = _chance(metric, k, sides[0].num_items)
        points.append(KPoint(k, chance, float(table[layers]), layers))
    return points


def _chance(metric: str, k: int, n: int) -> float | None:
    return k / (n - 1) if metric == "mutual_knn" else None
