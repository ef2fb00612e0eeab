"""View policies of texts: see `views`."""

import dataclasses
import functools
import math
import re
from collections.abc import Sequence

import numpy as np

from platojax.data.observations import TextCodec
from platojax.data.scenes import MissingObservationsError, Scene, Text, of_sources

_APART = ("", "source", "language")


@dataclasses.dataclass(frozen=True)
class TwoTexts:
    """Good views: two texts about the scene.

    Attributes:
      codec: makes the token sequences.
      sources: of the texts, as named in the data; all where empty.
      apart: "source" or "language" where the two must differ in it.
      distinct: whether the second text leaves out each phrase that shares a word with the first.
        Languages borrow from each other (one pair of emoji names in three shares one), and matching
        words is a shortcut that needs no meaning.
    """

    codec: TextCodec
    sources: tuple[str, ...] = ()
    apart: str = ""
    distinct: bool = False

    def __post_init__(self) -> None:
        if self.apart not in _APART:
            raise ValueError(f"views.apart must be one of {_APART}; got {self.apart!r}.")

    def __call__(self, scene: Scene, rng: np.random.Generator) -> np.ndarray:
        """`[2, max_length]` int32."""
        texts = _texts_of(scene, self.sources, at_least=2)
        one, *rest = [texts[i] for i in rng.permutation(len(texts)).tolist()]
        if self.apart:
            rest = [text for text in rest if getattr(text, self.apart) != getattr(one, self.apart)]
            if not rest:
                raise MissingObservationsError(
                    scene, f"no two texts that differ in {self.apart} (views.apart)"
                )
        if not self.distinct:
            return self.codec.encode_all([self._shuffled(one, rng), self._shuffled(rest[0], rng)])
        first, *others = (self._shuffled(text, rng) for text in (one, *rest))
        if any(phrases.ids is not None for phrases in (first, *others)):
            raise ValueError(
                "views.distinct compares words, which the data does not have any more: it was "
                "tokenised. Prepare it without a tokenizer, or set views.distinct False."
            )
        words = [first.name, *first.keywords]
        apart = (without_shared_words([text.name, *text.keywords], words) for text in others)
        phrases = next((phrases for phrases in apart if phrases), None)
        second = others[0] if phrases is None else Text("", "", phrases[0], tuple(phrases[1:]))
        return self.codec.encode_all([first, second])

    def _shuffled(self, text: Text, rng: np.random.Generator) -> Text:
        """The name, then the keywords in random order."""
        if not text.keywords:
            return text
        order = rng.permutation(len(text.keywords)).tolist()
        return dataclasses.replace(text, keywords=tuple(text.keywords[i] for i in order))


def without_shared_words(phrases: Sequence[str], others: Sequence[str]) -> list[str]:
    """The phrases none of whose words (of three letters or more, in any case) is in `others`."""
    taken = frozenset().union(*map(_words, others))
    return [phrase for phrase in phrases if taken.isdisjoint(_words(phrase))]


@functools.lru_cache(maxsize=1 << 16)
def _words(phrase: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w{3,}", phrase.casefold()))


@dataclasses.dataclass(frozen=True)
class OneText:
    """No pair: one text about the scene, for next-token prediction.

    Attributes:
      codec: makes the token sequence.
      sources: as of `TwoTexts`.
    """

    codec: TextCodec
    sources: tuple[str, ...] = ()

    def __call__(self, scene: Scene, rng: np.random.Generator) -> np.ndarray:
        """`[1, max_length]` int32."""
        texts = _texts_of(scene, self.sources, at_least=1)
        return self.codec.encode_all([texts[int(rng.integers(len(texts)))]])


@dataclasses.dataclass(frozen=True)
class TwoMasks:
    """Bad views: one text, masked twice independently.

    Attributes:
      codec: makes the token sequences.
      sources: as of `TwoTexts`.
      mask_ratio: probability that a token is masked.
    """

    codec: TextCodec
    sources: tuple[str, ...] = ()
    mask_ratio: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.mask_ratio < 1:
            raise ValueError(f"views.mask_ratio must be in [0, 1); got {self.mask_ratio}.")

    def __call__(self, scene: Scene, rng: np.random.Generator) -> np.ndarray:
        """`[2, max_length]` int32."""
        ids = np.asarray(self.codec.cut(_one_text(self.codec, scene, self.sources, rng)))
        masked = [
            np.where(rng.random(len(ids)) < self.mask_ratio, self.codec.tokenizer.mask_id, ids)
            for _ in range(2)
        ]
        return np.stack([self.codec.pad(list(view)) for view in masked])


@dataclasses.dataclass(frozen=True)
class TwoSpans:
    """Bad views: two crops of one text, each of some of its tokens in a row.

    Attributes:
      codec: makes the token sequences.
      sources: as of `TwoTexts`.
      ratio: share of the tokens that each crop has; at least one token.
    """

    codec: TextCodec
    sources: tuple[str, ...] = ()
    ratio: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ValueError(f"views.ratio must be in (0, 1]; got {self.ratio}.")

    def __call__(self, scene: Scene, rng: np.random.Generator) -> np.ndarray:
        """`[2, max_length]` int32."""
        ids = _one_text(self.codec, scene, self.sources, rng)
        size = min(max(1, round(self.ratio * len(ids))), self.codec.room, len(ids))
        starts = rng.integers(len(ids) - size + 1, size=2).tolist()
        return np.stack([self.codec.pad(ids[start : start + size]) for start in starts])


@dataclasses.dataclass(frozen=True)
class PrefixContinuation:
    """Bad views: what stands before a point of one text, and what follows it.

    Of a text that is longer than both views, they are what is nearest to the point.

    Attributes:
      codec: makes the token sequences.
      sources: as of `TwoTexts`.
      min_share: of the tokens, that each of the two has at least; of an odd number, half is rounded
        down.
    """

    codec: TextCodec
    sources: tuple[str, ...] = ()
    min_share: float = 0.25

    def __post_init__(self) -> None:
        if not 0 <= self.min_share <= 0.5:
            raise ValueError(f"views.min_share must be in [0, 0.5]; got {self.min_share}.")

    def __call__(self, scene: Scene, rng: np.random.Generator) -> np.ndarray:
        """`[2, max_length]` int32; one token alone is both."""
        ids = _one_text(self.codec, scene, self.sources, rng)
        room = self.codec.room
        fewest = max(1, min(math.ceil(self.min_share * len(ids)), len(ids) // 2))
        point = int(rng.integers(fewest, max(fewest, len(ids) - fewest) + 1))
        prefix, continuation = ids[max(0, point - room) : point], ids[point : point + room]
        return np.stack([self.codec.pad(view) for view in (prefix, continuation or prefix)])


def _texts_of(scene: Scene, sources: tuple[str, ...], *, at_least: int) -> Sequence[Text]:
    return of_sources(scene, scene.texts, "texts", sources, at_least=at_least)


def _one_text(
    codec: TextCodec, scene: Scene, sources: tuple[str, ...], rng: np.random.Generator
) -> list[int]:
    """The tokens of one text of the scene."""
    texts = _texts_of(scene, sources, at_least=1)
    return codec.tokens(texts[int(rng.integers(len(texts)))])
