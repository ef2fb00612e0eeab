"""Several devices. Each case runs in a process of its own, where XLA makes 8 CPUs of one."""

import os
import pathlib
import subprocess
import sys
import types

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from platojax import sharding
from platojax.tracking import read_jsonl

CASES = pathlib.Path(__file__).parent / "multi_device"


def run_case(name: str, *args: str, devices: int = 8) -> str:
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(
        [sys.executable, "-m", f"tests.multi_device.{name}", *args],
        env=environment,
        capture_output=True,
        text=True,
        cwd=CASES.parents[1],
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow
def test_loss_and_gradient_on_8_devices_equal_one_devices():
    assert "largest collective" in run_case("objective")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arm",
    [
        ("text_good",),
        ("text_good", "packed"),
        ("image_multi_crop",),
        ("text_next_token",),
        ("text_next_token", "packed"),
    ],
    ids="-".join,
)
def test_training_steps_on_8_devices_equal_one_devices(arm):
    assert "equal" in run_case("steps", *arm)


@pytest.mark.slow
def test_a_run_on_8_devices_goes_on_on_one(tmp_path):
    run_case("resume", str(tmp_path), "2")
    assert "went on at step 2" in run_case("resume", str(tmp_path), "6", devices=1)
    whole = run_case("resume", str(tmp_path / "whole"), "6", devices=1)
    assert "went on at step 0" in whole
    one, two = (read_jsonl(f / "metrics.jsonl") for f in (tmp_path, tmp_path / "whole"))
    assert len(one) == len(two) == 6
    for a, b in zip(one, two, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)


def test_a_mesh_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"mesh.data 3 x .* does not equal the \d"):
        sharding.make_mesh(data=3)
    with pytest.raises(ValueError, match=r"mesh.fsdp 0 x .* divide the \d"):
        sharding.make_mesh(fsdp=0)


def test_a_model_axis_over_several_processes_is_refused():
    def device(index):
        return types.SimpleNamespace(id=index, process_index=index, platform="cpu", device_kind="")

    with pytest.raises(ValueError, match=r"mesh.model 2 spans several processes"):
        sharding.check_model_axis(np.array([[device(0), device(1)]]))


def test_rules_place_parameters_and_their_moments_and_leave_what_does_not_divide():
    mesh = jax.sharding.AbstractMesh((2, 4, 2), ("data", "fsdp", "model"))
    shape = jax.ShapeDtypeStruct
    tree = {
        "params": {
            "mlp_in": {"kernel": shape((8, 32), "float32"), "bias": shape((32,), "float32")},
            "mlp_out": {"kernel": shape((32, 6), "float32")},
        },
        "mu": {"mlp_in": {"kernel": shape((8, 32), "float32")}},
        "count": shape((), "int32"),
    }
    placed = jax.tree.map(lambda s: s.spec, sharding.tree_shardings(tree, mesh))
    assert placed["params"]["mlp_in"]["kernel"] == P("fsdp", "model")
    assert placed["mu"]["mlp_in"]["kernel"] == P("fsdp", "model")
    assert placed["params"]["mlp_out"]["kernel"] == P("model", None)  # 6 is not a multiple of 4
    assert placed["params"]["mlp_in"]["bias"] == P("model")
    assert placed["count"] == P()


def test_every_large_parameter_of_our_encoders_has_a_rule():
    from platojax.arm import make_arm
    from tests import tiny

    mesh = jax.sharding.AbstractMesh((1, 4, 1), ("data", "fsdp", "model"))
    for arm, shape in (("text_good", (2, 1, 12)), ("image_good", (2, 1, 16, 16, 3))):
        made = make_arm(tiny.arm_config(arm), tiny.tokenizer())
        views = jax.ShapeDtypeStruct(shape, "int32" if arm == "text_good" else "uint8")
        params = jax.eval_shape(made.init, jax.random.key(0), views)
        placed = sharding.tree_shardings(params, mesh)
        for (path, _), place in zip(
            jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(placed), strict=True
        ):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            if path[-1].key in ("kernel", "embedding") and name != "projector/out/kernel":
                assert "fsdp" in place.spec, name
