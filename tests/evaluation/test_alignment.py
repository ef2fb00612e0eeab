import dataclasses
import pathlib
import re

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.spatial

from platojax.evaluation import alignment as alignment_module
from platojax.evaluation.alignment import (
    METRICS,
    CopiesWarning,
    alignment,
    clip_outliers,
    permuted_maxima,
    prepare_side,
    score_table,
)

GOLDEN = np.load(pathlib.Path(__file__).parents[1] / "golden" / "alignment_metrics.npz")
TABLES = [name for name in GOLDEN.files if "." in name]


def related(n=60, layers=(2, 3), widths=(7, 9), seed=0):
    """Two sides that share part of a signal, so that no metric is trivially 0 or 1."""
    rng = np.random.default_rng(seed)
    signal = rng.normal(size=(n, 1, 4))
    a = rng.normal(size=(n, layers[0], widths[0]))
    b = rng.normal(size=(n, layers[1], widths[1]))
    a[..., :4] += signal
    b[..., :4] += 2 * signal
    return a.astype(np.float32), b.astype(np.float32)


def neighbor_lists(x, k):
    """[N, k] by a stable full sort in float64: of equal similarities the lower index first."""
    x = x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    similarities = x @ x.T
    np.fill_diagonal(similarities, -np.inf)
    return np.argsort(-similarities, axis=1, kind="stable")[:, :k]


def longest_common_subsequence(x, y):
    lengths = np.zeros((len(x) + 1, len(y) + 1), int)
    for i, u in enumerate(x):
        for j, v in enumerate(y):
            lengths[i + 1, j + 1] = (
                lengths[i, j] + 1 if u == v else max(lengths[i, j + 1], lengths[i + 1, j])
            )
    return lengths[-1, -1]


def brute_force(x, y, metric, k):
    """One pair of layers, straight from the definitions, with arrays of items x items."""
    n = len(x)
    x, y = (z.astype(np.float64) / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y))
    nx, ny = neighbor_lists(x, k), neighbor_lists(y, k)
    if metric == "mutual_knn":
        return np.mean([len(set(p) & set(q)) / k for p, q in zip(nx, ny, strict=True)])
    if metric == "cycle_knn":
        return np.mean([any(i in nx[j] for j in ny[i]) for i in range(n)])
    if metric == "lcs_knn":
        return np.mean([longest_common_subsequence(p, q) for p, q in zip(nx, ny, strict=True)])
    kernels = x @ x.T, y @ y.T
    if metric == "cka":
        h = np.eye(n) - 1 / n

        def hsic(p, q):
            return np.trace(p @ h @ q @ h)
    else:

        def hsic(p, q):
            p, q = (z * (1 - np.eye(n)) for z in (p, q))
            return (
                np.sum(p * q.T)
                + p.sum() * q.sum() / (n - 1) / (n - 2)
                - 2 * (p @ q).sum() / (n - 2)
            ) / (n * (n - 3))

    if metric == "cknna":
        inside = np.zeros((2, n, n), bool)
        for mask, lists in zip(inside, (nx, ny), strict=True):
            np.put_along_axis(mask, lists, True, axis=1)
        plain = hsic

        def local(i, j):
            both = inside[i] & inside[j]
            return plain(both * kernels[i], both * kernels[j])

        return local(0, 1) / (np.sqrt(local(0, 0) * local(1, 1)) + 1e-6)
    p, q = kernels
    return hsic(p, q) / (np.sqrt(hsic(p, p) * hsic(q, q)) + 1e-6)


@pytest.mark.parametrize("table", TABLES)
def test_agrees_with_the_published_code(table):
    metric, clip = table.split(".")
    ours = alignment(GOLDEN["a"], GOLDEN["b"], metric=metric, k=int(GOLDEN["k"]), clip=clip)
    np.testing.assert_allclose(ours, GOLDEN[table], atol=1e-5, rtol=0)


def test_golden_values_cover_every_metric_of_that_code_and_every_clip():
    published = set(METRICS) - {"svcca", "procrustes"}
    assert set(TABLES) == {f"{m}.{c}" for m in published for c in ("none", "exact", "mean")}


