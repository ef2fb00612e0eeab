"""Linear maps from one encoder's space into another's, fitted on paired items.

Both spaces are centred by the means of their training items, optionally whitened, and scaled to
unit rows. Then a rotation (orthogonal Procrustes) or a ridge regression takes one into the other.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from jax.typing import ArrayLike

from platojax.evaluation.alignment import as_layers
from platojax.files import write_whole

# Added to the eigenvalues of a covariance before their inverse root, as a share of their mean:
# directions of least variance are noise, and whitening would make them count like all others.
_WHITENING_RIDGE = 0.1
# Penalties that `ridge` chooses from, as shares of the mean eigenvalue of X^T X.
_PENALTIES = tuple(10.0**power for power in range(-4, 4))
_HELD_OUT = 0.2


@dataclasses.dataclass(frozen=True, eq=False)
class LinearMap:
    """A linear map between two spaces, each centred by its own training mean and of unit rows.

    Attributes:
        matrix: [Dx, Dy] float32.
        mean_x: [Dx] float32, the mean of x's training items.
        mean_y: [Dy] float32, the mean of y's training items.
        whitener_x: [Dx, Dx] float32, applied after centring; None for no whitening.
        whitener_y: [Dy, Dy] float32 likewise.
    """

    matrix: np.ndarray
    mean_x: np.ndarray
    mean_y: np.ndarray
    whitener_x: np.ndarray | None = None
    whitener_y: np.ndarray | None = None

    def apply(self, x: ArrayLike) -> np.ndarray:
        """Maps x into y's space: centred, whitened where the map is, scaled to unit rows, mapped.

        Args:
            x: [M, Dx], any items.

        Returns:
            [M, Dy] float32, to be compared with `target` of y, by cosine.

        Raises:
            ValueError: x is not finite, has another width, or an item equals the training mean.
        """
        return unit_around("x", x, self.mean_x, self.whitener_x) @ self.matrix

    def target(self, y: ArrayLike) -> np.ndarray:
        """What `apply` aims at: y centred, whitened where the map is, scaled to unit rows.

        Args:
            y: [M, Dy], any items.

        Returns:
            [M, Dy] float32.

        Raises:
            ValueError: as `apply`.
        """
        return unit_around("y", y, self.mean_y, self.whitener_y)


@dataclasses.dataclass(frozen=True, eq=False)
class Rotation(LinearMap):
    """A map whose matrix is semi-orthogonal: orthonormal columns if Dx >= Dy, else rows.

    What it maps has unit rows, unless Dx > Dy, where it leaves out Dx - Dy dimensions.
    """


@dataclasses.dataclass(frozen=True, eq=False)
class RidgeMap(LinearMap):
    """A ridge regression.

    Attributes:
        penalty: share of the mean eigenvalue of X^T X that was added to all of them.
    """

    penalty: float = 0.0


def procrustes(x: ArrayLike, y: ArrayLike, *, whiten: bool = False) -> Rotation:
    """Fits the rotation that takes x closest to y: orthogonal Procrustes (Schönemann, 1966).

    With X and Y prepared as above and X^T Y = U S V^T, the matrix is U V^T: it maximises
    sum_i <x_i R, y_i> over all R with orthonormal columns or rows.

    Args:
        x: [N, Dx] features.
        y: [N, Dy] features of the same items in the same order; Dy may differ from Dx.
        whiten: whether to whiten both spaces first, which lets all directions count alike.

    Returns:
        The rotation from x's space into y's.

    Raises:
        ValueError: a side is not finite, has more than one layer or fewer than two items, or an
            item equals the mean of its side; the numbers of items differ.
    """
    side_x, side_y = _prepare(x, y, whiten)
    return Rotation(polar(side_x.rows.T @ side_y.rows), **_spaces(side_x, side_y))


def ridge(
    x: ArrayLike, y: ArrayLike, penalty: float | None = None, *, whiten: bool = False, seed: int = 0
) -> RidgeMap:
    """Fits a ridge regression from x to y.

    With X and Y prepared as above, the matrix is (X^T X + penalty m I)^-1 X^T Y, where m is the
    mean eigenvalue of X^T X, so that a penalty means the same for any number of items.

    Args:
        x: [N, Dx] features.
        y: [N, Dy] features of the same items in the same order.
        penalty: at least 0; None for the best of 1e-4, 1e-3, ..., 1e3 by the mean cosine on a fifth
            of the items, held out for the choice; the map is then fitted on all.
        whiten: whether to whiten both spaces first.
        seed: of the items held out for the choice.

    Returns:
        The map from x's space into y's, with its penalty.

    Raises:
        ValueError: as `procrustes`; the penalty is negative or not finite; there are fewer than ten
            items to choose it by.
    """
    if penalty is None:
        penalty = _choose_penalty(*paired_rows(x, y), whiten, seed)
    if not 0 <= penalty < float("inf"):
        raise ValueError(f"penalty={penalty} must be finite and not negative")
    side_x, side_y = _prepare(x, y, whiten)
    (matrix,) = _ridge_matrices(side_x.rows, side_y.rows, [penalty])
    return RidgeMap(matrix, **_spaces(side_x, side_y), penalty=penalty)


def _choose_penalty(x: np.ndarray, y: np.ndarray, whiten: bool, seed: int) -> float:
    if len(x) < 10:
        raise ValueError(
            f"{len(x)} items are too few to choose a penalty by: needed are at least 10"
        )
    order = np.random.default_rng(seed).permutation(len(x))
    held_out, fit = np.split(order, [round(_HELD_OUT * len(x))])
    side_x, side_y = _prepare(x[fit], y[fit], whiten)
    matrices = _ridge_matrices(side_x.rows, side_y.rows, _PENALTIES)
    cosines = []
    for matrix in matrices:
        fitted = LinearMap(matrix, **_spaces(side_x, side_y))
        cosines.append(mean_cosine(fitted.apply(x[held_out]), fitted.target(y[held_out])))
    return _PENALTIES[int(np.argmax(cosines))]


def _ridge_matrices(x: np.ndarray, y: np.ndarray, penalties: Any) -> list[np.ndarray]:
    """The solution for each penalty, from one eigendecomposition."""
    values, vectors = np.linalg.eigh((x.T @ x).astype(np.float64))
    product = vectors.T @ (x.T @ y).astype(np.float64)
    # With no penalty, directions without variance would be divided by rounding.
    floor = values.mean() * 1e-9
    return [
        (
            vectors @ (product / (np.maximum(values, floor) + penalty * values.mean())[:, None])
        ).astype(np.float32)
        for penalty in penalties
    ]


def polar(product: np.ndarray) -> np.ndarray:
    """The semi-orthogonal matrix closest to one.

    Args:
        product: [Dx, Dy].

    Returns:
        [Dx, Dy] float32, U V^T of its singular value decomposition.
    """
    u, _, vt = np.linalg.svd(product.astype(np.float64), full_matrices=False)
    return (u @ vt).astype(np.float32)


def mean_cosine(x: np.ndarray, y: np.ndarray) -> float:
    """The mean cosine between row i of x and row i of y, both [M, D]; 0 for a row of zeros."""
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    return float(np.mean(np.sum(x * y, axis=1) / np.maximum(norms, np.finfo(np.float32).tiny)))


@dataclasses.dataclass(frozen=True)
class _Space:
    """One side, prepared: unit rows, and what made them so."""

    rows: np.ndarray
    mean: np.ndarray
    whitener: np.ndarray | None


def _prepare(x: ArrayLike, y: ArrayLike, whiten: bool) -> tuple[_Space, _Space]:
    x, y = paired_rows(x, y)
    return _prepare_side("x", x, whiten), _prepare_side("y", y, whiten)


def _prepare_side(name: str, x: np.ndarray, whiten: bool) -> _Space:
    mean = x.mean(axis=0, dtype=np.float64).astype(np.float32)
    whitener = _whitener(x - mean) if whiten else None
    return _Space(unit_around(name, x, mean, whitener), mean, whitener)


def _spaces(x: _Space, y: _Space) -> dict[str, Any]:
    """What a map keeps of both sides beside its matrix."""
    return {
        "mean_x": x.mean,
        "mean_y": y.mean,
        "whitener_x": x.whitener,
        "whitener_y": y.whitener,
    }


def _whitener(centered: np.ndarray) -> np.ndarray:
    """[D, D]: the symmetric inverse root of the covariance, its eigenvalues raised a little."""
    scale = np.abs(centered).max() or 1.0
    scaled = centered / scale  # whose squares stay within float32
    values, vectors = np.linalg.eigh((scaled.T @ scaled).astype(np.float64) / len(scaled))
    raised = np.maximum(values, 0) + _WHITENING_RIDGE * max(values.mean(), np.finfo(float).tiny)
    return ((vectors / np.sqrt(raised)) @ vectors.T / scale).astype(np.float32)


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


def unit_around(
    name: str, x: ArrayLike, mean: np.ndarray, whitener: np.ndarray | None = None
) -> np.ndarray:
    """Centres by a mean, whitens where there is a whitener, and scales rows to unit length.

    Args:
        name: what errors call the features.
        x: [M, D].
        mean: [D].
        whitener: [D, D], applied to the centred rows.

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
    if whitener is not None:
        centered = centered @ whitener
    return centered / np.linalg.norm(centered, axis=1, keepdims=True)


