"""Frozen text and vision models of Hugging Face, run by PyTorch (`pip install 'platojax[hf]'`).

Every model that `transformers` itself knows (no code from the model's folder is run), from a folder
on disk. Layers are what transformers calls hidden states: `hidden_0` is the input of the first
block, `hidden_L` the output of the last. In most decoder-only language models `hidden_L` comes
after the final norm; in BERT and in vision transformers there is none in it.
"""

import abc
import contextlib
import importlib
import importlib.metadata
import importlib.util
import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image

from platojax.encoders.frozen import Modality
from platojax.hashing import hash_files, hash_items

if TYPE_CHECKING:
    import torch

Dtype = Literal["float32", "bfloat16"]

_POOLINGS: dict[Modality, dict[str, str]] = {
    "text": {
        "mean": "mean over valid tokens",
        "last": "last valid token",
        "first": "first token",
    },
    "image": {
        "cls": "class token",
        "mean": "mean over space, special tokens left out",
    },
}
_BATCH_SIZES: dict[Modality, int] = {"text": 16, "image": 32}
_TOWERS: dict[Modality, tuple[str, ...]] = {
    "text": ("text_model", "language_model"),
    "image": ("vision_model", "vision_tower", "visual"),
}
_TOKENIZER_PATTERNS = ("tokenizer*", "vocab*", "*.model", "*.codes")
_TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_LOCAL = {"local_files_only": True, "trust_remote_code": False}


