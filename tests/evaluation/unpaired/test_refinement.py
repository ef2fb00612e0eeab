import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from platojax.evaluation.rotation import unit_around
from platojax.evaluation.unpaired.refinement import matched_cosine, neighbor_means, refine, unit
from tests.evaluation.unpaired.synthetic import clustered, semi_orthogonal


def test_averages_the_values_of_the_nearest_keys():
    rng = np.random.default_rng(0)
    queries, keys = rng.standard_normal((2, 40, 6), np.float32)
    values = rng.standard_normal((40, 3), np.float32)
    nearest = np.argsort(-(queries @ keys.T), axis=1)[:, :4]
    means = neighbor_means(queries, keys, values, 4)
    np.testing.assert_allclose(means, values[nearest].mean(axis=1), rtol=1e-5, atol=1e-6)


def test_matched_cosine_is_one_for_the_same_items_in_any_order():
    rng = np.random.default_rng(1)
    rows = unit(rng.standard_normal((50, 6), np.float32))
    assert matched_cosine(rows, rows[rng.permutation(50)]) == pytest.approx(1, abs=1e-6)
    assert matched_cosine(rows, unit(rng.standard_normal((50, 6), np.float32))) < 0.9


def test_comes_back_from_a_disturbed_rotation():
    rng = np.random.default_rng(2)
    items = clustered(rng, 1200, 12).astype(np.float32)
    units = unit_around("items", items, items.mean(axis=0))
    q = semi_orthogonal(rng, 12, 12).astype(np.float32)
    start = semi_orthogonal(rng, 12, 12) * 0.4 + q
    u, _, vt = np.linalg.svd(start)
    settings = {"num_rounds": 15, "num_neighbors": 10, "batch_size": 400}
    refined = refine(units[:600], units[600:] @ q, u @ vt, rng=rng, **settings)
    before, after = np.linalg.norm(u @ vt - q), np.linalg.norm(refined - q)
    assert after < before / 2


@pytest.mark.slow
def test_eight_devices_equal_one():
    flags = "--xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-m", "tests.evaluation.unpaired.devices"],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        cwd=pathlib.Path(__file__).parents[3],
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "equal on 8 devices"
