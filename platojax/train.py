"""Trains one arm. Read it from top to bottom; there is no other training loop."""

import contextlib
import dataclasses
import functools
import pathlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from platojax import sharding
from platojax.arm import Arm, Metrics, Params, make_arm
from platojax.checkpoint import Checkpoints
from platojax.data.pipeline import make_pipeline
from platojax.data.scenes import Scene
from platojax.data.tokenizer import Tokenizer
from platojax.data.views import make_views
from platojax.hashing import hash_items
from platojax.optimizer import learning_rate_schedule, make_optimizer
from platojax.tracking import CollapseAlarm, MetricsFile


@flax.struct.dataclass
class TrainState:
    """All that training changes.

    Attributes:
      step: batches consumed, skipped updates included.
      params: float32.
      opt_state: of the optimiser.
      key: from which each step's key is folded.
      skipped: updates skipped so far because loss or gradient was not finite.
      skipped_in_a_row: of them, those since the last update.
    """

    step: jax.Array
    params: Params
    opt_state: optax.OptState
    key: jax.Array
    skipped: jax.Array
    skipped_in_a_row: jax.Array


@dataclasses.dataclass(frozen=True)
class StepReport:
    """What there is to show of a logged step."""

    step: int
    total_steps: int
    samples: int
    loss: float
    samples_per_second: float


class Preempted(Exception):  # noqa: N818  (not an error: the run was asked to stop, and has saved)
    """The process was told to end; the state is saved."""


def train(
    config: ConfigDict,
    scenes: Sequence[Scene],
    tokenizer: Tokenizer,
    folder: pathlib.Path,
    *,
    snapshots: Sequence[int],
    on_snapshot: Callable[[int, Params], None],
    on_progress: Callable[[StepReport], None],
    on_alarm: Callable[[str], None],
) -> None:
    """Trains one arm to its end, going on from its last checkpoint where there is one.

    Args:
      config: the resolved config of the arm, see configs/emoji.py.
      scenes: the training scenes.
      tokenizer: for text.
      folder: of the arm; gets `checkpoints/`, `metrics.jsonl` and `timing.jsonl`.
      snapshots: steps, 0 for before training.
      on_snapshot: called with (step, params) at each of the snapshots, before a checkpoint of that
        step or a later one exists; after a kill it may be called again.
      on_progress: called at each logged step.
      on_alarm: called with a message when the embedding collapses.

    Raises:
      Preempted: after SIGTERM or SIGINT, once the state is saved.
      FloatingPointError: when `config.nonfinite_limit` updates in a row were not finite.
      ValueError: if the last checkpoint was made with another tokenizer, other scenes or another
        number of workers or processes, or a field of the config is impossible.
    """
    with _stop_requests() as stop, contextlib.ExitStack() as stack:
        # ---- Data -------------------------------------------------------------------------------
        last_step = total_steps(config)
        views = make_views(config.views, config.encoder, tokenizer)
        data = make_pipeline(
            scenes,
            views,
            batch_size=config.batch_size,
            seed=config.seed,
            num_workers=config.num_workers,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        )
        stack.callback(data.close)
        example = jnp.asarray(views(scenes[0], np.random.default_rng(config.seed))[:, None])

        # ---- Model, optimiser, state ------------------------------------------------------------
        mesh = sharding.make_mesh(**config.mesh)
        stack.enter_context(jax.set_mesh(mesh))
        arm = make_arm(config, tokenizer)
        optimizer = make_optimizer(config.optimizer, last_step)
        schedule = learning_rate_schedule(config.optimizer, last_step)
        init = functools.partial(init_state, arm, optimizer, example)
        abstract = jax.eval_shape(init, config.seed)
        placement = sharding.tree_shardings(abstract, mesh)
        place_views = sharding.batch_sharding(mesh)
        train_step = jax.jit(
            make_train_step(arm, optimizer, schedule),
            in_shardings=(placement, place_views),
            out_shardings=(placement, sharding.replicated(mesh)),
            donate_argnums=0,
        )

        # ---- Start, or go on --------------------------------------------------------------------
        checkpoints = Checkpoints(
            folder / "checkpoints", every=config.checkpoint_every, keep=config.checkpoint_keep
        )
        stack.callback(checkpoints.close)
        meta = {
            "tokenizer": tokenizer.hash,
            "scenes": hash_items([scene.scene_id for scene in scenes]),
            "num_workers": config.num_workers,
            "process_count": jax.process_count(),
        }
        start = checkpoints.latest_step() or 0
        if start:
            _check_meta(checkpoints.meta(start), meta, folder)
            wanted = jax.tree.map(
                lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, placement
            )
            try:
                state = checkpoints.restore(start, wanted, data)
            except Exception as error:  # orbax, tensorstore and grain each raise their own kinds
                raise ValueError(
                    f"checkpoint {start} in {folder}/checkpoints cannot be read ({error}); delete "
                    f"{folder} to train this run again."
                ) from error
        else:
            state = jax.jit(init, out_shardings=placement)(config.seed)
            if 0 in snapshots:
                on_snapshot(0, state.params)

        # ---- Metrics ----------------------------------------------------------------------------
        alarm = CollapseAlarm(**config.collapse)
        metrics_file = MetricsFile(folder / "metrics.jsonl", last_step=start)
        stack.callback(metrics_file.close)
        timing_file = MetricsFile(folder / "timing.jsonl", last_step=start)
        stack.callback(timing_file.close)
        clock = _Clock(start)

        skipped_before = 0.0

        def record(step: int, metrics: Metrics) -> None:
            nonlocal skipped_before
            values = {name: float(value) for name, value in jax.device_get(metrics).items()}
            if values["skipped_in_a_row"] >= config.nonfinite_limit:
                first = step - int(values["skipped_in_a_row"]) + 1
                raise FloatingPointError(
                    f"loss, gradient or update was not finite in each of the steps {first} to "
                    f"{step} of {folder.name}; no update was made in them. Lower "
                    f"optimizer.learning_rate ({config.optimizer.learning_rate:g}) or look at the "
                    "data of these steps."
                )
            if step % config.log_every and step != last_step:
                return
            samples = step * config.batch_size
            rate = clock.steps_per_second(step) * config.batch_size
            metrics_file.write(step, {"samples": samples, **values})
            timing_file.write(step, {"samples_per_second": rate})
            if message := alarm.check(step, values):
                on_alarm(message)
            if values["skipped"] > skipped_before:
                on_alarm(
                    f"{values['skipped']:.0f} of {step} updates were not finite, and were skipped."
                )
            skipped_before = values["skipped"]
            on_progress(StepReport(step, last_step, samples, values["loss"], rate))

        # ---- The loop ---------------------------------------------------------------------------
        pending: tuple[int, Metrics] | None = None
        step = start
        for step in range(start + 1, last_step + 1):
            batch = jax.make_array_from_process_local_data(place_views, next(data))
            state, metrics = train_step(state, batch)
            # The metrics of a step are fetched while the next one runs, so the device never waits.
            if pending:
                record(*pending)
            pending = (step, metrics)
            if step == start + 1:
                jax.block_until_ready(metrics)
                clock.reset(step)  # compilation is not training

            stopping = stop()
            last = step == last_step or stopping
            snapshot = step in snapshots
            if last or snapshot or checkpoints.due(step):
                record(*pending)
                pending = None
                if snapshot:
                    on_snapshot(step, state.params)
                metrics_file.flush()
                checkpoints.save(step, state, data, meta, force=last)
                clock.reset(step)
            if stopping:
                break
        stack.close()  # waits for the last save: only then is the run what it says
        if stop():
            raise Preempted(f"{folder.name} is saved at step {step} of {last_step}")


