import jax
import jax.numpy as jnp
import numpy as np
import pytest

from platojax.objectives.lejepa import lejepa_loss
from platojax.objectives.sigreg import random_directions, sigreg


@pytest.fixture
def z():
    return 1.3 * jax.random.normal(jax.random.key(0), (3, 64, 8)) + 0.2


@pytest.fixture
def directions():
    return random_directions(jax.random.key(1), 8, 32)


def test_loss_is_the_weighted_sum_of_its_parts(z, directions):
    loss, parts = lejepa_loss(z, directions, lam=0.05)
    centre = np.mean(z, axis=0)
    np.testing.assert_allclose(
        parts["prediction"], np.mean((np.asarray(z) - centre) ** 2), rtol=1e-5
    )
    per_view = [sigreg(view, directions).mean() for view in z]
    np.testing.assert_allclose(parts["sigreg"], np.mean(per_view), rtol=1e-5)
    np.testing.assert_allclose(loss, 0.95 * parts["prediction"] + 0.05 * parts["sigreg"], rtol=1e-6)


def test_sigreg_is_per_view_not_pooled(directions):
    # Two views that are Gaussian only together: pooled they would pass, one by one they must not.
    half = jnp.abs(jax.random.normal(jax.random.key(2), (512, 8)))
    _, parts = lejepa_loss(jnp.stack([half, -half]), directions, lam=0.5)
    assert parts["sigreg"] > 5


def test_centre_is_the_mean_of_the_global_views(z, directions):
    _, parts = lejepa_loss(z, directions, lam=0.05, num_global=2)
    centre = np.mean(z[:2], axis=0)
    np.testing.assert_allclose(
        parts["prediction"], np.mean((np.asarray(z) - centre) ** 2), rtol=1e-5
    )


@pytest.mark.parametrize("num_global", [None, 1, 2])
@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_every_view_gets_gradient_from_each_part(z, directions, num_global, lam):
    gradient = jax.grad(lambda z: lejepa_loss(z, directions, lam=lam, num_global=num_global)[0])(z)
    norms = jnp.linalg.norm(gradient, axis=(1, 2))
    assert np.all(norms > 1e-4)


@pytest.mark.parametrize(
    ("field", "bad"), [("lam", -0.1), ("lam", 1.1), ("num_global", 0), ("num_global", 4)]
)
def test_values_out_of_range_are_refused(z, directions, field, bad):
    with pytest.raises(ValueError, match=f"{field}.*got {bad}"):
        lejepa_loss(z, directions, **{"lam": 0.5, field: bad})
