"""How well two sets of features agree: a table of layers x layers for eight metrics.

The protocol is that of the Platonic Representation Hypothesis (Huh et al., arXiv 2405.07987), the
definitions are those of its published code: clip outliers, scale every item of every layer to unit
length, compare each layer of one encoder with each layer of the other. A score is the maximum of
the table; `calibration.calibrate` adds what is needed to read it (chance, p-value).

Every metric works in two steps. `prepare_side` does the expensive part once per layer (the
neighbour search, the kernel, the singular vectors) and returns a `Side`; `score_table` compares all
layers of two sides. A side serves any number of partners, and what has been prepared can be
permuted: the same arrays with the items in another order, at no new search, which is what makes a
permutation null cheap.
"""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from platojax.evaluation.features import as_float32
from platojax.evaluation.neighbors import nearest_neighbors, unit_rows

Metric = Literal[
    "mutual_knn",
    "cycle_knn",
    "lcs_knn",
    "cka",
    "unbiased_cka",
    "cknna",
    "svcca",
    "procrustes",
]
Clip = Literal["none", "exact", "mean"]

_CLIP_QUANTILE = 0.95
# Magnitudes looked at together for the quantile: features may be larger than the memory.
_CLIP_ELEMENTS = 2**24
_SVCCA_COMPONENTS = 10
# The published code adds this to the denominators of cka, unbiased_cka and cknna.
_DENOMINATOR_EPS = 1e-6
# Two float32 directions with this cosine cannot be told apart: it is rounding away from 1.
_SAME_COSINE = 1 - 5e-7
# Up to this many items the kernels themselves are kept (16 MiB a layer), because many layers are
# then compared at the price of few; beyond it only features, and no array of items x items.
_GRAM_ITEMS = 2048

_matmul = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)


class CopiesWarning(UserWarning):
    """Items have so many copies that their neighbours follow the order of the items."""


def alignment(
    a: ArrayLike, b: ArrayLike, *, metric: Metric = "mutual_knn", k: int = 10, clip: Clip = "none"
) -> np.ndarray:
    """Scores every layer of `a` against every layer of `b`; row i of both is the same item.

    | metric | value (all layers scaled to unit rows first) | range |
    |---|---|---|
    | mutual_knn | shared neighbours / k, averaged over items | 0..1, chance k/(N-1) |
    | cycle_knn | share of items among the a-neighbours of their own b-neighbours | 0..1 |
    | lcs_knn | mean longest common subsequence of the two ordered neighbour lists | 0..k |
    | cka | centred kernel alignment of the linear kernels | 0..1 |
    | unbiased_cka | the same with the unbiased HSIC of Song et al. (JMLR 2012, eq. 5) | ..1 |
    | cknna | unbiased kernel alignment on the neighbours shared by both sides | ..1 |
    | svcca | mean canonical correlation of the first 10 singular vectors | 0..1 |
    | procrustes | cosine after the best rotation | 0..1 |

    Neighbours are exact, by cosine, self excluded; of equal similarities the lower index comes
    first (on both sides, so duplicated items agree with themselves). svcca standardises the
    columns and leaves out components without variance. procrustes is the nuclear norm of X^T Y for
    X and Y centred and scaled to unit Frobenius norm: the largest <X Q, Y> over Q with orthonormal
    rows or columns, 1 where the two differ by a rotation, a shift and a scale; 1 - procrustes^2 is
    the disparity of `scipy.spatial.procrustes`. It costs one singular value decomposition per pair
    of layers. cknna is not quite symmetric in a and b, as published, and 0 where its normalisation
    is not positive.

    Clipping, over the whole of each side: `exact` to the .95 quantile of all magnitudes, `mean` to
    the mean over items of each item's .95 quantile.

    Args:
        a: [N, La, Da] features of any real dtype, computed with in float32; [N, Da] is one layer.
        b: [N, Lb, Db] likewise.
        metric: one of the table above.
        k: neighbours; only for the *_knn metrics and cknna.
        clip: none, exact or mean.

    Returns:
        [La, Lb] float32.

    Raises:
        ValueError: a setting is unknown or out of range; the numbers of items differ; there are
            too few items; features are not finite; an item is all zeros (it has no direction); a
            layer is the same for all items (it has no neighbours).
    """
    sides = prepare_sides(a, b, metric=metric, k=k, clip=clip)
    return score_table(*sides)