def _rows(name: str, x: ArrayLike) -> np.ndarray:
    layers = as_layers(name, x)
    if layers.shape[1] != 1:
        raise ValueError(f"{name} has {layers.shape[1]} layers; select one")
    return layers[:, 0]


# The file: a small safetensors file, with the protocol as its metadata.

_KINDS = {"rotation": Rotation, "ridge": RidgeMap}


def save_map(path: str | os.PathLike, fitted: LinearMap, protocol: dict[str, Any]) -> None:
    """Writes a map with what it was fitted on.

    Args:
        path: of the `.safetensors` file.
        fitted: the map.
        protocol: what JSON knows.

    Raises:
        ValueError: the map is of no kind that can be read again.
    """
    kind = next((name for name, one in _KINDS.items() if isinstance(fitted, one)), None)
    if kind is None:
        raise ValueError(
            f"a {type(fitted).__name__} cannot be saved; save a {' or a '.join(_KINDS)}"
        )
    arrays = {
        name: np.ascontiguousarray(getattr(fitted, name))
        for name in ("matrix", "mean_x", "mean_y", "whitener_x", "whitener_y")
        if getattr(fitted, name) is not None
    }
    about = {"kind": kind, "protocol": json.dumps(protocol, allow_nan=False)}
    if isinstance(fitted, RidgeMap):
        about["penalty"] = repr(fitted.penalty)
    write_whole(pathlib.Path(path), safetensors.numpy.save(arrays, about))


