"""Scaling laws and sample ratios on curves whose answers are known."""

import json
import math

import numpy as np
import pytest

from platojax.evaluation.scaling import fit_scaling_law, sample_ratio

SIZES = 2_000 * 2.0 ** np.arange(7)


def power(n):
    return 0.3 - 0.28 * (n / 2_000) ** -0.3


def logistic(n):
    return 0.02 + 0.2 / (1 + np.exp(-1.2 * np.log(n / 12_000)))


def seeds(curve, noise, count=8):
    rng = np.random.default_rng(0)
    samples = np.repeat(SIZES, count)
    return samples, curve(samples) + rng.normal(0, noise, len(samples))


@pytest.mark.parametrize(("form", "curve"), [("power", power), ("logistic", logistic)])
def test_a_curve_of_each_form_is_found_again(form, curve):
    law = fit_scaling_law(SIZES, curve(SIZES))
    assert law.form == form
    assert law.fitted == (2_000, 128_000)
    assert law.residual < 1e-5
    assert law.spread is None
    assert law.held_out_error[form] == min(law.held_out_error.values()) < 1e-4
    np.testing.assert_allclose(law.predict([500_000, 3e6]), curve(np.array([5e5, 3e6])), atol=1e-3)


def test_parameters_are_those_of_the_power_law():
    law = fit_scaling_law(SIZES, power(SIZES))
    want = {"limit": 0.3, "gap": 0.28, "exponent": 0.3, "n0": 2_000}
    assert law.parameters == pytest.approx(want, rel=1e-3)


def test_one_lucky_size_does_not_choose_the_form():
    scores = power(SIZES)
    of_others = fit_scaling_law(SIZES[:-1], logistic(SIZES[:-1]))
    mixed = np.append(logistic(SIZES[:-1]), scores[-1])
    assert fit_scaling_law(SIZES, mixed).form == of_others.form == "logistic"


def test_the_largest_runs_are_predicted_within_the_seeds_spread():
    samples, scores = seeds(power, 0.001)
    small = samples <= 64_000
    law = fit_scaling_law(samples[small], scores[small])
    assert law.spread == pytest.approx(0.001, rel=0.4)
    assert abs(law.predict(128_000) - power(128_000)) < 3 * law.spread


def test_one_outlier_does_not_bend_the_law():
    scores = power(SIZES)
    scores[3] = 0.0
    assert fit_scaling_law(SIZES, scores).predict(128_000) == pytest.approx(
        power(128_000), abs=0.02
    )


def test_scores_of_any_unit_give_the_same_law():
    law, scaled = (fit_scaling_law(SIZES, scale * power(SIZES)) for scale in (1, 1_000))
    np.testing.assert_allclose(scaled.predict(1e6), 1_000 * law.predict(1e6), rtol=1e-3)


def test_curves_that_fall_or_stay_are_fitted_and_do_not_rise():
    falling = fit_scaling_law(SIZES, np.linspace(0.2, 0.1, 7))
    flat = fit_scaling_law(SIZES, np.full(7, 0.1))
    assert falling.predict(128_000) <= 0.2
    np.testing.assert_allclose(flat.predict(1e6), 0.1, atol=1e-4)


def test_few_sizes_give_the_form_that_they_determine():
    two = fit_scaling_law([1_000, 4_000], [0.1, 0.2])
    assert two.form == "log_linear"
    assert two.held_out_error == {}
    np.testing.assert_allclose(two.predict([2_000, 16_000]), [0.15, 0.3])
    three = fit_scaling_law(SIZES[:3], power(SIZES[:3]))
    assert three.form == "power"
    np.testing.assert_allclose(three.predict(SIZES[:3]), power(SIZES[:3]), atol=1e-4)


def test_a_law_is_json():
    law = fit_scaling_law(SIZES, power(SIZES)).to_json()
    assert json.loads(json.dumps(law)) == {**law, "fitted": [2_000, 128_000]}


@pytest.mark.parametrize(
    ("samples", "scores", "message"),
    [
        ([1_000, 1_000], [0.1, 0.2], "1000 in all runs"),
        ([1_000], [0.1], "two sizes at least"),
        ([], [], "a number for each run"),
        ([1_000, 2_000], [0.1], r"shapes \(2,\) and \(1,\)"),
        ([[1_000, 2_000]], [[0.1, 0.2]], "of one length"),
        ([0, 2_000], [0.1, 0.2], "untrained encoder"),
        ([1_000, 2_000], [0.1, math.nan], r"scores\[1\] is nan"),
        ([1_000, math.inf], [0.1, 0.2], r"samples\[1\] is inf"),
    ],
)
def test_what_no_law_can_be_fitted_to_is_refused(samples, scores, message):
    with pytest.raises(ValueError, match=message):
        fit_scaling_law(samples, scores)


