"""What a map between two spaces is worth: on items that it has not seen, and for how many pairs."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.typing import ArrayLike

from platojax.evaluation.retrieval import Retrieval, retrieval
from platojax.evaluation.rotation import LinearMap, mean_cosine, paired_rows


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A map, tried on paired items.

    Attributes:
        cosine: the mean between what is mapped and its target.
        residual: sum of squared differences to the targets, per item; all have unit length, so 2
            is what an unrelated rotation leaves and 0 is perfect.
        retrieval: among these items, by cosine.
    """

    cosine: float
    residual: float
    retrieval: Retrieval

    def to_json(self) -> dict[str, Any]:
        """All of it, as values that JSON knows."""
        return {
            "cosine": self.cosine,
            "residual": self.residual,
            "retrieval": self.retrieval.to_json(),
        }


@dataclasses.dataclass(frozen=True)
class PairsPoint:
    """A map fitted on some of the pairs.

    Attributes:
        pairs: how many.
        repetitions: one result for each draw of the pairs, all on the same held-out items.
    """

    pairs: int
    repetitions: tuple[Transfer, ...]

    def to_json(self) -> dict[str, Any]:
        """All of it, as values that JSON knows."""
        return {"pairs": self.pairs, "repetitions": [one.to_json() for one in self.repetitions]}


def transfer(fitted: LinearMap, x: ArrayLike, y: ArrayLike) -> Transfer:
    """Tries a map on paired items, which should not be those it was fitted on.

    Args:
        fitted: the map.
        x: [M, Dx] features.
        y: [M, Dy] features of the same items in the same order.

    Raises:
        ValueError: as `retrieval`; the widths are not those of the map.
    """
    x, y = paired_rows(x, y)
    mapped, target = fitted.apply(x), fitted.target(y)
    return Transfer(
        cosine=mean_cosine(mapped, target),
        residual=float(np.mean(np.sum((mapped - target) ** 2, axis=1))),
        retrieval=retrieval(mapped, target),
    )


def split_items(count: int, held_out: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Disjoint random parts of the items.

    Args:
        count: N.
        held_out: share of the second part, between 0 and 1.
        seed: of the draw.

    Returns:
        Indices of the items to fit on and of those held out, each in the order of the items.

    Raises:
        ValueError: the share is out of range, or leaves a part with fewer than two items.
    """
    if not 0 < held_out < 1:
        raise ValueError(f"held_out={held_out} must be between 0 and 1")
    size = round(held_out * count)
    if not 2 <= size <= count - 2:
        raise ValueError(
            f"held_out={held_out} of {count} items is {size}: both parts need at least 2 items"
        )
    order = np.random.default_rng(seed).permutation(count)
    return np.sort(order[size:]), np.sort(order[:size])


def against_pairs(
    fit: Callable[[np.ndarray, np.ndarray], LinearMap],
    x: ArrayLike,
    y: ArrayLike,
    counts: Sequence[int],
    *,
    held_out: float = 0.5,
    repetitions: int = 3,
    seed: int = 0,
) -> list[PairsPoint]:
    """Fits a map on few to many pairs, and tries it on the same held-out items each time.

    Args:
        fit: such as `procrustes` or `ridge`.
        x: [N, Dx] features.
        y: [N, Dy] features of the same items in the same order.
        counts: numbers of pairs, each at most the number of items that are not held out.
        held_out: share of the items to try the maps on.
        repetitions: random draws of the pairs, nested: a smaller number of pairs is part of a
            larger one. All pairs at once are fitted once.
        seed: of the split and of the draws.

    Returns:
        One point for each count, in their order.

    Raises:
        ValueError: as `fit` and `split_items`; a count is out of range.
    """
    x, y = paired_rows(x, y)
    train, test = split_items(len(x), held_out, seed)
    if not all(2 <= count <= len(train) for count in counts):
        raise ValueError(f"counts={list(counts)} must be numbers of pairs in 2..{len(train)}")
    if repetitions < 1:
        raise ValueError(f"repetitions={repetitions} must be at least 1")
    rng = np.random.default_rng([seed, 1])
    orders = [rng.permutation(train) for _ in range(repetitions)]
    return [
        PairsPoint(
            count,
            tuple(
                transfer(fit(x[order[:count]], y[order[:count]]), x[test], y[test])
                for order in (orders if count < len(train) else orders[:1])
            ),
        )
        for count in counts
    ]
