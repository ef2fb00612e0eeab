"""Alignment scores that can be read: with their chance level, a p-value and a calibrated value.

A raw score grows with depth and width, because it is the maximum over all pairs of layers, and has
no natural zero. The permutation null of arXiv 2602.14486 (ICML 2026) repeats the whole computation,
maximum included, on pairs that are wrong.
"""

import dataclasses
from typing import Any

import numpy as np
from jax.typing import ArrayLike

from platojax.evaluation.alignment import (
    Clip,
    Metric,
    Side,
    best_pair,
    check_comparable,
    check_seed,
    permuted_maxima,
    prepare_sides,
    score_table,
)

# The level of the test, 1/20: kept as a fraction so that the order statistic is exact.
_ONE_IN = 20
_MOST_PERMUTATIONS = 100_000
# Random signs held at once.
_SIGN_ELEMENTS = 2**22


@dataclasses.dataclass(frozen=True, eq=False)
class Calibrated:
    """A score with everything needed to read and to repeat it.

    Attributes:
        score: the maximum of `table`.
        layers: (i, j), the layers of a and of b that attain it; the first in row order if tied.
        chance: expected score of unrelated features: k / (N - 1) for mutual_knn, where it holds for
            one pair of layers; the mean of the null, a maximum over layers, for the other metrics.
        p_value: (1 + #{null >= score}) / (num_permutations + 1), at least 1/(num_permutations + 1).
        calibrated: clip((score - threshold) / (best - threshold), 0, 1), where best is the metric's
            largest value (k for lcs_knn, 1 for the others): 0 is not distinguishable from chance.
        threshold: the ceil((1 - alpha)(num_permutations + 1))-th smallest value of the null.
        table: [La, Lb] float32, all pairs of layers.
        null: [num_permutations] float32, the maxima for wrong pairs.
        n: number of items.
        k: number of neighbours; None where the metric has none.
        metric: name of the metric.
        clip: how outliers were clipped.
        num_permutations: size of the null.
        seed: of the permutations.
        alpha: level of `threshold`, .05.
    """

    score: float
    layers: tuple[int, int]
    chance: float
    p_value: float
    calibrated: float
    threshold: float
    table: np.ndarray
    null: np.ndarray
    n: int
    k: int | None
    metric: str
    clip: str
    num_permutations: int
    seed: int
    alpha: float = 1 / _ONE_IN

    def to_json(self) -> dict[str, Any]:
        """The score with its protocol, without the null, as values that JSON knows."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del values["null"]
        return values | {"layers": list(self.layers), "table": self.table.tolist()}


def calibrate(
    a: ArrayLike,
    b: ArrayLike,
    *,
    metric: Metric = "mutual_knn",
    k: int = 10,
    clip: Clip = "none",
    num_permutations: int = 200,
    seed: int = 0,
) -> Calibrated:
    """Scores a against b and compares the score with the scores of wrong pairs.

    The items of b are permuted, in all layers alike, and the maximum over layers is taken inside
    each permutation (arXiv 2602.14486). The null costs `num_permutations` tables: little for the
    neighbour metrics, which only relabel the lists they have found, and for svcca; more for the
    kernel metrics; and for procrustes as many singular value decompositions per pair of layers.

    Args:
        a: [N, La, Da] features, see `alignment`; [N, Da] is one layer.
        b: [N, Lb, Db] likewise; row i is the same item as row i of a.
        metric: see `alignment`.
        k: neighbours.
        clip: none, exact or mean.
        num_permutations: size of the null, at least 19; 200 or more for a stable threshold.
        seed: of the permutations; the same seed gives the same numbers.

    Returns:
        The calibrated score.

    Raises:
        ValueError: as `alignment`, or num_permutations or seed is out of range.
    """
    check_num_permutations(num_permutations)
    check_seed(seed)
    sides = prepare_sides(a, b, metric=metric, k=k, clip=clip)
    return calibrate_prepared(*sides, num_permutations=num_permutations, seed=seed)


def calibrate_prepared(
    a: Side, b: Side, *, num_permutations: int = 200, seed: int = 0
) -> Calibrated:
    """`calibrate` for sides that are prepared already, such as one encoder against many others.

    Args:
        a: from `alignment.prepare_side`.
        b: from `alignment.prepare_side`, with the same settings and items.
        num_permutations: size of the null, at least 19; 200 or more for a stable threshold.
        seed: of the permutations.

    Returns:
        The calibrated score; its `layers` are indices into the layers of the sides.

    Raises:
        ValueError: the sides differ in their settings or in the number of items, or
            num_permutations or seed is out of range.
    """
    check_num_permutations(num_permutations)
    check_seed(seed)
    scores = score_table(a, b)
    layers = best_pair(scores)
    score = float(scores[layers])
    n, metric = a.num_items, a.metric

    rng = np.random.default_rng(seed)
    null = permuted_maxima(a, b, np.stack([rng.permutation(n) for _ in range(num_permutations)]))
    if not (np.isfinite(scores).all() and np.isfinite(null).all()):
        raise ValueError(
            f"{metric} of these features is not finite: their values are too small or too large "
            "for float32; rescale them"
        )
    # ceil((1 - alpha)(K + 1)), in integers because .95 * 20 may round to above 19.
    rank = num_permutations + 1 - (num_permutations + 1) // _ONE_IN
    threshold = float(np.sort(null)[rank - 1])
    room = (a.k if metric == "lcs_knn" else 1) - threshold
    return Calibrated(
        score=score,
        layers=layers,
        chance=a.k / (n - 1) if metric == "mutual_knn" else float(null.mean()),
        p_value=(1 + int((null >= score).sum())) / (num_permutations + 1),
        # Where even wrong pairs reach the largest value, nothing can be told apart.
        calibrated=min(max((score - threshold) / room, 0.0), 1.0) if room > 0 else 0.0,
        threshold=threshold,
        table=scores,
        null=null,
        n=n,
        k=a.k if a.neighbors else None,
        metric=metric,
        clip=a.clip,
        num_permutations=num_permutations,
        seed=seed,
    )


def check_num_permutations(num_permutations: int) -> None:
    """Raises ValueError where a null of this size is of no use."""
    if num_permutations < _ONE_IN - 1:
        raise ValueError(
            f"num_permutations={num_permutations} cannot resolve the level {1 / _ONE_IN}; use at "
            f"least {_ONE_IN - 1}, better 200"
        )
    if num_permutations > _MOST_PERMUTATIONS:
        raise ValueError(
            f"num_permutations={num_permutations} would not end; use at most {_MOST_PERMUTATIONS}"
        )


def paired_p_value(
    a: Side, other: Side, b: Side, *, num_permutations: int = 2000, seed: int = 0
) -> float:
    """Tests whether `a` is better aligned with `b` than `other` is, by mutual k-NN.

    One-sided sign-flip test over items: were `a` and `other` exchangeable, the difference between
    the shares of neighbours that they have in common with `b` would have either sign at each item
    with equal probability. Items share neighbours, so they are not quite independent, as the test
    takes them to be.

    Args:
        a: one layer, prepared for mutual_knn, see `alignment.prepare_side`.
        other: likewise, of the same items.
        b: likewise.
        num_permutations: random sign flips, at least 1.
        seed: of the flips.

    Returns:
        (1 + #{flipped mean >= mean}) / (num_permutations + 1).

    Raises:
        ValueError: the sides have more than one layer, another metric, or differ in their settings
            or in the number of items; num_permutations or seed is out of range.
    """
    if not 1 <= num_permutations <= _MOST_PERMUTATIONS:
        raise ValueError(f"num_permutations={num_permutations} must be in 1..{_MOST_PERMUTATIONS}")
    check_seed(seed)
    for side in (a, other, b):
        if side.num_layers != 1 or side.metric != "mutual_knn":
            raise ValueError(
                f"{side.name} has {side.num_layers} layers, prepared for {side.metric}: the test "
                "compares one layer of each side by mutual_knn; select one"
            )
    difference = _shared_by_item(a, b) - _shared_by_item(other, b)
    rng = np.random.default_rng(seed)
    reached, rows = 0, max(1, _SIGN_ELEMENTS // len(difference))
    for start in range(0, num_permutations, rows):
        count = min(rows, num_permutations - start)
        signs = rng.choice([-1.0, 1.0], (count, len(difference)))
        # Whole numbers: a flip that changes nothing counts as equal, whatever the order of the sum.
        reached += int((signs @ difference >= difference.sum()).sum())
    return (1 + reached) / (num_permutations + 1)


def _shared_by_item(a: Side, b: Side) -> np.ndarray:
    """[N] float64: the number of neighbours of each item that both sides have in common."""
    check_comparable(a, b)
    x, y = (np.asarray(side.prepared.indices[0]) for side in (a, b))
    return sum((entry == y).sum(axis=0) for entry in x).astype(np.float64)
