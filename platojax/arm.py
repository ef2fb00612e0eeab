"""An arm: one encoder under one objective. Pure functions made from a config."""

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from platojax.data.tokenizer import Tokenizer
from platojax.encoders.image import ImageEncoder
from platojax.encoders.projector import Projector
from platojax.encoders.text import TextEncoder
from platojax.objectives.health import embedding_health
from platojax.objectives.lejepa import lejepa_loss
from platojax.objectives.next_token import next_token_loss
from platojax.objectives.sigreg import random_directions

Params = dict[str, Any]
Metrics = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Arm:
    """The pure functions of one arm.

    Attributes:
      init: `(key, views) -> params`, a dict with `encoder` and, where the objective has parameters
        of its own, `projector`.
      loss: `(params, views, key) -> (loss, metrics)`; `views` `[V, N, ...]` are V views of N scenes
        and `key` is this step's.
      encode: `(params, observations) -> {"embedding": [N, D], "layers": [N, L, D]}`, float32.
      layer_names: L names.
    """

    init: Callable[[jax.Array, jax.Array], Params]
    loss: Callable[[Params, jax.Array, jax.Array], tuple[jax.Array, Metrics]]
    encode: Callable[[Params, jax.Array], dict[str, jax.Array]]
    layer_names: tuple[str, ...]


def make_arm(config: ConfigDict, tokenizer: Tokenizer) -> Arm:
    """Builds the arm that a resolved arm config describes.

    Args:
      config: with `modality`, `encoder` and `objective`, see configs/emoji.py.
      tokenizer: of the text arms.

    Raises:
      ValueError: if the modality or the objective is unknown, or the two do not go together.
    """
    encoder = _make_encoder(config, tokenizer)
    pad_id = tokenizer.pad_id
    objective = config.objective
    if objective.name == "lejepa":
        projector = Projector(
            tuple(objective.projector_hidden), objective.projector_dim, jnp.dtype(config.dtype)
        )
    elif objective.name == "next_token":
        if config.modality != "text":
            raise ValueError(
                f"objective.name 'next_token' is for text; modality is {config.modality!r}."
            )
        projector = None
    else:
        raise ValueError(
            f"objective.name must be 'lejepa' or 'next_token'; got {objective.name!r}."
        )

    def encode(params: Params, observations: jax.Array) -> dict[str, jax.Array]:
        return cast(Metrics, encoder.apply({"params": params["encoder"]}, observations))

    def init(key: jax.Array, views: jax.Array) -> Params:
        encoder_key, projector_key = jax.random.split(key)
        params = {"encoder": encoder.init(encoder_key, views[0])["params"]}
        if projector is not None:
            width = jnp.zeros((*views.shape[:2], config.encoder.width))
            params["projector"] = projector.init(projector_key, width)["params"]
        return params

    def loss(params: Params, views: jax.Array, key: jax.Array) -> tuple[jax.Array, Metrics]:
        # vmap over views rather than a reshape of [V, N] to [V * N]: N is sharded over devices, and
        # merging an axis into it would move every activation.
        outputs = jax.vmap(encode, in_axes=(None, 0))(params, views)
        if projector is None:
            value, metrics = next_token_loss(outputs["logits"], views, views != pad_id)
        else:
            z = cast(
                jax.Array, projector.apply({"params": params["projector"]}, outputs["embedding"])
            )
            directions = random_directions(key, z.shape[-1], objective.num_slices)
            value, metrics = lejepa_loss(z, directions, lam=objective.lam)
        health = embedding_health(jax.lax.stop_gradient(outputs["embedding"][0]))
        return value, {**metrics, **health}

    return Arm(init, loss, encode, tuple(encoder.layer_names()))


def _make_encoder(config: ConfigDict, tokenizer: Tokenizer) -> nn.Module:
    shape = config.encoder
    common = {
        "width": shape.width,
        "depth": shape.depth,
        "num_heads": shape.num_heads,
        "mlp_dim": shape.mlp_dim,
        "dtype": jnp.dtype(config.dtype),
    }
    if config.modality == "text":
        return TextEncoder(
            vocab_size=tokenizer.vocab_size,
            max_length=shape.max_length,
            causal=config.objective.name == "next_token",
            pad_id=tokenizer.pad_id,
            **common,
        )
    if config.modality == "image":
        return ImageEncoder(patch_size=shape.patch_size, **common)
    raise ValueError(f"modality must be 'text' or 'image'; got {config.modality!r}.")
