"""An experiment: trains each arm on its own, compares them, and writes the report."""

import dataclasses
import fcntl
import functools
import json
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from platojax import processes, sharding, terminal, validation
from platojax.arm import Params
from platojax.data.items import Items, emoji_items, load_items
from platojax.data.scenes import Scene, hash_scenes
from platojax.data.sources import Source, load_source
from platojax.evaluation.comparison import RunFeatures, compare
from platojax.evaluation.extraction import extract
from platojax.evaluation.monitor import Monitor, load_monitor
from platojax.files import to_json, write_whole
from platojax.program import total_steps
from platojax.report.page import write_page
from platojax.run_encoder import RunEncoder, make_run_encoder
from platojax.runs import Run, resolve_runs
from platojax.train import Hooks, train

_PROTOCOL = ("metric", "k", "clip", "num_permutations", "seed")  # of evaluation and of monitor
_FINISHED = "finished"  # this empty file in a run's folder says that nothing is left to do there


class WorkdirError(ValueError):
    """The workdir belongs to another run."""


def run(config: ConfigDict, workdir: pathlib.Path) -> None:
    """Runs an experiment to its end, going on where an earlier call with this workdir stopped.

    Several processes call this together. All of them train; what is written into the workdir, but
    for checkpoints, is written by the first.

    Args:
      config: see configs/emoji.py.
      workdir: gets `config.json`, a folder per run and, where `config.evaluation` says what to
        compare, `scores.json` and `report.html`. All processes must see it under this path.

    Raises:
      WorkdirError: if the workdir holds another config, or another process is using it.
      platojax.train.Preempted: after SIGTERM, SIGINT or a notice of preemption; the state is saved.
      platojax.train.Collapsed: an embedding collapsed, and `collapse.stop` is set.
      ValueError: if a field of the config is impossible; the message names it.
    """
    console = Console()
    runs = resolve_runs(config)
    source = load_source(config.data)
    # All of it before the workdir is claimed: a slip must not cost the training of earlier arms.
    evaluation = config.get("evaluation")
    scenes: list[Scene] = []
    if evaluation is not None:
        if config.data.name != "emoji":
            raise ValueError(
                f"config.evaluation compares on the emoji, and data.name is {config.data.name!r}: "
                "leave it out. config.monitor scores other data while arms train, `platojax "
                "extract` and `platojax score` do once they have."
            )
        scenes = [*source.heldout, *source.sample]
        validation.check_evaluation(evaluation, scenes, len(source.heldout))
    for one in {one.arm: one for one in runs}.values():
        validation.check_run(one.arm, one.config, source)
    monitor = _load_monitor(config.monitor, runs) if config.monitor.every else None
    workdir = workdir.resolve()
    workdir.mkdir(parents=True, exist_ok=True)
    with _only_run_in(workdir):
        _claim(config, source, workdir)
        processes.wait_for_all("the workdir is claimed")
        study = _Study(config, source, scenes, monitor, workdir)
        for one in runs:
            if not (workdir / one.name / _FINISHED).exists():
                with terminal.progress_line(console, one.name) as show:
                    study.train(one, show)
        if evaluation is not None and jax.process_index() == 0:
            _compare(runs, evaluation, scenes, len(source.heldout), workdir, console)
        processes.wait_for_all("the experiment is over")


