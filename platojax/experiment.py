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
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from platojax import terminal, validation
from platojax.arm import Params, make_arm
from platojax.data.observations import TextCodec, image_observations, text_observations
from platojax.data.scenes import EMOJI_TOKENIZER, Scene, load_emoji
from platojax.data.tokenizer import Tokenizer
from platojax.evaluation.comparison import RunFeatures, compare
from platojax.evaluation.extraction import extract
from platojax.evaluation.features import FeatureMeta, write_features
from platojax.files import write_whole
from platojax.hashing import hash_items, hash_tree
from platojax.report.page import write_page
from platojax.train import total_steps, train

_PROTOCOL = ("metric", "k", "clip", "num_permutations", "seed")  # of config.evaluation
_FINISHED = "finished"  # this empty file in a run's folder says that nothing is left to do there


class WorkdirError(ValueError):
    """The workdir belongs to another run."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One arm under one seed.

    Attributes:
      arm: name of the arm.
      config: what `train` needs, complete.
    """

    arm: str
    config: ConfigDict

    @property
    def name(self) -> str:
        """Of the run's folder in the workdir."""
        return f"{self.arm}-seed{self.config.seed}"


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


def resolve_runs(config: ConfigDict) -> list[Run]:
    """The runs of an experiment, in order: each arm under each of its seeds.

    What an arm does not say itself is as `config.text` or `config.image` has it, by its modality.

    Raises:
      ValueError: if an arm's modality is unknown, or it has no seed.
    """
    runs = []
    for name, arm in config.arms.items():
        if arm.modality not in ("text", "image"):
            raise ValueError(
                f"config.arms.{name}.modality must be 'text' or 'image'; got {arm.modality!r}."
            )
        validation.check_positive(arm, f"config.arms.{name}.", ("seeds",))
        for seed in range(config.seed, config.seed + arm.seeds):
            runs.append(Run(name, ConfigDict({**config[arm.modality], **arm, "seed": seed})))
    if not runs:
        raise ValueError("config.arms is empty: there is nothing to train.")
    return runs


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
    arm = make_arm(config, tokenizer)
    encode = jax.jit(lambda params, views: arm.encode(params, views)["layers"])
    last = total_steps(config)
    snapshots = sorted({round(share * last) for share in evaluation.snapshots} | {0, last})
    observations = observe(config, evaluation, scenes, tokenizer)

    def keep_features(step: int, params: Params) -> None:
        features = extract(lambda views: encode(params, views), observations)
        meta = FeatureMeta(
            encoder=f"{run.name}, step {step}",
            weights_hash=hash_tree(params["encoder"]),
            dataset="emoji, heldout then train",
            items_hash=hash_items([scene.scene_id for scene in scenes]),
            preprocessing=_preprocessing(config, evaluation),
            pooling="mean over patches or valid tokens; last_token: the last valid one",
            layers=arm.layer_names,
            dtype=config.dtype,
        )
        if step not in (0, last):  # for the curves; all layers are kept of the two ends only
            only = arm.layer_names.index("embedding")
            features = features[:, only : only + 1]
            meta = dataclasses.replace(meta, layers=("embedding",))
        target = folder / "features" / f"step_{step}"
        # A process that was killed before its next checkpoint may have been here, with other
        # libraries or devices and so with other last bits.
        shutil.rmtree(target, ignore_errors=True)
        write_features(target, features, meta)

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


def observe(
    config: ConfigDict, evaluation: ConfigDict, scenes: Sequence[Scene], tokenizer: Tokenizer
) -> np.ndarray:
    """The observations by which a run's encoder is judged: `[O, N, ...]`, O of each scene.

    Args:
      config: of the run.
      evaluation: `config.evaluation` of the experiment.
      scenes: N scenes.
      tokenizer: of the text arms.
    """
    if config.modality == "text":
        codec = TextCodec(tokenizer, config.encoder.max_length)
        return text_observations(scenes, evaluation.sources, codec)
    return image_observations(
        scenes, evaluation.artists, evaluation.drawings, config.encoder.image_size
    )


def _preprocessing(config: ConfigDict, evaluation: ConfigDict) -> str:
    """What `observe` shows of a scene."""
    if config.modality == "text":
        return (
            f"mean over the name and keywords by {', '.join(evaluation.sources)}, "
            f"at most {config.encoder.max_length} tokens each"
        )
    return (
        f"mean over the drawings by the first {evaluation.drawings} of "
        f"{', '.join(evaluation.artists)} who drew the scene, resized to "
        f"{config.encoder.image_size} pixels, bilinear"
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
    write_whole(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
