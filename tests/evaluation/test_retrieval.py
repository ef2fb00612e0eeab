import json

import numpy as np
import pytest

from platojax.evaluation import retrieval as retrieval_module
from platojax.evaluation.retrieval import held_out_retrieval, retrieval


def brute_force(x, y):
    """Ranks of the true partners from a full table of cosines; ties count one half."""
    x, y = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
    table = x @ y.T
    true = np.diag(table)[:, None]
    return 1 + (table > true).sum(1) + ((table == true).sum(1) - 1) / 2


@pytest.mark.parametrize("elements", [2**24, 61 * 7, 61])
def test_agrees_with_brute_force_whatever_the_block(elements, monkeypatch):
    monkeypatch.setattr(retrieval_module, "_BLOCK_ELEMENTS", elements)
    retrieval_module._ranks.clear_cache()
    x = np.random.default_rng(0).normal(size=(61, 8))
    y = x + np.random.default_rng(1).normal(size=(61, 8))
    result = retrieval(x, y)
    retrieval_module._ranks.clear_cache()
    xy, yx = brute_force(x, y), brute_force(y, x)
    assert result.foscttm == pytest.approx(np.mean(np.concatenate([xy, yx]) - 1) / 60)
    assert result.recall_xy == {k: pytest.approx(np.mean(xy <= k)) for k in (1, 5, 10)}
    assert result.recall_yx == {k: pytest.approx(np.mean(yx <= k)) for k in (1, 5, 10)}
    assert (result.median_rank_xy, result.median_rank_yx) == (np.median(xy), np.median(yx))
    assert result.n == 61
    assert result.recall_xy != result.recall_yx


def test_a_planted_rotation_is_found_in_items_that_it_was_not_fitted_on():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 10))
    y = 2 * x @ np.linalg.qr(rng.normal(size=(16, 10)))[0].T + 1
    result = held_out_retrieval(x, y)
    assert result.n == 100
    assert result.foscttm == 0
    assert result.recall_xy == result.recall_yx == {1: 1, 5: 1, 10: 1}
    assert result.median_rank_xy == result.median_rank_yx == 1


def test_unrelated_features_are_at_chance_on_held_out_items():
    # Fitted and measured on the same 60 items in 40 dimensions, this would look like alignment.
    rng = np.random.default_rng(0)
    results = [held_out_retrieval(*rng.normal(size=(2, 120, 40)), seed=seed) for seed in range(20)]
    chance = results[0].chance
    assert chance.foscttm == 0.5
    assert chance.recall_xy == {1: 1 / 60, 5: 5 / 60, 10: 10 / 60}
    assert np.mean([r.foscttm for r in results]) == pytest.approx(0.5, abs=0.03)
    for k in (1, 5, 10):
        shares = [share for r in results for share in (r.recall_xy[k], r.recall_yx[k])]
        error = np.sqrt(k / 60 / len(shares) / 60)
        assert np.mean(shares) == pytest.approx(k / 60, abs=4 * error)
    assert np.mean([r.median_rank_xy for r in results]) == pytest.approx(30.5, abs=4)


def test_encoders_that_tie_everything_are_at_chance_and_not_perfect():
    x = np.repeat([[1.0, 0.0], [0.0, 1.0]], 10, axis=0)
    result = retrieval(x, x)  # each item ties with the nine others of its kind
    assert result.foscttm == pytest.approx(4.5 / 19)
    assert result.recall_xy[1] == 0
    assert result.median_rank_xy == 5.5


def test_the_seed_fixes_the_split():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 60, 5))
    assert held_out_retrieval(x, y, seed=1) == held_out_retrieval(x, y, seed=1)
    assert held_out_retrieval(x, y, seed=1) != held_out_retrieval(x, y, seed=2)


def test_numbers_and_chance_are_strict_json():
    x = np.random.default_rng(0).normal(size=(8, 3))
    values = json.loads(json.dumps(retrieval(x, x).to_json(), allow_nan=False))
    assert values["recall_xy"] == {"1": 1, "5": 1, "10": 1}
    assert values["chance"]["recall_xy"] == {"1": 1 / 8, "5": 5 / 8, "10": 1}
    assert values["chance"]["median_rank_yx"] == 4.5


def some(n=20, width=3):
    return np.random.default_rng(0).normal(size=(n, width))


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (some(n=19), "x has 19 items and y has 20"),
        (some(width=4), "x has width 4 and y has width 3: map x into"),
        (np.eye(20, 3), "x: item 3 is all zeros"),
        (np.ones((20, 3)), "x is the same for all 20 items"),
        (some() * [np.inf, 1, 1], "x is -?inf"),
        (some().astype(object), "x has dtype object"),
        (some()[:, None].repeat(2, axis=1), "x has 2 layers"),
    ],
)
def test_bad_input_is_refused(x, words):
    with pytest.raises(ValueError, match=words):
        retrieval(x, some())


def test_too_few_items_and_a_negative_seed_are_refused():
    with pytest.raises(ValueError, match="1 item, which is too few"):
        retrieval(some(n=1), some(n=1))
    with pytest.raises(ValueError, match="3 items are too few to be split"):
        held_out_retrieval(some(n=3), some(n=3))
    with pytest.raises(ValueError, match="seed=-1"):
        held_out_retrieval(some(), some(), seed=-1)
