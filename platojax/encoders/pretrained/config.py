"""The architecture of a pretrained encoder, from its `config.json` or its weights' shapes."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any, Literal, TypedDict

import numpy as np

from platojax.encoders.pretrained.positions import Interpolation
from platojax.encoders.transformer import ACTIVATIONS, BlockStyle

Family = Literal["dinov2", "dinov3", "clip"]


@dataclasses.dataclass(frozen=True)
class VisionConfig:
    """An image tower.

    Attributes:
      family: "dinov2" (learned positions that are interpolated), "dinov3" (rotary positions) or
        "clip" (learned positions of one size, a norm before the first block).
      image_size: side in pixels of the images that the learned positions are for.
      patch_size: side of a patch in pixels.
      width: D.
      depth: number of blocks.
      num_heads: attention heads.
      mlp_dim: hidden width of the MLPs.
      style: of the blocks.
      num_registers: register tokens.
      interpolation: of DINOv2's positions at another resolution.
      rope_theta: of DINOv3's rotary positions.
      projection: P, width of CLIP's joint space; None elsewhere.
    """

    family: Family
    image_size: int
    patch_size: int
    width: int
    depth: int
    num_heads: int
    mlp_dim: int
    style: BlockStyle
    num_registers: int = 0
    interpolation: Interpolation = "resize"
    rope_theta: float = 100.0
    projection: int | None = None

    @property
    def num_prefix(self) -> int:
        """Tokens before the patches: the class token and the registers."""
        return 1 + self.num_registers


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """CLIP's text tower; `eos_id` is the config's `eos_token_id`, the others as in VisionConfig."""

    vocab_size: int
    max_length: int
    width: int
    depth: int
    num_heads: int
    mlp_dim: int
    style: BlockStyle
    eos_id: int
    projection: int


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A model: its image tower and, of CLIP, its text tower."""

    vision: VisionConfig
    text: TextConfig | None = None


# Files written by transformers leave out what equals the defaults of its configuration classes.
_DINO = dict(num_channels=3, hidden_act="gelu", image_size=224, layerscale_value=1.0)
_DINOV2 = _DINO | dict(
    hidden_size=768,
    num_hidden_layers=12,
    num_attention_heads=12,
    mlp_ratio=4,
    layer_norm_eps=1e-6,
    patch_size=14,
    qkv_bias=True,
    use_swiglu_ffn=False,
)
_DEFAULTS: dict[str, dict[str, Any]] = {
    "dinov2": _DINOV2,
    "dinov2_with_registers": _DINOV2 | dict(patch_size=16, num_register_tokens=4),
    "dinov3_vit": _DINO
    | dict(
        hidden_size=384,
        intermediate_size=1536,
        num_hidden_layers=12,
        num_attention_heads=6,
        layer_norm_eps=1e-5,
        patch_size=16,
        rope_theta=100.0,
        query_bias=True,
        key_bias=False,
        value_bias=True,
        proj_bias=True,
        mlp_bias=True,
        use_gated_mlp=False,
        num_register_tokens=0,
    ),
}
MODEL_TYPES = (*_DEFAULTS, "clip")  # of config.json, that can be loaded

_CLIP_TOWER = dict(num_hidden_layers=12, hidden_act="quick_gelu", layer_norm_eps=1e-5)
_CLIP_VISION = _CLIP_TOWER | dict(
    num_channels=3,
    hidden_size=768,
    intermediate_size=3072,
    num_attention_heads=12,
    image_size=224,
    patch_size=32,
)
_CLIP_TEXT = _CLIP_TOWER | dict(
    vocab_size=49408,
    hidden_size=512,
    intermediate_size=2048,
    num_attention_heads=8,
    max_position_embeddings=77,
    eos_token_id=49407,
)


class _Shape(TypedDict):
    width: int
    depth: int
    num_heads: int


class _Sizes(TypedDict):
    image_size: int
    patch_size: int


