"""View policies for the pictures of a scene; see data/views.py."""

import dataclasses
import functools

import numpy as np

from platojax.data.augmentation import Augmentation, Jitter, augment
from platojax.data.images import ImageSource
from platojax.data.scenes import Scene, of_sources


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ImageViews:
    """What each of these policies can be told.

    Attributes:
      size: side of the views in pixels.
      sources: of the pictures, as named in the data; all where empty.
      min_scale: smallest crop, as a share of the area.
      jitter: strengths for brightness, contrast, saturation and hue; see
        `augmentation.Augmentation`, also for the probabilities.
      jitter_probability: that the colours are jittered.
      grey: probability that they are taken away.
      blur: probability of a blur.
      solarise: probability that light tones are inverted.
    """

    size: int
    sources: tuple[str, ...] = ()
    min_scale: float
    jitter: Jitter
    jitter_probability: float = 1.0
    grey: float = 0.0
    blur: float = 0.0
    solarise: float = 0.0

    def __post_init__(self) -> None:
        _ = self.augmentation  # refuses what cannot be

    @functools.cached_property
    def augmentation(self) -> Augmentation:
        """Of a view of the whole size."""
        return self._augmentation(self.size, self.min_scale, 1.0)

    def _augmentation(self, size: int, min_scale: float, max_scale: float) -> Augmentation:
        return Augmentation(
            size,
            min_scale,
            max_scale,
            self.jitter,
            self.jitter_probability,
            self.grey,
            self.blur,
            self.solarise,
        )

    def _pictures(self, scene: Scene, *, at_least: int) -> list[ImageSource]:
        found = of_sources(scene, scene.pictures, "pictures", self.sources, at_least=at_least)
        return [picture.content for picture in found]

    def _picture(self, scene: Scene, rng: np.random.Generator) -> ImageSource:
        """One of them, by chance."""
        pictures = self._pictures(scene, at_least=1)
        return pictures[rng.integers(len(pictures))]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoPictures(_ImageViews):
    """Good views: two pictures of the scene, each slightly cropped and jittered.

    Attributes: as of `_ImageViews`.
    """

    min_scale: float = 0.6
    jitter: Jitter = (0.2, 0.2, 0.2, 0.0)

    def __call__(self, scene: Scene, rng: np.random.Generator) -> np.ndarray:
        """`[2, size, size, 3]` uint8."""
        pictures = self._pictures(scene, at_least=2)
        chosen = rng.choice(len(pictures), 2, replace=False)
        return np.stack(
            [view for i in chosen for view in augment(pictures[i], rng, [self.augmentation])]
        )

    def example(self) -> np.ndarray:
        """What one scene gives, but zero: `[2, 1, size, size, 3]` uint8."""
        return np.zeros((2, 1, self.size, self.size, 3), np.uint8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoCrops(_ImageViews):
    """Bad views: two crops of one picture, augmented lightly.

    Attributes: as of `_ImageViews`.
    """

    min_scale: float = 0.3
    jitter: Jitter = (0.4, 0.4, 0.4, 0.0)

    def __call__(self, scene: Scene, rng: np.random.Generator) -> np.ndarray:
        """`[2, size, size, 3]` uint8."""
        return np.stack(augment(self._picture(scene, rng), rng, [self.augmentation] * 2))

    def example(self) -> np.ndarray:
        """What one scene gives, but zero: `[2, 1, size, size, 3]` uint8."""
        return np.zeros((2, 1, self.size, self.size, 3), np.uint8)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiCrop(_ImageViews):
    """Bad views: large and small crops of one picture, augmented as LeJEPA does (2511.08544).

    Attributes: as of `_ImageViews`, and
      local_size: side of the local views in pixels: a multiple of the patch size, LeJEPA's is 98.
      num_global: how many views of the whole size.
      num_local: how many of `local_size`.
      local_max_scale: crops of at least this share of the area are global, smaller ones local.
    """

    local_size: int
    num_global: int = 2
    num_local: int = 6
    min_scale: float = 0.05
    local_max_scale: float = 0.3
    jitter: Jitter = (0.4, 0.4, 0.2, 0.1)
    jitter_probability: float = 0.8
    grey: float = 0.2
    blur: float = 0.5
    solarise: float = 0.2

    def __post_init__(self) -> None:
        for field in ("local_size", "num_global", "num_local"):
            if getattr(self, field) < 1:
                raise ValueError(f"views.{field} must be at least 1; got {getattr(self, field)}.")
        _ = self.augmentations  # refuses what cannot be

    @functools.cached_property
    def augmentations(self) -> list[Augmentation]:
        """Of the global views, then of the local ones."""
        large = self._augmentation(self.size, self.local_max_scale, 1.0)
        small = self._augmentation(self.local_size, self.min_scale, self.local_max_scale)
        return [*[large] * self.num_global, *[small] * self.num_local]

    def __call__(self, scene: Scene, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """`[num_global, size, size, 3]` and `[num_local, local_size, local_size, 3]` uint8."""
        views = augment(self._picture(scene, rng), rng, self.augmentations)
        return np.stack(views[: self.num_global]), np.stack(views[self.num_global :])

    def example(self) -> tuple[np.ndarray, np.ndarray]:
        """What one scene gives, but zero, with an axis of 1 for the scene after the views'."""
        return (
            np.zeros((self.num_global, 1, self.size, self.size, 3), np.uint8),
            np.zeros((self.num_local, 1, self.local_size, self.local_size, 3), np.uint8),
        )
