"""Linear maps from one encoder's space into another's, fitted on paired items."""

import dataclasses

import numpy as np
from jax.typing import ArrayLike

from platojax.evaluation.alignment import as_layers


@dataclasses.dataclass(frozen=True, eq=False)
class Rotation:
    """A rotation between two spaces, each centred by its own training mean and of unit rows.

    Attributes:
        matrix: [Dx, Dy] float32, semi-orthogonal: orthonormal columns if Dx >= Dy, else rows.
        mean_x: [Dx] float32, the mean of x's training items.
        mean_y: [Dy] float32, the mean of y's training items.
    """

    matrix: np.ndarray
    mean_x: np.ndarray
    mean_y: np.ndarray

    def apply(self, x: ArrayLike) -> np.ndarray:
        """Maps x into y's space: centred, scaled to unit rows, rotated.

        Args:
            x: [M, Dx], any items.

        Returns:
            [M, Dy] float32, to be compared with `target` of y, by cosine. Rows have length 1 unless
            Dx > Dy, where the rotation leaves out Dx - Dy dimensions.

        Raises:
            ValueError: x is not finite, has another width, or an item equals the training mean.
        """
        return unit_around("x", x, self.mean_x) @ self.matrix

    def target(self, y: ArrayLike) -> np.ndarray:
        """What `apply` aims at: y centred by its training mean, scaled to unit rows.

        Args:
            y: [M, Dy], any items.

        Returns:
            [M, Dy] float32.

        Raises:
            ValueError: as `apply`.
        """
        return unit_around("y", y, self.mean_y)


def procrustes(x: ArrayLike, y: ArrayLike) -> Rotation:
    """Fits the rotation that takes x closest to y: orthogonal Procrustes (Schönemann, 1966).

    With X and Y centred and scaled to unit rows and X^T Y = U S V^T, the matrix is U V^T: it
    maximises sum_i <x_i R, y_i> over all R with orthonormal columns or rows.

    Args:
        x: [N, Dx] features.
        y: [N, Dy] features of the same items in the same order; Dy may differ from Dx.

    Returns:
        The rotation from x's space into y's.

    Raises:
        ValueError: a side is not finite, has more than one layer or fewer than two items, or an
            item equals the mean of its side; the numbers of items differ.
    """
    x, y = paired_rows(x, y)
    mean_x, mean_y = (side.mean(axis=0, dtype=np.float64).astype(np.float32) for side in (x, y))
    product = unit_around("x", x, mean_x).T @ unit_around("y", y, mean_y)
    u, _, vt = np.linalg.svd(product.astype(np.float64), full_matrices=False)
    return Rotation((u @ vt).astype(np.float32), mean_x, mean_y)


def paired_rows(x: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Checks two sides of paired items, one layer each.

    Args:
        x: [N, Dx], or [N, 1, Dx].
        y: [N, Dy], or [N, 1, Dy].

    Returns:
        [N, Dx] and [N, Dy] float32.

    Raises:
        ValueError: a side is not finite, has more than one layer or fewer than two items; the
            numbers of items differ.
    """
    x, y = _rows("x", x), _rows("y", y)
    if len(x) != len(y):
        raise ValueError(
            f"x has {len(x)} items and y has {len(y)}: row i of both must be the same item"
        )
    if len(x) < 2:
        raise ValueError("x and y have 1 item, which is too few: needed are at least 2")
    return x, y


def unit_around(name: str, x: ArrayLike, mean: np.ndarray) -> np.ndarray:
    """Centres by a mean and scales rows to unit length.

    Args:
        name: what errors call the features.
        x: [M, D].
        mean: [D].

    Returns:
        [M, D] float32.

    Raises:
        ValueError: x is not finite, has another width than the mean, or an item equals the mean.
    """
    rows = _rows(name, x)
    if rows.shape[1] != len(mean):
        raise ValueError(
            f"{name} has width {rows.shape[1]}, but the map was fitted on width {len(mean)}"
        )
    centered = rows - mean
    magnitudes = np.abs(centered).max(axis=1, keepdims=True)
    # What is left of a row that equals the mean is rounding, which has no direction either.
    rounding = np.finfo(np.float32).eps * np.abs(mean).max()
    lost = np.flatnonzero(magnitudes[:, 0] <= rounding)
    if len(lost):
        raise ValueError(
            f"{name}: item {lost[0]} equals the mean of the training items ({len(lost)} such "
            "items), so it has no direction; leave these items out on both sides"
        )
    centered /= magnitudes  # whose squares stay within float32
    return centered / np.linalg.norm(centered, axis=1, keepdims=True)


def _rows(name: str, x: ArrayLike) -> np.ndarray:
    layers = as_layers(name, x)
    if layers.shape[1] != 1:
        raise ValueError(f"{name} has {layers.shape[1]} layers; select one")
    return layers[:, 0]