@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize(
    "metric", ["mutual_knn", "cycle_knn", "lcs_knn", "cknna", "cka", "unbiased_cka"]
)
def test_agrees_with_brute_force(metric, k):
    a, b = related()
    expected = [[brute_force(a[:, i], b[:, j], metric, k) for j in range(3)] for i in range(2)]
    np.testing.assert_allclose(alignment(a, b, metric=metric, k=k), expected, atol=1e-5)


@pytest.mark.parametrize("metric", ["cka", "unbiased_cka"])
def test_kernel_metrics_of_many_items_do_not_need_the_kernel(metric, monkeypatch):
    a, b = related(n=61)
    kept = alignment(a, b, metric=metric)
    monkeypatch.setattr(alignment_module, "_GRAM_ITEMS", 10)
    alignment_module._table.clear_cache()
    alignment_module._prepare_kernel.clear_cache()
    try:
        sides = [prepare_side("side", x, metric=metric) for x in (a, b)]
        assert sides[0].prepared.values.shape == a.transpose(1, 0, 2).shape
        np.testing.assert_allclose(score_table(*sides), kept, atol=1e-5)
    finally:
        alignment_module._table.clear_cache()
        alignment_module._prepare_kernel.clear_cache()


def test_unbiased_cka_survives_a_large_common_mean():
    # Cosines of .999 and more, as in many language models: the uncentred formula loses its digits.
    a, b = related(n=50)
    a, b = a + 60, b + 60
    expected = [
        [brute_force(a[:, i], b[:, j], "unbiased_cka", 3) for j in range(3)] for i in range(2)
    ]
    # The published 1e-6 in the denominator is not negligible for kernels this flat.
    assert np.max(np.abs(expected)) > 1e-4
    np.testing.assert_allclose(alignment(a, b, metric="unbiased_cka"), expected, rtol=0.02)


def test_svcca_is_the_mean_canonical_correlation_of_the_leading_singular_vectors():
    for n, widths in ((80, (20, 33)), (16, (40, 30)), (50, (4, 12))):
        a, b = related(n=n, widths=widths)
        bases = []
        for x in (a[:, 0], b[:, 1]):
            x = x.astype(np.float64) / np.linalg.norm(x, axis=1, keepdims=True)
            x = (x - x.mean(0)) / x.std(0)
            bases.append(np.linalg.svd(x, full_matrices=False)[0][:, :10])
        cosines = np.cos(scipy.linalg.subspace_angles(*bases))
        assert 0.1 < cosines.mean() < 0.99
        np.testing.assert_allclose(alignment(a, b, metric="svcca")[0, 1], cosines.mean(), atol=1e-4)


def test_svcca_leaves_out_columns_without_variance():
    rng = np.random.default_rng(0)
    # Rows of one length, so that the last column stays constant when rows are scaled.
    x = rng.normal(size=(40, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    x = np.concatenate([x, np.full((40, 1), 0.7)], axis=1)
    np.testing.assert_allclose(alignment(x, x, metric="svcca"), 1, atol=1e-5)


def test_svcca_leaves_out_directions_without_variance():
    a, b = related(n=80, widths=(4, 20))
    twice = np.concatenate([a, a], axis=2)  # eight columns of rank four
    np.testing.assert_allclose(
        alignment(twice, b, metric="svcca"), alignment(a, b, metric="svcca"), atol=1e-4
    )


def test_cknna_is_zero_where_its_normalisation_is_not_positive():
    # An unbiased estimate may be negative; the root of it is then no number.
    a, b = (prepare_side("side", x, metric="cknna", k=5) for x in related())
    prepared = a.prepared._replace(norm=-a.prepared.norm)
    spoiled = dataclasses.replace(a, prepared=prepared)
    assert np.all(score_table(a, b) != 0)
    np.testing.assert_array_equal(score_table(spoiled, b), 0)


def test_procrustes_is_one_minus_scipys_disparity():
    for n, width in ((60, 8), (12, 30)):
        a, b = related(n=n, widths=(width, width))
        a, b = (x / np.linalg.norm(x, axis=2, keepdims=True) for x in (a, b))
        disparity = scipy.spatial.procrustes(a[:, 1].astype(float), b[:, 2].astype(float))[2]
        ours = alignment(a, b, metric="procrustes")[1, 2]
        np.testing.assert_allclose(ours**2, 1 - disparity, atol=1e-5)


def test_procrustes_is_one_for_a_rotation_into_a_wider_space():
    a, _ = related()
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(12, 7)))[0]
    table = alignment(a, a @ rotation.T, metric="procrustes")
    np.testing.assert_allclose(np.diag(table), 1, atol=1e-5)
    assert table[0, 1] < 0.9


