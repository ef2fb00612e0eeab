"""Of prepared scenes, those that a view policy can use."""

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from platojax.data.mixture import Mixture, Scenes
from platojax.data.prepared import PreparedScenes
from platojax.data.scenes import MissingObservationsError, Scene, SceneStream


@dataclasses.dataclass(frozen=True, eq=False)
class UsableScenes(Sequence[Scene]):
    """Some of prepared scenes; can be pickled.

    Attributes:
      scenes: all.
      indices: of the usable ones, ascending; int64.
      lacking: how many cannot be used, by what they lack.
    """

    scenes: PreparedScenes
    indices: np.ndarray
    lacking: Mapping[str, int]

    @property
    def content_hash(self) -> str:
        """Of all scenes: which are usable follows from them and the config."""
        return self.scenes.content_hash

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        """The scene of this number among the usable ones."""
        return self.scenes[int(self.indices[index])]

    def read(self, indices: Sequence[int]) -> Sequence[Scene]:
        """See `BatchedReads`."""
        return self.scenes.read(self.indices[list(indices)].tolist())


def usable_scenes(
    scenes: Scenes,
    views: Callable[[Scene, np.random.Generator], Any],
    max_bad_fraction: float,
) -> Scenes:
    """The scenes that have the observations that views need.

    A scene is judged by its kind (`prepared.Kind`), so that one of each is looked at, and all only
    where some cannot be used.

    Args:
      scenes: prepared ones, perhaps mixed; others are returned as they are.
      views: a view policy, which raises `MissingObservationsError` where it cannot use a scene.
      max_bad_fraction: the largest share that may lack observations.

    Raises:
      ValueError: more do; the message says what they lack.
    """
    if isinstance(scenes, Mixture):
        parts = {
            name: _usable_part(part, views, max_bad_fraction) for name, part in scenes.parts.items()
        }
        return dataclasses.replace(scenes, parts=parts)
    return (
        scenes if isinstance(scenes, SceneStream) else _usable_part(scenes, views, max_bad_fraction)
    )


def _usable_part(
    scenes: Sequence[Scene],
    views: Callable[[Scene, np.random.Generator], Any],
    max_bad_fraction: float,
) -> Sequence[Scene]:
    if not isinstance(scenes, PreparedScenes):
        return scenes
    messages: dict[int, str] = {}
    lacking: collections.Counter[str] = collections.Counter()
    for number, kind in enumerate(scenes.kinds):
        try:
            views(scenes[kind.first], np.random.default_rng(0))
        except MissingObservationsError as error:
            messages[number] = str(error)
            lacking[error.lacking] += kind.scenes
    if not lacking:
        return scenes
    missing = sum(lacking.values())
    if missing > max_bad_fraction * len(scenes) or missing == len(scenes):
        counts = "; ".join(f"{count} have {what}" for what, count in lacking.most_common(5))
        raise ValueError(
            f"{missing} of {len(scenes)} scenes of {scenes.split} cannot give the views, more than "
            f"data.max_bad_fraction {max_bad_fraction:g}: {counts}. {next(iter(messages.values()))}"
            " Choose other views (those of one text need one), or raise the limit."
        )
    usable = ~np.isin(scenes.kind_of_each, list(messages))
    return UsableScenes(scenes, np.flatnonzero(usable), dict(lacking))


def count_lacking(scenes: Scenes) -> Mapping[str, int]:
    """How many scenes `usable_scenes` left out, by what they lack."""
    if isinstance(scenes, Mixture):
        return sum(
            (collections.Counter(count_lacking(part)) for part in scenes.parts.values()),
            collections.Counter(),
        )
    return scenes.lacking if isinstance(scenes, UsableScenes) else {}
