import json

import numpy as np
import pytest

from platojax.evaluation.alignment import METRICS, alignment, prepare_side
from platojax.evaluation.calibration import paired_p_value
from platojax.evaluation.controls import above_untrained, pca_control, width_matched


def some(n=60, layers=2, width=8, seed=0):
    return np.random.default_rng(seed).normal(size=(n, layers, width))


def rotated(x, width, seed=1):
    q = np.linalg.qr(np.random.default_rng(seed).normal(size=(width, x.shape[-1])))[0]
    return x @ q.T


@pytest.mark.parametrize("dim", [None, 8, 3])
def test_rotated_copies_score_one_at_any_width(dim):
    a = some()
    result = pca_control(a, rotated(a, 12), dim=dim, k=5)
    np.testing.assert_array_equal(np.diag(result.table), 1)
    assert (result.score, result.layers, result.dim) == (1, (0, 0), dim or 8)


@pytest.mark.parametrize("shape", [(60, 8), (12, 30)])
def test_projection_is_the_principal_components_of_unit_rows(shape):
    x = some(n=shape[0], layers=1, width=shape[1]) + 1
    projected, _ = width_matched(x, x, dim=4)
    unit = x[:, 0] / np.linalg.norm(x[:, 0], axis=1, keepdims=True)
    u, s, _ = np.linalg.svd(unit - unit.mean(axis=0), full_matrices=False)
    expected = (u * s)[:, :4]
    signs = np.sign((projected[:, 0] * expected).sum(axis=0))
    np.testing.assert_allclose(projected[:, 0] * signs, expected, atol=1e-5)
    assert projected.dtype == np.float32


def test_dimensions_that_only_one_side_has_are_left_out():
    # The signal is in three strong dimensions; the wide side has weak noise beside it.
    rng = np.random.default_rng(0)
    signal = rng.normal(size=(100, 3))
    wide = np.concatenate([signal, 0.3 * rng.normal(size=(100, 60))], axis=1)
    assert pca_control(signal, wide).score > 1.5 * alignment(signal, wide)[0, 0]


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_takes_the_control(metric):
    a = some()
    result = pca_control(a, some(seed=1), dim=5, metric=metric, k=4)
    assert np.isfinite(result.table).all()
    values = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert values["dim"] == 5
    assert values["metric"] == metric
    assert values["k"] == (4 if METRICS[metric].uses_neighbors else None)


@pytest.mark.parametrize(
    ("a", "dim", "words"),
    [
        (some(), 9, r"dim=9 must be in 1..8: .* 8 and 8"),
        (some(), 0, "dim=0"),
        (some(n=5), 5, r"dim=5 must be in 1..4"),
        (some(n=1), None, "1 item has no principal components"),
        (np.zeros((60, 8)), None, "layer 0 of a: item 0 is all zeros"),
        (some() * np.nan, None, "a is nan"),
        (some(n=59), None, "a has 59 items and b has 60"),
    ],
)
def test_bad_input_of_the_width_control_is_refused(a, dim, words):
    with pytest.raises(ValueError, match=words):
        pca_control(a, some(), dim=dim, k=3)


def test_the_difference_from_an_untrained_encoder_is_that_of_the_scores_with_its_p_value():
    rng = np.random.default_rng(0)
    b = rng.normal(size=(150, 8))
    trained, untrained = (b + noise * rng.normal(size=b.shape) for noise in (0.7, 3))
    sides = [prepare_side("side", x, k=5) for x in (trained, untrained, b)]
    result = above_untrained(*sides, seed=4)
    scores = [alignment(x, b, k=5)[0, 0] for x in (trained, untrained)]
    assert result.score == scores[0]
    assert result.untrained == scores[1]
    assert result.difference == pytest.approx(scores[0] - scores[1])
    assert result.p_value == paired_p_value(*sides, seed=4) == 1 / 2001
    assert above_untrained(sides[1], sides[0], sides[2]).difference < 0
    json.dumps(result.to_json(), allow_nan=False)


def test_the_untrained_encoder_needs_one_layer_of_the_same_items():
    b = prepare_side("b", some(layers=1))
    with pytest.raises(ValueError, match="untrained has 2 layers"):
        above_untrained(b, prepare_side("untrained", some()), b)
    with pytest.raises(ValueError, match="untrained has 50 items and b has 60"):
        above_untrained(b, prepare_side("untrained", some(n=50, layers=1)), b)
