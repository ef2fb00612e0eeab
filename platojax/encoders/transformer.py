"""The pre-norm transformer that all encoders share."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

Rotary = tuple[np.ndarray, np.ndarray]

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": functools.partial(nn.gelu, approximate=False),
    "quick_gelu": lambda x: x * nn.sigmoid(1.702 * x),
    "silu": nn.silu,
}


@dataclasses.dataclass(frozen=True)
class BlockStyle:
    """In what published transformers differ; the defaults are those of our own encoders.

    Attributes:
      activation: of the MLP, one of `ACTIVATIONS`: "gelu" (exact), "quick_gelu" (CLIP's) or "silu".
      gated: whether the MLP is gated (arXiv 2002.05202): `activation(gate(x)) * in(x)`.
      layer_scale: initial value of LayerScale (arXiv 2103.17239) on both branches; None for none.
      epsilon: of the layer norms.
      without_bias: the dense layers that have no bias, by name: query, key, value, out, mlp_in,
        mlp_gate, mlp_out.
    """

    activation: str = "gelu"
    gated: bool = False
    layer_scale: float | None = None
    epsilon: float = 1e-6
    without_bias: tuple[str, ...] = ()


class Block(nn.Module):
    """Pre-norm attention and MLP, each added to its input."""

    num_heads: int
    mlp_dim: int
    causal: bool
    dtype: jnp.dtype
    style: BlockStyle = BlockStyle()

    @nn.compact
    def __call__(
        self, x: jax.Array, mask: jax.Array | None, rotary: Rotary | None = None
    ) -> jax.Array:
        """Runs the block.

        Args:
          x: `[B, T, D]`.
          mask: `[B, Q, T]` bool, or None, see `Transformer`.
          rotary: cosines and sines `[T, D / num_heads]` that queries and keys are turned by.

        Returns:
          `[B, T, D]`.
        """
        width = x.shape[-1]
        head_dim = width // self.num_heads
        y = layer_norm("norm_attention", self.dtype, self.style.epsilon)(x)
        # Three projections rather than one sliced in three: the gradient of a slice pads and adds.
        query, key, value = (
            self.dense((self.num_heads, head_dim), name)(y) for name in ("query", "key", "value")
        )
        if rotary is not None:
            query, key = rotate(query, rotary), rotate(key, rotary)
        attended = jax.nn.dot_product_attention(
            query,
            key,
            value,
            mask=None if mask is None else mask[:, None],
            is_causal=self.causal,
        )
        y = self.dense(width, "out", axis=(-2, -1))(attended)
        x = x + self.scale("scale_attention", y)
        y = layer_norm("norm_mlp", self.dtype, self.style.epsilon)(x)
        activation = ACTIVATIONS[self.style.activation]
        if self.style.gated:
            y = activation(self.dense(self.mlp_dim, "mlp_gate")(y)) * self.dense(
                self.mlp_dim, "mlp_in"
            )(y)
        else:
            y = activation(self.dense(self.mlp_dim, "mlp_in")(y))
        return x + self.scale("scale_mlp", self.dense(width, "mlp_out")(y))

    @nn.nowrap
    def dense(
        self, features: int | tuple[int, int], name: str, axis: int | tuple[int, int] = -1
    ) -> nn.DenseGeneral:
        """The dense layer of that name, over `axis` of its input."""
        return nn.DenseGeneral(
            features,
            axis=axis,
            use_bias=name not in self.style.without_bias,
            dtype=self.dtype,
            dot_general=product_of_rows,
            name=name,
        )

    @nn.nowrap
    def scale(self, name: str, x: jax.Array) -> jax.Array:
        """LayerScale, where the style has it: `x` `[B, T, D]` times a vector `[D]`."""
        if self.style.layer_scale is None:
            return x
        initial = nn.initializers.constant(self.style.layer_scale)
        return x * self.param(name, initial, (x.shape[-1],)).astype(x.dtype)


class Transformer(nn.Module):
    """A stack of blocks and a final layer norm.

    Attributes:
      depth: number of blocks.
      num_heads: attention heads; must divide the width of the input.
      mlp_dim: hidden width of the MLPs.
      causal: whether a token sees only itself and those before it.
      dtype: of the computation; parameters and layer norms' statistics are float32.
      style: of the blocks.
      remat: whether the backward pass computes each block again from its input instead of keeping
        what is inside; a third more computation for a fraction of the memory.
    """

    depth: int
    num_heads: int
    mlp_dim: int
    causal: bool = False
    dtype: jnp.dtype = jnp.float32
    style: BlockStyle = BlockStyle()
    remat: bool = False

    @nn.compact
    def __call__(
        self, x: jax.Array, mask: jax.Array | None = None, rotary: Rotary | None = None
    ) -> list[jax.Array]:
        """Runs the stack.

        Args:
          x: `[B, T, D]` embedded tokens.
          mask: `[B, Q, T]` bool, which tokens (last axis) each token attends to; Q is T, or 1 where
            all attend to the same.
          rotary: cosines and sines `[T, D / num_heads]` of rotary positions.

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
        states = [_split_by_batch(x.astype(self.dtype))]
        block_class = nn.remat(Block) if self.remat else Block
        for i in range(self.depth):
            block = block_class(
                self.num_heads,
                self.mlp_dim,
                self.causal,
                self.dtype,
                self.style,
                name=f"block_{i}",
            )
            states.append(block(states[-1], mask, rotary))
        states.append(layer_norm("norm", self.dtype, self.style.epsilon)(states[-1]))
        return states


def product_of_rows(
    x: jax.Array, kernel: jax.Array, dimension_numbers: Any, **options: Any
) -> jax.Array:
    """`lax.dot_general` of a dense layer, as a product of two matrices.

    The gradient of a kernel is then one too. As a sum over several axes, B and T, XLA for CPUs
    copies an operand to transpose it, and takes the slower of its routines.

    Args:
      x: `[..., *inputs]`.
      kernel: `[*inputs, *outputs]`.
      dimension_numbers: the last axes of `x` with the first of `kernel`; no batch axes.
      **options: of `lax.dot_general`.

    Returns:
      `[..., *outputs]`.
    """
    (axes, _), _ = dimension_numbers
    inputs, outputs = kernel.shape[: len(axes)], kernel.shape[len(axes) :]
    matrix = kernel.reshape(math.prod(inputs), -1)
    rows = x.reshape(-1, len(matrix))
    product = jax.lax.dot_general(rows, matrix, (((1,), (0,)), ((), ())), **options)
    return product.reshape(*x.shape[: -len(axes)], *outputs)


def _split_by_batch(x: jax.Array) -> jax.Array:
    """Keeps tokens `[B, T, D]` split over devices by B alone, where parameters are split over fsdp.

    They come from an embedding or a patch kernel that is split by D; left to itself, XLA goes on
    with tokens split by D, and moves all activations in each block.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.shape.get("fsdp", 1) == 1 or x.shape[0] % (mesh.shape["data"] * mesh.shape["fsdp"]):
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(("data", "fsdp")))


def layer_norm(name: str, dtype: jnp.dtype, epsilon: float) -> nn.LayerNorm:
    """A layer norm; flax computes its statistics in float32."""
    return nn.LayerNorm(epsilon=epsilon, dtype=dtype, name=name)


def rotate(x: jax.Array, rotary: Rotary) -> jax.Array:
    """Turns each head's vectors by their token's angles (RoPE, arXiv 2104.09864).

    As in DINOv3, component `i` is paired with `i + head_dim / 2`.

    Args:
      x: `[B, T, H, head_dim]`.
      rotary: cosines and sines `[T, head_dim]`; 1 and 0 leave a token as it is.

    Returns:
      `[B, T, H, head_dim]` in the dtype of `x`, computed in float32 or better.
    """
    cos, sin = (part[:, None] for part in rotary)
    first, second = jnp.split(x, 2, axis=-1)
    turned = x * cos + jnp.concatenate([-second, first], axis=-1) * sin
    return turned.astype(x.dtype)


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
