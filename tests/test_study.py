"""The recorded study of docs/results/multi30k.md: its runs can be described, its results read."""

import importlib.util
import json
import pathlib
import sys

import pytest
from typer.testing import CliRunner

from platojax.cli import app
from platojax.runs import resolve_runs

REPOSITORY = pathlib.Path(__file__).parent.parent
RESULTS = REPOSITORY / "docs" / "results" / "multi30k"


def load_tool(name):
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def test_each_trial_of_a_stage_is_a_run_with_a_workdir_of_its_own(tmp_path):
    study = load_tool("study_multi30k")
    trials = [trial for make in study.STAGES.values() for trial in make()]
    folders = {f"{trial.stage}/{trial.name}" for trial in trials}
    assert len(folders) == len(trials)
    for trial in trials:
        (run,) = resolve_runs(trial.config(tmp_path))
        assert (run.config.num_samples, run.config.seed) == (trial.samples, trial.seed)
        for path, value in trial.overrides.items():
            part = run.config
            for field in path.split("."):
                part = part[field]
            assert part == value, path


def test_arms_are_tuned_by_as_many_trials():
    study = load_tool("study_multi30k")
    arms = [trial.arm for trial in study.tuning()]
    assert {arms.count(arm) for arm in study.ARMS} == {len(arms) / len(study.ARMS)}


def test_the_figure_and_the_ratio_come_from_the_raw_results(tmp_path):
    arguments = ["scaling", str(RESULTS / "points.json"), "--target", "effnet_lite0"]
    arguments += ["--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out.png").stat().st_size > 10_000
    reading = json.loads((tmp_path / "out.json").read_text())["targets"]["effnet_lite0"]
    assert reading["baseline"] == "next_token"
    assert reading["ratios"]["good"]["samples"]["ratio"] > 5


def test_the_tables_and_figures_come_from_the_raw_results(tmp_path, capsys, monkeypatch):
    for path in RESULTS.glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    monkeypatch.setattr(sys, "argv", ["draw_multi30k.py", str(tmp_path)])
    load_tool("draw_multi30k").main()
    printed = capsys.readouterr().out
    assert "**Tuning**" in printed
    for name in ("layers.png", "ablations.png", "watched.png"):
        assert (tmp_path / name).stat().st_size > 10_000


@pytest.mark.parametrize("stage", ["main", "tuning"])
def test_raw_results_are_whole(stage):
    for run in json.loads((RESULTS / f"{stage}.json").read_text()):
        scores = [value for layers in run["scores"].values() for value in layers.values()]
        assert all(0 <= value <= 1 for value in scores), run["arm"]
        assert scores or run["arm"].startswith("german")