class HuggingFaceEncoder(abc.ABC):
    """A model of transformers as a `FrozenEncoder`; `load_huggingface` makes it.

    Attributes:
      See `FrozenEncoder`.
    """

    modality: Modality
    libraries = ("torch", "transformers")

    def __init__(
        self,
        *,
        name: str,
        model: Any,
        weights_hash: str,
        preprocessing: str,
        pooling: tuple[str, ...],
        dtype: Dtype,
        batch_size: int,
    ):
        """Runs `model` once, to learn what layers it has."""
        self.name = name
        self.weights_hash = weights_hash
        self.preprocessing = preprocessing
        self.dtype = dtype
        self.batch_size = batch_size
        self._model = model
        self._poolings = pooling
        widths = [pooled.shape[-1] for pooled in self._pooled([self._example()])]
        self.width = widths[-1]
        self._kept = [at for at, width in enumerate(widths) if width == self.width]
        names = [
            f"hidden_{at}" if len(pooling) == 1 else f"hidden_{at} {how}"
            for at in range(len(widths) // len(pooling))
            for how in pooling
        ]
        self.layers = tuple(names[at] for at in self._kept)
        left_out = [name for at, name in enumerate(names) if at not in self._kept]
        self.pooling = " and ".join(_POOLINGS[self.modality][how] for how in pooling)
        if left_out:
            self.pooling += f"; left out, of another width: {', '.join(left_out)}"

    def encode(self, batch: Sequence[np.ndarray]) -> np.ndarray:
        """Encodes 1 to `batch_size` prepared observations: `[B, L, D]` float32."""
        import torch

        pooled = self._pooled(batch)
        return torch.stack([pooled[at].cpu() for at in self._kept], dim=1).numpy()

    @abc.abstractmethod
    def prepare(self, observation: Any) -> np.ndarray:
        """Turns one text or image into what `encode` takes."""

    @abc.abstractmethod
    def _example(self) -> np.ndarray:
        """A small observation, prepared."""

    @abc.abstractmethod
    def _inputs(self, batch: Sequence[np.ndarray]) -> dict[str, "torch.Tensor"]:
        """Arguments of the model for a batch."""

    @abc.abstractmethod
    def _pool(
        self, hidden: "torch.Tensor", how: str, inputs: dict[str, "torch.Tensor"]
    ) -> "torch.Tensor":
        """Pools the hidden states of a layer, float32, to `[B, D]`."""

    def _pooled(self, batch: Sequence[np.ndarray]) -> list["torch.Tensor"]:
        """Every layer and pooling of it, `[B, D]` float32 each, where the layer was computed."""
        import torch

        with torch.inference_mode():
            inputs = self._inputs(batch)
            hidden = self._model(**inputs, output_hidden_states=True, return_dict=True)
            if getattr(hidden, "hidden_states", None) is None:
                raise ValueError(
                    f"{self.name}: {type(self._model).__name__} does not give hidden states; "
                    "choose another model."
                )
            return [
                self._pool(layer.float(), how, inputs)
                for layer in hidden.hidden_states
                for how in self._poolings
            ]


class _TextEncoder(HuggingFaceEncoder):
    """A language model, or the encoder of a text-to-text model."""

    modality: Modality = "text"

    def __init__(
        self,
        *,
        tokenizer: Any,
        max_length: int,
        add_special_tokens: bool,
        model: Any,
        **shared: Any,
    ):
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._add_special_tokens = add_special_tokens
        self._vocab_size = model.get_input_embeddings().weight.shape[0]
        pad_id = getattr(model.config, "pad_token_id", None)
        # Any token will do, since it is masked, but RoBERTa counts positions by its own.
        self._pad_id = pad_id if pad_id is not None and 0 <= pad_id < self._vocab_size else 0
        # The first call sets up truncation, which threads must not do at once.
        self._tokenize("a")
        super().__init__(
            model=model,
            preprocessing=f"{type(tokenizer).__name__}, at most {max_length} tokens, special "
            f"tokens {'added' if add_special_tokens else 'not added'}",
            **shared,
        )

    def prepare(self, observation: str) -> np.ndarray:
        """Tokenises a text.

        Args:
          observation: any text.

        Returns:
          `[T]` int32, T from 1 to the limit; what is beyond it at the end is cut.

        Raises:
          ValueError: if there are no tokens, or one that the model does not know.
        """
        ids = self._tokenize(observation)
        if not ids:
            fix = "" if self._add_special_tokens else ", or pass add_special_tokens=True"
            raise ValueError(
                f"{self.name}: the text {observation!r} has no tokens; leave it out of the data"
                f"{fix}."
            )
        if max(ids) >= self._vocab_size:
            raise ValueError(
                f"{self.name}: the tokenizer gives the token {max(ids)} for {observation[:80]!r}, "
                f"but the model has {self._vocab_size}; put the model's own tokenizer into its "
                "folder."
            )
        return np.asarray(ids, np.int32)

    def _tokenize(self, text: str) -> list[int]:
        return self._tokenizer(
            text,
            add_special_tokens=self._add_special_tokens,
            truncation=True,
            max_length=self._max_length,
        )["input_ids"]

    def _example(self) -> np.ndarray:
        return np.zeros(1, np.int32)

    def _inputs(self, batch: Sequence[np.ndarray]) -> dict[str, "torch.Tensor"]:
        import torch

        # At the right, whatever the tokenizer prefers: positions then count from the first token,
        # and a causal model's valid tokens see no padding.
        lengths = np.array([len(ids) for ids in batch])
        mask = np.arange(lengths.max()) < lengths[:, None]
        ids = np.full(mask.shape, self._pad_id, np.int64)
        ids[mask] = np.concatenate(batch)
        device = self._model.device
        return {
            "input_ids": torch.from_numpy(ids).to(device),
            "attention_mask": torch.from_numpy(mask.astype(np.int64)).to(device),
        }

    def _pool(
        self, hidden: "torch.Tensor", how: str, inputs: dict[str, "torch.Tensor"]
    ) -> "torch.Tensor":
        if how == "first":
            return hidden[:, 0]
        mask = inputs["attention_mask"].to(hidden.device)
        lengths = mask.sum(1)
        if how == "last":
            return hidden[lengths.new_tensor(range(len(mask))), lengths - 1]
        return hidden.masked_fill(mask[..., None] == 0, 0).sum(1) / lengths[:, None]


class _ImageEncoder(HuggingFaceEncoder):
    """A vision transformer, or a model of feature maps."""

    modality: Modality = "image"

    def __init__(
        self, *, processor: Any, model: Any, pooling: tuple[str, ...] | None, **shared: Any
    ):
        self._processor = processor
        self._special_tokens = _special_tokens(model)
        if pooling is None:
            pooling = ("cls",) if self._special_tokens else ("mean",)
        settings = json.dumps(processor.to_dict(), sort_keys=True, default=str)
        super().__init__(
            model=model,
            pooling=pooling,
            preprocessing=f"{type(processor).__name__} {settings}",
            **shared,
        )

    def prepare(self, observation: Image.Image) -> np.ndarray:
        """Resizes, crops and normalises an RGB image: `[3, H, W]` float32."""
        pixels = self._processor(observation, return_tensors="np")["pixel_values"][0]
        return np.asarray(pixels, np.float32)

    def _example(self) -> np.ndarray:
        wide, tall = (self.prepare(Image.new("RGB", size)) for size in ((96, 64), (64, 96)))
        if wide.ndim != 3 or wide.shape != tall.shape:
            raise ValueError(
                f"{self.name}: {type(self._processor).__name__} turns images into arrays of "
                f"several shapes, as {wide.shape} and {tall.shape}; set a fixed size or "
                "do_center_crop in preprocessor_config.json."
            )
        return wide

    def _inputs(self, batch: Sequence[np.ndarray]) -> dict[str, "torch.Tensor"]:
        import torch

        pixels = torch.from_numpy(np.stack(batch))
        return {"pixel_values": pixels.to(self._model.device, self._model.dtype)}

    def _pool(
        self, hidden: "torch.Tensor", how: str, inputs: dict[str, "torch.Tensor"]
    ) -> "torch.Tensor":
        is_map = hidden.ndim == 4
        if how == "mean":
            return hidden.mean((2, 3)) if is_map else hidden[:, self._special_tokens :].mean(1)
        if is_map or not self._special_tokens:
            raise ValueError(f"{self.name} has no class token; pass pooling=('mean',).")
        return hidden[:, 0]


def load_huggingface(
    folder: str | pathlib.Path,
    *,
    modality: Modality | None = None,
    dtype: Dtype = "float32",
    pooling: Sequence[str] | None = None,
    batch_size: int | None = None,
    max_length: int = 512,
    add_special_tokens: bool = True,
    untrained_seed: int | None = None,
    device: str | None = None,
) -> HuggingFaceEncoder:
    """Loads a text or vision model from a folder, as `hf download` or `save_pretrained` makes it.

    Decoder-only and encoder-only models are taken whole, without their head; of an encoder-decoder
    the encoder; of a model of texts and images the tower that `modality` names. Padding is always
    masked, also in SigLIP's text tower, which was trained to read it.

    Args:
      folder: with `config.json`, weights, and the files of a tokenizer or an image processor.
      modality: "text" or "image"; needed for a model of both, else found from the folder.
      dtype: of weights and computation, "float32" or "bfloat16"; pooling is in float32.
      pooling: for texts of "mean" (over valid tokens; the default), "last" (valid token) and
        "first" (BERT's class token). For images of "cls" (the default where there is a class token)
        and "mean" (over patches, or over a feature map). Several give a layer each, as
        "hidden_3 mean" and "hidden_3 last".
      batch_size: observations at a time; default 16 texts or 32 images.
      max_length: longest text in tokens, special tokens included, where the model's own limit is
        not lower.
      add_special_tokens: whether texts get the tokenizer's special tokens, as BOS or CLS and SEP.
      untrained_seed: initialise the same architecture at random from this seed instead of reading
        weights, as a control.
      device: of PyTorch; default the GPU where there is one, spread over several GPUs where
        `accelerate` is installed, else the CPU.

    Returns:
      The encoder.

    Raises:
      ImportError: if torch, transformers, or a library that the model needs is missing.
      FileNotFoundError: if the folder or a file that it needs is missing.
      ValueError: if a file is damaged or the model unsupported, or naming an impossible argument.
    """
    _require_libraries()
    folder = pathlib.Path(folder)
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"dtype must be 'float32' or 'bfloat16'; got {dtype!r}.")
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; got {batch_size}.")
    config = _load_config(folder)
    modality = _find_modality(folder, config, modality)
    poolings = _check_pooling(pooling, modality)
    preprocess = (_load_tokenizer if modality == "text" else _load_processor)(folder)
    tokenizer_files = _tokenizer_files(folder, preprocess) if modality == "text" else []
    name, weights_hash = _identify(folder, tokenizer_files, untrained_seed)
    if untrained_seed is None:
        model = _load_trained(folder, config, modality, dtype, device)
    else:
        model = _initialise(folder, config, modality, dtype, device, untrained_seed)
    shared: dict[str, Any] = {
        "name": name,
        "model": model,
        "weights_hash": weights_hash,
        "dtype": dtype,
        "batch_size": batch_size or _BATCH_SIZES[modality],
    }
    if modality == "image":
        return _ImageEncoder(processor=preprocess, pooling=poolings, **shared)
    return _TextEncoder(
        tokenizer=preprocess,
        pooling=poolings or ("mean",),
        max_length=_length_limit(preprocess, model, max_length, add_special_tokens),
        add_special_tokens=add_special_tokens,
        **shared,
    )


