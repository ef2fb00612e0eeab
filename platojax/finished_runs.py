"""What finished runs cost and how they score against each target, from their workdirs."""

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from platojax import sharding
from platojax.data.sources import load_vocabulary
from platojax.data.views import example_views
from platojax.model_flops import model_flops
from platojax.program import make_program, total_steps
from platojax.runs import read_runs
from platojax.tracking import read_jsonl


@dataclasses.dataclass(frozen=True)
class Point:
    """The end of one run, against one target.

    Attributes:
      arm: its name.
      label: of the arm, in words.
      objective: its name.
      seed: of the run.
      target: name of the target's feature folder.
      score: of the run's last evaluation.
      chance: of that score.
      samples: scenes that the run was trained on, each time it saw one.
      tokens: of all views, without padding; None where they are pictures, or not known.
      flops: of matrix products in all forward and backward passes, see `model_flops`.
    """

    arm: str
    label: str
    objective: str
    seed: int
    target: str
    score: float
    chance: float
    samples: int
    tokens: int | None
    flops: float


def read_points(paths: Sequence[pathlib.Path]) -> tuple[list[Point], list[str]]:
    """The ends of all finished runs.

    Args:
      paths: workdirs of experiments that were monitored (`config.monitor`), and JSON files with
        `points`, as `platojax scaling --json` writes them.

    Returns:
      The points, and what was left out and why, a line each.

    Raises:
      FileNotFoundError: there is nothing at a path.
      ValueError: a path holds neither, or the same run against the same target comes twice.
    """
    points: list[Point] = []
    left_out: list[str] = []
    for path in paths:
        if path.is_file():
            points += _of_file(path)
        else:
            found, missing = _of_workdir(path)
            points += found
            left_out += missing
    known: set[tuple[Any, ...]] = set()
    for point in points:
        key = (point.arm, point.seed, point.samples, point.target)
        if key in known:
            raise ValueError(
                f"arm {point.arm} with seed {point.seed} and {point.samples:,} samples comes twice "
                f"against {point.target}; name each workdir once, and give arms that differ "
                "different names."
            )
        known.add(key)
    return points, left_out


def _of_file(path: pathlib.Path) -> list[Point]:
    try:
        return [Point(**point) for point in json.loads(path.read_text("utf-8"))["points"]]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{path} is no JSON of `platojax scaling --json` ({error}); give one, or a workdir."
        ) from error


def _of_workdir(workdir: pathlib.Path) -> tuple[list[Point], list[str]]:
    points: list[Point] = []
    left_out: list[str] = []
    cost: dict[str, float] = {}  # FLOPs of a step are those of the arm, whatever its seed
    for run in read_runs(workdir):
        folder = workdir / run.name
        last = total_steps(run.config)
        rows = [row for row in read_jsonl(folder / "validation.jsonl") if row["step"] == last]
        if not rows:
            left_out.append(f"{folder} has no evaluation of its last step, {last}")
            continue
        if run.arm not in cost:
            cost[run.arm] = _flops_of_step(run.config)
        metrics = read_jsonl(folder / "metrics.jsonl")
        tokens = metrics[-1].get("tokens") if metrics else None  # the file may be lost
        for target in _targets(rows[0]):
            points.append(
                Point(
                    arm=run.arm,
                    label=run.config.label,
                    objective=run.config.objective.name,
                    seed=run.config.seed,
                    target=target,
                    score=rows[0][f"{target}/score"],
                    chance=rows[0][f"{target}/chance"],
                    samples=rows[0]["samples"],
                    tokens=tokens,
                    flops=cost[run.arm] * last,
                )
            )
    return points, left_out


def _targets(row: Iterable[str]) -> list[str]:
    end = "/score"
    return [name.removesuffix(end) for name in row if name.endswith(end)]


def _flops_of_step(config: ConfigDict) -> float:
    # On one device: the numbers of the whole batch, wherever it was trained.
    mesh = sharding.make_mesh(devices=jax.devices()[:1])
    vocabulary = load_vocabulary(config.data)
    example = example_views(config.views, config.encoder)
    program = make_program(config, vocabulary, example, mesh)
    batch = program.batch(config.batch_size)
    return float(model_flops(config, vocabulary, program.state.params, batch))
