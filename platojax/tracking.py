"""Where the numbers of a run go: files of JSON lines always, other trackers where configured."""

import contextlib
import importlib.util
import json
import math
import os
import pathlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax

from platojax.files import write_whole


class MetricsFile:
    """Appends one line per logged step, and never twice the same step.

    `metrics.jsonl` holds nothing that depends on the clock, so that two runs of one config can be
    compared byte by byte; times go to a file of their own.
    """

    def __init__(self, path: str | os.PathLike[str], *, last_step: int) -> None:
        """Opens the file to go on after `last_step`.

        Args:
          path: of the file.
          last_step: lines of later steps, which a killed run wrote after its last checkpoint, are
            dropped, as is a line that the kill cut short: the steps will be run again.
        """
        self._path = pathlib.Path(path)
        kept = [row for row in read_jsonl(self._path) if row["step"] <= last_step]
        write_whole(self._path, "".join(_line(row) for row in kept))
        self._file = self._path.open("a", encoding="utf-8", buffering=1)  # a line at a time

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Appends `values` (numbers) under `step`."""
        with self._clear_error():
            self._file.write(_line({"step": step, **values}))

    def flush(self) -> None:
        """Makes what was written durable; called before a checkpoint of the same step is."""
        with self._clear_error():
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flushes and closes the file."""
        self.flush()
        self._file.close()

    @contextlib.contextmanager
    def _clear_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(
                f"{self._path} cannot be written ({error}). Make room, and the same command goes "
                "on from the last checkpoint, which is whole."
            ) from error


