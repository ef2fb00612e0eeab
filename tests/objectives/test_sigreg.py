import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from platojax.objectives.sigreg import random_directions, sigreg

GOLDEN = np.load(pathlib.Path(__file__).parents[1] / "golden" / "sigreg.npz")


def plain_statistic(u, t_max=3.0, num_knots=17):
    """The statistic as the paper writes it, in float64: u [N, S] -> [S]."""
    t = np.linspace(0, t_max, num_knots)
    dt = t[1]
    weights = np.where((t == 0) | (t == t[-1]), dt, 2 * dt)
    normal = np.exp(-(t**2) / 2)
    angles = np.asarray(u, np.float64)[:, :, None] * t
    cos, sin = np.cos(angles).mean(0), np.sin(angles).mean(0)
    return len(u) * ((cos - normal) ** 2 + sin**2) @ (weights * normal)


@pytest.mark.parametrize("kind", ["normal", "skew", "collapsed", "wide"])
def test_value_and_gradient_are_the_authors(kind):
    z, directions, t_max, knots, statistic, grad = (
        GOLDEN[f"{kind}.{name}"]
        for name in ("z", "directions", "t_max", "knots", "statistic", "grad")
    )
    args = {"t_max": float(t_max), "num_knots": int(knots)}
    value = sigreg(jnp.asarray(z), jnp.asarray(directions), **args)
    gradient = jax.grad(lambda z: sigreg(z, jnp.asarray(directions), **args).mean())(z)
    np.testing.assert_allclose(value, statistic, rtol=0, atol=1e-5 * np.abs(statistic).max())
    np.testing.assert_allclose(gradient, grad, rtol=0, atol=1e-5 * np.abs(grad).max())


@pytest.mark.parametrize(
    ("num_rows", "t_max", "knots"), [(2, 3.0, 17), (333, 5.0, 9), (64, 1.0, 2)]
)
def test_equals_plain_float64_formula(num_rows, t_max, knots):
    rng = np.random.default_rng(0)
    z = rng.normal(0.3, 1.7, (num_rows, 12)).astype(np.float32)
    directions = random_directions(jax.random.key(0), 12, 40)
    expected = plain_statistic(z @ np.asarray(directions), t_max, knots)
    value = sigreg(jnp.asarray(z), directions, t_max=t_max, num_knots=knots)
    np.testing.assert_allclose(value, expected, rtol=1e-4)


def test_gradient_is_the_one_autodiff_finds():
    rng = np.random.default_rng(1)
    z = jnp.asarray(rng.normal(-0.5, 2.0, (50, 7)), jnp.float32)
    directions = random_directions(jax.random.key(1), 7, 20)
    cotangent = jnp.asarray(rng.normal(size=20), jnp.float32)
    t = jnp.linspace(0, 3, 17)
    weights = jnp.full(17, 3 / 8).at[jnp.array([0, 16])].set(3 / 16) * jnp.exp(-(t**2) / 2)

    def plain(z):
        angles = (z @ directions)[:, :, None] * t[None, None]
        parts = jnp.cos(angles).mean(0) - jnp.exp(-(t**2) / 2)[None], jnp.sin(angles).mean(0)
        return (z.shape[0] * (parts[0] ** 2 + parts[1] ** 2) @ weights) @ cotangent

    gradient = jax.grad(lambda z: sigreg(z, directions) @ cotangent)(z)
    expected = jax.grad(plain)(z)
    np.testing.assert_allclose(gradient, expected, atol=1e-5 * float(jnp.abs(expected).max()))


@pytest.mark.parametrize("num_rows", [64, 1024])
def test_a_gaussian_scores_about_one_whatever_the_batch(num_rows):
    z = jax.random.normal(jax.random.key(0), (20, num_rows, 16))
    directions = random_directions(jax.random.key(1), 16, 256)
    mean = jax.vmap(lambda z: sigreg(z, directions).mean())(z).mean()
    assert 1.0 < mean < 1.11  # 1.0525 in expectation


def test_total_collapse_costs_but_has_no_gradient():
    z = jnp.zeros((128, 16))
    directions = random_directions(jax.random.key(1), 16, 64)
    value, gradient = jax.value_and_grad(lambda z: sigreg(z, directions).mean())(z)
    np.testing.assert_allclose(value, 0.402 * 128, rtol=1e-3)
    assert not np.any(gradient)


def test_collapse_of_scale_costs():
    z = jax.random.normal(jax.random.key(0), (256, 16))
    directions = random_directions(jax.random.key(1), 16, 64)
    assert sigreg(0.1 * z, directions).mean() > 10 * sigreg(z, directions).mean()


def test_bfloat16_embeddings_are_computed_in_float32():
    z = jax.random.normal(jax.random.key(0), (256, 16)).astype(jnp.bfloat16)
    directions = random_directions(jax.random.key(1), 16, 64)
    value, gradient = jax.value_and_grad(lambda z: sigreg(z, directions).mean())(z)
    assert value.dtype == jnp.float32
    assert gradient.dtype == jnp.bfloat16
    np.testing.assert_allclose(value, sigreg(z.astype(jnp.float32), directions).mean(), rtol=1e-6)


def test_no_array_has_a_knot_axis():
    z = jnp.zeros((64, 8))
    directions = random_directions(jax.random.key(1), 8, 32)
    jaxpr = jax.make_jaxpr(jax.grad(lambda z: sigreg(z, directions).mean()))(z)

    def largest(jaxpr):
        sizes = [v.aval.size for eqn in jaxpr.eqns for v in eqn.outvars]
        inner = [
            largest(p.jaxpr) for e in jaxpr.eqns for p in e.params.values() if hasattr(p, "jaxpr")
        ]
        return max(sizes + inner)

    assert largest(jaxpr.jaxpr) == 64 * 32


def test_directions_are_unit_and_follow_the_key():
    one = random_directions(jax.random.key(3), 5, 100)
    np.testing.assert_allclose(jnp.linalg.norm(one, axis=0), 1, rtol=1e-6)
    np.testing.assert_array_equal(one, random_directions(jax.random.key(3), 5, 100))
    assert not np.allclose(one, random_directions(jax.random.key(4), 5, 100))


@pytest.mark.parametrize("bad", [{"num_knots": 1}, {"t_max": 0.0}])
def test_impossible_knots_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        sigreg(jnp.zeros((4, 2)), jnp.ones((2, 3)), **bad)


def test_widths_that_differ_are_refused():
    with pytest.raises(AssertionError):
        sigreg(jnp.zeros((4, 2)), jnp.ones((3, 3)))
