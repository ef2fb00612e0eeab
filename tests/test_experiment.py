"""Whole experiments through `python -m platojax.main`, killed and resumed."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from platojax import experiment
from platojax.checkpoint import Checkpoints
from platojax.data.items import load_items
from platojax.evaluation.extraction import extract
from platojax.evaluation.features import read_features
from platojax.run_encoder import load_run_encoder
from platojax.runs import resolve_runs
from platojax.tracking import read_jsonl
from tests import tiny

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[1]
CONFIG = "from tests.tiny import experiment_config as get_config\n"


@pytest.fixture(scope="module")
def config_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "tiny_emoji.py"
    path.write_text(CONFIG)
    return path


def start(config_file, workdir, *overrides):
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "platojax.main"),
            *("--config", str(config_file), "--workdir", str(workdir), *overrides),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def finish(process, expected=0):
    output, _ = process.communicate(timeout=300)
    assert process.returncode == expected, output
    return output


def stop_early(config_file, workdir):
    """Sends SIGTERM once the first run has logged a step; what was printed."""
    process = start(config_file, workdir)
    while process.poll() is None and not _lines(workdir / RUNS[0] / "metrics.jsonl"):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    return finish(process, expected=143)


@pytest.fixture(scope="module")
def whole(config_file, tmp_path_factory):
    """An experiment that nothing interrupted, and what it printed."""
    workdir = tmp_path_factory.mktemp("whole")
    return workdir, finish(start(config_file, workdir))


RUNS = ["image_good-seed0", "text_good-seed0", "text_good-seed1", "text_next_token-seed0"]


def test_leaves_what_it_should(whole):
    workdir, output = whole
    for run in RUNS:
        assert run in output
        assert read_features(workdir / run / "features" / "step_6").features.shape[0] == 1384
    assert "two languages" in output
    assert (workdir / "report.html").stat().st_size > 1000
    scores = json.loads((workdir / "scores.json").read_text())
    assert scores["items"] == {"heldout": 304, "all": 1384}
    pairs = {(entry["text"], entry["image"]) for entry in scores["scores"]}
    texts = {"text_good", "text_next_token", "text_untrained", "text_untrained_causal"}
    assert pairs == {(text, image) for text in texts for image in ("image_good", "image_untrained")}
    for entry in scores["scores"]:
        assert 0 <= entry["score"] <= 1
        assert 0 < entry["p_value"] <= 1
    for curve in scores["curves"]:
        assert curve["samples"] == [0, 24, 48]


def test_untrained_control_is_the_encoder_at_step_0(whole):
    workdir, _ = whole
    start_features = read_features(workdir / RUNS[1] / "features" / "step_0")
    end_features = read_features(workdir / RUNS[1] / "features" / "step_6")
    assert start_features.meta.weights_hash != end_features.meta.weights_hash
    assert start_features.meta.items_hash == end_features.meta.items_hash


def test_kill_9_in_the_middle_and_again_equals_the_whole(config_file, whole, tmp_path):
    workdir = tmp_path / "killed"
    for run, lines in ((RUNS[0], 1), (RUNS[1], 3), (RUNS[3], 4)):
        process = start(config_file, workdir)
        metrics = workdir / run / "metrics.jsonl"
        while process.poll() is None and len(_lines(metrics)) < lines:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not (workdir / run / "finished").exists()
    finish(start(config_file, workdir))
    for run in RUNS:
        one, two = (w / run / "metrics.jsonl" for w in (whole[0], workdir))
        assert one.read_bytes() == two.read_bytes()
        for step in (0, 3, 6):
            one, two = (
                read_features(w / run / "features" / f"step_{step}") for w in (whole[0], workdir)
            )
            np.testing.assert_array_equal(one.features, two.features)
            assert one.meta == two.meta
        one, two = (_checkpoint(w / run / "checkpoints" / "6") for w in (whole[0], workdir))
        assert one.keys() == two.keys()
        for name, value in one.items():
            np.testing.assert_array_equal(value, two[name], err_msg=name)
    assert (whole[0] / "scores.json").read_bytes() == (workdir / "scores.json").read_bytes()


def test_a_finished_experiment_trains_nothing_again(config_file, whole):
    workdir, _ = whole
    before = {run: (workdir / run / "timing.jsonl").stat().st_mtime_ns for run in RUNS}
    output = finish(start(config_file, workdir))
    assert "two languages" in output
    assert before == {run: (workdir / run / "timing.jsonl").stat().st_mtime_ns for run in RUNS}


def test_another_config_is_refused_and_the_fields_named(config_file, whole):
    workdir, _ = whole
    process = start(config_file, workdir, "--config.text.batch_size=4", "--config.evaluation.k=7")
    output = finish(process, expected=2)
    assert "config.text.batch_size: 8 there, 4 here" in output
    assert "config.evaluation.k: 10 there, 7 here" in output
    assert "Traceback" not in output


def test_where_and_how_a_run_computes_may_change(config_file, whole, tmp_path):
    workdir = tmp_path / "moved"
    stop_early(config_file, workdir)
    changes = (
        *("--config.text.num_workers=1", "--config.image.checkpoint.every=3"),
        *("--config.text.accumulation_steps=2", "--config.image.collapse.stop=True"),
    )
    finish(start(config_file, workdir, *changes))
    assert json.loads((workdir / "config.json").read_text())["text"]["num_workers"] == 1
    one, two = (w / RUNS[0] / "metrics.jsonl" for w in (whole[0], workdir))
    assert one.read_bytes() == two.read_bytes()


def test_a_second_process_in_one_workdir_is_refused(config_file, whole):
    workdir, _ = whole
    with experiment._only_run_in(workdir):
        output = finish(start(config_file, workdir), expected=2)
    assert "another process is running in --workdir" in output


def test_sigterm_saves_says_so_and_goes_on(config_file, whole, tmp_path):
    workdir = tmp_path / "stopped"
    output = stop_early(config_file, workdir)
    assert "Stopped: image_good-seed0 is saved at step" in output
    assert "Traceback" not in output
    finish(start(config_file, workdir))
    for run in RUNS:
        one, two = (w / run / "metrics.jsonl" for w in (whole[0], workdir))
        assert one.read_bytes() == two.read_bytes()


def test_alignment_is_watched_while_training_and_the_best_checkpoint_kept(whole, tmp_path):
    drawings = load_run_encoder(whole[0] / "image_good-seed0")
    target = tmp_path / "cache" / "drawings"
    extract(drawings, load_items("emoji:heldout"), target)
    config = tiny.experiment_config()
    config.arms = {"text_good": {**config.arms.text_good, "seeds": 1}}
    config.monitor.update(every=16, targets=(str(target),))
    config.text.checkpoint.update(keep=1, keep_best=1)
    experiment.run(config, tmp_path / "run")
    rows = read_jsonl(tmp_path / "run" / "text_good-seed0" / "validation.jsonl")
    assert [(row["step"], row["samples"]) for row in rows] == [(2, 16), (4, 32), (6, 48)]
    for row in rows:
        assert 0 <= row["drawings/score"] == row["score"] <= 1
        assert row["drawings/chance"] == pytest.approx(10 / 303)
        assert 0 < row["drawings/p_value"] <= 1
    checkpoints = Checkpoints.to_read(tmp_path / "run" / "text_good-seed0" / "checkpoints")
    best = max(rows, key=lambda row: row["score"])["step"]
    assert set(checkpoints.steps()) == {best, 6}


def test_an_evaluation_that_fails_is_told_and_training_goes_on(
    whole, tmp_path, monkeypatch, capsys
):
    target = tmp_path / "cache" / "drawings"
    extract(load_run_encoder(whole[0] / "image_good-seed0"), load_items("emoji:heldout"), target)

    def fail(*_, **__):
        raise MemoryError("no room for neighbours")

    monkeypatch.setattr("platojax.evaluation.monitor.calibrate", fail)
    config = tiny.experiment_config()
    config.arms = {"text_good": {**config.arms.text_good, "seeds": 1}}
    config.monitor.update(every=16, targets=(str(target),))
    experiment.run(config, tmp_path / "run")
    rows = read_jsonl(tmp_path / "run" / "text_good-seed0" / "validation.jsonl")
    assert [(row["step"], row["drawings/failed"]) for row in rows] == [(2, 1), (4, 1), (6, 1)]
    assert "was not scored against drawings: no room for neighbours" in capsys.readouterr().out
    whole_metrics = (whole[0] / "text_good-seed0" / "metrics.jsonl").read_bytes()
    assert (tmp_path / "run" / "text_good-seed0" / "metrics.jsonl").read_bytes() == whole_metrics


def test_what_is_to_be_watched_is_checked_before_training(whole, tmp_path):
    config = tiny.experiment_config()
    target = whole[0] / "image_good-seed0" / "features" / "step_6"
    config.monitor.update(every=16, targets=(str(target),))
    with pytest.raises(ValueError, match=r"not of the 304 items of monitor.data \(emoji:heldout\)"):
        experiment.run(config, tmp_path / "run")
    config.monitor.data = "nowhere"
    with pytest.raises(ValueError, match=r"monitor.data: .*nowhere"):
        experiment.run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_runs_take_from_their_modality_what_the_arm_does_not_say():
    config = tiny.experiment_config()
    config.arms.text_good.batch_size = 4
    runs = {run.name: run.config for run in resolve_runs(config)}
    assert list(runs) == RUNS
    assert runs["text_good-seed1"].batch_size == 4
    assert runs["text_good-seed1"].seed == 1
    assert runs["text_next_token-seed0"].batch_size == 8
    assert runs["text_next_token-seed0"].encoder.max_length == 12


def test_an_unknown_modality_is_refused():
    config = tiny.experiment_config()
    config.arms.text_good.modality = "sound"
    with pytest.raises(ValueError, match=r"config.arms.text_good.modality .* got 'sound'"):
        resolve_runs(config)


def _checkpoint(step):
    """The arrays that a checkpoint holds, by their path."""
    state = ocp.StandardCheckpointer().restore(step / "state")
    state["key"] = jax.random.key_data(state["key"])
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(state))
    return {jax.tree_util.keystr(path): value for path, value in leaves}


def _lines(path):
    return read_jsonl(path) if path.exists() else []
