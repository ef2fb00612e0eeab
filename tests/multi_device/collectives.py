"""What devices exchange, read from programs compiled for 8 of them."""

import math
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from platojax import sharding
from platojax.data.views import example_views
from platojax.pod.hlo import Module, mesh_axes
from platojax.program import make_program
from tests import tiny


def loops() -> None:
    """A scanned pair of layers, whose parameters are spread over fsdp and model."""
    mesh = sharding.make_mesh(data=2, fsdp=2, model=2)

    def place(*axes):
        return NamedSharding(mesh, P(*axes))

    def loss(ws, x):
        def layer(x, w):
            hidden = jax.lax.with_sharding_constraint(x @ w, place(("data", "fsdp"), "model"))
            return jax.lax.with_sharding_constraint(
                hidden @ w.T, place(("data", "fsdp"), None)
            ), None

        return jnp.mean(jax.lax.scan(layer, x, ws)[0] ** 2)

    step = jax.jit(
        jax.grad(loss), in_shardings=(place(None, "fsdp", "model"), place(("data", "fsdp")))
    )
    shapes = (5, 16, 32), (64, 16)
    lowered = step.lower(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))
    found = Module(lowered.compile().as_text(), 8).collectives()
    gathers = [one for one in found if one.kind == "all-gather"]
    sums = [one for one in found if one.kind == "all-reduce" and one.arrays[0].shape]
    assert gathers, "fsdp gathers parameters"
    assert sums, "model sums partial products"
    for one in (*gathers, *sums):
        assert one.times == 5, one
        assert len({len(group) for group in one.groups}) == 1
        assert sorted(i for group in one.groups for i in group) == list(range(8))
    axes = {(one.kind, mesh_axes(one.groups, mesh.devices.shape, mesh.axis_names)) for one in found}
    assert ("all-gather", ("fsdp",)) in axes
    assert ("all-reduce", ("model",)) in axes
    assert ("all-reduce", ("data", "fsdp")) in axes
    assert gathers[0].sent_bytes == 5 * gathers[0].nbytes / 2
    assert sums[0].sent_bytes == 5 * sums[0].nbytes * 2 * (1 - 1 / len(sums[0].groups[0]))


def step(accumulation_steps: int) -> None:
    """A LeJEPA step with the batch spread over 8 devices exchanges nothing that grows with it."""
    config = tiny.arm_config("text_good", accumulation_steps=accumulation_steps)
    mesh = sharding.make_mesh(data=8)
    sent = []
    for scenes in (8 * 14, 8 * 28):  # 14 and 28 are the size of nothing else
        with jax.set_mesh(mesh):
            example = example_views(config.views, config.encoder)
            program = make_program(config, tiny.tokenizer(), example, mesh)
            lowered = program.step.lower(program.state, program.batch(scenes))
        collectives = Module(lowered.compile().as_text(), 8).collectives()
        assert collectives
        parameters = {math.prod(x.shape) for x in jax.tree.leaves(program.state.params)}
        covariance = config.encoder.width**2
        characteristic_functions = 2 * 17 * config.objective.num_slices
        batch = {scenes, scenes // 8, scenes // accumulation_steps}
        for one in collectives:
            assert one.kind == "all-reduce", one
            assert one.times == 1, f"once a step, not in each micro-batch: {one}"
            for array in one.arrays:
                size = math.prod(array.shape)
                assert not batch & set(array.shape), f"{array} is shaped as the batch: {one}"
                assert (
                    size in parameters or size == covariance or size <= 2 * characteristic_functions
                ), f"{array} is no gradient, and more than slices x knots: {one}"
        sent.append(sum(one.sent_bytes for one in collectives))
    np.testing.assert_equal(sent[0], sent[1])
    print(f"{sent[0]:.0f} bytes, whatever the batch")


if __name__ == "__main__":
    case, *args = sys.argv[1:]
    {"loops": loops, "step": step}[case](*map(int, args))
