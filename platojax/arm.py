"""An arm: one encoder under one objective. Pure functions made from a config."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from platojax.encoders.image import ImageEncoder
from platojax.encoders.projector import Projector
from platojax.encoders.text import TextEncoder
from platojax.objectives.health import embedding_health
from platojax.objectives.lejepa import lejepa_loss
from platojax.objectives.next_token import next_token_loss, surprisal
from platojax.objectives.sigreg import random_directions

Params = dict[str, Any]
Metrics = dict[str, jax.Array]
# Leaves [V, N, ...]; a tuple where views differ in size, the global ones first; where texts are
# packed, the dict of `Packing.pack`, [V, N / G, ...].
Views = Any
Outputs = tuple[dict[str, jax.Array], ...]


class Vocabulary(Protocol):
    """What an encoder must know of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""

    @property
    def pad_id(self) -> int:
        """The token that marks padding."""


@dataclasses.dataclass(frozen=True)
class Arm:
    """The pure functions of one arm.

    Attributes:
      init: `(key, views) -> params`, a dict with `encoder` and, where the objective has parameters
        of its own, `projector`. Only shapes and dtypes of the views matter.
      per_scene: `(params, views) -> outputs`: all that is computed for each scene on its own. A
        tuple, with a dict of float32 arrays `[V, N, ...]` for each size of views (counts of packed
        texts by group, `[V, N / G, ...]`).
      objective: `(params, outputs, key) -> (loss, metrics)`: all that couples the scenes of a
        batch. `key` is the step's.
      encode: `(params, observations) -> {"embedding": [N, D], "layers": [N, L, D]}`, float32.
      layer_names: L names.
    """

    init: Callable[[jax.Array, Views], Params]
    per_scene: Callable[[Params, Views], Outputs]
    objective: Callable[[Params, Outputs, jax.Array], tuple[jax.Array, Metrics]]
    encode: Callable[[Params, jax.Array], dict[str, jax.Array]]
    layer_names: tuple[str, ...]

    def loss(self, params: Params, views: Views, key: jax.Array) -> tuple[jax.Array, Metrics]:
        """The objective of a batch, and its metrics."""
        return self.objective(params, self.per_scene(params, views), key)


def make_arm(config: ConfigDict, vocabulary: Vocabulary) -> Arm:
    """Builds the arm that a resolved arm config describes.

    Args:
      config: with `modality`, `encoder` and `objective`, see configs/emoji.py.
      vocabulary: of the text arms; a `Tokenizer` is one.

    Raises:
      ValueError: if the modality or the objective is unknown, or the two do not go together.
    """
    encoder = _make_encoder(config, vocabulary)
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

    def encode(params: Params, observations: jax.Array, *packed: Any) -> dict[str, jax.Array]:
        return cast(Metrics, encoder.apply({"params": params["encoder"]}, observations, *packed))

    def init(key: jax.Array, views: Views) -> Params:
        encoder_key, projector_key = jax.random.split(key)
        first = _parts(views)[0]
        params = {"encoder": encoder.init(encoder_key, first[0])["params"]}
        if projector is not None:
            width = jnp.zeros((*first.shape[:2], config.encoder.width))
            params["projector"] = projector.init(projector_key, width)["params"]
        return params

    def per_scene(params: Params, views: Views) -> Outputs:
        def outputs(part: Any) -> dict[str, jax.Array]:
            if config.modality == "image":
                return {"embedding": _split(encode(params, _merge(part))["embedding"], len(part))}
            result = {}
            if isinstance(part, dict):
                num_views, _, group_size = part["cut"].shape
                result["tokens_cut"] = part["cut"].astype(jnp.float32)
                tokens, segments = _merge(part["tokens"]), _merge(part["segments"])
                encoded = encode(params, tokens, segments, group_size)
            else:
                num_views, group_size = len(part), 1
                tokens = _merge(part)
                segments = jnp.where(tokens == vocabulary.pad_id, -1, 0)
                encoded = encode(params, tokens)
            result["embedding"] = _split(encoded["embedding"], num_views, group_size)
            result["tokens"] = _split(jnp.sum(segments >= 0, axis=-1, dtype=jnp.float32), num_views)
            if projector is None:
                surprisals, predicted = surprisal(encoded["logits"], tokens, segments)
                result["surprisal"] = _split(surprisals, num_views)
                result["predicted"] = _split(predicted, num_views)
            return result

        return tuple(outputs(part) for part in _parts(views))

    def objective_of_batch(
        params: Params, outputs: Outputs, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        embedding = jnp.concatenate([part["embedding"] for part in outputs])
        if projector is None:
            value, metrics = next_token_loss(outputs[0]["surprisal"], outputs[0]["predicted"])
        else:
            z = cast(jax.Array, projector.apply({"params": params["projector"]}, embedding))
            directions = random_directions(key, z.shape[-1], objective.num_slices)
            num_global = outputs[0]["embedding"].shape[0]
            value, metrics = lejepa_loss(z, directions, lam=objective.lam, num_global=num_global)
        metrics |= embedding_health(jax.lax.stop_gradient(embedding[0]))
        if config.modality == "text":
            metrics |= {
                name: outputs[0][name].sum()
                for name in ("tokens", "tokens_cut")
                if name in outputs[0]
            }
        return value, metrics

    return Arm(init, per_scene, objective_of_batch, encode, tuple(encoder.layer_names()))


def _merge(views: jax.Array) -> jax.Array:
    """`[V, N, ...]` -> `[N * V, ...]`; N, outermost, is sharded over devices, and nothing moves.

    Rather than a vmap over views, under which the gradients of kernels sum over one axis more, see
    `transformer.product_of_rows`.
    """
    return jnp.swapaxes(views, 0, 1).reshape(-1, *views.shape[2:])


def _split(merged: jax.Array, num_views: int, group_size: int = 1) -> jax.Array:
    """Undoes `_merge`: `[N / G * V * G, ...]` -> `[V, N, ...]`, G scenes of a group together."""
    rest = merged.shape[1:]
    views = merged.reshape(-1, num_views, group_size, *rest).swapaxes(0, 1)
    return views.reshape(num_views, -1, *rest)


def _parts(views: Views) -> tuple[jax.Array, ...]:
    return views if isinstance(views, tuple) else (views,)


def _make_encoder(config: ConfigDict, vocabulary: Vocabulary) -> nn.Module:
    shape = config.encoder
    common = {
        "width": shape.width,
        "depth": shape.depth,
        "num_heads": shape.num_heads,
        "mlp_dim": shape.mlp_dim,
        "remat": shape.get("remat", False),
        "dtype": jnp.dtype(config.dtype),
    }
    if config.modality == "text":
        return TextEncoder(
            vocab_size=vocabulary.vocab_size,
            max_length=shape.max_length,
            causal=config.objective.name == "next_token",
            pad_id=vocabulary.pad_id,
            **common,
        )
    if config.modality == "image":
        return ImageEncoder(patch_size=shape.patch_size, **common)
    raise ValueError(f"modality must be 'text' or 'image'; got {config.modality!r}.")
