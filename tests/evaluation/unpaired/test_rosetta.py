import dataclasses
import functools
import os

import numpy as np
import pytest

from platojax.evaluation.retrieval import retrieval
from platojax.evaluation.rotation import procrustes
from platojax.evaluation.unpaired import unpaired_rotation
from tests.evaluation.unpaired.synthetic import clustered, spaces

# Small, for speed: the synthetic geometry is plain.
fit = functools.partial(unpaired_rotation, num_clusters=12, num_restarts=8, num_rounds=8)


def foscttm(fitted, data):
    return retrieval(fitted.apply(data.test_x), fitted.target(data.test_y)).foscttm


@pytest.mark.parametrize("seed", range(3))
def test_recovers_a_rotation_of_disjoint_items(seed):
    data = spaces(seed)
    fitted = fit(data.x, data.y, seed=seed)
    assert foscttm(fitted, data) < 0.001
    assert fitted.trusted
    assert fitted.shared_geometry > 0.8
    np.testing.assert_allclose(fitted.matrix.T @ fitted.matrix, np.eye(20), atol=1e-5)


@pytest.mark.parametrize(("width", "width_y"), [(16, 24), (24, 16)])
def test_recovers_a_map_between_different_widths(width, width_y):
    data = spaces(1, width=width, width_y=width_y)
    fitted = fit(data.x, data.y)
    assert fitted.matrix.shape == (width, width_y)
    oracle = procrustes(data.test_x, data.test_y)
    best = retrieval(oracle.apply(data.test_x), oracle.target(data.test_y)).foscttm
    assert foscttm(fitted, data) < best + 0.005


def test_sides_of_different_sizes():
    data = spaces(2)
    assert foscttm(fit(data.x, data.y[:500]), data) < 0.001


def test_does_not_trust_a_rotation_between_unrelated_spaces():
    rng = np.random.default_rng(0)
    x = clustered(np.random.default_rng(1), 800, 20)
    y = rng.standard_normal((800, 20)) * x.std(axis=0)
    fitted = fit(x, y)
    assert fitted.shared_geometry < 0.4
    assert not fitted.trusted


@pytest.mark.parametrize(
    ("estimated", "shared", "trusted"),
    [(0.01, 0.9, True), (0.01, 0.3, False), (0.2, 0.9, False), (0.2, 0.3, False)],
)
def test_trust_asks_for_agreement_and_for_shared_geometry(estimated, shared, trusted):
    fitted = fit(*(clustered(np.random.default_rng(0), 100, 6) for _ in range(2)))
    judged = dataclasses.replace(fitted, estimated_foscttm=estimated, shared_geometry=shared)
    assert judged.trusted == trusted


def test_the_matched_cosine_is_higher_for_related_spaces():
    data = spaces(3)
    unrelated = np.random.default_rng(0).standard_normal(data.y.shape)
    assert fit(data.x, data.y).matched_cosine > fit(data.x, unrelated).matched_cosine + 0.05


