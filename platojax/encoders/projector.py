"""The projector between the embedding, which is kept, and the loss."""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp


class BatchNorm(nn.Module):
    """Batch norm by the statistics of the batch at hand.

    There are no running averages: the projector serves the loss, never evaluation. The statistics
    are those of all views of the whole batch, on however many devices it is spread.
    """

    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """`[V, N, D]` -> the same shape and dtype; computed in float32."""
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        y = x.astype(jnp.float32)
        y = y - y.mean((0, 1))
        y = y * jax.lax.rsqrt((y**2).mean((0, 1)) + self.epsilon)
        return (y * scale + bias).astype(x.dtype)


class Projector(nn.Module):
    """An MLP with batch norm and GELU after each hidden layer.

    Attributes:
      hidden_dims: widths of the hidden layers.
      out_dim: width of the projections; narrow (64) is best according to LeJEPA's authors.
      dtype: of the computation.
    """

    hidden_dims: Sequence[int]
    out_dim: int
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """`[V, N, D]` embeddings of V views -> `[V, N, out_dim]` float32 projections."""
        for i, dim in enumerate(self.hidden_dims):
            x = nn.Dense(dim, dtype=self.dtype, name=f"dense_{i}")(x)
            x = nn.gelu(BatchNorm(name=f"norm_{i}")(x))
        return nn.Dense(self.out_dim, dtype=self.dtype, name="out")(x).astype(jnp.float32)
