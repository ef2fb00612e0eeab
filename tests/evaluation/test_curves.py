import json

import numpy as np
import pytest

from platojax.evaluation import alignment as alignment_module
from platojax.evaluation.alignment import alignment
from platojax.evaluation.curves import score_against_items, score_against_k


def related(n=60, seed=0):
    rng = np.random.default_rng(seed)
    signal = rng.normal(size=(n, 1, 5))
    return signal + rng.normal(size=(n, 2, 5)), signal + rng.normal(size=(n, 3, 5))


@pytest.mark.parametrize("metric", ["mutual_knn", "cycle_knn", "lcs_knn", "cknna"])
def test_the_curve_over_k_equals_direct_computation_from_one_search(metric, monkeypatch):
    a, b = related()
    ks = (4, 2, 12, 7)
    tables = [alignment(a, b, metric=metric, k=k) for k in ks]
    searches = []
    search = alignment_module.nearest_neighbors
    monkeypatch.setattr(
        alignment_module, "nearest_neighbors", lambda x, k: searches.append(k) or search(x, k)
    )
    points = score_against_k(a, b, ks, metric=metric)
    assert searches == [12] * 5
    assert [p.k for p in points] == list(ks)
    for point, table in zip(points, tables, strict=True):
        assert point.score == pytest.approx(table.max(), abs=1e-6)
        assert table[point.layers] == table.max()
        assert point.chance == (point.k / 59 if metric == "mutual_knn" else None)


def test_points_over_items_are_scores_of_nested_subsets_and_of_all_items_once():
    a, b = related()
    points = score_against_items(a, b, [20, 40, 60], k=4, repetitions=3, seed=5)
    rng = np.random.default_rng(5)
    orders = [rng.permutation(60) for _ in range(3)]
    for point in points[:2]:
        subsets = [np.sort(order[: point.n]) for order in orders]
        expected = [alignment(a[s], b[s], k=4).max() for s in subsets]
        np.testing.assert_allclose(point.scores, expected, atol=1e-6)
        assert point.mean == pytest.approx(np.mean(expected))
        assert point.spread == pytest.approx(np.std(expected, ddof=1))
    assert [p.chance for p in points] == [4 / 19, 4 / 39, 4 / 59]
    assert points[2].scores == (float(alignment(a, b, k=4).max()),)
    assert points[2].spread is None


def test_alignment_falls_as_items_are_added():
    points = score_against_items(*related(n=400), [50, 100, 200, 400])
    means = [p.mean for p in points]
    assert means == sorted(means, reverse=True)
    assert means[-1] < 0.7 * means[0]


def test_the_seed_fixes_the_subsets():
    a, b = related()
    first, again, other = (
        score_against_items(a, b, [30], k=4, repetitions=2, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_points_are_strict_json():
    a, b = related()
    for point in (*score_against_items(a, b, [30], k=4), *score_against_k(a, b, [3])):
        json.dumps(point.to_json(), allow_nan=False)
    assert score_against_k(a, b, [3])[0].to_json()["chance"] == 3 / 59


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sizes": [61]}, r"sizes=\[61\] must be numbers of items in 1..60"),
        ({"sizes": [0]}, r"sizes=\[0\]"),
        ({"sizes": [4]}, "a has 4 items, which are too few"),
        ({"sizes": [30], "repetitions": 0}, "repetitions=0 must be at least 1"),
        ({"sizes": [30], "seed": -1}, "seed=-1"),
        ({"sizes": [30], "metric": "nope"}, "metric='nope'"),
    ],
)
def test_bad_settings_of_the_curve_over_items_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        score_against_items(*related(), **{"k": 4} | settings)


@pytest.mark.parametrize(
    ("ks", "metric", "words"),
    [
        ([], "mutual_knn", "ks is empty"),
        ([3, 60], "mutual_knn", "a has 60 items, which are too few: mutual_knn with k=60"),
        ([3, 0], "mutual_knn", "k=0"),
        ([3], "cka", "metric='cka' uses no neighbours"),
    ],
)
def test_bad_settings_of_the_curve_over_k_are_refused(ks, metric, words):
    with pytest.raises(ValueError, match=words):
        score_against_k(*related(), ks, metric=metric)


def test_sides_of_different_length_are_refused():
    a, b = related()
    for curve in (score_against_items, score_against_k):
        with pytest.raises(ValueError, match="a has 60 items and b has 50"):
            curve(a, b[:50], [20])
