"""The closed form against other routes to it, the bounds against random worlds."""

import dataclasses

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from platojax.theory import cases, spectral, world
from platojax.theory.world import World

SEEDS = st.integers(0, 2**32 - 1)


def small_world(seed, *, revealing=True, nuisance_weight=0.0):
    """Two modalities with a common scene law, and an entangled nuisance of 8 values."""
    rng = np.random.default_rng(seed)
    scenes = int(rng.integers(6, 12))
    law = world.neighbouring_scenes(rng.standard_normal((scenes, 3)), rng.uniform(0.5, 1.5))
    channels = []
    for observations in rng.integers(2, 5, 2):
        channel = world.revealing_channel(rng.dirichlet(np.ones(observations) * 2, scenes))
        channels.append(channel if revealing else world.leaky_channel(rng, channel, 0.3))
    good = World(law, tuple(channels))
    return dataclasses.replace(
        cases.with_entangled_nuisance(rng, good), nuisance_weight=nuisance_weight
    )


def random_whitened(seed, marginal, dim):
    rng = np.random.default_rng(seed)
    return spectral.whiten(rng.standard_normal((len(marginal), dim)), marginal)


def sum_sin2(first, second, marginal):
    return np.sum(np.sin(spectral.principal_angles(first, second, marginal)) ** 2)


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS)
def test_three_ways_to_the_optimum_agree(seed):
    drawn = small_world(seed, revealing=False)
    prior, channel = drawn.prior, drawn.channels[0]
    marginal = drawn.marginal(0)
    law = channel.T @ (prior[:, None] * channel)
    dim = 3
    features, values = spectral.spectral_optimum(law, dim)
    # Singular vectors of the channel, M = D_mu^-1/2 P^T D_p^1/2: the operator is M M^T.
    m = (channel * np.sqrt(prior)[:, None] / np.sqrt(marginal)).T
    left, singular, _ = np.linalg.svd(m, full_matrices=False)
    # The generalised eigenproblem Pi f = lambda D_mu f.
    general_values, general = scipy.linalg.eigh(law, np.diag(marginal))
    # The scenes' side, G = M^T M, carried to observations by M.
    scene_values, scene = np.linalg.eigh(m.T @ m)

    np.testing.assert_allclose(values[:dim], singular[1 : dim + 1] ** 2, atol=1e-10)
    np.testing.assert_allclose(values[:dim], general_values[::-1][1 : dim + 1], atol=1e-10)
    np.testing.assert_allclose(values[:dim], scene_values[::-1][1 : dim + 1], atol=1e-10)
    assume(spectral.eigengap(values, dim) > 1e-4 and values[0] < 1 - 1e-4)
    others = (
        left[:, 1 : dim + 1] / np.sqrt(marginal)[:, None],
        general[:, ::-1][:, 1 : dim + 1],
        (m @ scene[:, ::-1][:, 1 : dim + 1]) / np.sqrt(marginal)[:, None],
    )
    for other in others:
        assert spectral.principal_angles(features, other, marginal).max() < 1e-6


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, weight=st.floats(0, 1))
def test_the_optimum_is_whitened_and_nothing_whitened_is_better(seed, weight):
    drawn = small_world(seed, nuisance_weight=weight)
    law, marginal = drawn.pair_law(0), drawn.marginal(0)
    features, values = spectral.spectral_optimum(law, 3)
    np.testing.assert_allclose(marginal @ features, 0, atol=1e-10)
    np.testing.assert_allclose(features.T @ (marginal[:, None] * features), np.eye(3), atol=1e-10)
    least = spectral.optimal_loss(values, 3)
    assert spectral.pair_loss(features, law) == pytest.approx(least, abs=1e-10)
    assert spectral.pair_loss(random_whitened(seed, marginal, 3), law) >= least - 1e-10


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, revealing=st.booleans())
def test_eigenvalues_of_good_views_lie_in_the_unit_interval(seed, revealing):
    _, values = spectral.spectral_optimum(small_world(seed, revealing=revealing).good_law(1), 1)
    assert values.max() <= 1
    assert values.min() > -1e-12
    assert (np.diff(values) <= 0).all()


@settings(max_examples=100, deadline=None)
@given(seed=SEEDS, dim=st.integers(2, 5))
def test_the_loss_does_not_see_rotations(seed, dim):
    law = small_world(seed, nuisance_weight=0.4).pair_law(0)
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((len(law), dim))
    rotation = scipy.stats.ortho_group.rvs(dim, random_state=rng)
    expected = spectral.pair_loss(features, law)
    assert spectral.pair_loss(features @ rotation, law) == pytest.approx(expected, rel=1e-10)
    # By the definition, pair by pair.
    squared = np.sum((features[:, None] - features[None]) ** 2, axis=-1)
    assert np.sum(law * squared) == pytest.approx(expected, rel=1e-10)


