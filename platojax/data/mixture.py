"""Mixtures: scenes of several data sets in one run, each with a weight.

Parts with random access make a `Mixture`, in which scene i is always the same scene of the same
part; streams make a `MixedStream`, each block of which has scenes of all parts.
"""

import collections
import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grain
import numpy as np
from grain.experimental import index_shuffle

from platojax.data.scenes import BatchedReads, Scene, SceneKey, SceneStream, hash_scenes
from platojax.hashing import hash_items

_UNIT = 1 << 20  # in which weights are counted
_ORDER = 1  # sets the seed of the order apart


def check_weights(weights: Mapping[str, float]) -> None:
    """Raises ValueError where there is nothing to mix, or a weight is impossible."""
    if not weights:
        raise ValueError("data.parts is empty; name each part, with its data and its weight.")
    for name, weight in weights.items():
        if not 0 < weight < float("inf"):
            raise ValueError(f"data.parts.{name}.weight must be positive; got {weight}.")
    total = sum(weights.values())
    for name, weight in weights.items():
        if weight * _UNIT < total:
            raise ValueError(
                f"data.parts.{name}.weight {weight} is less than a millionth of all; leave it out."
            )


@dataclasses.dataclass(frozen=True, eq=False)
class Mixture:
    """Data sets with random access, mixed.

    Attributes:
      parts: by name.
      weights: of the parts, relative to each other.
    """

    parts: Mapping[str, Sequence[Scene]]
    weights: Mapping[str, float]

    @property
    def content_hash(self) -> str:
        """SHA-256 (hexadecimal) of all parts and their weights."""
        return _hash_parts(self.parts, self.weights)

    def dataset(self, seed: int, ahead: int) -> grain.MapDataset:
        """All scenes without end: each part is shuffled anew whenever it is through.

        Any n scenes in a row have of each part its share of n, to the nearest whole number or the
        one beside it.

        Args:
          seed: of the order.
          ahead: see `endless`.
        """
        weights = [self.weights[name] for name in self.parts]
        seeds = np.random.SeedSequence(seed).generate_state(len(self.parts)).tolist()
        parts = [
            endless(part, one, max(1, round(ahead * weight / sum(weights))))
            for part, one, weight in zip(self.parts.values(), seeds, weights, strict=True)
        ]
        return _Mixed(parts, _shares(weights, _UNIT))


Scenes = Sequence[Scene] | SceneStream | Mixture  # whatever can be trained on


def endless(scenes: Sequence[Scene], seed: int, ahead: int) -> grain.MapDataset:
    """The scenes in a new order every epoch.

    Args:
      scenes: random access to all.
      seed: of the order.
      ahead: scenes that are read at a time; as many as are asked for one after the other.

    Raises:
      ValueError: there are none.
    """
    if len(scenes) == 0:
        raise ValueError("there is no scene to train on; the data set is empty.")
    return _Endless(scenes, seed, ahead)


class _Endless(grain.MapDataset):
    """Scenes in random order, epoch after epoch, a block at a time.

    A record alone takes several times as long to read as among others. Holds a block, and so is for
    one thread.
    """

    def __init__(self, scenes: Sequence[Scene], seed: int, ahead: int) -> None:
        super().__init__()
        self._scenes, self._ahead = scenes, ahead
        # That which grain gave `shuffle` in the chain that recorded runs had.
        self._seed = int(np.random.SeedSequence([seed, _ORDER]).generate_state(1)[0])
        self._block = -1
        self._read: Sequence[Scene] = ()

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        block, place = divmod(index, self._ahead)
        if block != self._block:
            start = block * self._ahead
            numbers = [self._number(i) for i in range(start, start + self._ahead)]
            if isinstance(self._scenes, BatchedReads):
                self._read = self._scenes.read(numbers)
            else:
                self._read = [self._scenes[number] for number in numbers]
            self._block = block
        return self._read[place]

    def _number(self, index: int) -> int:
        """Of a scene: what grain's `shuffle` and `repeat` give, in half of their time."""
        epoch, place = divmod(index, len(self._scenes))
        return index_shuffle(place, len(self._scenes) - 1, (self._seed + epoch) % (1 << 32), 4)


class _Mixed(grain.MapDataset):
    """Elements of several datasets without end.

    grain's own mixture cuts weights to a part in some hundred; this one does not.
    """

    def __init__(self, parents: Sequence[grain.MapDataset], shares: Sequence[int]) -> None:
        super().__init__(parents)
        self._shares = tuple(shares)

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        part, place = _place(index, self._shares)
        return self._parents[part][place]


