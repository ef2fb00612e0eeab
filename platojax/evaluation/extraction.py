"""Features of a frozen encoder, streamed to a feature folder; a killed extraction is taken up.

Items are encoded in shards of consecutive ones. Within a shard texts are sorted by length, so that
little is padded; a shard counts once its rows are on the disk.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from platojax.data.images import open_image
from platojax.data.items import Items
from platojax.encoders.frozen import FrozenEncoder
from platojax.evaluation.features import FeatureMeta, FeatureWriter, holds, library_versions
from platojax.evaluation.mapped import Placement
from platojax.hashing import hash_items

# A shard has at most so many items, and fewer where they have many or wide layers.
_SHARD_ITEMS = 512
_SHARD_ELEMENTS = 2**26


def extract(
    encoder: FrozenEncoder,
    items: Items,
    folder: str | os.PathLike,
    *,
    request: str = "",
    placement: Placement | None = None,
    on_progress: Callable[[int], None] = lambda done: None,
) -> bool:
    """Extracts the features of all items, going on where an earlier call was killed.

    An item's features are the mean over its observations, in float32, and then, where there is a
    placement, what it makes of them.

    Args:
      encoder: frozen.
      items: with observations of the encoder's modality.
      folder: becomes a feature folder `[N, L, D]`; nothing is done where it holds these already.
      request: see `FeatureMeta`.
      placement: takes them into the common space of a map.
      on_progress: called with the number of items done, also at the start.

    Returns:
      Whether anything was extracted.

    Raises:
      ValueError: the items have no such observations, one cannot be used (the message names it), or
        features are not finite.
      FileExistsError: `folder` holds something else.
    """
    meta = describe(encoder, items, request)
    width = encoder.width
    if placement is not None:
        meta, width = placement.meta(meta), placement.width
    if holds(folder, meta):
        return False
    observations = items.observations(encoder.modality)
    shard = max(1, min(_SHARD_ITEMS, _SHARD_ELEMENTS // (len(encoder.layers) * encoder.width)))
    with FeatureWriter(folder, len(items.ids), width, meta) as writer:
        on_progress(writer.done)
        while writer.done < len(items.ids):
            span = slice(writer.done, writer.done + shard)
            rows = _encode(encoder, items.ids[span], observations[span])
            writer.append(rows if placement is None else placement.rows(rows)[:, None])
            on_progress(writer.done)
    return True


def describe(encoder: FrozenEncoder, items: Items, request: str = "") -> FeatureMeta:
    """What the features of these items by this encoder are of."""
    most = max(len(several) for several in items.observations(encoder.modality))
    several = f" (mean over up to {most} {encoder.modality}s of an item)" if most > 1 else ""
    return FeatureMeta(
        encoder=encoder.name,
        weights_hash=encoder.weights_hash,
        dataset=items.name + several,
        items_hash=hash_items(items.ids),
        content_hash=items.content_hash(encoder.modality),
        preprocessing=encoder.preprocessing,
        pooling=encoder.pooling,
        layers=encoder.layers,
        dtype=encoder.dtype,
        request=request,
        versions=library_versions(*encoder.libraries),
    )


def _encode(
    encoder: FrozenEncoder, ids: Sequence[str], observations: Sequence[tuple[Any, ...]]
) -> np.ndarray:
    """[n, L, D]: the means over the observations of n items."""
    flat = [(item, one) for item, several in enumerate(observations) for one in several]
    if encoder.modality == "text":
        prepared = [_prepare(encoder, ids[item], one) for item, one in flat]
        order = sorted(range(len(flat)), key=lambda i: len(prepared[i]))
        batches: Iterable[list[np.ndarray]] = (
            [prepared[i] for i in part] for part in _parts(order, encoder.batch_size)
        )
    else:
        order = list(range(len(flat)))
        batches = _image_batches(encoder, ids, flat)
    sums = np.zeros((len(ids), len(encoder.layers), encoder.width), np.float32)
    for part, batch in zip(_parts(order, encoder.batch_size), batches, strict=True):
        # Sums in the order of `order`, so that the result does not depend on the batch size.
        np.add.at(sums, [flat[i][0] for i in part], encoder.encode(batch))
    counts = np.array([len(several) for several in observations], np.float32)
    return sums / counts[:, None, None]


def _image_batches(
    encoder: FrozenEncoder, ids: Sequence[str], flat: Sequence[tuple[int, Any]]
) -> Iterable[list[np.ndarray]]:
    """Batches of prepared images; while one is encoded, threads decode the next."""

    def load(part: Sequence[tuple[int, Any]]) -> list[np.ndarray]:
        return list(pool.map(lambda pair: _prepare(encoder, ids[pair[0]], pair[1]), part))

    parts = _parts(flat, encoder.batch_size)
    with ThreadPoolExecutor() as pool, ThreadPoolExecutor(1) as ahead:
        following = ahead.submit(load, parts[0])
        for part in parts[1:]:
            batch = following.result()
            following = ahead.submit(load, part)
            yield batch
        yield following.result()


def _prepare(encoder: FrozenEncoder, item: str, observation: Any) -> np.ndarray:
    try:
        if encoder.modality == "image":
            return encoder.prepare(open_image(observation))
        return encoder.prepare(observation)
    except (ValueError, OSError) as error:
        raise ValueError(f"item {item}: {error}") from error


def _parts(sequence: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [sequence[start : start + size] for start in range(0, len(sequence), size)]