@dataclasses.dataclass(frozen=True)
class _Study:
    """What the runs of an experiment share."""

    config: ConfigDict
    source: Source
    scenes: Sequence[Scene]
    monitor: Monitor | None
    workdir: pathlib.Path

    def train(self, run: Run, show: terminal.ProgressLine) -> None:
        """Trains a run; keeps the features of all scenes at its snapshots, where there are any."""
        config = run.config
        folder = self.workdir / run.name
        last = total_steps(config)
        encoder = make_run_encoder(run.name, config, self.source.tokenizer, params={})
        mesh = sharding.make_mesh(**config.mesh)

        def on_first_process(
            step: int,
            params: Params,
            layers: tuple[str, ...],
            use: Callable[[RunEncoder], Mapping[str, float]],
        ) -> Mapping[str, float]:
            """What `use` makes of the encoder at this step; the other processes wait for it."""
            values: Mapping[str, float] = {}
            whole = processes.to_host(params, mesh)
            if jax.process_index() == 0:
                values = use(encoder.at(step, whole, layers))
            processes.wait_for_all(f"{run.name}, step {step}")
            return values

        evaluation = self.config.get("evaluation")
        snapshots: set[int] = set()
        if evaluation is not None:
            snapshots = {round(share * last) for share in evaluation.snapshots} | {0, last}
            items = evaluation_items(evaluation, self.scenes)

        def keep_features(step: int, params: Params) -> None:
            # All layers are kept of the two ends; in between is for the curves.
            layers = encoder.all_layers if step in (0, last) else ("embedding",)
            target = folder / "features" / f"step_{step}"

            def write(frozen: RunEncoder) -> Mapping[str, float]:
                # A process that was killed before its next checkpoint may have been here, with
                # other libraries or devices and so with other last bits.
                shutil.rmtree(target, ignore_errors=True)
                extract(frozen, items, target)
                return {}

            on_first_process(step, params, layers, write)

        def evaluate(step: int, params: Params) -> Mapping[str, float]:
            assert self.monitor is not None
            watch = functools.partial(self.monitor, on_failure=show.message)
            values = on_first_process(step, params, ("embedding",), watch)
            # All processes must know which checkpoints are the best.
            score = processes.from_first(values.get("score", np.nan))
            return {**values, "score": score} if np.isfinite(score) else values

        every = max(1, self.config.monitor.every // config.batch_size)
        train(
            config,
            self.source.train,
            self.source.tokenizer,
            folder,
            Hooks(
                on_progress=show.update,
                on_message=show.message,
                snapshots=snapshots,
                on_snapshot=keep_features,
                evaluations={*range(every, last, every), last} if self.monitor else (),
                evaluate=evaluate,
            ),
        )
        if jax.process_index() == 0:
            (folder / _FINISHED).touch()


def _compare(
    runs: Sequence[Run],
    evaluation: ConfigDict,
    scenes: Sequence[Scene],
    num_heldout: int,
    workdir: pathlib.Path,
    console: Console,
) -> None:
    """Scores the finished runs and writes the report."""
    scores = compare(
        [_run_features(one, workdir) for one in runs],
        {name: evaluation[name] for name in _PROTOCOL},
        {"heldout": slice(num_heldout), "all": slice(None)},
    )
    _write_json(workdir / "scores.json", scores)
    if scores["scores"]:  # there are none where one modality is missing
        for items in scores["items"]:
            console.print(terminal.scores_table(scores, items))
    console.print(f"Report: {write_page(workdir, scenes)}")


def _load_monitor(config: ConfigDict, runs: Sequence[Run]) -> Monitor:
    protocol = {name: config[name] for name in _PROTOCOL}
    if not config.data:
        raise ValueError("monitor.data is empty; name what the targets are the features of.")
    try:
        items = load_items(config.data)
    except (ValueError, OSError) as error:
        raise ValueError(f"monitor.data: {error}") from error
    for one in runs:
        items.observations(one.config.modality)
    return load_monitor(items, config.targets, protocol)


def evaluation_items(evaluation: ConfigDict, scenes: Sequence[Scene]) -> Items:
    """What every run's encoder is judged by: these observations of all scenes."""
    return emoji_items(
        scenes,
        name="emoji, heldout then train",
        sources=evaluation.sources,
        artists=evaluation.artists,
        drawings=evaluation.drawings,
    )


def _run_features(run: Run, workdir: pathlib.Path) -> RunFeatures:
    return RunFeatures(
        arm=run.arm,
        label=run.config.label,
        modality=run.config.modality,
        objective=run.config.objective.name,
        seed=run.config.seed,
        batch_size=run.config.batch_size,
        features=workdir / run.name / "features",
    )


@contextmanager
def _only_run_in(workdir: pathlib.Path) -> Iterator[None]:
    """The first process holds the workdir's lock, which the kernel frees however it ends."""
    if jax.process_index() != 0:
        yield
        return
    with (workdir / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise WorkdirError(
                f"another process is running in --workdir {workdir}; wait for it or name another."
            ) from error
        yield


def _claim(config: ConfigDict, source: Source, workdir: pathlib.Path) -> None:
    """Writes `config.json` and `data.json`, or checks that those there are of the same run."""
    if jax.process_index() != 0:
        return
    _claim_data(source, workdir)
    path = workdir / "config.json"
    current = json.loads(config.to_json())
    if not path.exists():
        _write_json(path, current)
        return
    try:
        saved = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise WorkdirError(
            f"{path} is not the JSON of a config ({error}); name another --workdir, or delete this "
            "one."
        ) from error
    differences = list(_differences(saved, current))
    if fields := [one for one in differences if not _may_change(one[0])]:
        raise WorkdirError(
            f"--workdir {workdir} holds a run of another config; name another workdir, or set back:"
            + "".join(f"\n  config.{field}: {was} there, {now} here" for field, was, now in fields)
        )
    if differences:
        _write_json(path, current)


def _claim_data(source: Source, workdir: pathlib.Path) -> None:
    """Data may move; what is in it may not change, also under runs that are finished."""
    path = workdir / "data.json"
    current = {"tokenizer": source.tokenizer.hash, "scenes": hash_scenes(source.train)}
    if not path.exists():
        _write_json(path, current)
        return
    saved = json.loads(path.read_text(encoding="utf-8"))
    for field, value in current.items():
        if saved.get(field) != value:
            raise WorkdirError(
                f"--workdir {workdir} holds runs on other data: config.data has {field} "
                f"{value[:12]}, they {str(saved.get(field))[:12]}. Name another --workdir, or give "
                f"their {field} again."
            )


# What does not change what is learned: where and how a run computes, and what it tells.
_MAY_CHANGE = {
    *("mesh", "accumulation_steps", "remat", "num_workers", "checkpoint", "nonfinite_limit"),
    *("log_every", "trackers", "profile", "collapse", "monitor"),
}


# These may move; a checkpoint knows their content.
_FILES = re.compile(r"data\.(parts\.\w+\.)?(files|folder|tokenizer)")


def _may_change(field: str) -> bool:
    return bool(_MAY_CHANGE & set(field.split("."))) or bool(_FILES.fullmatch(field))


def _differences(saved: Any, current: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    if isinstance(saved, dict) and isinstance(current, dict):
        for key in sorted(saved.keys() | current.keys()):
            inner = f"{path}.{key}" if path else key
            yield from _differences(saved.get(key, "nothing"), current.get(key, "nothing"), inner)
    elif saved != current:
        yield path, repr(saved), repr(current)


def _write_json(path: pathlib.Path, content: Any) -> None:
    write_whole(path, to_json(content, indent=1))
