import dataclasses

import numpy as np
import pytest
import scipy.linalg

from platojax.evaluation.rotation import procrustes


def orthonormal(rows, columns, seed=1):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(rows, columns)))[0]


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("widths", [(6, 6), (6, 11)])
def test_a_planted_rotation_with_shifts_and_scales_is_recovered(widths):
    rng = np.random.default_rng(0)
    planted = orthonormal(*widths[::-1]).T
    x = rng.normal(size=(80, widths[0]))
    x -= x.mean(axis=0)
    y = 3 * x @ planted + rng.normal(size=widths[1])
    rotation = procrustes(x + 5, y)
    np.testing.assert_allclose(rotation.matrix, planted, atol=1e-5)
    np.testing.assert_allclose(rotation.mean_y, y.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(rotation.apply(x + 5), rotation.target(y), atol=1e-5)
    new = rng.normal(size=(7, widths[0]))  # items the rotation has not seen
    np.testing.assert_allclose(
        rotation.apply(new + 5), rotation.target(3 * new @ planted + y.mean(axis=0)), atol=1e-5
    )


def test_a_rotation_into_a_narrower_space_has_orthonormal_columns():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 9)), rng.normal(size=(50, 4))
    rotation = procrustes(x, y)
    np.testing.assert_allclose(rotation.matrix.T @ rotation.matrix, np.eye(4), atol=1e-5)
    assert rotation.apply(x).shape == (50, 4)
    assert rotation.apply(x).dtype == np.float32
    # No other semi-orthogonal matrix brings the two closer.
    a, b = rotation.apply(x), rotation.target(y)
    centered = unit(x - x.mean(axis=0))
    for seed in range(50):
        assert np.sum(centered @ orthonormal(9, 4, seed) * b) < np.sum(a * b)


def test_agrees_with_scipy_on_centred_unit_rows():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 60, 8)) + 2
    a, b = (unit(z - z.mean(axis=0)) for z in (x, y))
    expected = scipy.linalg.orthogonal_procrustes(a, b)[0]
    np.testing.assert_allclose(procrustes(x, y).matrix, expected, atol=1e-4)


def test_very_large_and_very_small_features_have_a_direction_too():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 30, 4)).astype(np.float32)
    expected = procrustes(x, y).apply(x)
    for scale in (1e-30, 1e30):
        x_scaled = x * np.float32(scale)
        np.testing.assert_allclose(procrustes(x_scaled, y).apply(x_scaled), expected, atol=1e-5)


def test_the_training_means_are_kept_for_other_items():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 60, 8))
    rotation = procrustes(x, y)
    one = rng.normal(size=(1, 8))
    expected = unit(one - x.mean(axis=0)) @ rotation.matrix
    np.testing.assert_allclose(rotation.apply(one), expected, atol=1e-5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        rotation.matrix = expected


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.ones((20, 3)), ["x: item 0 equals the mean", "20 such items", "leave these items"]),
        (np.eye(20, 3)[:19], ["x has 19 items and y has 20"]),
        (np.full((20, 3), np.nan), ["x is nan", "item 0"]),
        (np.eye(20)[:, None].repeat(2, axis=1), ["x has 2 layers; select one"]),
        (np.full((20, 3), "1"), ["x has dtype"]),
    ],
)
def test_bad_input_is_refused(x, words):
    with pytest.raises(ValueError, match=words[0]) as error:
        procrustes(x, np.random.default_rng(0).normal(size=(20, 3)))
    for word in words[1:]:
        assert word in str(error.value)


def test_one_pair_and_items_of_another_width_are_refused():
    x = np.random.default_rng(0).normal(size=(20, 3))
    with pytest.raises(ValueError, match="1 item, which is too few"):
        procrustes(x[:1], x[:1])
    rotation = procrustes(x, x)
    with pytest.raises(ValueError, match="x has width 2, but the map was fitted on width 3"):
        rotation.apply(x[:, :2])
    with pytest.raises(ValueError, match="y: item 1 equals the mean"):
        rotation.target(np.stack([x[0], rotation.mean_y]))
