"""How often the true partner of an item is found: FOSCTTM, R@k and median rank."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from platojax.evaluation.alignment import check_rows, check_seed
from platojax.evaluation.neighbors import unit_rows
from platojax.evaluation.rotation import paired_rows, procrustes

RECALL_AT = (1, 5, 10)
# Similarities held at once: 64 MiB.
_BLOCK_ELEMENTS = 2**24


@dataclasses.dataclass(frozen=True)
class Retrieval:
    """Retrieval among n candidates, from x to y and from y to x.

    The rank of a true partner is 1 + the number of candidates with a larger cosine + half the
    number of other candidates with the same one: what ties get on average in a random order. An
    encoder that maps everything to one point is therefore at chance.

    Attributes:
        n: number of candidates.
        foscttm: fraction of samples closer than the true match, the mean of (rank - 1) / (n - 1)
            over items and both directions (Singh et al., 2020): 0 is perfect, .5 is chance.
        recall_xy: R@k for k = 1, 5, 10 from x to y: the share of ranks of at most k.
        recall_yx: the same from y to x.
        median_rank_xy: from x to y, 1 is perfect.
        median_rank_yx: from y to x.
    """

    n: int
    foscttm: float
    recall_xy: dict[int, float]
    recall_yx: dict[int, float]
    median_rank_xy: float
    median_rank_yx: float

    @property
    def chance(self) -> "Retrieval":
        """The expectation of each number where the partners are random: R@k is k / n."""
        recall = {k: min(k / self.n, 1.0) for k in RECALL_AT}
        median = (self.n + 1) / 2
        return Retrieval(self.n, 0.5, recall, recall, median, median)

    def to_json(self) -> dict[str, Any]:
        """The numbers and their chance levels, as values that JSON knows."""
        return _to_json(self) | {"chance": _to_json(self.chance)}


def _to_json(retrieval: Retrieval) -> dict[str, Any]:
    values = dataclasses.asdict(retrieval)
    for name in ("recall_xy", "recall_yx"):
        values[name] = {str(k): share for k, share in values[name].items()}
    return values


def retrieval(x: ArrayLike, y: ArrayLike) -> Retrieval:
    """Ranks all rows of y for each row of x, and the other way, by cosine.

    Computed in blocks of rows: no array of items x items is kept.

    Args:
        x: [M, D] features, in the same space as y.
        y: [M, D] features; row i is the true partner of row i of x.

    Returns:
        FOSCTTM, R@k and median ranks.

    Raises:
        ValueError: a side is not finite, has more than one layer or fewer than two items, holds an
            item of zeros or is the same for all items; the shapes differ.
    """
    x, y = paired_rows(x, y)
    if x.shape[1] != y.shape[1]:
        raise ValueError(
            f"x has width {x.shape[1]} and y has width {y.shape[1]}: map x into y's space first, "
            "see rotation.procrustes"
        )
    check_rows("x", x)
    check_rows("y", y)
    units = [unit_rows(jnp.asarray(side)) for side in (x, y)]
    ranks_xy, ranks_yx = np.asarray(_ranks(*units)), np.asarray(_ranks(*units[::-1]))
    both = np.concatenate([ranks_xy, ranks_yx])
    return Retrieval(
        n=len(x),
        foscttm=float(np.mean((both - 1) / (len(x) - 1))),
        recall_xy=_recall(ranks_xy),
        recall_yx=_recall(ranks_yx),
        median_rank_xy=float(np.median(ranks_xy)),
        median_rank_yx=float(np.median(ranks_yx)),
    )


def held_out_retrieval(x: ArrayLike, y: ArrayLike, *, seed: int = 0) -> Retrieval:
    """Fits a rotation on one half of the items and measures retrieval on the other.

    Both spaces are centred by the mean of the first half alone, see `rotation.procrustes`.

    Args:
        x: [N, Dx] features.
        y: [N, Dy] features of the same items in the same order.
        seed: of the split into disjoint halves of N // 2 and N - N // 2 items.

    Returns:
        The retrieval among the N - N // 2 items that the rotation has not seen.

    Raises:
        ValueError: as `rotation.procrustes`, there are fewer than four items, or seed is negative.
    """
    check_seed(seed)
    x, y = paired_rows(x, y)
    if len(x) < 4:
        raise ValueError(f"{len(x)} items are too few to be split: needed are at least 4")
    order = np.random.default_rng(seed).permutation(len(x))
    fit, held_out = order[: len(x) // 2], order[len(x) // 2 :]
    rotation = procrustes(x[fit], y[fit])
    return retrieval(rotation.apply(x[held_out]), rotation.target(y[held_out]))


def _recall(ranks: np.ndarray) -> dict[int, float]:
    return {k: float(np.mean(ranks <= k)) for k in RECALL_AT}


@jax.jit
def _ranks(queries: Array, candidates: Array) -> Array:
    """[M] float32: the rank of row i of the candidates for row i of the queries."""
    n = len(queries)
    rows = min(n, max(1, _BLOCK_ELEMENTS // n))
    # The last block begins early enough to end with the items.
    starts = np.minimum(np.arange(0, n, rows), n - rows)

    def rank(start: Array) -> Array:
        block = lax.dynamic_slice_in_dim(queries, start, rows)
        similarities = jnp.matmul(block, candidates.T, precision=lax.Precision.HIGHEST)
        places = start + jnp.arange(rows)
        # From the same product, so that copies of the true partner tie with it exactly.
        true = jnp.take_along_axis(similarities, places[:, None], axis=1)
        higher = jnp.sum(similarities > true, axis=1)
        others = jnp.sum(similarities == true, axis=1) - 1
        return 1 + higher + others / 2

    ranks = lax.map(rank, jnp.asarray(starts, jnp.int32))
    items = np.arange(n)
    return ranks[items // rows, items - starts[items // rows]]
