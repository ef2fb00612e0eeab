"""Image files that the tests write."""

import io

import numpy as np
from PIL import Image


def pixels(width=96, height=64, seed=0) -> np.ndarray:
    """Smooth random colours, as photographs have them: uint8 [height, width, 3]."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def encode(image: np.ndarray | Image.Image, form: str = "JPEG", **options) -> bytes:
    """As a file of this format."""
    file = io.BytesIO()
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    image.save(file, form, **options)
    return file.getvalue()


def turned(image: np.ndarray, orientation: int) -> bytes:
    """A JPEG whose camera noted that it was held in another way."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encode(image, exif=exif, quality=95)
