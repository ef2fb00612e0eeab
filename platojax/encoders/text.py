"""The text encoder: bidirectional for LeJEPA, causal for next-token prediction, else the same."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from platojax.encoders.transformer import Transformer


class TextEncoder(nn.Module):
    """Token and learned position embeddings, a transformer, mean pooling.

    Texts come one in a row, or packed: groups of G texts in R rows, where a text attends only to
    itself and its positions start at 0, so that each text's outputs are what it would get alone.

    Attributes:
      vocab_size: rows of the token embedding.
      max_length: longest text in tokens.
      width: D.
      depth: number of blocks.
      num_heads: attention heads.
      mlp_dim: hidden width of the MLPs.
      causal: whether a token sees only itself and those before it.
      pad_id: the token that marks padding.
      dtype: of the computation.
      remat: see `Transformer`.
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
    remat: bool = False

    @nn.compact
    def __call__(
        self, tokens: jax.Array, segments: jax.Array | None = None, group_size: int = 1
    ) -> dict[str, jax.Array]:
        """Encodes a batch of token sequences.

        Args:
          tokens: `[B, T]` int32, T at most `max_length`, padded at the right; or packed,
            `[B, R, T]`, where T may be longer.
          segments: of packed tokens: `[B, R, T]` int32, which text of its group a token belongs to,
            -1 on padding. Each text lies in one row, without gaps.
          group_size: G, texts of a group; 1 where they are not packed.

        Returns:
          * `embedding` `[B * G, D]` float32: mean of the valid tokens after the last norm, zeros
            for a text without any.
          * `layers` `[B * G, L, D]` float32, L = depth + 3, see `layer_names`.
          * `logits` `[*tokens.shape, vocab_size]`: scores of the next token, tied to the embedding
            (unused, and then not computed, where the objective does not ask for it).

        Raises:
          ValueError: if unpacked sequences are longer than `max_length`.
        """
        groups, length = tokens.shape[0], tokens.shape[-1]
        embed = nn.Embed(
            self.vocab_size,
            self.width,
            dtype=self.dtype,
            embedding_init=nn.initializers.normal(0.02),
            name="tokens",
        )
        positions = self.param(
            "positions", nn.initializers.normal(0.02), (self.max_length, self.width)
        ).astype(self.dtype)
        if segments is None:
            if length > self.max_length:
                raise ValueError(
                    f"sequences of {length} tokens exceed encoder.max_length "
                    f"{self.max_length}; cut them or raise it."
                )
            segments = jnp.where(tokens == self.pad_id, -1, 0)
            placed, mask = positions[:length], segments[:, None] == 0
        else:
            # The rows into the groups' axis, which is sharded: its minor part, so nothing moves.
            segments = segments.reshape(-1, length)
            placed = positions[_places(segments)]
            mask = segments[:, :, None] == segments[:, None, :]
        x = embed(tokens.reshape(-1, length)) + placed
        states = Transformer(
            self.depth,
            self.num_heads,
            self.mlp_dim,
            self.causal,
            self.dtype,
            remat=self.remat,
            name="transformer",
        )(x, mask)
        segments = segments.reshape(groups, -1)
        by_group = [state.reshape(groups, -1, self.width) for state in states]
        means = [segment_means(state, segments, group_size) for state in by_group]
        last_token = _last_tokens(by_group[-1], segments, group_size)
        return {
            "embedding": means[-1],
            "layers": jnp.stack([*means, last_token.astype(jnp.float32)], axis=1),
            # Of rows, as `transformer.product_of_rows`.
            "logits": embed.attend(states[-1].reshape(-1, self.width)).reshape(
                *tokens.shape, self.vocab_size
            ),
        }

    def layer_names(self) -> list[str]:
        """What each entry of `layers` is; all but the last are means over tokens."""
        blocks = [f"block_{i}" for i in range(self.depth)]
        return ["tokens", *blocks, "embedding", "last_token"]


def _places(segments: jax.Array) -> jax.Array:
    """How many tokens of the same text stand before each token: `[B, T]` int32 -> the same.

    On padding 0.
    """
    index = jnp.arange(segments.shape[1])
    begins = segments != jnp.roll(segments, 1, axis=1)
    start = jax.lax.cummax(jnp.where(begins | (index == 0), index, 0), axis=1)
    return jnp.where(segments < 0, 0, index - start)


def segment_means(x: jax.Array, segments: jax.Array, group_size: int) -> jax.Array:
    """Mean over each text's tokens, in float32.

    Args:
      x: `[B, T, D]` tokens of B groups.
      segments: `[B, T]` int32, 0 to G - 1, which text of its group a token belongs to; -1 on
        padding.
      group_size: G.

    Returns:
      `[B * G, D]` float32; zeros for a text without any token.
    """
    member = segments[..., None] == jnp.arange(group_size)
    # A matrix product, which on TPUs a scatter is not; its ones and zeros are exact in any dtype.
    sums = jnp.einsum(
        "btd,btg->bgd",
        x,
        member.astype(x.dtype),
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    count = member.sum(axis=1)[..., None]
    return (sums / jnp.maximum(count, 1)).reshape(-1, x.shape[-1])


def _last_tokens(x: jax.Array, segments: jax.Array, group_size: int) -> jax.Array:
    """Each text's last token: `[B, T, D]`, `[B, T]` -> `[B * G, D]`; any for an empty text."""
    index = jnp.arange(segments.shape[1])[:, None]
    member = segments[..., None] == jnp.arange(group_size)
    last = jnp.where(member, index, 0).max(axis=1)
    return jnp.take_along_axis(x, last[..., None], axis=1).reshape(-1, x.shape[-1])
