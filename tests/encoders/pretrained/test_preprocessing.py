import json
import os
import pathlib

import jax
import numpy as np
import pytest
from PIL import Image

from platojax.encoders.preprocessing import ImagePreprocessing
from platojax.encoders.pretrained import load_pretrained
from platojax.encoders.pretrained.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from tests.encoders.pretrained import folders
from tests.encoders.pretrained.folders import GOLDEN

# A folder of photos (*.jpg) to compare with torchvision, where there is one.
PHOTOS = os.environ.get("PLATOJAX_TEST_PHOTOS")
DINOV2 = ImagePreprocessing(256, (224, 224), Image.Resampling.BICUBIC, IMAGENET_MEAN, IMAGENET_STD)


def drawn(height=300, width=449):
    """A picture with edges, and of an odd size."""
    y, x = np.mgrid[:height, :width]
    red = np.where((x // 7 + y // 11) % 2, 240, 15)
    green = (x * 255) // width
    blue = 128 + 127 * np.sin(y / 9)
    return Image.fromarray(np.stack([red, green, blue], axis=-1).astype(np.uint8))


def assert_equals_torchvision(image):
    transforms = pytest.importorskip("torchvision").transforms
    theirs = transforms.Compose(
        [
            transforms.Resize(256, transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]
    )
    cut = DINOV2(image)
    assert (cut.dtype, cut.shape) == (np.uint8, (224, 224, 3))
    normalised = jax.jit(DINOV2.normalise)(cut[None])
    np.testing.assert_allclose(normalised[0], theirs(image).numpy(), atol=1e-6)


def test_photos_equal_torchvision():
    if not PHOTOS:
        pytest.skip("PLATOJAX_TEST_PHOTOS names no folder of photos")
    photos = sorted(pathlib.Path(PHOTOS).glob("*.jpg"))[:12]
    assert len({Image.open(photo).size for photo in photos}) > 3
    for photo in photos:
        assert_equals_torchvision(Image.open(photo).convert("RGB"))


@pytest.mark.parametrize("size", [(300, 449), (451, 300), (257, 256), (100, 61), (256, 259)])
def test_drawn_images_equal_torchvision(size):
    assert_equals_torchvision(drawn(*size))


def test_a_drawn_image_gives_the_recorded_numbers():
    cut = DINOV2(drawn())
    # Equal to torchvision 0.28 with Pillow 13.
    assert cut[[0, 111, 223], [0, 57, 223]].tolist() == [
        [15, 53, 237],
        [85, 91, 33],
        [253, 201, 91],
    ]
    assert float(cut.mean()) == pytest.approx(125.27616, abs=1e-4)


def test_grey_and_transparent_images_become_rgb():
    for mode in ("L", "RGBA", "P"):
        assert DINOV2(drawn().convert(mode)).shape == (224, 224, 3)


def test_small_images_are_padded_as_torchvision_does():
    transforms = pytest.importorskip("torchvision").transforms
    image = drawn(21, 34)
    ours = ImagePreprocessing(None, (24, 24), Image.Resampling.BICUBIC, IMAGENET_MEAN, IMAGENET_STD)
    np.testing.assert_array_equal(ours(image), np.asarray(transforms.CenterCrop(24)(image)))


def test_defaults_are_those_of_the_families():
    described = {
        name: load_pretrained(GOLDEN / name).preprocessing.describe()
        for name in ("dinov2", "dinov3", "clip")
    }
    numbers = "mean (0.485, 0.456, 0.406); std (0.229, 0.224, 0.225)"
    assert described["dinov2"] == (
        "resize to short side 256, bicubic; centre crop 224 x 224; times 0.00392157; " + numbers
    )
    assert described["dinov3"] == "resize to 224 x 224, bilinear; times 0.00392157; " + numbers
    assert described["clip"].startswith("resize to short side 64, bicubic; centre crop 64 x 64;")
    assert "mean (0.481455, 0.457827, 0.408211)" in described["clip"]


def load_with(tmp_path, values, name="dinov2"):
    folder = folders.save(tmp_path / "m", folders.config(name), folders.tensors(name))
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    return load_pretrained(folder).preprocessing


def test_the_folders_own_file_counts(tmp_path):
    got = load_with(
        tmp_path,
        {
            "do_resize": True,
            "size": {"shortest_edge": 80},
            "do_center_crop": True,
            "crop_size": {"height": 56, "width": 70},
            "resample": 2,
            "do_rescale": True,
            "rescale_factor": 0.5,
            "image_mean": [1, 2, 3],
            "image_std": [4, 5, 6],
        },
    )
    assert got == ImagePreprocessing(
        80, (56, 70), Image.Resampling.BILINEAR, (1, 2, 3), (4, 5, 6), 0.5
    )
    assert got(drawn()).shape == (56, 70, 3)
    np.testing.assert_allclose(
        got.normalise(np.full((1, 2, 2, 3), 10, np.uint8))[0, :, 0, 0], [1, 3 / 5, 2 / 6]
    )
    older = load_with(tmp_path, {"size": 84, "crop_size": 70, "do_rescale": False})
    assert (older.resize, older.crop, older.scale) == (84, (70, 70), 1.0)
    fixed = load_with(
        tmp_path,
        {"size": {"height": 28, "width": 42}, "do_center_crop": False, "do_normalize": False},
    )
    assert (fixed.size, fixed.mean, fixed.std) == ((28, 42), (0, 0, 0), (1, 1, 1))
    assert fixed(drawn()).shape == (28, 42, 3)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("dinov2", {"crop_size": 225}, "225 x 225, .* whole number of patches of 14"),
        ("clip", {"size": 96, "crop_size": 96}, r"96 x 96, but this CLIP takes 64 x 64"),
        ("dinov2", {"size": 84, "do_center_crop": False}, "images would have several sizes"),
        ("dinov2", {"resample": 17}, "17 is not a valid Resampling"),
        ("dinov2", {"size": {"longest_edge": 3}}, "size .* is {'longest_edge': 3}"),
        ("dinov2", {"image_std": [1, 0, 1]}, r"std is \(1\.0, 0\.0, 1\.0\)"),
        ("dinov2", {"image_mean": 3}, "cannot be understood"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, name, values, message):
    with pytest.raises(ValueError, match=rf"preprocessor_config.json .*{message}"):
        load_with(tmp_path, values, name)
