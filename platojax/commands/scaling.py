"""`platojax scaling`: how alignment grows with samples, and how many fewer an arm needs."""

import dataclasses
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from platojax.evaluation.scaling import ScalingLaw, fit_scaling_law, sample_ratio
from platojax.files import check_writable, to_json, write_whole
from platojax.finished_runs import Point, read_points
from platojax.report.scaling_figure import draw
from platojax.report.score_figure import check_format

_COSTS = ("samples", "tokens", "flops")


@dataclasses.dataclass(frozen=True)
class Options:
    """What to compare.

    Attributes:
      targets: names of the targets' feature folders; all where empty.
      baseline: the arm that the others are compared with; None for the only one that predicts the
        next token.
      at: the alignment at which they are compared; None for what the weaker of the two ends with.
      predict: numbers of samples to extrapolate to.
    """

    targets: Sequence[str] = ()
    baseline: str | None = None
    at: float | None = None
    predict: Sequence[int] = ()


def run(
    paths: Sequence[pathlib.Path],
    options: Options,
    *,
    json_out: pathlib.Path | None,
    plot: pathlib.Path | None,
) -> None:
    """Fits a law to each arm, and compares each with the baseline.

    Args:
      paths: see `read_points`.
      options: see there.
      json_out: also writes all of it there.
      plot: also draws it there.

    Raises:
      ValueError, FileNotFoundError: a path, a target or an arm cannot be used.
    """
    for out in (json_out, plot):
        if out is not None:
            # A JSON of this command may be renewed in its place.
            check_writable(out, [path for path in paths if path != json_out])
    if plot is not None:
        check_format(plot)
    console = Console(soft_wrap=True, markup=False, highlight=False)
    points, left_out = read_points(paths)
    for line in left_out:
        console.print(f"Left out: {line}.")
    readings = {
        target: read_target([point for point in points if point.target == target], options)
        for target in _targets(points, options.targets)
    }
    for target, reading in readings.items():
        _show(console, target, reading)
    document = {
        "points": [dataclasses.asdict(point) for point in points if point.target in readings],
        "targets": readings,
    }
    if plot is not None:
        draw(plot, document)
        console.print(f"Figure: {plot}")
    if json_out is not None:
        write_whole(json_out, to_json(document))


def _targets(points: Sequence[Point], wanted: Sequence[str]) -> list[str]:
    there = list(dict.fromkeys(point.target for point in points))
    if not there:
        raise ValueError(
            "there is no finished run with an evaluation: set config.monitor.every and "
            "config.monitor.targets, and let the runs come to their ends."
        )
    if unknown := [target for target in wanted if target not in there]:
        raise ValueError(f"--target {unknown[0]!r} is not there; there are {', '.join(there)}.")
    return list(wanted) or there


def read_target(points: Sequence[Point], options: Options) -> dict[str, Any]:
    """What the runs say of one target, as values that JSON knows.

    Args:
      points: of all arms, against this target.
      options: see there.

    Returns:
      `chance`; `baseline`, an arm or None; by arm `scores` (of the runs of each size), `laws` and
      `predictions` where there are several sizes, and of all but the baseline `ratios` (in samples,
      tokens and FLOPs) or, in `not_known`, why there is none.

    Raises:
      ValueError: the baseline is no arm, or a number of samples is impossible.
    """
    arms: dict[str, list[Point]] = {}
    for point in points:
        arms.setdefault(point.arm, []).append(point)
    laws = {
        arm: fit_scaling_law(*_columns(own, "samples"))
        for arm, own in arms.items()
        if len({point.samples for point in own}) > 1
    }
    baseline = _baseline(arms, options.baseline)
    ratios: dict[str, Any] = {}
    not_known: dict[str, str] = {}
    for arm, own in arms.items():
        if baseline is None or arm == baseline:
            continue
        both = (*own, *arms[baseline])
        costs = [cost for cost in _COSTS if all(getattr(point, cost) for point in both)]
        try:
            ratios[arm] = {
                cost: sample_ratio(
                    *_columns(own, cost), *_columns(arms[baseline], cost), at=options.at
                ).to_json()
                for cost in costs
            }
        except ValueError as error:
            not_known[arm] = str(error)
    return {
        "chance": points[0].chance,
        "baseline": baseline,
        "scores": {arm: _by_size(own) for arm, own in arms.items()},
        "laws": {arm: law.to_json() for arm, law in laws.items()},
        "predictions": {
            arm: {str(n): float(law.predict(n)) for n in options.predict}
            for arm, law in laws.items()
        },
        "ratios": ratios,
        "not_known": not_known,
    }


