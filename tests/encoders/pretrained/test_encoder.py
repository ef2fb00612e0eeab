"""The frozen encoders that alignment extracts features from."""

import builtins
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from platojax.encoders.frozen import FrozenEncoder
from platojax.encoders.pretrained import PretrainedEncoder, load_pretrained, reinitialised
from tests.encoders.pretrained import folders
from tests.encoders.pretrained.folders import GOLDEN
from tests.test_sharding import run_case


def small(tmp_path, name):
    """A golden model whose preprocessing makes images of the size it is recorded at."""
    folder = folders.save(tmp_path / name, folders.config(name), folders.tensors(name))
    side = folders.config(name).get("image_size", 64)
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": side, "crop_size": side}))
    return load_pretrained(folder)


def pictures(count, seed=0):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, 70, 90, 3), dtype=np.uint8)
    return [Image.fromarray(picture) for picture in pixels]


@pytest.mark.parametrize("name", ["dinov2_registers", "clip"])
def test_layers_are_the_pooled_hidden_states(tmp_path, name):
    model = small(tmp_path, name)
    encoder: FrozenEncoder = PretrainedEncoder(model, pooling=("cls", "mean"), batch_size=4)
    depth = model.config.vision.depth
    blocks = [*(f"block_{i}" for i in range(depth)), "norm"]
    assert encoder.layers == tuple(f"{b} {p}" for b in blocks for p in ("cls", "mean"))
    assert (encoder.width, encoder.modality, encoder.dtype) == (48, "image", "float32")
    assert encoder.pooling == "class token and mean over patches"
    assert encoder.weights_hash == model.weights_hash
    batch = [encoder.prepare(picture) for picture in pictures(3)]
    got = encoder.encode(batch)
    assert (got.shape, got.dtype) == ((3, len(encoder.layers), 48), np.float32)

    features = model.features(model.preprocessing.normalise(np.stack(batch)))
    states = features["hidden_states"][1:]
    prefix = 5 if name == "dinov2_registers" else 1
    assert states.shape[2] == prefix + 16
    at = encoder.layers.index
    for i, state in enumerate(states):
        np.testing.assert_allclose(got[:, at(f"block_{i} cls")], state[:, 0], atol=1e-5)
        mean = state[:, prefix:].mean(1)
        np.testing.assert_allclose(got[:, at(f"block_{i} mean")], mean, atol=1e-5)
    np.testing.assert_allclose(got[:, at("norm cls")], features["pooler_output"], atol=1e-5)
    if name != "clip":
        mean = features["last_hidden_state"][:, prefix:].mean(1)
        np.testing.assert_allclose(got[:, at("norm mean")], mean, atol=1e-5)


def test_a_part_batch_gives_what_the_images_give_in_any_other(tmp_path):
    encoder = PretrainedEncoder(small(tmp_path, "dinov2"), batch_size=4)
    batch = [encoder.prepare(picture) for picture in pictures(4)]
    whole = encoder.encode(batch)
    np.testing.assert_array_equal(encoder.encode(batch), whole)
    np.testing.assert_allclose(encoder.encode(batch[:3]), whole[:3], atol=1e-6)
    np.testing.assert_allclose(encoder.encode([batch[3]]), whole[3:], atol=1e-6)
    wide = PretrainedEncoder(small(tmp_path, "dinov2"), batch_size=7)
    np.testing.assert_allclose(wide.encode(batch), whole, atol=1e-5)
    assert np.abs(whole[0] - whole[1]).max() > 0.01
    for wrong in ([], [*batch, batch[0]]):
        with pytest.raises(ValueError, match=rf"takes 1 to 4 observations, not {len(wrong)}"):
            encoder.encode(wrong)


def test_embeds_are_clips_joint_space(tmp_path):
    model = small(tmp_path, "clip")
    encoder = PretrainedEncoder(model, pooling=("embeds",), batch_size=2)
    assert (encoder.layers, encoder.width) == (("embeds",), 24)
    batch = [encoder.prepare(picture) for picture in pictures(2)]
    want = model.image_embeds(model.preprocessing.normalise(np.stack(batch)))
    np.testing.assert_allclose(encoder.encode(batch)[:, 0], want, atol=1e-5)


def with_tokenizer(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<start>": 1, "<end>": 119, **{f"w{i}": i for i in range(3, 100)}, "?": 0}
    model = tokenizers.models.WordLevel(words, unk_token="?")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", 1), ("<end>", 119)]
    )
    tokenizer.enable_padding(length=20, pad_id=119)  # what a file may ask for, and must not do
    values = folders.config("clip")
    values["text_config"]["eos_token_id"] = 119
    folder = folders.save(tmp_path / "clip", values, folders.tensors("clip"))
    tokenizer.save(str(folder / "tokenizer.json"))
    return load_pretrained(folder)


