"""Finite worlds: laws are symmetric, keep their marginals, and refuse what is no law."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platojax.theory import world
from platojax.theory.world import World

SEEDS = st.integers(0, 2**32 - 1)


def random_world(seed, weight=0.3):
    """Two modalities of random sizes, scene law, channels (revealing or not) and nuisances."""
    rng = np.random.default_rng(seed)
    scenes = int(rng.integers(3, 9))
    if rng.random() < 0.5:
        law = world.neighbouring_scenes(rng.standard_normal((scenes, 2)), rng.uniform(0.3, 2))
    else:
        law = world.same_scene(rng.dirichlet(np.full(scenes, 2.0)))
    channels, nuisances = [], []
    for _ in range(2):
        shares = rng.dirichlet(np.ones(int(rng.integers(1, 5))), scenes)
        channel = world.revealing_channel(shares)
        channels.append(world.leaky_channel(rng, channel, rng.choice([0.0, 0.2])))
        marginal = law.sum(axis=1) @ channels[-1]
        labels = rng.permutation(np.arange(len(marginal)) % 3)
        nuisances.append(world.nuisance_pairs(marginal, labels))
    return World(law, tuple(channels), tuple(nuisances), weight)


@settings(max_examples=200, deadline=None)
@given(seed=SEEDS, weight=st.floats(0, 1))
def test_pair_laws_are_symmetric_and_keep_their_marginal(seed, weight):
    drawn = random_world(seed, weight)
    for m in range(2):
        law = drawn.pair_law(m)
        np.testing.assert_array_equal(law, law.T)
        np.testing.assert_allclose(law.sum(), 1, atol=1e-12)
        np.testing.assert_allclose(law.sum(axis=1), drawn.marginal(m), atol=1e-12)
        assert (law >= 0).all()
    cross = drawn.cross_law(0, 1)
    np.testing.assert_allclose(cross.sum(axis=1), drawn.marginal(0), atol=1e-12)
    np.testing.assert_allclose(cross.sum(axis=0), drawn.marginal(1), atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS)
def test_neighbouring_scenes_are_doubly_stochastic_and_positive(seed):
    rng = np.random.default_rng(seed)
    scenes = int(rng.integers(2, 30))
    law = world.neighbouring_scenes(rng.standard_normal((scenes, 3)), rng.uniform(0.5, 1.5))
    np.testing.assert_allclose(law.sum(axis=1), 1 / scenes, rtol=1e-10)
    assert np.linalg.eigvalsh(law * scenes).min() > -1e-12


def test_gaussian_scenes_have_the_moments_of_a_bivariate_normal():
    law = world.gaussian_scenes(15, 1, 0.6)
    x = np.linspace(-3, 3, 15)
    prior = law.sum(axis=1)
    variance = prior @ x**2
    # Cutting the tails at 3 standard deviations costs 2% of the variance.
    assert variance == pytest.approx(1, abs=0.03)
    assert x @ law @ x / variance == pytest.approx(0.6, abs=0.01)


def test_independent_nuisance_pairs_tell_nothing_of_the_scene():
    law = world.neighbouring_scenes(np.arange(5.0)[:, None])
    channel = world.revealing_channel(np.full((5, 3), 1 / 3))
    pairs = world.nuisance_pairs(law.sum(axis=1) @ channel, np.arange(15) % 3)
    by_scene = pairs.reshape(5, 3, 5, 3).sum(axis=(1, 3))
    np.testing.assert_allclose(by_scene, 1 / 25, atol=1e-15)


def test_sampled_pairs_follow_the_law():
    law = random_world(3).pair_law(0)
    pairs = world.sample_pairs(np.random.default_rng(0), law, 200_000)
    counts = np.zeros_like(law)
    np.add.at(counts, tuple(pairs.T), 1 / len(pairs))
    assert pairs.dtype == np.int32
    # Four standard errors of the likeliest cell.
    assert np.abs(counts - law).max() < 4 * np.sqrt(law.max() / len(pairs))


def test_full_leakage_forgets_the_scene_only_in_part_of_the_rows():
    channel = world.revealing_channel(np.ones((4, 1)))
    leaky = world.leaky_channel(np.random.default_rng(0), channel, 0.25)
    np.testing.assert_allclose(leaky.sum(axis=1), 1)
    assert (np.diag(leaky) >= 0.75).all()
    assert (leaky > 0).all()


GOOD = world.same_scene(np.full(3, 1 / 3))
CHANNEL = np.full((3, 4), 0.25)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: World(GOOD, (CHANNEL * 0.9,)), r"channels\[0\]: rows must sum to 1; row 0.*0\.9"),
        (
            lambda: World(GOOD, (CHANNEL[:2],)),
            r"channels\[0\] must be \[S, X\].*3 scenes.*\(2, 4\)",
        ),
        (lambda: World(GOOD, (CHANNEL - 0.5,)), r"channels\[0\].*entry \(0, 0\) is -0\.25"),
        (lambda: World(GOOD, (CHANNEL * np.nan,)), r"channels\[0\].*entry \(0, 0\) is nan"),
        (
            lambda: World(np.array([[0.5, 0.3], [0.1, 0.1]]), (CHANNEL[:2],)),
            r"scene_law must be symmetric; \[0, 1\] is 0\.3 and \[1, 0\] is 0\.1",
        ),
        (lambda: World(GOOD * 2, (CHANNEL,)), r"scene_law must sum to 1; it sums to 2"),
        (
            lambda: World(np.diag([0.5, 0, 0.5]), (CHANNEL,)),
            r"marginal of scene_law: entry 1 has probability 0.*remove it",
        ),
        (
            lambda: World(GOOD, (np.eye(3, 4),)),
            r"marginal of channels\[0\]: entry 3 has probability 0",
        ),
        (lambda: world.same_scene(np.array([0.5, 0, 0.5])), r"prior: entry 1 has probability 0"),
        (lambda: world.same_scene(np.array([0.5, 0.4])), r"prior must.*sum 0\.9"),
        (lambda: World(GOOD, (CHANNEL,), nuisance_weight=0.1), r"nuisance_laws is empty"),
        (lambda: World(GOOD, (CHANNEL,), nuisance_weight=1.5), r"\[0, 1\]; got 1\.5"),
        (
            lambda: World(GOOD, (CHANNEL,), (np.diag([0.1, 0.2, 0.3, 0.4]),), 0.1),
            r"nuisance_laws\[0\] must have the marginal of the good pairs",
        ),
        (
            lambda: World(GOOD, (CHANNEL, CHANNEL), (np.diag([0.25] * 4),), 0.1),
            r"one entry per modality \(2\); got 1",
        ),
        (lambda: world.leaky_channel(np.random.default_rng(0), CHANNEL, 2), r"leakage.*got 2"),
        (
            lambda: world.nuisance_pairs(np.full(4, 0.25), np.array([0, 0, 2, 2])),
            r"frequency of nuisance values: entry 1",
        ),
        (
            lambda: world.nuisance_pairs(np.full(4, 0.25), np.array([0, 0, 1, 1]), np.eye(2)),
            r"law must be \[N, N\].*frequencies",
        ),
        (lambda: world.neighbouring_scenes(np.zeros((3, 2)), 0), r"bandwidth > 0; got.*0"),
        (lambda: world.gaussian_scenes(5, 2, 1.0), r"correlation in \(0, 1\); got 5, 2 and 1"),
    ],
)
def test_bad_worlds_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_weight_zero_is_the_good_law():
    drawn = dataclasses.replace(random_world(5), nuisance_weight=0.0)
    np.testing.assert_array_equal(drawn.pair_law(1), drawn.good_law(1))
