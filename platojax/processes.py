"""What the processes of a run have to agree on. With one process all of it is immediate."""

import contextlib
import functools
import signal
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def wait_for_all(what: str) -> None:
    """Returns when all processes have called this with the same name."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


def all_agree(mine: bool) -> bool:
    """Whether all processes say True; all of them must call this."""
    if jax.process_count() == 1:
        return mine
    return bool(np.all(multihost_utils.process_allgather(np.array(mine))))


def from_first(value: float) -> float:
    """The number that the first process gives; all of them must call this."""
    if jax.process_count() == 1:
        return value
    return float(multihost_utils.broadcast_one_to_all(np.float32(value)))


def to_host(tree: Any, mesh: Mesh) -> Any:
    """Whole NumPy arrays of a tree that is spread over the processes, which must all call this."""
    if jax.process_count() > 1:
        tree = _replicate(mesh)(tree)
    return jax.device_get(tree)


@functools.lru_cache
def _replicate(mesh: Mesh) -> Any:
    return jax.jit(lambda tree: tree, out_shardings=NamedSharding(mesh, PartitionSpec()))


class StopRequests:
    """Turns SIGTERM and SIGINT into a question that all processes answer alike.

    A scheduler may warn one process, or each at another step, but all must stop at the same one. So
    each step sends a number around, whose sum is read a step later, when it has long been there.
    jax's own service agrees on a step only once in a process's life, on one that a later arm or a
    resumed run may never reach.
    """

    def __init__(self, mesh: Mesh) -> None:
        """For runs on this mesh; see `stop_requests`."""
        self._mesh = mesh
        self._requested = False
        self._sent: jax.Array | None = None

    def __call__(self) -> bool:
        """Whether the run is to stop here; to be called once a step, by all processes."""
        if jax.process_count() == 1:
            return self._requested
        sent, self._sent = self._sent, self._send()
        return sent is not None and bool(jax.device_get(sent))

    def _send(self) -> jax.Array:
        mine = np.full(jax.local_device_count(), self._requested)
        spread = NamedSharding(self._mesh, PartitionSpec(self._mesh.axis_names))
        return _any(jax.make_array_from_process_local_data(spread, mine, (self._mesh.size,)))

    def request(self, signum: int, frame: Any) -> None:
        """Handles a signal."""
        if self._requested:  # a second signal means now
            raise KeyboardInterrupt
        self._requested = True


_any = jax.jit(jnp.any)


@contextlib.contextmanager
def stop_requests(mesh: Mesh) -> Iterator[StopRequests]:
    """Handles SIGTERM and SIGINT while a run trains on this mesh."""
    stop = StopRequests(mesh)
    previous = {s: signal.signal(s, stop.request) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for s, handler in previous.items():
            signal.signal(s, handler if handler is not None else signal.SIG_DFL)
