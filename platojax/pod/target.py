"""A pod that is not there: its chips and torus, for XLA to compile for."""

import dataclasses
import importlib.util
import os
import pathlib
import platform
import re
import sys
from typing import Any

import numpy as np

from platojax.chips import CHIPS, Chip

# A v4 or v5p chip has two cores, which JAX drives as one device; the library must be told for v4.
_OPTIONS: dict[str, dict[str, Any]] = {"v4": {"chip_config_name": "megacore"}}
# v4 and v5p slices of whole cubes of 4 x 4 x 4 are tori; of v5e and v6e the axes of 16 are rings,
# which is a whole pod's side (docs.cloud.google.com/tpu/docs/v4, .../v5e).
_CUBES = ("v4", "v5p")


@dataclasses.dataclass(frozen=True)
class Target:
    """A slice of TPUs.

    Attributes:
      topology: as asked for, "v5e:16x16".
      chip: its kind.
      devices: abstract, `jax.Device`.
      torus: chips along each axis.
    """

    topology: str
    chip: Chip
    devices: tuple[Any, ...]
    torus: tuple[int, ...]

    def bandwidth(self, members: tuple[Any, ...]) -> float:
        """Bytes/s that each of the devices can send while they exchange with each other.

        All links along the axes of the torus in which the devices differ, both ways where the axis
        is a ring; on an axis with two ends the chips there have one neighbour, and the others wait
        for them.
        """
        coordinates = np.array([device.coords for device in members])
        axes = np.flatnonzero((coordinates != coordinates[0]).any(axis=0))
        links = sum(2 if self._is_ring(int(axis)) else 1 for axis in axes)
        return links * self.chip.link_bandwidth

    def _is_ring(self, axis: int) -> bool:
        if self.chip.name in _CUBES:
            return all(size % 4 == 0 for size in self.torus)
        return self.torus[axis] == 16


def prepare_process(dump: pathlib.Path) -> None:
    """Readies this process to compile for TPUs that it does not have; before JAX starts a backend.

    Args:
      dump: folder where XLA leaves its reports.

    Raises:
      ImportError: libtpu is not installed, or does not exist for this machine.
    """
    check_libtpu()
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # asks no metadata server what machine this is
    os.environ["TPU_WORKER_HOSTNAMES"] = "localhost"
    os.environ["TPU_ACCELERATOR_TYPE"] = "v5litepod-256"  # of this machine; any is as good
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # nobody owns the chips: no lock is needed
    os.environ["JAX_PLATFORMS"] = "cpu"
    flags = f"--xla_dump_to={dump} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=train_step"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    import jax

    jax.config.update("jax_platforms", "cpu")  # where JAX was imported before
    # What comes out of the cache has no HLO text and leaves no reports.
    jax.config.update("jax_enable_compilation_cache", False)


def check_libtpu() -> None:
    """Raises ImportError, saying what to do, where TPU programs cannot be compiled."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise ImportError(
            f"libtpu, which compiles for TPUs, exists for x86 Linux only; this is "
            f"{platform.machine()} {sys.platform}. Run the command on such a machine or container."
        )
    if importlib.util.find_spec("libtpu") is None:
        raise ImportError(
            "compiling for TPUs needs the package libtpu: pip install -c constraints.txt "
            "-e '.[compile]', or pip install libtpu."
        )


def make_target(topology: str) -> Target:
    """The slice of that name.

    Args:
      topology: the chip and its numbers along each axis: v5e:16x16, v6e:8x8, v4:4x4x8, v5p:4x4x4.

    Raises:
      ValueError: there is no such slice.
    """
    names = [chip.name for chip in CHIPS.values() if chip.is_tpu]
    match = re.fullmatch(rf"({'|'.join(names)}):(\d+(?:x\d+)+)", topology)
    if match is None:
        raise ValueError(
            f"--topology {topology!r} must be one of {', '.join(names)}, a colon and the chips "
            "along each axis, such as v5e:16x16 or v5p:4x4x4."
        )
    name = match.group(1)
    from jax.experimental import topologies

    try:
        description = topologies.get_topology_desc(topology, "tpu", **_OPTIONS.get(name, {}))
    except Exception as error:  # the plugin's own kinds
        raise ValueError(f"--topology {topology!r} cannot be made: {error}") from error
    devices: tuple[Any, ...] = tuple(description.devices)
    coordinates = np.array([device.coords for device in devices])
    torus = tuple(int(n) + 1 for n in coordinates.max(axis=0))
    return Target(topology, CHIPS[name], devices, torus)


def read_program(dump: pathlib.Path) -> str:
    """The HLO text of the program that was compiled last, which XLA left in the folder.

    Not by `jax.stages.Compiled.as_text`: jaxlib cannot read all programs of a newer libtpu.
    """
    texts = dump.glob("*after_optimizations.txt")
    return max(texts, key=lambda path: path.stat().st_mtime).read_text(encoding="utf-8")
