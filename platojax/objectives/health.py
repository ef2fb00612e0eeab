"""Signs of collapse that a loss value does not show."""

import chex
import jax
import jax.numpy as jnp


def embedding_health(x: jax.Array) -> dict[str, jax.Array]:
    """Measures how much of their space the embeddings of a batch fill.

    Args:
      x: `[N, D]` embeddings; computed on in float32.

    Returns:
      Scalars, float32:
      * `spread`: the standard deviation over the batch, averaged over dimensions; 0 where all
        embeddings are one point.
      * `effective_rank`: the participation ratio (sum l)^2 / sum l^2 of the covariance's
        eigenvalues l, between 1 and min(D, N - 1), and 0 where all embeddings are one point; it
        needs no eigendecomposition.
      * `covariance_off_diagonal`: root mean square of the correlations between dimensions.
    """
    chex.assert_rank(x, 2)
    x = x.astype(jnp.float32)
    x = x - x.mean(axis=0)
    covariance = x.T @ x / x.shape[0]
    variance = jnp.diagonal(covariance)
    deviation = jnp.sqrt(variance)
    tiny = jnp.finfo(jnp.float32).tiny
    correlation = covariance / jnp.maximum(deviation[:, None] * deviation[None, :], tiny)
    off_diagonal = correlation - jnp.diag(jnp.diagonal(correlation))
    dim = x.shape[1]
    return {
        "spread": deviation.mean(),
        "effective_rank": variance.sum() ** 2 / jnp.maximum(jnp.sum(covariance**2), tiny),
        "covariance_off_diagonal": jnp.sqrt(jnp.sum(off_diagonal**2) / max(dim * (dim - 1), 1)),
    }
