import jax
import jax.numpy as jnp
import numpy as np

from platojax.objectives.next_token import next_token_loss, surprisal


def loss_of(logits, tokens, mask):
    return next_token_loss(*surprisal(logits, tokens, jnp.where(mask, 0, -1)))


def test_mean_over_predicted_tokens_of_the_whole_batch():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 5, 7)).astype(np.float32)
    tokens = np.array([[2, 4, 5, 3, 0], [2, 6, 3, 0, 0]])
    mask = tokens != 0
    losses = []
    for row in range(2):
        for t in range(4):
            if mask[row, t + 1]:
                p = np.exp(logits[row, t]) / np.exp(logits[row, t]).sum()
                losses.append(-np.log(p[tokens[row, t + 1]]))
    loss, metrics = loss_of(jnp.asarray(logits), jnp.asarray(tokens), jnp.asarray(mask))
    _, predicted = surprisal(logits, tokens, np.where(mask, 0, -1))
    np.testing.assert_array_equal(predicted, [3, 2])
    np.testing.assert_allclose(loss, np.mean(losses), rtol=1e-5)
    np.testing.assert_allclose(metrics["perplexity"], np.exp(np.mean(losses)), rtol=1e-5)
    assert len(losses) == 5


def test_padding_gets_no_gradient_and_an_empty_batch_is_zero():
    tokens = jnp.array([[2, 4, 3, 0]])
    gradient = jax.grad(lambda x: loss_of(x, tokens, tokens != 0)[0])(jnp.zeros((1, 4, 7)))
    assert np.any(gradient[0, 1])
    assert not np.any(gradient[0, 2:])
    loss, _ = loss_of(jnp.zeros((1, 4, 7)), tokens, jnp.zeros((1, 4), bool))
    assert loss == 0


def test_uniform_logits_cost_the_log_of_the_vocabulary():
    tokens = jnp.array([[[2, 4, 3]], [[2, 5, 3]]])
    loss, _ = loss_of(jnp.zeros((2, 1, 3, 50)), tokens, tokens > 0)
    np.testing.assert_allclose(loss, np.log(50), rtol=1e-6)


def test_no_target_lies_in_another_text():
    tokens = jnp.array([[2, 4, 3, 2, 5, 6, 3, 0]])
    segments = jnp.array([[1, 1, 1, 0, 0, 0, 0, -1]])
    logits = jax.random.normal(jax.random.key(0), (1, 8, 7))
    together = surprisal(logits, tokens, segments)
    apart = [
        surprisal(logits[:, part], tokens[:, part], segments[:, part])
        for part in (slice(3), slice(3, 7))
    ]
    assert together[1] == 5
    np.testing.assert_allclose(together[0], apart[0][0] + apart[1][0], rtol=1e-6)