class Prepared(Protocol):
    """What a metric keeps of one side; every array leads with the layer."""

    def permuted(self, order: Array) -> Any:
        """The same for the items in another order: item i is what item order[i] was."""


@dataclasses.dataclass(frozen=True, eq=False)
class Side:
    """One encoder's features, checked and searched, to be compared with any number of others.

    Attributes:
        name: what messages call it.
        metric: the metric it was prepared for.
        k: number of neighbours.
        clip: how outliers were clipped.
        clip_threshold: the magnitude that they were clipped to; infinite for none.
        num_items: N.
        layer_numbers: the place of each layer in the features.
        prepared: what the metric keeps of the layers, a tree of arrays that lead with the layer.
        neighbors: indices int32 and similarities float32, both [L, k, N], nearest first; None where
            the metric uses no neighbours.
    """

    name: str
    metric: Metric
    k: int
    clip: Clip
    clip_threshold: float
    num_items: int
    layer_numbers: tuple[int, ...]
    prepared: Any
    neighbors: tuple[Array, Array] | None

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.layer_numbers)

    def select(self, layers: Sequence[int]) -> "Side":
        """The side with only these layers, in this order.

        Args:
            layers: indices into the layers of this side, at least one.

        Raises:
            ValueError: there are none, or one is out of range.
        """
        chosen = np.asarray(_resolved(self.name, layers, self.num_layers))
        prepared, neighbors = jax.tree.map(lambda x: x[chosen], (self.prepared, self.neighbors))
        return dataclasses.replace(
            self,
            layer_numbers=tuple(self.layer_numbers[layer] for layer in chosen),
            prepared=prepared,
            neighbors=neighbors,
        )

    def with_k(self, k: int) -> "Side":
        """The side with the first k neighbours of each list: no new search.

        Args:
            k: at most the k that the side was prepared with.

        Raises:
            ValueError: the metric has no neighbours, or k is out of range.
        """
        spec = check_settings(self.metric, k)
        if self.neighbors is None:
            raise ValueError(f"{self.metric} has no k; choose one of {_with_neighbors()}")
        if k > self.k:
            raise ValueError(
                f"k={k} is more than the {self.k} neighbours that {self.name} was prepared with; "
                "prepare it with the largest k"
            )
        layers = []
        for number, *found in zip(self.layer_numbers, *self.neighbors, strict=True):
            indices, similarities = (x[:k] for x in found)
            _check_neighbors(_where(number, self.name), np.asarray(similarities[-1]), k)
            layers.append((spec.prepare(indices, similarities), (indices, similarities)))
        prepared, neighbors = _stack(layers)
        return dataclasses.replace(self, k=k, prepared=prepared, neighbors=neighbors)


def prepare_side(
    name: str,
    x: ArrayLike,
    *,
    metric: Metric = "mutual_knn",
    k: int = 10,
    clip: Clip = "none",
    layers: Sequence[int] | None = None,
) -> Side:
    """Checks one encoder's features and does the expensive part once per layer.

    Features that are memory-mapped are read layer by layer, and never copied as a whole.

    Args:
        name: what messages call this side.
        x: [N, L, D] or [N, D] features, as in `alignment`.
        metric: see `alignment`.
        k: neighbours.
        clip: none, exact or mean.
        layers: indices of the layers that count, also for clipping; None for all.

    Returns:
        The side; two of them, with the same settings and items, go into `score_table`.

    Raises:
        ValueError: as `alignment`, for this side; `layers` is empty or out of range.
    """
    check_settings(metric, k, clip)
    array = as_layers(name, x)
    everything = range(array.shape[1])
    numbers = everything if layers is None else _resolved(name, layers, len(everything))
    return _prepare_side(name, array, numbers, metric, k, clip)


def prepare_sides(
    a: ArrayLike, b: ArrayLike, *, metric: Metric, k: int, clip: Clip
) -> tuple[Side, Side]:
    """Prepares both sides, checked against each other before any search.

    Args:
        a: [N, La, Da] or [N, Da].
        b: [N, Lb, Db] or [N, Db].
        metric: see `alignment`.
        k: neighbours.
        clip: none, exact or mean.

    Raises:
        ValueError: as `alignment`.
    """
    check_settings(metric, k, clip)
    layers_a, layers_b = as_layers("a", a), as_layers("b", b)
    check_same_number("a", len(layers_a), "b", len(layers_b))
    return (
        _prepare_side("a", layers_a, range(layers_a.shape[1]), metric, k, clip),
        _prepare_side("b", layers_b, range(layers_b.shape[1]), metric, k, clip),
    )


