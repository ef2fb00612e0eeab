"""Sequence packing: several short texts in one row of tokens, so that padding is not computed on.

Scenes are packed in groups of a fixed size and never across groups: what lies on one device stays
there, and each scene's embedding is still a function of that scene alone. Rows may be longer than
the longest text: two texts of 20 tokens do not fit in 32, but three do in 64.
"""

import dataclasses

import numpy as np
from ml_collections import ConfigDict

MIN_TOKENS = 3  # what a text keeps at least: both ends and a token


@dataclasses.dataclass(frozen=True)
class Packing:
    """How the texts of a batch are packed.

    Attributes:
      group_size: G, scenes of a group; must divide the scenes that a device holds.
      rows: R, rows of a group. Texts that do not fit in R * L tokens are cut, so leave some room.
      row_length: L, tokens of a row; at least those of the longest text.
    """

    group_size: int
    rows: int
    row_length: int

    def check(self, max_length: int) -> None:
        """Raises ValueError where groups could not be packed so, or packing would gain nothing.

        Args:
          max_length: tokens of the longest text.
        """
        if self.group_size < 1:
            raise ValueError(
                f"packing.group_size must be at least 1 (all fields of packing 0 for none); got "
                f"{self.group_size}."
            )
        if self.row_length < max_length:
            raise ValueError(
                f"packing.row_length must be at least encoder.max_length {max_length}, so that "
                f"every text fits in a row; got {self.row_length}."
            )
        least = -(-self.group_size // (self.row_length // MIN_TOKENS))
        most = self.group_size * max_length // self.row_length
        if not least <= self.rows <= most:
            raise ValueError(
                f"packing.rows must lie in [{least}, {most}] for packing.group_size "
                f"{self.group_size}, packing.row_length {self.row_length} and encoder.max_length "
                f"{max_length}; got {self.rows}. Fewer cannot hold {MIN_TOKENS} tokens of each "
                "text, more have no less padding than without packing."
            )

    def shapes(self, num_views: int, num_scenes: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the arrays of `pack`, all int32.

        Raises:
          ValueError: if the groups do not divide the scenes.
        """
        if num_scenes % self.group_size:
            raise ValueError(
                f"packing.group_size {self.group_size} must divide the {num_scenes} scenes of a "
                "batch."
            )
        groups = (num_views, num_scenes // self.group_size)
        return {
            "tokens": (*groups, self.rows, self.row_length),
            "segments": (*groups, self.rows, self.row_length),
            "cut": (*groups, self.group_size),
        }

    def pack(self, tokens: np.ndarray, pad_id: int) -> dict[str, np.ndarray]:
        """Packs the texts of V views of N scenes.

        By first fit, the longest first; a group is packed the same whatever else is in the batch.
        Where a group does not fit, its longest texts are cut to the greatest common length with
        which it does. A cut text keeps its last token, which marks the end.

        Args:
          tokens: `[V, N, T]` int32, each text padded at the right.
          pad_id: the token that marks padding.

        Returns:
          * `tokens` `[V, N / G, R, L]` int32.
          * `segments` `[V, N / G, R, L]` int32: which scene of its group a token belongs to, 0 to
            G - 1; -1 on padding. A text lies in one row, without gaps.
          * `cut` `[V, N / G, G]` int32: how many tokens each text lost.

        Raises:
          ValueError: see `check` and `shapes`.
        """
        num_views, num_scenes, max_length = tokens.shape
        self.check(max_length)
        shapes = self.shapes(num_views, num_scenes)
        texts = tokens.reshape(-1, self.group_size, max_length)
        full = np.sum(texts != pad_id, axis=2)
        kept, row, start = full.copy(), np.zeros_like(full), np.zeros_like(full)
        left = np.arange(len(texts))  # the groups that do not fit yet
        for longest in range(max_length, MIN_TOKENS - 1, -1):
            kept[left] = np.minimum(full[left], longest)
            row[left], start[left], fits = _first_fit(kept[left], self.rows, self.row_length)
            left = left[~fits]
            if len(left) == 0:
                break

        place = np.arange(max_length)
        cut = full - kept
        ends = np.take_along_axis(texts, np.maximum(full - 1, 0)[..., None], axis=2)
        texts = np.where((cut > 0)[..., None] & (place == kept[..., None] - 1), ends, texts)
        group, scene, token = np.nonzero(place < kept[..., None])
        target = group, row[group, scene], start[group, scene] + token
        packed = np.full((len(texts), self.rows, self.row_length), pad_id, np.int32)
        segments = np.full_like(packed, -1)
        packed[target] = texts[group, scene, token]
        segments[target] = scene
        arrays = {"tokens": packed, "segments": segments, "cut": cut.astype(np.int32)}
        return {name: array.reshape(shapes[name]) for name, array in arrays.items()}


def make_packing(config: ConfigDict) -> Packing | None:
    """The packing that a run's config names: the fields of `Packing`, all 0 for none.

    Args:
      config: of the run; those of images have no `packing`.

    Raises:
      ValueError: if it is impossible, or the run is not of texts.
    """
    if "packing" not in config:
        return None
    fields = {field.name for field in dataclasses.fields(Packing)}
    if set(config.packing) != fields:
        raise ValueError(
            f"packing needs the fields {sorted(fields)}; got {sorted(config.packing)}."
        )
    if config.modality != "text":
        raise ValueError(f"packing is for text; modality is {config.modality!r}. Remove it.")
    if not any(config.packing.values()):
        return None
    packing = Packing(**config.packing)
    packing.check(config.encoder.max_length)
    return packing


def _first_fit(
    lengths: np.ndarray, rows: int, row_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First-fit decreasing in all groups at once.

    Args:
      lengths: `[B, G]` tokens of each text.
      rows: of each group.
      row_length: tokens of each row.

    Returns:
      The row `[B, G]` and the place in it `[B, G]` where each text starts, and whether the group
      fits `[B]`; where it does not, the first two say nothing.
    """
    row, start = np.zeros_like(lengths), np.zeros_like(lengths)
    used = np.zeros((len(lengths), rows), lengths.dtype)
    fits = np.ones(len(lengths), bool)
    group = np.arange(len(lengths))
    for scene in np.argsort(-lengths, axis=1, kind="stable").T:
        needed = lengths[group, scene]
        room = used + needed[:, None] <= row_length
        first = room.argmax(axis=1)
        fits &= room[group, first]
        row[group, scene], start[group, scene] = first, used[group, first]
        used[group, first] += needed
    return row, start, fits
