"""Loading pretrained encoders, and what is loaded."""

import contextlib
import dataclasses
import functools
import pathlib
from typing import TypedDict, cast

import jax
import jax.numpy as jnp
import numpy as np

from platojax.encoders.preprocessing import ImagePreprocessing
from platojax.encoders.pretrained.clip import TextTransformer
from platojax.encoders.pretrained.config import ModelConfig, TextConfig, infer_config, read_config
from platojax.encoders.pretrained.names import OFFICIAL_DINOV2, hugging_face_layout
from platojax.encoders.pretrained.preprocessing import default_preprocessing, read_preprocessing
from platojax.encoders.pretrained.vit import TowerOutput, VisionTransformer
from platojax.encoders.pretrained.weights import (
    Params,
    convert,
    read_safetensors,
    read_torch,
    weight_files,
)
from platojax.hashing import hash_files, hash_items, hash_tree

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


class Features(TypedDict):
    """What `Pretrained.features` returns."""

    hidden_states: jax.Array
    last_hidden_state: jax.Array
    pooler_output: jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class Pretrained:
    """A pretrained encoder: an architecture, its parameters and what belongs to them.

    Attributes:
      name: of the folder, or of the file without its ending.
      folder: where it was loaded from.
      config: the architecture.
      params: a nested dict of float32 arrays: "vision" and, of CLIP, "text".
      dtype: of the computation, "float32" or "bfloat16".
      preprocessing: of images.
      weights_hash: SHA-256 (hexadecimal) of the architecture and the weights.
    """

    name: str
    folder: pathlib.Path
    config: ModelConfig
    params: Params
    dtype: str
    preprocessing: ImagePreprocessing
    weights_hash: str

    def features(self, pixel_values: jax.Array | np.ndarray) -> Features:
        """Hidden states of images, as transformers' models return them.

        The first of `hidden_states` enters the first block. `last_hidden_state` has passed the last
        layer norm, but not in CLIP, where `pooler_output` alone has.

        Args:
          pixel_values: `[B, 3, H, W]` normalised, H and W multiples of the patch size; CLIP takes
            its own size alone.

        Returns:
          `hidden_states` `[L + 1, B, T, D]`, `last_hidden_state` `[B, T, D]` and `pooler_output`
          `[B, D]`, float32. Tokens are the class token, registers, and patches row by row.

        Raises:
          ValueError: if `pixel_values` has another shape.
        """
        return _features(self.config, self.dtype, self.params, jnp.asarray(pixel_values))

    def image_embeds(self, pixel_values: jax.Array | np.ndarray) -> jax.Array:
        """CLIP's embeddings of images, not normalised: `[B, 3, H, W]` -> `[B, P]` float32.

        Raises:
          ValueError: if this is not CLIP, or `pixel_values` has another shape.
        """
        require_clip(self)
        return _image_embeds(self.config, self.dtype, self.params, jnp.asarray(pixel_values))

    def text_embeds(
        self, input_ids: jax.Array | np.ndarray, attention_mask: jax.Array | np.ndarray
    ) -> jax.Array:
        """CLIP's embeddings of texts, not normalised.

        Args:
          input_ids: `[B, T]` token ids, each row with an end-of-text token.
          attention_mask: `[B, T]`, 1 or True on tokens and 0 or False on padding.

        Returns:
          `[B, P]` float32.

        Raises:
          ValueError: if this is not CLIP, or the shapes are wrong.
        """
        require_clip(self)
        ids, mask = jnp.asarray(input_ids), jnp.asarray(attention_mask)
        return _text_embeds(self.config, self.dtype, self.params, ids, mask)


def load_pretrained(path: str | pathlib.Path, *, dtype: str = "float32") -> Pretrained:
    """Loads DINOv2, DINOv3 or CLIP.

    Args:
      path: a Hugging Face folder (`config.json` beside `model.safetensors`, whole or sharded) of
        model_type dinov2, dinov2_with_registers, dinov3_vit or clip; or an official DINOv2 file
        (`.pth`), which needs PyTorch.
      dtype: of the computation: "float32", exact also on TPUs, or "bfloat16".

    Raises:
      FileNotFoundError: if a file is missing.
      ImportError: if a `.pth` file is given and PyTorch is not installed.
      ValueError: if a file is broken, the architecture is unknown, or weights and architecture
        differ; this lists every missing, unmapped and mis-shaped tensor.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not supported; choose {' or '.join(DTYPES)}.")
    path = pathlib.Path(path)
    if not path.exists() or path.suffix == ".safetensors":
        why = "is not enough" if path.exists() else "does not exist"
        raise FileNotFoundError(
            f"{path} {why}; give the folder of a Hugging Face model, with config.json and "
            "model.safetensors, or an official DINOv2 .pth file."
        )
    if path.is_file():
        tensors, files, layout = read_torch(path), [path], OFFICIAL_DINOV2
        config = infer_config(path, tensors)
        preprocessing = default_preprocessing(config.vision)
    else:
        config = read_config(path / "config.json")
        preprocessing = read_preprocessing(path, config.vision)
        files, layout = weight_files(path), hugging_face_layout(config)
        tensors = read_safetensors(files)
    return Pretrained(
        name=path.stem if path.is_file() else path.resolve().name,
        folder=path.parent if path.is_file() else path,
        config=config,
        params=convert(tensors, parameter_shapes(config), layout, path),
        dtype=dtype,
        preprocessing=preprocessing,
        weights_hash=_hash(config, hash_files(files)),
    )


def reinitialised(model: Pretrained, seed: int) -> Pretrained:
    """The same architecture with random weights: the untrained control of an evaluation.

    Weights are drawn as transformers initialises these models: normal with deviation 0.02 (the
    truncation is at 100 deviations), in CLIP as its section 2.5 scales them (arXiv 2103.00020);
    biases zero, norms one, LayerScale as configured.

    Args:
      model: the trained one.
      seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.asarray(
            _initial(model.config, tuple(entry.key for entry in path), leaf.shape, rng)
        ),
        parameter_shapes(model.config),
    )
    return dataclasses.replace(
        model,
        name=f"{model.name}, untrained {seed}",
        params=params,
        weights_hash=_hash(model.config, hash_tree(params)),
    )


