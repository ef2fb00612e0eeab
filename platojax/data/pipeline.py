"""From scenes to batches: a grain pipeline; each batch is a function of the seed and its index."""

from collections.abc import Sequence

import grain
import numpy as np

from platojax.data.scenes import Scene
from platojax.data.views import Element, ViewPolicy


def make_pipeline(
    scenes: Sequence[Scene],
    views: ViewPolicy,
    *,
    batch_size: int,
    seed: int,
    num_workers: int = 0,
    process_index: int = 0,
    process_count: int = 1,
) -> grain.DatasetIterator:
    """Endless batches: scenes in a new order every epoch, new views every time.

    Worker processes make single elements, which are batched afterwards; so the stream is the same
    for any number of workers. The iterator's state says exactly where it is.

    Args:
      scenes: random access to the training scenes.
      views: the view policy.
      batch_size: scenes a batch, over all processes.
      seed: of the order and of all views.
      num_workers: processes that make views; 0 makes them in this one, between two steps.
      process_index: which of `process_count` processes this is. Each takes every
        `process_count`-th element, so that together they have the batch of a single process.
      process_count: see above.

    Returns:
      An iterator over `[V, batch_size / process_count, ...]` arrays. Close it at the end.

    Raises:
      ValueError: if there is no scene, or the batch does not divide among the processes.
    """
    if len(scenes) == 0:
        raise ValueError("there is no scene to train on; the data set is empty.")
    if batch_size < 1 or batch_size % process_count:
        raise ValueError(
            f"batch_size {batch_size} must be a positive multiple of the {process_count} processes."
        )
    elements = (
        grain.MapDataset.source(scenes)
        .seed(seed)
        .shuffle()
        .repeat()
        .random_map(views)  # before the slice: grain keys its generator by the index in this chain
        .slice(slice(process_index, None, process_count))
    )
    # The scenes are in memory: grain's reading threads would only wait for each other's turn with
    # the interpreter (measured: twice as slow), and the device works while the next batch is made.
    stream = elements.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    if num_workers:
        stream = stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=num_workers))
    return iter(stream.batch(batch_size // process_count, batch_fn=stack_views))


def stack_views(elements: Sequence[Element]) -> Element:
    """N elements with arrays `[V, ...]` -> the same with arrays `[V, N, ...]`."""
    if isinstance(elements[0], tuple):
        return tuple(np.stack(parts, axis=1) for parts in zip(*elements, strict=True))
    return np.stack(elements, axis=1)
