"""The figure of alignment against samples: a target a panel, an arm a colour and a marker."""

import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from platojax.evaluation.scaling import ScalingLaw

# Okabe and Ito: told apart with any colour vision.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MARKERS = "osD^vP"
_GREY = "#777777"
_BEYOND = 2.0  # a law goes on, dotted, to so many times the largest number of samples


def draw(path: pathlib.Path, document: Mapping[str, Any]) -> None:
    """Writes the figure of what `platojax scaling --json` writes.

    Args:
      path: `.png`, `.svg` or `.pdf`.
      document: with `points` and `targets`.
    """
    labels = {point["arm"]: point["label"] for point in document["points"]}
    targets = document["targets"]
    figure = Figure(figsize=(6.4 * len(targets), 4.8), layout="constrained")
    panels = figure.subplots(1, len(targets), squeeze=False)[0]
    for ax, (target, reading) in zip(panels, targets.items(), strict=True):
        _draw(ax, reading, labels)
        ax.set_title(f"against {target}")
    figure.savefig(path, dpi=150)


def _draw(ax: Axes, reading: Mapping[str, Any], labels: Mapping[str, str]) -> None:
    ax.set_xscale("log", base=2)
    for arm, by_size in reading["scores"].items():
        place = list(labels).index(arm)  # the same look in all panels
        color = _COLORS[place % len(_COLORS)]
        look: dict[str, Any] = {
            "color": color,
            "marker": _MARKERS[place % len(_MARKERS)],
            "linestyle": "none",
        }
        runs = [(int(n), score) for n, scores in by_size.items() for score in scores]
        ax.plot(*zip(*runs, strict=True), **look, alpha=0.35, markersize=4)
        means = [(int(n), np.mean(scores)) for n, scores in by_size.items()]
        ax.plot(*zip(*means, strict=True), **look, label=f"{arm}: {labels[arm]}")
        if arm in reading["laws"]:
            law = ScalingLaw(**reading["laws"][arm])
            first, last = law.fitted
            for ends, style in (((first, last), "-"), ((last, _BEYOND * last), ":")):
                samples = np.geomspace(*ends, 100)
                ax.plot(samples, law.predict(samples), color=color, linestyle=style)
    chance = reading["chance"]
    ax.axhline(chance, color=_GREY, linestyle="--", linewidth=1, label=f"chance {chance:.3f}")
    _draw_largest_ratio(ax, reading)
    ax.xaxis.set_major_locator(LogLocator(base=2))
    ax.xaxis.set_major_formatter(FuncFormatter(_short))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("training samples (scenes)")
    ax.set_ylabel("alignment")
    ax.grid(axis="y", alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(fontsize="small", frameon=False)


def _draw_largest_ratio(ax: Axes, reading: Mapping[str, Any]) -> None:
    """An arrow from the baseline to the arm that needs the fewest samples."""
    ratios = [by_cost["samples"] for by_cost in reading["ratios"].values()]
    best = max(ratios, key=lambda ratio: ratio["ratio"], default=None)
    if best is None or best["ratio"] <= 1:
        return
    ends = best["samples_a"], best["samples_b"]
    ax.annotate(
        "",
        xy=(ends[0], best["at"]),
        xytext=(ends[1], best["at"]),
        arrowprops={"arrowstyle": "->", "color": _GREY},
    )
    ax.annotate(
        f"{best['bound']} {best['ratio']:.2g} times fewer".strip(),
        xy=(math.sqrt(math.prod(ends)), best["at"]),
        xytext=(0, 4),
        textcoords="offset points",
        ha="center",
        color=_GREY,
        fontsize="small",
        bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
        zorder=5,
    )


def _short(samples: float, _: int) -> str:
    return f"{samples / 1000:.3g}k" if samples >= 1000 else f"{samples:.3g}"