def score_table(a: Side, b: Side) -> np.ndarray:
    """Scores every layer of a against every layer of b.

    Args:
        a: one side.
        b: the other; row i of both is the same item.

    Returns:
        [La, Lb] float32.

    Raises:
        ValueError: the sides differ in their settings or in the number of items.
    """
    check_comparable(a, b)
    return np.asarray(_table(a.prepared, b.prepared, a.metric))


def best_pair(table: np.ndarray) -> tuple[int, int]:
    """The layers (i, j) with the largest score; the first in row order if tied.

    Args:
        table: [La, Lb].
    """
    i, j = np.unravel_index(np.argmax(table), table.shape)
    return int(i), int(j)


def permuted_maxima(a: Side, b: Side, orders: np.ndarray) -> np.ndarray:
    """The maximum of the table for each order of b's items, the same order in all layers.

    Neighbour lists are relabelled as they are: among exactly equal similarities they keep the
    order they were found in.

    Args:
        a: one side.
        b: the other.
        orders: [P, N] int; each row a permutation of the items.

    Returns:
        [P] float32.

    Raises:
        ValueError: as `score_table`.
    """
    check_comparable(a, b)
    return np.asarray(
        _permuted_maxima(a.prepared, b.prepared, jnp.asarray(orders, jnp.int32), a.metric)
    )


def check_comparable(a: Side, b: Side) -> None:
    """Raises ValueError where the sides differ in their settings or in the number of items."""
    check_same_number(a.name, a.num_items, b.name, b.num_items)
    for setting in ("metric", "clip", *(["k"] if a.neighbors else [])):
        values = getattr(a, setting), getattr(b, setting)
        if values[0] != values[1]:
            raise ValueError(
                f"{a.name} was prepared with {setting}={values[0]!r} and {b.name} with "
                f"{setting}={values[1]!r}: prepare both alike"
            )


def check_same_number(name_a: str, n_a: int, name_b: str, n_b: int) -> None:
    """Raises ValueError where the numbers of items differ."""
    if n_a != n_b:
        raise ValueError(
            f"{name_a} has {n_a} items and {name_b} has {n_b}: row i of both must be the same "
            "item; extract both from the same items in the same order"
        )


def check_settings(metric: str, k: int, clip: str = "none") -> "_Metric":
    """Returns the metric's definition, or raises ValueError naming the setting and the choices."""
    if metric not in METRICS:
        raise ValueError(f"metric={metric!r} is unknown; choose one of {', '.join(METRICS)}")
    if clip not in get_args(Clip):
        raise ValueError(f"clip={clip!r} is unknown; choose one of {', '.join(get_args(Clip))}")
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < METRICS[metric].min_k:
        raise ValueError(f"k={k!r} must be an integer of at least {METRICS[metric].min_k}")
    return METRICS[metric]


def check_seed(seed: int) -> None:
    """Raises ValueError where the seed is negative."""
    if seed < 0:
        raise ValueError(f"seed={seed} must not be negative")


def as_layers(name: str, x: ArrayLike) -> np.ndarray:
    """Checks features and brings them to one form.

    Integers, booleans and other floating formats become float32, the format of all arithmetic.

    Args:
        name: what errors call the features.
        x: [N, L, D], or [N, D] for one layer.

    Returns:
        [N, L, D] float32 on the host; a view where `x` is that already.

    Raises:
        ValueError: the shape or the dtype is another, or a value is not finite as float32; the
            message names the side, the place and the fix.
    """
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise ValueError(
            f"{name} is no array ({error}); give every item the same number of layers and channels"
        ) from error
    if array.ndim == 2:
        array = array[:, None, :]
    if array.ndim != 3 or 0 in array.shape:
        raise ValueError(
            f"{name} has shape {np.shape(x)}; needed are [items, layers, width] or [items, width], "
            "none of them 0"
        )
    return as_float32(array, name)


