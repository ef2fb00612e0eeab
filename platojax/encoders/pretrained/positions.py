"""Where patches are: learned tables at another resolution, and rotary positions."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from platojax.encoders.transformer import Rotary

Interpolation = Literal["resize", "offset", "antialias"]


def interpolate(
    table: jax.Array, rows: int, columns: int, interpolation: Interpolation
) -> jax.Array:
    """Brings a square table of position embeddings to another grid of patches.

    All rules are PyTorch's bicubic interpolation, but for rounding (2e-5 of a table of unit size):

    * "resize" takes the ratio of the sizes: what transformers does with DINOv2 without registers.
    * "offset" takes (size + 0.1) / old size: what facebookresearch/dinov2 does without registers.
    * "antialias" resizes with antialiasing: DINOv2 with registers, in both.

    Args:
      table: `[side * side, D]` float32, row by row.
      rows: patches along the height.
      columns: patches along the width.
      interpolation: the rule.

    Returns:
      `[rows * columns, D]` float32; the table itself where the grid is the same.
    """
    side = round(table.shape[0] ** 0.5)
    if (rows, columns) == (side, side):
        return table
    dim = table.shape[-1]
    grid = table.reshape(side, side, dim)
    shape = (rows, columns, dim)
    if interpolation == "antialias":
        resized = jax.image.resize(grid, shape, "bicubic", antialias=True)
    else:
        offset = 0.1 if interpolation == "offset" else 0.0
        resized = jax.image.scale_and_translate(
            grid,
            shape,
            (0, 1),
            jnp.array([rows + offset, columns + offset]) / side,
            jnp.zeros(2),
            # PyTorch's kernel has a = -0.75 unless it antialiases.
            jax.image.ResizeMethod.CUBIC_PYTORCH,
            antialias=False,
        )
    return resized.reshape(rows * columns, dim)


def rotary_positions(
    rows: int, columns: int, head_dim: int, theta: float, num_prefix: int
) -> Rotary:
    """Rotary positions of patches on a grid that spans [-1, 1] each way, as in DINOv3.

    A quarter of the components turns with the row and a quarter with the column, at frequencies
    `2 pi theta ** (-4 i / head_dim)`; the other half repeats them (arXiv 2508.10104).

    Args:
      rows: patches along the height.
      columns: patches along the width.
      head_dim: a multiple of 4.
      theta: ratio of the largest to the (not reached) smallest frequency.
      num_prefix: tokens before the patches, which are not turned.

    Returns:
      Cosines and sines, `[num_prefix + rows * columns, head_dim]` float32 each.
    """
    frequencies = 2 * np.pi / theta ** np.arange(0, 1, 4 / head_dim)
    centres = [2 * (np.arange(count) + 0.5) / count - 1 for count in (rows, columns)]
    grid = np.stack(np.meshgrid(*centres, indexing="ij"), axis=-1).reshape(-1, 2)
    angles = (grid[:, :, None] * frequencies).reshape(len(grid), -1)
    angles = np.pad(np.tile(angles, 2), ((num_prefix, 0), (0, 0)))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
