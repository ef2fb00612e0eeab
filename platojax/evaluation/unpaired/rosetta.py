"""A rotation between two spaces from items without pairs, by the geometry that they share."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import numpy as np
from jax.typing import ArrayLike

from platojax.evaluation.retrieval import retrieval
from platojax.evaluation.rotation import Rotation, polar, unit_around
from platojax.evaluation.unpaired.progress import OnProgress, report
from platojax.evaluation.unpaired.quality import gaussian_copy, in_random_order, shared_geometry
from platojax.evaluation.unpaired.refinement import matched_cosine, refine, unit
from platojax.evaluation.unpaired.search import MEASURED, principal, search
from platojax.evaluation.unpaired.sides import check_settings, distinct_rows

# A result is to be trusted where independent starts agree better than this, and where the sides
# share more than this. docs/results/rotation.md shows both for good and for wrong rotations.
_TRUSTED_FOSCTTM = 0.05
_TRUSTED_SHARE = 0.6
# Refinement goes from coarse to fine: means are at first over this share of the batch, or over this
# many times the neighbours where that is less. With few, a rough start soon stands still.
_COARSE_SHARE = 1 / 9
_COARSE_MULTIPLE = 10
_PHASES = 4
# A round sees this share of the items, or this many: other ones each time, which shakes it out of
# local optima. The closing rounds see as many as there may be.
_ROUND_SHARE = 0.6
_ROUND_ITEMS = 2048
_CLOSING_ROUNDS = 5


@dataclasses.dataclass(frozen=True)
class Settings:
    """The arguments of `unpaired_rotation`, which explains them."""

    seed: int
    num_clusters: int
    num_restarts: int
    batch_size: int
    num_rounds: int
    num_neighbors: int
    remove: int


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class UnpairedRotation(Rotation):
    """A rotation fitted without pairs, and what can be said of it without labels.

    Attributes:
        matched_cosine: mean cosine of the best one-to-one matching of up to 1,000 mapped items of x
            with items of y. Comparable between runs on the same items alone.
        estimated_foscttm: the FOSCTTM between the items of x mapped by two rotations, each found
            from its own half of the restarts. Near 0, independent starts agree on every item; near
            .5, the result is the accident of a start.
        shared_geometry: 0 where the items match no better than with a Gaussian copy of y, 1 where
            they match as well as one space does with itself, see `quality.shared_geometry`.
        removed: the side, "x" or "y", and the number from 0 of the principal component that is left
            out, by that side's whitener; None where leaving one out did not help.
        settings: what the method was called with.
    """

    matched_cosine: float
    estimated_foscttm: float
    shared_geometry: float
    removed: tuple[str, int] | None
    settings: Settings

    @property
    def trusted(self) -> bool:
        """Whether starts agree (estimated_foscttm < .05) on much (shared_geometry > .6).

        The first alone is not enough: where the spaces share little, starts may agree on a wrong
        rotation.
        """
        return self.estimated_foscttm < _TRUSTED_FOSCTTM and self.shared_geometry > _TRUSTED_SHARE


def unpaired_rotation(
    x: ArrayLike,
    y: ArrayLike,
    *,
    seed: int = 0,
    num_clusters: int = 30,
    num_restarts: int = 30,
    batch_size: int = 10_000,
    num_rounds: int = 30,
    num_neighbors: int = 10,
    remove: int = 0,
    on_progress: OnProgress | None = None,
) -> UnpairedRotation:
    """Fits a rotation from x's space into y's without a single pair.

    After "Shared Geometry as a Rosetta Stone" (arXiv 2610.09411): random subsets of both sides are
    clustered; the permutation P_s that maximises Tr(A P B P^T) over the centred Gram matrices of
    the centres pairs them; the polar factor of sum_s X_s^T P_s Y_s is a rough rotation, which is
    refined. Three things differ from the paper. The permutations come from a tabu search, see
    `qap.quadratic_assignment`. Not only the average over s makes a rotation, see `search.search`,
    which chooses by the matched cosine. The refinement pairs items with the means of their
    neighbours, see `refinement.refine`, with ever fewer of them. It runs from what each half of the
    restarts found, and from the mean of both results; the best by `matched_cosine` is kept.

    Deterministic for a seed on a given machine. Memory beyond the inputs: two copies of them at
    the peak, and less than 500 MB.

    Args:
        x: [N, Dx] features.
        y: [M, Dy] features of other items of the same kind; Dy may differ from Dx. Copies of an
            item count once.
        seed: of the subsets, the starts and the batches.
        num_clusters: centres per restart.
        num_restarts: pairs of clusterings of either kind, see `search.search`, at least 2.
        batch_size: rows that are clustered, and rows of a closing round, at most.
        num_rounds: of the refinement from each start.
        num_neighbors: neighbours in a mean at the end of the refinement.
        remove: how many leading principal components of each side are on trial: the method is run
            with none removed, and with each of them removed, 2 remove + 1 times in all, and the
            highest matched cosine decides. For a component that one side alone has.
        on_progress: called with the stage, the parts done and their number; all stages anew for
            each component on trial.

    Returns:
        The rotation. Check `trusted`: a pair-free method can fail on good input.

    Raises:
        ValueError: a side is not finite, has more than one layer, is the same for all items or has
            fewer than 2 num_clusters distinct ones, or an item equals the mean of its side; or a
            number is out of range.
    """
    settings = Settings(
        seed, num_clusters, num_restarts, batch_size, num_rounds, num_neighbors, remove
    )
    _check(settings)
    sides = {
        name: distinct_rows(name, side, num_clusters=num_clusters)
        for name, side in (("x", x), ("y", y))
    }
    narrowest = min(rows.shape[1] for rows in sides.values())
    if not 0 <= remove < narrowest:
        raise ValueError(f"remove={remove} of {narrowest} components: choose 0..{narrowest - 1}")
    removals = [(name, component) for name in sides for component in range(remove)]
    trials = [_try(sides, removed, settings, on_progress) for removed in (None, *removals)]
    return max(trials, key=lambda trial: trial.matched_cosine)


def _check(settings: Settings) -> None:
    check_settings(
        settings.seed,
        settings.num_clusters,
        settings.batch_size,
        num_rounds=settings.num_rounds,
        num_neighbors=settings.num_neighbors,
    )
    if settings.num_restarts < 2:
        raise ValueError(
            f"num_restarts={settings.num_restarts} must be at least 2: its halves are compared"
        )


def _try(
    sides: Mapping[str, np.ndarray],
    removed: tuple[str, int] | None,
    settings: Settings,
    on_progress: OnProgress | None,
) -> UnpairedRotation:
    means = {
        name: rows.mean(axis=0, dtype=np.float64).astype(np.float32) for name, rows in sides.items()
    }
    projections = dict.fromkeys(sides)
    if removed is not None:
        name, component = removed
        projections[name] = _projection(unit_around(name, sides[name], means[name]), component)
    x, y = (unit_around(name, rows, means[name], projections[name]) for name, rows in sides.items())
    rng = np.random.default_rng(settings.seed)
    leading_x, leading_y = principal(x), principal(y)
    half = settings.num_restarts // 2
    find = functools.partial(
        search,
        num_clusters=settings.num_clusters,
        batch_size=settings.batch_size,
        rng=rng,
        on_progress=on_progress,
    )
    found = [
        find(leading_x, leading_y, num_restarts=count, seed=settings.seed + number)
        for number, count in enumerate((half, settings.num_restarts - half))
    ]
    # A few restarts do: with nothing to be found, all find the same cosine to .002.
    null = gaussian_copy(leading_y, rng)
    chance = find(leading_x, null, num_restarts=-(-half // 3), seed=settings.seed)
    total = (len(found) + 1) * settings.num_rounds + _CLOSING_ROUNDS
    on_round = _counter(functools.partial(report, on_progress, "refinement"), total)
    starts = [leading_x.axes @ one.rotation @ leading_y.axes.T for one in found]
    refined = [_anneal(x, y, start, settings, rng, on_round) for start in starts]
    refined.append(_anneal(x, y, polar(np.sum(refined, axis=0)), settings, rng, on_round))
    measured_x, measured_y = (side[rng.permutation(len(side))[:MEASURED]] for side in (x, y))
    best = max(refined, key=lambda matrix: matched_cosine(unit(measured_x @ matrix), measured_y))
    matrix = refine(
        x,
        y,
        best,
        num_rounds=_CLOSING_ROUNDS,
        num_neighbors=min(settings.num_neighbors, len(x), len(y), settings.batch_size),
        batch_size=settings.batch_size,
        rng=rng,
        on_round=on_round,
    )
    return UnpairedRotation(
        matrix,
        means["x"],
        means["y"],
        projections["x"],
        projections["y"],
        matched_cosine=matched_cosine(unit(measured_x @ matrix), measured_y),
        estimated_foscttm=retrieval(measured_x @ refined[0], measured_x @ refined[1]).foscttm,
        shared_geometry=shared_geometry(
            in_random_order(leading_x, rng),
            in_random_order(leading_y, rng),
            leading_x.axes.T @ matrix @ leading_y.axes,
            null,
            chance.rotation,
        ),
        removed=removed,
        settings=settings,
    )


def _projection(units: np.ndarray, component: int) -> np.ndarray:
    """[D, D]: what leaves out one principal component, 0 the leading one."""
    _, vectors = np.linalg.eigh(units.T @ units)
    direction = vectors[:, -1 - component].astype(np.float64)
    return (np.eye(len(direction)) - np.outer(direction, direction)).astype(np.float32)


def _anneal(
    x: np.ndarray,
    y: np.ndarray,
    rotation: np.ndarray,
    settings: Settings,
    rng: np.random.Generator,
    on_round: Callable[[], None],
) -> np.ndarray:
    items = min(len(x), len(y))
    batch_size = min(round(_ROUND_SHARE * items), settings.batch_size, _ROUND_ITEMS)
    coarse = min(_COARSE_MULTIPLE * settings.num_neighbors, round(_COARSE_SHARE * batch_size))
    phases = [coarse >> phase for phase in range(_PHASES - 1)] + [settings.num_neighbors]
    for rounds, neighbors in zip(_split(settings.num_rounds, _PHASES), phases, strict=True):
        rotation = refine(
            x,
            y,
            rotation,
            num_rounds=rounds,
            num_neighbors=min(max(neighbors, settings.num_neighbors), batch_size),
            batch_size=batch_size,
            rng=rng,
            on_round=on_round,
        )
    return rotation


def _split(count: int, parts: int) -> list[int]:
    """Nearly equal parts of a whole."""
    return [(count * (part + 1)) // parts - (count * part) // parts for part in range(parts)]


def _counter(count: Callable[[int, int], None], total: int) -> Callable[[], None]:
    """A callback without arguments that counts its calls."""
    steps = iter(range(1, total + 1))
    return lambda: count(next(steps), total)