def clip_outliers(name: str, x: np.ndarray, clip: Clip) -> np.ndarray:
    """Clips all layers of one side to the threshold of the protocol, see `alignment`.

    For what takes no `clip` itself (intervals, curves, controls): clip all layers and all items
    first, so that their threshold holds also where few of them are looked at.

    Args:
        name: what errors call the features.
        x: [N, L, D] float32.
        clip: none, exact or mean.

    Returns:
        [N, L, D] float32; `x` itself for none.

    Raises:
        ValueError: clipping would set everything to 0.
    """
    threshold = _clip_threshold(name, x, range(x.shape[1]), clip)
    return x if threshold == math.inf else np.clip(x, -threshold, threshold)


def _clip_threshold(name: str, x: np.ndarray, layers: Sequence[int], clip: Clip) -> float:
    """The magnitude to clip these layers to, found block by block on the host."""
    if clip == "none":
        return math.inf
    if clip == "mean":
        blocks = (block.reshape(len(block), -1) for block in _magnitudes(x, layers))
        quantiles = [np.quantile(block, _CLIP_QUANTILE, axis=1) for block in blocks]
        threshold = float(np.mean(np.concatenate(quantiles)))
    else:
        rank = int(_CLIP_QUANTILE * len(x) * len(layers) * x.shape[2])
        threshold = _order_statistic(lambda: _magnitudes(x, layers), rank)
    if threshold == 0:
        raise ValueError(
            f"clip={clip!r} sets all of {name} to 0: more than 95% of its values are 0; "
            "use clip='none'"
        )
    return threshold


