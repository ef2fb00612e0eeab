"""View policies of texts: see `views`.

Each chooses the texts that are the views of a scene, with what is random about them; those of many
scenes become tokens together, which takes less time than one by one.
"""

import abc
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
class TextViews(abc.ABC):
    """What all of these policies are.

    Attributes:
      codec: makes the token sequences.
      sources: of the texts, as named in the data; all where empty.
    """

    codec: TextCodec
    sources: tuple[str, ...] = ()

    @abc.abstractmethod
    def choose(self, scene: Scene, rng: np.random.Generator) -> Sequence[str | np.ndarray]:
        """The V texts that are the views of a scene, each as words or as tokens."""

    def encode(self, chosen: Sequence[Sequence[str | np.ndarray]]) -> np.ndarray:
        """What was chosen of N scenes, as tokens: `[V, N, max_length]` int32."""
        views = len(chosen[0])
        rows = self.codec.encode_all([texts[i] for i in range(views) for texts in chosen])
        return rows.reshape(views, len(chosen), self.codec.max_length)

    def __call__(self, scene: Scene, rng: np.random.Generator) -> np.ndarray:
        """The views of one scene: `[V, max_length]` int32."""
        return self.encode([self.choose(scene, rng)])[:, 0]

    def _texts(self, scene: Scene, *, at_least: int) -> Sequence[Text]:
        return of_sources(scene, scene.texts, "texts", self.sources, at_least=at_least)

    def _one_text(self, scene: Scene, rng: np.random.Generator) -> str | np.ndarray:
        texts = self._texts(scene, at_least=1)
        return texts[int(rng.integers(len(texts)))].content


@dataclasses.dataclass(frozen=True)
class TwoTexts(TextViews):
    """Good views: two texts about the scene.

    Attributes: as of `TextViews`, and
      apart: "source" or "language" where the two must differ in it.
      distinct: whether the second text leaves out each phrase that shares a word with the first.
        Languages borrow from each other (one pair of emoji names in three shares one), and matching
        words is a shortcut that needs no meaning.
    """

    apart: str = ""
    distinct: bool = False

    def __post_init__(self) -> None:
        if self.apart not in _APART:
            raise ValueError(f"views.apart must be one of {_APART}; got {self.apart!r}.")

    def choose(self, scene: Scene, rng: np.random.Generator) -> Sequence[str | np.ndarray]:
        """See `TextViews`."""
        texts = list(self._texts(scene, at_least=2))
        rng.shuffle(texts)
        one, *rest = texts
        if self.apart:
            rest = [text for text in rest if getattr(text, self.apart) != getattr(one, self.apart)]
            if not rest:
                raise MissingObservationsError(
                    scene, f"no two texts that differ in {self.apart} (views.apart)"
                )
        if not self.distinct:
            return self._shuffled(one, rng).content, self._shuffled(rest[0], rng).content
        first, *others = (self._shuffled(text, rng) for text in (one, *rest))
        if any(phrases.ids is not None for phrases in (first, *others)):
            raise ValueError(
                "views.distinct compares words, which the data does not have any more: it was "
                "tokenised. Prepare it without a tokenizer, or set views.distinct False."
            )
        words = [first.name, *first.keywords]
        apart = (without_shared_words([text.name, *text.keywords], words) for text in others)
        phrases = next((phrases for phrases in apart if phrases), None)
        return first.content, others[0].content if phrases is None else ", ".join(phrases)

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
class OneText(TextViews):
    """No pair: one text about the scene, for next-token prediction."""

    def choose(self, scene: Scene, rng: np.random.Generator) -> Sequence[str | np.ndarray]:
        """See `TextViews`."""
        return (self._one_text(scene, rng),)


@dataclasses.dataclass(frozen=True)
class TwoMasks(TextViews):
    """Bad views: one text, masked twice independently.

    Attributes: as of `TextViews`, and
      mask_ratio: probability that a token is masked.
    """

    mask_ratio: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.mask_ratio < 1:
            raise ValueError(f"views.mask_ratio must be in [0, 1); got {self.mask_ratio}.")

    def choose(self, scene: Scene, rng: np.random.Generator) -> Sequence[str | np.ndarray]:
        """See `TextViews`."""
        ids = self.codec.tokens(self._one_text(scene, rng))[: self.codec.room]
        mask = self.codec.tokenizer.mask_id
        return [np.where(rng.random(len(ids)) < self.mask_ratio, mask, ids) for _ in range(2)]


@dataclasses.dataclass(frozen=True)
class TwoSpans(TextViews):
    """Bad views: two crops of one text, each of some of its tokens in a row.

    Attributes: as of `TextViews`, and
      ratio: share of the tokens that each crop has; at least one token.
    """

    ratio: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ValueError(f"views.ratio must be in (0, 1]; got {self.ratio}.")

    def choose(self, scene: Scene, rng: np.random.Generator) -> Sequence[str | np.ndarray]:
        """See `TextViews`."""
        ids = self.codec.tokens(self._one_text(scene, rng))
        size = min(max(1, round(self.ratio * len(ids))), self.codec.room, len(ids))
        starts = rng.integers(len(ids) - size + 1, size=2).tolist()
        return [ids[start : start + size] for start in starts]


@dataclasses.dataclass(frozen=True)
class PrefixContinuation(TextViews):
    """Bad views: what stands before a point of one text, and what follows it.

    Of a text that is longer than both views, they are what is nearest to the point.

    Attributes: as of `TextViews`, and
      min_share: of the tokens, that each of the two has at least; of an odd number, half is rounded
        down.
    """

    min_share: float = 0.25

    def __post_init__(self) -> None:
        if not 0 <= self.min_share <= 0.5:
            raise ValueError(f"views.min_share must be in [0, 0.5]; got {self.min_share}.")

    def choose(self, scene: Scene, rng: np.random.Generator) -> Sequence[str | np.ndarray]:
        """See `TextViews`; one token alone is both."""
        ids = self.codec.tokens(self._one_text(scene, rng))
        room = self.codec.room
        fewest = max(1, min(math.ceil(self.min_share * len(ids)), len(ids) // 2))
        point = int(rng.integers(fewest, max(fewest, len(ids) - fewest) + 1))
        prefix, continuation = ids[max(0, point - room) : point], ids[point : point + room]
        return prefix, continuation if len(continuation) else prefix
