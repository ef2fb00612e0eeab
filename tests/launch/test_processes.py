"""Two processes with two devices each, over gloo, against one process with as many devices."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from platojax.tracking import read_jsonl
from tests.data import recap_files

ROOT = pathlib.Path(__file__).parents[2]

# Softmax does not see the keys' bias, nor the projector's batch norm a shift of all that goes in:
# the gradients of these are rounding, which Adam scales up to whole steps.
ROUNDING = r"\['key'\]\['bias'\]|'transformer'\]\['norm'\]\['bias'\]|'dense_\d'\]\['bias'\]"

pytestmark = pytest.mark.slow


def run(folder, processes, files="", stop_at=0):
    """Runs tests/multi_device/processes.py on four devices."""
    folder.mkdir(exist_ok=True)
    devices = 4 // processes
    program = [sys.executable, "-m", "tests.multi_device.processes", folder, files, str(stop_at)]
    launch = [sys.executable, "launch/local.py", str(processes), "--cpu-devices", str(devices)]
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    if processes == 1:
        environment |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    result = subprocess.run(
        program if processes == 1 else [*launch, "--", *program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count(f"of {processes} ends on 4 devices") == processes
    return result.stdout


def batches(folder):
    """`[steps, V, N, ...]` of all processes together."""
    parts = [np.load(path) for path in sorted(folder.glob("batches_*.npy"))]
    return np.concatenate(parts, axis=2)


def losses(folder):
    return [row["loss"] for row in read_jsonl(folder / "metrics.jsonl")]


def test_two_processes_equal_one(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    run(one, 1)
    run(two, 2)
    np.testing.assert_array_equal(batches(two), batches(one))
    np.testing.assert_allclose(losses(two), losses(one), rtol=1e-5)
    wanted, got = np.load(one / "params.npz"), np.load(two / "params.npz")
    assert wanted.keys() == got.keys()
    for name, value in wanted.items():
        if not re.search(ROUNDING, name):
            np.testing.assert_allclose(got[name], value, atol=1e-5, err_msg=name)


def test_two_processes_go_on_as_one_and_one_as_two(tmp_path):
    whole = tmp_path / "whole"
    run(whole, 1)
    folder = tmp_path / "stopped"
    assert run(folder, 2, stop_at=1).count("is saved at step") == 2
    first = len(losses(folder))
    assert 1 <= first < 4
    # Again, in the first step that it makes: nothing of the first stop may be in the way.
    assert run(folder, 2, stop_at=first + 1).count("is saved at step") == 2
    assert first < len(losses(folder)) <= 6
    run(folder, 1)
    np.testing.assert_allclose(losses(folder), losses(whole), rtol=1e-5)


def test_a_stream_on_two_processes_is_disjoint_and_goes_on_exactly(tmp_path):
    (tmp_path / "files").mkdir()
    files = recap_files.write_files(tmp_path / "files", files=4, rows=6)
    whole, folder = tmp_path / "whole", tmp_path / "stopped"
    run(whole, 2, files)
    # Two epochs of each process: 12 scenes, which have two texts, and none of the other's.
    texts = [
        {row.tobytes() for row in np.load(path).reshape(-1, 12)}
        for path in sorted(whole.glob("batches_*.npy"))
    ]
    assert not texts[0] & texts[1]
    assert len(texts[0] | texts[1]) == 2 * 24
    assert run(folder, 2, files, stop_at=2).count("is saved at step") == 2
    assert len(losses(folder)) < 6
    run(folder, 2, files)
    assert (whole / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()


def test_what_one_process_cannot_read_no_process_goes_on_from(tmp_path):
    (tmp_path / "files").mkdir()
    files = recap_files.write_files(tmp_path / "files", files=4, rows=6)
    whole, folder = tmp_path / "whole", tmp_path / "damaged"
    run(whole, 2, files)
    run(folder, 2, files, stop_at=3)
    latest = max(int(path.name) for path in (folder / "checkpoints").iterdir() if path.is_dir())
    position = folder / "checkpoints" / str(latest) / "data" / "process_1-of-2.json"
    position.write_text(position.read_text()[:10])
    assert f"{latest} cannot be read" in run(folder, 2, files)
    assert (folder / "checkpoints" / f"damaged-{latest}").is_dir()
    assert (whole / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()


def start_main(*options, seed="-1"):
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("JAX_N", "XLA_F"))
    }
    return subprocess.run(
        [
            sys.executable,
            *options,
            "--config",
            "configs/emoji.py:runlocal",
            f"--config.seed={seed}",
        ],
        cwd=ROOT,
        env={**environment, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_distributed_without_others_says_how_to_start_them():
    result = start_main("-m", "platojax.main", "--distributed")
    assert result.returncode == 2
    assert "Error: --distributed found no other processes" in result.stderr
    assert "JAX_COORDINATOR_ADDRESS" in result.stderr


def test_what_goes_wrong_in_one_of_several_processes_ends_all_and_is_shown(tmp_path):
    blocked = tmp_path / "a file"
    blocked.touch()
    program = ["-m", "platojax.main", "--distributed", "--workdir", f"{blocked}/runs"]
    result = start_main(
        *("launch/local.py", "2", "--cpu-devices", "1", "--", sys.executable, *program), seed="0"
    )
    assert result.returncode == 2
    assert re.search(r"^\[[01]\] Error: .*a file", result.stderr, re.MULTILINE)
