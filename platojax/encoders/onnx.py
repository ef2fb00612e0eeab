"""Frozen image encoders in ONNX, run by onnxruntime (`pip install 'platojax[onnx]'`).

Beside `NAME.onnx` stands `NAME.json`, which says how images become the graph's input:

    {"resize": 256, "crop": 224, "interpolation": "bicubic",
     "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}

`resize` is what the short side becomes, or [height, width]; `crop` a side, [height, width] or null;
`mean` and `std` are for pixels from 0 to 1. `layout`, "NCHW" or "NHWC", is needed only where the
graph leaves its input's channels open.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from PIL import Image

from platojax.encoders.frozen import Modality
from platojax.encoders.preprocessing import ImagePreprocessing
from platojax.hashing import hash_files

Layout = Literal["NCHW", "NHWC"]

_EXAMPLE = (
    '{"resize": 256, "crop": 224, "interpolation": "bicubic", "mean": [0.485, 0.456, 0.406], '
    '"std": [0.229, 0.224, 0.225]}'
)
_CHANNELS: dict[Layout, int] = {"NCHW": 1, "NHWC": 3}
_PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")


class OnnxEncoder:
    """An ONNX graph as a `FrozenEncoder`; `load_onnx` makes it.

    Attributes:
      See `FrozenEncoder`.
    """

    modality: Modality = "image"
    dtype = "float32"
    libraries = ("onnxruntime",)

    def __init__(
        self,
        *,
        name: str,
        session: Any,
        weights_hash: str,
        preprocessing: ImagePreprocessing,
        layout: Layout,
        batch_size: int,
        outputs: Sequence[str] | None,
    ):
        """Runs the graph once, to learn what its outputs are."""
        self.name = name
        self.weights_hash = weights_hash
        self.preprocessing = f"{preprocessing.describe()}; {layout}"
        self._session = session
        self._preprocessing = preprocessing
        self._layout: Layout = layout
        self._input = session.get_inputs()[0]
        fixed = self._input.shape[0]
        self._fixed_batch = fixed if isinstance(fixed, int) else None
        self.batch_size = min(batch_size, self._fixed_batch or batch_size)
        every = tuple(output.name for output in session.get_outputs())
        unknown = sorted(set(outputs or ()) - set(every))
        if unknown:
            raise ValueError(f"{name}.onnx has no outputs {unknown}; choose among {list(every)}.")
        widths = self._widths(tuple(outputs or every))
        if outputs is not None and (len(widths) < len(outputs) or len(set(widths.values())) > 1):
            raise ValueError(
                f"{name}.onnx: outputs {list(outputs)} must all be float, [B, D] or feature maps, "
                f"and of one width; got the widths {widths}. Choose fewer."
            )
        if not widths:
            raise ValueError(
                f"{name}.onnx has no float output [B, D] and no feature map among {list(every)}; "
                "export one."
            )
        *_, self.width = widths.values()
        self.layers = tuple(layer for layer, width in widths.items() if width == self.width)
        left_out = [layer for layer in widths if layer not in self.layers]
        self.pooling = "as the graph gives it; mean over space of feature maps"
        if left_out:
            self.pooling += f"; left out, of another width: {', '.join(left_out)}"

    def prepare(self, observation: Image.Image) -> np.ndarray:
        """Resizes and crops an RGB image: `[H, W, 3]` uint8."""
        return self._preprocessing(observation)

    def encode(self, batch: Sequence[np.ndarray]) -> np.ndarray:
        """Encodes 1 to `batch_size` prepared images: `[B, L, D]` float32."""
        outputs = self._run(np.stack(batch), self.layers)
        return np.stack([self._pool(outputs[layer]) for layer in self.layers], axis=1)

    def _run(self, images: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
        count = len(images)
        if self._fixed_batch is not None:
            padding = [(0, self._fixed_batch - count)] + [(0, 0)] * 3
            images = np.pad(images, padding)
        pixels = np.asarray(self._preprocessing.normalise(images))
        if self._layout == "NHWC":
            pixels = pixels.transpose(0, 2, 3, 1)
        feed = {self._input.name: np.ascontiguousarray(pixels)}
        outputs = self._session.run(list(names), feed)
        return {name: output[:count] for name, output in zip(names, outputs, strict=True)}

    def _widths(self, names: Sequence[str]) -> dict[str, int]:
        """Widths of the outputs that are features, by name."""
        outputs = self._run(np.zeros((1, *self._preprocessing.size, 3), np.uint8), names)
        return {
            name: self._pool(output).shape[1]
            for name, output in outputs.items()
            if np.issubdtype(output.dtype, np.floating) and output.ndim in (2, 4)
        }

    def _pool(self, output: np.ndarray) -> np.ndarray:
        output = output.astype(np.float32)
        if output.ndim == 2:
            return output
        return output.mean((2, 3) if self._layout == "NCHW" else (1, 2))


def load_onnx(
    path: str | pathlib.Path,
    *,
    batch_size: int = 32,
    outputs: Sequence[str] | None = None,
) -> OnnxEncoder:
    """Loads an image encoder from `NAME.onnx`, and its preprocessing from `NAME.json`.

    Args:
      path: of the graph. It has one input of float32, `[B, 3, H, W]` or `[B, H, W, 3]`.
      batch_size: images at a time; a graph of a fixed, smaller batch takes that many.
      outputs: names of the outputs to take as layers, of one width. Default: all of float with the
        width of the last one, `[B, D]` or feature maps, whose mean over space is taken.

    Returns:
      The encoder.

    Raises:
      ImportError: if onnxruntime is missing.
      FileNotFoundError: if one of the two files is missing.
      ValueError: if a file is damaged, the two do not fit, or the graph is no image encoder.
    """
    path = pathlib.Path(path)
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; got {batch_size}.")
    session = _start(path)
    values = _read_preprocessing(path.with_suffix(".json"))
    layout = _check_input(path, session, values.get("layout"))
    preprocessing = _parse(path.with_suffix(".json"), values)
    _check_size(path, session.get_inputs()[0].shape, layout, preprocessing.size)
    return OnnxEncoder(
        name=path.stem,
        session=session,
        weights_hash=hash_files(graph_files(path)),
        preprocessing=preprocessing,
        layout=layout,
        batch_size=batch_size,
        outputs=outputs,
    )


def graph_files(path: pathlib.Path) -> list[pathlib.Path]:
    """The file of a graph, and those beside it that it names: weights of more than 2 GB."""
    graph = path.read_bytes()
    beside = (file for file in path.parent.iterdir() if file.is_file() and file != path)
    return [path, *(file for file in beside if file.name.encode() in graph)]


def _start(path: pathlib.Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError("ONNX models need onnxruntime: pip install 'platojax[onnx]'") from error
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file; give the path of an .onnx model.")
    available = onnxruntime.get_available_providers()
    providers = [name for name in _PROVIDERS if name in available]
    try:
        return onnxruntime.InferenceSession(path, providers=providers)
    except Exception as error:  # onnxruntime's errors share no other base class
        raise ValueError(
            f"{path}: onnxruntime cannot load it: {error}. Download or export it again."
        ) from error


def _read_preprocessing(path: pathlib.Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing; it says how the model's images were prepared. Write it, with the "
            f"model's own numbers, like {_EXAMPLE}"
        )
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}. Write it like {_EXAMPLE}") from error
    known = {"resize", "crop", "interpolation", "mean", "std"}
    if not isinstance(values, dict) or set(values) - {"layout"} != known:
        raise ValueError(f"{path} must have the fields {sorted(known)}, like {_EXAMPLE}")
    return values


def _parse(path: pathlib.Path, values: dict[str, Any]) -> ImagePreprocessing:
    try:
        resize, crop = values["resize"], values["crop"]
        return ImagePreprocessing(
            resize=tuple(resize) if isinstance(resize, list) else resize,
            crop=(crop, crop) if isinstance(crop, int) else crop and tuple(crop),
            resample=Image.Resampling[values["interpolation"].upper()],
            mean=_triple(values["mean"]),
            std=_triple(values["std"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: impossible value ({error}); write it like {_EXAMPLE}") from error


def _triple(values: Any) -> tuple[float, float, float]:
    red, green, blue = (float(value) for value in values)
    return red, green, blue


def _check_input(path: pathlib.Path, session: Any, asked: Any) -> Layout:
    """Checks that the graph's input is a batch of images; returns its layout."""
    inputs = session.get_inputs()
    if len(inputs) != 1 or inputs[0].type != "tensor(float)" or len(inputs[0].shape) != 4:
        found = ", ".join(f"{one.name}: {one.type} {one.shape}" for one in inputs)
        raise ValueError(
            f"{path} must have one input, float32 [B, 3, H, W] or [B, H, W, 3]; it has {found}. "
            "Export the image encoder alone."
        )
    shape = inputs[0].shape
    fitting = [layout for layout, axis in _CHANNELS.items() if shape[axis] == 3]
    if asked is not None:
        axis = next((axis for layout, axis in _CHANNELS.items() if layout == asked), None)
        if axis is None or (isinstance(shape[axis], int) and shape[axis] != 3):
            raise ValueError(
                f"{path.with_suffix('.json')}: layout {asked!r} does not fit the input {shape}; "
                "it is 'NCHW' or 'NHWC'."
            )
        return asked
    if len(fitting) != 1:
        raise ValueError(
            f"{path}: the input {shape} does not tell where the channels are; add "
            f'"layout": "NCHW" or "NHWC" to {path.with_suffix(".json")}.'
        )
    return fitting[0]


def _check_size(
    path: pathlib.Path, shape: Sequence[int | str | None], layout: Layout, size: tuple[int, int]
) -> None:
    wanted = shape[2:] if layout == "NCHW" else shape[1:3]
    for side, at in zip(wanted, size, strict=True):
        if isinstance(side, int) and side != at:
            raise ValueError(
                f"{path} takes images of {wanted[0]} x {wanted[1]}, but "
                f"{path.with_suffix('.json')} makes {size[0]} x {size[1]}; set crop, or "
                "resize, to what the model takes."
            )