@pytest.mark.parametrize("metric", METRICS)
def test_identical_features_reach_the_largest_value(metric):
    a, _ = related()
    table = alignment(a, a, metric=metric, k=4)
    if metric == "cycle_knn":  # 1 only where every item is a neighbour of a neighbour of its
        expected, tolerance = 1, 0.1
    else:  # for cknna, the kernel restricted to neighbours is small against the published 1e-6
        expected, tolerance = (4 if metric == "lcs_knn" else 1), 1e-4
    np.testing.assert_allclose(np.diag(table), expected, atol=tolerance)
    assert table.dtype == np.float32


@pytest.mark.parametrize("metric", METRICS)
def test_scale_of_an_item_and_number_format_do_not_matter(metric):
    a, b = related()
    scales = np.logspace(-25, 25, len(a)).astype(np.float32)[:, None, None]
    expected = alignment(a, b, metric=metric)
    np.testing.assert_allclose(alignment(a * scales, b, metric=metric), expected, atol=2e-5)
    np.testing.assert_array_equal(
        alignment(jnp.asarray(a), b.astype(np.float64), metric=metric), expected
    )


def test_two_axes_are_one_layer():
    a, b = related()
    np.testing.assert_array_equal(alignment(a[:, 0], b[:, 1]), alignment(a, b)[:1, 1:2])


def test_integers_and_half_precision_are_computed_with_in_float32():
    rng = np.random.default_rng(0)
    a = rng.integers(-100, 100, size=(50, 6))
    b = a + rng.integers(-50, 50, size=(50, 6))
    expected = alignment(a.astype(np.float32), b.astype(np.float32))
    np.testing.assert_array_equal(alignment(a, b.astype(np.float16)), expected)
    # 100 is exact in bfloat16; the products are not.
    np.testing.assert_array_equal(alignment(jnp.asarray(a, jnp.bfloat16), b), expected)


def test_the_form_of_an_array_in_memory_does_not_matter():
    a, b = related()
    expected = alignment(a, b)
    strided = np.repeat(a, 2, axis=2)[..., ::2]
    assert not strided.flags.c_contiguous
    np.testing.assert_array_equal(alignment(strided, np.asfortranarray(b)), expected)
    np.testing.assert_array_equal(alignment(a.tolist(), b), expected)


def test_booleans_are_zeros_and_ones():
    bits = np.random.default_rng(0).random((50, 40)) < 0.5
    np.testing.assert_array_equal(
        alignment(bits, bits[:, :20]),
        alignment(bits.astype(np.float32), bits[:, :20].astype(np.float32)),
    )


@pytest.mark.parametrize("block_elements", [1, 100, 2**24])
def test_outliers_are_clipped_at_the_quantile_of_all_magnitudes_whatever_is_held_at_once(
    block_elements, monkeypatch
):
    monkeypatch.setattr(alignment_module, "_CLIP_ELEMENTS", block_elements)
    for x in (*related(n=21), np.round(related()[0]), 1e-30 * related()[1]):
        magnitudes = np.abs(x)
        threshold = np.sort(magnitudes.ravel())[int(0.95 * x.size)]
        np.testing.assert_array_equal(
            clip_outliers("x", x, "exact"), np.clip(x, -threshold, threshold)
        )
        threshold = np.mean(np.quantile(magnitudes.reshape(len(x), -1), 0.95, axis=1))
        np.testing.assert_array_equal(
            clip_outliers("x", x, "mean"), np.clip(x, -threshold, threshold)
        )
    assert clip_outliers("x", x, "none") is x


# Sides


