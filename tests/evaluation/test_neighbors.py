import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from platojax.evaluation import neighbors
from platojax.evaluation.alignment import alignment
from platojax.evaluation.neighbors import nearest_neighbors
from tests.evaluation.test_alignment import neighbor_lists
from tests.test_sharding import run_case


def test_neighbors_agree_with_a_stable_sort_whatever_the_block(monkeypatch):
    x = np.random.default_rng(0).normal(size=(101, 6)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    for elements in (2**24, 101 * 17, 101):  # one block, a ragged last block, a row at a time
        monkeypatch.setattr(neighbors, "_BLOCK_ELEMENTS", elements)
        neighbors._search.clear_cache()
        indices, similarities = nearest_neighbors(jnp.asarray(x), 7)
        np.testing.assert_array_equal(indices, neighbor_lists(x, 7))
        np.testing.assert_allclose(
            similarities, np.take_along_axis(x @ x.T, np.asarray(indices), axis=1), atol=1e-6
        )
    neighbors._search.clear_cache()


def test_an_item_is_not_its_own_neighbor_even_if_all_similarities_are_negative():
    # The corners of a simplex: every pair of items has similarity -1/5.
    x = np.eye(6, dtype=np.float32) - 1 / 6
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    indices, similarities = nearest_neighbors(jnp.asarray(x), 5)
    assert np.all(np.asarray(similarities) < 0)
    assert [sorted(row) for row in np.asarray(indices).tolist()] == [
        [j for j in range(6) if j != i] for i in range(6)
    ]


def test_of_equal_similarities_the_lower_index_comes_first():
    # One-hot rows: exact arithmetic, and nothing but ties.
    one_hot = np.eye(4, dtype=np.float32)[[0, 1, 2, 3, 0, 1, 2, 3]]
    indices, _ = nearest_neighbors(jnp.asarray(one_hot), 3)
    np.testing.assert_array_equal(indices, neighbor_lists(one_hot, 3))
    np.testing.assert_array_equal(indices[5], [1, 0, 2])
    assert alignment(one_hot, one_hot, k=3) == 1


def test_no_array_of_items_by_items_in_a_large_search():
    mesh = jax.make_mesh((1,), ("queries",), (AxisType.Auto,), devices=jax.devices()[:1])
    x = jax.device_put(jnp.zeros((20_000, 8)), NamedSharding(mesh, PartitionSpec()))
    compiled = neighbors._search.lower(x, 10, mesh).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 20_000**2  # a quarter of N x N floats


@pytest.mark.parametrize("k", [0, 6])
def test_a_number_of_neighbors_that_there_are_not_is_refused(k):
    with pytest.raises(ValueError, match=rf"k={k} neighbours of 6 items: k must be in 1..5"):
        nearest_neighbors(jnp.eye(6), k)


@pytest.mark.slow
def test_8_devices_find_exactly_what_one_finds():
    assert "equal" in run_case("neighbors")
