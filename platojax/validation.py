"""Finds what is impossible in an experiment before anything is trained."""

from collections.abc import Sequence

import jax
import numpy as np
from ml_collections import ConfigDict

from platojax import sharding
from platojax.data.pipeline import stack_views
from platojax.data.scenes import Scene
from platojax.data.tokenizer import Tokenizer
from platojax.data.views import make_views
from platojax.evaluation.alignment import check_settings
from platojax.evaluation.calibration import check_num_permutations
from platojax.program import make_program

_POSITIVE = (
    *("batch_size", "num_samples", "accumulation_steps", "log_every"),
    *("checkpoint_every", "checkpoint_keep", "nonfinite_limit"),
)


def check_run(name: str, config: ConfigDict, scenes: Sequence[Scene], tokenizer: Tokenizer) -> None:
    """Builds all of a run that can be built without training it.

    Args:
      name: of the run, for messages.
      config: of the run.
      scenes: the training scenes.
      tokenizer: of the text arms.

    Raises:
      ValueError: naming the run, the field, the value and the fix.
    """
    try:
        check_positive(config, "", _POSITIVE)
        check_positive(config.encoder, "encoder.", tuple(config.encoder))
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
        parts = sharding.num_batch_shards(mesh) * config.accumulation_steps
        if config.batch_size % parts:
            raise ValueError(
                f"batch_size {config.batch_size} must be a multiple of {parts}: mesh.data "
                f"{mesh.shape['data']} x mesh.fsdp {mesh.shape['fsdp']} parts of the batch x "
                f"accumulation_steps {config.accumulation_steps}."
            )
        rate = config.optimizer.learning_rate
        if not 0 < rate < float("inf"):
            raise ValueError(f"optimizer.learning_rate must be positive and finite; got {rate}.")
        for field in ("sources", "artists"):
            check_names(f"views.{field}", config.views.get(field, ()), scenes)
        policy = make_views(config.views, config.encoder, tokenizer)
        example = stack_views([policy(scenes[0], np.random.default_rng(0))])
        program = make_program(config, tokenizer, example, mesh)
        jax.eval_shape(program.step, program.state, program.batch(config.batch_size))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


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
    check_names("evaluation.sources", evaluation.sources, scenes)
    check_names("evaluation.artists", evaluation.artists, scenes)


def check_positive(config: ConfigDict, where: str, fields: Sequence[str]) -> None:
    """Raises ValueError where a field is less than 1."""
    for field in fields:
        if config[field] < 1:
            raise ValueError(f"{where}{field} must be at least 1; got {config[field]}.")


def check_names(field: str, names: Sequence[str], scenes: Sequence[Scene]) -> None:
    """Raises ValueError where a source or artist appears in no scene: misspelt, most likely."""
    if field.endswith("sources"):
        known = {text.source for scene in scenes for text in scene.texts}
    else:
        known = {picture.artist for scene in scenes for picture in scene.pictures}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"{field} {unknown} are in no scene; there are {sorted(known)}.")
