import json
import pathlib
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from typer.testing import CliRunner

from platojax.cli import app
from platojax.evaluation import alignment as alignment_module
from platojax.evaluation.alignment import METRICS, alignment, clip_outliers
from platojax.evaluation.calibration import calibrate
from platojax.evaluation.confidence import confidence_interval
from platojax.evaluation.controls import pca_control
from platojax.evaluation.features import FeatureMeta, read_features, write_features
from platojax.evaluation.retrieval import held_out_retrieval
from platojax.evaluation.scorecard import Protocol, load_encoders
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
    settings = ["--metric", "lcs_knn", "--k", "4", "--clip", "mean", "--permutations", "30"]
    result = run("image", "text.npy", *settings, "--seed", "5", "--subsamples", "50")
    assert result.exit_code == 0, result.output
    expected = calibrate(*sides, metric="lcs_knn", k=4, clip="mean", num_permutations=30, seed=5)
    rows = [line.split(maxsplit=1) for line in result.stdout.splitlines() if line.strip()]
    shown = {row[0]: row[1].strip() for row in rows if len(row) == 2}
    assert shown["score"].startswith(f"{expected.score:.4f}")
    assert shown["chance"] == f"{expected.chance:.4f}"
    assert shown["p-value"] == f"{expected.p_value:.4f}"
    assert shown["calibrated"] == f"{expected.calibrated:.4f}"
    assert shown["threshold"].startswith(f"{expected.threshold:.4f}")
    protocol = " ".join(result.stdout.split()).rpartition("lcs_knn, ")[2]
    assert protocol.startswith("k = 4, N = 40, clip mean; maximum over layers; null of 30 ")
    assert protocol.endswith("95% interval by 50 subsamples of 50%; seed 5")
    layers = [row[1].strip() for row in rows if row[0] == "layer"]
    i, j = expected.layers
    assert layers == [f"block {i + 1} ({i} of 0..1)", f"{j} of 0..2"]
    assert "vit; mean over tokens; flickr30k/test" in result.stdout
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
    (pair,) = values["pairs"]
    assert pair["calibrated"] == expected.to_json()
    assert pair["layer_names"] == [f"block {expected.layers[0] + 1}", str(expected.layers[1])]
    assert [pair["a"], pair["b"]] == [0, 1]
    assert values["encoders"][0] == {
        "path": "image",
        "layers": ["block 1", "block 2"],
        "meta": meta("vit", ("block 1", "block 2")).to_json(),
    }
    assert values["encoders"][1] == {"path": "text.npy", "layers": ["0", "1", "2"], "meta": None}
    assert values["protocol"]["k"] == 4
    assert values["versions"]["numpy"] == np.__version__


def test_json_on_stdout_is_all_there_is_on_stdout(sides):
    result = run("image", "text.npy", "--k", "4", "--json", "-")
    (pair,) = json.loads(result.stdout)["pairs"]
    assert pair["calibrated"]["score"] == calibrate(*sides, k=4).score


def pair_of(*arguments):
    """What `--json` says about the first pair."""
    result = run(*arguments, "--json", "-")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["pairs"][0]


def test_a_metric_without_neighbors_shows_no_k(sides):
    result = run("image", "text.npy", "--metric", "svcca")
    assert "svcca, N = 40" in result.stdout
    assert pair_of("image", "text.npy", "--metric", "svcca")["calibrated"]["k"] is None


@pytest.mark.parametrize("clip", ["none", "exact", "mean"])
def test_the_numbers_about_the_best_layers_are_those_of_the_functions(sides, clip):
    image, text = sides
    text[:, 1] *= 3  # so that the threshold of all layers is not that of one
    np.save("text.npy", text)
    settings = ["--k", "4", "--seed", "2", "--curves", "--clip", clip]
    pair = pair_of("image", "text.npy", *settings)
    i, j = pair["calibrated"]["layers"]
    assert pair["calibrated"]["score"] == float(alignment(image, text, k=4, clip=clip)[i, j])
    x = clip_outliers("image", image, clip)[:, i]
    y = clip_outliers("text", text, clip)[:, j]
    interval = confidence_interval(x, y, k=4, seed=2)
    assert pair["interval"].items() <= interval.to_json().items()
    assert pair["interval"]["standard_error"] > 0
    assert pair["width_matched"] == {"score": pca_control(x, y, k=4).score, "dim": 5}
    assert pair["retrieval"] == held_out_retrieval(x, y, seed=2).to_json()
    assert [point["n"] for point in pair["against_items"]] == [20, 40]
    assert [point["k"] for point in pair["against_k"]] == [1, 2, 4, 8]
    assert pair["against_k"][2]["score"] == pair["calibrated"]["score"]
    assert pair["against_items"][1]["mean"] == pair["calibrated"]["score"]
    assert pair["interval"]["score"] == pair["calibrated"]["score"]