@settings(max_examples=300, deadline=None)
@given(seed=SEEDS, weight=st.floats(0, 1), dim=st.integers(1, 4))
def test_the_bounds_are_never_violated(seed, weight, dim):
    drawn = small_world(seed, nuisance_weight=weight)
    optima, bounds = [], []
    for m in range(2):
        good, law, marginal = drawn.good_law(m), drawn.pair_law(m), drawn.marginal(m)
        reference, values = spectral.spectral_optimum(good, dim)
        assume(spectral.eigengap(values, dim) > 1e-6)
        solved, _ = spectral.spectral_optimum(law, dim)
        for encoder in (solved, random_whitened(seed, marginal, dim)):
            sin2 = sum_sin2(encoder, reference, marginal)
            assert sin2 <= spectral.misalignment_bound(encoder, good) * (1 + 1e-9) + 1e-9
            distance = spectral.procrustes_residual(encoder, reference, marginal)
            assert distance <= 2 * sin2 + 1e-9
        sin2 = sum_sin2(solved, reference, marginal)
        assert sin2 <= spectral.davis_kahan_bound(good, law, dim) * (1 + 1e-9) + 1e-9
        optima.append(solved)
        bounds.append(spectral.misalignment_bound(solved, good))
    # Each observation reveals its scene and the scene law is common, so the distances add.
    residual = spectral.observation_residual(*optima, drawn.cross_law(0, 1))
    assert residual <= spectral.cross_modal_bound(*bounds) + 1e-8


def test_the_bound_is_attained_where_the_two_directions_at_the_gap_mix():
    law = small_world(0).good_law(0)
    marginal = law.sum(axis=1)
    features, _ = spectral.spectral_optimum(law, 4)
    angle = 0.3
    mixed = features[:, :3].copy()
    mixed[:, 2] = np.cos(angle) * features[:, 2] + np.sin(angle) * features[:, 3]
    sin2 = sum_sin2(mixed, features[:, :3], marginal)
    assert sin2 == pytest.approx(np.sin(angle) ** 2, rel=1e-9)
    assert spectral.misalignment_bound(mixed, law) == pytest.approx(sin2, rel=1e-9)


@settings(max_examples=50, deadline=None)
@given(seed=SEEDS)
def test_procrustes_undoes_rotations_and_only_them(seed):
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((12, 4))
    weights = rng.dirichlet(np.ones(12))
    rotated = features @ scipy.stats.ortho_group.rvs(4, random_state=rng)
    assert spectral.procrustes_residual(features, rotated, weights) < 1e-25
    assert spectral.procrustes_residual(features, rotated) < 1e-25
    assert spectral.procrustes_residual(features, features * 1.1) > 1e-3


def test_the_two_levels_of_residual():
    drawn = small_world(1)
    solved = [spectral.spectral_optimum(drawn.good_law(m), 3)[0] for m in range(2)]
    assert spectral.observation_residual(*solved, drawn.cross_law(0, 1)) < 1e-12
    assert spectral.scene_residual(*solved, *drawn.channels, drawn.prior) < 1e-25
    # Noise within scenes that scenes do not see: it counts at the observations only.
    channel, marginal = drawn.channels[0], drawn.marginal(0)
    noise = np.random.default_rng(0).standard_normal(solved[0].shape)
    noise -= np.sign(channel).T @ (channel @ noise)
    assert spectral.scene_residual(
        solved[0] + noise, solved[1], *drawn.channels, drawn.prior
    ) == pytest.approx(0, abs=1e-12)
    size = np.sum(marginal[:, None] * noise**2)
    assert spectral.observation_residual(
        solved[0] + noise, solved[1], drawn.cross_law(0, 1)
    ) == pytest.approx(size, rel=1e-9)


# The conditions of docs/theory.md, one by one, in the standard set's worlds.


def paper_size_world(seed=0):
    rng = np.random.default_rng(seed)
    law = world.neighbouring_scenes(rng.standard_normal((48, 3)))
    channels = (world.revealing_channel(rng.dirichlet(np.ones(n), 48)) for n in (5, 9))
    return World(law, tuple(channels))


def solved_residual(drawn, dim):
    solved = [spectral.spectral_optimum(drawn.pair_law(m), dim)[0] for m in range(2)]
    return spectral.observation_residual(*solved, drawn.cross_law(0, 1)) / dim


def test_a_common_law_gives_one_representation():
    drawn = paper_size_world()
    assert solved_residual(drawn, 6) < 1e-13
    _, values = spectral.spectral_optimum(drawn.good_law(0), 6)
    assert spectral.is_unique(values, 6)