def _baseline(arms: Mapping[str, Sequence[Point]], wanted: str | None) -> str | None:
    if wanted is not None:
        if wanted not in arms:
            raise ValueError(f"--baseline {wanted!r} is no arm; there are {', '.join(arms)}.")
        return wanted
    found = [arm for arm, own in arms.items() if own[0].objective == "next_token"]
    return found[0] if len(found) == 1 else None


def _columns(points: Sequence[Point], cost: str) -> tuple[list[float], list[float]]:
    """Cost and score of each run. Runs of one size cost the same: what they do in the mean."""
    costs: dict[int, list[float]] = {}
    for point in points:
        costs.setdefault(point.samples, []).append(getattr(point, cost))
    mean = {samples: statistics.mean(values) for samples, values in costs.items()}
    return [mean[point.samples] for point in points], [point.score for point in points]


def _by_size(points: Sequence[Point]) -> dict[str, list[float]]:
    sizes = sorted({point.samples for point in points})
    return {str(n): [point.score for point in points if point.samples == n] for n in sizes}


def _show(console: Console, target: str, reading: Mapping[str, Any]) -> None:
    table = Table(box=box.SIMPLE_HEAD, title=f"Against {target} (chance {reading['chance']:.3f})")
    table.add_column("samples", justify="right")
    for arm in reading["scores"]:
        table.add_column(arm, justify="right")
    sizes = {int(n) for by_size in reading["scores"].values() for n in by_size}
    for n in sorted(sizes):
        cells = (_spread(by_size.get(str(n), ())) for by_size in reading["scores"].values())
        table.add_row(f"{n:,}", *cells)
    for n in next(iter(reading["predictions"].values()), {}):
        predicted = (reading["predictions"].get(arm, {}).get(n) for arm in reading["scores"])
        cells = ("" if score is None else f"{score:.3f}" for score in predicted)
        table.add_row(f"{int(n):,}, predicted", *cells)
    console.print(table)
    for arm, law in reading["laws"].items():
        console.print(f"  {arm}: {_describe(ScalingLaw(**law))}")
    for arm, ratios in reading["ratios"].items():
        parts = "; ".join(f"{cost} {_ratio(ratio)}" for cost, ratio in ratios.items())
        at = ratios["samples"]["at"]
        console.print(f"  {reading['baseline']} over {arm}, at {at:.3f}: {parts}")
    for arm, reason in reading["not_known"].items():
        console.print(f"  {reading['baseline']} over {arm}: {reason}")


def _spread(scores: Sequence[float]) -> str:
    if not scores:
        return ""
    spread = f" ±{statistics.stdev(scores):.3f}" if len(scores) > 1 else ""
    return f"{statistics.mean(scores):.3f}{spread}"


def _describe(law: ScalingLaw) -> str:
    values = ", ".join(f"{name} {value:.4g}" for name, value in law.parameters.items())
    spread = "one run of each size" if law.spread is None else f"spread of runs {law.spread:.4f}"
    errors = "".join(
        f"; {form} is off by {error:.4f} where it was not fitted"
        for form, error in law.held_out_error.items()
    )
    return f"{law.form} ({values}), residual {law.residual:.4f}, {spread}{errors}"


def _ratio(ratio: Mapping[str, Any]) -> str:
    low, high = ("inf" if ratio[end] is None else f"{ratio[end]:.3g}" for end in ("low", "high"))
    return f"{ratio['bound']} {ratio['ratio']:.3g} [{low}, {high}]".strip()
