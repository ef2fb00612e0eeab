import json
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from platojax.cli import app
from platojax.evaluation.calibration import calibrate
from platojax.evaluation.features import FeatureMeta, write_features
from platojax.hashing import hash_items


def meta(encoder, layers, n=40):
    return FeatureMeta(
        encoder=encoder,
        weights_hash="0" * 64,
        dataset="flickr30k/test",
        items_hash=hash_items(range(n)),
        preprocessing="none",
        pooling="mean over tokens",
        layers=layers,
    )


@pytest.fixture
def sides(tmp_path, monkeypatch):
    """A feature folder `image` and a plain `text.npy` of the same 40 items."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    signal = rng.normal(size=(40, 1, 5))
    image = (signal + rng.normal(size=(40, 2, 5))).astype(np.float32)
    text = (signal + rng.normal(size=(40, 3, 5))).astype(np.float32)
    write_features("image", image, meta("vit", ("block 1", "block 2")))
    np.save("text.npy", text)
    return image, text


def run(*arguments, columns="80"):
    return CliRunner().invoke(app, ["score", *arguments], env={"COLUMNS": columns})


def test_shows_the_score_and_its_whole_protocol_in_80_columns(sides):
    settings = [
        "--metric",
        "lcs_knn",
        "--k",
        "4",
        "--clip",
        "mean",
        "--permutations",
        "30",
        "--seed",
        "5",
    ]
    result = run("image", "text.npy", *settings)
    assert result.exit_code == 0
    expected = calibrate(*sides, metric="lcs_knn", k=4, clip="mean", num_permutations=30, seed=5)
    rows = [line.split(maxsplit=1) for line in result.stdout.splitlines() if line.strip()]
    shown = {row[0]: row[1].strip() for row in rows if len(row) == 2}
    assert shown["score"].startswith(f"{expected.score:.4f}")
    assert shown["chance"] == f"{expected.chance:.4f}"
    assert shown["p-value"] == f"{expected.p_value:.4f}"
    assert shown["calibrated"] == f"{expected.calibrated:.4f}"
    assert shown["threshold"].startswith(f"{expected.threshold:.4f}")
    assert (shown["metric"], shown["k"], shown["clip"]) == ("lcs_knn", "4", "mean")
    assert (shown["N"], shown["permutations"]) == ("40 items", "30, seed 5")
    layers = [row[1].strip() for row in rows if row[0] == "layer"]
    i, j = expected.layers
    assert layers == [f"block {i + 1} ({i} of 0..1)", f"{j} of 0..2"]
    assert "vit, mean over tokens, flickr30k/test" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_long_paths_with_brackets_are_shown_whole(sides):
    name = "features_of_a_model_with_a_long_name_" * 3 + "[bold][layer-12].npy"
    np.save(name, sides[1])
    result = run("image", name)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert name in "".join(result.stdout.split())


def test_json_holds_the_same_numbers_and_what_the_features_are(sides):
    result = run("image", "text.npy", "--k", "4", "--json", "out.json")
    assert result.exit_code == 0
    assert "score" in result.stdout

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    with open("out.json") as file:
        values = json.load(file, parse_constant=refuse)
    expected = calibrate(*sides, k=4)
    assert values.items() >= expected.to_json().items()
    assert values["a"] == {"path": "image", "meta": meta("vit", ("block 1", "block 2")).to_json()}
    assert values["b"] == {"path": "text.npy", "meta": None}
    assert values["layer_names"] == [f"block {expected.layers[0] + 1}", str(expected.layers[1])]
    assert values["versions"]["numpy"] == np.__version__


def test_json_on_stdout_is_all_there_is_on_stdout(sides):
    result = run("image", "text.npy", "--k", "4", "--json", "-")
    assert json.loads(result.stdout)["score"] == calibrate(*sides, k=4).score


def test_a_metric_without_neighbors_shows_no_k(sides):
    result = run("image", "text.npy", "--metric", "svcca", "--json", "out.json")
    assert ["k", "none"] in [line.split() for line in result.stdout.splitlines()]
    with open("out.json") as file:
        assert json.load(file)["k"] is None


def test_copies_are_warned_of_in_one_line(sides):
    _, text = sides
    text[:8, 0] = 1
    np.save("copies.npy", text)
    result = run("image", "copies.npy", "--k", "4")
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: layer 0 of b: for 8 of 40 items")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["image", "missing.npy"], "missing.npy does not exist"),
        (["image", "short.npy"], "image has 40 items and short.npy has 30"),
        (["image", "other"], "other (flickr30k/test, items"),
        (["image", "nan.npy"], "nan.npy is nan at item 2, layer 0, channel 1"),
        (["image", "text.npy", "--metric", "cosine"], "metric='cosine' is unknown; choose one of"),
        (["image", "text.npy", "--clip", "hard"], "clip='hard'"),
        (["image", "text.npy", "--k", "40"], "40 items are too few: mutual_knn with k=40"),
        (["image", "text.npy", "--k", "0"], "k=0"),
        (["image", "text.npy", "--permutations", "5"], "num_permutations=5"),
        (["image", "text.npy", "--json", "no/such/folder/out.json"], "no/such/folder/out.json"),
        (["image", "model.pt"], "pip install torch"),
    ],
)
def test_bad_input_is_one_clear_line_on_stderr_and_exit_code_2(
    sides, arguments, words, monkeypatch
):
    _, text = sides
    monkeypatch.setitem(sys.modules, "torch", None)
    np.save("short.npy", text[:30])
    nan = text.copy()
    nan[2, 0, 1] = np.nan
    np.save("nan.npy", nan)
    with open("model.pt", "wb"):
        pass
    other = meta("vit", ("a", "b", "c"))
    write_features("other", text, FeatureMeta(**vars(other) | {"items_hash": hash_items(["x"])}))
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_as_an_installed_command(sides):
    program = [sys.executable, "-c", "from platojax.cli import app; app()", "score"]
    good = subprocess.run([*program, "image", "text.npy"], capture_output=True, text=True)
    assert (good.returncode, good.stderr) == (0, "")
    assert "mutual_knn" in good.stdout
    bad = subprocess.run([*program, "image", "gone.npy"], capture_output=True, text=True)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "error: gone.npy does not exist\n"


def test_help_does_not_wait_for_jax():
    program = "import sys, platojax.cli; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
