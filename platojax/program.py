"""The compiled program of an arm: its state, born in its place, and its step over a mesh."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from platojax import sharding
from platojax.accumulation import loss_and_gradient
from platojax.arm import Arm, Metrics, Params, Views, Vocabulary, make_arm
from platojax.data.packing import Packing, make_packing
from platojax.optimizer import learning_rate_schedule, make_optimizer


@flax.struct.dataclass
class TrainState:
    """All that training changes.

    Attributes:
      step: batches consumed, skipped updates included.
      params: float32.
      opt_state: of the optimiser.
      key: from which each step's key is folded.
      clipped: updates so far whose gradient was clipped.
      skipped: updates skipped so far because loss or gradient was not finite.
      skipped_in_a_row: of them, those since the last update.
    """

    step: jax.Array
    params: Params
    opt_state: optax.OptState
    key: jax.Array
    clipped: jax.Array
    skipped: jax.Array
    skipped_in_a_row: jax.Array


@dataclasses.dataclass(frozen=True)
class Program:
    """What runs on the devices.

    Attributes:
      arm: pure functions.
      mesh: of the devices.
      example: abstract views `[V, 1, ...]` of one scene, not packed.
      packing: of batches of texts, or None.
      state: the abstract train state, with the sharding of each array.
      init: compiled, `seed -> state`; each device makes its own part. The seed is a uint32 scalar.
      step: compiled, `(state, views) -> (state, metrics)`; the state given is donated.
    """

    arm: Arm
    mesh: Mesh
    example: Views
    packing: Packing | None
    state: TrainState
    init: Any
    step: Any

    def batch(self, num_scenes: int) -> Views:
        """Abstract views `[V, num_scenes, ...]`, packed where they are, with their sharding."""
        placement = sharding.batch_sharding(self.mesh)
        if self.packing is not None:
            return {
                name: jax.ShapeDtypeStruct(shape, jnp.int32, sharding=placement)
                for name, shape in self.packing.shapes(self.example.shape[0], num_scenes).items()
            }
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(
                (x.shape[0], num_scenes, *x.shape[2:]), x.dtype, sharding=placement
            ),
            self.example,
        )


def make_program(config: ConfigDict, vocabulary: Vocabulary, example: Views, mesh: Mesh) -> Program:
    """Builds the program that a run's config describes; nothing is compiled yet.

    Args:
      config: of the run, see configs/emoji.py.
      vocabulary: of the text arms.
      example: views `[V, 1, ...]` of one scene, abstract or not; never packed.
      mesh: from `sharding.make_mesh`; its devices may be those of a machine that is not here.

    Raises:
      ValueError: if a field of the config is impossible.
    """
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), example)
    arm = make_arm(config, vocabulary)
    schedule = learning_rate_schedule(config.optimizer, total_steps(config))
    optimizer = make_optimizer(config.optimizer, schedule)
    init = functools.partial(init_state, arm, optimizer, example)
    abstract = jax.eval_shape(init, jax.ShapeDtypeStruct((), jnp.uint32))
    placement = sharding.tree_shardings(abstract, mesh)
    state = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, placement
    )
    train_step = make_train_step(
        arm,
        optimizer,
        schedule,
        clip_norm=config.optimizer.clip_norm,
        accumulation_steps=config.accumulation_steps,
    )
    return Program(
        arm=arm,
        mesh=mesh,
        example=example,
        packing=make_packing(config),
        state=state,
        init=jax.jit(init, out_shardings=placement),
        step=jax.jit(
            train_step,
            in_shardings=(placement, sharding.batch_sharding(mesh)),
            out_shardings=(placement, sharding.replicated(mesh)),
            donate_argnums=0,
        ),
    )


def check_batch(config: ConfigDict, mesh: Mesh) -> None:
    """Checks that a batch can be spread over a mesh, split into micro-batches and packed.

    Args:
      config: of the run.
      mesh: from `sharding.make_mesh`.

    Raises:
      ValueError: naming each factor that must divide `batch_size`, and the fix.
    """
    for field in ("batch_size", "accumulation_steps"):
        if config[field] < 1:
            raise ValueError(f"{field} must be at least 1; got {config[field]}.")
    packing = make_packing(config)
    factors = {
        **{f"mesh.{axis}": mesh.shape[axis] for axis in sharding.BATCH_AXES},
        "accumulation_steps": config.accumulation_steps,
        **({"packing.group_size": packing.group_size} if packing else {}),
    }
    unit = math.prod(factors.values())
    if config.batch_size % unit:
        product = " x ".join(f"{name} {size}" for name, size in factors.items())
        raise ValueError(
            f"batch_size {config.batch_size} must be a multiple of {unit}: {product}. Set it to "
            f"{-(-config.batch_size // unit) * unit}, or lower one of these."
        )


def total_steps(config: ConfigDict) -> int:
    """How many batches `config.num_samples` scenes make, at least one."""
    return max(1, config.num_samples // config.batch_size)


def init_state(
    arm: Arm, optimizer: optax.GradientTransformation, example: Views, seed: jax.Array | int
) -> TrainState:
    """The state before the first step.

    Args:
      arm: of the run.
      optimizer: of the run.
      example: views `[V, 1, ...]` of one scene, abstract or not; only shapes and dtypes matter.
      seed: of the parameters and of all later keys.
    """
    params_key, key = jax.random.split(jax.random.key(seed))
    params = arm.init(params_key, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), example))
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=optimizer.init(params),
        key=key,
        clipped=jnp.zeros((), jnp.int32),
        skipped=jnp.zeros((), jnp.int32),
        skipped_in_a_row=jnp.zeros((), jnp.int32),
    )


def make_train_step(
    arm: Arm,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    *,
    clip_norm: float,
    accumulation_steps: int = 1,
) -> Callable[[TrainState, Views], tuple[TrainState, Metrics]]:
    """Makes the pure function `(state, views [V, N, ...]) -> (state, metrics)`.

    An update is skipped whole where the loss, the gradient or the update itself is not finite:
    parameters and optimiser stay as they were, and only the step and the counts go on.

    Args:
      arm: of the run.
      optimizer: clips at `clip_norm` before all else.
      schedule: of the learning rate.
      clip_norm: only counted here: how many gradients were longer.
      accumulation_steps: micro-batches of a step, see `loss_and_gradient`.
    """

    def train_step(state: TrainState, views: Views) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(state.key, state.step)
        loss, parts, grads = loss_and_gradient(
            arm, state.params, views, key, steps=accumulation_steps
        )
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        grad_norm = optax.tree.norm(grads)
        update_norm = optax.tree.norm(updates)
        finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm) & jnp.isfinite(update_norm)
        params, opt_state = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old),
            (params, opt_state),
            (state.params, state.opt_state),
        )
        skip = 1 - finite.astype(jnp.int32)
        clipped = finite & (grad_norm > clip_norm)
        new = TrainState(
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            key=state.key,
            clipped=state.clipped + clipped.astype(jnp.int32),
            skipped=state.skipped + skip,
            skipped_in_a_row=(state.skipped_in_a_row + 1) * skip,
        )
        metrics = {
            "loss": loss,
            **parts,
            "gradient_norm": grad_norm,
            "update_norm": update_norm,
            "parameter_norm": optax.tree.norm(params),
            "clipping_rate": new.clipped / new.step,
            # The optimiser counts updates, which are fewer than steps where some were skipped.
            "learning_rate": schedule(state.step - state.skipped),
            "skipped": new.skipped,
            "skipped_in_a_row": new.skipped_in_a_row,
        }
        return new, metrics

    return train_step
