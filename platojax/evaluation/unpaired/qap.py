"""Quadratic assignment: the permutation under which two symmetric matrices agree best."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike

# How long an exchange stays forbidden, in multiples of n: drawn from Taillard's range.
_TENURE = (0.9, 1.1)


@dataclasses.dataclass(frozen=True, eq=False)
class Assignment:
    """Solutions of a batch of quadratic assignment problems.

    Attributes:
        permutation: [S, n] int32: row i of a belongs to row permutation[i] of b.
        objective: [S] float64, sum_ij a[i, j] b[permutation[i], permutation[j]].
        correlation: [S] float64, the objective over the product of the Frobenius norms of a and b:
            1 where they agree up to scale.
    """

    permutation: np.ndarray
    objective: np.ndarray
    correlation: np.ndarray


def quadratic_assignment(
    a: ArrayLike, b: ArrayLike, *, seed: int = 0, num_starts: int = 64, num_steps: int = 500
) -> Assignment:
    """Maximises Tr(A P B P^T) over permutations P, for a batch of problems.

    Robust tabu search (Taillard, 1991) from many random starts. Each step makes the exchange of two
    rows that gains most, or loses least, among those that were not undone recently: a descent by
    best-improvement 2-opt that then leaves its local optimum. The gains of all exchanges follow
    from A P B P^T, which an exchange changes by a matrix of rank one, so a step costs O(n^2).

    Deterministic for a seed on a given kind of device. The problems are split over this process's
    devices, and the result does not depend on their number. Memory per device: about
    30 n^2 num_starts bytes.

    Args:
        a: [S, n, n] or [n, n], symmetric.
        b: of the same shape, symmetric.
        seed: of the starts and of the tenures.
        num_starts: searches per problem; the best result of them is kept. More than 64 leave the
            caches of a CPU for n = 30.
        num_steps: exchanges per search; the descent alone takes about n.

    Returns:
        The best permutations seen; S is 1 where the arguments are single matrices.

    Raises:
        ValueError: the shapes differ or are not square, a matrix is not finite, not symmetric or
            all zeros, or a number is out of range.
    """
    a, b = _symmetric("a", a), _symmetric("b", b)
    if a.shape != b.shape:
        raise ValueError(f"a has shape {a.shape} and b has shape {b.shape}: they must be equal")
    for name, value in (("num_starts", num_starts), ("num_steps", num_steps)):
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    if seed < 0:
        raise ValueError(f"seed={seed} must not be negative")
    norm_a, norm_b = (np.linalg.norm(side, axis=(1, 2), keepdims=True) for side in (a, b))
    # Unit norms keep float32 and the search's tolerance in range whatever the scale.
    found = _search(a / norm_a, b / norm_b, seed, num_starts, num_steps)
    objectives = _objectives(a, b, found)
    best = np.argmax(objectives, axis=1)
    problem = np.arange(len(a))
    objective = objectives[problem, best]
    return Assignment(found[problem, best], objective, objective / (norm_a * norm_b)[:, 0, 0])


def _symmetric(name: str, matrices: ArrayLike) -> np.ndarray:
    stack = np.asarray(matrices, np.float64)
    if stack.ndim == 2:
        stack = stack[None]
    if stack.ndim != 3 or stack.shape[1] != stack.shape[2] or not stack.size:
        raise ValueError(f"{name} has shape {np.shape(matrices)}: needed is [S, n, n] or [n, n]")
    if not np.all(np.isfinite(stack)):
        raise ValueError(f"{name} is not finite")
    scale = np.abs(stack).max(axis=(1, 2))
    if not np.all(scale):
        raise ValueError(f"{name}: matrix {np.argmin(scale)} is all zeros: any permutation fits")
    if np.any(np.abs(stack - stack.swapaxes(1, 2)).max(axis=(1, 2)) > 1e-4 * scale):
        raise ValueError(f"{name} is not symmetric")
    return (stack + stack.swapaxes(1, 2)) / 2


def _objectives(a: np.ndarray, b: np.ndarray, permutations: np.ndarray) -> np.ndarray:
    """[S, K] in float64: the search's own sums have the rounding of all its steps."""
    values = np.empty(permutations.shape[:2])
    for place in np.ndindex(values.shape):
        rows = permutations[place]
        values[place] = np.vdot(a[place[0]], b[place[0]][np.ix_(rows, rows)])
    return values


