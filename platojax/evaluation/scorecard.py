"""All that is to be said about how well encoders agree: scores with their null, interval, controls.

All layers of an encoder are searched once: every pair of encoders, every permutation and the
comparison with the untrained encoder reuse that. Only the two layers that attain a score are
searched again, where longer lists of neighbours (the interval, larger k), other features (equal
widths) or fewer items are looked at.
"""

import dataclasses
import pathlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from platojax.evaluation.alignment import (
    METRICS,
    Clip,
    CopiesWarning,
    Metric,
    Side,
    check_seed,
    check_settings,
    prepare_side,
)
from platojax.evaluation.calibration import (
    Calibrated,
    calibrate_prepared,
    check_num_permutations,
)
from platojax.evaluation.confidence import (
    FRACTION,
    ScoreInterval,
    check_num_subsamples,
    confidence_interval,
)
from platojax.evaluation.controls import (
    AboveUntrained,
    PcaControl,
    above_untrained,
    pca_control,
)
from platojax.evaluation.curves import ItemsPoint, KPoint, score_against_items, score_against_k
from platojax.evaluation.features import Features, check_same_items
from platojax.evaluation.layers import select_layers
from platojax.evaluation.retrieval import Retrieval, held_out_retrieval

# Fewer items than this are not split in halves: what is left says nothing about retrieval.
LEAST_FOR_RETRIEVAL = 20
# The smallest subset and the largest k of curves: below, scores are mostly chance; above, comparing
# lists, which takes k x k x N, outgrows the memory.
_LEAST_ITEMS = 16
_LARGEST_K = 64


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How encoders are scored; what is out of range is refused at once, before any features.

    Attributes:
      metric: see `alignment`.
      k: neighbours.
      clip: none, exact or mean.
      num_permutations: size of the null.
      num_subsamples: of the confidence interval.
      seed: of permutations, subsamples and the split into halves.

    Raises:
      ValueError: a setting is unknown or out of range.
    """

    metric: Metric = "mutual_knn"
    k: int = 10
    clip: Clip = "none"
    num_permutations: int = 200
    num_subsamples: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self.metric, self.k, self.clip)
        check_num_permutations(self.num_permutations)
        check_num_subsamples(self.num_subsamples)
        check_seed(self.seed)

    def to_json(self) -> dict[str, Any]:
        """All fields; k is None where the metric has none."""
        values = dataclasses.asdict(self)
        return values if METRICS[self.metric].uses_neighbors else values | {"k": None}


@dataclasses.dataclass(frozen=True, eq=False)
class Encoder:
    """Features with the layers that count, searched.

    Attributes:
      features: all layers, memory-mapped where they were read so.
      side: what the metric keeps of the layers that count.
      untrained: the same encoder before its training; None where that is not asked for.
    """

    features: Features
    side: Side
    untrained: "Encoder | None" = None

    @property
    def layers(self) -> tuple[int, ...]:
        """Indices of the layers that count."""
        return self.side.layer_numbers

    def layer_names(self) -> list[str]:
        """Of the layers that count."""
        return _layer_names(self.features, self.layers)

    def rows(self, place: int) -> np.ndarray:
        """[N, D] float32: one of the layers that count, clipped to the threshold of all of them.

        Args:
          place: of the layer among those that count.
        """
        threshold = self.side.clip_threshold
        return np.clip(self.features.features[:, self.layers[place]], -threshold, threshold)


@dataclasses.dataclass(frozen=True, eq=False)
class Scorecard:
    """One encoder against another.

    All but `calibrated` is about the pair of layers that attains the score.

    Attributes:
      a: index of the one encoder.
      b: index of the other.
      layer_names: of the layers that attain the score.
      calibrated: the score, its null, and the table over all pairs of layers.
      interval: of the score over other items; None where they are too few for subsamples.
      width_matched: the score at equal widths.
      retrieval: after a rotation fitted on the other half of the items; None for few items.
      above_untrained: what training added to a; None where there is no untrained encoder.
      against_items: the score of fewer items; None where not asked for.
      against_k: the score for several k; None where not asked for, or the metric has no k.
    """

    a: int
    b: int
    layer_names: tuple[str, str]
    calibrated: Calibrated
    interval: ScoreInterval | None
    width_matched: PcaControl
    retrieval: Retrieval | None
    above_untrained: AboveUntrained | None = None
    against_items: tuple[ItemsPoint, ...] | None = None
    against_k: tuple[KPoint, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """The numbers, as values that JSON knows; `calibrated` alone carries the protocol.

        The other results have seen two layers of clipped features: what they say of layers would
        mean others than in `calibrated`.
        """
        return {
            "a": self.a,
            "b": self.b,
            "layer_names": list(self.layer_names),
            "calibrated": self.calibrated.to_json(),
            "interval": self.interval and _values(self.interval, *_INTERVAL),
            "width_matched": _values(self.width_matched, "score", "dim"),
            "retrieval": self.retrieval and self.retrieval.to_json(),
            "above_untrained": self.above_untrained and self.above_untrained.to_json(),
            "against_items": self.against_items
            and [point.to_json() for point in self.against_items],
            "against_k": self.against_k
            and [_values(point, "k", "chance", "score") for point in self.against_k],
        }


_INTERVAL = ("score", "low", "high", "level", "standard_error", "num_subsamples", "fraction")


def _values(result: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(result, name) for name in names}


def load_encoders(
    features: Sequence[Features],
    protocol: Protocol,
    layers: Sequence[str],
    *,
    untrained: Features | None = None,
) -> list[Encoder]:
    """Searches encoders, once all of them are checked to fit each other.

    Args:
      features: of each encoder.
      protocol: how they will be scored.
      layers: a choice for each, see `select_layers`.
      untrained: of the first encoder before its training, for the same choice of layers.

    Raises:
      ValueError: the encoders are of other items than the first, a choice fits no layer, features
        cannot be scored, or the untrained encoder cannot be compared with the first.
    """
    for other in (*features[1:], *([untrained] if untrained else [])):
        check_same_items(features[0], other)
    chosen = [_choose(one, choice) for one, choice in zip(features, layers, strict=True)]
    if untrained:
        check_untrained(features[0], untrained, layers[0], protocol)
    encoders = [_search(*one, protocol) for one in zip(features, chosen, strict=True)]
    if untrained:
        control = _search(untrained, _choose(untrained, layers[0]), protocol)
        encoders[0] = dataclasses.replace(encoders[0], untrained=control)
    return encoders


def check_untrained(
    trained: Features, untrained: Features, choice: str, protocol: Protocol
) -> None:
    """Checks that an encoder can be compared with itself before its training, layer by layer.

    Args:
      trained: the encoder.
      untrained: the same before its training.
      choice: of the layers of both, see `select_layers`.
      protocol: how they will be scored.

    Raises:
      ValueError: the metric is not mutual_knn, by which alone they are compared, or the layers
        differ: in their names where both sides know them, else in their number.
    """
    if protocol.metric != "mutual_knn":
        raise ValueError(
            f"an untrained encoder is compared by metric='mutual_knn' only, not {protocol.metric!r}"
        )
    start, end = (_layer_names(one, _choose(one, choice)) for one in (untrained, trained))
    if len(start) != len(end):
        raise ValueError(
            f"{untrained.path} has {len(start)} layers and {trained.path} has {len(end)}: give the "
            "same encoder untrained"
        )
    if trained.meta and untrained.meta and start != end:
        raise ValueError(
            f"{untrained.path} has the layers {', '.join(start)} and {trained.path} has "
            f"{', '.join(end)}: give the same encoder untrained"
        )


def _choose(features: Features, choice: str) -> list[int]:
    names = features.meta.layers if features.meta else features.features.shape[1]
    try:
        return select_layers(choice, names)
    except ValueError as error:
        raise ValueError(f"{features.path}: {error}") from error


def _layer_names(features: Features, layers: Sequence[int]) -> list[str]:
    return [features.layer_name(layer) for layer in layers]


def _search(features: Features, layers: Sequence[int], protocol: Protocol) -> Encoder:
    side = prepare_side(
        str(features.path),
        features.features,
        metric=protocol.metric,
        k=protocol.k,
        clip=protocol.clip,
        layers=layers,
    )
    return Encoder(features, side)


def score(
    encoders: Sequence[Encoder], a: int, b: int, protocol: Protocol, *, curves: bool = False
) -> Scorecard:
    """Scores one encoder against another.

    Args:
      encoders: from `load_encoders`.
      a: index of the one; compared with itself before training where it has that.
      b: index of the other.
      protocol: how, the same as in `load_encoders`.
      curves: whether to score fewer items and other k as well.

    Raises:
      ValueError: scores are not finite.
    """
    one, other = encoders[a], encoders[b]
    calibrated = calibrate_prepared(
        one.side, other.side, num_permutations=protocol.num_permutations, seed=protocol.seed
    )
    i, j = calibrated.layers
    x, y = one.rows(i), other.rows(j)
    # `load_encoders` has warned of copies in these layers.
    with warnings.catch_warnings(action="ignore", category=CopiesWarning):
        return Scorecard(
            a=a,
            b=b,
            layer_names=(one.layer_names()[i], other.layer_names()[j]),
            calibrated=calibrated,
            interval=_interval(x, y, protocol),
            width_matched=pca_control(x, y, metric=protocol.metric, k=protocol.k),
            retrieval=_retrieval(x, y, protocol),
            above_untrained=_above_untrained(one, other, i, j, protocol),
            against_items=_against_items(x, y, protocol) if curves else None,
            against_k=_against_k(x, y, protocol) if curves else None,
        )


def _interval(x: np.ndarray, y: np.ndarray, protocol: Protocol) -> ScoreInterval | None:
    if round(FRACTION * len(x)) < METRICS[protocol.metric].least_subsample(protocol.k):
        return None
    return confidence_interval(
        x,
        y,
        metric=protocol.metric,
        k=protocol.k,
        num_subsamples=protocol.num_subsamples,
        seed=protocol.seed,
    )


def _retrieval(x: np.ndarray, y: np.ndarray, protocol: Protocol) -> Retrieval | None:
    if len(x) < LEAST_FOR_RETRIEVAL:
        return None
    return held_out_retrieval(x, y, seed=protocol.seed)


def _above_untrained(
    one: Encoder, other: Encoder, i: int, j: int, protocol: Protocol
) -> AboveUntrained | None:
    if one.untrained is None:
        return None
    trained, untrained = one.side.select([i]), one.untrained.side.select([i])
    return above_untrained(trained, untrained, other.side.select([j]), seed=protocol.seed)


def _against_items(x: np.ndarray, y: np.ndarray, protocol: Protocol) -> tuple[ItemsPoint, ...]:
    """All items, and halves of them down to the fewest that say something."""
    least = max(METRICS[protocol.metric].least_subsample(protocol.k), _LEAST_ITEMS)
    sizes = [len(x)]
    while sizes[-1] // 2 >= least:
        sizes.append(sizes[-1] // 2)
    return tuple(
        score_against_items(
            x, y, sizes[::-1], metric=protocol.metric, k=protocol.k, seed=protocol.seed
        )
    )


def _against_k(x: np.ndarray, y: np.ndarray, protocol: Protocol) -> tuple[KPoint, ...] | None:
    """Powers of two, up to a quarter of the items, and the k of the score."""
    spec = METRICS[protocol.metric]
    if not spec.uses_neighbors:
        return None
    largest = min(len(x) // 4, _LARGEST_K)
    powers = {2**power for power in range(largest.bit_length())}
    ks = sorted({k for k in powers if k >= spec.min_k} | {protocol.k})
    return tuple(score_against_k(x, y, ks, metric=protocol.metric))


def rank(
    encoders: Sequence[Encoder],
    protocol: Protocol,
    *,
    on_progress: Callable[[int], None] = lambda done: None,
) -> list[Scorecard]:
    """Scores the first encoder against each of the others, the best aligned first.

    The order is that of the calibrated scores, because raw ones grow with the number of layers;
    equal ones, such as 0 for all that chance explains, are in the order of the scores.
    """
    cards = []
    for b in range(1, len(encoders)):
        cards.append(score(encoders, 0, b, protocol))
        on_progress(b)
    return sorted(cards, key=lambda card: (-card.calibrated.calibrated, -card.calibrated.score))


def short_names(encoders: Sequence[Encoder]) -> list[str]:
    """The paths of the encoders without what they all begin with."""
    parts = [encoder.features.path.absolute().parts for encoder in encoders]
    common = 0
    while all(len(p) > common + 1 for p in parts) and len({p[common] for p in parts}) == 1:
        common += 1
    return [str(pathlib.Path(*p[common:])) for p in parts]
