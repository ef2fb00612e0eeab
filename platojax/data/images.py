"""Images as they come: files, encoded bytes or pixels; opened as RGB, or refused with a reason."""

import contextlib
import hashlib
import io
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps

ImageSource = pathlib.Path | bytes | np.ndarray

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")


# Pillow reads some forty formats more, and hands PostScript to a program.
_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")


class ImageTooLargeError(ValueError):
    """An image is so large that decoding it may be what an attacker wants."""


def open_image(source: ImageSource, at_least: tuple[int, int] | None = None) -> Image.Image:
    """Opens an image in RGB: JPEG, PNG, WebP, BMP, GIF or TIFF.

    The rotation that a camera noted (EXIF) is applied; palettes, grey, CMYK and 16 bits become RGB,
    transparency becomes white, and of an animation the first frame counts. May be called from
    several threads.

    Args:
      source: a file, an encoded image, or `[H, W, 3]` uint8.
      at_least: a width and height that suffice: a JPEG is decoded at a half, a quarter or an
        eighth of its own where that is no less, which takes a fraction of the time.

    Raises:
      ImageTooLargeError: it is so large that it may be an attack.
      ValueError: it is no image of these formats, or is truncated.
      FileNotFoundError: the file does not exist.
    """
    if isinstance(source, np.ndarray):
        return Image.fromarray(source)
    with _opened(source) as image:
        if at_least is not None:
            image.draft(None, at_least[::-1] if _is_turned(image) else at_least)
        return _to_rgb(ImageOps.exif_transpose(image))


def image_size(source: ImageSource) -> tuple[int, int]:
    """Width and height of an image as `open_image` gives it, whose pixels are not decoded.

    Raises:
      ImageTooLargeError: it is so large that it may be an attack.
      ValueError: it is no image.
      FileNotFoundError: the file does not exist.
    """
    if isinstance(source, np.ndarray):
        return source.shape[1], source.shape[0]
    with _opened(source) as image:
        return (image.height, image.width) if _is_turned(image) else image.size


@contextlib.contextmanager
def _opened(source: pathlib.Path | bytes) -> Iterator[Image.Image]:
    """The image before its pixels are decoded; whatever is wrong with it becomes a ValueError."""
    name = str(source) if isinstance(source, pathlib.Path) else f"an image of {len(source)} bytes"
    try:
        file: Any = io.BytesIO(source) if isinstance(source, bytes) else source
        with Image.open(file, formats=_FORMATS) as image:
            # Pillow itself only warns, up to twice as many.
            if Image.MAX_IMAGE_PIXELS and image.width * image.height > Image.MAX_IMAGE_PIXELS:
                raise Image.DecompressionBombError(
                    f"{image.width} x {image.height} pixels are more than "
                    f"{Image.MAX_IMAGE_PIXELS:,}; it may be a decompression bomb"
                )
            yield image
    except FileNotFoundError:
        raise
    except Exception as error:  # Pillow's readers each raise their own kinds
        bomb = isinstance(error, Image.DecompressionBombError)
        kind = ImageTooLargeError if bomb else ValueError
        raise kind(f"{name} cannot be read as an image: {error}; replace it") from error


def _is_turned(image: Image.Image) -> bool:
    """Whether the camera's rotation swaps width and height."""
    return image.getexif().get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8)


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
