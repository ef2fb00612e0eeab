"""`platojax rotate`: the map from one encoder's space into another's, with pairs or without any."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from platojax.evaluation.comparison import short_number
from platojax.evaluation.features import (
    Features,
    check_same_items,
    library_versions,
    read_features,
)
from platojax.evaluation.layers import select_layers
from platojax.evaluation.mapped import describe_side
from platojax.evaluation.rotation import LinearMap, RidgeMap, procrustes, ridge, save_map
from platojax.evaluation.transfer import (
    PairsPoint,
    Transfer,
    against_pairs,
    split_items,
    transfer,
)
from platojax.evaluation.unpaired import UnpairedRotation, mini_vec2vec, unpaired_rotation
from platojax.files import check_writable, to_json, write_whole
from platojax.terminal import stage_line

PAIRED = ("procrustes", "ridge")
UNPAIRED = ("rosetta", "mini-vec2vec")
_FEWEST_PAIRS = 8


@dataclasses.dataclass(frozen=True)
class Plan:
    """How to fit.

    Attributes:
      method: one of `PAIRED` or `UNPAIRED`.
      whiten: whether paired methods whiten both spaces first.
      held_out: share of the items that the map is tried on, where both sides have the same items.
      seed: of the split and of the fits.
      num_seeds: how many fits without pairs; the one that is most certain of itself is kept.
      remove: of the rosetta method, how many leading principal components of each side are on
        trial to be left out.
    """

    method: str
    whiten: bool = False
    held_out: float = 0.2
    seed: int = 0
    num_seeds: int = 5
    remove: int = 0


@dataclasses.dataclass(frozen=True)
class Fit:
    """A map that was fitted.

    Attributes:
      seed: it was fitted with.
      fitted: the map.
      transfer: what it is worth on held-out items; None where there are none.
    """

    seed: int
    fitted: LinearMap
    transfer: Transfer | None

    def to_json(self) -> dict[str, Any]:
        """All but the map, as values that JSON knows."""
        values: dict[str, Any] = {"seed": self.seed}
        if isinstance(self.fitted, RidgeMap):
            values["penalty"] = self.fitted.penalty
        if isinstance(self.fitted, UnpairedRotation):
            values["estimated_foscttm"] = self.fitted.estimated_foscttm
            values["shared_geometry"] = self.fitted.shared_geometry
            values["matched_cosine"] = self.fitted.matched_cosine
            values["trusted"] = self.fitted.trusted
            values["removed"] = self.fitted.removed
        if self.transfer is not None:
            values["transfer"] = self.transfer.to_json()
        return values


def run(
    x_path: str,
    y_path: str,
    out: pathlib.Path,
    plan: Plan,
    *,
    layers: Sequence[str],
    test: tuple[str, str] | None,
    json_out: pathlib.Path | None,
    plot: pathlib.Path | None,
) -> None:
    """Fits a map, tries it on items that it has not seen, and saves it.

    Args:
      x_path: features of the encoder to be mapped.
      y_path: features of the encoder into whose space.
      out: the `.safetensors` file to be.
      plan: how to fit.
      layers: the layer of both, or one of each, see `select_layers`.
      test: paired features of both encoders to try a map on that was fitted without pairs.
      json_out: file for the numbers.
      plot: file for the figure.

    Raises:
      ValueError, OSError: features cannot be read or do not fit, or a setting is impossible.
    """
    _check_plan(plan, test)
    if out.suffix != ".safetensors":
        raise ValueError(f"{out} must end in .safetensors")
    for path in (out, json_out, plot):
        if path is not None:
            check_writable(path, [x_path, y_path, *(test or ())])
    if plot is not None:
        from platojax.report.score_figure import check_format

        check_format(plot)
    outputs = [path.resolve() for path in (out, json_out, plot) if path is not None]
    if len(set(outputs)) < len(outputs):
        raise ValueError("--out, --json and --plot name the same file; give each its own")
    console = Console()
    sides = [read_features(path) for path in (x_path, y_path)]
    chosen = [_one_layer(side, choice) for side, choice in zip(sides, _each(layers), strict=True)]
    x, y = (side.features[:, layer] for side, layer in zip(sides, chosen, strict=True))
    curve: list[PairsPoint] = []
    if plan.method in PAIRED:
        check_same_items(*sides)
        fits = [_fit_paired(plan, x, y)]
        curve = _pairs_curve(plan, x, y)
    else:
        fit_x, fit_y, tries = _parts(sides, x, y, plan, test, chosen)
        if plot is not None and tries is None:
            raise ValueError("--plot draws what a map is worth on paired items; name some: --test")
        fits = _fit_unpaired(console, plan, fit_x, fit_y, tries)
    best = min(fits, key=_doubt)
    protocol = {
        **dataclasses.asdict(plan),
        "x": describe_side(sides[0], chosen[0]),
        "y": describe_side(sides[1], chosen[1]),
        "kept": best.to_json(),
        "versions": library_versions("scipy", "scikit-learn"),
    }
    save_map(out, best.fitted, protocol)
    document = {
        **protocol,
        "fits": [fit.to_json() for fit in fits],
        "against_pairs": [point.to_json() for point in curve],
    }
    if json_out is not None:
        write_whole(json_out, to_json(document))
    if plot is not None:
        from platojax.report.map_figure import draw

        draw(plot, document)
    console.print(_table(fits, curve))
    console.print(f"{out}: {plan.method}, seed {best.seed}", markup=False)


def _check_plan(plan: Plan, test: tuple[str, str] | None) -> None:
    if plan.num_seeds < 1:
        raise ValueError(f"seeds={plan.num_seeds} must be at least 1")
    if plan.method not in (*PAIRED, *UNPAIRED):
        raise ValueError(f"method {plan.method!r} must be one of {', '.join((*PAIRED, *UNPAIRED))}")
    if plan.seed < 0:
        raise ValueError(f"seed={plan.seed} must not be negative")
    if plan.whiten and plan.method not in PAIRED:
        raise ValueError(f"--whiten is for {' and '.join(PAIRED)}, not for {plan.method}")
    if plan.remove and plan.method != "rosetta":
        raise ValueError(f"--remove is for rosetta, not for {plan.method}")
    if test is not None and plan.method in PAIRED:
        raise ValueError(
            f"--test is for maps without pairs; {plan.method} is tried on --held-out of its items"
        )


def _doubt(fit: Fit) -> tuple[bool, float]:
    """What orders fits of several seeds: the trusted first, then by how well starts agree."""
    if not isinstance(fit.fitted, UnpairedRotation):
        return False, 0.0
    return not fit.fitted.trusted, fit.fitted.estimated_foscttm


def _each(layers: Sequence[str]) -> Sequence[str]:
    if len(layers) not in (1, 2):
        raise ValueError(f"{len(layers)} choices of layers for two encoders; give one, or one each")
    return [layers[0], layers[-1]]


def _one_layer(features: Features, choice: str) -> int:
    names = features.meta.layers if features.meta else features.features.shape[1]
    found = select_layers(choice, names)
    if len(found) != 1:
        raise ValueError(f"{features.path}: layers {choice!r} are {len(found)}; choose one")
    return found[0]


def _fit_paired(plan: Plan, x: np.ndarray, y: np.ndarray) -> Fit:
    train, held_out = split_items(len(x), plan.held_out, plan.seed)
    fitted = _fitter(plan)(x[train], y[train])
    return Fit(plan.seed, fitted, transfer(fitted, x[held_out], y[held_out]))


def _fitter(plan: Plan) -> Callable[[np.ndarray, np.ndarray], LinearMap]:
    if plan.method == "ridge":
        return lambda x, y: ridge(x, y, whiten=plan.whiten, seed=plan.seed)
    return lambda x, y: procrustes(x, y, whiten=plan.whiten)


def _pairs_curve(plan: Plan, x: np.ndarray, y: np.ndarray) -> list[PairsPoint]:
    most = len(split_items(len(x), plan.held_out, plan.seed)[0])
    # A ridge regression chooses its penalty on a fifth of the pairs.
    fewest = 2 * _FEWEST_PAIRS if plan.method == "ridge" else _FEWEST_PAIRS
    counts = [fewest * 2**power for power in range(30) if fewest * 2**power < most] + [most]
    return against_pairs(_fitter(plan), x, y, counts, held_out=plan.held_out, seed=plan.seed)


def _parts(
    sides: Sequence[Features],
    x: np.ndarray,
    y: np.ndarray,
    plan: Plan,
    test: tuple[str, str] | None,
    layers: Sequence[int],
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray] | None]:
    """What to fit on without pairs, x and y, and the paired items to try the map on.

    Of the same items, x gets one random half and y the other, so that no item is on both sides.
    """
    if test is not None:
        tried = [read_features(path) for path in test]
        check_same_items(*tried)
        first, second = (one.features[:, layer] for one, layer in zip(tried, layers, strict=True))
        for one, path, fit in zip((first, second), test, (x, y), strict=True):
            if one.shape[1] != fit.shape[1]:
                raise ValueError(
                    f"--test {path} has width {one.shape[1]}, but the map is for {fit.shape[1]}"
                )
        return x, y, (first, second)
    metas = [side.meta for side in sides]
    if all(meta is not None for meta in metas):
        same = metas[0].items_hash == metas[1].items_hash  # type: ignore[union-attr]
    else:
        same = len(x) == len(y)
    if not same:
        return x, y, None
    train, held_out = split_items(len(x), plan.held_out, plan.seed)
    order = np.random.default_rng([plan.seed, 1]).permutation(train)
    half = len(order) // 2
    return x[np.sort(order[:half])], y[np.sort(order[half:])], (x[held_out], y[held_out])


def _fit_unpaired(
    console: Console,
    plan: Plan,
    x: np.ndarray,
    y: np.ndarray,
    tries: tuple[np.ndarray, np.ndarray] | None,
) -> list[Fit]:
    fits = []
    for seed in range(plan.seed, plan.seed + plan.num_seeds):
        fitted: LinearMap
        with stage_line(console, f"seed {seed}") as show:
            if plan.method == "rosetta":
                fitted = unpaired_rotation(x, y, seed=seed, remove=plan.remove, on_progress=show)
            else:
                fitted = mini_vec2vec(x, y, seed=seed, on_progress=show)
        fits.append(Fit(seed, fitted, transfer(fitted, *tries) if tries else None))
    return fits


def _table(fits: Sequence[Fit], curve: Sequence[PairsPoint]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    names = ("", "estimated", "shared", "cosine", "FOSCTTM", "R@1 to y", "R@1 to x", "median rank")
    for name in names:
        table.add_column(name, justify="right")
    rows: list[tuple[str, tuple[str, str], Transfer | None]]
    if curve:
        rows = [
            (f"{point.pairs} pairs", ("", ""), one) for point in curve for one in point.repetitions
        ]
    else:
        rows = [(f"seed {fit.seed}", _verdict(fit.fitted), fit.transfer) for fit in fits]
    for name, verdict, found in rows:
        table.add_row(name, *verdict, *_numbers(found))
    if fits[0].transfer is not None:
        chance = fits[0].transfer.retrieval.chance
        table.add_row(
            "chance",
            "",
            "",
            ".000",
            ".500",
            short_number(chance.recall_xy[1]),
            short_number(chance.recall_yx[1]),
            f"{chance.median_rank_xy:g}",
        )
    return table


def _verdict(fitted: LinearMap) -> tuple[str, str]:
    if not isinstance(fitted, UnpairedRotation):
        return "", ""
    estimate = f"{fitted.estimated_foscttm:.4f}".removeprefix("0")
    shared = f"{fitted.shared_geometry:.2f}"
    return estimate, shared if fitted.trusted else f"{shared} (not to be trusted)"


def _numbers(found: Transfer | None) -> list[str]:
    if found is None:
        return []
    retrieval = found.retrieval
    return [
        short_number(found.cosine),
        f"{retrieval.foscttm:.4f}".removeprefix("0"),
        short_number(retrieval.recall_xy[1]),
        short_number(retrieval.recall_yx[1]),
        f"{retrieval.median_rank_xy:g}",
    ]
