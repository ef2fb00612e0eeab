"""Fixed observations of scenes, for evaluation: no choice in them is random."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from PIL import Image

from platojax.data.scenes import Scene
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


def text_observations(
    scenes: Sequence[Scene], sources: Sequence[str], codec: TextCodec
) -> np.ndarray:
    """The descriptions of each scene by each of the sources: `[sources, N, max_length]` int32.

    Raises:
      ValueError: if a scene lacks one of them.
    """
    rows = []
    for scene in scenes:
        texts = {text.source: text for text in scene.texts}
        missing = [source for source in sources if source not in texts]
        if missing:
            raise ValueError(
                f"evaluation.sources {missing} do not describe scene {scene.scene_id}; "
                f"it has {sorted(texts)}."
            )
        rows.append([codec.pad(codec.ids([texts[s].name, *texts[s].keywords])) for s in sources])
    return np.asarray(rows).swapaxes(0, 1)


def image_observations(
    scenes: Sequence[Scene], artists: Sequence[str], per_scene: int, size: int
) -> np.ndarray:
    """The drawings of each scene by the first `per_scene` of the artists who drew it.

    Returns:
      `[per_scene, N, size, size, 3]` uint8.

    Raises:
      ValueError: if a scene has fewer.
    """
    rows = []
    for scene in scenes:
        images = {picture.artist: picture.image for picture in scene.pictures}
        chosen = [images[artist] for artist in artists if artist in images][:per_scene]
        if len(chosen) < per_scene:
            raise ValueError(
                f"scene {scene.scene_id} has {len(chosen)} drawings by evaluation.artists "
                f"{tuple(artists)}, not {per_scene}; it has {sorted(images)}."
            )
        rows.append([resize(image, size) for image in chosen])
    return np.asarray(rows).swapaxes(0, 1)


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
