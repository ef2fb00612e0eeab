"""Three optimiser steps on 8 devices, over several meshes, equal those on one device."""

import functools
import sys

import jax
import numpy as np
import optax

from platojax import sharding
from platojax.arm import make_arm
from platojax.data.packing import Packing
from platojax.data.pipeline import stack_views
from platojax.data.scenes import load_emoji
from platojax.data.views import make_views
from platojax.optimizer import make_optimizer
from platojax.program import init_state, make_train_step
from tests import tiny


def main(name: str, packed: bool = False) -> None:
    config = tiny.arm_config(name)
    tokenizer = tiny.tokenizer()
    arm = make_arm(config, tokenizer)
    sgd = optax.sgd(0.1, momentum=0.9)
    policy = make_views(config.views, config.encoder, tokenizer)
    rng = np.random.default_rng(0)
    views = stack_views(
        [policy(scene, rng) for scene in load_emoji("train")[: 32 if packed else 16]]
    )
    example = jax.tree.map(lambda x: x[:, :1], views)
    if packed:
        views = Packing(group_size=2, rows=1, row_length=20).pack(views, tokenizer.pad_id)
        assert not views["cut"].all()

    def three_steps(mesh, optimizer, accumulation_steps=1):
        init = functools.partial(init_state, arm, optimizer, example)
        step = make_train_step(
            arm,
            optimizer,
            optax.constant_schedule(0.1),
            clip_norm=1.0,
            accumulation_steps=accumulation_steps,
        )
        placement = sharding.tree_shardings(jax.eval_shape(init, 0), mesh)
        state = jax.jit(init, out_shardings=placement)(0)
        spread = sharding.batch_sharding(mesh)
        run = jax.jit(
            step,
            in_shardings=(placement, spread),
            out_shardings=(placement, sharding.replicated(mesh)),
        )
        losses = []
        for _ in range(3):
            state, metrics = run(state, jax.device_put(views, spread))
            losses.append(float(metrics["loss"]))
        return state, losses

    # Parameters are compared after SGD: some gradients are zero but for rounding (softmax does not
    # see the keys' bias, nor batch norm the bias before it), which Adam scales up to whole steps.
    # The losses see none of that.
    one = sharding.make_mesh(devices=jax.devices()[:1])
    adam = make_optimizer(config.optimizer, optax.constant_schedule(3e-3))
    mesh = sharding.make_mesh(2, 2, 2)
    with jax.set_mesh(mesh):
        _, many = three_steps(mesh, adam, 2)
    np.testing.assert_allclose(many, three_steps(one, adam)[1], rtol=1e-5)
    want, losses = three_steps(one, sgd)
    meshes = ((8, 1, 1, 1), (8, 1, 1, 2), (2, 4, 1, 1), (2, 2, 2, 2))
    for data, fsdp, model, accumulation in meshes:
        mesh = sharding.make_mesh(data, fsdp, model)
        with jax.set_mesh(mesh):  # as training does
            got, many = three_steps(mesh, sgd, accumulation)
        np.testing.assert_allclose(many, losses, rtol=1e-5)
        kernel = got.params["encoder"]["transformer"]["block_0"]["mlp_in"]["kernel"]
        assert kernel.addressable_shards[0].data.size == kernel.size // (fsdp * model)
        for a, b in zip(jax.tree.leaves(got.params), jax.tree.leaves(want.params), strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=2e-6)
    print(f"three steps of {name} equal")


if __name__ == "__main__":
    main(sys.argv[1], packed="packed" in sys.argv)
