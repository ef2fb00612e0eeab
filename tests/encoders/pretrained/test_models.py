"""The encoders' numbers: against recorded ones, transformers, and each other's layouts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from platojax.encoders.pretrained import load_pretrained, reinitialised
from platojax.encoders.pretrained.model import text_tower
from tests.encoders.pretrained import folders
from tests.encoders.pretrained.folders import GOLDEN, IMAGE_MODELS

KEYS = ("hidden_states", "last_hidden_state", "pooler_output")


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_features_equal_the_originals_at_two_resolutions(name):
    model, want = load_pretrained(GOLDEN / name), folders.expected(name)
    for suffix in ("", "_other"):
        got = model.features(want["pixel_values" + suffix])
        for key in KEYS:
            np.testing.assert_allclose(got[key], want[key + suffix], atol=1e-5, err_msg=key)


def test_clip_equals_the_original():
    model, want = load_pretrained(GOLDEN / "clip"), folders.expected("clip")
    pixels, tokens = want["pixel_values"], (want["input_ids"], want["attention_mask"])
    states = model.features(pixels)["hidden_states"]
    np.testing.assert_allclose(states, want["image_hidden_states"], atol=1e-5)
    np.testing.assert_allclose(model.image_embeds(pixels), want["image_embeds"], atol=1e-5)
    np.testing.assert_allclose(model.text_embeds(*tokens), want["text_embeds"], atol=1e-5)
    text = text_tower(model.config, model.dtype, model.params, *map(jnp.asarray, tokens))
    assert len(text["hidden_states"]) == 3
    np.testing.assert_allclose(text["hidden_states"], want["text_hidden_states"], atol=1e-5)


def test_features_may_be_called_inside_jit():
    model, pixels = load_pretrained(GOLDEN / "dinov2"), folders.expected("dinov2")["pixel_values"]
    inside = jax.jit(lambda x: model.features(x)["pooler_output"])(pixels)
    np.testing.assert_allclose(inside, model.features(pixels)["pooler_output"], atol=1e-6)


@pytest.mark.parametrize("name", ["dinov2", "dinov2_registers", "dinov2_swiglu"])
def test_names_of_older_files_give_the_same(name, tmp_path):
    weights = folders.older_names(folders.tensors(name))
    assert any("attention.attention.query" in key for key in weights)
    model, want = load_pretrained(GOLDEN / name), folders.expected(name)["pixel_values"]
    older = load_pretrained(folders.save(tmp_path / "m", folders.config(name), weights))
    jax.tree.map(np.testing.assert_array_equal, older.params, model.params)
    assert older.features(want)["pooler_output"].shape == (2, 48)


def test_names_of_published_dinov3_files_give_the_same(tmp_path):
    weights = {k.removeprefix("model."): x for k, x in folders.tensors("dinov3").items()}
    older = load_pretrained(folders.save(tmp_path / "m", folders.config("dinov3"), weights))
    jax.tree.map(
        np.testing.assert_array_equal, older.params, load_pretrained(GOLDEN / "dinov3").params
    )


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("name", ["dinov2", "dinov2_registers", "dinov2_swiglu"])
def test_official_files_equal_hugging_face_folders(name, chunked, tmp_path):
    torch = pytest.importorskip("torch")
    values, weights = folders.wide_dinov2(name)
    state = folders.official(weights)
    if chunked:
        state = {
            k.replace("blocks.", "blocks.0." if "blocks.0" in k else "blocks.1."): x
            for k, x in state.items()
        }
    file = tmp_path / "dinov2_tiny.pth"
    torch.save({key: torch.from_numpy(x) for key, x in state.items()}, file)
    got = load_pretrained(file)
    want = load_pretrained(folders.save(tmp_path / "folder", values, weights))
    assert got.config.vision.num_heads == 2
    assert got.name == "dinov2_tiny"
    rng = np.random.default_rng(0)
    # Without registers, the two interpolate positions by different rules.
    sizes = [(28, 28), (42, 56)] if name == "dinov2_registers" else [(28, 28)]
    for size in sizes:
        pixels = rng.standard_normal((2, 3, *size), np.float32)
        for key in KEYS:
            np.testing.assert_array_equal(got.features(pixels)[key], want.features(pixels)[key])
    if name == "dinov2":
        pixels = rng.standard_normal((2, 3, 42, 56), np.float32)
        distance = got.features(pixels)["hidden_states"] - want.features(pixels)["hidden_states"]
        assert 1e-3 < np.abs(distance[0]).max() < 0.1


@pytest.mark.parametrize("name", [*IMAGE_MODELS, "clip"])
def test_bfloat16_is_close(name):
    pixels = folders.expected(name)["pixel_values"]
    full = load_pretrained(GOLDEN / name).features(pixels)
    half = load_pretrained(GOLDEN / name, dtype="bfloat16").features(pixels)
    for key in KEYS:
        assert half[key].dtype == np.float32
        error = np.linalg.norm(half[key] - full[key]) / np.linalg.norm(full[key])
        assert 1e-5 < error < 0.03, (key, error)


def test_float32_multiplies_at_the_highest_precision_wherever_it_runs():
    for dtype in ("float32", "bfloat16"):
        model = load_pretrained(GOLDEN / "dinov2", dtype=dtype)
        pixels = jax.ShapeDtypeStruct((1, 3, 56, 56), np.float32)
        program = jax.jit(lambda x, features=model.features: features(x)).lower(pixels).as_text()
        products = [
            line for line in program.splitlines() if "dot_general" in line or "convolution(" in line
        ]
        assert len(products) >= 8 * 3 + 1
        assert {"HIGHEST" in line for line in products} == {dtype == "float32"}


def test_wrong_shapes_are_refused():
    dino, clip = load_pretrained(GOLDEN / "dinov2"), load_pretrained(GOLDEN / "clip")
    with pytest.raises(ValueError, match=r"57 x 56 pixels are not a whole number of patches of 14"):
        dino.features(np.zeros((1, 3, 57, 56)))
    with pytest.raises(ValueError, match=r"shape \[1, 4, 56, 56\], but must be \[B, 3, H, W\]"):
        dino.features(np.zeros((1, 4, 56, 56)))
    with pytest.raises(ValueError, match=r"shape \[3, 56, 56\]"):
        dino.features(np.zeros((3, 56, 56)))
    with pytest.raises(ValueError, match=r"80 x 64 pixels do not fit this CLIP.* 64 x 64"):
        clip.image_embeds(np.zeros((1, 3, 80, 64)))
    with pytest.raises(ValueError, match=r"17 tokens, but this CLIP has positions for 16"):
        clip.text_embeds(np.ones((1, 17), int), np.ones((1, 17), int))
    with pytest.raises(ValueError, match=r"\[1, 4\] and attention_mask \[1, 5\]"):
        clip.text_embeds(np.ones((1, 4), int), np.ones((1, 5), int))
    with pytest.raises(ValueError, match="dinov2 is dinov2, which embeds no texts"):
        dino.image_embeds(np.zeros((1, 3, 56, 56)))


def test_reinitialised_keeps_the_architecture_and_forgets_the_weights():
    for name in (*IMAGE_MODELS, "clip"):
        trained = load_pretrained(GOLDEN / name)
        one, same, other = (reinitialised(trained, seed) for seed in (0, 0, 1))
        assert jax.tree.map(np.shape, one.params) == jax.tree.map(np.shape, trained.params)
        assert one.weights_hash == same.weights_hash
        assert len({m.weights_hash for m in (trained, one, other)}) == 3
        block = one.params["vision"]["transformer"]["block_0"]
        for layer in ("query", "mlp_out"):
            assert not np.any(block[layer]["bias"])
        np.testing.assert_array_equal(block["norm_mlp"]["scale"], 1)
        if name != "clip":
            np.testing.assert_array_equal(block["scale_mlp"], np.float32(0.7))
            assert np.std(block["query"]["kernel"]) == pytest.approx(0.02, rel=0.1)
        else:
            # 48 ** -0.5 for attention's output; each branch of 2 blocks adds a quarter of that
            assert np.std(block["out"]["kernel"]) == pytest.approx(48**-0.5, rel=0.1)
            assert np.std(block["query"]["kernel"]) == pytest.approx(48**-0.5 / 2, rel=0.1)
        pixels = folders.expected(name)["pixel_values"]
        assert np.all(np.isfinite(one.features(pixels)["hidden_states"]))


def randomised(torch, model):
    """A transformers model with random biases and norms too, so that none is a no-op."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


