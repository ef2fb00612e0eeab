"""Images as the pretrained encoders saw them."""

import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from platojax.encoders.pretrained.config import VisionConfig, read_json

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

Size = tuple[int, int]
Triple = tuple[float, float, float]


@dataclasses.dataclass(frozen=True)
class ImagePreprocessing:
    """Resizing, cropping and normalising.

    Attributes:
      resize: what the short side becomes, or (height, width); None leaves the size.
      crop: (height, width) cut from the centre, black where the image is smaller; None for all.
      resample: Pillow's filter for resizing; it antialiases.
      mean: subtracted from each channel after scaling to [0, 1].
      std: what each channel is divided by then.
      scale: what 8-bit values are multiplied by.
    """

    resize: int | Size | None
    crop: Size | None
    resample: Image.Resampling
    mean: Triple
    std: Triple
    scale: float = 1 / 255

    def __post_init__(self) -> None:
        if self.crop is None and not isinstance(self.resize, tuple):
            raise ValueError(
                "images would have several sizes: crop is None and resize is "
                f"{self.resize}; set crop, or resize to (height, width)."
            )

    @property
    def size(self) -> Size:
        """(height, width) of what comes out."""
        size = self.crop or self.resize
        assert isinstance(size, tuple)  # __post_init__ refuses anything else
        return size

    def __call__(self, image: Image.Image) -> np.ndarray:
        """Resizes and crops an image: `[H, W, 3]` uint8, as torchvision's Resize and CenterCrop."""
        image = image.convert("RGB")
        if self.resize is not None:
            height, width = _resized(image.height, image.width, self.resize)
            image = image.resize((width, height), self.resample)
        if self.crop is not None:
            height, width = self.crop
            top, left = _start(image.height, height), _start(image.width, width)
            image = image.crop((left, top, left + width, top + height))
        return np.asarray(image)

    def normalise(self, images: jax.Array | np.ndarray) -> jax.Array:
        """`[B, H, W, 3]` uint8 -> `[B, 3, H, W]` float32; may run under `jax.jit`."""
        scaled = jnp.asarray(images).astype(jnp.float32) * self.scale
        return ((scaled - jnp.array(self.mean)) / jnp.array(self.std)).transpose(0, 3, 1, 2)

    def describe(self) -> str:
        """All of it in words."""
        steps = []
        if self.resize is not None:
            to = f"short side {self.resize}"
            if isinstance(self.resize, tuple):
                to = f"{self.resize[0]} x {self.resize[1]}"
            steps.append(f"resize to {to}, {self.resample.name.lower()}")
        if self.crop is not None:
            steps.append(f"centre crop {self.crop[0]} x {self.crop[1]}")
        mean, std = (", ".join(f"{x:g}" for x in values) for values in (self.mean, self.std))
        return "; ".join([*steps, f"times {self.scale:.6g}", f"mean ({mean})", f"std ({std})"])


def _resized(height: int, width: int, resize: int | Size) -> Size:
    if isinstance(resize, tuple):
        return resize
    if height <= width:
        return resize, int(resize * width / height)
    return int(resize * height / width), resize


def _start(size: int, crop: int) -> int:
    """Where torchvision's CenterCrop starts: it rounds halves to even numbers, but not padding."""
    return round((size - crop) / 2) if size >= crop else -((crop - size) // 2)


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
    if len(value) != 3 or (name == "image_std" and min(value) <= 0):
        raise ValueError(f"{name} is {value!r}, not three numbers, positive ones for image_std")
    red, green, blue = map(float, value)
    return red, green, blue
