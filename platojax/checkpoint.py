"""Checkpoints: the train state, the position in the data and a little metadata, as one step."""

import contextlib
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import grain
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from absl import logging
from orbax.checkpoint.checkpoint_managers import preservation_policy, save_decision_policy

from platojax import processes

_SCORE = "score"
_FINGERPRINT = "fingerprint"


class DamagedCheckpoint(ValueError):  # noqa: N818  (what it is, not what went wrong)
    """A checkpoint that is there and cannot be read."""


class Checkpoints:
    """The checkpoints of one arm, over orbax.

    Saving returns as soon as the state has left the devices; a step counts only once it is whole on
    disk, so a kill in the middle of a save leaves the step before.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every: int,
        keep: int,
        keep_every: int = 0,
        keep_best: int = 0,
    ) -> None:
        """Opens or creates the folder.

        Args:
          folder: absolute path, the same for all processes.
          every: save when the step is a multiple of this (and whenever forced).
          keep: how many of the latest steps to keep.
          keep_every: keep also the steps that are multiples of this; 0 keeps none of them.
          keep_best: keep also so many steps of the highest score, of those that have one.
        """
        self._folder = pathlib.Path(folder)
        if self._folder.exists() and not self._folder.is_dir():
            raise ValueError(f"{folder} is a file; checkpoints go into a folder of that name.")
        policies: list[preservation_policy.PreservationPolicy] = [preservation_policy.LatestN(keep)]
        if keep_every:
            policies.append(preservation_policy.EveryNSteps(keep_every))
        if keep_best:
            policies.append(
                preservation_policy.BestN(
                    get_metric_fn=_score,
                    n=keep_best,
                    keep_checkpoints_without_metrics=False,
                )
            )
        self._manager = ocp.CheckpointManager(
            folder,
            options=ocp.CheckpointManagerOptions(
                save_decision_policy=save_decision_policy.FixedIntervalPolicy(every),
                preservation_policy=preservation_policy.AnyPreservationPolicy(policies),
                best_fn=_score if keep_best else None,  # only so that orbax keeps scores on disk
            ),
        )

    @classmethod
    def to_read(cls, folder: str | os.PathLike[str]) -> "Checkpoints":
        """Opens checkpoints that another process may be writing, and changes nothing."""
        checkpoints = cls.__new__(cls)
        checkpoints._folder = pathlib.Path(folder)
        options = ocp.CheckpointManagerOptions(read_only=True, create=False, save_interval_steps=0)
        verbosity = logging.get_verbosity()
        logging.set_verbosity(logging.ERROR)  # orbax warns that it will not write, as was asked
        try:
            checkpoints._manager = ocp.CheckpointManager(folder, options=options)
        finally:
            logging.set_verbosity(verbosity)
        return checkpoints

    def steps(self) -> list[int]:
        """The complete steps, the latest first."""
        return sorted(self._manager.all_steps(), reverse=True)

    def due(self, step: int) -> bool:
        """Whether `save` would save this step."""
        return self._manager.should_save(step)

    def save(
        self,
        step: int,
        state: Any,
        data: grain.DatasetIterator | None,
        meta: Mapping[str, Any],
        *,
        force: bool = False,
        score: float | None = None,
    ) -> None:
        """Saves if the step is due or forced.

        Args:
          step: number of steps done.
          state: a tree of arrays.
          data: the iterator, after the batch of the last step; None where it has no state.
          meta: strict JSON.
          force: save although it is not due.
          score: by which the best steps are kept.

        Raises:
          OSError: this step or the one before cannot be written.
        """
        fingerprint = jax.device_get(_fingerprint(state)).tolist()
        items: dict[str, Any] = {
            "state": ocp.args.StandardSave(state),
            "meta": ocp.args.JsonSave({**meta, _FINGERPRINT: fingerprint}),
        }
        if data is not None:
            items["data"] = grain.checkpoint.CheckpointSave(data)
        with self._as_os_error(step):
            self._manager.save(
                step,
                args=ocp.args.Composite(**items),
                metrics=None if score is None else {_SCORE: score},
                force=force,
            )

    def meta(self, step: int) -> dict[str, Any]:
        """The metadata of a step.

        Raises:
          DamagedCheckpoint: it cannot be read.
        """
        meta = self._restore(step, {"meta": ocp.args.JsonRestore()})["meta"]
        if not isinstance(meta, dict):
            raise DamagedCheckpoint(f"checkpoint {self._folder}/{step} has no metadata: {meta!r}")
        return meta

    def restore(
        self, step: int, abstract_state: Any, data: grain.DatasetIterator | None = None
    ) -> Any:
        """Restores the state, and sets the iterator to where it was.

        Args:
          step: one that exists.
          abstract_state: `jax.ShapeDtypeStruct`s with the shardings wanted now, whatever they were
            when the step was saved.
          data: a fresh iterator over the same pipeline; changed in place. None where only the
            state is wanted.

        Returns:
          The state.

        Raises:
          DamagedCheckpoint: it cannot be read, or is of another model.
        """
        items: dict[str, Any] = {"state": ocp.args.StandardRestore(abstract_state)}
        if data is not None:
            # Found before orbax starts: in it, the other processes would wait for the one that
            # fails.
            if not processes.all_agree(self._position_is_whole(step)):
                raise DamagedCheckpoint(
                    f"checkpoint {self._folder}/{step} cannot be read (a position in the data is "
                    "damaged)"
                )
            items["data"] = grain.checkpoint.CheckpointRestore(data)
        # Orbax may return arrays that alias its own read buffers; a copy can be donated safely.
        state = jax.tree.map(lambda x: x.copy(), self._restore(step, items)["state"])
        # The files have no checksum of their own: single flipped bits are read as they are.
        if jax.device_get(_fingerprint(state)).tolist() != self.meta(step).get(_FINGERPRINT):
            raise DamagedCheckpoint(
                f"checkpoint {self._folder}/{step} cannot be read (its arrays are not those that "
                "were saved)"
            )
        return state

    def set_aside(self, steps: list[int]) -> None:
        """Renames steps that cannot be read, so that they can be saved anew and nothing is lost."""
        if jax.process_index() == 0:
            for step in steps:
                names = (f"damaged-{step}{more}" for more in ("", *map("-{}".format, range(1, 99))))
                free = next(name for name in names if not (self._folder / name).exists())
                (self._folder / str(step)).rename(self._folder / free)
        processes.wait_for_all("damaged checkpoints are set aside")
        self._manager.reload()

    def close(self) -> None:
        """Waits for the save that is under way, and closes.

        Raises:
          OSError: that save failed.
        """
        try:
            with self._as_os_error(None):
                self._manager.wait_until_finished()
        finally:
            self._manager.close()

    def _position_is_whole(self, step: int) -> bool:
        # As grain names its files. One that is missing is another number of processes.
        name = f"process_{jax.process_index()}-of-{jax.process_count()}.json"
        try:
            json.loads((self._folder / str(step) / "data" / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return True

    def _restore(self, step: int, items: Mapping[str, Any]) -> Any:
        restored, failure = None, None
        try:
            restored = self._manager.restore(step, args=ocp.args.Composite(**items))
        except (PermissionError, MemoryError, jax.errors.JaxRuntimeError):
            raise  # nothing is wrong with the files
        except Exception as error:  # orbax, tensorstore and grain each raise their own kinds
            failure = error
        # Each process has files of its own; what one cannot read, none may go on from.
        if not processes.all_agree(failure is None):
            reason = _first_line(failure) if failure else "by another process"
            raise DamagedCheckpoint(
                f"checkpoint {self._folder}/{step} cannot be read ({reason})"
            ) from failure
        return restored

    @contextlib.contextmanager
    def _as_os_error(self, step: int | None) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of the thread that writes: of any kind
            which = f"checkpoint {step} or the one before it" if step else "the last checkpoint"
            raise OSError(
                f"{which} cannot be written to {self._folder} ({_first_line(error)}). Is the disk "
                "full? The checkpoints before it are whole: make room, and the same command goes "
                "on from there."
            ) from error


@jax.jit
def _fingerprint(state: Any) -> jax.Array:
    """A number for each array, which is another where any one element is: `[arrays]` uint32.

    Of a train state, whose elements have 32 bits each. The sum of these times odd numbers, modulo
    2^32: exact, and so the same however the arrays are split over devices.
    """

    def of_array(x: jax.Array) -> jax.Array:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        flat = jax.lax.bitcast_convert_type(x, jnp.uint32).reshape(-1)
        return jnp.sum(flat * (2 * jnp.arange(flat.size, dtype=jnp.uint32) + 1), dtype=jnp.uint32)

    return jnp.stack([of_array(x) for x in jax.tree.leaves(state)])


def _score(metrics: Mapping[str, float]) -> float:
    return metrics[_SCORE]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