class _Fields:
    """Typed and checked reading of a config's fields; errors name the file and the field."""

    def __init__(self, file: pathlib.Path, values: Mapping[str, Any], prefix: str = ""):
        self.file, self.values, self.prefix = file, values, prefix

    def refuse(self, name: str, wanted: str) -> ValueError:
        return ValueError(
            f"{self.file}: {self.prefix}{name} is {self.values.get(name)!r}, but must be {wanted}; "
            "use the config.json that was published with the weights."
        )

    def integer(self, name: str, least: int = 1, most: int = 2**20) -> int:
        value = self.values[name]
        if type(value) is not int or not least <= value <= most:
            raise self.refuse(name, f"an integer in {least}..{most}")
        return value

    def number(self, name: str, most: float = 1e6) -> float:
        value = self.values[name]
        if type(value) not in (int, float) or not 0 < value <= most:
            raise self.refuse(name, f"a positive number, at most {most:g}")
        return float(value)

    def boolean(self, name: str) -> bool:
        value = self.values[name]
        if type(value) is not bool:
            raise self.refuse(name, "true or false")
        return value

    def square(self, name: str) -> int:
        value = self.values[name]
        if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
            value = value[0]
        if type(value) is not int or value < 1:
            raise self.refuse(name, "one positive integer: the side of a square")
        return value

    def activation(self) -> str:
        if str(self.values["hidden_act"]) not in ACTIVATIONS:
            raise self.refuse("hidden_act", f"one of {', '.join(ACTIVATIONS)}")
        return self.values["hidden_act"]

    def shape(self) -> _Shape:
        width, heads = self.integer("hidden_size"), self.integer("num_attention_heads")
        if width % heads:
            raise self.refuse("num_attention_heads", f"a divisor of hidden_size {width}")
        return _Shape(
            width=width, depth=self.integer("num_hidden_layers", most=512), num_heads=heads
        )

    def sizes(self) -> _Sizes:
        if self.values["num_channels"] != 3:
            raise self.refuse("num_channels", "3 (RGB)")
        image, patch = self.square("image_size"), self.square("patch_size")
        if image % patch:
            raise self.refuse("image_size", f"a multiple of patch_size {patch}")
        return _Sizes(image_size=image, patch_size=patch)


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is not a JSON object.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} does not exist; download all files of the model, or give the folder that "
            "they are in."
        ) from None
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); download it again.") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds a {type(values).__name__}, not a JSON object.")
    return values


def read_config(file: pathlib.Path) -> ModelConfig:
    """Reads the architecture from a Hugging Face `config.json`.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: if it is not JSON, its `model_type` is unknown, or a field is out of range.
    """
    values = read_json(file)
    model_type = values.get("model_type")
    if model_type == "clip":
        return _clip(file, values)
    if model_type not in _DEFAULTS:
        raise ValueError(
            f"{file}: model_type {model_type!r} is not supported; choose a model of type "
            f"{', '.join(MODEL_TYPES)}."
        )
    fields = _Fields(file, _DEFAULTS[model_type] | values)
    return ModelConfig(_dinov3(fields) if model_type == "dinov3_vit" else _dinov2(fields))


def swiglu_dim(hidden: int) -> int:
    """Hidden width of DINOv2's SwiGLU: two thirds of the MLP's, rounded up to a multiple of 8."""
    return (int(hidden * 2 / 3) + 7) // 8 * 8


def _dinov2(fields: _Fields) -> VisionConfig:
    shape = fields.shape()
    gated = fields.boolean("use_swiglu_ffn")
    hidden = int(shape["width"] * fields.number("mlp_ratio", most=1024))
    if hidden < 1:
        raise fields.refuse("mlp_ratio", "such that the MLP has a width")
    registers = "num_register_tokens" in _DEFAULTS[fields.values["model_type"]]
    return VisionConfig(
        family="dinov2",
        **shape,
        **fields.sizes(),
        mlp_dim=swiglu_dim(hidden) if gated else hidden,
        style=BlockStyle(
            # SwiGLU has its own activation, whatever hidden_act says.
            activation="silu" if gated else fields.activation(),
            gated=gated,
            layer_scale=fields.number("layerscale_value"),
            epsilon=fields.number("layer_norm_eps", most=1.0),
            without_bias=() if fields.boolean("qkv_bias") else ("query", "key", "value"),
        ),
        num_registers=fields.integer("num_register_tokens", least=0) if registers else 0,
        interpolation="antialias" if registers else "resize",
    )


