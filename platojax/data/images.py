"""Images as they come: files, encoded bytes or pixels; opened as RGB, or refused with a reason."""

import hashlib
import io
import pathlib
from typing import Any

import numpy as np
from PIL import Image, ImageOps

ImageSource = pathlib.Path | bytes | np.ndarray

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")


def open_image(source: ImageSource) -> Image.Image:
    """Opens an image in RGB.

    The rotation that a camera noted (EXIF) is applied; palettes, grey, CMYK and 16 bits become RGB,
    transparency becomes white, and of an animation the first frame counts. May be called from
    several threads.

    Args:
      source: a file, an encoded image, or `[H, W, 3]` uint8.

    Raises:
      ValueError: it is no image, is truncated, or is so large that it may be an attack.
    """
    if isinstance(source, np.ndarray):
        return Image.fromarray(source)
    name = str(source) if isinstance(source, pathlib.Path) else f"an image of {len(source)} bytes"
    try:
        file: Any = io.BytesIO(source) if isinstance(source, bytes) else source
        with Image.open(file) as image:
            # Pillow itself only warns, up to twice as many.
            if Image.MAX_IMAGE_PIXELS and image.width * image.height > Image.MAX_IMAGE_PIXELS:
                raise ValueError(
                    f"{image.width} x {image.height} pixels are more than "
                    f"{Image.MAX_IMAGE_PIXELS:,}; it may be a decompression bomb"
                )
            return _to_rgb(ImageOps.exif_transpose(image))
    except FileNotFoundError:
        raise
    except Exception as error:  # Pillow's readers each raise their own kinds
        raise ValueError(f"{name} cannot be read as an image: {error}; replace it") from error


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of an unknown range")
    if image.mode.startswith("I"):  # of 16 bits, also where Pillow has 32 for them
        pixels = np.asarray(image)
        if pixels.max(initial=0) > 0xFFFF:
            raise ValueError("its pixels have more than 16 bits")
        # Pillow would clip to 255 what goes up to 65535.
        return Image.fromarray((pixels >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        layered = image.convert("RGBA")
        page = Image.new("RGBA", layered.size, "white")
        return Image.alpha_composite(page, layered).convert("RGB")
    return image.convert("RGB")


def hash_image(source: ImageSource) -> str:
    """SHA-256 (hexadecimal) of the file's bytes, or of the pixels and their shape."""
    if isinstance(source, pathlib.Path):
        with source.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    return hashlib.sha256(f"{source.shape}".encode() + source.tobytes()).hexdigest()
