"""Preprocessing that the authors of DINOv2, DINOv3 and CLIP publish."""

import pathlib
from typing import Any

from PIL import Image

from platojax.encoders.preprocessing import ImagePreprocessing, Size, Triple
from platojax.encoders.pretrained.config import VisionConfig, read_json

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


def default_preprocessing(config: VisionConfig) -> ImagePreprocessing:
    """What the encoder's authors publish for evaluation.

    DINOv2: short side 256, bicubic, crop 224. DINOv3: 224 x 224, bilinear. CLIP: short side and
    crop of its own image size, bicubic. A patch size that does not divide 224 takes the image
    size of the config in its place.
    """
    side = 224 if 224 % config.patch_size == 0 else config.image_size
    if config.family == "dinov3":
        return ImagePreprocessing(
            (side, side), None, Image.Resampling.BILINEAR, IMAGENET_MEAN, IMAGENET_STD
        )
    if config.family == "clip":
        side = config.image_size
        return ImagePreprocessing(side, (side, side), Image.Resampling.BICUBIC, CLIP_MEAN, CLIP_STD)
    return ImagePreprocessing(
        side * 256 // 224,
        (side, side),
        Image.Resampling.BICUBIC,
        IMAGENET_MEAN,
        IMAGENET_STD,
    )


def read_preprocessing(folder: pathlib.Path, config: VisionConfig) -> ImagePreprocessing:
    """Reads `preprocessor_config.json`, or takes the default where the folder has none.

    Fields that the file leaves out are those of the default.

    Raises:
      ValueError: if the file is broken, or its images do not fit the encoder.
    """
    default, file = default_preprocessing(config), folder / "preprocessor_config.json"
    if not file.is_file():
        return default
    values = read_json(file)
    try:
        preprocessing = _parse(values, default)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{file} cannot be understood ({error}); use the one published with the weights."
        ) from None
    wanted = (config.image_size,) * 2
    height, width = preprocessing.size
    if config.family == "clip" and (height, width) != wanted:
        raise ValueError(
            f"{file} makes images of {height} x {width}, but this CLIP takes {config.image_size} x "
            f"{config.image_size} (vision_config.image_size); set crop_size to that."
        )
    if height % config.patch_size or width % config.patch_size:
        raise ValueError(
            f"{file} makes images of {height} x {width}, which are not a whole number of patches "
            f"of {config.patch_size}; set crop_size, or size, to multiples of it."
        )
    return preprocessing


def _parse(values: dict[str, Any], default: ImagePreprocessing) -> ImagePreprocessing:
    resize: int | Size | None = None
    crop: Size | None = None
    if values.get("do_resize", True):
        square = isinstance(default.resize, tuple)
        resize = _resize_to(values["size"], square) if "size" in values else default.resize
    if values.get("do_center_crop", default.crop is not None):
        crop = _height_width(values["crop_size"]) if "crop_size" in values else default.crop
    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if values.get("do_normalize", True):
        mean = _triple("image_mean", values.get("image_mean", default.mean))
        std = _triple("image_std", values.get("image_std", default.std))
    scale = values.get("rescale_factor", default.scale) if values.get("do_rescale", True) else 1
    resample = Image.Resampling(values.get("resample", default.resample))
    return ImagePreprocessing(resize, crop, resample, mean, std, float(scale))


def _resize_to(value: Any, square: bool) -> int | Size:
    """Reads `size`; one number alone is a square's side, or the short side."""
    if isinstance(value, dict) and "shortest_edge" in value:
        return _positive("shortest_edge", value["shortest_edge"])
    if isinstance(value, dict) or square:
        return _height_width(value)
    return _positive("size", value)


def _height_width(value: Any) -> Size:
    if isinstance(value, dict) and {"height", "width"} <= set(value):
        return _positive("height", value["height"]), _positive("width", value["width"])
    side = _positive("size or crop_size", value)
    return side, side


def _positive(name: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} is {value!r}, not a number of pixels")
    return value


def _triple(name: str, value: Any) -> Triple:
    if len(value) != 3:
        raise ValueError(f"{name} is {value!r}, not three numbers")
    red, green, blue = map(float, value)
    return red, green, blue
