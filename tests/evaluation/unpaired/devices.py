"""The assignments and the means of neighbours on 8 devices equal those on one."""

from unittest import mock

import jax
import numpy as np

from platojax.evaluation.unpaired import quadratic_assignment, refinement
from platojax.evaluation.unpaired.refinement import neighbor_means


def on_one_device(call, *args, **kwargs):
    first = jax.local_devices()[:1]
    with mock.patch.object(jax, "local_devices", return_value=first):
        return call(*args, **kwargs)


def main() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 11, 12, 12))  # 11 problems: five shares are filled up
    a, b = a + a.swapaxes(1, 2), b + b.swapaxes(1, 2)
    settings = {"num_starts": 2, "num_steps": 20}
    many = quadratic_assignment(a, b, **settings)
    one = on_one_device(quadratic_assignment, a, b, **settings)
    np.testing.assert_array_equal(many.permutation, one.permutation)

    refinement._BLOCK_ELEMENTS = 300 * 20  # 11 blocks of 20 rows, the last of them not full
    queries, keys, values = (rng.standard_normal((n, 8), np.float32) for n in (213, 300, 300))
    many = neighbor_means(queries, keys, values, 5)
    one = on_one_device(neighbor_means, queries, keys, values, 5)
    np.testing.assert_array_equal(many, one)
    nearest = np.argsort(-(queries @ keys.T), axis=1)[:, :5]
    np.testing.assert_allclose(many, values[nearest].mean(axis=1), rtol=1e-5, atol=1e-6)
    print(f"equal on {jax.device_count()} devices")


if __name__ == "__main__":
    main()
