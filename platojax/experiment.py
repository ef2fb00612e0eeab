"""An experiment: trains each arm on its own, compares them, and writes the report."""

import dataclasses
import fcntl
import json
import pathlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from ml_collections import ConfigDict
from rich.console import Console

from platojax import terminal, validation
from platojax.arm import Params
from platojax.data.items import Items, emoji_items
from platojax.data.scenes import EMOJI_TOKENIZER, Scene, load_emoji
from platojax.data.tokenizer import Tokenizer
from platojax.evaluation.comparison import RunFeatures, compare
from platojax.evaluation.extraction import extract
from platojax.files import to_json, write_whole
from platojax.program import total_steps
from platojax.report.page import write_page
from platojax.run_encoder import make_run_encoder
from platojax.runs import Run, resolve_runs
from platojax.train import train

_PROTOCOL = ("metric", "k", "clip", "num_permutations", "seed")  # of config.evaluation
_FINISHED = "finished"  # this empty file in a run's folder says that nothing is left to do there


class WorkdirError(ValueError):
    """The workdir belongs to another run."""


def run(config: ConfigDict, workdir: pathlib.Path) -> None:
    """Runs an experiment to its end, going on where an earlier call with this workdir stopped.

    Args:
      config: see configs/emoji.py.
      workdir: gets `config.json`, a folder per run, `scores.json` and `report.html`.

    Raises:
      WorkdirError: if the workdir holds another config, or another process is using it.
      platojax.train.Preempted: after SIGTERM or SIGINT; the state is saved.
      ValueError: if a field of the config is impossible; the message names it.
    """
    if jax.process_count() > 1:
        raise ValueError(
            f"{jax.process_count()} processes were started, but an experiment runs in one: start a "
            "single process with all devices."
        )
    console = Console()
    runs = resolve_runs(config)
    tokenizer = Tokenizer(EMOJI_TOKENIZER)
    train_scenes, heldout_scenes = load_emoji("train"), load_emoji("heldout")
    scenes = [*heldout_scenes, *train_scenes]
    # All of it before the workdir is claimed: a slip must not cost the training of earlier arms.
    validation.check_evaluation(config.evaluation, scenes, len(heldout_scenes))
    for one in {one.arm: one for one in runs}.values():
        validation.check_run(one.arm, one.config, train_scenes, tokenizer)
    workdir = workdir.resolve()
    workdir.mkdir(parents=True, exist_ok=True)
    with _only_process_in(workdir):
        _claim(config, workdir)
        for one in runs:
            if not (workdir / one.name / _FINISHED).exists():
                with terminal.progress_line(console, one.name) as show:
                    _train(one, config.evaluation, train_scenes, scenes, tokenizer, workdir, show)
        scores = compare(
            [_run_features(one, workdir) for one in runs],
            {name: config.evaluation[name] for name in _PROTOCOL},
            {"heldout": slice(len(heldout_scenes)), "all": slice(None)},
        )
        _write_json(workdir / "scores.json", scores)
        if scores["scores"]:  # there are none where one modality is missing
            for items in scores["items"]:
                console.print(terminal.scores_table(scores, items))
        console.print(f"Report: {write_page(workdir, scenes)}")


def _train(
    run: Run,
    evaluation: ConfigDict,
    train_scenes: Sequence[Scene],
    scenes: Sequence[Scene],
    tokenizer: Tokenizer,
    workdir: pathlib.Path,
    show: terminal.ProgressLine,
) -> None:
    """Trains a run, and keeps the features of all scenes at its snapshots."""
    config = run.config
    folder = workdir / run.name
    last = total_steps(config)
    snapshots = sorted({round(share * last) for share in evaluation.snapshots} | {0, last})
    items = evaluation_items(evaluation, scenes)
    encoder = make_run_encoder(run.name, config, tokenizer, params={})

    def keep_features(step: int, params: Params) -> None:
        name = f"{run.name}, step {step}"
        # All layers are kept of the two ends; in between is for the curves.
        layers = encoder.all_layers if step in (0, last) else ("embedding",)
        target = folder / "features" / f"step_{step}"
        # A process that was killed before its next checkpoint may have been here, with other
        # libraries or devices and so with other last bits.
        shutil.rmtree(target, ignore_errors=True)
        extract(
            dataclasses.replace(encoder, name=name, params=params, layers=layers), items, target
        )

    train(
        config,
        train_scenes,
        tokenizer,
        folder,
        snapshots=snapshots,
        on_snapshot=keep_features,
        on_progress=show.update,
        on_alarm=show.message,
    )
    (folder / _FINISHED).touch()


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
def _only_process_in(workdir: pathlib.Path) -> Iterator[None]:
    """Holds the workdir's lock, which the kernel frees however the process ends."""
    with (workdir / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise WorkdirError(
                f"another process is running in --workdir {workdir}; wait for it or name another."
            ) from error
        yield


def _claim(config: ConfigDict, workdir: pathlib.Path) -> None:
    """Writes `config.json`, or checks that the one there is the same."""
    path = workdir / "config.json"
    current = json.loads(config.to_json())
    if not path.exists():
        _write_json(path, current)
        return
    try:
        saved = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise WorkdirError(
            f"{path} is not JSON ({error}); name another --workdir, or delete this one."
        ) from error
    if fields := list(_differences(saved, current)):
        raise WorkdirError(
            f"--workdir {workdir} holds a run of another config; name another workdir, or set back:"
            + "".join(f"\n  config.{field}: {was} there, {now} here" for field, was, now in fields)
        )


def _differences(saved: Any, current: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    if isinstance(saved, dict) and isinstance(current, dict):
        for key in sorted(saved.keys() | current.keys()):
            inner = f"{path}.{key}" if path else key
            yield from _differences(saved.get(key, "nothing"), current.get(key, "nothing"), inner)
    elif saved != current:
        yield path, repr(saved), repr(current)


def _write_json(path: pathlib.Path, content: Any) -> None:
    write_whole(path, to_json(content, indent=1))
