"""The LeJEPA loss (arXiv 2511.08544): views agree, and each view's projections are Gaussian."""

import functools

import chex
import jax
import jax.numpy as jnp

from platojax.objectives.sigreg import sigreg


def lejepa_loss(
    z: jax.Array,
    directions: jax.Array,
    *,
    lam: float,
    num_global: int | None = None,
    t_max: float = 3.0,
    num_knots: int = 17,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns `(1 - lam) * prediction + lam * sigreg` and its parts.

    `prediction` is the mean over views, samples and dimensions of the squared distance to the
    centre, the mean of the sample's global views. `sigreg` is the mean over slices and views of the
    statistic of each view. No stop-gradient, predictor or teacher: every view gets gradient.

    The part of SIGReg that measures deviation from a Gaussian grows with the batch size N while its
    floor of about 1.05 stays, so the same `lam` presses harder in a larger batch.

    Args:
      z: `[V, N, D]` projections of V views of N scenes. Computed on in float32.
      directions: `[D, S]` unit columns, see `random_directions`.
      lam: the weight of SIGReg, in [0, 1].
      num_global: the first `num_global` views make the centre; all views where None.
      t_max: see `sigreg`.
      num_knots: see `sigreg`.

    Returns:
      The scalar loss, and `{"prediction", "sigreg"}`, scalars; all float32.

    Raises:
      ValueError: if `lam` or `num_global` is out of range.
    """
    chex.assert_rank(z, 3)
    if not 0 <= lam <= 1:
        raise ValueError(f"lam must lie in [0, 1]; got {lam}.")
    if num_global is None:
        num_global = z.shape[0]
    if not 1 <= num_global <= z.shape[0]:
        raise ValueError(f"num_global must lie in [1, {z.shape[0]}] (views); got {num_global}.")
    z = z.astype(jnp.float32)
    centre = jnp.mean(z[:num_global], axis=0)
    prediction = jnp.mean((z - centre) ** 2)
    statistic = functools.partial(sigreg, t_max=t_max, num_knots=num_knots)
    gaussianity = jnp.mean(jax.vmap(statistic, in_axes=(0, None))(z, directions))
    loss = (1 - lam) * prediction + lam * gaussianity
    return loss, {"prediction": prediction, "sigreg": gaussianity}
