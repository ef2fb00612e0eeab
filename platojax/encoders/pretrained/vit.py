"""The image towers of DINOv2, DINOv3 and CLIP."""

from typing import TypedDict

import flax.linen as nn
import jax
import jax.numpy as jnp

from platojax.encoders.pretrained.config import VisionConfig
from platojax.encoders.pretrained.positions import interpolate, rotary_positions
from platojax.encoders.transformer import Rotary, Transformer, layer_norm


class TowerOutput(TypedDict, total=False):
    """What a tower computes; of one that is not asked for, XLA computes nothing.

    `hidden_states`: what enters the first block and what leaves each, L + 1 of `[B, T, D]`.
    `normed`: the last of them after the last layer norm, `[B, T, D]`.
    `pooler_output`: its class or end-of-text token, `[B, D]`.
    `embeds`: that token in CLIP's joint space, `[B, P]`, not normalised.
    """

    hidden_states: list[jax.Array]
    normed: jax.Array
    pooler_output: jax.Array
    embeds: jax.Array


class VisionTransformer(nn.Module):
    """A ViT with a class token, and registers where the config has them.

    Attributes:
      config: the architecture.
      dtype: of the computation; parameters are float32.
    """

    config: VisionConfig
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, pixel_values: jax.Array) -> TowerOutput:
        """Encodes normalised images `[B, 3, H, W]`.

        Raises:
          ValueError: if the shape is another, H or W is not a multiple of the patch size, or CLIP
            is given another size than its own.
        """
        config = self.config
        check_pixels(config, pixel_values.shape)
        size = (config.patch_size, config.patch_size)
        pixels = pixel_values.transpose(0, 2, 3, 1).astype(self.dtype)
        clip = config.family == "clip"
        patches = nn.Conv(
            config.width, size, size, "VALID", use_bias=not clip, dtype=self.dtype, name="patches"
        )(pixels)
        batch, rows, columns, width = patches.shape
        tokens = self.add_prefix(patches.reshape(batch, rows * columns, width), rows, columns)
        if clip:
            tokens = layer_norm("norm_pre", self.dtype, config.style.epsilon)(tokens)
        rotary: Rotary | None = None
        if config.family == "dinov3":
            head_dim = width // config.num_heads
            rotary = rotary_positions(rows, columns, head_dim, config.rope_theta, config.num_prefix)
        *states, normed = Transformer(
            config.depth,
            config.num_heads,
            config.mlp_dim,
            dtype=self.dtype,
            style=config.style,
            name="transformer",
        )(tokens, rotary=rotary)
        return finish(states, normed, normed[:, 0], config.projection)

    @nn.nowrap
    def add_prefix(self, patches: jax.Array, rows: int, columns: int) -> jax.Array:
        """Learned positions, the class token and registers: `[B, N, D]` -> `[B, T, D]`."""
        config, width = self.config, self.config.width
        init = nn.initializers.normal(0.02)
        prefix = self.param("cls", init, (width,))[None]
        if config.family != "dinov3":
            side = config.image_size // config.patch_size
            table = self.param("positions", init, (1 + side**2, width))
            prefix = prefix + table[:1]
            grid = interpolate(table[1:], rows, columns, config.interpolation)
            patches = patches + grid.astype(self.dtype)
        if config.num_registers:
            registers = self.param("registers", init, (config.num_registers, width))
            prefix = jnp.concatenate([prefix, registers])
        prefix = jnp.broadcast_to(prefix.astype(self.dtype), (len(patches), *prefix.shape))
        return jnp.concatenate([prefix, patches], axis=1)


def finish(
    states: list[jax.Array], normed: jax.Array, pooled: jax.Array, projection: int | None
) -> TowerOutput:
    """Gathers a tower's output and, inside its module, projects the pooled token `[B, D]`."""
    output = TowerOutput(hidden_states=states, normed=normed, pooler_output=pooled)
    if projection is not None:
        dense = nn.Dense(projection, use_bias=False, dtype=pooled.dtype, name="projection")
        output["embeds"] = dense(pooled)
    return output


def check_pixels(config: VisionConfig, shape: tuple[int, ...]) -> None:
    """Refuses images `[B, 3, H, W]` that the tower cannot take.

    Raises:
      ValueError: see `VisionTransformer.__call__`.
    """
    if len(shape) != 4 or shape[1] != 3:
        raise ValueError(
            f"pixel_values have shape {list(shape)}, but must be [B, 3, H, W]: normalised RGB with "
            "channels before rows and columns."
        )
    height, width = shape[2:]
    if config.family == "clip" and (height, width) != (config.image_size,) * 2:
        raise ValueError(
            f"pixel_values of {height} x {width} pixels do not fit this CLIP, whose positions are "
            f"for {config.image_size} x {config.image_size}; resize the images."
        )
    if height % config.patch_size or width % config.patch_size or not height * width:
        raise ValueError(
            f"pixel_values of {height} x {width} pixels are not a whole number of patches of "
            f"{config.patch_size}; resize or crop the images to multiples of it."
        )
