"""Reading PyTorch's weights and turning them into Flax parameters."""

import pathlib
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from platojax.encoders.pretrained.config import read_json
from platojax.encoders.pretrained.names import Layout

Params = dict[str, Any]
Tensors = dict[str, np.ndarray]


def weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The safetensors files of a Hugging Face folder.

    Raises:
      FileNotFoundError: if there are none, or the index names one that is not there.
      ValueError: if the index is broken.
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise FileNotFoundError(
            f"{folder} holds neither model.safetensors nor model.safetensors.index.json; download "
            "the weights in this format, or save them again with transformers' save_pretrained."
        )
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"{index}: weight_map must map tensors to files; download it again.")
    files = [folder / name for name in sorted(set(names.values()))]
    absent = [file.name for file in files if not file.is_file()]
    if absent:
        raise FileNotFoundError(f"{index} names files that are missing: {', '.join(absent)}.")
    return files


def read_safetensors(files: list[pathlib.Path]) -> Tensors:
    """Reads all tensors of safetensors files, in the dtypes they have there.

    Raises:
      ValueError: if a file is truncated or not in this format.
    """
    tensors: Tensors = {}
    for file in files:
        try:
            with safe_open(file, framework="numpy") as opened:
                tensors |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(
                f"{file} is truncated or not a safetensors file ({error}); download it again."
            ) from None
    return tensors


def read_torch(file: pathlib.Path) -> Tensors:
    """Reads a PyTorch file of tensors by name, as float32.

    Training with FSDP saves blocks in chunks, `blocks.1.10.` for `blocks.10.`: the chunk's number
    is left out of the names.

    Raises:
      ImportError: if torch is not installed.
      ValueError: if the file is broken or holds anything else.
    """
    try:
        import torch
    except ImportError:
        raise ImportError(
            f"{file} is a PyTorch file: `pip install torch` to read it, or use the model's Hugging "
            "Face folder, which needs no PyTorch."
        ) from None
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its unpickler meets
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{file} cannot be read by torch.load(weights_only=True): {reason}; download it again."
        ) from None
    if not isinstance(state, Mapping) or not all(
        isinstance(name, str) and isinstance(x, torch.Tensor) for name, x in state.items()
    ):
        raise ValueError(
            f"{file} does not hold tensors by name; use a backbone's file of facebookresearch/"
            "dinov2, such as dinov2_vitb14_pretrain.pth."
        )
    return {
        re.sub(r"^blocks\.\d+\.(\d+)\.", r"blocks.\1.", name): tensor.float().numpy()
        for name, tensor in state.items()
    }


def convert(
    tensors: Mapping[str, np.ndarray], expected: Params, layout: Layout, file: pathlib.Path
) -> Params:
    """Gives every parameter its tensor.

    Args:
      tensors: by their names in the file.
      expected: tree of the parameters' shapes, from `jax.eval_shape(module.init, ...)`.
      layout: where each parameter is found.
      file: or folder of the weights, for errors.

    Returns:
      The tree of parameters, float32.

    Raises:
      ValueError: listing every missing, unmapped and mis-shaped tensor, if there is any.
    """
    unused: dict[str, tuple[str, np.ndarray]] = {}
    for name, tensor in tensors.items():
        parts = layout.split(name)
        # A part of a tensor that cannot be split evenly is found to be mis-shaped below.
        pieces = np.array_split(tensor, len(parts)) if len(parts) > 1 else [tensor]
        for part, piece in zip(parts, pieces, strict=True):
            # Of two spellings of one name, the second is not part of the architecture.
            unused[name if part in unused else part] = (name, piece)
    missing: list[str] = []
    misshaped: list[str] = []
    broken: list[str] = []

    def take(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.Array | None:
        keys = tuple(entry.key for entry in path)
        source = layout.source(keys)
        if source not in unused:
            missing.append(source)
            return None
        name, tensor = unused.pop(source)
        wanted = torch_shape(keys, leaf.shape)
        if strip_ones(tensor.shape) != strip_ones(wanted):
            label = source if len(layout.split(name)) > 1 else name
            misshaped.append(f"{label} {list(tensor.shape)} instead of {list(wanted)}")
            return None
        if not np.isfinite(tensor.astype(np.float32)).all():
            broken.append(name)
        tensor = tensor.reshape(wanted)
        if keys[-1] == "kernel":  # PyTorch has the outputs first, Flax last
            tensor = tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T
        return jnp.asarray(tensor.reshape(leaf.shape), jnp.float32)

    params = jax.tree_util.tree_map_with_path(take, expected)
    unmapped = {
        name
        for part, (name, tensor) in unused.items()
        if tensor.size and not re.fullmatch(layout.ignored, part)
    }
    problems = [
        f"{kind}: {', '.join(sorted(names))}"
        for kind, names in (
            ("missing", missing),
            ("not part of this architecture", unmapped),
            ("of another shape", misshaped),
            ("not finite", broken),
        )
        if names
    ]
    if problems:
        raise ValueError(
            f"{file} does not hold the weights that its config describes; {'; '.join(problems)}. "
            "Use config and weights of one and the same model."
        )
    return params


def torch_shape(keys: tuple[str, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in PyTorch of a Flax parameter: heads are not an axis, outputs come first."""
    module, leaf = keys[-2:] if len(keys) > 1 else ("", keys[-1])
    if module in ("query", "key", "value"):
        shape = (*shape[:-2], shape[-2] * shape[-1])
    if module == "out" and leaf == "kernel":
        shape = (shape[0] * shape[1], shape[2])
    if leaf != "kernel":
        return shape
    return (shape[3], shape[2], *shape[:2]) if len(shape) == 4 else shape[::-1]


def strip_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without leading ones, such as those of PyTorch's class tokens and positions."""
    while shape and shape[0] == 1:
        shape = shape[1:]
    return shape
