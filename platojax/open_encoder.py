"""Opens any encoder by its path, whatever library it is for."""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from platojax.encoders.frozen import FrozenEncoder, Modality
from platojax.encoders.onnx import graph_files, load_onnx
from platojax.encoders.pretrained import (
    MODEL_TYPES,
    PretrainedEncoder,
    load_pretrained,
    reinitialised,
)
from platojax.hashing import hash_items

_FORMS = (
    "a Hugging Face folder (config.json, model.safetensors), an official DINOv2 .pth, an image "
    "encoder .onnx, or WORKDIR/RUN of an experiment"
)


@dataclasses.dataclass(frozen=True)
class EncoderOptions:
    """How to run an encoder; None leaves a choice to the encoder.

    Attributes:
      modality: "text" or "image", for encoders of both.
      pooling: how tokens become vectors; several give several vectors per layer.
      dtype: "float32" or "bfloat16".
      batch_size: observations at a time.
      max_length: tokens at most, of texts.
      special_tokens: False for texts without the tokenizer's special tokens, such as BOS.
      untrained: the seed of random weights instead of the trained ones: the control.
    """

    modality: Modality | None = None
    pooling: tuple[str, ...] | None = None
    dtype: str | None = None
    batch_size: int | None = None
    max_length: int | None = None
    special_tokens: bool | None = None
    untrained: int | None = None

    def __post_init__(self) -> None:
        for name, value, most in (
            ("batch_size", self.batch_size, 2**16),
            ("max_length", self.max_length, 2**24),
        ):
            if value is not None and not 1 <= value <= most:
                raise ValueError(f"{name}={value} must be in 1..{most}")
        if self.untrained is not None and not 0 <= self.untrained < 2**32:
            raise ValueError(f"untrained={self.untrained} is a seed, and must be in 0..{2**32 - 1}")

    def given(self) -> dict[str, Any]:
        """The options that are not None."""
        fields = dataclasses.asdict(self)
        return {name: value for name, value in fields.items() if value is not None}

    def only(self, kind: str, names: tuple[str, ...]) -> dict[str, Any]:
        """The options given, if an encoder of this kind has them all.

        Raises:
          ValueError: it has not.
        """
        given = self.given()
        if foreign := [name for name in given if name not in names]:
            raise ValueError(
                f"{foreign[0]}={given[foreign[0]]!r} does not apply to {kind}; leave it out "
                f"(there are {', '.join(names)})"
            )
        return given


def open_encoder(
    path: pathlib.Path,
    options: EncoderOptions,
    available: Sequence[Modality] = ("text", "image"),
) -> FrozenEncoder:
    """Opens an encoder.

    Args:
      path: a Hugging Face folder, an official DINOv2 `.pth`, an `.onnx`, or the folder of a run in
        a workdir of ours.
      options: how to run it.
      available: what there is to encode, which chooses the tower of CLIP where the options do not.

    Raises:
      FileNotFoundError: there is nothing at `path`.
      ValueError: it is no encoder, its files are damaged, or an option does not apply to it.
      ImportError: it needs an optional extra that is not installed.
    """
    return _opener(path)(path, options, available)


def stamp(path: pathlib.Path) -> str:
    """A quick hash by which the same encoder is known again: its files, their sizes and times."""
    opener = _opener(path)
    if opener is _open_run:  # beside these the run keeps what it writes about itself
        files = [path.parent / "config.json", *sorted((path / "checkpoints").rglob("*"))]
    elif opener is _open_onnx:
        files = [*graph_files(path), path.with_suffix(".json")]
    elif path.is_file():
        files = [path]
    else:
        files = sorted(file for file in path.rglob("*") if file.is_file())
    stats = [(file.resolve(), file.stat()) for file in files if file.is_file()]
    return hash_items([f"{file} {stat.st_size} {stat.st_mtime_ns}" for file, stat in stats])


_Opener = Callable[[pathlib.Path, EncoderOptions, Sequence[Modality]], FrozenEncoder]


def _opener(path: pathlib.Path) -> _Opener:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; an encoder is {_FORMS}")
    if path.suffix == ".onnx":
        return _open_onnx
    if path.suffix == ".pth":
        return _open_in_jax
    if (path / "checkpoints").is_dir():
        return _open_run
    config = path / "config.json"
    if not config.is_file():
        raise ValueError(f"{path} is no encoder: give {_FORMS}")
    try:
        values = json.loads(config.read_text(encoding="utf-8"))
        if "arms" in values:
            runs = sorted(one.parent.name for one in path.glob("*/checkpoints"))
            raise ValueError(f"{path} is a workdir; give one of its runs: {', '.join(runs)}")
        model_type = values["model_type"]
    except (KeyError, TypeError, RecursionError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{config} names no model_type ({error}); download the model again"
        ) from error
    return _open_in_jax if model_type in MODEL_TYPES else _open_huggingface


def _open_in_jax(
    path: pathlib.Path, options: EncoderOptions, available: Sequence[Modality]
) -> FrozenEncoder:
    given = options.only(
        "DINO and CLIP encoders", ("modality", "pooling", "dtype", "batch_size", "untrained")
    )
    seed = given.pop("untrained", None)
    model = load_pretrained(path, dtype=given.pop("dtype", "float32"))
    if seed is not None:
        model = reinitialised(model, seed)
    if model.config.text is not None and "modality" not in given:
        given["modality"] = _the_one(path, available)
    return PretrainedEncoder(model, **given)


def _the_one(path: pathlib.Path, available: Sequence[Modality]) -> Modality:
    """What an encoder of texts and images is to encode."""
    if len(available) != 1:
        raise ValueError(f"{path} encodes texts and images, and there are both: say --modality")
    return available[0]


def _open_huggingface(
    path: pathlib.Path, options: EncoderOptions, available: Sequence[Modality]
) -> FrozenEncoder:
    from platojax.encoders.huggingface import is_composite, load_huggingface

    given = options.given()
    if "modality" not in given and is_composite(path):
        given["modality"] = _the_one(path, available)
    if "untrained" in given:
        given["untrained_seed"] = given.pop("untrained")
    if "special_tokens" in given:
        given["add_special_tokens"] = given.pop("special_tokens")
    return load_huggingface(path, **given)


def _open_onnx(
    path: pathlib.Path, options: EncoderOptions, available: Sequence[Modality]
) -> FrozenEncoder:
    given = options.only("ONNX encoders, which are of images", ("modality", "batch_size"))
    if given.pop("modality", "image") != "image":
        raise ValueError(f"{path} is an image encoder; modality must be image")
    return load_onnx(path, **given)


def _open_run(
    path: pathlib.Path, options: EncoderOptions, available: Sequence[Modality]
) -> FrozenEncoder:
    from platojax.run_encoder import load_run_encoder  # the training loop, which most do not need

    given = options.only("runs of an experiment", ("modality", "batch_size", "untrained"))
    asked = given.pop("modality", None)
    encoder = load_run_encoder(path, **given)
    if asked not in (None, encoder.modality):
        raise ValueError(f"{path} is of modality {encoder.modality}, not {asked}")
    return encoder
