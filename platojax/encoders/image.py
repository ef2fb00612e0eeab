"""The image encoder: a small ViT."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from platojax.encoders.transformer import Transformer, sincos_positions


class ImageEncoder(nn.Module):
    """Patches, fixed 2-D positions, a transformer, mean pooling over patches.

    Attributes:
      patch_size: side of a patch in pixels.
      width: D, a multiple of 4.
      depth: number of blocks.
      num_heads: attention heads.
      mlp_dim: hidden width of the MLPs.
      dtype: of the computation.
      remat: see `Transformer`.
    """

    patch_size: int
    width: int
    depth: int
    num_heads: int
    mlp_dim: int
    dtype: jnp.dtype = jnp.float32
    remat: bool = False

    @nn.compact
    def __call__(self, images: jax.Array) -> dict[str, jax.Array]:
        """Encodes a batch of images; any size that is a multiple of the patch size.

        Args:
          images: `[B, H, W, 3]` uint8.

        Returns:
          * `embedding` `[B, D]` float32: mean of the patches after the last norm.
          * `layers` `[B, L, D]` float32, L = depth + 2, see `layer_names`.

        Raises:
          ValueError: if the images are not a whole number of patches.
        """
        _, height, width, _ = images.shape
        if height % self.patch_size or width % self.patch_size:
            raise ValueError(
                f"images of {height} x {width} pixels are not a whole number of patches of "
                f"{self.patch_size}; change encoder.patch_size or the views' image size."
            )
        pixels = images.astype(self.dtype) / 127.5 - 1.0
        patch = (self.patch_size, self.patch_size)
        x = nn.Conv(self.width, patch, patch, "VALID", dtype=self.dtype, name="patches")(pixels)
        rows, columns = x.shape[1:3]
        x = x.reshape(x.shape[0], rows * columns, self.width)
        x = x + sincos_positions(rows, columns, self.width).astype(self.dtype)
        states = Transformer(
            self.depth,
            self.num_heads,
            self.mlp_dim,
            dtype=self.dtype,
            remat=self.remat,
            name="transformer",
        )(x)
        means = [state.astype(jnp.float32).mean(1) for state in states]
        return {"embedding": means[-1], "layers": jnp.stack(means, axis=1)}

    def layer_names(self) -> list[str]:
        """What each entry of `layers` is; all are means over patches."""
        return ["patches", *[f"block_{i}" for i in range(self.depth)], "embedding"]
