"""Zero-shot classification: an image is of the class whose prompts are nearest.

Images and classes are in one space, where `rotation` has taken one of them.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class ZeroShot:
    """How often the class is right.

    Attributes:
        n: number of images.
        num_classes: C.
        top1: share of images whose class is the nearest.
        top5: share of images whose class is among the five nearest.
        per_class: top-1 share of each class's images; None where it has none.
    """

    n: int
    num_classes: int
    top1: float
    top5: float
    per_class: tuple[float | None, ...]

    @property
    def chance(self) -> tuple[float, float]:
        """Top-1 and top-5 of guesses."""
        return 1 / self.num_classes, min(5 / self.num_classes, 1.0)

    def to_json(self) -> dict[str, Any]:
        """All of it, as values that JSON knows."""
        return dataclasses.asdict(self) | {
            "per_class": list(self.per_class),
            "chance": list(self.chance),
        }


def zero_shot(images: np.ndarray, classes: np.ndarray, labels: Sequence[int]) -> ZeroShot:
    """Classifies images by the class with the largest cosine.

    The rank of the right class counts the classes that are nearer, and half of those as near.

    Args:
        images: [N, D] features of images.
        classes: [C, D] features of classes, such as means over prompts, in the same space.
        labels: N numbers of classes.

    Raises:
        ValueError: the widths differ; labels are not as many as images, or name no classes.
    """
    if images.shape[1] != classes.shape[1]:
        raise ValueError(
            f"images have width {images.shape[1]} and classes {classes.shape[1]}: map one into the "
            "space of the other first"
        )
    truth = np.asarray(labels)
    if truth.shape != (len(images),) or not np.issubdtype(truth.dtype, np.integer):
        raise ValueError(f"labels have shape {truth.shape}; needed is a class number per image")
    if truth.min() < 0 or truth.max() >= len(classes):
        raise ValueError(
            f"labels are {truth.min()} to {truth.max()}, but there are {len(classes)} classes"
        )
    scores = images @ (classes / np.linalg.norm(classes, axis=1, keepdims=True)).T
    own = np.take_along_axis(scores, truth[:, None], axis=1)
    ranks = 1 + (scores > own).sum(1) + ((scores == own).sum(1) - 1) / 2
    right = ranks == 1
    return ZeroShot(
        n=len(images),
        num_classes=len(classes),
        top1=float(np.mean(right)),
        top5=float(np.mean(ranks <= 5)),
        per_class=tuple(
            float(np.mean(right[truth == number])) if (truth == number).any() else None
            for number in range(len(classes))
        ),
    )
