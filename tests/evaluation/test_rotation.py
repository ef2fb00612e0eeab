import dataclasses

import numpy as np
import pytest
import safetensors.numpy
import scipy.linalg

from platojax.evaluation.rotation import (
    LinearMap,
    hash_map,
    load_map,
    mean_cosine,
    procrustes,
    ridge,
    save_map,
)


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


# Ridge regression, whitening, files


def test_ridge_is_the_regularised_least_squares_solution():
    x, y = features(60, 5, seed=1), features(60, 3, seed=2)
    for penalty in (0.0, 0.3):
        fitted = ridge(x, y, penalty)
        a, b = (side - side.mean(0) for side in (x, y))
        a, b = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in (a, b))
        gram = a.T @ a
        ours = np.linalg.solve(gram + penalty * np.trace(gram) / 5 * np.eye(5), a.T @ b)
        np.testing.assert_allclose(fitted.matrix, ours, atol=1e-5)
        assert fitted.penalty == penalty


def test_the_penalty_is_chosen_by_items_held_out():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 40)).astype(np.float32)
    noisy = (x[:, :4] + 4 * rng.normal(size=(80, 4))).astype(np.float32)
    assert ridge(x, noisy).penalty >= 1
    clean = ridge(x, x[:, ::-1])
    assert clean.penalty <= 1e-2
    assert ridge(x, noisy, seed=3).penalty == ridge(x, noisy, seed=3).penalty


@pytest.mark.parametrize("fit", [procrustes, lambda x, y, **how: ridge(x, y, 0.1, **how)])
def test_whitening_undoes_any_linear_map_of_a_side(fit):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 6)).astype(np.float32)
    stretched = (x * [1, 2, 4, 8, 16, 32] @ np.linalg.qr(rng.normal(size=(6, 6)))[0]).astype(
        np.float32
    )
    plain, whitened = fit(stretched, x), fit(stretched, x, whiten=True)
    cosines = [mean_cosine(one.apply(stretched), one.target(x)) for one in (plain, whitened)]
    assert cosines[1] > cosines[0]
    assert cosines[1] > 0.9


@pytest.mark.parametrize(
    "fitted",
    [
        procrustes(*[np.random.default_rng(s).normal(size=(30, 4 + s)) for s in (0, 1)]),
        procrustes(*[np.random.default_rng(s).normal(size=(30, 4)) for s in (0, 1)], whiten=True),
        ridge(*[np.random.default_rng(s).normal(size=(30, 4)) for s in (0, 1)], 0.5),
    ],
)
def test_a_map_is_read_back_as_it_was(tmp_path, fitted):
    path = tmp_path / "map.safetensors"
    save_map(path, fitted, {"x": {"layer": "norm"}, "seeds": [1, 2]})
    again, protocol = load_map(path)
    assert type(again) is type(fitted)
    assert protocol == {"x": {"layer": "norm"}, "seeds": [1, 2]}
    assert hash_map(again) == hash_map(fitted)
    x = np.random.default_rng(5).normal(size=(7, len(fitted.mean_x)))
    np.testing.assert_array_equal(again.apply(x), fitted.apply(x))
    assert [file.name for file in tmp_path.iterdir()] == ["map.safetensors"]


def test_files_without_a_map_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.safetensors does not exist"):
        load_map(tmp_path / "gone.safetensors")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"empty\.safetensors holds no map"):
        load_map(tmp_path / "empty.safetensors")
    safetensors.numpy.save_file({"w": np.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"other\.safetensors holds no map"):
        load_map(tmp_path / "other.safetensors")
    plain = LinearMap(np.eye(2, dtype=np.float32), np.zeros(2), np.zeros(2))
    with pytest.raises(ValueError, match="a LinearMap cannot be saved; save a rotation or a ridge"):
        save_map(tmp_path / "x.safetensors", plain, {})


@pytest.mark.parametrize(
    ("penalty", "items", "words"),
    [
        (-1.0, 30, "penalty=-1.0 must be finite and not negative"),
        (np.nan, 30, "penalty=nan must be finite"),
        (None, 9, "9 items are too few to choose a penalty by"),
    ],
)
def test_impossible_penalties_are_refused(penalty, items, words):
    with pytest.raises(ValueError, match=words):
        ridge(features(items, 3, seed=1), features(items, 3, seed=2), penalty)


def features(items, width, *, seed):
    return np.random.default_rng(seed).normal(size=(items, width)).astype(np.float32)
