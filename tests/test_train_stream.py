"""Training goes on over what has random access, with other workers, and over streams, as it was."""

import os
import signal

import pytest

from platojax.data.recap import SOURCES, RecapScenes
from platojax.data.scenes import load_emoji
from platojax.train import Hooks, Preempted, train
from tests import tiny
from tests.data import recap_files


def run(config, scenes, folder, stop_at=None):
    def on_progress(report):
        if report.step == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    hooks = Hooks(on_progress=on_progress, on_message=print)
    train(config, scenes, tiny.tokenizer(), folder, hooks)


def metrics(folder):
    return (folder / "metrics.jsonl").read_bytes()


def test_a_run_goes_on_with_another_number_of_workers(tmp_path):
    config, scenes = tiny.arm_config(), load_emoji("train")[:40]
    run(config, scenes, tmp_path / "whole")
    with pytest.raises(Preempted):
        run(config, scenes, tmp_path / "stopped", stop_at=2)
    config.num_workers = 2
    run(config, scenes, tmp_path / "stopped")
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "stopped")


def test_a_stream_goes_on_exactly_and_refuses_another_number_of_workers(tmp_path):
    stream = RecapScenes.find(
        recap_files.write_files(tmp_path, files=3, rows=20), open_files=2, window=16
    )
    config = tiny.arm_config()
    config.views.sources = SOURCES
    run(config, stream, tmp_path / "whole")
    with pytest.raises(Preempted):
        run(config, stream, tmp_path / "stopped", stop_at=2)
    config.num_workers = 1
    with pytest.raises(ValueError, match=r"num_workers 0, this run has 1.*config.num_workers back"):
        run(config, stream, tmp_path / "stopped")
    config.num_workers = 0
    run(config, stream, tmp_path / "stopped")
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "stopped")