def test_texts_are_pooled_at_their_end_or_over_valid_tokens(tmp_path):
    model = with_tokenizer(tmp_path)
    encoder = PretrainedEncoder(model, modality="text", pooling=("eot", "mean"), batch_size=3)
    blocks = ("block_0", "block_1", "norm")
    assert encoder.layers == tuple(f"{b} {p}" for b in blocks for p in ("eot", "mean"))
    assert (encoder.width, encoder.modality) == (32, "text")
    texts = ["w5 w99 w7", "w8"]
    batch = [encoder.prepare(text) for text in texts]
    assert [tokens.tolist() for tokens in batch] == [[1, 5, 99, 7, 119], [1, 8, 119]]
    got = encoder.encode(batch)
    alone = encoder.encode(batch[1:])
    np.testing.assert_allclose(alone[0], got[1], atol=1e-6)
    embeds = PretrainedEncoder(model, modality="text", pooling=("embeds",), batch_size=3)
    want = model.text_embeds([[1, 5, 99, 7, 119], [1, 8, 119, 0, 0]], [[1] * 5, [1, 1, 1, 0, 0]])
    np.testing.assert_allclose(embeds.encode(batch)[:, 0], want, atol=1e-5)
    kernel = np.asarray(model.params["text"]["projection"]["kernel"])
    np.testing.assert_allclose(got[:, encoder.layers.index("norm eot")] @ kernel, want, atol=1e-5)


def test_long_texts_keep_their_end(tmp_path):
    encoder = PretrainedEncoder(with_tokenizer(tmp_path), modality="text", pooling=("eot",))
    tokens = encoder.prepare(" ".join(f"w{i}" for i in range(10, 60)))
    assert tokens.tolist() == [1, *range(10, 24), 119]
    assert tokens.dtype == np.int32
    assert "cut to 16 tokens" in encoder.preprocessing


def test_what_is_missing_for_texts_is_named(tmp_path, monkeypatch):
    clip = small(tmp_path, "clip")
    with pytest.raises(FileNotFoundError, match=r"tokenizer.json does not exist"):
        PretrainedEncoder(clip, modality="text", pooling=("eot",))
    (tmp_path / "clip" / "tokenizer.json").write_text("{}")
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "tokenizers":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'platojax\[hf\]'"):
        PretrainedEncoder(clip, modality="text", pooling=("eot",))


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("dinov2", dict(modality="text", pooling=("eot",)), "dinov2, which embeds no texts"),
        ("dinov2", dict(pooling=("embeds",)), "dinov2, which embeds no texts"),
        ("dinov2", dict(modality="video"), "modality 'video' is neither"),
        ("dinov2", dict(pooling=("eot",)), r"pooling \('eot',\) does not suit images"),
        ("dinov2", dict(pooling=()), r"pooling \(\) does not suit images"),
        ("dinov2", dict(pooling=("cls", "cls")), "each once"),
        ("clip", dict(pooling=("cls", "embeds")), "extract them alone"),
        ("dinov2", dict(batch_size=0), "batch_size 0 must be at least 1"),
    ],
)
def test_what_the_model_cannot_do_is_refused(name, fields, message):
    with pytest.raises(ValueError, match=message):
        PretrainedEncoder(load_pretrained(GOLDEN / name), **fields)


def test_observations_of_another_modality_are_refused():
    encoder = PretrainedEncoder(load_pretrained(GOLDEN / "dinov2"))
    with pytest.raises(TypeError, match="encoder of images takes Image, not str"):
        encoder.prepare("a cat")


def test_the_untrained_control_gives_other_features(tmp_path):
    trained = small(tmp_path, "dinov3")
    control = PretrainedEncoder(reinitialised(trained, 3), batch_size=2)
    encoder = PretrainedEncoder(trained, batch_size=2)
    batch = [encoder.prepare(picture) for picture in pictures(2)]
    assert control.name == "dinov3, untrained 3"
    assert control.layers == encoder.layers
    assert control.preprocessing == encoder.preprocessing
    assert np.abs(control.encode(batch) - encoder.encode(batch)).max() > 0.1


def test_another_architecture_of_the_same_weights_has_another_hash(tmp_path):
    model = small(tmp_path, "dinov2")
    path = tmp_path / "dinov2" / "config.json"
    for field, value in (("num_attention_heads", 6), ("layer_norm_eps", 1e-3)):
        other = tmp_path / field
        shutil.copytree(path.parent, other)
        config = json.loads(path.read_text())
        assert config[field] != value
        (other / "config.json").write_text(json.dumps(config | {field: value}))
        assert load_pretrained(other).weights_hash != model.weights_hash


@pytest.mark.slow
def test_8_devices_equal_one(tmp_path):
    small(tmp_path, "dinov3")
    outputs = {}
    for devices in (1, 8):
        file = tmp_path / f"{devices}.npy"
        printed = run_case("frozen", str(tmp_path / "dinov3"), str(file), devices=devices)
        assert f"a batch of 16 on {devices} devices" in printed or devices == 1
        outputs[devices] = np.load(file)
    np.testing.assert_allclose(outputs[8], outputs[1], atol=1e-5)
