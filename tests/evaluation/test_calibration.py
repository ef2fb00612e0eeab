import dataclasses
import json

import numpy as np
import pytest
import scipy.stats

from platojax.evaluation import calibration
from platojax.evaluation.alignment import METRICS, alignment, prepare_side
from platojax.evaluation.calibration import calibrate, calibrate_prepared, paired_p_value
from tests.evaluation.test_alignment import neighbor_lists


def related(n=40, noise=1.0, seed=0):
    rng = np.random.default_rng(seed)
    signal = rng.normal(size=(n, 1, 5))
    a = signal + noise * rng.normal(size=(n, 2, 5))
    b = signal + noise * rng.normal(size=(n, 3, 5))
    return a.astype(np.float32), b.astype(np.float32)


@pytest.mark.parametrize("metric", METRICS)
def test_null_equals_recomputation_on_permuted_features(metric):
    a, b = related()
    result = calibrate(a, b, metric=metric, k=4, num_permutations=20, seed=3)
    rng = np.random.default_rng(3)
    expected = [
        alignment(a, b[rng.permutation(len(b))], metric=metric, k=4).max() for _ in range(20)
    ]
    np.testing.assert_allclose(result.null, expected, atol=1e-5)
    assert len(set(result.null.tolist())) > 3
    np.testing.assert_array_equal(result.table, alignment(a, b, metric=metric, k=4))


@pytest.mark.parametrize("metric", METRICS)
def test_identical_features_have_the_smallest_p_value_and_calibrate_to_about_one(metric):
    a, _ = related()
    result = calibrate(a, a, metric=metric, k=4, num_permutations=19)
    assert result.p_value == 1 / 20
    assert result.calibrated > (0.8 if metric == "cycle_knn" else 0.999)
    assert result.layers[0] == result.layers[1]


def test_p_values_of_unrelated_features_are_uniform():
    rng = np.random.default_rng(0)
    p_values = []
    for seed in range(200):
        a, b = rng.normal(size=(2, 30, 2, 4))
        p_values.append(calibrate(a, b, k=5, num_permutations=19, seed=seed).p_value)
    # Equal scores count against the observed one, so p may only be too large, and only a little.
    assert np.mean(np.array(p_values) <= 0.05) < 0.10
    assert scipy.stats.kstest(p_values, "uniform").statistic < 0.15
    assert 0.45 < np.mean(p_values) < 0.62


def test_the_maximum_over_layers_does_not_make_noise_significant():
    # With 36 pairs of layers the maximum is far above one pair's chance, in the null as well.
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 100, 6, 8))
    result = calibrate(a, b)
    assert result.score > result.chance * 1.1
    assert result.p_value > 0.05
    assert result.calibrated < 0.02


def test_threshold_p_value_and_calibrated_follow_their_definitions():
    a, b = related(n=100, noise=1.5)
    for count, rank in ((19, 19), (20, 20), (39, 38), (200, 191), (399, 380)):
        result = calibrate(a, b, num_permutations=count)
        assert result.threshold == np.sort(result.null)[rank - 1]
        assert result.p_value == (1 + np.sum(result.null >= result.score)) / (count + 1)
        assert result.calibrated == pytest.approx(
            (result.score - result.threshold) / (1 - result.threshold)
        )
        assert 0 < result.calibrated < 1


def test_chance_is_k_over_the_others_for_mutual_knn_and_the_null_mean_otherwise():
    a, b = related()
    assert calibrate(a, b, k=4).chance == 4 / 39
    for metric in ("lcs_knn", "cka"):
        result = calibrate(a, b, k=4, metric=metric)
        assert result.chance == pytest.approx(result.null.mean())


def test_lcs_knn_is_calibrated_against_its_own_maximum():
    a, b = related(noise=0.3)
    result = calibrate(a, b, metric="lcs_knn", k=5)
    assert result.calibrated == pytest.approx(
        (result.score - result.threshold) / (5 - result.threshold)
    )
    assert 0 < result.calibrated < 1


def test_a_negative_score_keeps_its_layers():
    # The unbiased estimate is negative for anti-correlated kernels: near on one side, far on the
    # other.
    x = np.array([[1, 0], [1, 0.1], [-1, 0], [-1, 0.1]] * 3, np.float32)
    y = np.array([[1, 0], [-1, 0.1], [1, 0.1], [-1, 0]] * 3, np.float32)
    a = np.stack([x, x + 0.01 * np.random.default_rng(0).normal(size=x.shape)], axis=1)
    result = calibrate(a, y, metric="unbiased_cka", num_permutations=19)
    assert result.score < 0
    assert result.score == result.table.max()
    assert result.table[result.layers] == result.score
    assert result.calibrated == 0


def test_score_is_the_maximum_and_layers_where_it_is():
    a, b = related(noise=0.3)
    a[:, 0] = np.random.default_rng(5).normal(size=a[:, 0].shape)
    b[:, [0, 2]] = np.random.default_rng(6).normal(size=b[:, [0, 2]].shape)
    result = calibrate(a, b, k=4)
    assert result.layers == (1, 1)
    assert result.score == result.table.max() == result.table[1, 1]


