import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from platojax.pod.hlo import Array, Module, mesh_axes
from tests.test_sharding import run_case

# jit(grad(f)) of five scanned layers `tanh(x @ w)`, bfloat16, x [512, 1024], weights spread over
# fsdp, compiled by libtpu 0.0.52 for v5e:2x2 as data 2 x fsdp 2; without its backend_configs and
# metadata.
FSDP = pathlib.Path(__file__).parents[1] / "golden" / "hlo" / "fsdp_v5e.txt"
MESH = (2, 2), ("data", "fsdp")


@pytest.fixture(scope="module")
def fsdp():
    return Module(FSDP.read_text(), 4)


def test_a_tpu_programs_exchanges_are_found_in_loops_and_in_fusions(fsdp):
    found = {
        (one.kind, mesh_axes(one.groups, *MESH), str(one.arrays[0]), one.times, one.overlaps)
        for one in fsdp.collectives()
    }
    weights = "bf16[1,1024,1024]"
    assert found == {
        ("all-gather", ("fsdp",), weights, 5, False),  # forward
        ("all-gather", ("fsdp",), weights, 5, True),  # backward, fused into the step before
        ("reduce-scatter", ("fsdp",), "bf16[512,1024]", 5, False),
        ("all-reduce", ("data",), "bf16[1,512,1024]", 5, False),
    }


def test_each_kind_sends_what_its_best_algorithm_must(fsdp):
    whole = 1024 * 1024 * 2
    for one in fsdp.collectives():
        half = 5 * whole / 2
        expected = {"all-gather": half, "reduce-scatter": half, "all-reduce": half}
        assert one.sent_bytes == expected[one.kind], one


@pytest.mark.slow
def test_loops_groups_and_axes_of_a_cpu_program():
    run_case("collectives", "loops")


@pytest.mark.slow
@pytest.mark.parametrize("accumulation_steps", ["1", "2"])
def test_a_data_parallel_step_exchanges_nothing_that_grows_with_the_batch(accumulation_steps):
    assert "whatever the batch" in run_case("collectives", "step", accumulation_steps)


@pytest.mark.parametrize(
    ("spelling", "groups"),
    [  # as compiled programs have them, for 8 devices
        ("replica_groups={{0,2},{4,6},{1,3},{5,7}}", [[0, 2], [4, 6], [1, 3], [5, 7]]),
        ("replica_groups=[4,2]<=[4,2]T(1,0)", [[0, 2], [4, 6], [1, 3], [5, 7]]),
        ("replica_groups=[2,4]<=[8]", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (
            "replica_groups=mesh['axis_0'=4,'axis_1'=1,'axis_2'=2] {'axis_0'}",
            [[0, 2, 4, 6], [1, 3, 5, 7]],
        ),
        ("replica_groups=mesh['axis_0'=8] {'axis_0'}", [list(range(8))]),
        (
            "replica_groups=mesh['axis_0'=4,'axis_1'=2], device_ids=([2,4]T(1,0)) {'axis_0'}",
            [[0, 1, 2, 3], [4, 5, 6, 7]],
        ),
        ("replica_groups=mesh['axis_0'=8] {'axis_0':(2)2}", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("source_target_pairs={{0,1},{1,0},{2,2}}", [[0, 1], [1, 0]]),
        ("replica_groups={}", [list(range(8))]),
    ],
)
def test_groups_in_every_spelling(spelling, groups):
    module = Module(
        "ENTRY %main (p: f32[3]) -> f32[3] {\n"
        "  %p = f32[3]{0} parameter(0)\n"
        f"  ROOT %sum = f32[3]{{0}} all-reduce(%p), {spelling}, to_apply=%add\n"
        "}\n",
        8,
    )
    assert [list(group) for group in module.collectives()[0].groups] == groups


def test_a_start_and_its_done_are_one_exchange_and_its_operand_no_result():
    module = Module(
        "ENTRY %main (p: f32[2,4]) -> f32[8,4] {\n"
        "  %p = f32[2,4]{1,0} parameter(0)\n"
        "  %start = (f32[2,4]{1,0}, f32[8,4]{1,0}) all-gather-start(%p), "
        "replica_groups=[1,4]<=[4], dimensions={0}\n"
        "  ROOT %done = f32[8,4]{1,0} all-gather-done(%start)\n"
        "}\n",
        4,
    )
    (one,) = module.collectives()
    assert one.overlaps
    assert one.arrays == (Array("f32", (8, 4)),)


def test_memory_traffic_of_a_loop_counts_each_turn_and_only_the_slices_taken():
    def function(ws, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0]

    def traffic(layers):
        ws = jax.ShapeDtypeStruct((layers, 256, 256), jnp.float32)
        x = jax.ShapeDtypeStruct((256, 256), jnp.float32)
        text = jax.jit(function).lower(ws, x).compile().as_text()
        return Module(text, 1).memory_traffic() / (256 * 256 * 4)

    # A layer reads x and w, writes the product, and the copies that a loop makes.
    per_layer = (traffic(40) - traffic(20)) / 20
    assert 3 <= per_layer <= 12
    np.testing.assert_allclose(traffic(40) - traffic(20), traffic(20) - traffic(0), rtol=0.2)


def test_text_without_an_entry_is_refused():
    with pytest.raises(ValueError, match="ENTRY"):
        Module("HloModule nothing", 1)
