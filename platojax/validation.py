"""Finds what is impossible in an experiment before anything is trained."""

import math
from collections.abc import Sequence

import jax
import numpy as np
from ml_collections import ConfigDict

from platojax import sharding
from platojax.data.mixture import Mixture, Scenes
from platojax.data.pipeline import stack_views
from platojax.data.scenes import Scene, SceneStream
from platojax.data.sources import Source
from platojax.data.usable import usable_scenes
from platojax.data.views import make_views
from platojax.evaluation.alignment import check_settings
from platojax.evaluation.calibration import check_num_permutations
from platojax.program import check_batch, make_program
from platojax.tracking import check_trackers


def check_run(name: str, config: ConfigDict, source: Source) -> None:
    """Builds all of a run that can be built without training it.

    Args:
      name: of the run, for messages.
      config: of the run.
      source: of the experiment.

    Raises:
      ValueError: naming the run, the field, the value and the fix.
    """
    try:
        check_positive(config, "", ("num_samples", "log_every", "nonfinite_limit"))
        check_ranges(config)
        check_positive(config.checkpoint, "checkpoint.", ("every", "keep"))
        check_checkpoint_policy(config.checkpoint)
        check_trackers(config.trackers)
        check_profile(config.profile.steps)
        check_positive(
            config.encoder, "encoder.", [name for name in config.encoder if name != "remat"]
        )
        if config.encoder.get("max_length", 3) < 3:
            raise ValueError(
                f"encoder.max_length must be at least 3, for both ends and a token; got "
                f"{config.encoder.max_length}."
            )
        if config.num_samples < config.batch_size:
            raise ValueError(
                f"num_samples {config.num_samples} is less than one batch of batch_size "
                f"{config.batch_size}; raise it, or lower batch_size."
            )
        mesh = sharding.make_mesh(**config.mesh)
        check_batch(config, mesh)
        rate = config.optimizer.learning_rate
        if not 0 < rate < float("inf"):
            raise ValueError(f"optimizer.learning_rate must be positive and finite; got {rate}.")
        sources = config.views.get("sources", ())
        check_names("views.sources", sources, source.sample, config.modality)
        policy = make_views(config.views, config.encoder, source.tokenizer)
        usable = usable_scenes(source.train, policy, config.data.get("max_bad_fraction", 0.0))
        examples = [
            stack_views([policy(scene, np.random.default_rng(0))])
            for scene in _examples(usable, source.sample)
        ]
        program = make_program(config, source.tokenizer, examples[0], mesh)
        jax.eval_shape(program.step, program.state, program.batch(config.batch_size))
    except (
        AttributeError,
        KeyError,
        TypeError,
    ) as error:  # of the config's fields, and their types
        raise ValueError(f"{name}: a field is missing or of another type: {error}") from error
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _examples(usable: Scenes, sample: Sequence[Scene]) -> Sequence[Scene]:
    """A scene of each part, by which the views of all can be judged."""
    if isinstance(usable, SceneStream):
        return sample
    return [
        part[0] for part in (usable.parts.values() if isinstance(usable, Mixture) else [usable])
    ]


# Fields, and the ranges in which they mean something: from, and up to but not including.
_RANGES = {
    "seed": (0, 2**32),
    "num_workers": (0, math.inf),
    "data.max_bad_fraction": (0, 1),
    "optimizer.b2": (0, 1),
    "optimizer.weight_decay": (0, math.inf),
    "optimizer.clip_norm": (np.finfo(np.float32).tiny, math.inf),
    "collapse.min_spread": (0, math.inf),
    "collapse.min_effective_rank": (0, math.inf),
    "collapse.patience": (1, math.inf),
    "objective.num_slices": (1, math.inf),
    "objective.projector_dim": (1, math.inf),
}


def check_ranges(config: ConfigDict) -> None:
    """Raises ValueError where a number is out of the range in which it means something."""
    if config.dtype not in ("float32", "bfloat16"):
        raise ValueError(f"dtype must be 'float32' or 'bfloat16'; got {config.dtype!r}.")
    for field, (lowest, limit) in _RANGES.items():
        room, _, name = field.rpartition(".")
        value = (config[room] if room else config).get(name)
        if value is not None and not lowest <= value < limit:
            raise ValueError(f"{field} must lie in [{lowest:g}, {limit:g}); got {value}.")
    for width in config.objective.get("projector_hidden", ()):
        if not isinstance(width, int) or width < 1:
            raise ValueError(
                f"objective.projector_hidden must be positive integers; got {width!r}."
            )


def check_checkpoint_policy(checkpoint: ConfigDict) -> None:
    """Raises ValueError where `keep_every` or `keep_best` cannot be."""
    for field in ("keep_every", "keep_best"):
        if checkpoint[field] < 0:
            raise ValueError(f"checkpoint.{field} must be 0 or more; got {checkpoint[field]}.")
    if checkpoint.keep_every % checkpoint.every:
        raise ValueError(
            f"checkpoint.keep_every {checkpoint.keep_every} must be a multiple of checkpoint.every "
            f"{checkpoint.every}: no other step is saved."
        )


def check_profile(steps: Sequence[int]) -> None:
    """Raises ValueError where these are not the first and the last step of a trace."""
    whole = all(isinstance(step, int) for step in steps)
    if steps and not (whole and len(steps) == 2 and 1 <= steps[0] <= steps[1]):
        raise ValueError(
            f"profile.steps must be empty, or the first and the last step to trace; got {steps}."
        )


def check_evaluation(evaluation: ConfigDict, scenes: Sequence[Scene], num_heldout: int) -> None:
    """Checks `config.evaluation`.

    Args:
      evaluation: see configs/emoji.py.
      scenes: all scenes.
      num_heldout: how many are held out.

    Raises:
      ValueError: naming the field, the value and the fix.
    """
    check_settings(evaluation.metric, evaluation.k, evaluation.clip)
    check_positive(evaluation, "evaluation.", ("drawings",))
    if evaluation.k >= num_heldout:
        raise ValueError(
            f"evaluation.k {evaluation.k} must be less than the {num_heldout} held-out scenes."
        )
    check_num_permutations(evaluation.num_permutations)
    for share in evaluation.snapshots:
        if not 0 <= share <= 1:
            raise ValueError(
                f"evaluation.snapshots are shares of a run and lie in [0, 1]; got {share}."
            )
    check_names("evaluation.sources", evaluation.sources, scenes, "text")
    check_names("evaluation.artists", evaluation.artists, scenes, "image")


def check_positive(config: ConfigDict, where: str, fields: Sequence[str]) -> None:
    """Raises ValueError where a field is less than 1."""
    for field in fields:
        if config[field] < 1:
            raise ValueError(f"{where}{field} must be at least 1; got {config[field]}.")


def check_names(field: str, names: Sequence[str], scenes: Sequence[Scene], modality: str) -> None:
    """Raises ValueError where a source of this modality is in no scene: misspelt, most likely."""
    observations = {"text": "texts", "image": "pictures", "video": "clips"}[modality]
    known = {one.source for scene in scenes for one in getattr(scene, observations)}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"{field} {unknown} are in no scene; there are {sorted(known)}.")
