"""`platojax compile`, as a user meets it."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import jax
import pytest
from typer.testing import CliRunner

from platojax.chips import CHIPS
from platojax.cli import app
from platojax.commands.compile import compile_run
from platojax.pod import memory, target
from tests import tiny

ROOT = pathlib.Path(__file__).parents[2]
HAS_LIBTPU = importlib.util.find_spec("libtpu") is not None
needs_libtpu = pytest.mark.skipif(not HAS_LIBTPU, reason="libtpu is not installed")


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.py"
    path.write_text(
        "from tests import tiny\n\ndef get_config():\n    return tiny.experiment_config()"
    )
    return str(path)


def invoke(*args):
    return CliRunner().invoke(app, ["compile", *args])


def compile_elsewhere(*args, **environment):
    """In a process of its own: the command changes what JAX and XLA do with theirs."""
    return subprocess.run(
        [sys.executable, "-c", "from platojax.cli import app; app()", "compile", *args],
        env={**os.environ, "COLUMNS": "120", **environment},
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=900,
    )


def test_without_libtpu_the_message_says_how_to_get_it(config, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "libtpu" else find_spec(name)
    )
    monkeypatch.setattr(target.sys, "platform", "linux")
    monkeypatch.setattr(target.platform, "machine", lambda: "x86_64")
    result = invoke("--config", config, "--topology", "v5e:2x2")
    assert result.exit_code == 2
    assert "pip install -c constraints.txt -e '.[compile]'" in result.stderr


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "aarch64")])
def test_other_machines_are_told_that_libtpu_does_not_exist_for_them(
    config, monkeypatch, system, machine
):
    monkeypatch.setattr(target.sys, "platform", system)
    monkeypatch.setattr(target.platform, "machine", lambda: machine)
    result = invoke("--config", config, "--topology", "v5e:2x2")
    assert result.exit_code == 2
    assert f"x86 Linux only; this is {machine} {system}" in result.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--set", "text.batch=64"), "text.batch"),
        (("--set", "text.batch_size"), "must be FIELD=VALUE"),
        (("--set", "text.batch_size=many"), "text.batch_size=many"),
        (("--arm", "text_goood"), "there are image_good,"),
        (("--json", "nowhere/out.json"), "nowhere does not exist"),
    ],
)
def test_a_slip_is_named_before_anything_is_compiled(config, args, message):
    result = invoke("--config", config, "--topology", "v5e:2x2", *args)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_config_that_is_not_there_is_named():
    result = invoke("--config", "configs/no.py:runlocal", "--topology", "v5e:2x2")
    assert result.exit_code == 2
    assert "configs/no.py is no Python file" in result.stderr


@pytest.mark.parametrize("topology", ["v5e", "v5e:16", "h100:2x2", "v5e:4x"])
def test_a_topology_of_another_form_is_refused(topology):
    with pytest.raises(ValueError, match="v4, v5e, v5p, v6e, a colon"):
        target.make_target(topology)


def test_a_batch_that_does_not_fill_the_slice_is_refused_as_in_training(tmp_path):
    settings = tiny.arm_config(packing=dict(group_size=16, rows=4, row_length=32))
    slice_ = target.Target("v5e:1x1", CHIPS["v5e"], tuple(jax.devices()[:1]), (1, 1, 1))
    with pytest.raises(ValueError, match=r"batch_size 8 must .* 16: .* x packing.group_size 16"):
        compile_run(settings, tiny.tokenizer(), slice_, tmp_path)


GIB = 2**30


def test_a_program_larger_than_the_memory_is_refused_with_its_largest_buffers():
    buffers = (memory.Buffer(3 * GIB, "2×bf16[2,64,64,3072]"),)
    needed = memory.Memory(GIB, GIB, GIB, 3 * GIB, 0, buffers)
    memory.check_fits(needed, 4 * GIB, "v5e")
    with pytest.raises(
        memory.DoesNotFit, match=r"needs 4.00 GiB, and a v5e has 3.99 GiB"
    ) as refusal:
        memory.check_fits(needed, 4 * GIB - 2**23, "v5e")
    assert refusal.value.largest == buffers


def test_only_a_refusal_for_memory_is_one():
    assert memory.read_refusal(RuntimeError("INTERNAL: a bug"), "v5e", ()) is None
    other = memory.read_refusal(RuntimeError("RESOURCE_EXHAUSTED: vmem\nmore"), "v5e", ())
    assert str(other) == "the step does not fit on a v5e: RESOURCE_EXHAUSTED: vmem"


class Device:
    def __init__(self, *coords):
        self.coords = coords


def slice_of(chip, *torus):
    return target.Target("", CHIPS[chip], (), torus)


def test_devices_use_the_links_of_the_axes_along_which_they_differ():
    row = Device(0, 0, 0), Device(1, 0, 0)
    square = (*row, Device(0, 1, 0))
    pod, part = slice_of("v5e", 16, 16, 1), slice_of("v5e", 4, 4, 1)
    assert pod.bandwidth(row) == 2 * 50e9
    assert pod.bandwidth(square) == 4 * 50e9  # the published 51.2 TB/s of a pod, over 256 chips
    assert part.bandwidth(square) == 2 * 50e9  # no rings: its corners have two neighbours
    cube = (*square, Device(0, 0, 1))
    assert slice_of("v5p", 4, 4, 4).bandwidth(cube) == 6 * 100e9
    assert slice_of("v5p", 2, 4, 4).bandwidth(cube) == 3 * 100e9


@pytest.mark.slow
@needs_libtpu
@pytest.mark.parametrize("steps", [1, 2])
def test_a_small_step_compiles_for_a_small_slice(config, tmp_path, steps):
    out = tmp_path / "out.json"
    args = ("--config", config, "--arm", "text_good", "--topology", "v5e:2x2")
    settings = ("--set", "text.batch_size=64", "--set", f"text.accumulation_steps={steps}")
    result = compile_elsewhere(*args, *settings, "--json", str(out))
    assert result.returncode == 0, result.stderr
    assert "model FLOPs utilisation" in result.stdout
    report = json.loads(out.read_text())
    assert report["fits"]
    assert (report["chips"], report["batch_size"]) == (4, 64)
    again = report["hardware_flops"] / report["model_flops"]
    assert again == 1 if steps == 1 else 1 < again < 4 / 3  # of the encoder, a forward pass
    kept = report["memory"]
    state = kept["arguments"]
    assert (
        kept["total"]
        == state + kept["outputs"] - kept["aliased"] + kept["temporaries"] + (kept["code"])
    )
    assert kept["aliased"] > 0.9 * kept["outputs"]  # the state is donated
    assert kept["largest"]
    settings = tiny.arm_config("text_good")
    assert {row["kind"] for row in report["collectives"]} == {"all-reduce"}
    statistic = f"f32[16,2,{settings.objective.num_slices}]"
    (row,) = (row for row in report["collectives"] if row["array"] == statistic)
    assert row["count"] == 2  # cosines and sines
    times = report["predicted"]
    slowest = max(times[f"{name}_seconds"] for name in ("compute", "memory", "exchange"))
    assert times["step_seconds"] == pytest.approx(slowest + times["exposed_seconds"])
    assert times["samples_per_second"] == pytest.approx(64 / times["step_seconds"])


@pytest.mark.slow
@needs_libtpu
def test_a_step_that_does_not_fit_fails_and_names_the_largest_buffers(config, tmp_path):
    out = tmp_path / "out.json"
    args = ("--config", config, "--arm", "text_good", "--topology", "v5e:2x2", "--json", str(out))
    # A chip of 8 MiB: XLA's own refusal.
    small = {"LIBTPU_INIT_ARGS": "--xla_tpu_max_hbm_size_mib=8"}
    result = compile_elsewhere(*args, "--set", "text.batch_size=8192", **small)
    assert result.returncode == 1
    assert "XLA has 8.00MiB on a v5e" in result.stderr
    assert "accumulation_steps" in result.stderr
    report = json.loads(out.read_text())
    assert not report["fits"]
    largest = report["largest"][0]
    assert largest["nbytes"] > 2**20
    assert "[4096,12" in largest["arrays"]  # activations: scenes of a chip and their views, tokens


@pytest.mark.slow
@needs_libtpu
def test_a_slice_has_the_chips_that_its_name_says(tmp_path):
    program = (
        "import pathlib\n"
        "from platojax.pod.target import make_target, prepare_process\n"
        f"prepare_process(pathlib.Path({str(tmp_path)!r}))\n"
        "for name in ('v4:2x2x4', 'v5e:4x8', 'v5p:2x2x2', 'v6e:16x16'):\n"
        "    slice = make_target(name)\n"
        "    assert slice.devices[0].device_kind in slice.chip.device_kinds, name\n"
        "    print(len(slice.devices))\n"
        "make_target('v5e:3x3')\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert result.stdout.split() == ["16", "32", "8", "256"]
    assert "--topology 'v5e:3x3' cannot be made" in result.stderr
