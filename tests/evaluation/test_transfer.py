import numpy as np
import pytest

from platojax.evaluation.retrieval import retrieval
from platojax.evaluation.rotation import procrustes, ridge
from platojax.evaluation.transfer import against_pairs, split_items, transfer


def sides(items=120, noise=0.3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(items, 8)).astype(np.float32)
    rotation = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    return x, (x @ rotation + noise * rng.normal(size=x.shape)).astype(np.float32)


def test_a_perfect_map_leaves_nothing_and_an_unrelated_one_leaves_two():
    x, y = sides(noise=0.0)
    perfect = transfer(procrustes(x, y), x, y)
    assert perfect.cosine == pytest.approx(1, abs=1e-5)
    assert perfect.residual == pytest.approx(0, abs=1e-5)
    assert perfect.retrieval.recall_xy[1] == 1
    unrelated = transfer(procrustes(x, y), x, np.random.default_rng(5).permutation(y))
    assert unrelated.residual == pytest.approx(2, abs=0.3)
    assert unrelated.cosine == pytest.approx(1 - unrelated.residual / 2, abs=1e-4)


def test_retrieval_is_that_of_the_mapped_items():
    x, y = sides()
    fitted = procrustes(x[:60], y[:60])
    expected = retrieval(fitted.apply(x[60:]), fitted.target(y[60:]))
    assert transfer(fitted, x[60:], y[60:]).retrieval == expected
    assert transfer(fitted, x[60:], y[60:]).to_json()["retrieval"] == expected.to_json()


def test_parts_are_disjoint_whole_and_by_the_seed():
    train, held_out = split_items(50, 0.2, 3)
    assert len(held_out) == 10
    assert sorted([*train, *held_out]) == list(range(50))
    again = split_items(50, 0.2, 3)
    np.testing.assert_array_equal(again[1], held_out)
    assert list(split_items(50, 0.2, 4)[1]) != list(held_out)


@pytest.mark.parametrize(
    ("count", "share", "words"),
    [(50, 0.0, "held_out=0.0 must be"), (50, 1.0, "must be"), (3, 0.3, "is 1: both parts")],
)
def test_impossible_parts_are_refused(count, share, words):
    with pytest.raises(ValueError, match=words):
        split_items(count, share, 0)


@pytest.mark.parametrize("fit", [procrustes, lambda x, y: ridge(x, y, 0.1)])
def test_more_pairs_are_better_and_all_pairs_are_fitted_once(fit):
    x, y = sides()
    points = against_pairs(fit, x, y, [12, 60], repetitions=4)
    assert [point.pairs for point in points] == [12, 60]
    assert [len(point.repetitions) for point in points] == [4, 1]
    few, all_ = (np.mean([one.cosine for one in point.repetitions]) for point in points)
    assert all_ > few + 0.02
    train, held_out = split_items(120, 0.5, 0)
    whole = transfer(fit(x[train], y[train]), x[held_out], y[held_out])
    assert points[1].repetitions[0].cosine == pytest.approx(whole.cosine, abs=1e-5)


def test_impossible_counts_are_refused():
    x, y = sides()
    with pytest.raises(ValueError, match=r"counts=\[61\] must be numbers of pairs in 2..60"):
        against_pairs(procrustes, x, y, [61])
    with pytest.raises(ValueError, match="repetitions=0"):
        against_pairs(procrustes, x, y, [10], repetitions=0)
