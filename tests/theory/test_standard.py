"""The standard set: what a row holds, the command, and what the recorded run must show."""

import json
import pathlib

import numpy as np
import pytest
from typer.testing import CliRunner

from platojax.cli import app
from platojax.theory import cases, measures, report, world
from platojax.theory.cases import Case
from platojax.theory.world import World

DOCS = pathlib.Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def recorded():
    return json.loads((DOCS / "results/theory/theory.json").read_text())


def rows_by_name(results):
    return {row["name"]: row for row in results["rows"]}


def test_a_row_is_json_and_has_one_entry_per_modality_and_seed():
    rng = np.random.default_rng(0)
    channels = (world.revealing_channel(rng.dirichlet(np.ones(n), 6)) for n in (2, 3))
    small = World(world.same_scene(np.full(6, 1 / 6)), tuple(channels))
    row = measures.measure(Case("small", small, 5, num_seeds=2), seed=1)
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert row["observations"] == [12, 18]
    assert np.shape(row["trained_loss"]) == (2, 2)
    assert np.max(row["trained_loss"]) < 1e-6
    assert row["predicted_residual"]["observation"] < 1e-12
    assert len(row["trained_residual"]) == len(row["trained_bound"]) == 2
    assert row["trained_residual"][0]["observation"] < 1e-6


def test_the_standard_worlds_follow_the_seed():
    first, again, other = (cases.standard_cases(seed) for seed in (5, 5, 6))
    assert [case.name for case in first] == [case.name for case in again]
    np.testing.assert_array_equal(first[0].world.scene_law, again[0].world.scene_law)
    assert np.abs(first[0].world.scene_law - other[0].world.scene_law).max() > 1e-4


def test_the_command_prints_the_table_and_writes_numbers_and_figure(
    tmp_path, monkeypatch, recorded
):
    monkeypatch.setattr(report, "run_standard_set", lambda seed, on_row: recorded)
    out = tmp_path / "new" / "folder"
    result = CliRunner().invoke(app, ["theory", "--out", str(out)], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    for row in recorded["rows"]:
        assert row["name"] in result.output
    assert json.loads((out / "theory.json").read_text()) == recorded
    assert (out / "theory.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_fits_a_terminal_of_80_columns(recorded, monkeypatch, tmp_path):
    monkeypatch.setattr(report, "run_standard_set", lambda seed, on_row: recorded)
    result = CliRunner().invoke(app, ["theory", "--out", str(tmp_path)], env={"COLUMNS": "80"})
    for row in recorded["rows"]:
        # The last column; it is the first to go where a table is too wide.
        assert report.cells(row)[-1] in result.output
    assert "…" not in result.output


def test_an_output_that_cannot_be_made_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["theory", "--out", str(tmp_path / "file")])
    assert result.exit_code == 2
    assert "file" in result.output


def test_recorded_whitened_encoders_reach_the_closed_form(recorded):
    for row in recorded["rows"]:
        if row["objective"] == "whitening":
            predicted = np.array(row["predicted_loss"])[:, None]
            trained = np.array(row["trained_loss"])
            assert (trained >= predicted - 1e-9).all(), row["name"]
            assert (trained <= 1.01 * predicted + 1e-6).all(), row["name"]
            if min(row["gap"]) > 0.01:
                assert np.max(row["largest_angle"]) < 1, row["name"]


def test_recorded_residuals_stay_below_their_bounds(recorded):
    bounded = [row for row in recorded["rows"] if row["trained_bound"]]
    assert len(bounded) > 10
    for row in bounded:
        for residual, bound in zip(row["trained_residual"], row["trained_bound"], strict=True):
            assert residual["observation"] <= bound + 1e-9, row["name"]
        assert row["predicted_residual"]["observation"] <= max(row["predicted_bound"], 1e-12) or (
            row["objective"] == "lejepa"
        )
    sweep = recorded["nuisance_sweep"]
    assert (np.array(sweep["residual"]) <= sweep["bound"]).all()
    assert (np.array(sweep["bound"]) <= sweep["davis_kahan"]).all()
    for curve in recorded["training"].values():
        assert (np.array(curve["residual"]) <= np.array(curve["bound"]) + 1e-9).all()
        np.testing.assert_allclose(curve["residual"][-1], curve["predicted"], rtol=0.02, atol=1e-9)


def test_recorded_counter_examples_do_not_agree(recorded):
    counter = [row for row in recorded["rows"] if row["name"].startswith("!")]
    assert len(counter) == 3
    for row in counter:
        assert max(residual["scene"] for residual in row["trained_residual"]) > 0.1
    rows = rows_by_name(recorded)
    for name in ("common law", "same scene, d = S - 1", "ring, d = 4"):
        assert max(r["observation"] for r in rows[name]["trained_residual"]) < 1e-6


def test_the_page_shows_the_recorded_table(recorded):
    page = (DOCS / "theory.md").read_text()
    for row in recorded["rows"]:
        assert "| " + " | ".join(report.cells(row)) + " |" in page
