"""Next-token prediction: the objective that LeJEPA is compared with."""

import chex
import jax
import jax.numpy as jnp
import optax


def surprisal(
    logits: jax.Array, tokens: jax.Array, segments: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the summed cross-entropy of each row's tokens given those before them in their text.

    Args:
      logits: `[..., T, vocabulary]`; position t predicts token t + 1. Computed on in float32.
      tokens: `[..., T]` int, the first one given.
      segments: `[..., T]` int, which text a token belongs to, -1 on padding. The first token of a
        text and padding are neither predicted nor counted.

    Returns:
      The sums in nats and the numbers of predicted tokens, `[...]` float32 each.
    """
    chex.assert_equal_shape([tokens, segments])
    chex.assert_equal(logits.shape[:-1], tokens.shape)
    losses = optax.softmax_cross_entropy_with_integer_labels(
        logits[..., :-1, :].astype(jnp.float32), tokens[..., 1:]
    )
    following = segments[..., 1:]
    predicted = ((following == segments[..., :-1]) & (following >= 0)).astype(jnp.float32)
    return jnp.sum(losses * predicted, axis=-1), predicted.sum(-1)


def next_token_loss(
    surprisals: jax.Array, predicted: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the mean cross-entropy of a batch.

    The mean runs over all predicted tokens of the whole batch (not over the means of texts), so it
    is the same number however the batch is sharded, or cut into micro-batches.

    Args:
      surprisals: of the rows, see `surprisal`; any shape.
      predicted: how many tokens each sums up; the same shape.

    Returns:
      The scalar loss in nats per token, and `{"perplexity"}`, its exponential.
    """
    chex.assert_equal_shape([surprisals, predicted])
    loss = surprisals.sum() / jnp.maximum(predicted.sum(), 1)
    return loss, {"perplexity": jnp.exp(loss)}
