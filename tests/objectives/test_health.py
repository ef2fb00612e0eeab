import jax
import jax.numpy as jnp
import numpy as np

from platojax.objectives.health import embedding_health


def test_gaussian_embeddings_fill_their_space():
    health = embedding_health(3 * jax.random.normal(jax.random.key(0), (4096, 16)) + 5)
    np.testing.assert_allclose(health["spread"], 3, rtol=0.05)
    np.testing.assert_allclose(health["effective_rank"], 16, rtol=0.05)
    assert health["covariance_off_diagonal"] < 0.05


def test_a_point_and_a_line_are_seen():
    point = embedding_health(jnp.ones((64, 8)))
    assert point["spread"] == 0
    assert point["effective_rank"] < 1
    line = embedding_health(jnp.linspace(-1, 1, 64)[:, None] * jnp.ones((1, 8)))
    np.testing.assert_allclose(line["effective_rank"], 1, rtol=1e-5)
    np.testing.assert_allclose(line["covariance_off_diagonal"], 1, rtol=1e-5)
