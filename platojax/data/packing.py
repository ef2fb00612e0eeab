"""Sequence packing: several short texts in one row of tokens, so that padding is not computed on.

Scenes are packed in groups of a fixed size and never across groups: what lies on one device stays
there, and each scene's embedding is still a function of that scene alone. Rows may be longer than
the longest text: two texts of 20 tokens do not fit in 32, but three do in 64.
"""

import numpy as np

MIN_TOKENS = 3  # what a text keeps at least: both ends and a token


def pack_texts(
    tokens: np.ndarray, *, pad_id: int, group_size: int, rows: int, row_length: int
) -> dict[str, np.ndarray]:
    """Packs the texts of V views of N scenes, in groups of G scenes, into R rows of L tokens.

    By first fit, the longest first; equal tokens are packed equally, whatever else is in the batch.
    Where a group does not fit, its longest texts are cut to the greatest common length with which
    it does. A cut text keeps its last token, which marks the end.

    Args:
      tokens: `[V, N, T]` int32, each text padded at the right with `pad_id`.
      pad_id: the token that marks padding.
      group_size: G.
      rows: R.
      row_length: L, at least T.

    Returns:
      * `tokens` `[V, N / G, R, L]` int32.
      * `segments` `[V, N / G, R, L]` int32: which scene of its group a token belongs to, 0 to
        G - 1; -1 on padding. A text lies in one row, without gaps.
      * `cut` `[V, N / G, G]` int32: how many tokens each text lost because its group did not fit.

    Raises:
      ValueError: if the groups do not divide the scenes, or see `check_packing`.
    """
    num_views, num_scenes, max_length = tokens.shape
    check_packing(group_size, rows, row_length, max_length)
    if num_scenes % group_size:
        raise ValueError(
            f"packing.group_size {group_size} must divide the {num_scenes} scenes of a batch."
        )
    texts = tokens.reshape(-1, group_size, max_length)
    full = np.sum(texts != pad_id, axis=2)
    kept, row, start = full.copy(), np.zeros_like(full), np.zeros_like(full)
    left = np.arange(len(texts))  # the groups that do not fit yet
    for longest in range(max_length, MIN_TOKENS - 1, -1):
        shortened = np.minimum(full[left], longest)
        row[left], start[left], fits = _first_fit(shortened, rows, row_length)
        kept[left] = shortened
        left = left[~fits]
        if len(left) == 0:
            break

    place = np.arange(max_length)
    cut = kept < full
    ends = np.take_along_axis(texts, np.maximum(full - 1, 0)[..., None], axis=2)
    texts = np.where(cut[..., None] & (place == kept[..., None] - 1), ends, texts)
    group, scene, token = np.nonzero(place < kept[..., None])
    target = group, row[group, scene], start[group, scene] + token
    shape = (len(texts), rows, row_length)
    packed = np.full(shape, pad_id, np.int32)
    segments = np.full(shape, -1, np.int32)
    packed[target] = texts[group, scene, token]
    segments[target] = scene
    groups = (num_views, num_scenes // group_size)
    return {
        "tokens": packed.reshape(*groups, rows, row_length),
        "segments": segments.reshape(*groups, rows, row_length),
        "cut": (full - kept).astype(np.int32).reshape(*groups, group_size),
    }


def check_packing(group_size: int, rows: int, row_length: int, max_length: int) -> None:
    """Raises ValueError where groups could not be packed so, or packing would gain nothing.

    Args:
      group_size: scenes of a group.
      rows: of a group.
      row_length: tokens of a row.
      max_length: tokens of the longest text.
    """
    if group_size < 1:
        raise ValueError(f"packing.group_size must be at least 1; got {group_size}.")
    if row_length < max_length:
        raise ValueError(
            f"packing.row_length must be at least encoder.max_length {max_length}, so that every "
            f"text fits in a row; got {row_length}."
        )
    least = -(-group_size // (row_length // MIN_TOKENS))
    most = group_size * max_length // row_length
    if not least <= rows <= most:
        raise ValueError(
            f"packing.rows must lie in [{least}, {most}] for packing.group_size {group_size}, "
            f"packing.row_length {row_length} and encoder.max_length {max_length}; got {rows}. "
            f"Fewer cannot hold {MIN_TOKENS} tokens of each text, more have no less padding than "
            "without packing."
        )


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
