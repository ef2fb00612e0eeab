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
from platojax.commands import extract as extract_command
from platojax.data.scenes import load_emoji
from platojax.evaluation import extraction
from platojax.evaluation.features import FeatureWriter, read_features
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


def test_a_hugging_face_folder_becomes_a_feature_folder_once(photos, tmp_path, monkeypatch):
    out = tmp_path / "cache" / "dinov2"
    arguments = ["--encoder", GOLDEN / "dinov2", "--data", photos, "--out", out]
    first = run(*arguments)
    assert first.exit_code == 0, first.output
    assert "5 x 4 x 48 (items, layers, width)" in first.stdout
    features = read_features(out)
    assert features.features.shape == (5, 4, 48)
    assert features.meta.layers == ("block_0", "block_1", "block_2", "norm")
    assert features.meta.dataset == "photos"
    monkeypatch.setattr(extract_command, "open_encoder", None)  # the second call needs no weights
    again = run(*arguments)
    assert again.exit_code == 0, again.output
    assert "holds these features already" in again.stdout


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
    typo = tmp_path / "typo.py"
    typo.write_text("def get_config():\n    return {'encoders': ({'folder': 'x', 'pool': 1},)}\n")
    arguments = ["--encoder", config, "--data", photos, "--out", tmp_path / "out"]
    result = run(*arguments, "--models", GOLDEN)
    assert result.exit_code == 1
    assert "gone does not exist" in result.stdout
    assert "Failed: gone" in result.stdout
    assert "mean" in read_features(tmp_path / "out" / "dinov2").meta.pooling
    assert "say where they are with --models" in run(*arguments).stderr
    arguments[1] = typo
    refused = run(*arguments, "--models", GOLDEN)
    assert refused.exit_code == 2
    assert "an encoder has the fields ['folder', 'pool']" in refused.stderr


def test_one_that_runs_out_of_memory_does_not_stop_a_list(photos, tmp_path, monkeypatch):
    config = tmp_path / "list.py"
    config.write_text(
        "def get_config():\n    return {'encoders': ({'folder': 'dinov3'}, {'folder': 'dinov2'})}\n"
    )
    whole = extract_command.open_encoder

    def limited(path, *arguments):
        if path.name == "dinov3":
            raise RuntimeError("RESOURCE_EXHAUSTED")
        return whole(path, *arguments)

    monkeypatch.setattr(extract_command, "open_encoder", limited)
    result = run(
        *("--encoder", config, "--models", GOLDEN, "--data", photos, "--out", tmp_path / "out")
    )
    assert result.exit_code == 1
    assert "dinov3: RuntimeError: RESOURCE_EXHAUSTED" in result.stdout
    assert (tmp_path / "out" / "dinov2" / "meta.json").is_file()


def test_a_killed_extraction_goes_on_with_another_batch_size(photos, tmp_path, monkeypatch):
    arguments = ["--encoder", GOLDEN / "dinov2", "--data", photos]
    run(*arguments, "--out", tmp_path / "whole")
    monkeypatch.setattr(extraction, "_SHARD_ITEMS", 2)
    whole = FeatureWriter.append

    def stop(writer, features):
        if writer.done == 4:
            raise KeyboardInterrupt
        whole(writer, features)

    with monkeypatch.context() as patch:
        patch.setattr(FeatureWriter, "append", stop)
        run(*arguments, "--out", tmp_path / "f")
    assert not (tmp_path / "f").exists()
    done = []
    monkeypatch.setattr(
        FeatureWriter,
        "append",
        lambda writer, features: (done.append(writer.done), whole(writer, features)),
    )
    result = run(*arguments, "--out", tmp_path / "f", "--batch-size", "1")
    assert result.exit_code == 0, result.output
    assert done == [4]
    np.testing.assert_allclose(
        read_features(tmp_path / "f").features,
        read_features(tmp_path / "whole").features,
        atol=1e-5,
    )


def test_an_onnx_graph_with_other_preprocessing_is_another_encoder(photos, tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("GlobalAveragePool", ["x"], ["pooled"])],
        "mean",
        [helper.make_tensor_value_info("x", floats, ["B", 3, 8, 8])],
        [helper.make_tensor_value_info("pooled", floats, ["B", 3, 1, 1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "mean.onnx")
    values = dict(resize=8, crop=8, interpolation="bicubic", mean=[0.0] * 3, std=[1.0] * 3)
    (tmp_path / "mean.json").write_text(json.dumps(values))
    arguments = ["--encoder", tmp_path / "mean.onnx", "--data", photos, "--out", tmp_path / "f"]
    assert run(*arguments).exit_code == 0
    (tmp_path / "mean.json").write_text(json.dumps(values | {"mean": [0.5] * 3}))
    changed = run(*arguments)
    assert changed.exit_code == 2
    assert "preprocessing is" in changed.stderr


def test_a_model_of_transformers_takes_the_options_of_the_command(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: i for i, word in enumerate(("[UNK]", "[PAD]", "[BOS]", "a", "red", "bus"))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[BOS] $A", special_tokens=[("[BOS]", 2)]
    )
    folder = tmp_path / "tiny"
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", bos_token="[BOS]", unk_token="[UNK]"
    ).save_pretrained(folder)
    shape = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    config = transformers.LlamaConfig(vocab_size=6, num_key_value_heads=2, **shape)
    transformers.LlamaModel(config).save_pretrained(folder)
    (tmp_path / "texts.txt").write_text("a red bus\na bus\n")

    def features(name, *options):
        out = tmp_path / name
        result = run(
            *("--encoder", folder, "--data", tmp_path / "texts.txt", "--out", out, *options)
        )
        assert result.exit_code == 0, result.output
        return read_features(out)

    plain = features("plain")
    assert plain.features.shape == (2, 2, 16)
    assert "transformers" in plain.meta.versions
    both = features("both", "--pooling", "mean, last")
    np.testing.assert_allclose(both.features[:, ::2], plain.features, atol=1e-6)
    for option in (["--no-special-tokens"], ["--untrained", "3"], ["--max-length", "2"]):
        other = features(option[0], *option)
        assert np.abs(other.features - plain.features).max() > 1e-3, option


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
        (["--dtype", "float16"], "dtype 'float16' is not supported"),
        (["--batch-size", "0"], "batch_size"),
        (["--modality", "sound"], "modality 'sound' is neither"),
        (["--models", "photos"], "--models is for lists of encoders"),
        (["--max-length", "9"], "max_length=9 does not apply to DINO and CLIP encoders"),
        (["--pooling", "max"], "max"),
        (["--observations", "0"], "observations must be at least 1; got 0"),
        (["--out", "photos"], "photos exists and is not a whole feature folder"),
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
