"""Trains one arm. Read it from top to bottom; there is no other training loop."""

import contextlib
import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from platojax import processes, sharding
from platojax.arm import Metrics, Params
from platojax.checkpoint import Checkpoints, DamagedCheckpoint
from platojax.chips import find_chip
from platojax.data.mixture import Scenes
from platojax.data.pipeline import Batches, make_pipeline
from platojax.data.scenes import hash_scenes
from platojax.data.tokenizer import Tokenizer
from platojax.data.usable import usable_scenes
from platojax.data.views import example_views, make_views
from platojax.model_flops import model_flops
from platojax.program import Program, TrainState, make_program, total_steps
from platojax.tracking import CollapseAlarm, Log, Profiler, open_trackers, read_jsonl


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


class Collapsed(ArithmeticError):  # noqa: N818  (what happened to the run, not a bug of it)
    """The embedding collapsed, and `config.collapse.stop` says that this ends the run."""


@dataclasses.dataclass(frozen=True)
class Hooks:
    """What the caller does at steps of its choice, on all processes alike.

    Attributes:
      snapshots: steps, 0 for before training.
      on_snapshot: called with (step, params) at each of them, before a checkpoint of that step or a
        later one exists; after a kill it may be called again.
      evaluations: steps; each is a checkpoint as well.
      evaluate: called with (step, params) at each of them; what it returns is logged, and `score`
        in it, if there is one, decides which checkpoints are the best.
      on_progress: called at each logged step.
      on_message: called with a message for the user: a collapse, skipped updates, a damaged
        checkpoint.
    """

    on_progress: Callable[[StepReport], None]
    on_message: Callable[[str], None]
    snapshots: Collection[int] = ()
    on_snapshot: Callable[[int, Params], None] = lambda step, params: None
    evaluations: Collection[int] = ()
    evaluate: Callable[[int, Params], Mapping[str, float]] = lambda step, params: {}