DINO = dict(hidden_size=40, num_hidden_layers=5, num_attention_heads=5, layerscale_value=0.3)
CASES = {
    "dinov2": ("Dinov2", DINO | dict(image_size=70, patch_size=14, mlp_ratio=3), (42, 98)),
    "dinov2 without qkv bias": (
        "Dinov2",
        DINO | dict(image_size=32, patch_size=8, qkv_bias=False, use_swiglu_ffn=True),
        (16, 64),
    ),
    "registers": (
        "Dinov2WithRegisters",
        DINO | dict(image_size=80, patch_size=16, num_register_tokens=2),
        (48, 112),
    ),
    "one register": (
        "Dinov2WithRegisters",
        DINO | dict(image_size=32, patch_size=16, num_register_tokens=1, use_swiglu_ffn=True),
        (32, 32),
    ),
    "dinov3": (
        "DINOv3ViT",
        DINO
        | dict(image_size=32, patch_size=8, num_register_tokens=3, use_gated_mlp=True)
        | dict(hidden_act="silu", intermediate_size=56, rope_theta=50.0),
        (24, 56),
    ),
    "dinov3 with other biases": (
        "DINOv3ViT",
        DINO
        | dict(image_size=32, patch_size=8, num_register_tokens=0, intermediate_size=56)
        | dict(key_bias=True, query_bias=False, value_bias=False, proj_bias=False, mlp_bias=False),
        (32, 16),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_random_models_equal_transformers(case, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    name, values, size = CASES[case]
    config = getattr(transformers, f"{name}Config")(**values)
    torch.manual_seed(0)
    theirs = randomised(torch, getattr(transformers, f"{name}Model")(config))
    theirs.save_pretrained(tmp_path)
    pixels = torch.randn(2, 3, *size)
    with torch.no_grad():
        want = theirs(pixels, output_hidden_states=True)
    got = load_pretrained(tmp_path).features(pixels.numpy())
    assert len(got["hidden_states"]) == 6
    for state, theirs_state in zip(got["hidden_states"], want.hidden_states, strict=True):
        np.testing.assert_allclose(state, theirs_state.numpy(), atol=2e-5)
    np.testing.assert_allclose(got["last_hidden_state"], want.last_hidden_state, atol=2e-5)
    np.testing.assert_allclose(got["pooler_output"], want.pooler_output, atol=2e-5)


@pytest.mark.parametrize("eos", [2, 7])
def test_random_clip_equals_transformers(eos, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    text = dict(vocab_size=30, hidden_size=24, intermediate_size=40, num_hidden_layers=3)
    text |= dict(num_attention_heads=3, max_position_embeddings=9, eos_token_id=eos)
    vision = dict(hidden_size=40, intermediate_size=56, num_hidden_layers=3, image_size=24)
    vision |= dict(num_attention_heads=5, patch_size=8, hidden_act="gelu")
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=12)
    torch.manual_seed(0)
    theirs = randomised(torch, transformers.CLIPModel(config))
    theirs.save_pretrained(tmp_path)
    # The largest id stands elsewhere than the first 7, and padding repeats 7.
    ids = torch.tensor([[1, 29, 5, 7, 7, 7, 7], [1, 8, 9, 28, 3, 7, 7]])
    mask = torch.tensor([[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 0]])
    pixels = torch.randn(2, 3, 24, 24)
    with torch.no_grad():
        images = theirs.get_image_features(pixels).pooler_output
        texts = theirs.get_text_features(ids, mask).pooler_output
        vision_output = theirs.vision_model(pixels, output_hidden_states=True)
    ours = load_pretrained(tmp_path)
    np.testing.assert_allclose(ours.image_embeds(pixels.numpy()), images, atol=2e-5)
    np.testing.assert_allclose(ours.text_embeds(ids.numpy(), mask.numpy()), texts, atol=2e-5)
    got = ours.features(pixels.numpy())
    for key in ("last_hidden_state", "pooler_output"):
        np.testing.assert_allclose(got[key], vision_output[key], atol=2e-5)
    states = torch.stack(vision_output.hidden_states)
    np.testing.assert_allclose(got["hidden_states"], states, atol=2e-5)
