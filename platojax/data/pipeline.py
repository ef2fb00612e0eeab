"""From scenes to batches: a grain pipeline; each batch is a function of the seed and its index."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import grain
import numpy as np

from platojax.data.scenes import Scene, SceneKey, SceneStream
from platojax.data.views import Element, ViewPolicy


@dataclasses.dataclass(frozen=True, eq=False)
class Batches:
    """Endless batches: arrays `[V, batch_size / process_count, ...]`, the part of one process.

    Attributes:
      iterator: of a stream: it is what a checkpoint saves and restores, in place. None where a
        batch depends on nothing but the seed and its index, so that there is nothing to save.
      layout: of a stream: how it is read, which must be the same when it goes on. Empty where the
        batches are the same for any number of processes and workers.
    """

    iterator: grain.DatasetIterator | None
    layout: dict[str, int]
    _batches: grain.DatasetIterator

    def __next__(self) -> Element:
        return next(self._batches)

    def close(self) -> None:
        """Ends the worker processes, and closes all files."""
        self._batches.close()

    def check_layout(self, saved: dict[str, int]) -> None:
        """Raises ValueError where a checkpoint's stream was read in another way than this one."""
        for field, value in self.layout.items():
            if saved.get(field) != value:
                name = "config.num_workers" if field == "num_workers" else "the number of processes"
                raise ValueError(
                    f"the checkpoint's data was read with {field} {saved.get(field)}, this run has "
                    f"{value}: the stream of files would not go on where it stopped. Set {name} "
                    f"back to {saved.get(field)}; data with random access (a sequence of scenes) "
                    "goes on with any number."
                )

    def skipped(self) -> dict[str, int]:
        """How many rows of a stream could not be used so far, by the reason."""
        if self.iterator is None:
            return {}
        # Each worker reads the whole stream, so any of them knows.
        return _find(self.iterator.get_state(), "skipped") or {}


def make_pipeline(
    scenes: Sequence[Scene] | SceneStream,
    views: ViewPolicy,
    *,
    batch_size: int,
    seed: int,
    first_batch: int = 0,
    num_workers: int = 0,
    process_index: int = 0,
    process_count: int = 1,
    finish: Callable[[Any], Any] | None = None,
) -> Batches:
    """Endless batches: scenes in a new order every epoch, new views every time.

    Worker processes make whole batches, each of them every n-th; so the batches are the same for
    any number of workers. Of a sequence of scenes, batch i is also the same for any number of
    processes: each makes its stretch of it.

    Args:
      scenes: the training scenes: random access to all, or a stream.
      views: the view policy.
      batch_size: scenes a batch, over all processes.
      seed: of the order and of all views.
      first_batch: index of the batch to begin with, of a sequence. The position of a stream is in
        its iterator.
      num_workers: processes that make views; 0 makes them in this one, between two steps.
      process_index: which of `process_count` processes this is.
      process_count: see above.
      finish: what is done to each batch once it is together; packing, say.

    Raises:
      ValueError: if there is no scene, the batch does not divide among the processes, or a stream
        has too few files for them.
    """
    if batch_size < 1 or batch_size % process_count:
        raise ValueError(
            f"batch_size {batch_size} must be a positive multiple of the {process_count} processes."
        )
    size = batch_size // process_count
    layout = {}
    if isinstance(scenes, SceneStream):
        blocks = scenes.blocks(
            size, seed=seed, process_index=process_index, process_count=process_count
        )
        stream = blocks.map(_BlockViews(views, seed))
        layout = {"num_workers": num_workers, "process_count": process_count}
    else:
        if len(scenes) == 0:
            raise ValueError("there is no scene to train on; the data set is empty.")
        batches = (
            grain.MapDataset.source(scenes)
            .seed(seed)
            .shuffle()
            .repeat()
            .random_map(views)  # grain keys its generator by the index of the element
            .batch(size, drop_remainder=True, batch_fn=stack_views)
            .slice(slice(first_batch * process_count + process_index, None, process_count))
        )
        # The scenes are in memory: grain's reading threads would only wait for each other's turn
        # with the interpreter (measured: twice as slow), and the device works while the next batch
        # is made.
        stream = batches.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    if finish is not None:
        stream = stream.map(finish)
    if num_workers:
        stream = stream.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=num_workers, per_worker_buffer_size=2)
        )
    iterator = iter(stream)
    return Batches(iterator if layout else None, layout, iterator)


def stack_views(elements: Sequence[Element]) -> Element:
    """N elements with arrays `[V, ...]` -> the same with arrays `[V, N, ...]`."""
    if isinstance(elements[0], tuple):
        return tuple(np.stack(parts, axis=1) for parts in zip(*elements, strict=True))
    return np.stack(elements, axis=1)


@dataclasses.dataclass(frozen=True)
class _BlockViews:
    """Makes the views of a block of a stream, each by a generator keyed by its scene."""

    views: ViewPolicy
    seed: int

    def __call__(self, block: Sequence[tuple[SceneKey, Scene]]) -> Element:
        return stack_views([self.views(scene, self._generator(key)) for key, scene in block])

    def _generator(self, key: SceneKey) -> np.random.Generator:
        # Philox counts in the first word: no two keys share a number of its sequence.
        return np.random.Generator(np.random.Philox(key=self.seed, counter=[0, *key]))


def _find(state: Any, name: str) -> Any:
    """The value of this name anywhere in a nested state."""
    inner = state.values() if isinstance(state, dict) else state if isinstance(state, list) else ()
    if isinstance(state, dict) and name in state:
        return state[name]
    return next((found for value in inner if (found := _find(value, name)) is not None), None)