def said(document, name):
    """Every value of this name, at any depth."""
    if isinstance(document, list):
        return [value for one in document for value in said(one, name)]
    if not isinstance(document, dict):
        return []
    here = [document[name]] if name in document else []
    return here + said(list(document.values()), name)


@pytest.mark.parametrize("metric", ["mutual_knn", "cka"])
def test_the_protocol_is_nowhere_contradicted(sides, metric):
    settings = ["--metric", metric, "--k", "4", "--clip", "exact", "--seed", "3", "--subsamples"]
    result = run("image", "text.npy", *settings, "9", "--json", "-")
    document = json.loads(result.stdout)
    k = 4 if METRICS[metric].uses_neighbors else None
    protocol = {"metric": metric, "k": k, "clip": "exact", "seed": 3, "num_permutations": 200}
    assert document["protocol"] == protocol | {"num_subsamples": 9}
    (pair,) = document["pairs"]
    assert pair["calibrated"].items() >= protocol.items()
    for name, value in (protocol | {"num_subsamples": 9}).items():
        assert set(said(document, name)) == {value}
    assert said(document["pairs"], "layers") == [pair["calibrated"]["layers"]]
    assert set(pair["interval"]) == {
        *("score", "low", "high", "level", "standard_error", "num_subsamples", "fraction")
    }


def test_curves_over_k_end_at_64_because_of_their_memory(sides):
    rng = np.random.default_rng(0)
    for name in "ab":
        np.save(f"{name}.npy", rng.normal(size=(520, 3)))
    arguments = ["a.npy", "b.npy", "--curves", "--permutations", "19", "--subsamples", "2"]
    assert [point["k"] for point in pair_of(*arguments)["against_k"]] == [
        1,
        2,
        4,
        8,
        10,
        16,
        32,
        64,
    ]