def read_jsonl(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads a metrics file; a last line that was cut short is left out.

    Raises:
      ValueError: if a line before the last one is no JSON object with a step.
    """
    path = pathlib.Path(path)
    if not path.exists():
        return []
    rows = []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            row["step"] + 0  # a row of ours has this number
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines):
                break
            raise ValueError(
                f"{path}, line {number} is no row of metrics: {line[:80]!r}. Repair or delete the "
                "file; nothing else depends on it."
            ) from error
        rows.append(row)
    return rows


def _line(row: Mapping[str, Any]) -> str:
    # NaN and infinity are not JSON: a metric that is not finite becomes null.
    clean = {k: v if not isinstance(v, float) or v - v == 0 else None for k, v in row.items()}
    return json.dumps(clean, allow_nan=False) + "\n"


class Tracker(Protocol):
    """Anything that numbers can be sent to."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Sends `values` under `step`; a step may come in several parts."""

    def flush(self) -> None:
        """Makes what was written durable, as far as that is in this process's hands."""

    def close(self) -> None:
        """Sends what is left."""


class Log:
    """One metrics file and the trackers beside it; silent on all processes but the first."""

    def __init__(
        self, path: str | os.PathLike[str], trackers: Sequence[Tracker], *, last_step: int
    ) -> None:
        """Opens the file, see `MetricsFile`; the trackers are not closed here."""
        primary = jax.process_index() == 0
        self._file = MetricsFile(path, last_step=last_step) if primary else None
        self._trackers = trackers

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes `values` under `step`, everywhere."""
        if self._file is not None:
            self._file.write(step, values)
        for tracker in self._trackers:
            tracker.write(step, values)

    def flush(self) -> None:
        """Makes the file durable; the trackers, which several logs share, are not flushed here."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()


class TensorBoard:
    """Event files for TensorBoard; steps that a killed run wrote after `last_step` are hidden."""

    def __init__(self, folder: pathlib.Path, *, last_step: int) -> None:
        """Opens an event file in `folder/tensorboard`."""
        import tensorboardX

        self._writer = tensorboardX.SummaryWriter(
            str(folder / "tensorboard"),
            purge_step=last_step + 1,
            filename_suffix=f".from{last_step}",  # two files of one second would be one
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """See `Tracker`."""
        self._writer.flush()

    def close(self) -> None:
        """See `Tracker`."""
        self._writer.close()


class WandB:
    """A run of Weights & Biases, of the project in WANDB_PROJECT, else `platojax`.

    `wandb_id` in the run's folder makes a resumed run go on as the same one; W&B itself drops steps
    that it has already.
    """

    def __init__(self, folder: pathlib.Path, *, last_step: int) -> None:
        """Starts the run, or goes on with it."""
        import wandb

        id_file = folder / "wandb_id"
        if not id_file.exists():
            write_whole(id_file, uuid.uuid4().hex)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "platojax"),
            name=f"{folder.parent.name}/{folder.name}",
            id=id_file.read_text(encoding="utf-8"),
            resume="allow",
            dir=str(folder),
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        self._run.log(dict(values), step=step)

    def flush(self) -> None:
        """See `Tracker`: another process has it already."""

    def close(self) -> None:
        """See `Tracker`."""
        self._run.finish()


# By name: the library, and the tracker.
_TRACKERS: dict[str, tuple[str, Callable[..., Tracker]]] = {
    "tensorboard": ("tensorboardX", TensorBoard),
    "wandb": ("wandb", WandB),
}


def check_trackers(names: Sequence[str]) -> None:
    """Raises ValueError where a tracker is unknown or its library is missing."""
    for name in names:
        if name not in _TRACKERS:
            raise ValueError(f"trackers must be among {list(_TRACKERS)}; got {name!r}.")
        if importlib.util.find_spec(_TRACKERS[name][0]) is None:
            raise ValueError(f"trackers has {name!r}; pip install 'platojax[{name}]' for it.")


def open_trackers(names: Sequence[str], folder: pathlib.Path, *, last_step: int) -> list[Tracker]:
    """The configured trackers, on the first process; none on the others."""
    check_trackers(names)
    if jax.process_index() != 0:
        return []
    trackers = []
    for name in names:
        try:
            trackers.append(_TRACKERS[name][1](folder, last_step=last_step))
        except Exception as error:  # of their own kinds: no key, no network
            raise ValueError(f"trackers has {name!r}, which does not start: {error}") from error
    return trackers


class Profiler:
    """A trace of some steps, for TensorBoard's profiler or Perfetto."""

    def __init__(self, folder: pathlib.Path, *, steps: Sequence[int]) -> None:
        """Nothing is traced yet.

        Args:
          folder: gets the trace.
          steps: the first and the last step to trace; empty for none.
        """
        self._folder, self._steps, self._running = folder, tuple(steps), False

    def before(self, step: int) -> None:
        """To be called before each step."""
        if self._steps and step == self._steps[0]:
            jax.profiler.start_trace(self._folder)
            self._running = True

    def after(self, step: int, metrics: Any) -> None:
        """To be called after each step, with what it returned."""
        if self._running and step == self._steps[1]:
            jax.block_until_ready(metrics)
            self.close()

    def close(self) -> None:
        """Ends a trace that is under way."""
        if self._running:
            self._running = False
            jax.profiler.stop_trace()


class CollapseAlarm:
    """Watches the embedding for collapse, which the loss does not show."""

    def __init__(
        self, *, min_spread: float, min_effective_rank: float, patience: int, stop: bool
    ) -> None:
        """Sets the limits.

        Args:
          min_spread: alarm below this standard deviation.
          min_effective_rank: alarm below this participation ratio.
          patience: how many logged steps in a row it takes.
          stop: whether the alarm should end the run.
        """
        self.stop = stop
        self._min_spread = min_spread
        self._min_effective_rank = min_effective_rank
        self._patience = patience
        self._in_a_row = 0

    def replay(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Goes on counting where a run stopped that logged these rows of `metrics.jsonl`."""
        for row in rows:  # null is what is not finite, and broke no limit
            self.check(
                row["step"],
                {
                    k: row[k] if row[k] is not None else math.nan
                    for k in ("spread", "effective_rank")
                },
            )

    def check(self, step: int, metrics: Mapping[str, float]) -> str | None:
        """Returns a message the first time that the limits were broken long enough, else None."""
        low = (
            metrics["spread"] < self._min_spread
            or metrics["effective_rank"] < self._min_effective_rank
        )
        self._in_a_row = self._in_a_row + 1 if low else 0
        if self._in_a_row != self._patience:
            return None
        return (
            f"collapse: at step {step} the embedding's spread is {metrics['spread']:.3g} (alarm "
            f"below {self._min_spread:g}) and its effective rank {metrics['effective_rank']:.2f} "
            f"(alarm below {self._min_effective_rank:g}). Raise objective.lam, or lower "
            "optimizer.learning_rate or optimizer.clip_norm."
        )
