"""The text encoder: bidirectional for LeJEPA, causal for next-token prediction, else the same."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from platojax.encoders.transformer import Transformer, masked_mean


class TextEncoder(nn.Module):
    """Token and learned position embeddings, a transformer, mean pooling.

    Attributes:
      vocab_size: rows of the token embedding.
      max_length: longest sequence of tokens.
      width: D.
      depth: number of blocks.
      num_heads: attention heads.
      mlp_dim: hidden width of the MLPs.
      causal: whether a token sees only itself and those before it.
      pad_id: the token that marks padding.
      dtype: of the computation.
    """

    vocab_size: int
    max_length: int
    width: int
    depth: int
    num_heads: int
    mlp_dim: int
    causal: bool
    pad_id: int
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, tokens: jax.Array) -> dict[str, jax.Array]:
        """Encodes a batch of token sequences.

        Args:
          tokens: `[B, T]` int32, T at most `max_length`, padded at the right.

        Returns:
          * `embedding` `[B, D]` float32: mean of the valid tokens after the last norm.
          * `layers` `[B, L, D]` float32, L = depth + 3, see `layer_names`.
          * `logits` `[B, T, vocab_size]`: scores of the next token, tied to the embedding (unused,
            and then not computed, where the objective does not ask for it).

        Raises:
          ValueError: if the sequences are longer than `max_length`.
        """
        if tokens.shape[1] > self.max_length:
            raise ValueError(
                f"sequences of {tokens.shape[1]} tokens exceed encoder.max_length "
                f"{self.max_length}; cut them or raise it."
            )
        mask = tokens != self.pad_id
        embed = nn.Embed(
            self.vocab_size,
            self.width,
            dtype=self.dtype,
            embedding_init=nn.initializers.normal(0.02),
            name="tokens",
        )
        positions = self.param(
            "positions", nn.initializers.normal(0.02), (self.max_length, self.width)
        )
        x = embed(tokens) + positions[: tokens.shape[1]].astype(self.dtype)
        states = Transformer(
            self.depth, self.num_heads, self.mlp_dim, self.causal, self.dtype, name="transformer"
        )(x, mask)
        means = [masked_mean(state, mask) for state in states]
        last = jnp.maximum(mask.sum(1) - 1, 0)
        last_token = jnp.take_along_axis(states[-1], last[:, None, None], axis=1)[:, 0]
        return {
            "embedding": means[-1],
            "layers": jnp.stack([*means, last_token.astype(jnp.float32)], axis=1),
            "logits": embed.attend(states[-1]),
        }

    def layer_names(self) -> list[str]:
        """What each entry of `layers` is; all but the last are means over tokens."""
        blocks = [f"block_{i}" for i in range(self.depth)]
        return ["tokens", *blocks, "embedding", "last_token"]
