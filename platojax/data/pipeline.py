"""From scenes to batches: a grain pipeline; each batch is a function of the seed and its index."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import grain
import numpy as np

from platojax.data.mixture import Mixture, Scenes, endless
from platojax.data.scenes import Scene, SceneKey, SceneStream
from platojax.data.text_views import TextViews
from platojax.data.usable import count_lacking
from platojax.data.views import Element, ViewPolicy

_VIEWS = 3  # sets the views' seed apart
_READ_TOGETHER = 1024  # scenes at most: they are in memory, with their pictures


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
    _lacking: Mapping[str, int] = dataclasses.field(default_factory=dict)

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
        """How many rows of a stream could not be used so far, or scenes at all, by the reason."""
        if self.iterator is None:
            return dict(self._lacking)
        # Each worker reads the whole stream, so any of them knows.
        return _find(self.iterator.get_state(), "skipped") or {}


def make_pipeline(
    scenes: Scenes,
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
    any number of workers. Of a sequence of scenes or a mixture of them, batch i is also the same
    for any number of processes: each makes its stretch of it.

    Args:
      scenes: the training scenes: random access to all, a mixture of such, or a stream.
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
        together = _largest_divisor(size, _READ_TOGETHER)
        if isinstance(scenes, Mixture):
            ordered = scenes.dataset(seed, together)
        else:
            ordered = endless(scenes, seed, together)
        batches = (
            _Blocks(ordered, size)
            .map(_BlockViews(views, _view_seed(seed)))
            .slice(slice(first_batch * process_count + process_index, None, process_count))
        )
        # What takes long is done in Python: grain's reading threads would only wait for each
        # other's turn with the interpreter (measured: twice as slow), and the device works while
        # the next batch is made.
        stream = batches.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    if finish is not None:
        stream = stream.map(finish)
    if num_workers:
        stream = stream.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=num_workers, per_worker_buffer_size=2)
        )
    iterator = iter(stream)
    return Batches(iterator if layout else None, layout, iterator, count_lacking(scenes))


class _Blocks(grain.MapDataset):
    """Blocks of pairs of the last words of a counter and an element, as `_BlockViews` takes them.

    What grain's `random_map` and `batch` do for each element takes longer than its views.
    """

    def __init__(self, elements: grain.MapDataset, size: int) -> None:
        super().__init__(elements)
        self._size = size

    def __len__(self) -> int:
        return len(self._parent) // self._size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        first = index * self._size
        return (((0, 0, i), self._parent[i]) for i in range(first, first + self._size))


def _view_seed(seed: int) -> int:
    """That which grain gave `random_map` in the chain that recorded runs had: not the order's."""
    return int(np.random.SeedSequence([seed, _VIEWS]).generate_state(1)[0])


def _largest_divisor(number: int, limit: int) -> int:
    return next(one for one in range(min(number, limit), 0, -1) if number % one == 0)


def stack_views(elements: Sequence[Element]) -> Element:
    """N elements with arrays `[V, ...]` -> the same with arrays `[V, N, ...]`."""
    if isinstance(elements[0], tuple):
        return tuple(np.stack(parts, axis=1) for parts in zip(*elements, strict=True))
    return np.stack(elements, axis=1)


@dataclasses.dataclass(frozen=True)
class _BlockViews:
    """Makes the views of a block of scenes; the generator of each counts from its own place.

    Attributes:
      views: the policy.
      seed: of all generators.
    """

    views: ViewPolicy
    seed: int

    def __call__(self, block: Iterable[tuple[SceneKey, Scene]]) -> Element:
        pairs = self._with_generators(block)
        if isinstance(self.views, TextViews):
            return self.views.encode([self.views.choose(scene, rng) for scene, rng in pairs])
        return stack_views([self.views(scene, rng) for scene, rng in pairs])

    def _with_generators(
        self, block: Iterable[tuple[SceneKey, Scene]]
    ) -> Iterator[tuple[Scene, np.random.Generator]]:
        """Each scene and its generator, which is that of the next scene once that is asked for."""
        # One generator that is set anew for each scene: to make one takes as long as to tokenise.
        bits = np.random.Philox(self.seed)
        rng = np.random.Generator(bits)
        state: Any = bits.state
        # NumPy takes twice as long to read the numbers of arrays.
        state["buffer"] = state["buffer"].tolist()
        state["state"]["key"] = state["state"]["key"].tolist()
        for key, scene in block:
            # Philox counts in the first word: no two keys share a number of its sequence.
            state["state"]["counter"] = (0, *key)
            bits.state = state
            yield scene, rng


def _find(state: Any, name: str) -> Any:
    """The value of this name anywhere in a nested state."""
    inner = state.values() if isinstance(state, dict) else state if isinstance(state, list) else ()
    if isinstance(state, dict) and name in state:
        return state[name]
    return next((found for value in inner if (found := _find(value, name)) is not None), None)
