"""Alignment scores that can be read: with their chance level, a p-value and a calibrated value.

A raw score grows with depth and width, because it is the maximum over all pairs of layers, and has
no natural zero. The permutation null of arXiv 2602.14486 (ICML 2026) repeats the whole computation,
maximum included, on pairs that are wrong.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from platojax.evaluation.alignment import METRICS, Clip, Metric, permuted_maxima, prepare, table
from platojax.evaluation.neighbors import nearest_neighbors, unit_rows

# The level of the test, 1/20: kept as a fraction so that the order statistic is exact.
_ONE_IN = 20
_MOST_PERMUTATIONS = 100_000


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
    if num_permutations < _ONE_IN - 1:
        raise ValueError(
            f"num_permutations={num_permutations} cannot resolve the level {1 / _ONE_IN}; use at "
            f"least {_ONE_IN - 1}, better 200"
        )
    if num_permutations > _MOST_PERMUTATIONS:
        raise ValueError(
            f"num_permutations={num_permutations} would not end; use at most {_MOST_PERMUTATIONS}"
        )
    if seed < 0:
        raise ValueError(f"seed={seed} must not be negative")
    pair = prepare(a, b, metric=metric, k=k, clip=clip)
    n = np.shape(a)[0]
    scores = np.asarray(table(pair, metric))
    best = np.unravel_index(np.argmax(scores), scores.shape)
    score = float(scores[best])

    rng = np.random.default_rng(seed)
    orders = [rng.permutation(n) for _ in range(num_permutations)]
    null = np.asarray(permuted_maxima(pair, jnp.asarray(np.stack(orders), jnp.int32), metric))
    if not (np.isfinite(scores).all() and np.isfinite(null).all()):
        raise ValueError(
            f"{metric} of these features is not finite: their values are too small or too large "
            "for float32; rescale them"
        )
    # ceil((1 - alpha)(K + 1)), in integers because .95 * 20 may round to above 19.
    rank = num_permutations + 1 - (num_permutations + 1) // _ONE_IN
    threshold = float(np.sort(null)[rank - 1])
    largest = k if metric == "lcs_knn" else 1
    room = largest - threshold
    return Calibrated(
        score=score,
        layers=(int(best[0]), int(best[1])),
        chance=k / (n - 1) if metric == "mutual_knn" else float(null.mean()),
        p_value=(1 + int((null >= score).sum())) / (num_permutations + 1),
        # Where even wrong pairs reach the largest value, nothing can be told apart.
        calibrated=min(max((score - threshold) / room, 0.0), 1.0) if room > 0 else 0.0,
        threshold=threshold,
        table=scores,
        null=null,
        n=n,
        k=k if METRICS[metric].uses_neighbors else None,
        metric=metric,
        clip=clip,
        num_permutations=num_permutations,
        seed=seed,
    )


def paired_p_value(
    a: ArrayLike,
    other: ArrayLike,
    b: ArrayLike,
    *,
    k: int = 10,
    num_permutations: int = 2000,
    seed: int = 0,
) -> float:
    """Tests whether `a` is better aligned with `b` than `other` is, by mutual k-NN.

    One-sided sign-flip test over items: were `a` and `other` exchangeable, the difference between
    the shares of neighbours that they have in common with `b` would have either sign at each item
    with equal probability. Items share neighbours, so they are not quite independent, as the test
    takes them to be.

    Args:
        a: [N, D] features.
        other: [N, D'] features of the same items.
        b: [N, D''] features of the same items.
        k: neighbours.
        num_permutations: random sign flips.
        seed: of the flips.

    Returns:
        (1 + #{flipped mean >= mean}) / (num_permutations + 1).
    """
    indices = [
        np.asarray(nearest_neighbors(unit_rows(jnp.asarray(x)), k)[0]) for x in (a, other, b)
    ]
    shared = [(x[:, :, None] == indices[2][:, None]).sum((1, 2)) / k for x in indices[:2]]
    difference = shared[0] - shared[1]
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], (num_permutations, len(difference)))
    # A flip that changes nothing must count as equal, whatever the order of the sum.
    reached = (signs @ difference) >= difference.sum() - 1e-9
    return float(1 + reached.sum()) / (num_permutations + 1)
