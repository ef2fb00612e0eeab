"""Trains one arm. Read it from top to bottom; there is no other training loop."""

import contextlib
import dataclasses
import functools
import pathlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from platojax import sharding
from platojax.arm import Metrics, Params
from platojax.checkpoint import Checkpoints
from platojax.data.pipeline import make_pipeline, stack_views
from platojax.data.scenes import Scene
from platojax.data.tokenizer import Tokenizer
from platojax.data.views import make_views
from platojax.hashing import hash_items
from platojax.program import make_program, total_steps
from platojax.tracking import CollapseAlarm, MetricsFile


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
        example = stack_views([views(scenes[0], np.random.default_rng(config.seed))])

        # ---- Model, optimiser, state ------------------------------------------------------------
        mesh = sharding.make_mesh(**config.mesh)
        stack.enter_context(jax.set_mesh(mesh))
        program = make_program(config, tokenizer, example, mesh)
        place_views = sharding.batch_sharding(mesh)

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
            try:
                state = checkpoints.restore(start, program.state, data)
            except Exception as error:  # orbax, tensorstore and grain each raise their own kinds
                raise ValueError(
                    f"checkpoint {start} in {folder}/checkpoints cannot be read ({error}); delete "
                    f"{folder} to train this run again."
                ) from error
        else:
            state = program.init(np.uint32(config.seed))
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
            batch = jax.tree.map(
                functools.partial(jax.make_array_from_process_local_data, place_views), next(data)
            )
            state, metrics = program.step(state, batch)
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
