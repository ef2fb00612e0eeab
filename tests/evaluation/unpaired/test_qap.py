import itertools

import numpy as np
import pytest

from platojax.evaluation.unpaired import quadratic_assignment


def random_symmetric(rng, *shape):
    matrices = rng.standard_normal(shape)
    return matrices + matrices.swapaxes(-1, -2)


def value(a, b, permutation):
    return np.sum(a * b[np.ix_(permutation, permutation)])


@pytest.mark.parametrize("n", [1, 2, 4, 7])
def test_finds_the_optimum_that_trying_all_permutations_finds(n):
    rng = np.random.default_rng(n)
    a, b = random_symmetric(rng, 3, n, n), random_symmetric(rng, 3, n, n)
    best = [
        max(value(*pair, np.array(order)) for order in itertools.permutations(range(n)))
        for pair in zip(a, b, strict=True)
    ]
    found = quadratic_assignment(a, b, num_starts=16, num_steps=100)
    np.testing.assert_allclose(found.objective, best, rtol=1e-6)


def test_reports_the_objective_of_the_permutation_it_returns():
    rng = np.random.default_rng(0)
    a, b = random_symmetric(rng, 2, 9, 9), random_symmetric(rng, 2, 9, 9)
    found = quadratic_assignment(a, b, num_starts=4, num_steps=30)
    for s in range(2):
        assert sorted(found.permutation[s]) == list(range(9))
        assert found.objective[s] == pytest.approx(value(a[s], b[s], found.permutation[s]))
        norms = np.linalg.norm(a[s]) * np.linalg.norm(b[s])
        assert found.correlation[s] == pytest.approx(found.objective[s] / norms)


def test_finds_a_planted_permutation_of_a_gram_matrix_under_noise():
    rng = np.random.default_rng(0)
    points = rng.standard_normal((4, 30, 8))
    order = np.stack([rng.permutation(30) for _ in range(4)])
    moved = np.empty_like(points)
    np.put_along_axis(moved, order[:, :, None], points, axis=1)
    moved += 0.05 * rng.standard_normal(moved.shape)
    found = quadratic_assignment(points @ points.swapaxes(1, 2), moved @ moved.swapaxes(1, 2))
    np.testing.assert_array_equal(found.permutation, order)
    assert found.correlation.min() > 0.97


def test_no_single_exchange_improves_the_result():
    rng = np.random.default_rng(1)
    a, b = random_symmetric(rng, 12, 12), random_symmetric(rng, 12, 12)
    found = quadratic_assignment(a, b, num_starts=4, num_steps=200)
    for i, j in itertools.combinations(range(12), 2):
        other = found.permutation[0].copy()
        other[[i, j]] = other[[j, i]]
        assert value(a, b, other) <= found.objective[0] + 1e-5


def test_more_steps_leave_the_local_optimum_of_the_descent():
    rng = np.random.default_rng(2)
    a, b = random_symmetric(rng, 4, 25, 25), random_symmetric(rng, 4, 25, 25)
    descent = quadratic_assignment(a, b, num_starts=4, num_steps=25)
    search = quadratic_assignment(a, b, num_starts=4, num_steps=500)
    assert np.all(search.objective >= descent.objective)
    assert search.objective.mean() > 1.02 * descent.objective.mean()


def test_a_seed_decides_everything():
    rng = np.random.default_rng(3)
    a, b = random_symmetric(rng, 3, 20, 20), random_symmetric(rng, 3, 20, 20)
    first, again, other = (
        quadratic_assignment(a, b, seed=seed, num_starts=1, num_steps=20).permutation
        for seed in (5, 5, 6)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_the_scale_of_the_matrices_does_not_matter():
    rng = np.random.default_rng(4)
    a, b = random_symmetric(rng, 10, 10), random_symmetric(rng, 10, 10)
    scales = np.array([1.0, 1e-30, 1e30])[:, None, None]
    found = quadratic_assignment(scales * a, np.stack([b] * 3))
    np.testing.assert_allclose(found.correlation, found.correlation[0])
    assert np.isfinite(found.objective).all()


@pytest.mark.parametrize(
    ("a", "b", "settings", "message"),
    [
        (np.eye(3), np.eye(4), {}, "they must be equal"),
        (np.ones((2, 3)), np.eye(3), {}, "a has shape"),
        (np.triu(np.ones((3, 3))), np.eye(3), {}, "a is not symmetric"),
        (np.eye(3), np.full((3, 3), np.nan), {}, "b is not finite"),
        (np.eye(3), np.zeros((3, 3)), {}, "b: matrix 0 is all zeros"),
        (np.eye(3), np.eye(3), {"num_starts": 0}, "num_starts=0"),
        (np.eye(3), np.eye(3), {"num_steps": 0}, "num_steps=0"),
        (np.eye(3), np.eye(3), {"seed": -1}, "seed=-1"),
    ],
)
def test_refuses_what_is_no_problem(a, b, settings, message):
    with pytest.raises(ValueError, match=message):
        quadratic_assignment(a, b, **settings)