@pytest.mark.parametrize("clip", ["none", "exact", "mean"])
def test_layers_prepared_by_number_are_clipped_and_scored_as_if_they_were_all(clip):
    a, b = related()
    b[:, 1] *= 100
    side = prepare_side("text", a, k=4, clip=clip)
    chosen = prepare_side("image", b, k=4, clip=clip, layers=[2, -3])
    assert chosen.layer_numbers == (2, 0)
    assert (chosen.clip_threshold == np.inf) == (clip == "none")
    expected = alignment(a, b[:, [2, 0]], k=4, clip=clip)
    np.testing.assert_array_equal(score_table(side, chosen), expected)
    with pytest.raises(ValueError, match=r"layers=\[3\] of image: choose at least one"):
        prepare_side("image", b, layers=[3])


@pytest.mark.parametrize("metric", METRICS)
def test_a_side_serves_several_partners_as_if_prepared_for_each(metric):
    a, b = related()
    side = prepare_side("text", a, metric=metric, k=4)
    assert (side.num_items, side.num_layers) == (60, 2)
    for other in (b, b[:, :1], related(seed=1)[0]):
        partner = prepare_side("image", other, metric=metric, k=4)
        np.testing.assert_array_equal(
            score_table(side, partner), alignment(a, other, metric=metric, k=4)
        )


@pytest.mark.parametrize("metric", METRICS)
def test_selected_layers_score_as_they_do_among_all(metric):
    a, b = related()
    sides = [prepare_side("side", x, metric=metric, k=4) for x in (a, b)]
    chosen = score_table(sides[0].select([1]), sides[1].select([2, 0]))
    np.testing.assert_allclose(
        chosen, score_table(*sides)[[1]][:, [2, 0]], atol=1e-6, err_msg=metric
    )
    assert sides[1].select([2, -3]).layer_numbers == (2, 0)


@pytest.mark.parametrize("metric", [name for name in METRICS if METRICS[name].uses_neighbors])
def test_fewer_neighbors_are_the_beginning_of_the_lists(metric):
    a, b = related()
    longer = [prepare_side("side", x, metric=metric, k=9).with_k(4) for x in (a, b)]
    np.testing.assert_allclose(score_table(*longer), alignment(a, b, metric=metric, k=4), atol=1e-6)
    assert [side.k for side in longer] == [4, 4]


def test_fewer_neighbors_may_be_copies_where_more_were_not():
    a = some(n=30)
    a[:8, 1] = a[0, 1]  # seven copies of each
    side = prepare_side("text", a, k=8).select([1])
    with pytest.warns(UserWarning, match=r"layer 1 of text: for 8 of 30 items, k=5"):
        side.with_k(5)


@pytest.mark.parametrize("layers", [(2, 3), (2, 35)])
def test_permuted_scores_are_exact_by_look_up_and_by_pairs(layers, monkeypatch):
    a, b = (prepare_side("side", x, k=4) for x in related(layers=layers))
    orders = np.stack([np.random.default_rng(i).permutation(60) for i in range(9)])
    looked_up = permuted_maxima(a, b, orders)
    monkeypatch.setattr(alignment_module, "_GRAM_ITEMS", 10)
    alignment_module._permuted_maxima.clear_cache()
    compared = permuted_maxima(a, b, orders)
    alignment_module._permuted_maxima.clear_cache()
    np.testing.assert_array_equal(looked_up, compared)
    # The order that changes nothing gives the score itself, to the last bit.
    assert permuted_maxima(a, b, np.arange(60)[None])[0] == score_table(a, b).max()
    assert len(set(looked_up.tolist())) > 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"k": 5}, "text was prepared with k=4 and image with k=5: prepare both alike"),
        ({"clip": "mean"}, "clip='none' and image with clip='mean'"),
        ({"metric": "cka"}, "metric='mutual_knn' and image with metric='cka'"),
    ],
)
def test_sides_prepared_differently_are_refused(settings, words):
    a, b = related()
    side = prepare_side("text", a, k=4)
    other = prepare_side("image", b, **{"k": 4} | settings)
    with pytest.raises(ValueError, match=words):
        score_table(side, other)
    with pytest.raises(ValueError, match=words):
        permuted_maxima(side, other, np.arange(60)[None])