def _place(index: int, shares: Sequence[int]) -> tuple[int, int]:
    """Which part an element is of, and which of its elements it is.

    The first part takes its share of all places, evenly; the others share what it leaves.
    """
    rest = sum(shares)
    before, after = index, index + 1  # places that are left, up to here and with this one
    for part, share in enumerate(shares[:-1]):
        left_before = before * (rest - share) // rest
        left_after = after * (rest - share) // rest
        if left_before == left_after:  # this part took it
            return part, before - left_before
        before, after, rest = left_before, left_after, rest - share
    return len(shares) - 1, before


def _shares(weights: Sequence[float], total: int) -> list[int]:
    """Whole numbers in proportion to the weights, and their sum: largest remainders go up."""
    exact = np.asarray(weights) / sum(weights) * total
    shares = np.floor(exact).astype(int)
    missing = total - int(shares.sum())
    shares[np.argsort(shares - exact, kind="stable")[:missing]] += 1
    return shares.tolist()


def _hash_parts(parts: Mapping[str, Any], weights: Mapping[str, float]) -> str:
    return hash_items(
        [f"{name} {weights[name]} {hash_scenes(part)}" for name, part in parts.items()]
    )


# ---- Streams -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class MixedStream:
    """A `SceneStream` of several streams, see `Mixture`.

    Each block has scenes of all parts, in proportion to the weights as well as its size allows.
    """

    parts: Mapping[str, SceneStream]
    weights: Mapping[str, float]

    @property
    def content_hash(self) -> str:
        """See `SceneStream`."""
        return _hash_parts(self.parts, self.weights)

    def first(self) -> Scene:
        """See `SceneStream`."""
        return next(iter(self.parts.values())).first()

    def blocks(
        self, size: int, *, seed: int, process_index: int = 0, process_count: int = 1
    ) -> grain.IterDataset:
        """See `SceneStream`.

        Raises:
          ValueError: a part cannot be read by so many processes, or has no scene in a block.
        """
        counts = _shares([self.weights[name] for name in self.parts], size)
        for name, count in zip(self.parts, counts, strict=True):
            if not count:
                raise ValueError(
                    f"data.parts.{name}.weight {self.weights[name]} gives it no scene among the "
                    f"{size} that a process has in a batch; raise it or batch_size."
                )
        return _MixedBlocks(
            [
                part.blocks(
                    count, seed=seed, process_index=process_index, process_count=process_count
                )
                for part, count in zip(self.parts.values(), counts, strict=True)
            ],
            counts,
        )


class _MixedBlocks(grain.IterDataset):
    """Blocks made of one block of each parent; grain passes `set_slice` on to the parents."""

    def __init__(self, parents: Sequence[grain.IterDataset], counts: Sequence[int]) -> None:
        super().__init__(parents)
        # Evenly: packing wants short and long texts together, and each device scenes of all parts.
        places = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
        numbers = np.repeat(np.arange(len(counts)), counts)  # of the parts
        self.order = numbers[np.argsort(places, kind="stable")].tolist()

    def __iter__(self) -> "_MixedIterator":
        return _MixedIterator(self._parents, self.order)


class _MixedIterator(grain.DatasetIterator):
    def __init__(self, parts: Sequence[grain.IterDataset], order: Sequence[int]) -> None:
        self._parts = [iter(part) for part in parts]
        super().__init__(self._parts)
        self._order = order

    def __next__(self) -> Iterator[tuple[SceneKey, Scene]]:
        return self._mix([next(part) for part in self._parts])

    def _mix(
        self, blocks: Sequence[Iterator[tuple[SceneKey, Scene]]]
    ) -> Iterator[tuple[SceneKey, Scene]]:
        for number in self._order:
            (epoch, file, row), scene = next(blocks[number])
            # A file's number among those of all parts: two scenes must not share a generator.
            yield (epoch, file * len(blocks) + number, row), scene

    def get_state(self) -> dict[str, Any]:
        """That of each part; and what they skipped together, for whoever looks for it."""
        states = [part.get_state() for part in self._parts]
        skipped: collections.Counter[str] = collections.Counter()
        for state in states:
            skipped.update(state["window"]["skipped"])
        return {"skipped": dict(skipped), "parts": states}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to where another iterator over the same streams was."""
        for part, one in zip(self._parts, state["parts"], strict=True):
            part.set_state(one)

    def close(self) -> None:
        """Closes all parts."""
        super().close()
        for part in self._parts:
            part.close()
