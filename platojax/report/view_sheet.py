"""A sheet of views: what each arm is shown of some scenes, texts and pictures side by side."""

import dataclasses
import pathlib
import textwrap
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

_SUFFIXES = (".png", ".pdf", ".svg")
_WIDTH, _LEFT, _GAP = 12.0, 2.0, 0.1  # inches
_TITLE, _LINE, _PICTURE = 0.5, 0.17, 1.15  # inches
_LETTERS = 118  # of a line
_TITLE_LETTERS = 150


@dataclasses.dataclass(frozen=True)
class Block:
    """What one arm is shown.

    Attributes:
      title: above it.
      rows: the id of each scene, and its views: texts, or `[H, W, 3]` uint8, or frames of a clip:
        `[frames, H, W, 3]`.
    """

    title: str
    rows: Sequence[tuple[str, Sequence[str | np.ndarray]]]


def check_suffix(path: pathlib.Path) -> None:
    """Raises ValueError where the path's suffix names no format that can be drawn."""
    if path.suffix not in _SUFFIXES:
        raise ValueError(f"--out {path} must end in {', '.join(_SUFFIXES)}.")


def draw_sheet(path: pathlib.Path, blocks: Sequence[Block]) -> None:
    """Writes the sheet, in the format that the path's suffix names."""
    height = sum(_TITLE + sum(_height(cells) for _, cells in block.rows) for block in blocks)
    figure = Figure(figsize=(_WIDTH, height))

    def write(x: float, y: float, text: str, **style: Any) -> None:
        # Captions may have dollar signs.
        figure.text(x / _WIDTH, y / height, text, va="top", parse_math=False, **style)

    y = height
    for block in blocks:
        title = textwrap.fill(block.title, _TITLE_LETTERS)
        write(_GAP, y - _GAP, title, size=9, weight="bold")
        y -= _TITLE
        for scene_id, cells in block.rows:
            write(_GAP, y - _GAP, textwrap.fill(scene_id, 26), size=7, color="#555555")
            x, line = _LEFT, y - _GAP
            squares = sum(len(cell) if _is_clip(cell) else 1 for cell in cells)
            side = min(_PICTURE, (_WIDTH - _LEFT) / squares) - _GAP
            for cell in cells:
                if isinstance(cell, str):
                    lines = _lines(cell)
                    write(x, line, "\n".join(lines), size=8)
                    line -= _LINE * len(lines)
                else:
                    frames = cell if _is_clip(cell) else cell[None]
                    width = side * len(frames)
                    box = (x / _WIDTH, (y - _GAP - side) / height, width / _WIDTH, side / height)
                    axes = figure.add_axes(box)
                    axes.imshow(np.concatenate(frames, axis=1))
                    axes.set_axis_off()
                    x += width + _GAP
            y -= _height(cells)
    with warnings.catch_warnings():
        # No font has the letters of all languages; the terminal shows them.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(path, dpi=150)


def _is_clip(cell: str | np.ndarray) -> bool:
    return not isinstance(cell, str) and cell.ndim == 4


def _lines(text: str) -> list[str]:
    return textwrap.wrap(text, _LETTERS, subsequent_indent=" " * 8) or [""]


def _height(cells: Sequence[str | np.ndarray]) -> float:
    texts = sum(len(_lines(cell)) for cell in cells if isinstance(cell, str))
    return 2 * _GAP + _LINE * texts if texts else _PICTURE