def train(
    config: ConfigDict,
    scenes: Scenes,
    tokenizer: Tokenizer,
    folder: pathlib.Path,
    hooks: Hooks,
) -> None:
    """Trains one arm to its end, going on from its last checkpoint where there is one.

    Args:
      config: the resolved config of the arm, see configs/emoji.py.
      scenes: the training scenes.
      tokenizer: for text.
      folder: of the arm; gets `checkpoints/`, `metrics.jsonl`, `timing.jsonl` and, where there are
        evaluations, `validation.jsonl`. All processes must see it.
      hooks: what else is to happen.

    Raises:
      Preempted: after SIGTERM, SIGINT or a notice of preemption, once the state is saved.
      FloatingPointError: when `config.nonfinite_limit` updates in a row were not finite.
      Collapsed: when the embedding collapsed and `config.collapse.stop` is set.
      OSError: when a checkpoint cannot be written.
      ValueError: if the last checkpoint was made with another tokenizer or other scenes, or its
        data cannot go on here, or no checkpoint can be read, or a field of the config is
        impossible.
    """
    mesh = sharding.make_mesh(**config.mesh)
    with processes.stop_requests(mesh) as stop, contextlib.ExitStack() as stack:
        # ---- Model, optimiser, state ------------------------------------------------------------
        last_step = total_steps(config)
        example = example_views(config.views, config.encoder)
        program = make_program(config, tokenizer, example, mesh)
        place_views = sharding.batch_sharding(mesh)
        batch_shapes = jax.tree.map(lambda x: x.shape, program.batch(config.batch_size))

        def to_devices(part: np.ndarray, shape: tuple[int, ...]) -> jax.Array:
            return jax.make_array_from_process_local_data(place_views, part, shape)

        # ---- Data -------------------------------------------------------------------------------
        views = make_views(config.views, config.encoder, tokenizer)
        scenes = usable_scenes(scenes, views, config.data.get("max_bad_fraction", 0.0))
        packing = program.packing
        make_batches = functools.partial(
            make_pipeline,
            scenes,
            views,
            batch_size=config.batch_size,
            seed=config.seed,
            num_workers=config.num_workers,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            finish=functools.partial(packing.pack, pad_id=tokenizer.pad_id) if packing else None,
        )

        # ---- Start, or go on --------------------------------------------------------------------
        checkpoints = Checkpoints(folder / "checkpoints", **config.checkpoint)
        stack.callback(checkpoints.close)
        meta = {"tokenizer": tokenizer.hash, "scenes": hash_scenes(scenes)}
        start, state, data, tokens = _restore_latest(
            checkpoints, program.state, make_batches, meta, folder, hooks.on_message
        )
        stack.callback(data.close)
        if state is None:
            state = program.init(np.uint32(config.seed))
            if 0 in hooks.snapshots:
                hooks.on_snapshot(0, state.params)

        # ---- Metrics ----------------------------------------------------------------------------
        trackers = open_trackers(config.trackers, folder, last_step=start)
        for tracker in trackers:
            stack.callback(tracker.close)
        metrics_log, timing_log, validation_log = (
            Log(folder / f"{name}.jsonl", trackers, last_step=start)
            for name in ("metrics", "timing", "validation")
        )
        for log in (metrics_log, timing_log, validation_log):
            stack.callback(log.close)
        alarm = CollapseAlarm(**config.collapse)
        logged = [row for row in read_jsonl(folder / "metrics.jsonl") if row["step"] <= start]
        alarm.replay(logged)
        if start >= config.log_every and not logged:
            hooks.on_message(
                f"{folder}/metrics.jsonl is lost: it has no row up to step {start}, from which "
                "this run goes on. Nothing else depends on it."
            )
        profiler = Profiler(folder / "profile", **config.profile)
        if config.profile.steps and not start < config.profile.steps[0] <= last_step:
            hooks.on_message(
                f"profile.steps {tuple(config.profile.steps)} begin outside of what is left, steps "
                f"{start + 1} to {last_step}: nothing is traced."
            )
        stack.callback(profiler.close)
        clock = _Clock(start)
        utilisation = _utilisation_per_step_per_second(config, tokenizer, program)
        skipped_before = 0.0

        def record(step: int, metrics: Metrics) -> None:
            nonlocal skipped_before, tokens
            values = {name: float(value) for name, value in jax.device_get(metrics).items()}
            if "tokens" in values:
                tokens += int(values["tokens"])
                values["tokens"] = tokens
            if values["skipped_in_a_row"] >= config.nonfinite_limit:
                first = step - int(values["skipped_in_a_row"]) + 1
                raise FloatingPointError(
                    f"loss, gradient or update was not finite in each of the steps {first} to "
                    f"{step} of {folder.name}; no update was made in them. Lower "
                    f"optimizer.learning_rate ({config.optimizer.learning_rate:g}) or look at the "
                    "data of these steps."
                )
            if step == last_step and not np.isfinite(values["loss"]):
                raise FloatingPointError(
                    f"the loss of the last step, {step}, of {folder.name} is {values['loss']}: the "
                    "run is not finished. Go on from an earlier checkpoint, by deleting the last "
                    f"ones in {folder}/checkpoints, or with a lower optimizer.learning_rate."
                )
            if step % config.log_every and step != last_step:
                return
            samples = step * config.batch_size
            rate = clock.steps_per_second(step)
            metrics_log.write(step, {"samples": samples, **values})
            if rate:  # not yet known of the first step, which is compilation
                timing_log.write(
                    step,
                    {
                        "samples_per_second": rate * config.batch_size,
                        "tokens_per_second": rate * values.get("tokens", 0) / step,
                        "seconds_left": (last_step - step) / rate,
                        **{name: rate * factor for name, factor in utilisation.items()},
                    },
                )
            if values["skipped"] > skipped_before:
                hooks.on_message(
                    f"{values['skipped']:.0f} of {step} updates were not finite, and were skipped."
                )
            skipped_before = values["skipped"]
            hooks.on_progress(
                StepReport(step, last_step, samples, values["loss"], rate * config.batch_size)
            )
            if message := alarm.check(step, values):
                hooks.on_message(message)
                if alarm.stop:
                    raise Collapsed(f"{folder.name} is stopped. {message}")

        # ---- The loop ---------------------------------------------------------------------------
        pending: tuple[int, Metrics] | None = None
        step, stopping = start, False
        for step in range(start + 1, last_step + 1):
            profiler.before(step)
            batch = jax.tree.map(to_devices, next(data), batch_shapes)
            # All that moves is moved above, and in record. The mesh is set for the step alone:
            # what hooks compute has meshes of its own.
            with jax.set_mesh(mesh), jax.transfer_guard("disallow"):
                state, metrics = program.step(state, batch)
            # The metrics of a step are fetched while the next one runs, so the device never waits.
            if pending:
                record(*pending)
            pending = (step, metrics)
            if step == start + 1:
                jax.block_until_ready(metrics)
                clock.reset(step)  # compilation is not training
            profiler.after(step, metrics)

            stopping = stop()
            last = step == last_step or stopping
            snapshot, evaluation = step in hooks.snapshots, step in hooks.evaluations
            if last or snapshot or evaluation or checkpoints.due(step):
                record(*pending)
                pending = None
                score = None
                if snapshot:
                    hooks.on_snapshot(step, state.params)
                if evaluation:
                    values = hooks.evaluate(step, state.params)
                    validation_log.write(step, {"samples": step * config.batch_size, **values})
                    score = values.get("score")
                skipped_rows = data.skipped()
                if skipped_rows:
                    timing_log.write(
                        step, {f"rows_skipped/{reason}": n for reason, n in skipped_rows.items()}
                    )
                for sink in (metrics_log, timing_log, validation_log, *trackers):
                    sink.flush()
                checkpoints.save(
                    step,
                    state,
                    data.iterator,
                    {**meta, **data.layout, "tokens": tokens},
                    force=last or evaluation,
                    score=score,
                )
                clock.reset(step)
            if stopping:
                break
        if skipped_rows := data.skipped():
            reasons = ", ".join(f"{reason}: {n}" for reason, n in skipped_rows.items())
            hooks.on_message(
                f"rows or scenes that this process skipped so far, by reason: {reasons}."
            )
        stack.close()  # waits for the last save: only then is the run what it says
        if stopping or stop():
            raise Preempted(f"{folder.name} is saved at step {step} of {last_step}")


