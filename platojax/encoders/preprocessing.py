"""Images as frozen encoders saw them when they were trained: resizing, cropping, normalising."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

_MOST_PIXELS = 2**26

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
        resize = self.resize if isinstance(self.resize, tuple | None) else (self.resize,) * 2
        for name, size in (("resize", resize), ("crop", self.crop)):
            if size is not None and not (
                len(size) == 2 and all(type(side) is int and side > 0 for side in size)
            ):
                raise ValueError(f"{name} is {size}, not a number of pixels for height and width")
        for name, values in (("mean", self.mean), ("std", self.std), ("scale", (self.scale,))):
            if not all(map(math.isfinite, values)) or (name != "mean" and min(values) <= 0):
                raise ValueError(f"{name} is {values}, not finite, and positive but for the mean")
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
            if height * width > _MOST_PIXELS:
                raise ValueError(
                    f"an image of {image.width} x {image.height} pixels would be resized to "
                    f"{width} x {height}: it is too long for its width; crop it"
                )
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
