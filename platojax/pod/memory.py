"""What a compiled program keeps in each chip's memory."""

import dataclasses
import pathlib
import re
from typing import Any

from platojax.chips import GIB

_LINE = re.compile(r"^\s*[\d.]+\s*\w+\s*\(\s*\d+%\);\s*([\d.]+)\s*(\w+);\s*\d+;\s*\d+;\s*(.*)$")
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A piece of memory, reused by several arrays.

    Attributes:
      nbytes: its size.
      arrays: what lies there, one after the other, such as "2×bf16[2,64,64,768]".
    """

    nbytes: int
    arrays: str


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of one chip by kind.

    Attributes:
      arguments: state and batch.
      outputs: new state and metrics.
      aliased: outputs that take the place of donated arguments.
      temporaries: activations and gradients.
      code: the program.
      largest: the largest buffers of the temporaries, or of all.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    code: int
    largest: tuple[Buffer, ...] = ()

    @property
    def total(self) -> int:
        """All that must be there at once."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code


class DoesNotFit(Exception):  # noqa: N818  (a finding, not a fault)
    """The program needs more memory than a chip has.

    Attributes:
      largest: the largest buffers.
    """

    def __init__(self, message: str, largest: tuple[Buffer, ...]) -> None:
        super().__init__(message)
        self.largest = largest


def measure(compiled: Any, largest: tuple[Buffer, ...]) -> Memory:
    """The memory of a `jax.stages.Compiled`."""
    stats = compiled.memory_analysis()
    return Memory(
        arguments=stats.argument_size_in_bytes,
        outputs=stats.output_size_in_bytes,
        aliased=stats.alias_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
        code=stats.generated_code_size_in_bytes,
        largest=largest,
    )


def check_fits(memory: Memory, hbm_bytes: int, chip: str) -> None:
    """Raises DoesNotFit where a program that was compiled needs more than `hbm_bytes`."""
    if memory.total > hbm_bytes:
        raise DoesNotFit(
            f"the step needs {memory.total / GIB:.2f} GiB, and a {chip} has "
            f"{hbm_bytes / GIB:.2f} GiB.",
            memory.largest,
        )


def read_refusal(error: Exception, chip: str, largest: tuple[Buffer, ...]) -> DoesNotFit | None:
    """What XLA's refusal to compile says about memory; None where it is about something else."""
    message = str(error)
    if "RESOURCE_EXHAUSTED" not in message:
        return None
    found = re.search(
        r"HLO temporaries \(([\d.]+\w)\) exceeds available HBM \(([\d.]+\w)\)", message
    )
    if found is None:
        return DoesNotFit(f"the step does not fit on a {chip}: {message.splitlines()[0]}", largest)
    needed, there = found.groups()
    return DoesNotFit(
        f"the temporaries of the step alone need {needed}iB, and XLA has {there}iB on a {chip}.",
        largest,
    )


def largest_buffers(dump: pathlib.Path, count: int = 8) -> tuple[Buffer, ...]:
    """Reads the report of buffers that XLA left there, of main memory; () where it left none."""
    reports = sorted(dump.glob("*memory-usage-report.txt"), key=lambda path: path.stat().st_mtime)
    if not reports:
        return ()
    text = reports[-1].read_text(encoding="utf-8")
    main = re.search(r"Memory Space:[^\n]*\(color=0\)\n(.*?)(?=Memory Space:|\Z)", text, re.S)
    found = []
    for line in (main.group(1) if main else "").splitlines():
        if match := _LINE.match(line):
            size, unit, arrays = match.groups()
            found.append(Buffer(round(float(size) * _UNITS[unit]), arrays))
    return tuple(sorted(found, key=lambda buffer: buffer.nbytes, reverse=True)[:count])
