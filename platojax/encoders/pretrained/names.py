"""What PyTorch calls each parameter, in the layouts that weights are published in."""

import dataclasses
import re
from collections.abc import Mapping

from platojax.encoders.pretrained.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where a parameter of ours is found among PyTorch's.

    Attributes:
      modules: name of a module or single parameter of ours -> its name in PyTorch. `block` and
        `{i}` stand for the block's number.
      renames: pairs of a regular expression and what replaces it, which bring other spellings to
        that of `modules`.
      fused: part of the (renamed) name of a tensor that stacks several in its rows -> what it
        becomes in the name of each.
      ignored: regular expression for tensors that the encoder does not need.
    """

    modules: Mapping[str, str]
    renames: tuple[tuple[str, str], ...] = ()
    fused: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    ignored: str = ""

    def split(self, name: str) -> list[str]:
        """The names, spelled as in `modules`, of the parameters that a tensor stacks: often one."""
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name)
        for part, names in self.fused.items():
            if part in name:
                return [name.replace(part, one) for one in names]
        return [name]

    def source(self, keys: tuple[str, ...]) -> str:
        """Name of the tensor that holds the parameter at `keys` of the tree."""
        path = "/".join(keys)
        block = re.search(r"block_(\d+)", path)
        path = re.sub(r"block_\d+", "block", path)
        suffix = ""
        if path not in self.modules:
            path, _, leaf = path.rpartition("/")
            suffix = ".bias" if leaf == "bias" else ".weight"
        return self.modules[path].format(i=block[1] if block else "") + suffix


def _tower(
    ours: str, theirs: str, modules: Mapping[str, str], block: str, in_block: Mapping[str, str]
) -> dict[str, str]:
    """A tower's table, from those of its modules outside and inside its blocks."""
    outside = {f"{ours}/{name}": theirs + source for name, source in modules.items()}
    inside = {
        f"{ours}/transformer/block/{name}": f"{theirs}{block}.{{i}}.{source}"
        for name, source in in_block.items()
    }
    return outside | inside


_DINO_BLOCK = {
    "norm_attention": "norm1",
    "query": "attention.q_proj",
    "key": "attention.k_proj",
    "value": "attention.v_proj",
    "out": "attention.o_proj",
    "scale_attention": "layer_scale1.lambda1",
    "norm_mlp": "norm2",
    "scale_mlp": "layer_scale2.lambda1",
}
_PLAIN = {"mlp_in": "mlp.fc1", "mlp_out": "mlp.fc2"}
_GATED = {"mlp_gate": "mlp.gate_proj", "mlp_in": "mlp.up_proj", "mlp_out": "mlp.down_proj"}


def _dinov2(gated: bool) -> Layout:
    return Layout(
        _tower(
            "vision",
            "",
            {
                "patches": "embeddings.patch_embeddings.projection",
                "cls": "embeddings.cls_token",
                "registers": "embeddings.register_tokens",
                "positions": "embeddings.position_embeddings",
                "transformer/norm": "layernorm",
            },
            "encoder.layer",
            _DINO_BLOCK | (_GATED if gated else _PLAIN),
        ),
        renames=(  # to the names of transformers 5.24 from those of before
            (r"attention\.attention\.query\b", "attention.q_proj"),
            (r"attention\.attention\.key\b", "attention.k_proj"),
            (r"attention\.attention\.value\b", "attention.v_proj"),
            (r"attention\.output\.dense\b", "attention.o_proj"),
            (r"mlp\.weights_out\b", "mlp.down_proj"),
        ),
        fused={"mlp.weights_in": ("mlp.gate_proj", "mlp.up_proj")},
        ignored=r"embeddings\.mask_token",
    )


def _dinov3() -> Layout:
    return Layout(
        _tower(
            "vision",
            "",
            {
                "patches": "embeddings.patch_embeddings",
                "cls": "embeddings.cls_token",
                "registers": "embeddings.register_tokens",
                "transformer/norm": "norm",
            },
            "model.layer",
            _DINO_BLOCK | _GATED,
        ),
        renames=((r"^layer\.", "model.layer."),),
        ignored=r"embeddings\.mask_token",
    )


def _clip() -> Layout:
    block = _PLAIN | {
        "norm_attention": "layer_norm1",
        "query": "self_attn.q_proj",
        "key": "self_attn.k_proj",
        "value": "self_attn.v_proj",
        "out": "self_attn.out_proj",
        "norm_mlp": "layer_norm2",
    }
    vision = {
        "patches": "embeddings.patch_embedding",
        "cls": "embeddings.class_embedding",
        "positions": "embeddings.position_embedding.weight",
        "norm_pre": "pre_layrnorm",
        "transformer/norm": "post_layernorm",
    }
    text = {
        "tokens": "embeddings.token_embedding",
        "positions": "embeddings.position_embedding.weight",
        "transformer/norm": "final_layer_norm",
    }
    projections = {
        "vision/projection": "visual_projection",
        "text/projection": "text_projection",
    }
    return Layout(
        _tower("vision", "vision_model.", vision, "encoder.layers", block)
        | _tower("text", "text_model.", text, "encoder.layers", block)
        | projections,
        ignored=r"logit_scale|(vision|text)_model\.embeddings\.position_ids",
    )


def hugging_face_layout(config: ModelConfig) -> Layout:
    """The layout of a Hugging Face folder."""
    if config.vision.family == "dinov2":
        return _dinov2(config.vision.style.gated)
    return _dinov3() if config.vision.family == "dinov3" else _clip()


OFFICIAL_DINOV2 = Layout(
    _tower(
        "vision",
        "",
        {
            "patches": "patch_embed.proj",
            "cls": "cls_token",
            "registers": "register_tokens",
            "positions": "pos_embed",
            "transformer/norm": "norm",
        },
        "blocks",
        {
            "norm_attention": "norm1",
            "query": "attn.qkv(query)",
            "key": "attn.qkv(key)",
            "value": "attn.qkv(value)",
            "out": "attn.proj",
            "scale_attention": "ls1.gamma",
            "norm_mlp": "norm2",
            "mlp_gate": "mlp.w12(gate)",
            "mlp_in": "mlp.fc1",
            "mlp_out": "mlp.fc2",
            "scale_mlp": "ls2.gamma",
        },
    ),
    renames=((r"\.mlp\.w3\.", ".mlp.fc2."),),
    fused={
        "attn.qkv": ("attn.qkv(query)", "attn.qkv(key)", "attn.qkv(value)"),
        "mlp.w12": ("mlp.w12(gate)", "mlp.fc1"),
    },
    ignored="mask_token",
)
