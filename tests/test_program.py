import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from platojax import sharding
from platojax.optimizer import learning_rate_schedule, make_optimizer
from platojax.program import check_batch, make_program, make_train_step, total_steps
from tests import tiny


def small_step(config):
    """The step as a pure function, a state, and views."""
    views = jax.random.randint(jax.random.key(0), (2, 8, 12), 4, 50)
    program = make_program(config, tiny.tokenizer(), views[:, :1], sharding.make_mesh())
    schedule = learning_rate_schedule(config.optimizer, 10)
    optimizer = make_optimizer(config.optimizer, schedule)
    clip_norm = config.optimizer.clip_norm
    step = make_train_step(program.arm, optimizer, schedule, clip_norm=clip_norm)
    return step, program.init(np.uint32(1)), views


def test_an_update_that_is_not_finite_is_skipped_whole():
    step, state, views = small_step(tiny.arm_config())
    state, _ = jax.jit(step)(state, views)
    broken = jax.tree.map(lambda x: x, state.params)
    broken["projector"]["out"]["bias"] = broken["projector"]["out"]["bias"].at[0].set(jnp.nan)
    bad = state.replace(params=broken)
    after, metrics = jax.jit(step)(bad, views)
    assert not np.isfinite(metrics["loss"])
    assert (int(after.step), int(after.skipped), int(after.skipped_in_a_row)) == (2, 1, 1)
    jax.tree.map(np.testing.assert_array_equal, after.params, bad.params)
    jax.tree.map(np.testing.assert_array_equal, after.opt_state, bad.opt_state)
    healed, _ = jax.jit(step)(after.replace(params=state.params), views)
    assert (int(healed.skipped), int(healed.skipped_in_a_row)) == (1, 0)


def test_an_infinite_learning_rate_changes_no_parameter():
    config = tiny.arm_config()
    config.optimizer.learning_rate = float("inf")
    config.optimizer.warmup_fraction = 0.0
    step, state, views = small_step(config)
    run_step = jax.jit(step)
    after, metrics = run_step(*run_step(state, views)[:1], views)
    assert np.isfinite(metrics["loss"])
    assert not np.isfinite(metrics["update_norm"])
    jax.tree.map(np.testing.assert_array_equal, after.params, state.params)


def test_one_trace_serves_all_steps_and_seeds_and_moves_nothing_between_host_and_device():
    config = tiny.arm_config()
    mesh = sharding.make_mesh()
    example = jax.ShapeDtypeStruct((2, 1, 12), "int32")
    program = make_program(config, tiny.tokenizer(), example, mesh)
    batch = np.random.default_rng(0).integers(4, 50, (2, 8, 12), dtype=np.int32)
    views = jax.device_put(batch, sharding.batch_sharding(mesh))
    for seed in (0, 1):
        state = program.init(np.uint32(seed))
        with jax.transfer_guard("disallow"):
            for _ in range(3):
                state, _ = program.step(state, views)
        assert program.step._cache_size() == 1
    with (
        jax.transfer_guard("disallow"),
        pytest.raises(RuntimeError, match="Disallowed host-to-device transfer"),
    ):
        program.step(state, batch)


def test_the_state_given_is_donated():
    config = tiny.arm_config()
    views = jnp.zeros((2, 8, 12), jnp.int32)
    program = make_program(config, tiny.tokenizer(), views[:, :1], sharding.make_mesh())
    state = program.init(np.uint32(0))
    program.step(state, views)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))


def test_a_program_needs_no_data_and_says_where_its_state_will_be():
    example = jax.ShapeDtypeStruct((2, 1, 12), "int32")
    program = make_program(tiny.arm_config(), tiny.tokenizer(), example, sharding.make_mesh())
    state, metrics = jax.eval_shape(program.step, program.state, program.batch(8))
    jax.tree.map(lambda a, b: chex.assert_equal(a.shape, b.shape), state, program.state)
    assert program.batch(8).shape == (2, 8, 12)
    assert {"loss", "clipping_rate", "tokens"} <= metrics.keys()
    born = program.init(np.uint32(0))
    chex.assert_trees_all_equal_shapes_and_dtypes(born.params, program.state.params)
    assert all(
        a.sharding == b.sharding
        for a, b in zip(jax.tree.leaves(born), jax.tree.leaves(program.state), strict=True)
    )


def test_clipped_gradients_are_counted():
    config = tiny.arm_config()
    config.optimizer.clip_norm = 1e-9
    step, state, views = small_step(config)
    state, metrics = step(state, views)
    assert metrics["clipping_rate"] == 1
    config.optimizer.clip_norm = 1e9
    step, _, _ = small_step(config)
    state, metrics = step(state, views)
    assert metrics["clipping_rate"] == 0.5


def test_directions_change_with_the_step():
    step, state, views = small_step(tiny.arm_config())
    one = step(state, views)[1]["sigreg"]
    two = step(state.replace(step=state.step + 1), views)[1]["sigreg"]
    assert one != two


def test_a_batch_must_fill_the_mesh_the_micro_batches_and_the_groups():
    # Only the sizes count: a pod is not here.
    mesh = jax.sharding.AbstractMesh((64, 4, 1), ("data", "fsdp", "model"))
    packing = dict(group_size=64, rows=12, row_length=64)
    check_batch(tiny.arm_config(batch_size=2 * 256 * 64, packing=packing), mesh)
    check_batch(tiny.arm_config(batch_size=4_096), mesh)
    message = (
        "batch_size 4096 must be a multiple of 32768: mesh.data 64 x mesh.fsdp 4 x "
        "accumulation_steps 2 x packing.group_size 64. Set it to 32768, or lower one of these."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_batch(tiny.arm_config(batch_size=4_096, accumulation_steps=2, packing=packing), mesh)


@pytest.mark.parametrize(("samples", "steps"), [(80, 10), (87, 10), (3, 1)])
def test_total_steps_are_whole_batches_and_at_least_one(samples, steps):
    assert total_steps(tiny.arm_config(num_samples=samples)) == steps