def test_prediction_needs_samples():
    law = fit_scaling_law(SIZES, power(SIZES))
    with pytest.raises(ValueError, match="must be positive; got 0"):
        law.predict([1_000, 0])


def test_an_arm_that_needs_eight_times_the_samples():
    ratio = sample_ratio(SIZES, power(SIZES), SIZES, power(SIZES / 8))
    assert ratio.bound == ""
    assert ratio.at == pytest.approx(power(16_000))
    assert ratio.ratio == pytest.approx(8)
    assert (ratio.samples_a, ratio.samples_b) == pytest.approx((16_000, 128_000))
    assert ratio.low == ratio.high == ratio.ratio  # one run of each size: nothing to resample
    inverse = sample_ratio(SIZES, power(SIZES / 8), SIZES, power(SIZES))
    assert inverse.ratio == pytest.approx(1 / 8)


def test_between_two_sizes_the_logarithm_is_interpolated():
    ratio = sample_ratio([1_000, 4_000], [0.1, 0.3], [1_000, 16_000], [0.0, 0.2])
    assert (ratio.at, ratio.samples_a, ratio.ratio) == pytest.approx((0.2, 2_000, 8))


def test_the_interval_is_that_of_the_seeds():
    a, b = seeds(power, 0.004), seeds(lambda n: power(n / 8), 0.004)
    ratio = sample_ratio(*a, *b)
    assert ratio.low < 8 < ratio.high
    assert ratio.low < ratio.ratio < ratio.high
    assert ratio == sample_ratio(*a, *b)
    narrow = sample_ratio(*seeds(power, 4e-4), *seeds(lambda n: power(n / 8), 4e-4))
    assert narrow.high - narrow.low < ratio.high - ratio.low


def test_where_one_arm_is_above_or_below_the_ratio_is_a_bound():
    above = sample_ratio(SIZES, power(SIZES) + 1, SIZES, power(SIZES), at=0.2)
    assert (above.bound, above.samples_a) == ("at least", 2_000)
    assert above.high == math.inf
    assert above.ratio == pytest.approx(above.samples_b / 2_000)
    assert str(above).startswith("at least ")
    assert json.loads(json.dumps(above.to_json()))["high"] is None
    never = sample_ratio(SIZES, power(SIZES), SIZES, power(SIZES) - 1, at=0.2)
    assert (never.bound, never.samples_b) == ("at least", 128_000)
    other = sample_ratio(SIZES, power(SIZES) - 1, SIZES, power(SIZES), at=0.2)
    assert (other.bound, other.low) == ("at most", 0)
    assert other.ratio == pytest.approx(other.samples_b / 128_000)


def test_both_arms_out_of_range_on_different_sides_are_still_a_bound():
    ratio = sample_ratio(SIZES, power(SIZES) + 1, SIZES, power(SIZES) - 1, at=0.5)
    assert (ratio.bound, ratio.ratio) == ("at least", 64)


def test_scores_that_are_not_monotone_are_pooled():
    dip = sample_ratio([1_000, 2_000, 4_000], [0.1, 0.3, 0.2], [1_000, 4_000], [0.05, 0.1], at=0.1)
    assert (dip.samples_a, dip.samples_b) == (1_000, 4_000)
    top = sample_ratio([1_000, 2_000, 4_000], [0.1, 0.3, 0.2], [1_000, 4_000], [0.1, 0.4])
    assert top.at == pytest.approx(0.25)
    assert top.samples_a == pytest.approx(2_000)


def test_where_nothing_can_be_said_it_is_refused():
    with pytest.raises(ValueError, match="neither arm is within its range"):
        sample_ratio(SIZES, power(SIZES), SIZES, power(SIZES), at=0.9)
    for arguments, message in (
        ({"at": math.nan}, "at must be finite"),
        ({"level": 1.0}, "level must be in"),
        ({"num_resamples": 0}, "num_resamples must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            sample_ratio(SIZES, power(SIZES), SIZES, power(SIZES), **arguments)
