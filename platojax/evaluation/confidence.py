"""A confidence interval of a score, from subsamples of the items.

Items are drawn without replacement: the duplicates of a bootstrap would be each other's nearest
neighbours on both sides, and agree.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jax import Array, lax
from jax.typing import ArrayLike

from platojax.evaluation.alignment import (
    METRICS,
    Metric,
    Side,
    alignment,
    as_layers,
    best_pair,
    check_same_number,
    check_seed,
    check_settings,
    prepare_sides,
    score_table,
)

# Share of the items in a subsample. In simulations with 80 to 1,000 items, mutual_knn and k = 10,
# intervals of nominally 95% covered 97-99% at halves, their standard errors being 1.3 to 1.4 times
# the true one, and up to 1.5 times where .95 of the items are kept. With fewer items, k is too much
# of the halves: the ratio was 1.1 with 60 items, .9 with 44 and .2 with 24.
FRACTION = 0.5

# The k nearest of a subsample are the first k of longer lists that are in it. This share of the
# calls finds a list too short, and searches again for twice as many neighbours.
_RUNS_TOO_SHORT = 1e-3


@dataclasses.dataclass(frozen=True)
class ScoreInterval:
    """A score and its confidence interval.

    Attributes:
        score: the maximum over the pairs of layers, of all items.
        low: lower end of the interval.
        high: upper end.
        level: the nominal coverage.
        standard_error: half the interval's length is this times the normal quantile.
        num_subsamples: how many were scored.
        fraction: share of the items in each.
        layers: (i, j), the layers that attain the score; the subsamples are scored at these alone.
        n: number of items.
        k: number of neighbours, the same in subsamples; None where the metric has none.
        metric: name of the metric.
        seed: of the subsamples.
    """

    score: float
    low: float
    high: float
    level: float
    standard_error: float
    num_subsamples: int
    fraction: float
    layers: tuple[int, int]
    n: int
    k: int | None
    metric: str
    seed: int

    def to_json(self) -> dict[str, Any]:
        """All fields, as values that JSON knows."""
        return dataclasses.asdict(self) | {"layers": list(self.layers)}


def confidence_interval(
    a: ArrayLike,
    b: ArrayLike,
    *,
    metric: Metric = "mutual_knn",
    k: int = 10,
    level: float = 0.95,
    num_subsamples: int = 200,
    fraction: float = FRACTION,
    seed: int = 0,
) -> ScoreInterval:
    """The interval in which the score would fall for other items of the same kind, as many.

    Delete-d jackknife (Shao and Wu, Annals of Statistics 17, 1989, section 2): with subsamples of
    m = n - d of the n items,

        standard_error^2 = m / d * mean over subsamples of (score - mean score)^2,

    and the interval is score -+ the normal quantile times standard_error. It is for the pair of
    layers that attains the maximum, taken as given: the choice of the layers is not repeated in the
    subsamples. k is fixed, so that subsamples score higher than all items do; only their spread is
    used. To clip outliers, do so first, to the threshold of all items: see
    `alignment.clip_outliers`.

    Subsamples of a neighbour metric must have at least 4 k items. In smaller ones most items are
    neighbours of most others, whatever the features: their scores hardly differ, and the interval
    would be too short (of k + 1 items every score is 1, and the interval is empty). From there on
    the jackknife's variance is biased upwards (Efron and Stein, Annals of Statistics 9, 1981): the
    interval is somewhat too long, the more so the fewer items are left out.

    Args:
        a: [N, La, Da] or [N, Da] features.
        b: [N, Lb, Db] or [N, Db] features of the same items in the same order.
        metric: see `alignment`.
        k: neighbours.
        level: nominal coverage, between 0 and 1.
        num_subsamples: at least 2; the standard error's own relative error is about
            1 / sqrt(2 num_subsamples).
        fraction: share of the items in a subsample, between 0 and 1.
        seed: of the subsamples; the same seed gives the same numbers.

    Returns:
        The interval. The neighbour metrics take it from one search, whatever num_subsamples is.

    Raises:
        ValueError: as `alignment`, or level, num_subsamples, fraction or seed is out of range, or
            the subsamples have too few items.
    """
    spec = check_settings(metric, k)
    check_num_subsamples(num_subsamples)
    check_seed(seed)
    _check_shares(level, fraction)
    features = [as_layers(name, x) for name, x in (("a", a), ("b", b))]
    n = len(features[0])
    check_same_number("a", n, "b", len(features[1]))
    size = _subsample_size(n, fraction, metric, k)
    length = _list_length(n, size, k, num_subsamples) if spec.uses_neighbors else k
    sides = prepare_sides(*features, metric=metric, k=length, clip="none")
    table = score_table(*(side.with_k(k) for side in sides) if spec.uses_neighbors else sides)
    layers = best_pair(table)
    x, y = (side[:, [layer]] for side, layer in zip(features, layers, strict=True))
    best = [side.select([layer]) for side, layer in zip(sides, layers, strict=True)]

    rng = np.random.default_rng(seed)
    subsets = np.stack([np.sort(rng.choice(n, size, replace=False)) for _ in range(num_subsamples)])
    if spec.uses_neighbors:
        scores = _scores_from_lists(x, y, best, subsets, k)
    else:
        scores = np.array([alignment(x[s], y[s], metric=metric)[0, 0] for s in subsets])
    score = float(table[layers])
    standard_error = math.sqrt(size / (n - size) * float(np.var(scores, dtype=np.float64)))
    half = statistics.NormalDist().inv_cdf((1 + level) / 2) * standard_error
    return ScoreInterval(
        score=score,
        low=score - half,
        high=score + half,
        level=level,
        standard_error=standard_error,
        num_subsamples=num_subsamples,
        fraction=fraction,
        layers=layers,
        n=n,
        k=k if spec.uses_neighbors else None,
        metric=metric,
        seed=seed,
    )


def check_num_subsamples(num_subsamples: int) -> None:
    """Raises ValueError where so few subsamples have no spread."""
    if num_subsamples < 2:
        raise ValueError(f"num_subsamples={num_subsamples} must be at least 2, better 200")


def _check_shares(level: float, fraction: float) -> None:
    for setting, value in (("level", level), ("fraction", fraction)):
        if not 0 < value < 1:
            raise ValueError(f"{setting}={value} must be between 0 and 1")


def _subsample_size(n: int, fraction: float, metric: Metric, k: int) -> int:
    spec = METRICS[metric]
    size, least = round(fraction * n), spec.least_subsample(k)
    if not least <= size < n:
        with_k, smaller_k = (
            (f" with k={k}", ", or a smaller k") if spec.uses_neighbors else ("", "")
        )
        raise ValueError(
            f"fraction={fraction} of {n} items is {size}: subsamples for {metric}{with_k} must "
            f"have at least {least} and fewer than {n} items; change the fraction, or use more "
            f"items{smaller_k}"
        )
    return size


def _scores_from_lists(
    x: np.ndarray, y: np.ndarray, sides: Sequence[Side], subsets: np.ndarray, k: int
) -> np.ndarray:
    """[P] scores of the subsets [P, m] of one layer of each side, which x and y hold again."""
    a, b = sides
    while True:
        scores, enough = _subset_scores(a.neighbors, b.neighbors, subsets, a.metric, k)
        if enough:
            return np.asarray(scores)
        length = min(2 * a.k, a.num_items - 1)
        a, b = prepare_sides(x, y, metric=a.metric, k=length, clip="none")


def _list_length(n: int, size: int, k: int, num_subsamples: int) -> int:
    """How long lists must be for k entries of each to be in the subsample, nearly always."""
    length = k
    # Of the n - 1 others, size - 1 are in the subsample of an item.
    while length < n - 1 and (
        scipy.stats.hypergeom.cdf(k - 1, n - 1, size - 1, length) * size * num_subsamples
        > _RUNS_TOO_SHORT
    ):
        length = min(length + 1 + length // 10, n - 1)
    return length


@functools.partial(jax.jit, static_argnames=("metric", "k"))
def _subset_scores(
    a: Any, b: Any, subsets: ArrayLike, metric: Metric, k: int
) -> tuple[Array, Array]:
    """The score of each subset, and whether all lists were long enough."""
    spec = METRICS[metric]

    def score(items: Array) -> tuple[Array, Array]:
        prepared, enough = [], []
        for indices, similarities in (a, b):
            *lists, full = _within(indices[0], similarities[0], items, k)
            prepared.append(jax.tree.map(lambda leaf: leaf[None], spec.prepare(*lists)))
            enough.append(full)
        return spec.compare(*prepared)[0, 0], enough[0] & enough[1]

    scores, enough = lax.map(score, subsets)
    return scores, jnp.all(enough)


def _within(
    indices: Array, similarities: Array, items: Array, k: int
) -> tuple[Array, Array, Array]:
    """The lists [K, N] as lists [k, m] among these m items, and whether they were long enough."""
    place = jnp.full(indices.shape[1], -1).at[items].set(jnp.arange(len(items)))
    places = place[indices[:, items]]
    inside = places >= 0
    # Selecting by rank is much faster than sorting by it.
    rank = jnp.where(inside, jnp.cumsum(inside, axis=0), 0)
    chosen = rank == jnp.arange(1, k + 1)[:, None, None]

    def select(entries: Array) -> Array:
        return jnp.sum(jnp.where(chosen, entries, 0), axis=1)

    enough = jnp.all(jnp.sum(inside, axis=0) >= k)
    return select(places), select(similarities[:, items]), enough
