"""Nearest neighbours by cosine: exact, in blocks of rows, without an array of items x items."""

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax

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


@functools.partial(jax.jit, static_argnames="k")
def nearest_neighbors(x: Array, k: int) -> tuple[Array, Array]:
    """Finds the k nearest other rows of every row by dot product.

    Exact and in float32 at the highest matrix precision: TPUs multiply in bfloat16 by default,
    which changes neighbours. A row is never its own neighbour: its entry is masked with -inf before
    the selection, so this also holds where every similarity is negative. Tie rule: of equal
    similarities, the row with the lower index comes first (`jax.lax.top_k`).

    Args:
        x: [N, D] float32 with rows of unit length, N > k.
        k: number of neighbours.

    Returns:
        Indices [N, k] int32, nearest first, and their similarities [N, k] float32.
    """
    n = x.shape[0]
    num_blocks = -(-n * n // _BLOCK_ELEMENTS)
    rows = -(-n // num_blocks)
    padded = jnp.pad(x, ((0, num_blocks * rows - n), (0, 0)))

    def search(start: Array) -> tuple[Array, Array]:
        queries = lax.dynamic_slice_in_dim(padded, start, rows)
        similarities = jnp.matmul(queries, x.T, precision=lax.Precision.HIGHEST)
        is_self = jnp.arange(n) == start + jnp.arange(rows)[:, None]
        values, indices = lax.top_k(jnp.where(is_self, -jnp.inf, similarities), k)
        return indices, values

    indices, values = lax.map(search, jnp.arange(num_blocks) * rows)
    return indices.reshape(-1, k)[:n], values.reshape(-1, k)[:n]
