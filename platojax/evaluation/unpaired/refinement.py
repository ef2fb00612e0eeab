"""Refinement of a rough rotation by pseudo-pairs: every item and what lies near it, both ways."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from scipy.optimize import linear_sum_assignment

from platojax.evaluation.rotation import polar

# Similarities, or coordinates of neighbours, held at once by a device: 64 MiB.
_BLOCK_ELEMENTS = 2**24


def refine(
    x: np.ndarray,
    y: np.ndarray,
    rotation: np.ndarray,
    *,
    num_rounds: int,
    num_neighbors: int,
    batch_size: int,
    rng: np.random.Generator,
    on_round: Callable[[], None] = lambda: None,
) -> np.ndarray:
    """Fits the rotation again and again to the pairs it implies.

    In a round, each item of a random batch of x is paired with the mean of its nearest neighbours
    in one of y, and each of y with the mean of those in x; the orthogonal Procrustes fit of all
    these pairs is the next rotation. Means of neighbours, not the one-to-one linear assignment:
    the items of the sides are disjoint, so no item has a partner, and assignments reproduce
    whatever rotation made them, while means pull towards the densities' agreement.

    Args:
        x: [N, Dx] float32, unit rows.
        y: [M, Dy] float32, unit rows.
        rotation: [Dx, Dy].
        num_rounds: number of rounds.
        num_neighbors: neighbours in a mean.
        batch_size: rows per side and round, drawn without replacement.
        rng: of the batches.
        on_round: called after each round.

    Returns:
        [Dx, Dy] float32.
    """
    for _ in range(num_rounds):
        batch_x, batch_y = (side[rng.permutation(len(side))[:batch_size]] for side in (x, y))
        mapped = unit(batch_x @ rotation)
        near_y = neighbor_means(mapped, batch_y, batch_y, num_neighbors)
        near_x = neighbor_means(batch_y, mapped, batch_x, num_neighbors)
        rotation = polar(batch_x.T @ near_y + near_x.T @ batch_y)
        on_round()
    return rotation


def matched_cosine(mapped: np.ndarray, y: np.ndarray) -> float:
    """The mean cosine of the best one-to-one matching: it needs no labels, and more is better.

    Comparable only between rotations of the same items: more items lie closer together.

    Args:
        mapped: [N, D] float32, unit rows. scipy's assignment takes a second for 2,000 of them, and
            eight times that for twice as many.
        y: [M, D] float32, unit rows.

    Returns:
        The mean over the matched pairs.
    """
    cosines = mapped @ y.T
    return float(cosines[linear_sum_assignment(cosines, maximize=True)].mean())


def unit(rows: np.ndarray) -> np.ndarray:
    """Scales rows to length one; a row of zeros stays zero.

    Args:
        rows: [N, D] float32.

    Returns:
        [N, D] float32.
    """
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(norms, np.finfo(np.float32).tiny)


def neighbor_means(queries: np.ndarray, keys: np.ndarray, values: np.ndarray, k: int) -> np.ndarray:
    """Averages the values of the k keys with the largest dot products.

    Exact, at the highest matrix precision. The queries are split over this process's devices.

    Args:
        queries: [N, D] float32.
        keys: [M, D] float32, M >= k.
        values: [M, E] float32.
        k: number of neighbours.

    Returns:
        [N, E] float32.
    """
    widest = max(len(keys), k * values.shape[1])
    rows = max(1, min(len(queries), _BLOCK_ELEMENTS // widest))
    blocks = -(-len(queries) // rows)
    devices = jax.local_devices()[:blocks]
    mesh = jax.make_mesh((len(devices),), ("queries",), (AxisType.Auto,), devices=devices)
    # Equal shares of blocks of equal size, filled up with zeros.
    padded = -(-blocks // len(devices)) * len(devices) * rows
    split = np.pad(queries, ((0, padded - len(queries)), (0, 0))).reshape(-1, rows, keys.shape[1])
    whole = NamedSharding(mesh, P())
    means = _means(
        jax.device_put(split, NamedSharding(mesh, P("queries"))),
        jax.device_put(keys, whole),
        jax.device_put(values, whole),
        k=k,
        mesh=mesh,
    )
    return np.asarray(means).reshape(padded, -1)[: len(queries)]


@functools.partial(jax.jit, static_argnames=("k", "mesh"))
def _means(queries: Array, keys: Array, values: Array, *, k: int, mesh: Mesh) -> Array:
    def search(block: Array, keys: Array, values: Array) -> Array:
        similarities = jnp.matmul(block, keys.T, precision=lax.Precision.HIGHEST)
        return jnp.mean(values[lax.top_k(similarities, k)[1]], axis=1)

    def search_share(blocks: Array, keys: Array, values: Array) -> Array:
        return lax.map(lambda block: search(block, keys, values), blocks)

    return jax.shard_map(
        search_share, mesh=mesh, in_specs=(P("queries"), P(), P()), out_specs=P("queries")
    )(queries, keys, values)
