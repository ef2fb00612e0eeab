import jax.numpy as jnp
import numpy as np
import pytest

from platojax.encoders.pretrained.positions import interpolate, rotary_positions

TABLE = np.sin(np.arange(32).reshape(16, 2) * 1.7).astype(np.float32) + np.float32(0.3)
# The first component of the table, 4 x 4, as torch 2.13 brings it to 3 x 5.
RECORDED = {
    "resize": [
        [0.45235, -0.02906, 0.48589, 0.60821, -0.53118],
        [1.45158, -0.34370, 0.21732, 0.95298, -0.54964],
        [0.46607, 0.45108, 0.09125, 0.17234, 0.89625],
    ],
    "offset": [
        [0.43457, -0.00923, 0.43526, 0.66877, -0.46963],
        [1.45556, -0.30738, 0.11713, 1.05316, -0.52378],
        [0.56965, 0.39244, 0.10360, 0.19979, 0.76927],
    ],
    "antialias": [
        [0.53950, -0.03725, 0.45118, 0.61617, -0.56863],
        [1.30825, -0.21137, 0.23588, 0.82031, -0.44141],
        [0.56004, 0.38388, 0.11705, 0.24163, 0.80130],
    ],
}


@pytest.mark.parametrize("rule", RECORDED)
def test_interpolation_gives_the_numbers_recorded_from_torch(rule):
    got = interpolate(jnp.asarray(TABLE), 3, 5, rule)
    np.testing.assert_allclose(got[:, 0].reshape(3, 5), RECORDED[rule], atol=1e-5)
    np.testing.assert_array_equal(interpolate(jnp.asarray(TABLE), 4, 4, rule), TABLE)


@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (12, 50), (37, 20)])
@pytest.mark.parametrize("rule", RECORDED)
def test_interpolation_of_dinov2s_own_grid_equals_torch(rule, rows, columns):
    torch = pytest.importorskip("torch")
    table = np.random.default_rng(0).standard_normal((37 * 37, 4)).astype(np.float32)
    grid = torch.from_numpy(table).reshape(1, 37, 37, 4).permute(0, 3, 1, 2)
    how = dict(mode="bicubic", antialias=rule == "antialias")
    if rule == "offset":
        how["scale_factor"] = ((rows + 0.1) / 37, (columns + 0.1) / 37)
    else:
        how["size"] = (rows, columns)
    want = torch.nn.functional.interpolate(grid, **how).permute(0, 2, 3, 1).reshape(-1, 4)
    got = interpolate(jnp.asarray(table), rows, columns, rule)
    np.testing.assert_allclose(got, want.numpy(), atol=5e-5)


def test_rotary_positions_depend_on_row_and_column_and_leave_the_prefix():
    cos, sin = rotary_positions(2, 3, head_dim=8, theta=100.0, num_prefix=2)
    assert cos.shape == sin.shape == (2 + 6, 8)
    np.testing.assert_array_equal(cos[:2], 1)
    np.testing.assert_array_equal(sin[:2], 0)
    # Centres of two rows are at -1/2 and 1/2; frequencies are 2 pi and 2 pi / 10.
    np.testing.assert_allclose(sin[2, :2], np.sin([-np.pi, -np.pi / 10]), atol=1e-6)
    np.testing.assert_allclose(sin[7, 2:4], np.sin([4 * np.pi / 3, 4 * np.pi / 30]), atol=1e-6)
    np.testing.assert_array_equal(sin[:, :4], sin[:, 4:])
