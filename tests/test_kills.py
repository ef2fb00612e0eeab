"""A run killed twenty times, half of them in the middle of a save, equals one that is not."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from platojax.data.scenes import load_emoji
from platojax.tracking import read_jsonl
from platojax.train import Hooks, train
from tests import tiny

STEPS = 240
KILLS = 20


@pytest.mark.slow
def test_twenty_kills_change_nothing(tmp_path):
    # A process of its own: it forks before jax starts its threads, which saves twenty starts.
    result = subprocess.run(
        [sys.executable, "-m", "tests.test_kills", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=pathlib.Path(__file__).parents[1],
        timeout=500,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    killed_in_a_save = int(result.stdout.split()[-1])
    assert killed_in_a_save >= KILLS // 4
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert (whole / "metrics.jsonl").read_bytes() == (killed / "metrics.jsonl").read_bytes()
    assert [row["step"] for row in read_jsonl(killed / "metrics.jsonl")] == [*range(1, STEPS + 1)]
    one, two = (_state(folder / "checkpoints" / str(STEPS) / "state") for folder in (whole, killed))
    jax.tree.map(np.testing.assert_array_equal, one, two)


def _state(path):
    state = ocp.StandardCheckpointer().restore(path)
    state["key"] = jax.random.key_data(state["key"])
    return jax.device_get(state)


def _train(folder):
    config = tiny.arm_config(num_samples=8 * STEPS)
    config.encoder.update(width=64, mlp_dim=256)  # a save should take a while
    train(
        config,
        load_emoji("train")[:40],
        tiny.tokenizer(),
        folder,
        Hooks(on_progress=lambda report: None, on_message=print),
    )


def _start(folder):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            _train(folder)
            status = 0
        finally:
            os._exit(status)
    return pid


def main(root: pathlib.Path) -> None:
    rng = random.Random(0)
    _, status = os.waitpid(_start(root / "whole"), 0)
    assert status == 0
    folder = root / "killed"
    in_a_save = 0
    for number in range(KILLS):
        lines = _count(folder)
        pid = _start(folder)
        while _count(folder) <= lines or (number % 2 and not _saving(folder)):
            ended, status = os.waitpid(pid, os.WNOHANG)
            assert not ended, f"ended before kill {number + 1}, with {status}"
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.005 if number % 2 else 0.1))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        in_a_save += bool(_saving(folder))
    _, status = os.waitpid(_start(folder), 0)
    assert status == 0
    print(in_a_save)


def _count(folder):
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _saving(folder):
    return list((folder / "checkpoints").glob("*tmp*"))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
