"""All that is to be said about how well encoders agree: scores with their null, interval, controls.

Each encoder is searched once; every pair of encoders, and every permutation, reuses that.
"""

import contextlib
import dataclasses
import pathlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from platojax.evaluation.alignment import (
    METRICS,
    Clip,
    Metric,
    Side,
    as_layers,
    check_settings,
    clip_outliers,
    prepare_side,
)
from platojax.evaluation.calibration import Calibrated, calibrate_prepared
from platojax.evaluation.confidence import FRACTION, ScoreInterval, confidence_interval
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


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How encoders are scored.

    Attributes:
      metric: see `alignment`.
      k: neighbours.
      clip: none, exact or mean.
      num_permutations: size of the null.
      num_subsamples: of the confidence interval.
      seed: of permutations, subsamples and the split into halves.
    """

    metric: Metric = "mutual_knn"
    k: int = 10
    clip: Clip = "none"
    num_permutations: int = 200
    num_subsamples: int = 200
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, eq=False)
class Encoder:
    """Features with the layers that count, searched.

    Attributes:
      features: all layers.
      layers: indices of the layers that count.
      clipped: [N, L, D], those layers with their outliers clipped.
      side: what the metric keeps of them.
    """

    features: Features
    layers: tuple[int, ...]
    clipped: np.ndarray
    side: Side

    def layer_names(self) -> list[str]:
        """Of the layers that count."""
        return [self.features.layer_name(layer) for layer in self.layers]


@dataclasses.dataclass(frozen=True, eq=False)
class Scorecard:
    """One encoder against another.

    All but `calibrated` is about the pair of layers that attains the score.

    Attributes:
      a: index of the one encoder.
      b: index of the other.
      layers: the names of the layers that attain the score.
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
    layers: tuple[str, str]
    calibrated: Calibrated
    interval: ScoreInterval | None
    width_matched: PcaControl
    retrieval: Retrieval | None
    above_untrained: AboveUntrained | None = None
    against_items: tuple[ItemsPoint, ...] | None = None
    against_k: tuple[KPoint, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """All of it but the null, as values that JSON knows."""

        def plain(value: Any) -> Any:
            if isinstance(value, tuple):
                return [plain(one) for one in value]
            return value.to_json() if hasattr(value, "to_json") else value

        values = {
            field.name: plain(getattr(self, field.name)) for field in dataclasses.fields(self)
        }
        del values["layers"]
        return values | {"layer_names": list(self.layers)}


def load_encoders(
    features: Sequence[Features], protocol: Protocol, layers: Sequence[str]
) -> list[Encoder]:
    """Searches encoders, checked to be of the same items.

    Args:
      features: of each encoder.
      protocol: how they will be scored.
      layers: a choice for each, see `select_layers`.

    Raises:
      ValueError: the encoders are of other items than the first, a choice fits no layer, or
        features cannot be scored.
    """
    check_settings(protocol.metric, protocol.k, protocol.clip)
    for other in features[1:]:
        check_same_items(features[0], other)
    return [_load(one, protocol, choice) for one, choice in zip(features, layers, strict=True)]


def _load(features: Features, protocol: Protocol, choice: str) -> Encoder:
    names = features.meta.layers if features.meta else features.features.shape[1]
    try:
        layers = select_layers(choice, names)
    except ValueError as error:
        raise ValueError(f"{features.path}: {error}") from error
    name = str(features.path)
    # Clipped here, so that the threshold is that of all layers also where one is looked at.
    clipped = clip_outliers(name, as_layers(name, features.features[:, layers]), protocol.clip)
    side = prepare_side(name, clipped, metric=protocol.metric, k=protocol.k)
    side = dataclasses.replace(side, clip=protocol.clip)
    return Encoder(features, tuple(layers), clipped, side)


@contextlib.contextmanager
def _copies_were_reported() -> Iterator[None]:
    """Looks at layers again without the warnings that `load_encoders` gave of them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* have the same direction")
        yield


@_copies_were_reported()
def score(
    encoders: Sequence[Encoder],
    a: int,
    b: int,
    protocol: Protocol,
    *,
    untrained: Encoder | None = None,
    curves: bool = False,
) -> Scorecard:
    """Scores one encoder against another.

    Args:
      encoders: from `load_encoders`.
      a: index of the one.
      b: index of the other.
      protocol: how.
      untrained: the encoder a before its training, with as many layers that count.
      curves: whether to score fewer items and other k as well.

    Raises:
      ValueError: the untrained encoder has other layers, or the metric is not mutual_knn, by which
        alone it is compared.
    """
    one, other = encoders[a], encoders[b]
    calibrated = calibrate_prepared(
        one.side, other.side, num_permutations=protocol.num_permutations, seed=protocol.seed
    )
    i, j = calibrated.layers
    x, y = one.clipped[:, i], other.clipped[:, j]
    settings: dict[str, Any] = {"metric": protocol.metric, "k": protocol.k}
    return Scorecard(
        a=a,
        b=b,
        layers=(one.layer_names()[i], other.layer_names()[j]),
        calibrated=calibrated,
        interval=_interval(x, y, settings, protocol),
        width_matched=pca_control(x, y, **settings),
        retrieval=held_out_retrieval(x, y, seed=protocol.seed)
        if len(x) >= LEAST_FOR_RETRIEVAL
        else None,
        above_untrained=None if untrained is None else _above(one, untrained, i, y, protocol),
        against_items=_against_items(x, y, settings, protocol.seed) if curves else None,
        against_k=_against_k(x, y, settings) if curves else None,
    )


def _interval(
    x: np.ndarray, y: np.ndarray, settings: Mapping[str, Any], protocol: Protocol
) -> ScoreInterval | None:
    if round(FRACTION * len(x)) < METRICS[protocol.metric].least_items(protocol.k):
        return None
    return confidence_interval(
        x, y, num_subsamples=protocol.num_subsamples, seed=protocol.seed, **settings
    )


def _above(
    trained: Encoder, untrained: Encoder, place: int, y: np.ndarray, protocol: Protocol
) -> AboveUntrained:
    if protocol.metric != "mutual_knn":
        raise ValueError("an untrained control is compared by metric=mutual_knn only")
    if len(untrained.layers) != len(trained.layers):
        raise ValueError(
            f"{untrained.features.path} has {len(untrained.layers)} layers and "
            f"{trained.features.path} has {len(trained.layers)}: give the same encoder untrained"
        )
    x, start = (encoder.clipped[:, place] for encoder in (trained, untrained))
    return above_untrained(x, start, y, k=protocol.k, seed=protocol.seed)


def _against_items(
    x: np.ndarray, y: np.ndarray, settings: Mapping[str, Any], seed: int
) -> tuple[ItemsPoint, ...]:
    """All items, and halves of them down to the fewest that the metric takes."""
    spec = METRICS[settings["metric"]]
    least = max(4 * settings["k"] if spec.uses_neighbors else 0, spec.min_items, 16)
    sizes = [len(x)]
    while sizes[-1] // 2 >= least:
        sizes.append(sizes[-1] // 2)
    return tuple(score_against_items(x, y, sizes[::-1], seed=seed, **settings))


def _against_k(
    x: np.ndarray, y: np.ndarray, settings: Mapping[str, Any]
) -> tuple[KPoint, ...] | None:
    """Powers of two, up to a quarter of the items."""
    spec = METRICS[settings["metric"]]
    if not spec.uses_neighbors:
        return None
    ks = [2**power for power in range(10) if spec.min_k <= 2**power <= max(spec.min_k, len(x) // 4)]
    ks = sorted({*ks, settings["k"]})
    return tuple(score_against_k(x, y, ks, metric=settings["metric"]))


def rank(
    encoders: Sequence[Encoder],
    protocol: Protocol,
    *,
    on_progress: Callable[[int], None] = lambda done: None,
) -> list[Scorecard]:
    """Scores the first encoder against each of the others, the best aligned first."""
    cards = []
    for b in range(1, len(encoders)):
        cards.append(score(encoders, 0, b, protocol))
        on_progress(b)
    return sorted(cards, key=lambda card: -card.calibrated.score)


def short_names(encoders: Sequence[Encoder]) -> list[str]:
    """The paths of the encoders without what they all begin with."""
    parts = [encoder.features.path.absolute().parts for encoder in encoders]
    common = 0
    while all(len(p) > common + 1 for p in parts) and len({p[common] for p in parts}) == 1:
        common += 1
    return [str(pathlib.Path(*p[common:])) for p in parts]
