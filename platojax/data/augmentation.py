"""Augmentation of pictures: a random crop, a flip, and changes of colour, sharpness and tone.

What is done to a picture is drawn first, then done: so one decoding serves all crops of a picture,
at the lowest resolution that they need, and all frames of a clip are changed alike.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageFilter

from platojax.data.images import ImageSource, image_size, open_image

# Strengths for brightness, contrast, saturation and hue; see `Augmentation`.
Jitter = tuple[float, float, float, float]

_BLUR_SIGMAS = 0.1, 2.0  # pixels of the view
_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601
_PIXELS_AT_ONCE = 4096  # their float64 colours fit the cores' caches


@dataclasses.dataclass(frozen=True)
class Transform:
    """What is done to a picture, or to all frames of a clip, for one view.

    Attributes:
      size: side of the view in pixels.
      extent: width and height of the picture that `box` refers to, in pixels.
      box: left, top, right and bottom of the part that the view shows.
      flip: whether left and right change places.
      colours: factors of brightness, contrast and saturation, and the turn of the hue (1 is the
        whole circle); None for no change.
      grey: whether the colours are taken away.
      blur: standard deviation of the Gaussian in pixels of the view; 0 for none.
      solarise: whether tones of 128 or more are inverted.
    """

    size: int
    extent: tuple[int, int]
    box: tuple[int, int, int, int]
    flip: bool
    colours: tuple[float, float, float, float] | None
    grey: bool = False
    blur: float = 0.0
    solarise: bool = False

    @property
    def reduction(self) -> float:
        """How many pixels of the picture lie along one of the view, in the narrower direction."""
        left, top, right, bottom = self.box
        return min(right - left, bottom - top) / self.size

    def apply(self, image: Image.Image) -> np.ndarray:
        """The view of an RGB image of this extent or, decoded at less, of its proportions.

        Returns:
          `[size, size, 3]` uint8.
        """
        across, down = image.width / self.extent[0], image.height / self.extent[1]
        left, top, right, bottom = self.box
        box = left * across, top * down, right * across, bottom * down
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        pixels = np.asarray(image)
        if self.colours is not None or self.grey:
            pixels = _change_colours(pixels, self.colours, self.grey)
        if self.blur:
            pixels = np.asarray(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(self.blur)))
        if self.solarise:
            pixels = np.minimum(pixels, 255 - pixels)
        return pixels[:, ::-1] if self.flip else pixels


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """What may be done to a picture for a view, and how often.

    Attributes:
      size: side of the view in pixels.
      min_scale: smallest crop, as a share of the area; aspect ratios lie in [3/4, 4/3].
      max_scale: largest crop.
      jitter: strengths for brightness, contrast, saturation and hue, each in [0, 1]. Of the first
        three, a factor is drawn from [1 - strength, 1 + strength]; the hue is turned about the grey
        axis by at most the last, as a share of the circle.
      jitter_probability: that the colours are jittered.
      grey: probability that they are taken away.
      blur: probability of a Gaussian blur of .1 to 2 pixels.
      solarise: probability that tones of 128 or more are inverted.
    """

    size: int
    min_scale: float
    max_scale: float
    jitter: Jitter
    jitter_probability: float = 1.0
    grey: float = 0.0
    blur: float = 0.0
    solarise: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.min_scale <= self.max_scale <= 1:
            raise ValueError(
                f"crops take from {self.min_scale:g} to {self.max_scale:g} of the area; the limits "
                "must be in (0, 1], the lower one first."
            )
        if len(self.jitter) != 4 or not all(0 <= strength <= 1 for strength in self.jitter):
            raise ValueError(
                "views.jitter must be the strengths for brightness, contrast, saturation and hue, "
                f"each in [0, 1]; got {self.jitter}."
            )
        for name in ("jitter_probability", "grey", "blur", "solarise"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(
                    f"views.{name} is a probability, in [0, 1]; got {getattr(self, name)}."
                )

    def draw(self, extent: tuple[int, int], rng: np.random.Generator) -> Transform:
        """What to do for one view of a picture of this width and height."""
        width, height = extent
        area = height * width * _uniform(rng, self.min_scale, self.max_scale)
        aspect = math.exp(_uniform(rng, math.log(3 / 4), math.log(4 / 3)))
        crop_width = min(width, max(1, round(math.sqrt(area * aspect))))
        crop_height = min(height, max(1, round(math.sqrt(area / aspect))))
        left = int(rng.integers(width - crop_width + 1))
        top = int(rng.integers(height - crop_height + 1))
        box = (left, top, left + crop_width, top + crop_height)
        flip = rng.random() < 0.5
        *strengths, hue = self.jitter
        colours: list[float] = [_uniform(rng, 1 - by, 1 + by) for by in strengths]
        colours.append(_uniform(rng, -hue, hue) if hue else 0.0)
        jittered = self.jitter_probability == 1 or rng.random() < self.jitter_probability
        return Transform(
            self.size,
            extent,
            box,
            flip,
            (colours[0], colours[1], colours[2], colours[3]) if jittered else None,
            grey=_happens(rng, self.grey),
            blur=_uniform(rng, *_BLUR_SIGMAS) if _happens(rng, self.blur) else 0.0,
            solarise=_happens(rng, self.solarise),
        )


def apply_transforms(source: ImageSource, transforms: Sequence[Transform]) -> list[np.ndarray]:
    """Views of one picture, which is decoded once.

    Args:
      source: see `images.open_image`.
      transforms: one for each view, of the picture's extent.

    Returns:
      `[size, size, 3]` uint8 of each.

    Raises:
      ValueError: the picture cannot be decoded.
    """
    reduction = max(1.0, min(transform.reduction for transform in transforms))
    width, height = transforms[0].extent
    enough = math.ceil(width / reduction), math.ceil(height / reduction)
    image = open_image(source, at_least=enough)
    return [transform.apply(image) for transform in transforms]


def augment(
    source: ImageSource, rng: np.random.Generator, augmentations: Sequence[Augmentation]
) -> list[np.ndarray]:
    """One view of a picture by each of these: `[size, size, 3]` uint8; see `apply_transforms`."""
    extent = image_size(source)
    return apply_transforms(source, [one.draw(extent, rng) for one in augmentations])


def _uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return low + (high - low) * rng.random()


def _happens(rng: np.random.Generator, probability: float) -> bool:
    """Draws nothing where the answer is known."""
    return probability > 0 and rng.random() < probability


def _change_colours(
    pixels: np.ndarray, colours: tuple[float, float, float, float] | None, grey: bool
) -> np.ndarray:
    """All changes of colour as one affine map, so that they are rounded and clipped once.

    Args:
      pixels: `[H, W, 3]` uint8.
      colours: see `Transform`. Contrast is about the mean of all values, saturation about the mean
        of a pixel's three.
      grey: see `Transform`.
    """
    matrix, offset = np.eye(3), 0.5  # to round when it becomes whole
    if colours is not None:
        brightness, contrast, saturation, hue = colours
        gain = brightness * contrast
        other = gain * (1 - saturation) / 3
        same = other + gain * saturation
        matrix = np.array([[same, other, other], [other, same, other], [other, other, same]])
        if hue:
            matrix = _hue_rotation(hue) @ matrix
        offset += brightness * (1 - contrast) * int(pixels.sum()) / pixels.size
    if grey:
        matrix = np.tile(_LUMA, (3, 1)) @ matrix
    mix = np.ascontiguousarray(matrix.T)
    flat = np.ascontiguousarray(pixels).reshape(-1, 3)
    changed = np.empty_like(flat)
    for start in range(0, len(flat), _PIXELS_AT_ONCE):
        part = flat[start : start + _PIXELS_AT_ONCE].astype(np.float64) @ mix
        part += offset
        np.maximum(part, 0, out=part)
        np.minimum(part, 255, out=part)
        changed[start : start + _PIXELS_AT_ONCE] = part
    return changed.reshape(pixels.shape)


def _hue_rotation(turn: float) -> np.ndarray:
    """The rotation of colours about the grey axis (Rodrigues' formula): `[3, 3]`."""
    angle = 2 * math.pi * turn
    cross = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]) / math.sqrt(3)
    return math.cos(angle) * np.eye(3) + math.sin(angle) * cross + (1 - math.cos(angle)) / 3
