"""`platojax extract` on real files of the formats that users have; scores follow from them."""

import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from platojax import experiment
from platojax.cli import app
from platojax.data.scenes import load_emoji
from platojax.evaluation.features import read_features
from tests import tiny

GOLDEN = pathlib.Path(__file__).parent / "golden"


def run(*arguments):
    return CliRunner().invoke(app, ["extract", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture
def photos(tmp_path):
    """Five photos of a kind: noise with a tint."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(5):
        pixels = rng.integers(0, 128, (70, 90, 3)) + rng.integers(0, 128, 3)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    return folder


def test_a_hugging_face_folder_becomes_a_feature_folder_once(photos, tmp_path):
    out = tmp_path / "cache" / "dinov2"
    arguments = ["--encoder", GOLDEN / "dinov2", "--data", photos, "--out", out]
    first = run(*arguments)
    assert first.exit_code == 0, first.output
    assert "5 items x 4 layers x 48" in first.stdout
    features = read_features(out)
    assert features.features.shape == (5, 4, 48)
    assert features.meta.layers == ("block_0", "block_1", "block_2", "norm")
    assert features.meta.dataset == "photos"
    modified = (out / "features.npy").stat().st_mtime_ns
    again = run(*arguments)
    assert again.exit_code == 0
    assert "holds these features already" in again.stdout
    assert (out / "features.npy").stat().st_mtime_ns == modified


def test_the_same_files_elsewhere_are_known_by_their_content(photos, tmp_path):
    out = tmp_path / "f"
    run("--encoder", GOLDEN / "dinov2", "--data", photos, "--out", out)
    copies = [tmp_path / "copy" / "dinov2", tmp_path / "copy" / "photos"]
    for source, copy in zip((GOLDEN / "dinov2", photos), copies, strict=True):
        shutil.copytree(source, copy, copy_function=shutil.copyfile)
    same = run("--encoder", copies[0], "--data", copies[1], "--out", out)
    assert "holds these features already" in same.stdout
    (copies[1] / "3.png").write_bytes((copies[1] / "4.png").read_bytes())
    other = run("--encoder", copies[0], "--data", copies[1], "--out", out)
    assert other.exit_code == 2
    assert "holds other features (content_hash is" in other.stderr


def test_other_settings_give_other_features_in_the_same_place_refused(photos, tmp_path):
    arguments = ["--encoder", GOLDEN / "dinov2", "--data", photos, "--out", tmp_path / "f"]
    run(*arguments)
    for setting, words in (
        (["--pooling", "mean"], "pooling is"),
        (["--dtype", "bfloat16"], "dtype is 'float32', now 'bfloat16'"),
        (["--untrained", "0"], "weights_hash is"),
    ):
        result = run(*arguments, *setting)
        assert result.exit_code == 2
        assert f"holds other features ({words}" in result.stderr


def test_an_encoder_of_both_modalities_takes_what_there_is(photos, tmp_path):
    images = run("--encoder", GOLDEN / "clip", "--data", photos, "--out", tmp_path / "f")
    assert images.exit_code == 0, images.output
    both = tmp_path / "both.jsonl"
    both.write_text(json.dumps({"caption": "noise", "image": "photos/0.png"}) + "\n")
    unclear = run("--encoder", GOLDEN / "clip", "--data", both, "--out", tmp_path / "g")
    assert unclear.exit_code == 2
    assert "say --modality" in unclear.stderr
    told = run(
        *("--encoder", GOLDEN / "clip", "--data", both, "--out", tmp_path / "g"),
        *("--modality", "image", "--pooling", "embeds"),
    )
    assert told.exit_code == 0, told.output
    assert read_features(tmp_path / "g").features.shape == (1, 1, 24)


def test_the_first_observations_only(photos, tmp_path):
    rows = [{"id": "x", "image": f"photos/{i}.png"} for i in range(3)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, options in (("all", []), ("one", ["--observations", "1"])):
        run("--encoder", GOLDEN / "dinov2", "--data", path, "--out", tmp_path / name, *options)
    run("--encoder", GOLDEN / "dinov2", "--data", photos, "--out", tmp_path / "each")
    each = read_features(tmp_path / "each").features
    np.testing.assert_allclose(
        read_features(tmp_path / "all").features[0], each[:3].mean(0), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(read_features(tmp_path / "one").features[0], each[0])


def test_a_list_of_encoders_goes_on_past_one_that_fails(photos, tmp_path):
    config = tmp_path / "list.py"
    config.write_text(
        "def get_config():\n"
        "    good = {'folder': 'dinov2', 'pooling': ('mean',)}\n"
        "    return {'encoders': ({'folder': 'gone'}, good)}\n"
    )
    arguments = ["--encoder", config, "--data", photos, "--out", tmp_path / "out"]
    result = run(*arguments, "--models", GOLDEN)
    assert result.exit_code == 1
    assert "gone does not exist" in result.stdout
    assert "Failed: gone" in result.stdout
    assert "mean" in read_features(tmp_path / "out" / "dinov2").meta.pooling
    assert "say where they are with --models" in run(*arguments).stderr


@pytest.mark.slow
def test_a_run_of_an_experiment_gives_the_features_that_it_kept(tmp_path):
    config = tiny.experiment_config()
    workdir = tmp_path / "work"
    experiment.run(config, workdir)
    name = "text_good-seed1"
    for out, step, options in (
        ("trained", 6, []),
        ("untrained", 0, ["--untrained", "1"]),
    ):
        target = tmp_path / out
        result = run(
            "--encoder", workdir / name, "--data", "emoji:heldout", "--out", target, *options
        )
        assert result.exit_code == 0, result.output
        kept = read_features(workdir / name / "features" / f"step_{step}")
        features = read_features(target)
        assert features.meta.weights_hash == kept.meta.weights_hash
        np.testing.assert_array_equal(
            features.features, kept.features[: len(load_emoji("heldout"))]
        )
    scored = CliRunner().invoke(
        app,
        ["score", str(tmp_path / "trained"), str(tmp_path / "untrained"), "--layers", "embedding"],
    )
    assert scored.exit_code == 0, scored.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--encoder", "gone"], "gone does not exist; an encoder is a Hugging Face folder"),
        (["--encoder", "photos"], "photos is no encoder: give a Hugging Face folder"),
        (["--encoder", "empty"], "config.json names no model_type"),
        (["--data", "gone"], "gone does not exist"),
        (["--data", "empty"], "empty holds no images"),
        (["--data", "texts.txt"], "the encoder is for images, and data texts.txt has texts only"),
        (["--data", "emoji:test"], "choose one of emoji:"),
        (["--dtype", "float16"], "dtype='float16' must be float32 or bfloat16"),
        (["--batch-size", "0"], "batch_size=0"),
        (["--modality", "sound"], "--modality 'sound' must be text or image"),
        (["--max-length", "9"], "max_length=9 does not apply to DINO and CLIP encoders"),
        (["--pooling", "max"], "max"),
        (["--observations", "0"], "observations must be at least 1; got 0"),
        (["--out", "photos"], "photos exists and is not a feature folder"),
    ],
)
def test_bad_input_is_one_clear_line_on_stderr_and_exit_code_2(
    photos, tmp_path, monkeypatch, arguments, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    (tmp_path / "texts.txt").write_text("a bus\n")
    options = {"--encoder": GOLDEN / "dinov2", "--data": photos, "--out": "f"}
    options.update({arguments[0]: arguments[1]})
    result = run(*(word for pair in options.items() for word in pair))
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "f").exists()


def test_as_an_installed_command_it_does_not_import_torch(photos, tmp_path):
    program = (
        "import sys; from platojax.cli import app; app(standalone_mode=False); "
        "sys.exit('torch' in sys.modules)"
    )
    arguments = ["--encoder", GOLDEN / "dinov2", "--data", photos, "--out", tmp_path / "f"]
    done = subprocess.run([sys.executable, "-c", program, "extract", *map(str, arguments)])
    assert done.returncode == 0
