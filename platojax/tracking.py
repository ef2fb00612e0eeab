"""The metrics files of an arm: one JSON object a line."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

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
        self._file.write(_line({"step": step, **values}))

    def flush(self) -> None:
        """Makes what was written durable; called before a checkpoint of the same step is."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flushes and closes the file."""
        self.flush()
        self._file.close()


def read_jsonl(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads a metrics file; a last line that was cut short is left out.

    Raises:
      ValueError: if a line before the last one is not JSON.
    """
    path = pathlib.Path(path)
    if not path.exists():
        return []
    rows = []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise ValueError(f"{path}, line {number} is not JSON: {line[:80]!r}.") from error
    return rows


def _line(row: Mapping[str, Any]) -> str:
    # NaN and infinity are not JSON: a metric that is not finite becomes null.
    clean = {k: v if not isinstance(v, float) or v - v == 0 else None for k, v in row.items()}
    return json.dumps(clean, allow_nan=False) + "\n"


class CollapseAlarm:
    """Watches the embedding for collapse, which the loss does not show."""

    def __init__(self, *, min_spread: float, min_effective_rank: float, patience: int) -> None:
        """Sets the limits.

        Args:
          min_spread: alarm below this standard deviation.
          min_effective_rank: alarm below this participation ratio.
          patience: how many logged steps in a row it takes.
        """
        self._min_spread = min_spread
        self._min_effective_rank = min_effective_rank
        self._patience = patience
        self._in_a_row = 0

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
