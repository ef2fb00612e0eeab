import functools

import numpy as np
import pytest

from platojax.evaluation.retrieval import retrieval
from platojax.evaluation.unpaired import mini_vec2vec
from tests.evaluation.unpaired.synthetic import spaces

fit = functools.partial(
    mini_vec2vec,
    num_clusters=12,
    num_restarts=8,
    num_neighbors=20,
    num_rounds=20,
    num_fine_clusters=100,
)


@pytest.mark.parametrize(("width", "width_y"), [(20, 20), (16, 24)])
def test_recovers_a_rotation_of_disjoint_items(width, width_y):
    data = spaces(1, width=width, width_y=width_y)
    fitted = fit(data.x, data.y)
    assert retrieval(fitted.apply(data.test_x), fitted.target(data.test_y)).foscttm < 0.005
    np.testing.assert_allclose(fitted.matrix @ fitted.matrix.T, np.eye(width), atol=1e-5)


def test_a_seed_decides_everything():
    data = spaces(2, num_items=200)
    first, again, other = (fit(data.x, data.y, seed=seed).matrix for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_few_items():
    data = spaces(3, num_items=30)
    fitted = mini_vec2vec(data.x, data.y, num_clusters=5, num_restarts=2, num_rounds=2)
    assert np.all(np.isfinite(fitted.apply(data.test_x)))


def test_says_how_far_it_is():
    data = spaces(4, num_items=200)
    told = []
    fit(data.x, data.y, on_progress=lambda *news: told.append(news))
    assert ("refinement", 20, 20) in told
    assert told[-1] == ("clustering", 1, 1)


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        (20, {}, "x has 20 distinct items, too few for 12 clusters"),
        (100, {"num_rounds": 0}, "num_rounds=0"),
        (100, {"batch_size": 20}, "batch_size=20"),
        (100, {"seed": -1}, "seed=-1"),
    ],
)
def test_refuses_bad_input(rows, settings, message):
    data = spaces(5, num_items=100)
    with pytest.raises(ValueError, match=message):
        fit(data.x[:rows], data.y, **settings)
