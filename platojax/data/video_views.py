"""View policies for the clips of a scene; see data/views.py."""

import dataclasses
import functools

import numpy as np

from platojax.data.augmentation import Augmentation, Jitter
from platojax.data.scenes import Scene, of_sources
from platojax.data.video import read_frames


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoSegments:
    """Two segments of one clip that do not overlap, each as a few frames far apart.

    A segment is cut into as many stretches as there are frames, and one frame is drawn from each
    (sparse sampling, arXiv 1608.00859). All frames of a segment are cropped, flipped and jittered
    alike, those of the other in another way.

    Attributes:
      size: side of the frames in pixels.
      frames: of a segment.
      sources: of the clips, as named in the data; all where empty.
      length: of a segment, as a share of the clip; at most half.
      min_scale: smallest crop, as a share of the area.
      jitter: strengths for brightness, contrast, saturation and hue.
    """

    size: int
    frames: int = 4
    sources: tuple[str, ...] = ()
    length: float = 0.4
    min_scale: float = 0.6
    jitter: Jitter = (0.2, 0.2, 0.2, 0.0)

    def __post_init__(self) -> None:
        if self.frames < 1:
            raise ValueError(f"views.frames must be at least 1; got {self.frames}.")
        if not 0 < self.length <= 0.5:
            raise ValueError(
                f"views.length is the share of a clip that a segment takes, in (0, .5]; "
                f"got {self.length}."
            )
        _ = self.augmentation  # refuses what cannot be

    @functools.cached_property
    def augmentation(self) -> Augmentation:
        """Of the frames of a segment."""
        return Augmentation(self.size, self.min_scale, 1.0, self.jitter)

    def __call__(self, scene: Scene, rng: np.random.Generator) -> np.ndarray:
        """`[2, frames, size, size, 3]` uint8; the earlier segment is the first or the second."""
        clips = of_sources(scene, scene.clips, "clips", self.sources, at_least=1)
        clip = clips[int(rng.integers(len(clips)))].content
        frames = read_frames(clip, self.moments(rng).ravel().tolist())
        views = []
        for segment in (frames[: self.frames], frames[self.frames :]):
            transform = self.augmentation.draw(segment[0].size, rng)
            views.append(np.stack([transform.apply(frame) for frame in segment]))
        return np.stack(views if rng.random() < 0.5 else views[::-1])

    def moments(self, rng: np.random.Generator) -> np.ndarray:
        """When the frames of both segments are, as shares of the clip: `[2, frames]`, ascending."""
        starts = np.sort(rng.random(2)) * (1 - 2 * self.length) + [0, self.length]
        within = (np.arange(self.frames) + rng.random((2, self.frames))) / self.frames
        return starts[:, None] + within * self.length

    def example(self) -> np.ndarray:
        """What one scene gives, but zero: `[2, 1, frames, size, size, 3]` uint8."""
        return np.zeros((2, 1, self.frames, self.size, self.size, 3), np.uint8)
