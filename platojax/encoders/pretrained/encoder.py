"""Pretrained encoders as what is aligned with: one vector per layer of each image or text."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from PIL import Image

from platojax.encoders.frozen import Modality
from platojax.encoders.pretrained.clip import end_of_text, take_token
from platojax.encoders.pretrained.model import (
    Pretrained,
    image_tower,
    require_clip,
    text_tower,
)
from platojax.encoders.pretrained.vit import TowerOutput
from platojax.encoders.pretrained.weights import Params
from platojax.encoders.transformer import masked_mean
from platojax.hashing import hash_files

Pooling = Literal["cls", "eot", "mean", "embeds"]

_WORDS: dict[tuple[Modality, Pooling], str] = {
    ("image", "cls"): "class token",
    ("image", "mean"): "mean over patches",
    ("image", "embeds"): "projected class token",
    ("text", "eot"): "end-of-text token",
    ("text", "mean"): "mean over tokens",
    ("text", "embeds"): "projected end-of-text token",
}
_DEFAULT_POOLING: dict[Modality, tuple[Pooling, ...]] = {"image": ("cls",), "text": ("eot",)}


class PretrainedEncoder:
    """A `FrozenEncoder` (see `platojax.encoders.frozen`) of DINOv2, DINOv3 or CLIP.

    Layers are `block_0`, ..., and `norm`, the last of them after the last layer norm, followed by
    the name of the pooling where there are two; or `embeds` alone. Batches are split over the local
    devices, which hold the parameters whole.
    """

    modality: Modality
    layers: tuple[str, ...]
    libraries = ("jax", "flax")

    def __init__(
        self,
        model: Pretrained,
        *,
        modality: Modality = "image",
        pooling: Sequence[Pooling] | None = None,
        batch_size: int = 64,
    ) -> None:
        """Places the parameters on the devices.

        Args:
          model: from `load_pretrained` or `reinitialised`.
          modality: "image", or "text" of CLIP.
          pooling: how tokens become one vector. Images: "cls" (class token, the default), "mean"
            (over patches) or both. Texts: "eot" (end-of-text token, the default), "mean" (over
            valid tokens) or both. CLIP also: "embeds" alone, its joint space, not normalised.
          batch_size: of the computation, rounded up to a multiple of the local devices.

        Raises:
          FileNotFoundError: if texts are to be encoded and there is no `tokenizer.json`.
          ImportError: if texts are to be encoded and `tokenizers` is not installed.
          ValueError: if the model does not have this modality or pooling.
        """
        pooling = _DEFAULT_POOLING.get(modality, ()) if pooling is None else tuple(pooling)
        _check(model, modality, pooling, batch_size)
        side: _Images | _Texts = _Images(model) if modality == "image" else _Texts(model)
        devices = jax.local_devices()
        # Auto: jax's default, Explicit, asks how to shard the output of some operations.
        mesh = jax.make_mesh((len(devices),), ("data",), (AxisType.Auto,), devices=devices)
        self._spread = NamedSharding(mesh, PartitionSpec("data"))
        params = {side.tower: model.params[side.tower]}
        self._params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
        self._side = side

        def pooled(params: Params, *inputs: jax.Array) -> jax.Array:
            output = side.output(params, *inputs)
            if pooling == ("embeds",):
                return output["embeds"].astype(jnp.float32)[:, None]
            states = [*output["hidden_states"][1:], output["normed"]]
            vectors = [side.pool(state, one, *inputs) for state in states for one in pooling]
            return jnp.stack(vectors, axis=1).astype(jnp.float32)

        # Pools inside, so that the tokens of all layers are never held together.
        self._run = jax.jit(pooled, out_shardings=self._spread)
        self.name = model.name
        self.modality = modality
        self.weights_hash = model.weights_hash
        self.pooling = " and ".join(_WORDS[modality, one] for one in pooling)
        self.preprocessing = side.preprocessing
        self.dtype = model.dtype
        self.batch_size = -(-batch_size // len(devices)) * len(devices)
        names = [*(f"block_{i}" for i in range(side.config.depth)), "norm"]
        if pooling == ("embeds",):
            self.layers, self.width = pooling, side.config.projection or 0
        elif len(pooling) == 1:
            self.layers, self.width = tuple(names), side.config.width
        else:
            self.layers = tuple(f"{name} {one}" for name in names for one in pooling)
            self.width = side.config.width

    def prepare(self, observation: Any) -> np.ndarray:
        """An image -> `[H, W, 3]` uint8; a text -> `[T]` int32, cut but for its end-of-text token.

        Raises:
          TypeError: if the observation is not of the modality's type, `PIL.Image.Image` or `str`.
        """
        if not isinstance(observation, self._side.kind):
            raise TypeError(
                f"{self.name} as an encoder of {self.modality}s takes {self._side.kind.__name__}, "
                f"not {type(observation).__name__}."
            )
        return self._side.prepare(observation)

    def encode(self, batch: Sequence[np.ndarray]) -> np.ndarray:
        """Encodes 1 to `batch_size` prepared observations: `[B, L, D]` float32.

        Raises:
          ValueError: if there are none or too many.
        """
        if not 0 < len(batch) <= self.batch_size:
            raise ValueError(
                f"encode takes 1 to {self.batch_size} observations, not {len(batch)}; split them, "
                "or change batch_size."
            )
        # Always of one size, so that there is one compilation.
        inputs = jax.device_put(self._side.collate(batch, self.batch_size), self._spread)
        return np.asarray(self._run(self._params, *inputs))[: len(batch)]


class _Images:
    """What is particular to images."""

    tower, kind = "vision", Image.Image

    def __init__(self, model: Pretrained) -> None:
        self.model, self.config = model, model.config.vision
        self.preprocessing = model.preprocessing.describe()

    def prepare(self, image: Any) -> np.ndarray:
        return self.model.preprocessing(image)

    def collate(self, batch: Sequence[np.ndarray], size: int) -> tuple[np.ndarray, ...]:
        """`[size, H, W, 3]` uint8, black after the batch."""
        images = np.zeros((size, *self.model.preprocessing.size, 3), np.uint8)
        images[: len(batch)] = np.stack(batch)
        return (images,)

    def output(self, params: Params, images: jax.Array) -> TowerOutput:
        pixels = self.model.preprocessing.normalise(images)
        return image_tower(self.model.config, self.model.dtype, params, pixels)

    def pool(self, state: jax.Array, pooling: Pooling, images: jax.Array) -> jax.Array:
        """`[B, T, D]` -> `[B, D]`."""
        del images
        if pooling == "cls":
            return state[:, 0]
        return state[:, self.config.num_prefix :].astype(jnp.float32).mean(1)


class _Texts:
    """What is particular to texts."""

    tower, kind = "text", str

    def __init__(self, model: Pretrained) -> None:
        self.model, self.config = model, require_clip(model)
        file = model.folder / "tokenizer.json"
        self.prepare: Callable[[Any], np.ndarray] = _tokenizer(file, self.config.max_length)
        self.preprocessing = (
            f"tokenizer {hash_files([file])}; cut to {self.config.max_length} tokens"
        )

    def collate(self, batch: Sequence[np.ndarray], size: int) -> tuple[np.ndarray, ...]:
        """Token ids `[size, T]` int32 and which of them are valid, bool."""
        ids = np.zeros((size, self.config.max_length), np.int32)
        mask = np.zeros(ids.shape, bool)
        for row, tokens in enumerate(batch):
            ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, True
        return ids, mask

    def output(self, params: Params, ids: jax.Array, mask: jax.Array) -> TowerOutput:
        return text_tower(self.model.config, self.model.dtype, params, ids, mask)

    def pool(
        self, state: jax.Array, pooling: Pooling, ids: jax.Array, mask: jax.Array
    ) -> jax.Array:
        """`[B, T, D]` -> `[B, D]`."""
        if pooling == "eot":
            return take_token(state, end_of_text(ids, self.config.eos_id))
        return masked_mean(state, mask)


def _check(
    model: Pretrained, modality: Modality, pooling: tuple[Pooling, ...], batch_size: int
) -> None:
    if modality not in ("image", "text"):
        raise ValueError(f"modality {modality!r} is neither image nor text.")
    if modality == "text" or "embeds" in pooling:
        require_clip(model)
    allowed = [one for kind, one in _WORDS if kind == modality]
    repeated = len(set(pooling)) < len(pooling)
    if not pooling or repeated or not set(pooling) <= set(allowed):
        raise ValueError(
            f"pooling {pooling} does not suit {modality}s; choose from {', '.join(allowed)}, each "
            "once."
        )
    if "embeds" in pooling and len(pooling) > 1:
        raise ValueError(f"pooling {pooling}: embeds are of another width; extract them alone.")
    if batch_size < 1:
        raise ValueError(f"batch_size {batch_size} must be at least 1.")


def _tokenizer(file: pathlib.Path, max_length: int) -> Callable[[str], np.ndarray]:
    """The function from a text to at most `max_length` token ids, the end-of-text token last."""
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} does not exist; download tokenizer.json from where the weights came from."
        )
    try:
        import tokenizers
    except ImportError:
        raise ImportError(
            "CLIP's texts need the tokenizers package: `pip install 'platojax[hf]'`."
        ) from None
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises nothing more specific
        raise ValueError(f"{file} cannot be read ({error}); download it again.") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def tokenize(text: str) -> np.ndarray:
        ids = tokenizer.encode(text).ids
        if len(ids) > max_length:
            ids = [*ids[: max_length - 1], ids[-1]]
        return np.asarray(ids, np.int32)

    return tokenize
