"""Which files load, and what is said of those that do not."""

import builtins
import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from platojax.encoders.pretrained import load_pretrained
from tests.encoders.pretrained import folders
from tests.encoders.pretrained.folders import GOLDEN


@pytest.fixture
def folder(tmp_path):
    """A copy of the tiny DINOv2 that a test may spoil."""
    return folders.save(tmp_path / "tiny", folders.config("dinov2"), folders.tensors("dinov2"))


def assert_same_params(one, two):
    jax.tree.map(np.testing.assert_array_equal, one.params, two.params)


def test_parameters_are_a_plain_dict_of_float32():
    model = load_pretrained(str(GOLDEN / "clip"))
    assert type(model.params) is dict
    assert set(model.params) == {"vision", "text"}
    assert {leaf.dtype for leaf in jax.tree.leaves(model.params)} == {jnp.dtype("float32")}
    assert model.name == "clip"
    assert model.config.text.projection == model.config.vision.projection == 24


def test_shards_equal_one_file(folder):
    weights = folders.tensors("dinov2")
    names = sorted(weights)
    (folder / "model.safetensors").unlink()
    index = {}
    for shard, part in enumerate((names[:20], names[20:])):
        file = f"model-{shard}.safetensors"
        save_file({name: weights[name] for name in part}, folder / file)
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    sharded, whole = load_pretrained(folder), load_pretrained(GOLDEN / "dinov2")
    assert_same_params(sharded, whole)
    assert sharded.weights_hash != whole.weights_hash
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"index.json names .*: model-1.safetensors"):
        load_pretrained(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": [1]}))
    with pytest.raises(ValueError, match="weight_map must map tensors to files"):
        load_pretrained(folder)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_half_precision_files_are_widened(tmp_path, dtype):
    weights = {name: x.astype(dtype) for name, x in folders.tensors("clip").items()}
    half = load_pretrained(folders.save(tmp_path / "half", folders.config("clip"), weights))
    wide = {name: x.astype(np.float32) for name, x in weights.items()}
    full = load_pretrained(folders.save(tmp_path / "full", folders.config("clip"), wide))
    assert_same_params(half, full)
    want = folders.expected("clip")
    error = half.image_embeds(want["pixel_values"]) - want["image_embeds"]
    assert np.abs(error).max() < 0.1


def test_every_problem_of_the_weights_is_in_the_one_error(folder):
    weights = folders.tensors("dinov2")
    del weights["encoder.layer.1.norm1.weight"], weights["layernorm.bias"]
    weights["classifier.weight"] = np.zeros((2, 48), np.float32)
    weights["encoder.layer.3.norm1.weight"] = np.zeros(48, np.float32)
    weights["encoder.layer.0.mlp.fc1.weight"] = np.zeros((191, 48), np.float32)
    weights["embeddings.cls_token"] = np.zeros((1, 1, 47), np.float32)
    folders.save(folder, folders.config("dinov2"), weights)
    with pytest.raises(ValueError, match="tiny does not hold") as error:
        load_pretrained(folder)
    for problem in (
        "missing: encoder.layer.1.norm1.weight, layernorm.bias;",
        "not part of this architecture: classifier.weight, encoder.layer.3.norm1.weight;",
        "of another shape: embeddings.cls_token [1, 1, 47] instead of [48], "
        "encoder.layer.0.mlp.fc1.weight [191, 48] instead of [192, 48].",
    ):
        assert problem in str(error.value)


def test_tensors_of_the_same_number_of_values_but_another_shape_are_refused(folder):
    weights = folders.tensors("dinov2")
    name = "encoder.layer.0.mlp.fc1.weight"
    folders.save(folder, folders.config("dinov2"), weights | {name: weights[name].T})
    with pytest.raises(ValueError, match=r"fc1.weight \[48, 192\] instead of \[192, 48\]"):
        load_pretrained(folder)


def test_problems_of_fused_official_weights(tmp_path):
    torch = pytest.importorskip("torch")
    state = folders.official(folders.wide_dinov2("dinov2_swiglu")[1])
    state["blocks.0.attn.qkv.weight"] = state["blocks.0.attn.qkv.weight"][:-1]
    del state["blocks.1.mlp.w12.bias"]
    state["head.weight"] = np.zeros(3, np.float32)
    file = tmp_path / "tiny.pth"
    torch.save({name: torch.from_numpy(x.copy()) for name, x in state.items()}, file)
    with pytest.raises(ValueError, match=r"tiny.pth does not hold") as error:
        load_pretrained(file)
    for problem in ("head.weight", "blocks.0.attn.qkv(value).weight [127, 128] instead", "w12"):
        assert problem in str(error.value)


def test_official_files_that_are_something_else(tmp_path):
    torch = pytest.importorskip("torch")
    file = tmp_path / "other.pth"
    torch.save({"teacher": {"x": torch.zeros(2)}}, file)
    with pytest.raises(ValueError, match="does not hold tensors by name"):
        load_pretrained(file)
    torch.save({"x": torch.zeros(2)}, file)
    with pytest.raises(ValueError, match=r"patch_embed.proj.weight is missing"):
        load_pretrained(file)
    state = {
        name: torch.from_numpy(x) for name, x in folders.official(folders.tensors("dinov2")).items()
    }
    torch.save(state, file)
    with pytest.raises(ValueError, match="a width that is a multiple of 64"):
        load_pretrained(file)
    file.write_bytes(b"not a zip")
    with pytest.raises(ValueError, match=r"cannot be read by torch.load\(weights_only=True\)"):
        load_pretrained(file)


def test_an_official_file_without_torch_says_what_to_install(tmp_path, monkeypatch):
    file = tmp_path / "tiny.pth"
    file.write_bytes(b"")
    original = builtins.__import__

    def without_torch(name, *args, **kwargs):
        if name == "torch":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    with pytest.raises(ImportError, match="pip install torch"):
        load_pretrained(file)


def test_folders_that_are_not_a_models(tmp_path, folder):
    with pytest.raises(FileNotFoundError, match=r"nowhere does not exist; give the folder"):
        load_pretrained(tmp_path / "nowhere")
    with pytest.raises(
        FileNotFoundError, match=r"model.safetensors is not enough; give the folder"
    ):
        load_pretrained(folder / "model.safetensors")
    with pytest.raises(FileNotFoundError, match=r"config.json does not exist"):
        load_pretrained(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"neither model.safetensors nor"):
        load_pretrained(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json is not valid JSON"):
        load_pretrained(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"config.json holds a list, not a JSON object"):
        load_pretrained(folder)
    with pytest.raises(ValueError, match="dtype 'float64' is not supported; choose float32 or"):
        load_pretrained(folder, dtype="float64")


def test_truncated_weights(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(ValueError, match=r"model.safetensors is truncated or not .*download"):
        load_pretrained(folder)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("dinov2", {"model_type": "bert"}, "model_type 'bert' is not supported; .*dinov3_vit"),
        ("dinov2", {"num_channels": 4}, r"num_channels is 4, but must be 3 \(RGB\)"),
        ("dinov2", {"num_attention_heads": 5}, "num_attention_heads is 5, .* divisor of .* 48"),
        ("dinov2", {"hidden_size": "48"}, "hidden_size is '48', but must be an integer"),
        ("dinov2", {"hidden_act": "relu"}, "hidden_act is 'relu', but must be one of gelu"),
        ("dinov2", {"image_size": [56, 70]}, r"image_size is \[56, 70\], .*one positive integer"),
        ("dinov2", {"image_size": 57}, "image_size is 57, but must be a multiple of patch_size"),
        ("dinov2", {"qkv_bias": 1}, "qkv_bias is 1, but must be true or false"),
        ("dinov2", {"layer_norm_eps": -1}, "layer_norm_eps is -1, but must be a positive number"),
        ("dinov3", {"num_attention_heads": 8}, "num_attention_heads is 8, but must be such that"),
        ("clip", {"text_config": 3}, "text_config must be a JSON object"),
        ("clip", {"text_config": {"eos_token_id": [2]}}, r"text_config.eos_token_id is \[2\]"),
    ],
)
def test_configs_that_are_refused(tmp_path, name, change, message):
    (tmp_path / "config.json").write_text(json.dumps(folders.config(name) | change))
    with pytest.raises(ValueError, match=rf"config.json: {message}"):
        load_pretrained(tmp_path)


def test_fields_that_equal_transformers_defaults_may_be_left_out(tmp_path):
    values = {"model_type": "clip", "vision_config": {}, "vision_config_dict": {"patch_size": 16}}
    (tmp_path / "config.json").write_text(json.dumps(values))
    from platojax.encoders.pretrained.config import read_config

    config = read_config(tmp_path / "config.json")
    assert (config.vision.width, config.vision.patch_size, config.vision.projection) == (
        768,
        16,
        512,
    )
    assert (config.text.width, config.text.num_heads, config.text.eos_id) == (512, 8, 49407)
