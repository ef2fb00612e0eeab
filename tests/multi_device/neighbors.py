"""A neighbour search split over 8 devices equals one device's, ties and similarities included."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from platojax.evaluation import neighbors

N, D, K = 1_003, 24, 10


def main() -> None:
    neighbors._BLOCK_ELEMENTS = N * 60  # 17 blocks: three for each device, some of them repeated
    x = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
    x[500:540] = x[100:140]  # copies, whose order only the tie rule decides
    unit = neighbors.unit_rows(jnp.asarray(x))

    many = neighbors.nearest_neighbors(unit, K)
    one_device = jax.make_mesh((1,), ("queries",), (AxisType.Auto,), devices=jax.devices()[:1])
    one = neighbors._search(jax.device_put(unit, NamedSharding(one_device, P())), K, one_device)
    for got, want in zip(many, one, strict=True):
        assert got.devices() == {jax.devices()[0]}
        np.testing.assert_array_equal(got, want)

    mesh = jax.make_mesh((8,), ("queries",), (AxisType.Auto,))
    spread = neighbors._search(jax.device_put(unit, NamedSharding(mesh, P())), K, mesh)
    assert len(spread[0].devices()) == 8
    print(f"equal on {jax.device_count()} devices")


if __name__ == "__main__":
    main()
