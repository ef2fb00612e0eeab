"""What a score has to be compared with besides chance: equal widths, and an untrained encoder."""

import dataclasses
from typing import Any

import numpy as np
import scipy.linalg
from jax.typing import ArrayLike

from platojax.evaluation.alignment import (
    Metric,
    Side,
    alignment,
    as_layers,
    best_pair,
    check_rows,
    check_settings,
    score_table,
)
from platojax.evaluation.calibration import paired_p_value


@dataclasses.dataclass(frozen=True, eq=False)
class PcaControl:
    """The score of both sides at the same width.

    Attributes:
        score: the maximum of `table`.
        layers: (i, j), the layers that attain it; the first in row order if tied.
        dim: the width of both sides.
        table: [La, Lb] float32, all pairs of layers.
        metric: name of the metric.
        k: number of neighbours; None where the metric has none.
    """

    score: float
    layers: tuple[int, int]
    dim: int
    table: np.ndarray
    metric: str
    k: int | None

    def to_json(self) -> dict[str, Any]:
        """All fields, as values that JSON knows."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return values | {"layers": list(self.layers), "table": self.table.tolist()}


def pca_control(
    a: ArrayLike,
    b: ArrayLike,
    *,
    dim: int | None = None,
    metric: Metric = "mutual_knn",
    k: int = 10,
) -> PcaControl:
    """Scores both sides after a projection to the same number of dimensions.

    A score that is high only because an encoder is wide, or that differs between two encoders only
    because their widths differ, does not survive this. To clip outliers, do so first, see
    `alignment.clip_outliers`.

    Args:
        a: [N, La, Da] or [N, Da] features.
        b: [N, Lb, Db] or [N, Db] features of the same items in the same order.
        dim: the common width, see `width_matched`.
        metric: see `alignment`.
        k: neighbours.

    Returns:
        The score between the projected features.

    Raises:
        ValueError: as `alignment` and `width_matched`.
    """
    spec = check_settings(metric, k)
    projected_a, projected_b = width_matched(a, b, dim=dim)
    table = alignment(projected_a, projected_b, metric=metric, k=k)
    layers = best_pair(table)
    return PcaControl(
        score=float(table[layers]),
        layers=layers,
        dim=projected_a.shape[2],
        table=table,
        metric=metric,
        k=k if spec.uses_neighbors else None,
    )


def width_matched(
    a: ArrayLike, b: ArrayLike, *, dim: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Projects every layer of both sides on its first principal components.

    The components are those of these items, of rows scaled to unit length as in every metric.

    Args:
        a: [N, La, Da] or [N, Da] features.
        b: [N, Lb, Db] or [N, Db] features.
        dim: how many components; None for as many as both sides have, min(N - 1, Da, Db).

    Returns:
        [N, La, dim] and [N, Lb, dim] float32, centred; the sign of a component is arbitrary.

    Raises:
        ValueError: features that `alignment` refuses, or dim is out of range.
    """
    sides = {name: as_layers(name, x) for name, x in (("a", a), ("b", b))}
    largest = min(min(len(x) - 1, x.shape[2]) for x in sides.values())
    if largest < 1:
        raise ValueError("1 item has no principal components; use more items")
    if dim is None:
        dim = largest
    if not 1 <= dim <= largest:
        raise ValueError(
            f"dim={dim} must be in 1..{largest}: the number of items less one and the widths, "
            f"{sides['a'].shape[2]} and {sides['b'].shape[2]}, bound it"
        )
    projected_a, projected_b = (
        np.stack(
            [_principal(f"layer {i} of {name}", x[:, i], dim) for i in range(x.shape[1])], axis=1
        )
        for name, x in sides.items()
    )
    return projected_a, projected_b


def _principal(where: str, rows: np.ndarray, dim: int) -> np.ndarray:
    """[N, dim] the first principal components, from the smaller of the two Gram matrices."""
    check_rows(where, rows)
    x = rows / np.abs(rows).max(axis=1, keepdims=True)  # whose squares stay within float32
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    x -= x.mean(axis=0, dtype=np.float64)
    n, width = x.shape
    gram = (x.T @ x if width <= n else x @ x.T).astype(np.float64)
    first = [len(gram) - dim, len(gram) - 1]
    values, vectors = scipy.linalg.eigh(gram, subset_by_index=first)
    if width <= n:
        return x @ vectors[:, ::-1].astype(np.float32)
    return (vectors * np.sqrt(np.maximum(values, 0)))[:, ::-1].astype(np.float32)


@dataclasses.dataclass(frozen=True)
class AboveUntrained:
    """What training adds to a score.

    Attributes:
        score: of the trained encoder.
        untrained: of the untrained one.
        difference: score - untrained.
        p_value: of the difference, one-sided, see `calibration.paired_p_value`.
    """

    score: float
    untrained: float
    difference: float
    p_value: float

    def to_json(self) -> dict[str, float]:
        """All fields."""
        return dataclasses.asdict(self)


def above_untrained(
    trained: Side, untrained: Side, b: Side, *, num_permutations: int = 2000, seed: int = 0
) -> AboveUntrained:
    """Compares an encoder with the same encoder before training, by mutual k-NN with `b`.

    Architecture and input statistics alone give scores above chance; only the difference is learnt.

    Args:
        trained: one layer, prepared for mutual_knn, see `alignment.prepare_side`.
        untrained: likewise, of the same items.
        b: likewise, of the encoder that both are scored against.
        num_permutations: random sign flips of the test.
        seed: of the flips.

    Returns:
        Both scores, their difference and its p-value.

    Raises:
        ValueError: as `calibration.paired_p_value`.
    """
    p_value = paired_p_value(trained, untrained, b, num_permutations=num_permutations, seed=seed)
    score, baseline = (float(score_table(side, b)[0, 0]) for side in (trained, untrained))
    return AboveUntrained(score, baseline, score - baseline, p_value)