def _magnitudes(x: np.ndarray, layers: Sequence[int]) -> Iterator[np.ndarray]:
    """Blocks [n, L, D] of the magnitudes of these layers."""
    rows = max(1, _CLIP_ELEMENTS // (len(layers) * x.shape[2]))
    for start in range(0, len(x), rows):
        yield np.abs(x[start : start + rows, list(layers)])


def _order_statistic(blocks: Callable[[], Iterator[np.ndarray]], rank: int) -> float:
    """The float32 that comes after `rank` others in the order of all magnitudes.

    Magnitudes are ordered as their bits are, so that one pass that counts finds the upper half of
    the bits, and a second one the lower half: nothing is sorted or kept.
    """
    bits = (block.view(np.uint32).ravel() for block in blocks())
    upper, rank = _find(_count(block >> 16 for block in bits), rank)
    bits = (block.view(np.uint32).ravel() for block in blocks())
    lower, _ = _find(_count(block[block >> 16 == upper] & 0xFFFF for block in bits), rank)
    return float(np.uint32(upper << 16 | lower).view(np.float32))


def _count(halves: Iterable[np.ndarray]) -> np.ndarray:
    """[2**16] how often each half of the bits occurs."""
    counts = np.zeros(2**16, np.int64)
    for half in halves:
        counts += np.bincount(half, minlength=2**16)
    return counts


def _find(counts: np.ndarray, rank: int) -> tuple[int, int]:
    """The value with this rank, and the rank among those that are equal to it."""
    value = int(np.searchsorted(np.cumsum(counts), rank, side="right"))
    return value, rank - int(counts[:value].sum())


def _prepare_side(
    name: str, x: np.ndarray, numbers: Sequence[int], metric: Metric, k: int, clip: Clip
) -> Side:
    spec = METRICS[metric]
    _check_number(name, len(x), spec, metric, k)
    threshold = _clip_threshold(name, x, numbers, clip)
    layers: list[Any] = []
    for number in numbers:
        where = _where(number, name)
        rows = np.clip(x[:, number], -threshold, threshold)
        check_rows(where, rows)
        unit = _unit_rows(rows)
        if spec.uses_neighbors:
            found = tuple(part.T for part in nearest_neighbors(unit, k))
            _check_neighbors(where, np.asarray(found[1][-1]), k)
            layers.append((spec.prepare(*found), found))
        else:
            layers.append((spec.prepare(unit), None))
    prepared, neighbors = _stack(layers)
    return Side(name, metric, k, clip, threshold, len(x), tuple(numbers), prepared, neighbors)


def _resolved(name: str, layers: Sequence[int], count: int) -> list[int]:
    """Indices of layers, those from the end counted from the beginning."""
    if not layers or not all(-count <= layer < count for layer in layers):
        raise ValueError(
            f"layers={list(layers)} of {name}: choose at least one, each in 0..{count - 1}"
        )
    return [range(count)[layer] for layer in layers]


def _stack(layers: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)


def _where(layer: int, name: str) -> str:
    return f"layer {layer} of {name}"


def _with_neighbors() -> str:
    return ", ".join(name for name, spec in METRICS.items() if spec.uses_neighbors)


_unit_rows = jax.jit(unit_rows)


def _check_number(name: str, n: int, spec: "_Metric", metric: Metric, k: int) -> None:
    least = spec.least_items(k)
    if n >= least:
        return
    raise ValueError(
        f"{name} has {n} items, which are too few: {metric}"
        + (f" with k={k}" if spec.uses_neighbors else "")
        + f" needs at least {least}; use more items"
        + (" or a smaller k" if least > spec.min_items else "")
    )


def check_rows(where: str, rows: np.ndarray) -> None:
    """Refuses rows without direction and layers without information."""
    magnitudes = np.maximum(rows.max(axis=1), -rows.min(axis=1))
    zeros = np.flatnonzero(magnitudes == 0)
    if len(zeros):
        raise ValueError(
            f"{where}: item {zeros[0]} is all zeros ({len(zeros)} such items), so it has no "
            "direction; leave these items out on both sides, or drop the layer"
        )
    smallest = np.finfo(np.float32).tiny
    tiny = np.flatnonzero(magnitudes < smallest)
    if len(tiny):
        raise ValueError(
            f"{where}: the values of item {tiny[0]} are all below {smallest:.1e} ({len(tiny)} such "
            "items), which float32 arithmetic takes for zero; rescale the features"
        )
    if len(rows) > 1 and (rows.max(axis=0) == rows.min(axis=0)).all():
        raise ValueError(
            f"{where} is the same for all {len(rows)} items (a class token before the first "
            "block?): drop the layer"
        )


def _check_neighbors(where: str, farthest: np.ndarray, k: int) -> None:
    """Looks for items whose neighbours are not determined by the features.

    Copies tie, and ties go to the lower index on both sides: such items agree by their order
    alone, which a permutation destroys, so that not even the null would show it.
    """
    copies = int((farthest >= _SAME_COSINE).sum())
    if copies == 0:
        return
    message = (
        f"{where}: for {copies} of {len(farthest)} items, k={k} or more other items have the same "
        "direction (to float32), so that their neighbours follow the order of the items; leave "
        "copies out on both sides, clip outliers, or drop the layer"
    )
    if copies == len(farthest):
        raise ValueError(message)
    warnings.warn(message, CopiesWarning, stacklevel=5)


@functools.partial(jax.jit, static_argnames="metric")
def _table(a: Any, b: Any, metric: Metric) -> Array:
    return METRICS[metric].compare(a, b)


@functools.partial(jax.jit, static_argnames="metric")
def _permuted_maxima(a: Any, b: Any, orders: Array, metric: Metric) -> Array:
    spec = METRICS[metric]
    b = spec.permutable(b)
    return lax.map(lambda order: jnp.max(spec.compare(a, b.permuted(order))), orders)


def _over_pairs(score: Callable[[Any, Any], Array]) -> Callable[[Any, Any], Array]:
    """Lifts a score of two layers to the table of all pairs, one pair at a time."""

    def compare(a: Any, b: Any) -> Array:
        return lax.map(lambda one: lax.map(lambda other: score(one, other), b), a)

    return compare


# Neighbour lists. Items are the last axis: comparing list entry by list entry then runs along
# contiguous memory.


class _Neighbors(NamedTuple):
    indices: Array  # [L, k, N] int32, nearest first

    def permuted(self, order: Array) -> "_Neighbors":
        return _Neighbors(jnp.argsort(order)[self.indices[..., order]])


def _prepare_neighbors(indices: Array, similarities: Array) -> _Neighbors:
    del similarities
    return _Neighbors(indices)


def _matches(a: Array, b: Array) -> Array:
    """[k, k, N]: is entry p of a's list entry q of b's?"""
    return a[:, None] == b[None]


class _Memberships(NamedTuple):
    """Neighbour lists of all layers as one table of bits, and the order the items are taken in."""

    words: (
        Array  # [ceil(L / 32), N, N] uint32: bit l of word w: is j in i's list in layer 32 w + l?
    )
    order: Array  # [N] int32
    layers: Array  # [L] int32

    def permuted(self, order: Array) -> "_Memberships":
        return self._replace(order=self.order[order])

    def shared(self, indices: Array) -> Array:
        """[L] int32: how many entries of the lists `indices` [k, N] are in those of each layer."""
        found = self.words[:, self.order, self.order[indices]]
        bits = found[self.layers // 32] >> (self.layers % 32).astype(jnp.uint32)[:, None, None]
        return jnp.sum(bits & 1, axis=(1, 2), dtype=jnp.int32)


def _memberships(x: _Neighbors) -> _Neighbors | _Memberships:
    """One look-up then answers for all layers; only where [N, N] words are as small as a kernel."""
    num_layers, _, n = x.indices.shape
    if n > _GRAM_ITEMS:
        return x
    layers = jnp.arange(num_layers)
    bits = jnp.uint32(1) << (layers % 32).astype(jnp.uint32)
    # Entries of a list are distinct, so that adding sets bits.
    words = jnp.zeros((-(-num_layers // 32), n, n), jnp.uint32)
    words = words.at[(layers // 32)[:, None, None], jnp.arange(n), x.indices].add(
        bits[:, None, None]
    )
    return _Memberships(words, jnp.arange(n), layers)


def _mutual_knn(a: _Neighbors, b: _Neighbors | _Memberships) -> Array:
    # Sums of integers: exact, so that permuted scores equal to the observed one compare equal.
    _, k, n = a.indices.shape
    if isinstance(b, _Memberships):
        shared = lax.map(b.shared, a.indices)
    else:
        shared = _over_pairs(lambda x, y: jnp.sum(_matches(x, y), dtype=jnp.int32))(
            a.indices, b.indices
        )
    return shared / (k * n)


def _cycle_knn(a: _Neighbors, b: _Neighbors) -> Array:
    back = a.indices[:, b.indices] == jnp.arange(a.indices.shape[1])
    return jnp.mean(jnp.any(back, axis=(0, 1)))


def _lcs_knn(a: _Neighbors, b: _Neighbors) -> Array:
    """The usual recurrence over prefixes, for all items at once, one row of its table at a time."""

    def extend(lengths: Array, entry: Array) -> tuple[Array, None]:
        diagonal = jnp.pad(lengths[:-1], ((1, 0), (0, 0)))
        row = jnp.where(entry == b.indices, diagonal + 1, lengths)
        return lax.cummax(row, axis=0), None

    lengths, _ = lax.scan(extend, jnp.zeros_like(b.indices), a.indices)
    return jnp.mean(lengths[-1].astype(jnp.float32))


class _WeightedNeighbors(NamedTuple):
    indices: Array  # [L, k, N] int32
    similarities: Array  # [L, k, N] float32
    reciprocal: Array  # [L, k, N] bool: is the item a neighbour of this neighbour of its?
    norm: Array  # [L] the layer's unbiased HSIC with itself

    def permuted(self, order: Array) -> "_WeightedNeighbors":
        return _WeightedNeighbors(
            jnp.argsort(order)[self.indices[..., order]],
            self.similarities[..., order],
            self.reciprocal[..., order],
            self.norm,
        )


@jax.jit
def _prepare_weighted_neighbors(indices: Array, similarities: Array) -> _WeightedNeighbors:
    reciprocal = jnp.any(indices[:, indices] == jnp.arange(indices.shape[1]), axis=0)
    layer = _WeightedNeighbors(indices, similarities, reciprocal, jnp.zeros(()))
    return layer._replace(norm=_local_hsic(layer, layer))


def _local_hsic(a: _WeightedNeighbors, b: _WeightedNeighbors) -> Array:
    """Unbiased HSIC of both kernels masked to the shared neighbours, from the lists alone.

    With K, L the masked kernels (zero diagonal, and not symmetric, because neighbourhood is not):
    (sum_ij K_ij L_ji + sum(K) sum(L) / ((n-1)(n-2)) - 2 sum(K L) / (n-2)) / (n (n-3)).
    K_ij L_ji is nonzero only where i and j are neighbours of each other on both sides.
    """
    n = a.indices.shape[1]
    shared = _matches(a.indices, b.indices)
    kernel_a = jnp.where(jnp.any(shared, axis=1), a.similarities, 0)
    kernel_b = jnp.where(jnp.any(shared, axis=0), b.similarities, 0)
    mutual_a = jnp.where(a.reciprocal, a.similarities, 0)
    mutual_b = jnp.where(b.reciprocal, b.similarities, 0)
    trace = jnp.sum(jnp.where(shared, mutual_a[:, None] * mutual_b[None], 0))
    # sum(K L) = sum_ij K_ij (row sum j of L), a look-up at the neighbours of i.
    product = jnp.sum(kernel_a * jnp.sum(kernel_b, axis=0)[a.indices])
    sums = jnp.sum(kernel_a) * jnp.sum(kernel_b)
    return (trace + sums / ((n - 1) * (n - 2)) - 2 * product / (n - 2)) / (n * (n - 3))


def _cknna(a: _WeightedNeighbors, b: _WeightedNeighbors) -> Array:
    norm = a.norm * b.norm
    score = _local_hsic(a, b) / (jnp.sqrt(jnp.maximum(norm, 0)) + _DENOMINATOR_EPS)
    return jnp.where(norm > 0, score, 0)


# Kernel alignment. Centring the features centres the kernel, K_c = H K H, and leaves the unbiased
# HSIC as it is (it ignores what is added to whole rows and columns), with less cancellation.


class _Kernels(NamedTuple):
    values: Array  # [L, N, N]: the centred kernels, or [L, N, D]: the centred features
    diagonal: Array  # [L, N]
    square: Array  # [L]: sum of the squared entries of the kernel

    @property
    def is_gram(self) -> bool:
        return self.diagonal.shape[-1] <= _GRAM_ITEMS

    def permuted(self, order: Array) -> "_Kernels":
        values = self.values[:, order]
        if self.is_gram:
            values = values[:, :, order]
        return _Kernels(values, self.diagonal[:, order], self.square)


@jax.jit
def _prepare_kernel(x: Array) -> _Kernels:
    x = x - jnp.mean(x, axis=0)
    gram = len(x) <= _GRAM_ITEMS
    values = _matmul(x, x.T) if gram else x
    square = jnp.sum((values if gram else _matmul(x.T, x)) ** 2)
    return _Kernels(values, jnp.sum(x * x, axis=1), square)


def _kernel_products(a: _Kernels, b: _Kernels) -> Array:
    """[La, Lb]: sum_ij K_ij L_ij for all pairs; with features, K = X X^T, it is |X^T Y|^2."""
    if a.is_gram:
        # Sums of rows first: quicker on CPU than one matrix product with two rows of N^2 entries.
        return lax.map(lambda x: jnp.sum(jnp.sum(x * b.values, axis=1), axis=1), a.values)
    return _over_pairs(lambda x, y: jnp.sum(_matmul(x.T, y) ** 2))(a.values, b.values)


def _cka(a: _Kernels, b: _Kernels) -> Array:
    norms = jnp.sqrt(a.square[:, None] * b.square)
    return _kernel_products(a, b) / (norms + _DENOMINATOR_EPS)


def _unbiased_hsic(
    product: Array, diagonals: Array, trace_a: Array, trace_b: Array, n: int
) -> Array:
    """Song et al. (JMLR 2012), equation 5, for centred kernels.

    Their rows sum to zero, so off the diagonal to minus the diagonal: beside the product of the
    kernels (sum_ij K_ij L_ij) only the product of the diagonals and the traces are left.
    """
    total = product - n / (n - 2) * diagonals + trace_a * trace_b / ((n - 1) * (n - 2))
    return total / (n * (n - 3))


def _unbiased_cka(a: _Kernels, b: _Kernels) -> Array:
    n = a.diagonal.shape[-1]
    traces_a, traces_b = jnp.sum(a.diagonal, axis=1), jnp.sum(b.diagonal, axis=1)
    norms_a, norms_b = (
        _unbiased_hsic(x.square, jnp.sum(x.diagonal**2, axis=1), trace, trace, n)
        for x, trace in ((a, traces_a), (b, traces_b))
    )
    diagonals = _matmul(a.diagonal, b.diagonal.T)
    hsic = _unbiased_hsic(_kernel_products(a, b), diagonals, traces_a[:, None], traces_b, n)
    return hsic / (jnp.sqrt(norms_a[:, None] * norms_b) + _DENOMINATOR_EPS)


# Subspaces and rotations.


class _Rows(NamedTuple):
    values: Array  # [L, N, D]

    def permuted(self, order: Array) -> "_Rows":
        return _Rows(self.values[:, order])


@jax.jit
def _prepare_singular_vectors(rows: Array) -> _Rows:
    """[N, C] the first left singular vectors; those without variance are zero."""
    x = rows - jnp.mean(rows, axis=0)
    deviation = jnp.std(x, axis=0)
    # A constant column is only rounding error once centred; standardised, it would be noise.
    constant = deviation <= 1e-6 * jnp.max(jnp.abs(rows), axis=0)
    x = jnp.where(constant, 0, x / jnp.where(constant, 1, deviation))
    # A QR decomposition of the long side first: the singular vectors of its factor are cheap.
    if x.shape[0] > x.shape[1]:
        q, r = jnp.linalg.qr(x)
        vectors, values, _ = jnp.linalg.svd(r)
        vectors = _matmul(q, vectors)
    else:
        vectors, values, _ = jnp.linalg.svd(jnp.linalg.qr(x.T, mode="r").T)
    kept = values[:_SVCCA_COMPONENTS] > 1e-5 * values[0]
    return _Rows(jnp.where(kept, vectors[:, :_SVCCA_COMPONENTS], 0))


def _svcca(a: _Rows, b: _Rows) -> Array:
    """Centred orthonormal columns: their canonical correlations are singular values of U^T V."""
    rank_a, rank_b = (jnp.sum(jnp.any(x.values != 0, axis=0)) for x in (a, b))
    correlations = jnp.linalg.svd(_matmul(a.values.T, b.values), compute_uv=False)
    return jnp.sum(correlations) / jnp.minimum(rank_a, rank_b)


@jax.jit
def _prepare_rotatable(x: Array) -> _Rows:
    """[N, min(N, D)] centred, of Frobenius norm one, up to a rotation of the columns."""
    x = x - jnp.mean(x, axis=0)
    if x.shape[1] > x.shape[0]:
        # X^T = Q R: the rotation Q does not change the score, and R^T is narrower than X.
        x = jnp.linalg.qr(x.T, mode="r").T
    return _Rows(x / jnp.linalg.norm(x))


def _procrustes(a: _Rows, b: _Rows) -> Array:
    nuclear_norm = jnp.sum(jnp.linalg.svd(_matmul(a.values.T, b.values), compute_uv=False))
    return jnp.minimum(nuclear_norm, 1)  # rounding may exceed the bound


class _Metric(NamedTuple):
    # One layer, as its neighbours and their similarities (both [k, N]) where the metric uses them,
    # else as its unit rows [N, D]; returns what is kept of it.
    prepare: Callable[..., Prepared]
    compare: Callable[[Any, Any], Array]  # both sides -> [La, Lb]
    uses_neighbors: bool
    min_items: int = 2
    min_k: int = 1
    # One side -> the form of it that is quick to compare in many orders.
    permutable: Callable[[Any], Any] = lambda prepared: prepared

    def least_items(self, k: int) -> int:
        """How many items a score needs."""
        return max(self.min_items, k + 1 if self.uses_neighbors else 0)

    def least_subsample(self, k: int) -> int:
        """How many items a subsample needs for its score to say something about that of all items.

        Where most items are neighbours of most others, scores hardly differ: with k + 1 items every
        score is 1.
        """
        return max(self.least_items(k), 4 * k if self.uses_neighbors else 0)


METRICS: dict[str, _Metric] = {
    "mutual_knn": _Metric(_prepare_neighbors, _mutual_knn, True, permutable=_memberships),
    "cycle_knn": _Metric(_prepare_neighbors, _over_pairs(_cycle_knn), True),
    "lcs_knn": _Metric(_prepare_neighbors, _over_pairs(_lcs_knn), True),
    "cka": _Metric(_prepare_kernel, _cka, False, min_items=4),
    "unbiased_cka": _Metric(_prepare_kernel, _unbiased_cka, False, min_items=4),
    "cknna": _Metric(_prepare_weighted_neighbors, _over_pairs(_cknna), True, min_items=4, min_k=2),
    "svcca": _Metric(_prepare_singular_vectors, _over_pairs(_svcca), False, min_items=4),
    "procrustes": _Metric(_prepare_rotatable, _over_pairs(_procrustes), False, min_items=4),
}
