"""Views: which observations make a positive pair.

A view policy is a function `(scene, generator) -> [V, ...]`; where the views are of several sizes,
it gives a tuple of such arrays, the global views first. All its choices come from the generator,
which the pipeline keys by the index of the element, so they do not depend on workers or on
resumption.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence

import numpy as np
from ml_collections import ConfigDict

from platojax.data.observations import TextCodec, resize
from platojax.data.scenes import Scene, Text
from platojax.data.tokenizer import Tokenizer

Element = np.ndarray | tuple[np.ndarray, ...]
ViewPolicy = Callable[[Scene, np.random.Generator], Element]


def make_views(config: ConfigDict, encoder: ConfigDict, tokenizer: Tokenizer) -> ViewPolicy:
    """Builds the view policy that an arm's `views` config names.

    Args:
      config: `name` (of one of the policies below) and its fields.
      encoder: the encoder's config: its `max_length` or `image_size` is that of the views.
      tokenizer: of the text policies.

    Raises:
      ValueError: if there is no policy of that name.
    """
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in config.items() if k != "name"}
    text: dict[str, Callable[..., ViewPolicy]] = {"two_sources": TwoSources, "two_masks": TwoMasks}
    image: dict[str, Callable[..., ViewPolicy]] = {
        "two_artists": TwoArtists,
        "two_crops": TwoCrops,
        "multi_crop": MultiCrop,
    }
    if config.name in text:
        return text[config.name](TextCodec(tokenizer, encoder.max_length), **fields)
    if config.name in image:
        return image[config.name](size=encoder.image_size, **fields)
    raise ValueError(f"views.name must be one of {[*text, *image]}; got {config.name!r}.")


def example_views(config: ConfigDict, encoder: ConfigDict) -> Element:
    """Views of one scene as a policy gives them, all zero: for what needs shapes but has no data.

    Args:
      config: see `make_views`.
      encoder: see `make_views`.

    Returns:
      `[V, 1, ...]`, or a tuple of such arrays.

    Raises:
      ValueError: if there is no policy of that name.
    """
    if config.name in ("two_sources", "two_masks"):
        return np.zeros((2, 1, encoder.max_length), np.int32)
    if config.name in ("two_artists", "two_crops"):
        return np.zeros((2, 1, encoder.image_size, encoder.image_size, 3), np.uint8)
    if config.name == "multi_crop":
        counts = {"num_global": MultiCrop.num_global, "num_local": MultiCrop.num_local}
        counts.update({name: config[name] for name in counts if name in config})
        sides = encoder.image_size, config.local_size
        return tuple(
            np.zeros((count, 1, side, side, 3), np.uint8)
            for count, side in zip(counts.values(), sides, strict=True)
        )
    raise ValueError(f"views.name {config.name!r} names no policy; see data/views.py.")


@dataclasses.dataclass(frozen=True)
class TwoSources:
    """Good views: the scene as two sources describe it.

    Attributes:
      codec: makes the token sequences.
      sources: of the descriptions, as named in the data.
      distinct: whether the second description leaves out each phrase that shares a word with the
        first. Languages borrow from each other (one pair in three shares one), and matching words
        is a shortcut that needs no meaning.
    """

    codec: TextCodec
    sources: tuple[str, ...]
    distinct: bool

    def __call__(self, scene: Scene, rng: np.random.Generator) -> np.ndarray:
        """`[2, max_length]` int32."""
        texts = _texts_of(scene, self.sources, at_least=2)
        first, *others = (_shuffled_phrases(texts[i], rng) for i in rng.permutation(len(texts)))
        second = others[0]
        if self.distinct:
            apart = (without_shared_words(phrases, first) for phrases in others)
            second = next((phrases for phrases in apart if phrases), second)
        return np.stack([self.codec.pad(self.codec.ids(phrases)) for phrases in (first, second)])


def without_shared_words(phrases: Sequence[str], others: Sequence[str]) -> list[str]:
    """The phrases none of whose words (of three letters or more, in any case) is in `others`."""
    taken = frozenset().union(*map(_words, others))
    return [phrase for phrase in phrases if taken.isdisjoint(_words(phrase))]


@functools.lru_cache(maxsize=1 << 16)
def _words(phrase: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w{3,}", phrase.casefold()))


def _shuffled_phrases(text: Text, rng: np.random.Generator) -> list[str]:
    """The name, then the keywords in random order."""
    keywords = text.keywords
    return [text.name, *[keywords[i] for i in rng.permutation(len(keywords)).tolist()]]


@dataclasses.dataclass(frozen=True)
class TwoMasks:
    """Bad views: one description, masked twice independently.

    Attributes:
      codec: makes the token sequences.
      sources: of the descriptions.
      mask_ratio: probability that a token is masked.
    """

    codec: TextCodec
    sources: tuple[str, ...]
    mask_ratio: float = 0.5

    def __call__(self, scene: Scene, rng: np.random.Generator) -> np.ndarray:
        """`[2, max_length]` int32."""
        texts = _texts_of(scene, self.sources, at_least=1)
        text = texts[rng.integers(len(texts))]
        ids = np.asarray(self.codec.ids([text.name, *text.keywords]))
        masked = [
            np.where(rng.random(len(ids)) < self.mask_ratio, self.codec.tokenizer.mask_id, ids)
            for _ in range(2)
        ]
        return np.stack([self.codec.pad(list(view)) for view in masked])


@dataclasses.dataclass(frozen=True)
class TwoArtists:
    """Good views: the scene as two artists drew it, each slightly cropped and jittered.

    Attributes:
      size: side of the views in pixels.
      artists: of the drawings, as named in the data; all where empty.
      min_scale: smallest crop, as a share of the area.
      jitter: strength of the brightness, contrast and saturation jitter.
    """

    size: int
    artists: tuple[str, ...] = ()
    min_scale: float = 0.6
    jitter: float = 0.2

    def __call__(self, scene: Scene, rng: np.random.Generator) -> np.ndarray:
        """`[2, size, size, 3]` uint8."""
        drawings = _drawings_of(scene, self.artists, at_least=2)
        chosen = rng.choice(len(drawings), 2, replace=False)
        return np.stack(
            [augment(drawings[i], rng, self.size, self.min_scale, self.jitter) for i in chosen]
        )


@dataclasses.dataclass(frozen=True)
class TwoCrops:
    """Bad views: two augmented crops of one drawing.

    Attributes: as of `TwoArtists`.
    """

    size: int
    artists: tuple[str, ...] = ()
    min_scale: float = 0.3
    jitter: float = 0.4

    def __call__(self, scene: Scene, rng: np.random.Generator) -> np.ndarray:
        """`[2, size, size, 3]` uint8."""
        drawings = _drawings_of(scene, self.artists, at_least=1)
        drawing = drawings[rng.integers(len(drawings))]
        return np.stack(
            [augment(drawing, rng, self.size, self.min_scale, self.jitter) for _ in range(2)]
        )


@dataclasses.dataclass(frozen=True)
class MultiCrop:
    """Bad views: large and small augmented crops of one drawing, as LeJEPA takes of photographs.

    Attributes:
      size: side of the global views in pixels.
      local_size: side of the local ones.
      artists: as of `TwoArtists`.
      num_global: how many of either.
      num_local: see above.
      local_max_scale: crops of at least this share of the area are global, smaller ones local.
      min_scale: the smallest local crop.
      jitter: as of `TwoArtists`.
    """

    size: int
    local_size: int
    artists: tuple[str, ...] = ()
    num_global: int = 2
    num_local: int = 6
    min_scale: float = 0.05
    local_max_scale: float = 0.3
    jitter: float = 0.4

    def __call__(self, scene: Scene, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """`[num_global, size, size, 3]` and `[num_local, local_size, local_size, 3]` uint8."""
        drawings = _drawings_of(scene, self.artists, at_least=1)
        drawing = drawings[rng.integers(len(drawings))]

        def crops(count: int, size: int, smallest: float, largest: float) -> np.ndarray:
            return np.stack(
                [augment(drawing, rng, size, smallest, self.jitter, largest) for _ in range(count)]
            )

        return (
            crops(self.num_global, self.size, self.local_max_scale, 1.0),
            crops(self.num_local, self.local_size, self.min_scale, self.local_max_scale),
        )


def augment(
    image: np.ndarray,
    rng: np.random.Generator,
    size: int,
    min_scale: float,
    jitter: float,
    max_scale: float = 1.0,
) -> np.ndarray:
    """Random resized crop, horizontal flip, and jitter of brightness, contrast and saturation.

    Args:
      image: `[H, W, 3]` uint8.
      rng: the source of all choices.
      size: side of the result.
      min_scale: smallest crop, as a share of the area; aspect ratios lie in [3/4, 4/3].
      jitter: each factor is drawn from [1 - jitter, 1 + jitter].
      max_scale: largest crop.

    Returns:
      `[size, size, 3]` uint8.
    """
    height, width = image.shape[:2]
    area = height * width * rng.uniform(min_scale, max_scale)
    aspect = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
    crop_width = min(width, max(1, round(np.sqrt(area * aspect))))
    crop_height = min(height, max(1, round(np.sqrt(area / aspect))))
    left = rng.integers(width - crop_width + 1)
    top = rng.integers(height - crop_height + 1)
    box = (left, top, left + crop_width, top + crop_height)
    pixels = resize(image, size, box).astype(np.float64)
    flip = rng.random() < 0.5
    brightness, contrast, saturation = rng.uniform(1 - jitter, 1 + jitter, 3)
    # In place, and without reducing over the short axis: images are many and small.
    pixels *= brightness
    mean = pixels.mean()
    pixels -= mean
    pixels *= contrast
    pixels += mean
    grey = (pixels[..., 0] + pixels[..., 1] + pixels[..., 2])[..., None] / 3
    pixels -= grey
    pixels *= saturation
    pixels += grey
    pixels += 0.5
    view = np.clip(pixels, 0, 255, out=pixels).astype(np.uint8)
    return view[:, ::-1] if flip else view


def _texts_of(scene: Scene, sources: tuple[str, ...], *, at_least: int) -> list[Text]:
    texts = [text for text in scene.texts if text.source in sources]
    if len(texts) < at_least:
        raise ValueError(
            f"scene {scene.scene_id} has {len(texts)} of the {at_least} descriptions that the "
            f"views need from views.sources {sources}; it has {[t.source for t in scene.texts]}."
        )
    return texts


def _drawings_of(scene: Scene, artists: tuple[str, ...], *, at_least: int) -> list[np.ndarray]:
    drawings = [p.image for p in scene.pictures if not artists or p.artist in artists]
    if len(drawings) < at_least:
        raise ValueError(
            f"scene {scene.scene_id} has {len(drawings)} of the {at_least} drawings that the views "
            f"need from views.artists {artists}; it has {[p.artist for p in scene.pictures]}."
        )
    return drawings
