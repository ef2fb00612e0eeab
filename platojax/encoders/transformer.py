"""The pre-norm transformer that all encoders share."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np


class Block(nn.Module):
    """Pre-norm attention and MLP, each added to its input."""

    num_heads: int
    mlp_dim: int
    causal: bool
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array | None) -> jax.Array:
        """`x` `[B, T, D]`, `mask` `[B, T]` bool or None -> `[B, T, D]`."""
        width = x.shape[-1]
        head_dim = width // self.num_heads
        y = layer_norm("norm_attention", self.dtype)(x)
        # Three projections rather than one sliced in three: the gradient of a slice pads and adds.
        query, key, value = (
            nn.DenseGeneral((self.num_heads, head_dim), dtype=self.dtype, name=name)(y)
            for name in ("query", "key", "value")
        )
        attended = jax.nn.dot_product_attention(
            query,
            key,
            value,
            mask=None if mask is None else mask[:, None, None, :],
            is_causal=self.causal,
        )
        x = x + nn.DenseGeneral(width, axis=(-2, -1), dtype=self.dtype, name="out")(attended)
        y = layer_norm("norm_mlp", self.dtype)(x)
        y = nn.Dense(self.mlp_dim, dtype=self.dtype, name="mlp_in")(y)
        return x + nn.Dense(width, dtype=self.dtype, name="mlp_out")(nn.gelu(y, approximate=False))


class Transformer(nn.Module):
    """A stack of blocks and a final layer norm.

    Attributes:
      depth: number of blocks.
      num_heads: attention heads; must divide the width of the input.
      mlp_dim: hidden width of the MLPs.
      causal: whether a token sees only itself and those before it.
      dtype: of the computation; parameters and layer norms' statistics are float32.
    """

    depth: int
    num_heads: int
    mlp_dim: int
    causal: bool = False
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> list[jax.Array]:
        """Runs the stack.

        Args:
          x: `[B, T, D]` embedded tokens.
          mask: `[B, T]` bool, False on padding, which no token attends to.

        Returns:
          depth + 2 arrays `[B, T, D]`: the input, the output of each block, and the normalised
          output of the last block.

        Raises:
          ValueError: if the width is not a multiple of the number of heads.
        """
        if x.shape[-1] % self.num_heads:
            raise ValueError(
                f"width {x.shape[-1]} is not a multiple of num_heads {self.num_heads}; "
                "change encoder.width or encoder.num_heads."
            )
        states = [x.astype(self.dtype)]
        for i in range(self.depth):
            block = Block(self.num_heads, self.mlp_dim, self.causal, self.dtype, name=f"block_{i}")
            states.append(block(states[-1], mask))
        states.append(layer_norm("norm", self.dtype)(states[-1]))
        return states


def layer_norm(name: str, dtype: jnp.dtype) -> nn.LayerNorm:
    """A layer norm with the epsilon of ViTs; flax computes its statistics in float32."""
    return nn.LayerNorm(epsilon=1e-6, dtype=dtype, name=name)


def masked_mean(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean over the valid tokens: `x` `[B, T, D]`, `mask` `[B, T]` bool -> `[B, D]` float32.

    A row without any valid token gives zeros.
    """
    weights = mask.astype(jnp.float32)[..., None]
    return (x.astype(jnp.float32) * weights).sum(1) / jnp.maximum(weights.sum(1), 1.0)


def sincos_positions(height: int, width: int, dim: int) -> np.ndarray:
    """Fixed 2-D sine-cosine position embedding: `[height * width, dim]` float32.

    As in MAE (arXiv 2111.06377), half of the dimensions for rows and half for columns; but here
    positions run over [0, 16] along each side whatever the grid, so that crops of several sizes see
    the same range, and wavelengths go up to 2 pi 1000.

    Raises:
      ValueError: if `dim` is not a multiple of 4.
    """
    if dim % 4:
        raise ValueError(f"encoder.width must be a multiple of 4 for image positions; got {dim}.")
    frequencies = 1.0 / 1000 ** (np.arange(dim // 4) / (dim // 4))

    def embed(count: int) -> np.ndarray:
        angles = 16 * (np.arange(count)[:, None] + 0.5) / count * frequencies
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)

    rows, columns = embed(height), embed(width)
    grid = np.concatenate([np.repeat(rows, width, 0), np.tile(columns, (height, 1))], axis=1)
    return grid.astype(np.float32)