def test_the_seed_fixes_the_numbers():
    a, b = related()
    first, again, other = (calibrate(a, b, k=4, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.null, again.null)
    assert first.to_json() == again.to_json()
    assert not np.array_equal(first.null, other.null)


def test_when_even_wrong_pairs_are_perfect_nothing_is_calibrated():
    # Six items, five neighbours: every list holds all others.
    a, b = related(n=6)
    result = calibrate(a, b, k=5, num_permutations=19)
    assert (result.score, result.threshold, result.p_value, result.calibrated) == (1, 1, 1, 0)


def test_every_score_carries_its_protocol_as_strict_json():
    a, b = related()
    result = calibrate(a, b, metric="cknna", k=4, clip="mean", num_permutations=21, seed=7)
    values = json.loads(json.dumps(result.to_json(), allow_nan=False))
    protocol = {"n": 40, "k": 4, "metric": "cknna", "clip": "mean", "num_permutations": 21}
    assert values.items() >= (protocol | {"seed": 7, "alpha": 0.05}).items()
    assert values["table"] == result.table.tolist()
    assert values["layers"] == list(result.layers)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.score = 1.0


def test_metrics_without_neighbors_report_no_k():
    a, b = related()
    assert calibrate(a, b, metric="svcca", num_permutations=19).k is None


@pytest.mark.parametrize("metric", METRICS)
def test_prepared_sides_calibrate_to_the_same(metric):
    a, b = related()
    sides = [prepare_side("side", x, metric=metric, k=4) for x in (a, b)]
    got = calibrate_prepared(*sides, num_permutations=19, seed=2)
    expected = calibrate(a, b, metric=metric, k=4, num_permutations=19, seed=2)
    assert got.to_json() == expected.to_json()
    np.testing.assert_array_equal(got.null, expected.null)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_permutations": 18}, "num_permutations=18 .* at least 19"),
        ({"seed": -1}, "seed=-1"),
        ({"metric": "nope"}, "metric='nope'"),
        ({"k": 40}, "40 items"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    a, b = related()
    with pytest.raises(ValueError, match=words):
        calibrate(a, b, **settings)


def three_sides(a, other, b, k=5):
    named = (("a", a), ("other", other), ("b", b))
    return [prepare_side(name, x, k=k) for name, x in named]


def test_paired_p_value_tells_the_better_aligned_from_the_worse_and_from_its_equal():
    rng = np.random.default_rng(0)
    b = rng.normal(size=(150, 8))
    better, worse = b + 0.5 * rng.normal(size=b.shape), b + 3 * rng.normal(size=b.shape)
    assert paired_p_value(*three_sides(better, worse, b)) == 1 / 2001
    assert paired_p_value(*three_sides(worse, better, b)) > 0.99
    assert paired_p_value(*three_sides(better, better, b)) == 1
    p_values = [
        paired_p_value(*three_sides(*rng.normal(size=(2, *b.shape)), b), num_permutations=99)
        for _ in range(40)
    ]
    assert 0.3 < np.mean(p_values) < 0.7


def test_paired_p_value_is_the_share_of_sign_flips_whatever_is_held_at_once(monkeypatch):
    rng = np.random.default_rng(0)
    b = rng.normal(size=(60, 8))
    a, other = (b + noise * rng.normal(size=b.shape) for noise in (1.9, 2))
    counts = [
        np.array([len(set(p) & set(q)) for p, q in zip(*lists, strict=True)])
        for lists in ((neighbor_lists(x, 5), neighbor_lists(b, 5)) for x in (a, other))
    ]
    difference = counts[0] - counts[1]
    signs = np.random.default_rng(3).choice([-1.0, 1.0], (500, 60))
    expected = (1 + np.sum(signs @ difference >= difference.sum())) / 501
    assert 0.02 < expected < 0.98
    sides = three_sides(a, other, b)
    for elements in (2**22, 60 * 7):
        monkeypatch.setattr(calibration, "_SIGN_ELEMENTS", elements)
        assert paired_p_value(*sides, num_permutations=500, seed=3) == expected


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (np.zeros((40, 5)), "layer 0 of other: item 0 is all zeros"),
        (np.full((40, 5), np.nan), "other is nan at item 0"),
        (related()[0], "other has 2 layers, prepared for mutual_knn: .* select one"),
        (related(n=39)[0][:, 0], "other has 39 items and b has 40"),
        (related(n=5)[0][:, 0], "other has 5 items, which are too few: mutual_knn with k=5"),
    ],
)
def test_paired_p_value_refuses_what_alignment_refuses(other, words):
    a, b = (x[:, 0] for x in related())
    with pytest.raises(ValueError, match=words):
        paired_p_value(*three_sides(a, other, b))


def test_paired_p_value_refuses_bad_settings():
    a, b = (x[:, 0] for x in related())
    sides = three_sides(a, a, b)
    with pytest.raises(ValueError, match=r"num_permutations=0 must be in 1\.\.100000"):
        paired_p_value(*sides, num_permutations=0)
    with pytest.raises(ValueError, match="seed=-1"):
        paired_p_value(*sides, seed=-1)
    with pytest.raises(ValueError, match="prepared for cka"):
        paired_p_value(*[prepare_side("side", b, metric="cka")] * 3)
