"""How a text or a picture becomes an array; nothing in it is random."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from PIL import Image

from platojax.data.scenes import Text
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

    def tokens(self, text: Text) -> list[int]:
        """Token ids of `name, keyword, keyword, ...`, all of them."""
        if text.ids is not None:
            return text.ids.tolist()
        return self.tokenizer.encode(", ".join([text.name, *text.keywords]))

    def encode_all(self, texts: Sequence[Text]) -> np.ndarray:
        """Each text's tokens, cut, with both ends and padding: `[texts, max_length]` int32."""
        rows = np.repeat(self._empty, len(texts), axis=0)
        for row, text in enumerate(texts):
            ids = (self.tokens(text) if text.ids is None else text.ids)[: self.room]
            rows[row, 1 : len(ids) + 1] = ids
            rows[row, len(ids) + 1] = self.tokenizer.eos_id
        return rows

    def cut(self, ids: list[int]) -> list[int]:
        """The first of them, so that both ends fit around them."""
        return ids[: self.room]

    def pad(self, ids: Sequence[int]) -> np.ndarray:
        """Adds both ends and padding: `[max_length]` int32."""
        row = np.full(self.max_length, self.tokenizer.pad_id, np.int32)
        row[: len(ids) + 2] = [self.tokenizer.bos_id, *ids, self.tokenizer.eos_id]
        return row


def resize(image: np.ndarray, size: int) -> np.ndarray:
    """Bilinear with antialiasing: `[H, W, 3]` uint8 -> `[size, size, 3]` uint8."""
    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))
