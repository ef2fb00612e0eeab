"""Next-token prediction: the objective that LeJEPA is compared with."""

import chex
import jax
import jax.numpy as jnp
import optax


def next_token_loss(
    logits: jax.Array, tokens: jax.Array, mask: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the mean cross-entropy of each token given those before it.

    The mean runs over all predicted tokens of the whole batch (not over the means of documents), so
    it is the same number however the batch is sharded.

    Args:
      logits: `[..., T, vocabulary]`; position t predicts token t + 1. Computed on in float32.
      tokens: `[..., T]` int, the first one given.
      mask: `[..., T]` bool, False on padding. Padding is neither predicted nor counted.

    Returns:
      The scalar loss in nats per token, and `{"perplexity", "tokens"}`: its exponential and how
      many tokens were predicted.
    """
    chex.assert_equal_shape([tokens, mask])
    chex.assert_equal(logits.shape[:-1], tokens.shape)
    losses = optax.softmax_cross_entropy_with_integer_labels(
        logits[..., :-1, :].astype(jnp.float32), tokens[..., 1:]
    )
    predicted = mask[..., 1:].astype(jnp.float32)
    count = predicted.sum()
    loss = jnp.sum(losses * predicted) / jnp.maximum(count, 1)
    return loss, {"perplexity": jnp.exp(loss), "tokens": count}