def test_features_stay_where_they_are(sides, monkeypatch):
    wide = np.random.default_rng(0).normal(size=(200, 64, 64)).astype(np.float32)
    np.save("wide.npy", wide)
    monkeypatch.setattr(alignment_module, "_CLIP_ELEMENTS", 2**14)
    features = read_features("wide.npy")
    load_encoders([features], Protocol(clip="exact"), ["all"])  # compiles
    tracemalloc.start()
    (encoder,) = load_encoders([features], Protocol(clip="exact"), ["all"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(encoder.features.features, np.memmap)
    assert peak < wide.nbytes / 2
    np.testing.assert_array_equal(encoder.rows(7), clip_outliers("wide", wide, "exact")[:, 7])


def test_layers_are_chosen_for_all_or_for_each(sides):
    image, text = sides
    one = pair_of("image", "text.npy", "--layers", "last")
    assert one["layer_names"] == ["block 2", "2"]
    assert one["calibrated"]["score"] == float(alignment(image[:, 1], text[:, 2])[0, 0])
    each = pair_of("image", "text.npy", "--layers", "block*", "--layers", "0")
    assert np.shape(each["calibrated"]["table"]) == (2, 1)


def test_several_encoders_are_scored_pair_by_pair(sides):
    np.save("noise.npy", np.random.default_rng(1).normal(size=(40, 7)))
    result = run("image", "text.npy", "noise.npy", "--k", "4", "--json", "out.json")
    assert result.exit_code == 0, result.output
    with open("out.json") as file:
        pairs = json.load(file)["pairs"]
    assert [(pair["a"], pair["b"]) for pair in pairs] == [(0, 1), (0, 2), (1, 2)]
    assert pairs[0]["calibrated"] == calibrate(*sides, k=4).to_json()
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "noise.npy" in result.stdout
    assert "chance 0.1026" in " ".join(result.stdout.split())


def test_a_chance_that_differs_from_pair_to_pair_is_shown_for_each(sides):
    name = "noise_with_a_rather_long_name_of_its_own.npy"
    np.save(name, np.random.default_rng(1).normal(size=(40, 9, 7)))
    arguments = ["image", "text.npy", name, "--metric", "lcs_knn", "--k", "4"]
    result = run(*arguments, "--json", "out.json")
    with open("out.json") as file:
        chances = [pair["calibrated"]["chance"] for pair in json.load(file)["pairs"]]
    assert len(set(chances)) == 3
    for chance in chances:
        assert f" {chance:.3f}".replace(" 0.", " .") in result.stdout
    assert ", chance" not in " ".join(result.stdout.split())
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_cached_encoders_are_ranked_by_how_well_they_fit(sides, tmp_path):
    image, text = sides
    rng = np.random.default_rng(1)
    (tmp_path / "cache").mkdir()
    write_features("cache/text", text, meta("good", ("a", "b", "c")))
    write_features("cache/deep/noise", rng.normal(size=(40, 1, 7)), meta("bad", ("only",)))
    write_features("cache/self", image, meta("same", ("x", "y")))
    write_features("cache/other", rng.normal(size=(30, 1, 7)), meta("other", ("only",), n=30))
    result = run("image", "--against", "cache", "--k", "4", "--json", "out.json")
    assert result.exit_code == 0, result.output
    assert "1 of 4 encoders are of other items" in result.stdout
    with open("out.json") as file:
        document = json.load(file)
    ranked = [document["encoders"][pair["b"]]["meta"]["encoder"] for pair in document["pairs"]]
    assert ranked == ["same", "good", "bad"]
    result = run(
        *("image", "--against", "cache", "--k", "4", "--json", "out.json"),
        *("--layers", "block 1", "--layers", "last"),
    )
    with open("out.json") as file:
        document = json.load(file)
    assert [encoder["layers"] for encoder in document["encoders"]] == [
        *(["block 1"], ["only"], ["y"], ["c"])
    ]


def test_depth_does_not_help_in_the_ranking(sides):
    image, _ = sides
    weak = image[:, :1] + 2 * np.random.default_rng(102).normal(size=(40, 1, 5))
    deep = np.random.default_rng(0).normal(size=(40, 100, 5))
    write_features("cache/weak", weak, meta("weak", ("only",)))
    write_features("cache/deep", deep, meta("deep noise", tuple(map(str, range(100)))))
    run("image", "--against", "cache", "--k", "4", "--json", "out.json")
    with open("out.json") as file:
        document = json.load(file)
    first, second = document["pairs"]
    assert document["encoders"][first["b"]]["meta"]["encoder"] == "weak"
    assert first["calibrated"]["calibrated"] > second["calibrated"]["calibrated"]
    assert first["calibrated"]["score"] < second["calibrated"]["score"]


def test_what_training_added_is_said(sides):
    image, _ = sides
    start = np.random.default_rng(1).normal(size=image.shape).astype(np.float32)
    write_features("start", start, meta("vit, untrained", ("block 1", "block 2")))
    arguments = ["image", "text.npy", "--k", "4", "--untrained", "start"]
    above = pair_of(*arguments)["above_untrained"]
    assert above["difference"] == pytest.approx(above["score"] - above["untrained"])
    assert above["p_value"] < 0.05
    assert "untrained A" in run(*arguments).stdout


def test_the_untrained_encoder_is_compared_at_the_chosen_layer_and_clipped_alike(sides):
    image, text = sides
    start = np.random.default_rng(1).normal(size=image.shape).astype(np.float32)
    write_features("start", start, meta("vit, untrained", ("block 1", "block 2")))
    settings = ["--k", "4", "--clip", "exact", "--layers", "1", "--layers", "all"]
    pair = pair_of("image", "text.npy", "--untrained", "start", *settings)
    j = pair["calibrated"]["layers"][1]
    table = alignment(start[:, [1]], text, k=4, clip="exact")
    assert pair["above_untrained"]["untrained"] == float(table[0, j])
    assert pair["above_untrained"]["score"] == pair["calibrated"]["score"]


@pytest.mark.parametrize("name", ["one.png", "one.svg", "one.pdf"])
def test_a_figure_is_drawn(sides, name):
    result = run("image", "text.npy", "--k", "4", "--curves", "--plot", name)
    assert result.exit_code == 0, result.output
    assert len(pathlib.Path(name).read_bytes()) > 5000


def test_a_figure_of_several_pairs_names_them(sides):
    np.save("noise.npy", np.random.default_rng(1).normal(size=(40, 7)))
    run("image", "text.npy", "noise.npy", "--k", "4", "--plot", "bars.svg")
    assert pathlib.Path("bars.svg").read_text().count("<!-- image ~ text.npy -->") == 1


@pytest.mark.parametrize(("n", "has_interval"), [(30, False), (32, True)])
def test_an_interval_needs_subsamples_of_four_times_k(sides, n, has_interval):
    for name, features in zip("ab", sides, strict=True):
        np.save(f"{name}.npy", features[:n])
    interval = pair_of("a.npy", "b.npy", "--k", "4")["interval"]
    assert (interval is not None) == has_interval


def test_few_items_are_scored_without_what_they_do_not_allow(sides):
    image, text = sides
    np.save("a.npy", image[:12])
    np.save("b.npy", text[:12])
    pair = pair_of("a.npy", "b.npy", "--curves")
    assert pair["interval"] is None
    assert pair["retrieval"] is None
    assert pair["calibrated"]["n"] == 12


def test_copies_are_warned_of_in_one_line(sides):
    _, text = sides
    text[:8, 0] = 1
    np.save("copies.npy", text)
    result = run("image", "copies.npy", "--k", "4")
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: layer 0 of copies.npy: for 8 of 40 items")
    assert len(result.stderr.splitlines()) == 1


def searched_too_early(x, k):
    raise AssertionError("everything is to be checked before the first search")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["image", "missing.npy"], "missing.npy does not exist"),
        (["image", "short.npy"], "image has 40 items and short.npy has 30"),
        (["image", "other"], "other (flickr30k/test, items"),
        (["image", "nan.npy"], "nan.npy is nan at item 2, layer 0, channel 1"),
        (["image", "text.npy", "--metric", "cosine"], "metric='cosine' is unknown; choose one of"),
        (["image", "text.npy", "--clip", "hard"], "clip='hard'"),
        (
            ["image", "text.npy", "--k", "40"],
            "image has 40 items, which are too few: mutual_knn with k=40",
        ),
        (["image", "text.npy", "--k", "0"], "k=0"),
        (["image", "text.npy", "--permutations", "5"], "num_permutations=5"),
        (["image", "text.npy", "--json", "no/such/folder/out.json"], "no/such/folder/out.json"),
        (
            ["image", "text.npy", "--plot", "no/such/folder/out.png"],
            "no/such/folder does not exist",
        ),
        (["image", "text.npy", "--plot", "out.txt"], "out.txt must end in .png, .svg or .pdf"),
        (["image", "text.npy", "--json", "empty"], "empty is no file"),
        (
            ["image", "text.npy", "--layers", "block 9"],
            "image: layers='block 9' fits none of the 2",
        ),
        (["image", "text.npy", *["--layers", "last"] * 3], "3 choices of layers for 2 encoders"),
        (["image", "text.npy", "--subsamples", "1"], "num_subsamples=1"),
        (["image", "text.npy", "text.npy", "short.npy"], "image has 40 items and short.npy has 30"),
        (["image", "text.npy", "--untrained", "text.npy"], "text.npy has 3 layers and image has 2"),
        (
            ["image", "image", "--untrained", "renamed"],
            "renamed has the layers block 1, block 3 and image has block 1, block 2",
        ),
        (
            ["image", "text.npy", "--untrained", "image", "--metric", "cka"],
            "compared by metric='mutual_knn' only, not 'cka'",
        ),
        (["image", "text.npy", "text.npy", "--untrained", "image"], "name exactly two encoders"),
        (["image", "text.npy", "text.npy", "--curves"], "name exactly two encoders"),
        (["image", "--against", ".", "--curves"], "name exactly two encoders"),
        (["image", "text.npy", "--seed", "-1"], "seed=-1 must not be negative"),
        (["image"], "give at least two encoders, or one and --against FOLDER"),
        (["image", "text.npy", "--against", "."], "--against takes one encoder, not 2"),
        (["image", "--against", "empty"], "empty holds no feature folders"),
        (["text.npy", "--against", "."], "text.npy does not say which items it is of"),
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
    pathlib.Path("model.pt").touch()
    pathlib.Path("empty").mkdir()
    write_features("renamed", sides[0], meta("vit", ("block 1", "block 3")))
    other = meta("vit", ("a", "b", "c"))
    write_features("other", text, FeatureMeta(**vars(other) | {"items_hash": hash_items(["x"])}))
    monkeypatch.setattr(alignment_module, "nearest_neighbors", searched_too_early)
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


def test_scoring_does_not_load_the_training_loop():
    program = "import sys, platojax.commands.score; sys.exit('platojax.train' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
