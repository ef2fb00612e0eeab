"""Nearest neighbours by cosine: exact, in blocks of rows, without an array of items x items."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

# Similarities held at once: 2**24 floats are 64 MiB, enough work to keep the matrix product busy.
_BLOCK_ELEMENTS = 2**24


def unit_rows(x: Array) -> Array:
    """Scales every row to length one.

    Rows are first divided by their largest magnitude: the squares of very small or very large
    features would otherwise leave float32 (norm 0 or inf) although the direction is well defined.

    Args:
        x: [N, D] float32; no row may be all zeros.

    Returns:
        [N, D] float32.
    """
    x = x / jnp.max(jnp.abs(x), axis=1, keepdims=True)
    return x / jnp.linalg.norm(x, axis=1, keepdims=True)


def nearest_neighbors(x: Array, k: int) -> tuple[Array, Array]:
    """Finds the k nearest other rows of every row by dot product.

    Exact and in float32 at the highest matrix precision: TPUs multiply in bfloat16 by default,
    which changes neighbours. A row is never its own neighbour: its entry is masked with -inf before
    the selection, so this also holds where every similarity is negative. Tie rule: of equal
    similarities, the row with the lower index comes first (`jax.lax.top_k`).

    The queries are split over this process's devices, each of which holds all of `x`. The blocks
    are the same on any number of devices, and so is the result.

    Args:
        x: [N, D] float32 with rows of unit length, N > k.
        k: number of neighbours.

    Returns:
        Indices [N, k] int32, nearest first, and their similarities [N, k] float32, both on the
        process's first device.

    Raises:
        ValueError: k is not in 1..N - 1.
    """
    n = len(x)
    if not 1 <= k < n:
        raise ValueError(f"k={k} neighbours of {n} items: k must be in 1..{n - 1}")
    devices = jax.local_devices()[: _num_blocks(n)]
    # Auto axes: jax's default, Explicit, refuses the slices of a replicated array.
    mesh = jax.make_mesh((len(devices),), ("queries",), (AxisType.Auto,), devices=devices)
    found = _search(jax.device_put(x, NamedSharding(mesh, P())), k, mesh)
    return jax.device_put(found, devices[0])


def _num_blocks(n: int) -> int:
    return -(-n * n // _BLOCK_ELEMENTS)


@functools.partial(jax.jit, static_argnames=("k", "mesh"))
def _search(x: Array, k: int, mesh: Mesh) -> tuple[Array, Array]:
    n = len(x)
    rows = -(-n // _num_blocks(n))
    blocks = -(-n // rows)

    def search(start: Array, x: Array) -> tuple[Array, Array]:
        queries = lax.dynamic_slice_in_dim(x, start, rows)
        similarities = jnp.matmul(queries, x.T, precision=lax.Precision.HIGHEST)
        is_self = jnp.arange(n) == start + jnp.arange(rows)[:, None]
        values, indices = lax.top_k(jnp.where(is_self, -jnp.inf, similarities), k)
        return indices, values

    def search_share(starts: Array, x: Array) -> tuple[Array, Array]:
        return lax.map(lambda start: search(start, x), starts)

    # Equal shares of blocks of equal size: the last ones begin early enough to end with the items.
    share = -(-blocks // mesh.size)
    starts = np.minimum(np.arange(share * mesh.size) * rows, n - rows)
    found = jax.shard_map(
        search_share, mesh=mesh, in_specs=(P("queries"), P()), out_specs=P("queries")
    )(jnp.asarray(starts, jnp.int32), x)
    items = np.arange(n)
    place = (items // rows, items - starts[items // rows])
    return found[0][place], found[1][place]