def load_map(path: str | os.PathLike) -> tuple[LinearMap, dict[str, Any]]:
    """Reads a map that `save_map` wrote.

    Returns:
        The map and its protocol.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it holds no map.
    """
    if not pathlib.Path(path).is_file():
        raise FileNotFoundError(f"{path} does not exist; `platojax rotate` writes such a file")
    try:
        with safetensors.safe_open(path, "np") as file:
            about = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        extra = {"penalty": float(about["penalty"])} if about["kind"] == "ridge" else {}
        fitted = _KINDS[about["kind"]](**arrays, **extra)
        _check_arrays(fitted)
        return fitted, json.loads(about["protocol"])
    except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no map of `platojax rotate` ({error})") from error


def _check_arrays(fitted: LinearMap) -> None:
    if fitted.matrix.ndim != 2:
        raise ValueError(f"matrix has shape {fitted.matrix.shape}")
    dx, dy = fitted.matrix.shape
    shapes = {"matrix": (dx, dy), "mean_x": (dx,), "mean_y": (dy,)}
    shapes |= {"whitener_x": (dx, dx), "whitener_y": (dy, dy)}
    for name, shape in shapes.items():
        array = getattr(fitted, name)
        if array is None and name.startswith("whitener"):
            continue
        if array.shape != shape or array.dtype != np.float32:
            raise ValueError(f"{name} is {array.dtype} of shape {array.shape}, not float32 {shape}")
        if not np.all(np.isfinite(array)):
            raise ValueError(f"{name} is not finite")


def hash_map(fitted: LinearMap) -> str:
    """SHA-256 (hexadecimal) of a map's arrays."""
    digest = hashlib.sha256()
    for name in ("matrix", "mean_x", "mean_y", "whitener_x", "whitener_y"):
        array = getattr(fitted, name)
        digest.update(f"{name} {None if array is None else array.shape} ".encode())
        if array is not None:
            digest.update(np.ascontiguousarray(array, "<f4").tobytes())
    return digest.hexdigest()