def _hash(config: ModelConfig, weights: str) -> str:
    # The same weights are another encoder with other heads, epsilons or rotary positions.
    return hash_items([repr(config), weights])


def _initial(
    config: ModelConfig, path: tuple[str, ...], shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray:
    tower = config.text if path[0] == "text" and config.text else config.vision
    module, leaf = path[-2:]
    constants = {"bias": 0.0, "scale": 1.0}
    constants |= dict.fromkeys(("scale_attention", "scale_mlp"), tower.style.layer_scale or 0.0)
    if config.vision.family == "dinov2":
        constants["registers"] = 0.0
    if leaf in constants:
        return np.full(shape, constants[leaf], np.float32)
    deviation = 0.02
    if config.text is not None:
        outer, inner = tower.width**-0.5, (2 * tower.width * tower.depth) ** -0.5
        clip = dict.fromkeys(("query", "key", "value", "mlp_out"), inner)
        clip |= {"out": outer, "projection": outer, "mlp_in": (2 * tower.width) ** -0.5}
        deviation = clip.get(module, outer if leaf == "cls" else deviation)
    return np.float32(deviation) * rng.standard_normal(shape, np.float32)


def require_clip(model: Pretrained) -> TextConfig:
    """The text tower's config, of a model that has one.

    Raises:
      ValueError: if the model has no joint space of images and texts.
    """
    if model.config.text is None:
        raise ValueError(
            f"{model.name} is {model.config.vision.family}, which embeds no texts and has no joint "
            "space; use features, or a CLIP."
        )
    return model.config.text


def parameter_shapes(config: ModelConfig) -> Params:
    """The tree of parameters' shapes."""
    key, side = jax.random.key(0), config.vision.image_size
    pixels = jax.ShapeDtypeStruct((1, 3, side, side), jnp.float32)
    shapes = jax.eval_shape(VisionTransformer(config.vision).init, key, pixels)["params"]
    towers = {"vision": shapes}
    if config.text is not None:
        tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
        shapes = jax.eval_shape(TextTransformer(config.text).init, key, tokens, tokens)["params"]
        towers["text"] = shapes
    return towers


def image_tower(
    config: ModelConfig, dtype: str, params: Params, pixel_values: jax.Array
) -> TowerOutput:
    """The image tower as a pure function of its parameters and `[B, 3, H, W]` images."""
    tower = VisionTransformer(config.vision, DTYPES[dtype])
    with _precision(dtype):
        return cast(TowerOutput, tower.apply({"params": params["vision"]}, pixel_values))


def text_tower(
    config: ModelConfig,
    dtype: str,
    params: Params,
    input_ids: jax.Array,
    attention_mask: jax.Array,
) -> TowerOutput:
    """CLIP's text tower as a pure function of its parameters and `[B, T]` tokens."""
    assert config.text is not None
    tower = TextTransformer(config.text, DTYPES[dtype])
    with _precision(dtype):
        output = tower.apply({"params": params["text"]}, input_ids, attention_mask)
    return cast(TowerOutput, output)


def _precision(dtype: str) -> contextlib.AbstractContextManager[None]:
    # A TPU multiplies float32 matrices in bfloat16 unless told otherwise, and that changes which
    # items are nearest neighbours.
    if dtype == "float32":
        return jax.default_matmul_precision("highest")
    return contextlib.nullcontext()


@functools.partial(jax.jit, static_argnums=(0, 1))
def _features(config: ModelConfig, dtype: str, params: Params, pixel_values: jax.Array) -> Features:
    output = image_tower(config, dtype, params, pixel_values)
    states = jnp.stack(output["hidden_states"]).astype(jnp.float32)
    clip = config.vision.family == "clip"
    last = states[-1] if clip else output["normed"].astype(jnp.float32)
    return Features(
        hidden_states=states,
        last_hidden_state=last,
        pooler_output=output["pooler_output"].astype(jnp.float32),
    )


@functools.partial(jax.jit, static_argnums=(0, 1))
def _image_embeds(
    config: ModelConfig, dtype: str, params: Params, pixel_values: jax.Array
) -> jax.Array:
    return image_tower(config, dtype, params, pixel_values)["embeds"].astype(jnp.float32)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _text_embeds(
    config: ModelConfig,
    dtype: str,
    params: Params,
    input_ids: jax.Array,
    attention_mask: jax.Array,
) -> jax.Array:
    output = text_tower(config, dtype, params, input_ids, attention_mask)
    return output["embeds"].astype(jnp.float32)