def _search(a: np.ndarray, b: np.ndarray, seed: int, num_starts: int, num_steps: int) -> np.ndarray:
    """[S, num_starts, n] int32: the best of each search; the problems are split over devices."""
    count = len(a)
    devices = jax.local_devices()[:count]
    mesh = jax.make_mesh((len(devices),), ("problems",), (AxisType.Auto,), devices=devices)
    # Equal shares: the last problem fills up.
    rows = np.minimum(np.arange(-(-count // len(devices)) * len(devices)), count - 1)
    keys = jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(seed)))(rows)
    found = _search_sharded(
        jnp.asarray(a[rows], jnp.float32),
        jnp.asarray(b[rows], jnp.float32),
        keys,
        jnp.int32(num_steps),
        num_starts=num_starts,
        mesh=mesh,
    )
    return np.asarray(found)[:count]


@functools.partial(jax.jit, static_argnames=("num_starts", "mesh"))
def _search_sharded(
    a: Array, b: Array, keys: Array, num_steps: Array, *, num_starts: int, mesh: Mesh
) -> Array:
    def search(problem: tuple[Array, Array, Array]) -> Array:
        a, b, key = problem
        return _tabu_search(a, b, key, num_starts, num_steps)

    def search_share(a: Array, b: Array, keys: Array) -> Array:
        # One problem at a time, so that its searches stay in the caches.
        return lax.map(search, (a, b, keys))

    share = P("problems")
    # No check: it takes the random starts, whose keys differ between devices, to be replicated.
    searched = jax.shard_map(
        search_share, mesh=mesh, in_specs=share, out_specs=share, check_vma=False
    )
    return searched(a, b, keys)


class _State(NamedTuple):
    """K searches in lockstep. The searches are the last axis, which the vector units run along.

    Attributes:
        permutation: [n, K] int32.
        b: [n, n, K], B without its diagonal, in the order of the permutation.
        product: [n, n, K], A P B P^T and half the diagonals' gain for row i in place j.
        tabu_until: [n, n, K] int32: until which step row i may not return to where row j is.
        value: [K], the objective.
        best_value: [K].
        best: [n, K] int32.
    """

    permutation: Array
    b: Array
    product: Array
    tabu_until: Array
    value: Array
    best_value: Array
    best: Array


def _tabu_search(a: Array, b: Array, key: Array, num_starts: int, num_steps: Array) -> Array:
    """[K, n] int32: the best permutation of each search of one problem."""
    n = len(a)
    starts_key, tenure_key = jax.random.split(key)
    starts = jax.vmap(lambda key: jax.random.permutation(key, n))(
        jax.random.split(starts_key, num_starts)
    )
    diagonal_a, diagonal_b = jnp.diag(a), jnp.diag(b)
    a, b = a - jnp.diag(diagonal_a), b - jnp.diag(diagonal_b)
    state = _initial_state(a, b, diagonal_a, diagonal_b, starts.T.astype(jnp.int32))

    def step(count: Array, state: _State) -> _State:
        first, second, gain = _best_exchange(a, state, count)
        tenures = _TENURE[0] + (_TENURE[1] - _TENURE[0]) * jax.random.uniform(
            jax.random.fold_in(tenure_key, count), (2, num_starts)
        )
        until = count + 1 + jnp.round(n * tenures).astype(jnp.int32)
        return _exchange(a, state, first, second, gain, until)

    state = lax.fori_loop(0, num_steps, step, state)
    return state.best.T


def _initial_state(
    a: Array, b: Array, diagonal_a: Array, diagonal_b: Array, permutation: Array
) -> _State:
    b = b[permutation[:, None], permutation[None, :]]
    product = jnp.einsum("ij,jlk->ilk", a, b, precision=lax.Precision.HIGHEST)
    diagonals = diagonal_a[:, None, None] * diagonal_b[permutation][None]
    product = product + diagonals / 2
    value = jnp.einsum("iik->k", product) + jnp.einsum("iik->k", diagonals) / 2
    unrestricted = jnp.zeros(b.shape, jnp.int32)
    return _State(permutation, b, product, unrestricted, value, value, permutation)


def _best_exchange(a: Array, state: _State, count: Array) -> tuple[Array, Array, Array]:
    """[K] the rows first < second to exchange, and [K] what the objective gains."""
    n = len(a)
    own = jnp.einsum("iik->ik", state.product)
    both = state.product + state.product.swapaxes(0, 1)
    # Taillard (1991), eq. 2, for symmetric matrices: the exchanged pair's own entry does not move.
    gains = 2 * (both - own[:, None] - own[None, :] + 2 * a[:, :, None] * state.b)
    tabu = (state.tabu_until > count) & (state.tabu_until.swapaxes(0, 1) > count)
    aspired = state.value + gains > state.best_value + 1e-6
    rows = jnp.arange(n)
    upper = (rows[:, None] < rows[None, :])[:, :, None]
    gains = jnp.where(upper & (~tabu | aspired), gains, -jnp.inf)
    gain = jnp.max(gains, axis=(0, 1))
    # A minimum over indices in place of argmax, which XLA does not vectorise on CPUs.
    pairs = (n * rows[:, None] + rows[None, :])[:, :, None]
    pair = jnp.min(jnp.where(gains == gain, pairs, n * n), axis=(0, 1))
    # Where every exchange is forbidden, "exchange" row 0 with itself.
    blocked = gain == -jnp.inf
    pair, gain = jnp.where(blocked, 0, pair), jnp.where(blocked, 0.0, gain)
    return pair // n, pair % n, gain


def _exchange(
    a: Array, state: _State, first: Array, second: Array, gain: Array, until: Array
) -> _State:
    rows = jnp.arange(len(a))
    searches = jnp.arange(len(first))
    left = a[:, first] - a[:, second]
    right = (state.b[second, :, searches] - state.b[first, :, searches]).T
    product = _swap(state.product + left[:, None] * right[None, :], first, second, axis=1)
    b = _swap(_swap(state.b, first, second, axis=0), first, second, axis=1)
    tabu_until = _swap(state.tabu_until, first, second, axis=1)
    is_first, is_second = rows[:, None] == first, rows[:, None] == second
    tabu_until = jnp.where(is_first[:, None] & is_second[None, :], until[0], tabu_until)
    tabu_until = jnp.where(is_second[:, None] & is_first[None, :], until[1], tabu_until)
    permutation = _swap(state.permutation, first, second, axis=0)
    value = state.value + gain
    better = value > state.best_value
    return _State(
        permutation,
        b,
        product,
        tabu_until,
        value,
        jnp.where(better, value, state.best_value),
        jnp.where(better, permutation, state.best),
    )


def _swap(x: Array, first: Array, second: Array, axis: int) -> Array:
    """Exchanges two slices along an axis, which differ between the searches of the last axis."""
    shape = [1] * x.ndim
    shape[-1] = len(first)
    first, second = first.reshape(shape), second.reshape(shape)
    shape[axis], shape[-1] = x.shape[axis], 1
    place = jnp.arange(x.shape[axis]).reshape(shape)
    at_first = jnp.take_along_axis(x, first, axis)
    at_second = jnp.take_along_axis(x, second, axis)
    return jnp.where(place == first, at_second, jnp.where(place == second, at_first, x))
