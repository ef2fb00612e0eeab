"""Encoders trained in a finite world, to be held against the closed-form optimum.

Two encoders and two objectives. The whitening objective is the theorem's own, with its constraint
as a penalty on exact moments; the other is the product's LeJEPA loss, the very functions that
train text and image encoders, on sampled batches. Training runs in float32 on the default device;
what is compared with the closed form is taken to float64 first.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from platojax.objectives.lejepa import lejepa_loss
from platojax.objectives.sigreg import random_directions
from platojax.theory.world import sample_pairs


class Encoder(NamedTuple):
    """An encoder of all observations of one modality.

    Attributes:
      init: `init(key) -> parameters`.
      apply: `apply(parameters) -> [X, d]` float32 features of every observation.
      learning_rate: Adam's peak rate at which it trains well in the worlds of this package.
    """

    init: Callable[[jax.Array], Any]
    apply: Callable[[Any], jax.Array]
    learning_rate: float


@dataclasses.dataclass(frozen=True)
class Trained:
    """Features along training.

    Attributes:
      steps: `[R]` how many updates lie behind each record; the last entry is the end.
      features: `[R, seeds, X, d]` float64, as the encoder gives them, not whitened.
    """

    steps: np.ndarray
    features: np.ndarray

    @property
    def final(self) -> np.ndarray:
        """`[seeds, X, d]` features at the end."""
        return self.features[-1]


def tabular_encoder(num_observations: int, dim: int) -> Encoder:
    """One free vector per observation: the encoder of the theorem."""
    return Encoder(
        init=lambda key: jax.random.normal(key, (num_observations, dim)),
        apply=lambda table: table,
        learning_rate=0.1,
    )


def mlp_encoder(
    num_observations: int, dim: int, *, code_dim: int = 64, width: int = 128, code_seed: int = 0
) -> Encoder:
    """A network with two hidden layers that sees an observation as a fixed Gaussian code.

    The codes tell nothing of scenes: what the network learns of them it learns from pairs.

    Args:
      num_observations: X.
      dim: the width d of the features.
      code_dim: the width of the codes.
      width: of both hidden layers.
      code_seed: draws the codes, part of the world and hence the same for all training seeds.
    """
    codes = jax.random.normal(jax.random.key(code_seed), (num_observations, code_dim))
    widths = (code_dim, width, width, dim)

    def init(key):
        keys = jax.random.split(key, len(widths) - 1)
        normal = jax.nn.initializers.lecun_normal()
        return [
            (normal(k, (fan_in, fan_out)), jnp.zeros(fan_out))
            for k, fan_in, fan_out in zip(keys, widths[:-1], widths[1:], strict=True)
        ]

    def apply(parameters):
        *hidden, (last_kernel, last_bias) = parameters
        x = codes
        for kernel, bias in hidden:
            x = jax.nn.gelu(x @ kernel + bias)
        return x @ last_kernel + last_bias

    return Encoder(init, apply, learning_rate=0.005)


def whitening_loss(
    features: jax.Array, pair_law: jax.Array, *, penalty: float = 2.0
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns E|f(x) - f(x')|^2 + penalty (|Cov f - I|_F^2 + |E f|^2), all moments exact.

    Its minimum spans the closed-form optimum for any penalty of at least 1 (where lambda_d >= 0, as
    `spectral_optimum` demands). Only the covariance differs from I, by (1 - lambda_i) / penalty
    along eigenvector i (set the derivative with respect to each variance to zero), which whitening
    afterwards takes out exactly.

    Args:
      features: `[X, d]`.
      pair_law: `[X, X]` symmetric joint law of a positive pair.
      penalty: weight of the constraint.

    Returns:
      The scalar loss, and `{"prediction", "constraint"}`, its two parts before weighting.
    """
    marginal = pair_law.sum(axis=1)
    weighted = marginal[:, None] * features
    prediction = 2 * jnp.sum(features * (weighted - pair_law @ features))
    mean = weighted.sum(axis=0)
    covariance = features.T @ weighted - jnp.outer(mean, mean)
    constraint = jnp.sum((covariance - jnp.eye(features.shape[1])) ** 2) + jnp.sum(mean**2)
    return prediction + penalty * constraint, {"prediction": prediction, "constraint": constraint}


def train_whitened(
    encoder: Encoder,
    pair_law: np.ndarray,
    *,
    seeds: Sequence[int],
    steps: int = 1500,
    penalty: float = 2.0,
    records: Sequence[int] = (),
) -> Trained:
    """Trains on the exact expected loss with the whitening constraint as a penalty.

    Args:
      encoder: of the modality's X observations.
      pair_law: `[X, X]` symmetric joint law of a positive pair.
      seeds: one independent initialisation each, trained side by side.
      steps: updates of Adam, its rate decaying to 0 along a cosine.
      penalty: see `whitening_loss`.
      records: steps before the last after which features are kept, ascending.
    """
    law = jnp.asarray(pair_law, jnp.float32)

    def loss(parameters, seed_index, step):
        del seed_index, step  # the loss is exact: nothing is drawn
        return whitening_loss(encoder.apply(parameters), law, penalty=penalty)[0]

    return _train(encoder, loss, seeds, steps, records)


