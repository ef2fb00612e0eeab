"""How a text or a picture becomes an array; nothing in it is random."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from PIL import Image

from platojax.data.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class TextCodec:
    """Turns descriptions into token sequences of one length."""

    tokenizer: Tokenizer
    max_length: int

    @functools.cached_property
    def _empty(self) -> np.ndarray:
        """The beginning, and padding: `[1, max_length]`."""
        row = np.full((1, self.max_length), self.tokenizer.pad_id, np.int32)
        row[:, 0] = self.tokenizer.bos_id
        return row

    @property
    def room(self) -> int:
        """How many tokens fit between both ends."""
        return self.max_length - 2

    def tokens(self, text: str | np.ndarray) -> np.ndarray:
        """Token ids of a text, all of them: one axis of integers; what has been tokenised stays."""
        return self.tokenizer.encode_all([text])[0] if isinstance(text, str) else text

    def encode_all(self, texts: Sequence[str | np.ndarray]) -> np.ndarray:
        """Each text's tokens, cut, with both ends and padding: `[texts, max_length]` int32.

        Many texts together take less time than one by one.

        Args:
          texts: words, or the tokens of what has been tokenised.
        """
        tokenised = iter(self.tokenizer.encode_all([t for t in texts if isinstance(t, str)]))
        rows = np.repeat(self._empty, len(texts), axis=0)
        room, eos_id = self.room, self.tokenizer.eos_id
        for row, text in zip(rows, texts, strict=True):
            ids = (next(tokenised) if isinstance(text, str) else text)[:room]
            row[1 : len(ids) + 1] = ids
            row[len(ids) + 1] = eos_id
        return rows


def resize(image: np.ndarray, size: int) -> np.ndarray:
    """Bilinear with antialiasing: `[H, W, 3]` uint8 -> `[size, size, 3]` uint8."""
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))
