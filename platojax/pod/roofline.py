"""A step's time on a pod, predicted from what it computes, moves and exchanges."""

import dataclasses
from collections.abc import Mapping, Sequence

from platojax.flops import Kind
from platojax.pod.hlo import Collective
from platojax.pod.target import Target


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Seconds of a step, each at the chip's peak rate.

    Attributes:
      compute: matrix products.
      memory: traffic to main memory.
      exchange: collectives that the compiler lets run beside computation.
      exposed: collectives during which the chip waits.
    """

    compute: float
    memory: float
    exchange: float
    exposed: float

    @property
    def step(self) -> float:
        """Seconds a step takes at best.

        Computation, memory and overlapped collectives are taken to hide each other perfectly, so
        the slowest counts; collectives that the compiler left synchronous come on top. Latency,
        elementwise arithmetic and the input pipeline are not in it: real steps take longer.
        """
        return max(self.compute, self.memory, self.exchange) + self.exposed

    @property
    def bound(self) -> str:
        """What the step waits for most."""
        parts = {
            "compute": self.compute,
            "memory": self.memory,
            "interconnect": self.exchange + self.exposed,
        }
        return max(parts, key=lambda name: parts[name])


def predict(
    target: Target,
    devices: Sequence[object],
    flops: Mapping[Kind, int],
    traffic: int,
    collectives: Sequence[Collective],
) -> Roofline:
    """The roofline of a compiled step.

    Args:
      target: the slice.
      devices: of the mesh, in its order, by which the collectives' groups are numbered.
      flops: of the whole step by kind, see `platojax.flops`; recomputation included.
      traffic: bytes of one chip to and from main memory.
      collectives: of one chip's program.
    """
    chip = target.chip
    compute = sum(count / chip.peak(*kind) for kind, count in flops.items()) / len(devices)
    exchange, exposed = 0.0, 0.0
    for collective in collectives:
        members = tuple(devices[i] for i in max(collective.groups, key=len))
        permutes = collective.kind == "collective-permute"  # each pair has one way
        bandwidth = chip.link_bandwidth if permutes else target.bandwidth(members)
        seconds = collective.sent_bytes / bandwidth
        if collective.overlaps:
            exchange += seconds
        else:
            exposed += seconds
    return Roofline(compute, traffic / chip.hbm_bandwidth, exchange, exposed)