def test_a_seed_decides_everything():
    data = spaces(4, num_items=300)
    first, again, other = (fit(data.x, data.y, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.matrix, again.matrix)
    assert first.matched_cosine == again.matched_cosine
    assert first.estimated_foscttm == again.estimated_foscttm
    assert not np.array_equal(first.matrix, other.matrix)


def test_removes_a_dominant_component_of_one_side():
    data = spaces(5)
    rng = np.random.default_rng(5)
    direction = np.linalg.qr(rng.standard_normal((20, 1)))[0][:, 0]

    def disturbed(y):
        return (y + 12 * rng.standard_normal((len(y), 1)) * direction).astype(np.float32)

    y, test_y = disturbed(data.y), disturbed(data.test_y)
    fitted = fit(data.x, y, remove=1)
    assert fitted.removed == ("y", 0)
    removed = np.linalg.eigh(fitted.whitener_y)[1][:, 0]
    assert abs(removed @ direction) > 0.99
    kept = fit(data.x, y)
    assert kept.removed is None
    with_removal, without = (
        retrieval(one.apply(data.test_x), one.target(test_y)).foscttm for one in (fitted, kept)
    )
    assert with_removal < 0.02
    assert with_removal < without / 4


def test_removes_nothing_where_all_components_are_shared():
    data = spaces(6)
    fitted = fit(data.x, data.y, remove=1)
    assert fitted.removed is None
    assert fitted.whitener_x is None
    assert fitted.whitener_y is None


def test_copies_of_items_change_nothing():
    data = spaces(7, num_items=300)
    copied = np.concatenate([data.x, np.repeat(data.x[:5], 200, axis=0)])
    np.testing.assert_array_equal(fit(data.x, data.y).matrix, fit(copied, data.y).matrix)


def test_says_how_far_it_is():
    data = spaces(8, num_items=300)
    told = []
    fit(data.x, data.y, on_progress=lambda *news: told.append(news))
    # Half of the restarts, the other half, and a third of a half against the null.
    assert [news for news in told if news[0] == "clusters"][-1] == ("clusters", 2, 2)
    assert [news for news in told if news[0] == "candidates"][5] == ("candidates", 6, 6)
    assert ("assignment", 1, 1) in told
    rounds = [news for news in told if news[0] == "refinement"]
    assert [done for _, done, _ in rounds] == list(range(1, len(rounds) + 1))
    assert rounds[-1][1] == rounds[-1][2]


def test_keeps_its_settings():
    data = spaces(9, num_items=300)
    fitted = fit(data.x, data.y, seed=3, batch_size=200)
    assert (fitted.settings.seed, fitted.settings.batch_size) == (3, 200)
    assert fitted.settings.num_clusters == 12


X = clustered(np.random.default_rng(0), 100, 6).astype(np.float32)


@pytest.mark.parametrize(
    ("x", "y", "settings", "message"),
    [
        (X[:20], X, {}, "x has 20 distinct items, too few for 12 clusters"),
        (X, np.repeat(X[:4], 30, axis=0), {}, "y has 4 distinct items, too few for 12 clusters"),
        (X, np.ones((100, 6)), {}, "y is the same for all items"),
        (np.where(X[3, 0] == X, np.nan, X), X, {}, "x is nan"),
        (np.stack([X, X], axis=1), X, {}, "x has 2 layers"),
        (np.concatenate([X, -X, np.zeros((1, 6))]), X, {}, "x: item 200 equals the mean"),
        (X, X, {"seed": -1}, "seed=-1"),
        (X, X, {"num_clusters": 1}, "num_clusters=1"),
        (X, X, {"num_restarts": 1}, "num_restarts=1"),
        (X, X, {"batch_size": 20}, "batch_size=20"),
        (X, X, {"num_rounds": 0}, "num_rounds=0"),
        (X, X, {"num_neighbors": 0}, "num_neighbors=0"),
        (X, X, {"remove": -1}, "remove=-1"),
        (X, X, {"remove": 7}, "remove=7"),
    ],
)
def test_refuses_bad_input(x, y, settings, message):
    with pytest.raises(ValueError, match=message):
        fit(x, y, **settings)


@pytest.mark.skipif("PLATOJAX_FEATURES" not in os.environ, reason="needs PLATOJAX_FEATURES=*.npz")
def test_recovers_a_rotation_of_sentence_embeddings():
    features = np.load(os.environ["PLATOJAX_FEATURES"])["features"].astype(np.float32)
    rng = np.random.default_rng(0)
    q, _ = np.linalg.qr(rng.standard_normal((features.shape[1],) * 2))
    rotated = features @ q + 0.01 * rng.standard_normal(features.shape)
    order = rng.permutation(len(features))
    half = len(order) // 2
    fitted = unpaired_rotation(features[order[:half]], rotated[order[half:]])
    assert retrieval(fitted.apply(features), fitted.target(rotated)).foscttm < 0.0003
    assert fitted.trusted
