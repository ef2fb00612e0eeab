"""It's a (Blind) Match (arXiv 2503.24129): which class of one space is which of another."""

import dataclasses
from typing import Literal, get_args

import numpy as np
from jax.typing import ArrayLike

from platojax.evaluation.alignment import check_rows
from platojax.evaluation.rotation import Rotation, paired_rows, procrustes
from platojax.evaluation.unpaired.clusters import centred_gram
from platojax.evaluation.unpaired.qap import quadratic_assignment
from platojax.evaluation.unpaired.refinement import unit

Kernel = Literal["gram", "distance"]


@dataclasses.dataclass(frozen=True, eq=False)
class BlindMatch:
    """A matching of classes without labels.

    Attributes:
        permutation: [C] int32: class i of x is class permutation[i] of y.
        correlation: how well the matched kernels agree, 1 where the classes lie alike: the linear
            CKA of the means for "gram", the correlation of the pairwise distances for "distance".
        rotation: the Procrustes fit on the matched means.
    """

    permutation: np.ndarray
    correlation: float
    rotation: Rotation


def blind_match(
    x: ArrayLike, y: ArrayLike, *, kernel: Kernel = "distance", seed: int = 0
) -> BlindMatch:
    """Matches two sets of classes by the geometry of their means.

    The permutation under which the pairwise kernels agree best is a quadratic assignment problem:
    with distances, the Gromov-Wasserstein loss sum_ij (|x_i - x_j| - |y_pi - y_pj|)^2, the paper's
    choice; with the Gram matrices of centred means, CKA. As there, the means are scaled to unit
    rows first.

    Args:
        x: [C, Dx], the means of x's classes, or cluster centres.
        y: [C, Dy], the means of as many classes of y in any order; Dy may differ from Dx.
        kernel: "distance" or "gram".
        seed: of the search's starts.

    Returns:
        The matching, its rotation and how well the kernels agree.

    Raises:
        ValueError: the kernel is unknown, the numbers of classes differ or are less than three, a
            side is not finite or has collapsed, or a class equals the mean of its side.
    """
    if kernel not in get_args(Kernel):
        raise ValueError(f"kernel={kernel!r} is unknown; choose one of {get_args(Kernel)}")
    means_x, means_y = paired_rows(x, y)
    if len(means_x) < 3:
        raise ValueError(f"{len(means_x)} classes have no geometry: needed are at least 3")
    check_rows("x", means_x)
    check_rows("y", means_y)
    matching = quadratic_assignment(
        _kernel("x", means_x, kernel), _kernel("y", means_y, kernel), seed=seed
    )
    permutation = matching.permutation[0]
    rotation = procrustes(means_x, means_y[permutation])
    return BlindMatch(permutation, float(matching.correlation[0]), rotation)


def _kernel(name: str, means: np.ndarray, kernel: Kernel) -> np.ndarray:
    """[C, C] float64, not zero: the Gram matrix, or the distances around their mean."""
    gram = centred_gram(unit(means)[None])[0]
    if kernel == "gram":
        return gram
    squares = np.diag(gram)
    distances = np.sqrt(np.maximum(squares[:, None] + squares[None, :] - 2 * gram, 0))
    others = ~np.eye(len(means), dtype=bool)
    # The mean moves no optimum; around it, the objective is a correlation.
    around = np.where(others, distances - distances[others].mean(), 0.0)
    if np.abs(around).max() <= 1e-6 * distances.max():
        raise ValueError(f"{name}: all classes lie equally far apart, so nothing tells them apart")
    return around
