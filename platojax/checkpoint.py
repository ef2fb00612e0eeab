"""Checkpoints: the train state, the position in the data and a little metadata, as one step."""

import os
from collections.abc import Mapping
from typing import Any

import grain
import jax
import orbax.checkpoint as ocp
from absl import logging
from orbax.checkpoint.checkpoint_managers import preservation_policy, save_decision_policy


class Checkpoints:
    """The checkpoints of one arm, over orbax.

    Saving returns as soon as the state has left the devices; a step counts only once it is whole on
    disk, so a kill in the middle of a save leaves the step before.
    """

    def __init__(self, folder: str | os.PathLike[str], *, every: int, keep: int) -> None:
        """Opens or creates the folder.

        Args:
          folder: absolute path.
          every: save when the step is a multiple of this (and whenever forced).
          keep: how many of the latest steps to keep.
        """
        self._manager = ocp.CheckpointManager(
            folder,
            options=ocp.CheckpointManagerOptions(
                save_decision_policy=save_decision_policy.FixedIntervalPolicy(every),
                preservation_policy=preservation_policy.LatestN(keep),
            ),
        )

    @classmethod
    def to_read(cls, folder: str | os.PathLike[str]) -> "Checkpoints":
        """Opens checkpoints that another process may be writing, and changes nothing."""
        checkpoints = cls.__new__(cls)
        options = ocp.CheckpointManagerOptions(read_only=True, create=False, save_interval_steps=0)
        verbosity = logging.get_verbosity()
        logging.set_verbosity(logging.ERROR)  # orbax warns that it will not write, as was asked
        try:
            checkpoints._manager = ocp.CheckpointManager(folder, options=options)
        finally:
            logging.set_verbosity(verbosity)
        return checkpoints

    def latest_step(self) -> int | None:
        """The last complete step, or None."""
        return self._manager.latest_step()

    def due(self, step: int) -> bool:
        """Whether `save` would save this step."""
        return self._manager.should_save(step)

    def save(
        self,
        step: int,
        state: Any,
        data: grain.DatasetIterator,
        meta: Mapping[str, Any],
        *,
        force: bool = False,
    ) -> None:
        """Saves if the step is due or forced.

        Args:
          step: number of steps done.
          state: a tree of arrays.
          data: the iterator, after the batch of the last step.
          meta: strict JSON.
          force: save although it is not due.
        """
        self._manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state),
                data=grain.checkpoint.CheckpointSave(data),
                meta=ocp.args.JsonSave(dict(meta)),
            ),
            force=force,
        )

    def meta(self, step: int) -> dict[str, Any]:
        """The metadata of a step."""
        restored = self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))
        return restored["meta"]

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
        """
        items = {"state": ocp.args.StandardRestore(abstract_state)}
        if data is not None:
            items["data"] = grain.checkpoint.CheckpointRestore(data)
        restored = self._manager.restore(step, args=ocp.args.Composite(**items))
        # Orbax may return arrays that alias its own read buffers; a copy can be donated safely.
        return jax.tree.map(lambda x: x.copy(), restored["state"])

    def close(self) -> None:
        """Waits for the save that is under way, raises if it failed, and closes."""
        self._manager.wait_until_finished()
        self._manager.close()