def _require_libraries() -> None:
    try:
        for library in ("torch", "transformers"):
            importlib.import_module(library)
    except ImportError as error:
        raise ImportError(
            "Models of Hugging Face need torch and transformers: pip install 'platojax[hf]'"
        ) from error
    from transformers.utils import logging

    logging.disable_progress_bar()  # of reading the weights, among our own lines


@contextlib.contextmanager
def _explained(folder: pathlib.Path, what: str, fix: str) -> Iterator[None]:
    """Says of whatever transformers raises which folder it was, what is wrong, and the fix."""
    try:
        yield
    except ImportError as error:
        # Such as sentencepiece missing, or a torchvision that was built for another torch.
        raise ImportError(
            f"{folder}: transformers cannot import what the {what} needs: {_root(error)}. Fix: "
            "install it, in a version that fits torch."
        ) from error
    except Exception as error:  # its other kinds differ between files, formats and versions
        raise ValueError(
            f"{folder}: cannot load the {what}: {_root(error)}. Fix: {fix}."
        ) from error


def _root(error: BaseException) -> str:
    """The first line of the message of an error's first cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:") if lines else type(error).__name__


def _load_config(folder: pathlib.Path) -> Any:
    from transformers import AutoConfig

    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is no folder; download a model with: hf download OWNER/NAME --local-dir "
            f"{folder}"
        )
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"{folder} has no config.json; give the folder that holds the model's files."
        )
    fix = "download config.json again, or a newer transformers where model_type is new to it"
    with _explained(folder, "configuration", fix):
        return AutoConfig.from_pretrained(folder, **_LOCAL)


def is_composite(folder: pathlib.Path) -> bool:
    """Whether a folder's model encodes texts and images, so that `modality` must say which."""
    _require_libraries()
    return _is_composite(_load_config(folder))


