"""SIGReg: how far a batch of embeddings is from a standard Gaussian, slice by slice.

The Epps-Pulley statistic of LeJEPA (arXiv 2511.08544): along each direction the empirical
characteristic function is compared with the standard normal's on equally spaced knots.

Equal spacing is what makes it cheap. With theta = dt * u the value at knot j is
exp(i j theta), which follows from exp(i theta) by the angle-addition recurrence: one sine and one
cosine per sample and slice instead of one per sample, slice and knot, and no `[N, slices, knots]`
array in the forward or the backward pass.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_EPSILON = 1e-12  # a direction of norm 0 would be a NaN; users of other versions have met it


def random_directions(key: jax.Array, dim: int, num_slices: int) -> jax.Array:
    """Draws unit directions uniformly on the sphere.

    Args:
      key: a typed PRNG key. Derive it from the step, so that all devices share it.
      dim: the width D of the embeddings.
      num_slices: how many directions S to draw.

    Returns:
      `[D, S]` float32, each column of norm 1.
    """
    directions = jax.random.normal(key, (dim, num_slices), jnp.float32)
    return directions / (jnp.linalg.norm(directions, axis=0, keepdims=True) + _EPSILON)


def sigreg(
    z: jax.Array, directions: jax.Array, *, t_max: float = 3.0, num_knots: int = 17
) -> jax.Array:
    """Returns the Epps-Pulley statistic of `z` along each direction.

    About 1.05 in expectation where `z` is standard normal, whatever N is; .402 N where all rows
    are zero (there the gradient is exactly zero as well: a dead end).

    N is the number of rows of the whole array. Under `jit` with `z` sharded over its rows the
    means below are global means, as the objective demands; averaging this function's value over
    devices would be a different objective.

    Args:
      z: `[N, D]`, computed on in float32. Not standardised: a collapse of scale must cost.
      directions: `[D, S]` unit columns. They get no gradient.
      t_max: the last knot; the first is 0.
      num_knots: how many knots, at least 2. The statistic has period 2 pi (num_knots - 1) / t_max
        in the projections.

    Returns:
      `[S]` float32.

    Raises:
      ValueError: if there are fewer than 2 knots or `t_max` is not positive.
    """
    chex.assert_rank([z, directions], 2)
    chex.assert_equal(z.shape[1], directions.shape[0])
    if num_knots < 2 or t_max <= 0:
        raise ValueError(
            f"sigreg needs num_knots >= 2 and t_max > 0; got num_knots={num_knots}, t_max={t_max}."
        )
    directions = lax.stop_gradient(directions.astype(jnp.float32))
    projections = jnp.matmul(z.astype(jnp.float32), directions, precision=lax.Precision.HIGHEST)
    return _statistic(projections * np.float32(t_max / (num_knots - 1)), t_max, num_knots)


def _knots(t_max: float, num_knots: int) -> tuple[np.ndarray, np.ndarray]:
    """The weights and the normal's characteristic function at the knots after 0, `[J, 1]` each.

    The knot at 0 is left out: both characteristic functions are 1 there. The weights are those of
    the trapezoid rule on [-t_max, t_max] folded onto [0, t_max], times the Gaussian window.
    """
    dt = t_max / (num_knots - 1)
    t = dt * np.arange(1, num_knots)
    normal = np.exp(-(t**2) / 2)
    quadrature = np.where(np.arange(1, num_knots) == num_knots - 1, dt, 2 * dt)
    columns = (quadrature * normal)[:, None], normal[:, None]
    return columns[0].astype(np.float32), columns[1].astype(np.float32)


def _characteristic_function(theta: jax.Array, num_knots: int) -> tuple[jax.Array, jax.Array]:
    """Mean cosine and sine of j theta over the rows, j = 1 .. num_knots - 1: `[J, S]` each."""
    rows, slices = theta.shape
    theta = theta.reshape(_row_groups(rows), -1, slices)
    cos1, sin1 = jnp.cos(theta), jnp.sin(theta)
    terms, cos, sin = [], cos1, sin1
    for _ in range(num_knots - 1):
        terms += [cos, sin]
        cos, sin = cos * cos1 - sin * sin1, sin * cos1 + cos * sin1
    # One reduction with many operands, so that XLA runs the whole recurrence inside one loop over
    # theta. As separate means each would recompute it, or write its term to memory.
    sums = lax.reduce(
        tuple(terms),
        (np.float32(0),) * len(terms),
        lambda x, y: tuple(a + b for a, b in zip(x, y, strict=True)),
        (1,),
    )
    return jnp.stack(sums[0::2]).sum(1) / rows, jnp.stack(sums[1::2]).sum(1) / rows


def _row_groups(rows: int) -> int:
    """In how many groups of neighbours the rows are added up before the groups are.

    One a device, so that each device adds its own rows, and `[knots, slices]` sums are all that
    devices exchange. Over a sharded axis XLA would gather a reduction with many operands from all
    devices: their number times as much.
    """
    devices = jax.sharding.get_abstract_mesh().size
    return devices if devices and rows % devices == 0 else 1


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _statistic(theta: jax.Array, t_max: float, num_knots: int) -> jax.Array:
    """`[N, S]` projections times dt -> `[S]`."""
    return _statistic_forward(theta, t_max, num_knots)[0]


def _statistic_forward(theta, t_max, num_knots):
    weights, normal = _knots(t_max, num_knots)
    cos, sin = _characteristic_function(theta, num_knots)
    statistic = theta.shape[0] * jnp.sum(weights * ((cos - normal) ** 2 + sin**2), axis=0)
    return statistic, (theta, cos, sin)


def _statistic_backward(t_max, num_knots, residuals, cotangent):
    theta, cos, sin = residuals
    weights, normal = _knots(t_max, num_knots)
    j = np.arange(1, num_knots, dtype=np.float32)[:, None]
    # d statistic / d theta_n = sum_j  a_j sin(j theta_n) + b_j cos(j theta_n)
    a = -2 * weights * j * (cos - normal) * cotangent
    b = 2 * weights * j * sin * cotangent
    # Clenshaw's recurrence sums both series with one cosine and one sine per element.
    cos1 = jnp.cos(theta)
    a1 = a2 = b1 = b2 = jnp.zeros_like(theta)
    for k in reversed(range(num_knots - 1)):
        a1, a2 = a[k] + 2 * cos1 * a1 - a2, a1
        b1, b2 = b[k] + 2 * cos1 * b1 - b2, b1
    return (a1 * jnp.sin(theta) + b1 * cos1 - b2,)


_statistic.defvjp(_statistic_forward, _statistic_backward)
