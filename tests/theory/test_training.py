"""Trained encoders reach the closed form; LeJEPA is the product's own."""

import numpy as np
import pytest

from platojax.objectives import lejepa, sigreg
from platojax.theory import measures, spectral, training, world
from platojax.theory.world import World


@pytest.fixture(scope="module")
def common_law():
    """Two modalities of different sizes under one scene law with an eigengap of .085 at d = 3."""
    rng = np.random.default_rng(0)
    law = world.neighbouring_scenes(rng.standard_normal((24, 3)))
    channels = (world.revealing_channel(rng.dirichlet(np.ones(n), 24)) for n in (3, 5))
    drawn = World(law, tuple(channels))
    assert spectral.eigengap(spectral.spectral_optimum(drawn.good_law(0), 3)[1], 3) > 0.08
    return drawn


@pytest.mark.parametrize("make", [training.tabular_encoder, training.mlp_encoder])
def test_whitened_encoders_reach_the_closed_form(common_law, make):
    runs = []
    for m in range(2):
        law, marginal = common_law.pair_law(m), common_law.marginal(m)
        features, values = spectral.spectral_optimum(law, 3)
        seeds = (10 * m, 10 * m + 1)
        run = training.train_whitened(make(len(law), 3), law, seeds=seeds, records=(0, 50))
        for seed in range(2):
            trained = spectral.whiten(run.final[seed], marginal)
            least = spectral.optimal_loss(values, 3)
            assert least <= spectral.pair_loss(trained, law) < 1.01 * least
            angles = spectral.principal_angles(trained, features, marginal)
            assert np.degrees(angles.max()) < 1
        runs.append(run)
    for seed in range(2):
        residuals = []
        for record in range(3):
            whitened = [
                spectral.whiten(runs[m].features[record, seed], common_law.marginal(m))
                for m in range(2)
            ]
            residuals.append(measures.compare(common_law, whitened)["observation"])
            assert residuals[-1] <= measures.bound(common_law, whitened) + 1e-12
        assert residuals[0] > residuals[1] > residuals[2]
        assert residuals[2] < 1e-3


def test_the_penalty_shrinks_each_direction_as_computed(common_law):
    law, marginal = common_law.pair_law(0), common_law.marginal(0)
    _, values = spectral.spectral_optimum(law, 3)
    encoder = training.tabular_encoder(len(law), 3)
    (table,) = training.train_whitened(encoder, law, seeds=(0,), penalty=4.0).final
    covariance = table.T @ (marginal[:, None] * table)
    np.testing.assert_allclose(
        np.linalg.eigvalsh(covariance)[::-1], 1 - (1 - values[:3]) / 4, atol=1e-4
    )


def test_the_whitening_loss_is_the_pair_loss_plus_the_constraint(common_law):
    law, marginal = common_law.pair_law(1), common_law.marginal(1)
    features = np.random.default_rng(0).standard_normal((len(law), 4)) + 0.5
    loss, parts = training.whitening_loss(features, law, penalty=3.0)
    mean = marginal @ features
    covariance = np.cov(features.T, aweights=marginal, bias=True)
    constraint = np.sum((covariance - np.eye(4)) ** 2) + mean @ mean
    assert parts["prediction"] == pytest.approx(spectral.pair_loss(features, law), rel=1e-5)
    assert parts["constraint"] == pytest.approx(constraint, rel=1e-5)
    assert loss == pytest.approx(spectral.pair_loss(features, law) + 3 * constraint, rel=1e-5)


def test_without_an_eigengap_trainings_end_apart():
    law = world.same_scene(np.full(8, 1 / 8))
    encoder = training.tabular_encoder(8, 3)
    first, second = training.train_whitened(encoder, law, seeds=(0, 1), steps=800).final
    assert spectral.pair_loss(first, law) < 1e-6
    marginal = np.full(8, 1 / 8)
    whitened = spectral.whiten(first, marginal), spectral.whiten(second, marginal)
    assert spectral.procrustes_residual(*whitened) > 0.1


def test_seeds_side_by_side_are_the_seeds_alone(common_law):
    law = common_law.pair_law(0)
    encoder = training.tabular_encoder(len(law), 3)
    for train in (training.train_whitened, training.train_lejepa):
        together = train(encoder, law, seeds=(3, 4), steps=20).final
        alone = train(encoder, law, seeds=(4,), steps=20).final
        np.testing.assert_allclose(together[1], alone[0], atol=1e-4)
        assert np.abs(together[0] - together[1]).max() > 0.1


def test_lejepa_is_the_products_own():
    assert training.lejepa_loss is lejepa.lejepa_loss
    assert training.random_directions is sigreg.random_directions


def test_lejepa_finds_the_closed_form_where_the_world_is_nearly_gaussian():
    law = world.gaussian_scenes(9, 2, 0.7)
    marginal = law.sum(axis=1)
    features, values = spectral.spectral_optimum(law, 2)
    encoder = training.tabular_encoder(len(law), 2)
    run = training.train_lejepa(encoder, law, seeds=(0,), steps=1000, num_slices=16)
    trained = spectral.whiten(run.final[0], marginal)
    angles = spectral.principal_angles(trained, features, marginal)
    assert np.degrees(angles.max()) < 10
    assert spectral.pair_loss(trained, law) < 1.05 * spectral.optimal_loss(values, 2)
    # Not the closed form all the same: LeJEPA's own loss prefers what it found.
    found = training.lejepa_objective(run.final[0], law, seed=5)
    given = training.lejepa_objective(features, law, seed=5)
    assert found["loss"] < given["loss"]
    assert found["loss"] == pytest.approx(
        0.95 * found["prediction"] + 0.05 * found["sigreg"], rel=1e-5
    )


def test_bad_records_are_refused(common_law):
    law = common_law.pair_law(0)
    encoder = training.tabular_encoder(len(law), 3)
    with pytest.raises(ValueError, match=r"records must ascend.*steps=10; got \[5, 5\]"):
        training.train_whitened(encoder, law, seeds=(0,), steps=10, records=(5, 5))