def _dinov3(fields: _Fields) -> VisionConfig:
    shape = fields.shape()
    if shape["width"] // shape["num_heads"] % 4:
        raise fields.refuse(
            "num_attention_heads", f"such that hidden_size {shape['width']} over it is 4, 8, ..."
        )
    layers = dict(query_bias="query", key_bias="key", value_bias="value", proj_bias="out")
    without = [layer for field, layer in layers.items() if not fields.boolean(field)]
    if not fields.boolean("mlp_bias"):
        without += ["mlp_in", "mlp_gate", "mlp_out"]
    return VisionConfig(
        family="dinov3",
        **shape,
        **fields.sizes(),
        mlp_dim=fields.integer("intermediate_size"),
        style=BlockStyle(
            activation=fields.activation(),
            gated=fields.boolean("use_gated_mlp"),
            layer_scale=fields.number("layerscale_value"),
            epsilon=fields.number("layer_norm_eps", most=1.0),
            without_bias=tuple(without),
        ),
        num_registers=fields.integer("num_register_tokens", least=0),
        rope_theta=fields.number("rope_theta"),
    )


def _clip(file: pathlib.Path, values: Mapping[str, Any]) -> ModelConfig:
    def tower(name: str, defaults: dict[str, Any]) -> _Fields:
        # Old files repeat a tower's fields under `*_config_dict`, which then counts.
        parts = [values.get(key) or {} for key in (f"{name}_config", f"{name}_config_dict")]
        if not all(isinstance(part, dict) for part in parts):
            raise ValueError(f"{file}: {name}_config must be a JSON object.")
        return _Fields(file, defaults | parts[0] | parts[1], f"{name}_config.")

    projection = _Fields(file, {"projection_dim": 512, **values}).integer("projection_dim")
    vision, text = tower("vision", _CLIP_VISION), tower("text", _CLIP_TEXT)

    def style(fields: _Fields) -> BlockStyle:
        return BlockStyle(fields.activation(), epsilon=fields.number("layer_norm_eps", most=1.0))

    return ModelConfig(
        VisionConfig(
            family="clip",
            **vision.shape(),
            **vision.sizes(),
            mlp_dim=vision.integer("intermediate_size"),
            style=style(vision),
            projection=projection,
        ),
        TextConfig(
            vocab_size=text.integer("vocab_size"),
            max_length=text.integer("max_position_embeddings"),
            **text.shape(),
            mlp_dim=text.integer("intermediate_size"),
            style=style(text),
            eos_id=text.integer("eos_token_id", least=0),
            projection=projection,
        ),
    )


def infer_config(file: pathlib.Path, tensors: Mapping[str, np.ndarray]) -> ModelConfig:
    """The architecture of official DINOv2 weights, from their names and shapes.

    Heads are 64 wide, as in every published DINOv2.

    Args:
      file: of the weights, for errors.
      tensors: from `read_torch`.

    Raises:
      ValueError: if these are not DINOv2's weights.
    """

    def shape(name: str, ndim: int) -> tuple[int, ...]:
        if name not in tensors or tensors[name].ndim != ndim:
            has = "missing" if name not in tensors else f"of shape {list(tensors[name].shape)}"
            raise ValueError(
                f"{file}: {name} is {has}; use a backbone's file of facebookresearch/dinov2, such "
                "as dinov2_vitb14_pretrain.pth."
            )
        return tensors[name].shape

    width, channels, patch_size, _ = shape("patch_embed.proj.weight", 4)
    positions = shape("pos_embed", 3)[1]
    side = round((positions - 1) ** 0.5)
    if width % 64 or channels != 3 or side**2 != positions - 1:
        raise ValueError(
            f"{file}: patch_embed.proj.weight {list(tensors['patch_embed.proj.weight'].shape)} and "
            f"pos_embed {list(tensors['pos_embed'].shape)} are not DINOv2's: a width that is a "
            "multiple of 64, 3 channels, one position for the class and a square for patches."
        )
    blocks = {name.split(".")[1] for name in tensors if name.startswith("blocks.")}
    gated = "blocks.0.mlp.w12.weight" in tensors
    mlp_dim = (
        shape("blocks.0.mlp.w3.weight", 2)[1] if gated else shape("blocks.0.mlp.fc1.weight", 2)[0]
    )
    registers = shape("register_tokens", 3)[1] if "register_tokens" in tensors else 0
    return ModelConfig(
        VisionConfig(
            family="dinov2",
            image_size=side * patch_size,
            patch_size=patch_size,
            width=width,
            depth=len(blocks),
            num_heads=width // 64,
            mlp_dim=mlp_dim,
            style=BlockStyle(
                activation="silu" if gated else "gelu",
                gated=gated,
                layer_scale=1.0,  # what the published models started from
            ),
            num_registers=registers,
            interpolation="antialias" if registers else "offset",
        )
    )
