import json

import numpy as np
import pytest

from platojax.evaluation import confidence
from platojax.evaluation.alignment import METRICS, alignment
from platojax.evaluation.confidence import confidence_interval


def related(n=60, seed=0, layers=(2, 3)):
    rng = np.random.default_rng(seed)
    signal = rng.normal(size=(n, 1, 5))
    return (
        signal + rng.normal(size=(n, layers[0], 5)),
        signal + rng.normal(size=(n, layers[1], 5)),
    )


@pytest.mark.parametrize("metric", METRICS)
def test_the_interval_is_that_of_the_delete_d_jackknife_over_recomputed_subsamples(metric):
    a, b = related()
    result = confidence_interval(
        a, b, metric=metric, k=4, num_subsamples=12, fraction=0.7, seed=3, level=0.9
    )
    table = alignment(a, b, metric=metric, k=4)
    i, j = result.layers
    assert result.score == pytest.approx(table.max(), abs=1e-6)
    assert table[i, j] == table.max()
    rng = np.random.default_rng(3)
    subsets = [np.sort(rng.choice(60, 42, replace=False)) for _ in range(12)]
    scores = [alignment(a[s][:, i], b[s][:, j], metric=metric, k=4)[0, 0] for s in subsets]
    error = np.sqrt(42 / 18 * np.mean((scores - np.mean(scores)) ** 2))
    assert result.standard_error == pytest.approx(error, rel=1e-3)
    assert result.high - result.score == pytest.approx(1.6449 * error, rel=1e-3)
    assert result.score - result.low == pytest.approx(1.6449 * error, rel=1e-3)


def test_lists_that_turn_out_too_short_are_searched_again(monkeypatch):
    a, b = related()
    expected = confidence_interval(a, b, k=4)
    monkeypatch.setattr(confidence, "_list_length", lambda *_: 4)
    assert confidence_interval(a, b, k=4) == expected


def test_copies_do_not_change_how_lists_are_cut():
    # Ties are decided by the order of the items, in subsamples as in all.
    a, b = related(n=40)
    a[20:24] = a[3]
    result = confidence_interval(a[:, 0], b[:, 0], k=5, num_subsamples=5, seed=1)
    rng = np.random.default_rng(1)
    subsets = [np.sort(rng.choice(40, result_size(40), replace=False)) for _ in range(5)]
    scores = [alignment(a[s][:, 0], b[s][:, 0], k=5)[0, 0] for s in subsets]
    size = result_size(40)
    error = np.sqrt(size / (40 - size) * np.var(scores))
    assert result.standard_error == pytest.approx(error, rel=1e-4)


def result_size(n):
    return round(confidence_interval.__kwdefaults__["fraction"] * n)


@pytest.mark.parametrize("metric", [name for name in METRICS if METRICS[name].uses_neighbors])
def test_subsamples_have_at_least_four_times_k_items(metric):
    a, b = related(n=40)
    assert confidence_interval(a, b, metric=metric, k=5, num_subsamples=9).standard_error > 0
    words = (
        f"fraction=0.5 of 40 items is 20: subsamples for {metric} with k=6 must have at least 24"
    )
    with pytest.raises(ValueError, match=f"{words} .* or use more items, or a smaller k"):
        confidence_interval(a, b, metric=metric, k=6)


def test_subsamples_of_metrics_without_k_may_be_small():
    a, b = related(n=8)
    assert confidence_interval(a, b, metric="cka", num_subsamples=9).standard_error > 0
    with pytest.raises(ValueError, match=r"for cka must have at least 4 .* or use more items$"):
        confidence_interval(a, b, metric="cka", fraction=0.3)


def test_the_interval_covers_the_expected_score_and_narrows_with_more_items():
    widths = {}
    for n in (40, 100, 400):
        sides = [related(n=n, seed=seed, layers=(1, 1)) for seed in range(100)]
        expected = np.mean([alignment(*pair, k=5)[0, 0] for pair in sides])
        intervals = [confidence_interval(*pair, k=5, num_subsamples=40) for pair in sides[:40]]
        covered = np.mean([i.low <= expected <= i.high for i in intervals])
        assert covered >= 0.85  # 34 of 40; nominal 38
        widths[n] = np.mean([i.high - i.low for i in intervals])
        # Not by being far too wide.
        deviation = np.std([i.score for i in intervals])
        assert np.mean([i.standard_error for i in intervals]) < 2 * deviation
    assert widths[400] < 0.65 * widths[100]


def test_the_seed_fixes_the_numbers_and_they_are_strict_json():
    a, b = related()
    first, again, other = (confidence_interval(a, b, k=4, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.low != other.low
    values = json.loads(json.dumps(first.to_json(), allow_nan=False))
    protocol = {"level": 0.95, "num_subsamples": 200, "n": 60, "k": 4, "seed": 1}
    assert values.items() >= protocol.items()
    assert confidence_interval(a, b, metric="cka", num_subsamples=3).k is None


def test_copies_of_one_encoder_have_no_uncertainty():
    a, _ = related()
    result = confidence_interval(a, a, k=4)
    assert (result.low, result.score, result.high) == (1, 1, 1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"level": 1}, "level=1 must be between 0 and 1"),
        ({"level": float("nan")}, "level=nan"),
        ({"fraction": 0}, "fraction=0 must be between"),
        ({"fraction": 0.05}, "fraction=0.05 of 60 items is 3: .* at least 16"),
        ({"fraction": 0.999}, "fraction=0.999 of 60 items is 60"),
        ({"num_subsamples": 1}, "num_subsamples=1 must be at least 2"),
        ({"seed": -1}, "seed=-1"),
        ({"metric": "nope"}, "metric='nope'"),
        ({"k": 59}, "must have at least 236 and fewer than 60"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        confidence_interval(*related(), **{"k": 4} | settings)


def test_bad_features_are_refused():
    a, b = related()
    with pytest.raises(ValueError, match="a has 60 items and b has 50"):
        confidence_interval(a, b[:50])
    a[7, 1] = 0
    with pytest.raises(ValueError, match="layer 1 of a: item 7 is all zeros"):
        confidence_interval(a, b, k=4)
