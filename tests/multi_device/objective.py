"""LeJEPA on 8 devices equals one device; no collective carries the embeddings."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from platojax import sharding
from platojax.objectives.lejepa import lejepa_loss
from platojax.objectives.sigreg import random_directions
from platojax.pod.hlo import Module

V, N, D, S = 3, 512, 48, 64


def main() -> None:
    z = jax.random.normal(jax.random.key(0), (V, N, D)) * 1.3 + 0.2
    directions = random_directions(jax.random.key(1), D, S)

    def loss(z):
        return lejepa_loss(z, directions, lam=0.05, num_global=2)[0]

    one = jax.jit(jax.value_and_grad(loss))(z)
    mesh = sharding.make_mesh(data=8)
    spread = sharding.batch_sharding(mesh)
    place = (NamedSharding(mesh, P()), spread)
    many = jax.jit(jax.value_and_grad(loss), in_shardings=spread, out_shardings=place)
    with jax.set_mesh(mesh):  # as training does
        compiled = many.lower(z).compile()
    for got, want in zip(compiled(jax.device_put(z, spread)), one, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * float(jnp.abs(want).max()))

    # The mean of the devices' own statistics is another number: the test could see it.
    parts = jnp.stack([loss(part) for part in jnp.split(z, 8, axis=1)])
    assert abs(float(parts.mean() - one[0])) > 1e-3

    collectives = Module(compiled.as_text(), 8).collectives()
    largest = max(int(np.prod(array.shape)) for one in collectives for array in one.arrays)
    knots = 17 - 1  # but the one at 0
    assert largest == V * knots * S, largest
    print(f"largest collective: {largest} numbers, embeddings: {V * N * D}")


if __name__ == "__main__":
    main()
