"""Tiny models for the tests: folders in Hugging Face's layout, and files in the official one."""

import json
import pathlib
import re

import numpy as np
from safetensors.numpy import load_file, save_file

GOLDEN = pathlib.Path(__file__).parents[2] / "golden"
IMAGE_MODELS = ("dinov2", "dinov2_registers", "dinov2_swiglu", "dinov3")
OLD_NAMES = (
    ("attention.q_proj", "attention.attention.query"),
    ("attention.k_proj", "attention.attention.key"),
    ("attention.v_proj", "attention.attention.value"),
    ("attention.o_proj", "attention.output.dense"),
    ("mlp.down_proj", "mlp.weights_out"),
)


def tensors(name: str) -> dict[str, np.ndarray]:
    return load_file(GOLDEN / name / "model.safetensors")


def config(name: str) -> dict:
    return json.loads((GOLDEN / name / "config.json").read_text())


def expected(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / name / "expected.npz") as values:
        return dict(values)


def save(folder: pathlib.Path, values: dict, weights: dict[str, np.ndarray]) -> pathlib.Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values))
    save_file(
        {name: np.ascontiguousarray(x) for name, x in weights.items()},
        folder / "model.safetensors",
    )
    return folder


def fuse(weights: dict[str, np.ndarray], parts: tuple[str, ...], into: str) -> None:
    """Replaces tensors whose names differ in one part by their concatenation along the rows."""
    for first in [name for name in weights if parts[0] in name]:
        pieces = [weights.pop(first.replace(parts[0], part)) for part in parts]
        weights[first.replace(parts[0], into)] = np.concatenate(pieces)


def older_names(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """DINOv2 as transformers before 5 named it, and as the published files still do."""
    weights = dict(weights)
    fuse(weights, ("mlp.gate_proj", "mlp.up_proj"), "mlp.weights_in")
    for new, old in OLD_NAMES:
        weights = {name.replace(new, old): x for name, x in weights.items()}
    return weights


def official(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """DINOv2 from Hugging Face's layout in that of facebookresearch/dinov2."""
    weights = dict(weights)
    attention = ("attention.q_proj", "attention.k_proj", "attention.v_proj")
    fuse(weights, attention, "attn.qkv")
    fuse(weights, ("mlp.gate_proj", "mlp.up_proj"), "mlp.w12")
    renames = (
        (r"encoder\.layer\.", "blocks."),
        (r"attention\.o_proj", "attn.proj"),
        (r"layer_scale(\d)\.lambda1", r"ls\1.gamma"),
        (r"mlp\.down_proj", "mlp.w3"),
        (r"^layernorm", "norm"),
        (r"embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
        (r"embeddings\.position_embeddings", "pos_embed"),
        (r"embeddings\.", ""),
    )
    for pattern, replacement in renames:
        weights = {re.sub(pattern, replacement, name): x for name, x in weights.items()}
    return weights


def wide_dinov2(model: str) -> tuple[dict, dict[str, np.ndarray]]:
    """Config and random weights like those of a golden DINOv2, but with two heads of 64."""
    rng = np.random.default_rng(0)
    values = config(model) | {"hidden_size": 128, "num_attention_heads": 2, "image_size": 28}
    hidden = {48: 128, 144: 384, 192: 512, 128: 344}  # 344 = SwiGLU's width for 128

    def grow(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        if name == "embeddings.position_embeddings":
            return (1, 5, 128)
        return tuple(hidden.get(size, size) for size in shape)

    weights = {
        name: 0.1 * rng.standard_normal(grow(name, x.shape), np.float32)
        for name, x in tensors(model).items()
    }
    return values, weights