def test_leakage_separates_modalities_as_recorded():
    drawn = paper_size_world()
    rng = np.random.default_rng(1)
    for leakage, expected in ((0.02, 0.078), (0.1, 0.364), (0.3, 0.956)):
        channels = tuple(world.leaky_channel(rng, c, leakage) for c in drawn.channels)
        assert solved_residual(World(drawn.scene_law, channels), 6) == pytest.approx(
            expected, rel=0.05
        )


def test_nuisance_separates_modalities_within_the_bound():
    drawn = cases.with_entangled_nuisance(np.random.default_rng(1), paper_size_world(2))
    good = drawn.good_law(0)
    reference, _ = spectral.spectral_optimum(good, 6)
    last = 0.0
    for weight in (0.01, 0.03, 0.1, 0.3):
        bad = dataclasses.replace(drawn, nuisance_weight=weight)
        features, _ = spectral.spectral_optimum(bad.pair_law(0), 6)
        sin2 = sum_sin2(features, reference, drawn.marginal(0))
        assert 5 * last < sin2 <= spectral.misalignment_bound(features, good)
        last = sin2


def test_generic_channels_do_not_agree():
    rng = np.random.default_rng(0)
    prior = np.full(8, 1 / 8)
    channels = tuple(rng.dirichlet(np.ones(n), 8) for n in (12, 16))
    drawn = World(world.same_scene(prior), channels)
    assert solved_residual(drawn, 6) > 0.5
    # Nor are the scenes' means, whitened: about 1.7 of 12.
    means = [
        spectral.whiten(channels[m] @ spectral.spectral_optimum(drawn.good_law(m), 6)[0], prior)
        for m in range(2)
    ]
    assert spectral.procrustes_residual(*means) == pytest.approx(1.7, abs=0.3)


def test_lossless_views_of_one_scene_agree_only_at_full_width():
    rng = np.random.default_rng(0)
    channels = tuple(world.revealing_channel(rng.dirichlet(np.ones(n), 6)) for n in (2, 3))
    drawn = World(world.same_scene(rng.dirichlet(np.ones(6) * 4)), channels)
    _, values = spectral.spectral_optimum(drawn.good_law(0), 5)
    assert spectral.is_unique(values, 5)
    assert solved_residual(drawn, 5) < 1e-12
    assert not spectral.is_unique(values, 3)


def test_independent_nuisance_displaces_scene_directions_one_by_one():
    scene_law = paper_size_world().scene_law
    drawn = cases.independent_nuisance_world(scene_law)
    changes = cases.phase_changes(drawn, 6)
    for number, change in enumerate(changes):
        for factor, displaced in ((0.99, number), (1.01, number + 1)):
            bad = dataclasses.replace(drawn, nuisance_weight=change * factor)
            # Each displaced direction is independent between modalities: 2 of 2 d.
            assert solved_residual(bad, 6) == pytest.approx(2 * displaced / 6, abs=1e-9)


LAW = small_world(0).good_law(0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: spectral.spectral_optimum(LAW + np.eye(len(LAW), k=1), 2), r"must sum to 1"),
        (
            lambda: spectral.spectral_optimum(np.array([[0.2, 0.5], [0.1, 0.2]]), 1),
            r"symmetric; \[0, 1\] is 0\.5.*\[1, 0\] is 0\.1.*\(law \+ law\.T\) / 2",
        ),
        (
            lambda: spectral.spectral_optimum(np.diag([0.5, 0.5, 0]), 1),
            r"entry 2 has probability 0.*remove it",
        ),
        (lambda: spectral.spectral_optimum(LAW[:2], 1), r"must be square.*\(2, "),
        (lambda: spectral.spectral_optimum(LAW, 0), r"dim must be at least 1; got 0"),
        (
            lambda: spectral.spectral_optimum(np.diag([0.25] * 4), 4),
            r"dim is 4, but only 3 directions.*use dim <= 3",
        ),
        (
            lambda: spectral.misalignment_bound(np.ones((len(LAW), 2)), LAW),
            r"features must be whitened.*whiten\(features, marginal\)",
        ),
        (
            lambda: spectral.davis_kahan_bound(np.diag([0.25] * 4), np.diag([0.25] * 4), 2),
            r"no eigengap at dim=2.*use another dim",
        ),
        (
            lambda: spectral.whiten(np.ones((len(LAW), 2)), LAW.sum(axis=1)),
            r"cannot be whitened; use a smaller width",
        ),
        (
            lambda: spectral.procrustes_residual(np.ones((3, 2)), np.ones((3, 4))),
            r"one shape; got \(3, 2\) and \(3, 4\)",
        ),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
