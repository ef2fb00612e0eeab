"""Views: which observations make a positive pair.

A view policy is a function `(scene, generator) -> [V, ...]`; where the views are of several sizes,
it gives a tuple of such arrays, the global views first. One of texts also works in two steps, of
which the second is for many scenes together, see `text_views.TextViews`. All choices come from the
generator, which the pipeline keys by the index of the element, so they do not depend on workers or
on resumption.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from platojax.data.image_views import MultiCrop, TwoCrops, TwoPictures
from platojax.data.observations import TextCodec
from platojax.data.scenes import Scene
from platojax.data.text_views import OneText, PrefixContinuation, TwoMasks, TwoSpans, TwoTexts
from platojax.data.tokenizer import Tokenizer
from platojax.data.video_views import TwoSegments

Element = np.ndarray | tuple[np.ndarray, ...]
ViewPolicy = Callable[[Scene, np.random.Generator], Element]

TEXT_POLICIES: dict[str, Callable[..., ViewPolicy]] = {
    "two_texts": TwoTexts,
    "one_text": OneText,
    "two_masks": TwoMasks,
    "two_spans": TwoSpans,
    "prefix_continuation": PrefixContinuation,
}
IMAGE_POLICIES: dict[str, Callable[..., Any]] = {
    "two_pictures": TwoPictures,
    "two_crops": TwoCrops,
    "multi_crop": MultiCrop,
}
VIDEO_POLICIES: dict[str, Callable[..., Any]] = {"two_segments": TwoSegments}
_SEEN = IMAGE_POLICIES | VIDEO_POLICIES


def make_views(config: ConfigDict, encoder: ConfigDict, tokenizer: Tokenizer) -> ViewPolicy:
    """Builds the view policy that an arm's `views` config names.

    Args:
      config: `name` (of one of the policies above) and its fields.
      encoder: the encoder's config: its `max_length` or `image_size` is that of the views.
      tokenizer: of the text policies.

    Raises:
      ValueError: if there is no policy of that name, or a field is impossible.
    """
    if config.name in TEXT_POLICIES:
        codec = TextCodec(tokenizer, encoder.max_length)
        return TEXT_POLICIES[config.name](codec, **_fields(config))
    if config.name in _SEEN:
        return _SEEN[config.name](size=encoder.image_size, **_fields(config))
    names = [*TEXT_POLICIES, *_SEEN]
    raise ValueError(f"views.name must be one of {names}; got {config.name!r}.")


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
    if config.name in TEXT_POLICIES:
        count = 1 if config.name == "one_text" else 2
        return np.zeros((count, 1, encoder.max_length), np.int32)
    if config.name in _SEEN:
        return _SEEN[config.name](size=encoder.image_size, **_fields(config)).example()
    raise ValueError(f"views.name {config.name!r} names no policy; see data/views.py.")


def _fields(config: ConfigDict) -> dict[str, Any]:
    """Of a policy; JSON turns tuples into lists."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in config.items() if k != "name"}