def init_state(
    arm: Arm, optimizer: optax.GradientTransformation, example: jax.Array, seed: jax.Array | int
) -> TrainState:
    """The state before the first step.

    Args:
      arm: of the run.
      optimizer: of the run.
      example: `[V, 1, ...]` views of one scene; only their shape and dtype matter.
      seed: of the parameters and of all later keys.
    """
    params_key, key = jax.random.split(jax.random.key(seed))
    params = arm.init(params_key, example)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=optimizer.init(params),
        key=key,
        skipped=jnp.zeros((), jnp.int32),
        skipped_in_a_row=jnp.zeros((), jnp.int32),
    )


def total_steps(config: ConfigDict) -> int:
    """How many batches `config.num_samples` scenes make, at least one."""
    return max(1, config.num_samples // config.batch_size)


def make_train_step(
    arm: Arm, optimizer: optax.GradientTransformation, schedule: optax.Schedule
) -> Callable[[TrainState, jax.Array], tuple[TrainState, Metrics]]:
    """Makes the pure function `(state, views [V, N, ...]) -> (state, metrics)`.

    An update is skipped whole where the loss, the gradient or the update itself is not finite:
    parameters and optimiser stay as they were, and only the step and the counts go on.
    """

    def train_step(state: TrainState, views: jax.Array) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(state.key, state.step)
        (loss, parts), grads = jax.value_and_grad(arm.loss, has_aux=True)(state.params, views, key)
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
        new = TrainState(
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            key=state.key,
            skipped=state.skipped + skip,
            skipped_in_a_row=(state.skipped_in_a_row + 1) * skip,
        )
        metrics = {
            "loss": loss,
            **parts,
            "gradient_norm": grad_norm,
            "update_norm": update_norm,
            "parameter_norm": optax.tree.norm(params),
            # The optimiser counts updates, which are fewer than steps where some were skipped.
            "learning_rate": schedule(state.step - state.skipped),
            "skipped": new.skipped,
            "skipped_in_a_row": new.skipped_in_a_row,
        }
        return new, metrics

    return train_step


class _Clock:
    """The speed between logged steps."""

    def __init__(self, step: int) -> None:
        self.reset(step)

    def reset(self, step: int) -> None:
        """Leaves out of the speed what happened since the last logged step."""
        self._step, self._time = step, time.perf_counter()

    def steps_per_second(self, step: int) -> float:
        """Since the last call or reset."""
        now = time.perf_counter()
        rate = (step - self._step) / (now - self._time)
        self._step, self._time = step, now
        return rate


def _check_meta(saved: dict[str, Any], current: dict[str, Any], folder: pathlib.Path) -> None:
    for field, value in current.items():
        if saved[field] != value:
            raise ValueError(
                f"{folder}/checkpoints was made with {field} {saved[field]!r}, this run has "
                f"{value!r}: the batches would not go on where they stopped. Set it back, or start "
                "in another --workdir."
            )


@contextlib.contextmanager
def _stop_requests() -> Iterator[Callable[[], bool]]:
    """Turns SIGTERM and SIGINT into a question that the loop asks at step boundaries."""
    requested = False

    def request(signum: int, frame: Any) -> None:
        nonlocal requested
        if requested:  # a second signal means now
            raise KeyboardInterrupt
        requested = True

    previous = {s: signal.signal(s, request) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: requested
    finally:
        for s, handler in previous.items():
            signal.signal(s, handler if handler is not None else signal.SIG_DFL)
