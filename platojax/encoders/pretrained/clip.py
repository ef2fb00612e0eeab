"""CLIP's text tower."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from platojax.encoders.pretrained.config import TextConfig
from platojax.encoders.pretrained.vit import TowerOutput, finish
from platojax.encoders.transformer import Transformer


class TextTransformer(nn.Module):
    """A causal transformer whose end-of-text token stands for the text (arXiv 2103.00020).

    Attributes:
      config: the architecture.
      dtype: of the computation; parameters are float32.
    """

    config: TextConfig
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, input_ids: jax.Array, attention_mask: jax.Array) -> TowerOutput:
        """Encodes token sequences.

        Args:
          input_ids: `[B, T]` integers, T at most `max_length`, each with an end-of-text token.
          attention_mask: `[B, T]`, 1 or True on tokens and 0 or False on padding.

        Raises:
          ValueError: if the shapes are others or the sequences too long.
        """
        config = self.config
        if input_ids.ndim != 2 or input_ids.shape != attention_mask.shape:
            raise ValueError(
                f"input_ids {list(input_ids.shape)} and attention_mask "
                f"{list(attention_mask.shape)} must both be [B, T]."
            )
        length = input_ids.shape[1]
        if length > config.max_length:
            raise ValueError(
                f"input_ids hold {length} tokens, but this CLIP has positions for "
                f"{config.max_length}; cut the texts and keep their end-of-text token."
            )
        tokens = nn.Embed(config.vocab_size, config.width, dtype=self.dtype, name="tokens")
        positions = self.param(
            "positions", nn.initializers.normal(0.02), (config.max_length, config.width)
        )
        *states, normed = Transformer(
            config.depth,
            config.num_heads,
            config.mlp_dim,
            causal=True,
            dtype=self.dtype,
            style=config.style,
            name="transformer",
        )(
            tokens(input_ids) + positions[:length].astype(self.dtype),
            attention_mask.astype(bool)[:, None],
        )
        pooled = take_token(normed, end_of_text(input_ids, config.eos_id))
        return finish(states, normed, pooled, config.projection)


def end_of_text(input_ids: jax.Array, eos_id: int) -> jax.Array:
    """Position of each text's end: `[B, T]` -> `[B]`.

    The first `eos_id`; but configs from before transformers' pull request 24773 say 2, whatever the
    id is, and then it is the first of the largest ids, as transformers has it too.
    """
    return jnp.argmax(input_ids if eos_id == 2 else input_ids == eos_id, axis=1)


def take_token(x: jax.Array, position: jax.Array) -> jax.Array:
    """One token of each sequence: `x` `[B, T, D]`, `position` `[B]` -> `[B, D]`."""
    return jnp.take_along_axis(x, position[:, None, None], axis=1)[:, 0]
