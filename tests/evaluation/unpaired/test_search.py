import numpy as np
import pytest

from platojax.evaluation.retrieval import retrieval
from platojax.evaluation.unpaired.quality import gaussian_copy, in_random_order, shared_geometry
from platojax.evaluation.unpaired.refinement import matched_cosine, unit
from platojax.evaluation.unpaired.search import principal, search
from tests.evaluation.unpaired.synthetic import spaces


def prepared(rows):
    return unit((rows - rows.mean(axis=0)).astype(np.float32))


def test_leading_axes_hold_the_most_variance():
    rng = np.random.default_rng(0)
    rows = prepared(rng.standard_normal((400, 80)) * np.linspace(3, 0.1, 80))
    side = principal(rows)
    assert side.rows.shape == (400, 64)
    np.testing.assert_allclose(side.axes.T @ side.axes, np.eye(64), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(side.rows, axis=1), 1, atol=1e-5)
    assert np.all(np.diff(side.variances) <= 0)
    np.testing.assert_allclose(side.variances, np.mean((rows @ side.axes) ** 2, axis=0), rtol=1e-3)
    assert principal(rows[:, :20]).axes.shape == (20, 20)


def test_finds_the_rotation_of_a_space_with_another_spectrum():
    # What plain clusters miss: the sides agree on everything but the lengths of their axes.
    data = spaces(0)
    stretch = np.linspace(1, 6, data.y.shape[1])
    x, y = principal(prepared(data.x)), principal(prepared(data.y * stretch))
    rng = np.random.default_rng(0)
    found = search(x, y, num_clusters=12, num_restarts=8, batch_size=10_000, seed=0, rng=rng)
    mean_x, mean_y = data.x.mean(axis=0), (data.y * stretch).mean(axis=0)
    mapped = (data.test_x - mean_x) @ x.axes @ found.rotation
    target = (data.test_y * stretch - mean_y) @ y.axes
    assert retrieval(mapped, target).foscttm < 0.1
    value = matched_cosine(unit(x.rows[:1000] @ found.rotation), y.rows[:1000])
    assert found.matched_cosine == pytest.approx(value, abs=0.01)


def test_a_gaussian_copy_has_the_same_covariance_and_no_shape():
    side = principal(prepared(spaces(1).x))
    copy = gaussian_copy(side, np.random.default_rng(0))
    np.testing.assert_allclose(np.linalg.norm(copy.rows, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(np.mean(copy.rows**2, axis=0), side.variances, atol=0.04)
    assert np.abs(np.mean(copy.rows**3, axis=0)).max() < np.abs(np.mean(side.rows**3, axis=0)).max()


def sides(count):
    rows = prepared(spaces(2).x)[: 2 * count]
    x, y = principal(rows[::2]), principal(rows[1::2])
    return x, y, x.axes.T @ y.axes


def test_all_geometry_is_shared_with_oneself_and_none_with_noise():
    x, y, aligned = sides(1500)
    null = gaussian_copy(y, np.random.default_rng(0))
    assert shared_geometry(x, y, aligned, null, aligned) > 0.8
    assert shared_geometry(x, null, aligned, null, aligned) == 0


def test_shared_geometry_does_not_grow_where_items_are_few():
    values = []
    for count in (200, 1500):
        x, y, aligned = sides(count)
        null = gaussian_copy(y, np.random.default_rng(0))
        values.append(shared_geometry(x, y, aligned, null, aligned))
    assert values[0] == pytest.approx(values[1], abs=0.35)


def test_where_chance_matches_better_than_the_whole_geometry_nothing_is_shared():
    x, y, aligned = sides(200)
    assert shared_geometry(x, y, aligned, x, np.eye(len(aligned))) == 0


def test_rows_in_random_order_are_the_same_rows():
    x, _, _ = sides(200)
    mixed = in_random_order(x, np.random.default_rng(0))
    assert not np.array_equal(mixed.rows, x.rows)
    np.testing.assert_array_equal(np.sort(mixed.rows, axis=0), np.sort(x.rows, axis=0))