def _is_composite(config: Any) -> bool:
    return hasattr(config, "text_config") and hasattr(config, "vision_config")


def _find_modality(folder: pathlib.Path, config: Any, asked: Modality | None) -> Modality:
    if asked is not None:
        if asked not in _POOLINGS:
            raise ValueError(f"modality must be 'text' or 'image'; got {asked!r}.")
        return asked
    if not _is_composite(config):
        sees = (folder / "preprocessor_config.json").exists() or any(
            hasattr(config, field) for field in ("image_size", "num_channels")
        )
        reads = _has_tokenizer(folder)
        if sees and not reads:
            return "image"
        if not sees and (reads or hasattr(config, "vocab_size")):
            return "text"
    raise ValueError(
        f"{folder}: the model ({config.model_type}) may take texts or images; pass "
        "modality='text' or modality='image'."
    )


def _check_pooling(pooling: Sequence[str] | None, modality: Modality) -> tuple[str, ...] | None:
    if pooling is None:
        return None
    known = tuple(_POOLINGS[modality])
    valid = not isinstance(pooling, str) and set(pooling) <= set(known)
    if not pooling or not valid or len(set(pooling)) < len(pooling):
        raise ValueError(
            f"pooling must be a tuple of different names out of {known} for {modality}; got "
            f"{pooling!r}."
        )
    return tuple(pooling)


def _identify(
    folder: pathlib.Path, tokenizer_files: list[pathlib.Path], untrained_seed: int | None
) -> tuple[str, str]:
    """Name and hash of the encoder; without weights, a hash of what determines them."""
    # Another tokenizer gives other features.
    files = [folder / "config.json", *tokenizer_files]
    name = folder.resolve().name
    if untrained_seed is None:
        return name, hash_files(files + _weight_files(folder))
    versions = [importlib.metadata.version(library) for library in ("torch", "transformers")]
    return (
        f"{name}, untrained {untrained_seed}",
        hash_items([hash_files(files), untrained_seed, *versions]),
    )


def _weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files that transformers loads, of which a folder may hold other copies."""
    for stem, suffix in (("model", "safetensors"), ("pytorch_model", "bin")):
        if (whole := folder / f"{stem}.{suffix}").is_file():
            return [whole]
        if files := list(folder.glob(f"{stem}-*-of-*.{suffix}")):
            return [*files, *folder.glob(f"{stem}.{suffix}.index.json")]
    raise FileNotFoundError(
        f"{folder} has no weights (model.safetensors or pytorch_model.bin, whole or in parts); "
        "download them into it."
    )


def _tokenizer_files(folder: pathlib.Path, tokenizer: Any) -> list[pathlib.Path]:
    names = {"tokenizer.json", *tokenizer.vocab_files_names.values(), *_TOKENIZER_SETTINGS}
    return [folder / name for name in sorted(names) if (folder / name).is_file()]


def _load_tokenizer(folder: pathlib.Path) -> Any:
    from transformers import AutoTokenizer

    if not _has_tokenizer(folder):
        raise FileNotFoundError(
            f"{folder} has no tokenizer (tokenizer.json, tokenizer.model, vocab.txt or the like); "
            "download it into the folder."
        )
    with _explained(folder, "tokenizer", "download the tokenizer's files again"):
        return AutoTokenizer.from_pretrained(folder, truncation_side="right", **_LOCAL)


def _has_tokenizer(folder: pathlib.Path) -> bool:
    found = (path.name for pattern in _TOKENIZER_PATTERNS for path in folder.glob(pattern))
    # From its settings alone transformers makes a tokenizer that knows no words.
    return any(name not in _TOKENIZER_SETTINGS for name in found)


def _load_processor(folder: pathlib.Path) -> Any:
    from transformers import AutoImageProcessor

    with _explained(folder, "image processor", "download preprocessor_config.json into the folder"):
        # Pillow's resizing is the one that most models were made with, and needs no torchvision.
        return AutoImageProcessor.from_pretrained(folder, backend="pil", **_LOCAL)


def _prepare_config(config: Any) -> None:
    """Turns off what makes a frozen model's output random."""
    if hasattr(config, "mask_ratio"):  # a masked autoencoder hides patches in evaluation too
        config.mask_ratio = 0.0