def train_lejepa(
    encoder: Encoder,
    pair_law: np.ndarray,
    *,
    seeds: Sequence[int],
    steps: int = 1500,
    lam: float = 0.05,
    batch_size: int = 256,
    num_slices: int = 32,
    records: Sequence[int] = (),
) -> Trained:
    """Trains with the product's LeJEPA loss on sampled pairs, the paper's lam by default.

    Args:
      encoder: of the modality's X observations.
      pair_law: `[X, X]` symmetric joint law of a positive pair.
      seeds: one independent initialisation, stream of pairs and of directions each.
      steps: updates of Adam, its rate decaying to 0 along a cosine.
      lam: weight of SIGReg; what it means depends on the batch size, see `lejepa_loss`.
      batch_size: pairs per step, N.
      num_slices: directions of SIGReg, drawn anew every step.
      records: steps before the last after which features are kept, ascending.
    """
    pairs = np.stack(
        [sample_pairs(np.random.default_rng(seed), pair_law, steps * batch_size) for seed in seeds]
    )
    # [seeds, steps, views, batch]
    pairs = np.swapaxes(pairs.reshape(len(seeds), steps, batch_size, 2), 2, 3)
    batches = jnp.asarray(pairs)

    keys = _keys(seeds)

    def loss(parameters, seed_index, step):
        features = encoder.apply(parameters)
        key = jax.random.fold_in(keys[seed_index], step)
        directions = random_directions(key, features.shape[1], num_slices)
        return lejepa_loss(features[batches[seed_index, step]], directions, lam=lam)[0]

    return _train(encoder, loss, seeds, steps, records)


def lejepa_objective(
    features: np.ndarray,
    pair_law: np.ndarray,
    *,
    seed: int,
    lam: float = 0.05,
    batch_size: int = 256,
    num_slices: int = 256,
    num_batches: int = 40,
) -> dict[str, float]:
    """Measures what `train_lejepa` minimises, on fresh batches.

    Args:
      features: `[X, d]`, as the encoder gives them: scale counts.
      pair_law: `[X, X]` symmetric joint law of a positive pair.
      seed: draws pairs and directions; the same seed for encoders that are to be compared.
      lam: weight of SIGReg.
      batch_size: pairs per batch.
      num_slices: directions of SIGReg.
      num_batches: how many batches to average over.

    Returns:
      `{"loss", "prediction", "sigreg"}`, means over batches.
    """
    pairs = sample_pairs(np.random.default_rng(seed), pair_law, num_batches * batch_size)
    batches = jnp.asarray(np.swapaxes(pairs.reshape(num_batches, batch_size, 2), 1, 2))
    directions = random_directions(jax.random.key(seed), features.shape[1], num_slices)
    values = _objectives(jnp.asarray(features, jnp.float32), batches, directions, lam)
    return {name: float(value.mean()) for name, value in values.items()}


@functools.partial(jax.jit, static_argnums=3)
def _objectives(features: jax.Array, batches: jax.Array, directions: jax.Array, lam: float):
    """The LeJEPA loss and its parts of each batch of `[B, views, N]` observations: `[B]` each."""

    def objective(batch):
        loss, parts = lejepa_loss(features[batch], directions, lam=lam)
        return {"loss": loss, **parts}

    return jax.lax.map(objective, batches)


def _keys(seeds: Sequence[int]) -> jax.Array:
    """`[seeds]` typed keys."""
    return jnp.stack([jax.random.key(seed) for seed in seeds])


def _train(
    encoder: Encoder,
    loss: Callable[[Any, jax.Array, jax.Array], jax.Array],
    seeds: Sequence[int],
    steps: int,
    records: Sequence[int],
) -> Trained:
    """Adam on `loss(parameters, index of the seed, step)`, all seeds side by side."""
    stops = [*records, steps]
    if list(stops) != sorted(set(stops)) or stops[0] < 0:
        raise ValueError(f"records must ascend from 0 to below steps={steps}; got {list(records)}.")
    optimizer = optax.adam(optax.cosine_decay_schedule(encoder.learning_rate, steps))
    parameters = jax.vmap(encoder.init)(_keys(seeds))
    state = (parameters, jax.vmap(optimizer.init)(parameters))
    gradient = jax.vmap(jax.grad(loss), in_axes=(0, 0, None))
    seed_indices = jnp.arange(len(seeds))

    def update(step, state):
        parameters, optimizer_state = state
        gradients = gradient(parameters, seed_indices, step)
        updates, optimizer_state = jax.vmap(optimizer.update)(gradients, optimizer_state)
        return optax.apply_updates(parameters, updates), optimizer_state

    # The bounds are arguments, so that all stretches between records share one compilation.
    @functools.partial(jax.jit, donate_argnums=2)
    def advance(start, stop, state):
        return jax.lax.fori_loop(start, stop, update, state)

    kept = []
    # Whitened features of tied eigenvalues turn on differences that a TPU's bfloat16 products lose.
    with jax.default_matmul_precision("highest"):
        for start, stop in zip([0, *stops[:-1]], stops, strict=True):
            state = advance(start, stop, state)
            kept.append(np.asarray(jax.vmap(encoder.apply)(state[0]), np.float64))
    return Trained(np.asarray(stops), np.stack(kept))
