"""How a text or a picture becomes an array; nothing in it is random."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from PIL import Image

from platojax.data.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class TextCodec:
    """Turns descriptions into token sequences of one length."""

    tokenizer: Tokenizer
    max_length: int

    def ids(self, phrases: Sequence[str]) -> list[int]:
        """Token ids of `phrase, phrase, ...`, cut so that both ends fit around them."""
        return self.tokenizer.encode(", ".join(phrases))[: self.max_length - 2]

    def pad(self, ids: Sequence[int]) -> np.ndarray:
        """Adds both ends and padding: `[max_length]` int32."""
        row = np.full(self.max_length, self.tokenizer.pad_id, np.int32)
        row[: len(ids) + 2] = [self.tokenizer.bos_id, *ids, self.tokenizer.eos_id]
        return row


def resize(
    image: np.ndarray, size: int, box: tuple[float, float, float, float] | None = None
) -> np.ndarray:
    """Bilinear with antialiasing: `[H, W, 3]` uint8 -> `[size, size, 3]` uint8.

    Args:
      image: the image.
      size: side of the result.
      box: left, top, right and bottom of the part to take; the whole where None.
    """
    picture = Image.fromarray(image)
    return np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR, box=box))
