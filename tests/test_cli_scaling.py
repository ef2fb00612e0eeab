"""`platojax scaling`, on points whose laws are known and on experiments of two sizes."""

import json

import pytest
from PIL import Image
from typer.testing import CliRunner

from platojax import experiment
from platojax.cli import app
from platojax.data.items import load_items
from platojax.evaluation.extraction import extract
from platojax.finished_runs import read_points
from platojax.run_encoder import load_run_encoder
from tests import tiny

SIZES = [2_000 * 2**i for i in range(6)]


def curve(n):
    return 0.3 - 0.28 * (n / 2_000) ** -0.3


def point(arm, n, score, *, seed=0, target="vision", objective="lejepa", **changes):
    return {
        **{"arm": arm, "label": f"the {arm} arm", "objective": objective, "seed": seed},
        **{"target": target, "score": score, "chance": 0.01, "samples": n},
        **{"tokens": 20 * n, "flops": 3e6 * n, **changes},
    }


def points(target="vision", factor=8):
    """The next-token arm needs `factor` times the samples, and half the tokens of each."""
    return [
        one
        for n in SIZES
        for seed in (0, 1)
        for one in (
            point("good", n, curve(n) + 0.002 * seed, seed=seed, target=target),
            point(
                "next",
                n,
                curve(n / factor) + 0.002 * seed,
                seed=seed,
                target=target,
                objective="next_token",
                tokens=10 * n,
            ),
        )
    ]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "points.json"
    path.write_text(json.dumps({"points": points()}))
    return path


def scaling(*arguments, code=0):
    result = CliRunner().invoke(app, ["scaling", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def test_laws_and_ratios_are_those_of_the_points(file, tmp_path):
    out, plot = tmp_path / "scaling.json", tmp_path / "scaling.png"
    printed = scaling(file, "--predict", 256_000, "--json", out, "--plot", plot)
    reading = json.loads(out.read_text())["targets"]["vision"]
    assert reading["baseline"] == "next"
    assert reading["laws"]["good"]["form"] == "power"
    assert reading["predictions"]["good"]["256000"] == pytest.approx(curve(256_000), abs=0.003)
    ratios = reading["ratios"]["good"]
    assert ratios["samples"]["ratio"] == pytest.approx(8, rel=1e-3)
    assert ratios["tokens"]["ratio"] == pytest.approx(4, rel=1e-3)
    assert ratios["flops"]["ratio"] == pytest.approx(8, rel=1e-3)
    assert "next over good" in printed
    assert "256,000, predicted" in printed
    assert Image.open(plot).size[0] > 600


def test_runs_of_one_size_are_resampled_whatever_their_tokens(tmp_path):
    path, out = tmp_path / "points.json", tmp_path / "scaling.json"
    content = points()
    for number, one in enumerate(content):
        one["score"] += 0.01 * one["seed"]
        one["tokens"] += number
    path.write_text(json.dumps({"points": content}))
    scaling(path, "--json", out)
    ratios = json.loads(out.read_text())["targets"]["vision"]["ratios"]["good"]
    for cost in ("samples", "tokens"):
        assert ratios[cost]["low"] < 0.95 * ratios[cost]["ratio"] < ratios[cost]["high"]


def test_its_own_json_gives_the_same_again(file, tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    scaling(file, "--json", first)
    scaling(first, "--json", second)
    assert first.read_bytes() == second.read_bytes()
    scaling(first, "--json", first)  # and may be renewed in place
    assert first.read_bytes() == second.read_bytes()


def test_each_target_has_its_own_ratio_and_one_can_be_chosen(tmp_path):
    path, out = tmp_path / "points.json", tmp_path / "scaling.json"
    path.write_text(json.dumps({"points": points() + points("german", factor=4)}))
    scaling(path, "--json", out, "--plot", tmp_path / "both.svg")
    targets = json.loads(out.read_text())["targets"]
    found = {name: one["ratios"]["good"]["samples"]["ratio"] for name, one in targets.items()}
    assert found == pytest.approx({"vision": 8, "german": 4}, rel=1e-3)
    scaling(path, "--target", "german", "--json", out)
    assert list(json.loads(out.read_text())["targets"]) == ["german"]
    assert "there are vision, german" in scaling(path, "--target", "dino", code=2)


def test_where_arms_do_not_meet_it_says_so(tmp_path):
    path = tmp_path / "points.json"
    path.write_text(json.dumps({"points": points()}))
    assert "neither arm is within its range" in scaling(path, "--at", 0.9)
    assert "at least" in scaling(path, "--at", 0.2)


def test_without_a_baseline_there_are_laws_alone(tmp_path):
    path = tmp_path / "points.json"
    path.write_text(json.dumps({"points": [point("a", n, curve(n)) for n in SIZES]}))
    printed = scaling(path)
    assert "a: power" in printed
    assert " over " not in printed
    assert "there are a" in scaling(path, "--baseline", "b", code=2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "is no JSON of `platojax scaling --json`"),
        ("not json", "is no JSON of `platojax scaling --json`"),
        ('{"points": [{"arm": "a"}]}', "is no JSON of `platojax scaling --json`"),
        ('{"points": []}', "there is no finished run with an evaluation"),
        (json.dumps({"points": 2 * [point("a", 1, 0.1)]}), "comes twice against vision"),
    ],
)
def test_what_holds_no_points_is_refused(content, message, tmp_path):
    path = tmp_path / "points.json"
    path.write_text(content)
    assert message in scaling(path, code=2)


def test_paths_that_are_wrong_are_named(file, tmp_path):
    assert "has no config.json" in scaling(tmp_path, code=2)
    assert "has no config.json" in scaling(tmp_path / "nowhere", code=2)
    assert "must end in" in scaling(file, "--plot", tmp_path / "a.txt", code=2)


@pytest.mark.slow
def test_experiments_of_two_sizes(tmp_path):
    config = tiny.experiment_config()
    config.arms = {name: {**config.arms[name], "seeds": 1} for name in ("text_next_token",)}
    experiment.run(config, tmp_path / "first")
    target = tmp_path / "cache" / "itself"
    run = tmp_path / "first" / "text_next_token-seed0"
    extract(load_run_encoder(run), load_items("emoji:heldout"), target)
    config = tiny.experiment_config()
    config.arms = {
        name: {**config.arms[name], "seeds": 1} for name in ("text_good", "text_next_token")
    }
    config.monitor.update(every=10_000, targets=(str(target),))
    workdirs = []
    for steps in (3, 6):
        config.text.num_samples = 8 * steps
        workdirs.append(tmp_path / f"{steps}_steps")
        experiment.run(config, workdirs[-1])
    found, left_out = read_points([*workdirs])
    assert not left_out
    assert [(one.arm, one.samples) for one in found] == [
        *(("text_good", 24), ("text_next_token", 24)),
        *(("text_good", 48), ("text_next_token", 48)),
    ]
    assert all(one.tokens and one.flops > 0 and one.target == "itself" for one in found)
    assert found[2].flops == 2 * found[0].flops
    # The target is the end of that very run.
    assert found[3].score == pytest.approx(1)
    assert "text_next_token over text_good" in scaling(*workdirs)
    (workdirs[0] / "text_good-seed0" / "metrics.jsonl").unlink()
    assert [one.tokens is None for one in read_points([*workdirs])[0]] == [
        True,
        False,
        False,
        False,
    ]
    (workdirs[0] / "text_good-seed0" / "validation.jsonl").unlink()
    printed = scaling(*workdirs)
    assert "text_good-seed0 has no evaluation of its last step, 3" in printed
