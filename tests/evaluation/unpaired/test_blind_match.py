import numpy as np
import pytest

from platojax.evaluation.unpaired import blind_match
from tests.evaluation.unpaired.synthetic import semi_orthogonal

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("kernel", "width_y"), [("distance", 20), ("gram", 12)])
def test_finds_the_classes_and_the_rotation(kernel, width_y):
    rng = np.random.default_rng(1)
    means = rng.standard_normal((20, 12))
    order = rng.permutation(20)
    noise = 0.05 * rng.standard_normal((20, width_y))
    other = np.empty((20, width_y))
    other[order] = 4 * (means @ semi_orthogonal(rng, 12, width_y) + noise)
    matched = blind_match(means, other, kernel=kernel)
    np.testing.assert_array_equal(matched.permutation, order)
    assert matched.correlation > 0.95
    cosines = matched.rotation.apply(means) * matched.rotation.target(other[order])
    assert cosines.sum(axis=1).min() > 0.9


def test_unrelated_classes_agree_less():
    x, y = RNG.standard_normal((2, 20, 12))
    assert blind_match(x, y).correlation < 0.8


@pytest.mark.parametrize(
    ("x", "y", "kernel", "message"),
    [
        (np.eye(4), RNG.standard_normal((4, 4)), "distance", "equally far apart"),
        (np.eye(4), np.eye(5), "gram", "x has 4 items and y has 5"),
        (np.eye(2), np.eye(2), "gram", "at least 3"),
        (np.ones((4, 3)), np.eye(4), "gram", "x is the same for all"),
        (np.eye(4), np.eye(4), "cosine", "kernel='cosine'"),
        (np.eye(4), np.full((4, 4), np.inf), "gram", "y is inf"),
    ],
)
def test_refuses_what_cannot_be_matched(x, y, kernel, message):
    with pytest.raises(ValueError, match=message):
        blind_match(x, y, kernel=kernel)