def _restore_latest(
    checkpoints: Checkpoints,
    abstract_state: TrainState,
    make_batches: Callable[..., Batches],
    meta: Mapping[str, Any],
    folder: pathlib.Path,
    on_message: Callable[[str], None],
) -> tuple[int, TrainState | None, Batches, int]:
    """The last step that can be read, its state, the batches after it, and the tokens before it.

    Raises:
      ValueError: there are checkpoints, and none can be read; or they are another run's.
    """
    damaged: list[int] = []
    reasons: list[str] = []
    for step in checkpoints.steps():
        data = None
        try:
            saved = checkpoints.meta(step)
            _check_meta(saved, meta, f"checkpoint {folder}/checkpoints/{step}")
            data = make_batches(first_batch=step)
            data.check_layout(saved)
            state = checkpoints.restore(step, abstract_state, data.iterator)
            if int(state.step) != step:
                raise DamagedCheckpoint(
                    f"checkpoint {folder}/checkpoints/{step} cannot be read (it holds step "
                    f"{int(state.step)})"
                )
        except DamagedCheckpoint as error:
            damaged.append(step)
            reasons.append(str(error))
            if data is not None:
                data.close()
            continue
        except BaseException:
            if data is not None:
                data.close()
            raise
        if damaged:
            checkpoints.set_aside(damaged)
            on_message(f"{'; '.join(reasons)}: going on from step {step}.")
        return step, state, data, saved["tokens"]
    if damaged:
        raise ValueError(
            f"{'; '.join(reasons)}, and there is no other; delete {folder} to train this run again."
        )
    return 0, None, make_batches(first_batch=0), 0


def _utilisation_per_step_per_second(
    config: ConfigDict, tokenizer: Tokenizer, program: Program
) -> dict[str, float]:
    """What to multiply steps per second by for model FLOPs utilisation; empty for unknown chips."""
    chip = find_chip(program.mesh.devices.flat[0].device_kind)
    if chip is None:
        return {}
    batch = program.batch(config.batch_size)
    flops = model_flops(config, tokenizer, program.state.params, batch)
    return {"model_flops_utilisation": flops / (chip.peak(config.dtype) * program.mesh.size)}


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


def _check_meta(saved: Mapping[str, Any], current: Mapping[str, Any], where: str) -> None:
    if missing := {*current, "tokens"} - saved.keys():
        raise DamagedCheckpoint(f"{where} cannot be read (its metadata lack {sorted(missing)})")
    for field, value in current.items():
        if saved[field] != value:
            raise ValueError(
                f"{where} was made with {field} {saved[field]!r}, this run has "
                f"{value!r}: the batches would not go on where they stopped. Set it back, or start "
                "in another --workdir."
            )