def _load_trained(
    folder: pathlib.Path, config: Any, modality: Modality, dtype: Dtype, device: str | None
) -> Any:
    import torch
    from transformers import AutoModel

    _prepare_config(config)
    spread = (
        device is None
        and torch.cuda.device_count() > 1
        and importlib.util.find_spec("accelerate") is not None
    )
    with _explained(folder, "weights", "download the weights again"):
        model, report = AutoModel.from_pretrained(
            folder,
            config=config,
            dtype=getattr(torch, dtype),
            device_map="auto" if spread else None,
            output_loading_info=True,
            **_LOCAL,
        )
    part, prefix = _part(folder, model, modality)
    missing = [name for name in report["missing_keys"] if name.startswith(prefix)]
    # A pooling head comes after the hidden states; checkpoints of masked language models lack it.
    missing = sorted(name for name in missing if "pooler" not in name)
    if missing:
        raise ValueError(
            f"{folder}: the weights lack {len(missing)} arrays of {type(model).__name__}, the "
            f"first {missing[0]}; download weights that belong to config.json."
        )
    return part.eval() if spread else part.to(device or _default_device()).eval()


def _initialise(
    folder: pathlib.Path,
    config: Any,
    modality: Modality,
    dtype: Dtype,
    device: str | None,
    seed: int,
) -> Any:
    import torch
    from transformers import AutoModel

    _prepare_config(config)
    fix = "give a folder whose config.json transformers can build"
    with _explained(folder, "architecture", fix), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # In float32, so that both dtypes are the same network.
        model = AutoModel.from_config(config, dtype=torch.float32, trust_remote_code=False)
    part, _ = _part(folder, model, modality)
    return part.to(device or _default_device(), getattr(torch, dtype)).eval()


def _default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _part(folder: pathlib.Path, model: Any, modality: Modality) -> tuple[Any, str]:
    """The module that encodes `modality`, and its weights' common prefix."""
    if _is_composite(model.config):
        tower = next((name for name in _TOWERS[modality] if hasattr(model, name)), None)
        if tower is None:
            raise ValueError(
                f"{folder}: found no {modality} model in {type(model).__name__} (one of "
                f"{', '.join(_TOWERS[modality])}); choose another model."
            )
        return getattr(model, tower), f"{tower}."
    # Not config.is_encoder_decoder: a T5 encoder published alone says False.
    if modality == "text" and hasattr(model, "encoder") and hasattr(model, "decoder"):
        return model.get_encoder(), "encoder."
    return model, ""


def _length_limit(tokenizer: Any, model: Any, max_length: int, add_special_tokens: bool) -> int:
    """The longest text that tokenizer and model allow, at most `max_length`."""
    import torch

    limits = [max_length, tokenizer.model_max_length]
    limits += [getattr(model.config, "max_position_embeddings", None) or max_length]
    for name, module in model.named_modules():
        # RoBERTa counts positions from the padding token's number on.
        is_learned = isinstance(module, torch.nn.Embedding) and "position_embeddings" in name
        if is_learned and module.padding_idx is not None:
            limits.append(module.num_embeddings - module.padding_idx - 1)
    special = tokenizer.num_special_tokens_to_add() if add_special_tokens else 0
    if max_length <= special:
        raise ValueError(
            f"max_length must exceed the {special} special tokens; got {max_length}. Raise it."
        )
    return min(limit for limit in limits if limit > 0)


def _special_tokens(model: Any) -> int:
    """How many tokens of a vision transformer come before the patches; 0 without a class token."""
    counts = {"cls_token": 0, "class_embedding": 0, "distillation_token": 0, "register_tokens": 0}
    for name, parameter in model.named_parameters():
        kind = name.rpartition(".")[2]
        if kind in counts:
            counts[kind] = parameter.shape[-2] if parameter.ndim > 1 else 1
    return sum(counts.values())
