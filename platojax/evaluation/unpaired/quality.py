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


def in_random_order(side: Side, rng: np.random.Generator) -> Side:
    """The same items; as they come, they may be sorted."""
    return dataclasses.replace(side, rows=side.rows[rng.permutation(len(side.rows))])


def shared_geometry(
    x: Side, y: Side, rotation: np.ndarray, null: Side, chance: np.ndarray
) -> float:
    """Where a matched cosine lies between those of no shared geometry and of perfectly shared one.

    Nothing is shared with a Gaussian copy of y, all of it with one half of a side where the other
    is stretched, axis by axis, to the variances of the opposite side: that is one space in two
    spectra. The mean of both sides' is taken. As many items are matched each time, for more items
    lie closer together: at most half of the smaller side, and 1,000.

    Args:
        x: one side, its rows in random order.
        y: the other, likewise.
        rotation: [Kx, Ky], found between their leading axes.
        null: a Gaussian copy of y.
        chance: [Kx, Ky], found by a like search between x and the copy.

    Returns:
        0 for no more than chance, and where there is no shape by which to tell (all of it would
        match no better than nothing does); 1 for all; above 1 where items of the two sides lie
        closer together than disjoint items of one.
    """
    count = min(MEASURED, len(x.rows) // 2, len(y.rows) // 2)

    def matched(side: Side, matrix: np.ndarray) -> float:
        return matched_cosine(unit(x.rows[:count] @ matrix), side.rows[:count])

    nothing = matched(null, chance)
    everything = (_ceiling(x, y, count) + _ceiling(y, x, count)) / 2
    if everything <= nothing:
        return 0.0
    return (matched(y, rotation) - nothing) / (everything - nothing)


def _ceiling(side: Side, other: Side, count: int) -> float:
    """The matched cosine of disjoint parts of a side, the second with the other's variances."""
    axes = min(side.rows.shape[1], other.rows.shape[1])
    least = np.finfo(np.float32).eps * side.variances.max()
    stretch = np.sqrt(other.variances[:axes] / np.maximum(side.variances[:axes], least))
    stretched = (side.rows[-count:, :axes] * stretch).astype(np.float32)
    padded = np.pad(unit(stretched), ((0, 0), (0, side.rows.shape[1] - axes)))
    return matched_cosine(side.rows[:count], padded)
