"""AdamW with warm-up, cosine decay and clipping, all by optax."""

from typing import Any

import jax
import optax
from ml_collections import ConfigDict


def learning_rate_schedule(config: ConfigDict, total_steps: int) -> optax.Schedule:
    """Linear warm-up to the peak, then cosine down to a thousandth of it at the last step.

    Args:
      config: with `learning_rate` (the peak) and `warmup_fraction` (of all steps).
      total_steps: of the whole run.

    Raises:
      ValueError: if `warmup_fraction` is not in [0, 1).
    """
    if not 0 <= config.warmup_fraction < 1:
        raise ValueError(
            f"optimizer.warmup_fraction must lie in [0, 1); got {config.warmup_fraction}."
        )
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0,
        peak_value=config.learning_rate,
        warmup_steps=max(1, round(config.warmup_fraction * total_steps)),
        decay_steps=max(2, total_steps),
        end_value=config.learning_rate / 1000,
    )


def make_optimizer(config: ConfigDict, schedule: optax.Schedule) -> optax.GradientTransformation:
    """AdamW on clipped gradients; weight decay on kernels and token embeddings only.

    Args:
      config: with `weight_decay`, `clip_norm`, `b2`.
      schedule: of the learning rate, over the updates.
    """
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(
            schedule,
            b2=config.b2,
            weight_decay=config.weight_decay,
            mask=_decays,
        ),
    )


def _decays(params: Any) -> Any:
    # By name: the biases of projections to several heads have two dimensions.
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path[-1].key in ("kernel", "embedding"), params
    )
