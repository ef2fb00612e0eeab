"""The figure of a map: what it is worth for few to many pairs, or from one seed to the next."""

import pathlib
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

_COLORS = ("#0072b2", "#d55e00", "#009e73")  # Okabe and Ito: told apart with any colour vision


def draw(path: pathlib.Path, document: Mapping[str, Any]) -> None:
    """Writes the figure of what `platojax rotate --json` writes.

    Args:
      path: `.png`, `.svg` or `.pdf`.
      document: with `fits` and `against_pairs`.

    Raises:
      ValueError: there is nothing to draw, because no items were held out.
    """
    curve = document["against_pairs"]
    figure = Figure(figsize=(6, 4), layout="constrained")
    ax = figure.subplots()
    if curve:
        points = [(point["pairs"], one) for point in curve for one in point["repetitions"]]
        ax.set_xscale("log", base=2)
        ax.set_xlabel("pairs")
    else:
        points = [(fit["seed"], fit["transfer"]) for fit in document["fits"] if "transfer" in fit]
        ax.set_xlabel("seed")
    if not points:
        raise ValueError("there is nothing to draw: no paired items were held out")
    series = (
        ("FOSCTTM", lambda one: one["retrieval"]["foscttm"]),
        ("R@1", lambda one: one["retrieval"]["recall_xy"]["1"]),
        ("cosine", lambda one: one["cosine"]),
    )
    for (name, value), color in zip(series, _COLORS, strict=True):
        ax.plot(
            [at for at, _ in points],
            [value(one) for _, one in points],
            "o",
            color=color,
            label=name,
        )
    ax.set_ylim(0, 1)
    ax.set_title(f"{document['method']}, on {points[0][1]['retrieval']['n']} held-out items")
    ax.legend()
    figure.savefig(path, dpi=150)
