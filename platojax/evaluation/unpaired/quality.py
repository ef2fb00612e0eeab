"""How much geometry two sides share, without labels: against none at all and against all of it."""

import dataclasses

import numpy as np

from platojax.evaluation.unpaired.refinement import matched_cosine, unit
from platojax.evaluation.unpaired.search import MEASURED, Side


def gaussian_copy(side: Side, rng: np.random.Generator) -> Side:
    """As many items with the same covariance, and otherwise without any shape.

    Args:
        side: what is copied.
        rng: of the items.

    Returns:
        Unit rows in the same axes.
    """
    noise = rng.standard_normal(side.rows.shape)
    return dataclasses.replace(
        side, rows=unit((noise * np.sqrt(side.variances)).astype(np.float32))
    )


def shared_geometry(x: Side, y: Side, rotation: np.ndarray, null_cosine: float) -> float:
    """Where a matched cosine lies between those of no shared geometry and of perfectly shared one.

    Nothing is shared with a Gaussian copy of y, all of it with one half of a side where the other
    is stretched, axis by axis, to the variances of the opposite side: that is one space in two
    spectra. The mean of both sides' is taken.

    Args:
        x: one side.
        y: the other.
        rotation: [Kx, Ky], found between their leading axes.
        null_cosine: the best matched cosine that a like search finds with a Gaussian copy of y.

    Returns:
        0 for no more than chance, 1 for all; above 1 where items of the two sides lie closer
        together than disjoint items of one.
    """
    found = matched_cosine(unit(x.rows[:MEASURED] @ rotation), y.rows[:MEASURED])
    ceiling = (_ceiling(x, y) + _ceiling(y, x)) / 2
    return (found - null_cosine) / max(ceiling - null_cosine, float(np.finfo(np.float32).eps))


def _ceiling(side: Side, other: Side) -> float:
    """The matched cosine of disjoint halves of a side, the second with the other's variances."""
    axes = min(side.rows.shape[1], other.rows.shape[1])
    count = min(MEASURED, len(side.rows) // 2)
    least = np.finfo(np.float32).eps * side.variances.max()
    stretch = np.sqrt(other.variances[:axes] / np.maximum(side.variances[:axes], least))
    stretched = (side.rows[-count:, :axes] * stretch).astype(np.float32)
    padded = np.pad(unit(stretched), ((0, 0), (0, side.rows.shape[1] - axes)))
    return matched_cosine(side.rows[:count], padded)