def test_sides_of_different_items_and_wrong_cuts_are_refused():
    a, b = related()
    side = prepare_side("text", a, k=4)
    with pytest.raises(ValueError, match="text has 60 items and image has 59"):
        score_table(side, prepare_side("image", b[:59], k=4))
    with pytest.raises(ValueError, match="k=5 is more than the 4 neighbours that text"):
        side.with_k(5)
    with pytest.raises(ValueError, match="cka has no k; choose one of mutual_knn, cycle_knn"):
        prepare_side("text", a, metric="cka").with_k(2)
    for layers in ([], [2], [-3]):
        with pytest.raises(ValueError, match=r"of text: choose at least one, each in 0\.\.1"):
            side.select(layers)


# Bad input


def some(n=20, layers=2, width=3):
    return np.random.default_rng(0).normal(size=(n, layers, width)).astype(np.float32)


def with_value(value, index):
    x = some()
    x[index] = value
    return x


@pytest.mark.parametrize(
    ("a", "settings", "words"),
    [
        (some(), {"metric": "cosine"}, ["metric='cosine'", "mutual_knn", "procrustes"]),
        (some(), {"clip": "max"}, ["clip='max'", "none, exact, mean"]),
        (some(), {"k": 0}, ["k=0", "at least 1"]),
        (some(), {"k": 2.5}, ["k=2.5", "integer"]),
        (some(), {"k": 1, "metric": "cknna"}, ["k=1", "at least 2"]),
        (some(), {"k": 20}, ["20 items", "k=20", "at least 21", "smaller k"]),
        (some(n=19), {}, ["a has 19 items", "b has 20", "same items"]),
        (some()[0, 0], {}, ["a has shape (3,)", "[items, layers, width]"]),
        (some(layers=0), {}, ["a has shape (20, 0, 3)"]),
        (with_value(np.nan, (3, 1, 2)), {}, ["a is nan", "item 3, layer 1, channel 2"]),
        (with_value(-np.inf, (19, 0, 0)), {}, ["a is -inf", "item 19"]),
        (
            some().astype(np.float64) * 1e300,
            {},
            ["a is 1.", "overflows float32", "scale the features down"],
        ),
        (some() * 1j, {}, ["a has dtype complex"]),
        (np.full((20, 2), "x"), {}, ["a has dtype <U1"]),
        (some().astype(object), {}, ["a has dtype object", "real numbers"]),
        ([[1.0, 2.0], [3.0]], {}, ["a is no array", "same number"]),
        (
            with_value(np.inf, (3, 1, 2)).astype(np.float16),
            {},
            ["a is inf", "item 3, layer 1, channel 2", "float16 overflows above 65504"],
        ),
        (with_value(0, (4, 1)), {}, ["layer 1 of a", "item 4 is all zeros", "leave these items"]),
        (with_value(7, np.s_[:, 1]), {}, ["layer 1 of a", "same for all 20 items", "drop"]),
        (with_value(7, np.s_[:, 1]), {"metric": "cka"}, ["layer 1 of a", "same for all 20"]),
        (np.abs(some(width=1)), {"k": 3}, ["layer 0 of a", "20 of 20", "same direction"]),
        (np.eye(20, 40), {"clip": "exact"}, ["clip='exact'", "a", "to 0", "clip='none'"]),
    ],
)
def test_bad_input_is_refused_with_the_place_and_the_fix(a, settings, words):
    with pytest.raises(ValueError, match=re.escape(words[0])) as error:
        alignment(a, some(), **{"k": 5} | settings)
    for word in words[1:]:
        assert word in str(error.value)


@pytest.mark.parametrize("metric", METRICS)
def test_one_item_is_refused_by_every_metric(metric):
    with pytest.raises(ValueError, match="a has 1 items, which are too few"):
        alignment(some(n=1), some(n=1), metric=metric)


def test_more_copies_of_an_item_than_neighbors_are_warned_of():
    a = some(n=30)
    a[:8, 1] = a[0, 1]
    with pytest.warns(CopiesWarning, match=r"layer 1 of a: for 8 of 30 items, k=5"):
        alignment(a, some(n=30), k=5)
    a[5:8, 1] = some(n=40)[32:35, 1]  # five are left: all of an item's copies fit in its list
    alignment(a, some(n=30), k=5)
