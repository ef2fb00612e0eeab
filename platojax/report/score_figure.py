"""Figures of scores: the layers of a pair beside its null, or bars of several pairs."""

import pathlib
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from platojax.evaluation.scorecard import Encoder, Scorecard, short_names

_SCORE, _NULL = "#0072b2", "#999999"  # Okabe and Ito: told apart with any colour vision
_MOST_TICKS = 24
_FORMATS = (".png", ".svg", ".pdf")


def check_format(path: pathlib.Path) -> None:
    """Raises ValueError where the path's suffix names no format that can be drawn."""
    if path.suffix not in _FORMATS:
        raise ValueError(f"{path} must end in {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}")


def draw(path: pathlib.Path, encoders: Sequence[Encoder], cards: Sequence[Scorecard]) -> None:
    """Writes the figure, in the format that the path's suffix names.

    Args:
      path: `.png`, `.svg` or `.pdf`.
      encoders: that were scored.
      cards: one for each pair.

    Raises:
      ValueError: the format is unknown.
    """
    check_format(path)
    figure = _one_pair(encoders, cards[0]) if len(cards) == 1 else _bars(encoders, cards)
    figure.savefig(path, dpi=150, bbox_inches="tight")


def _one_pair(encoders: Sequence[Encoder], card: Scorecard) -> Figure:
    panels = [_draw_null]
    if card.calibrated.table.size > 1:
        panels.insert(0, _draw_layers)
    if card.against_items:
        panels.append(_draw_against_items)
    if card.against_k:
        panels.append(_draw_against_k)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5 * columns, 4.2 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax in axes[len(panels) :]:
        ax.remove()
    for panel, ax in zip(panels, axes, strict=False):
        panel(ax, encoders, card)
    names = short_names([encoders[card.a], encoders[card.b]])
    figure.suptitle(f"{names[0]}  and  {names[1]},  N = {card.calibrated.n}")
    return figure


def _draw_layers(ax: Axes, encoders: Sequence[Encoder], card: Scorecard) -> None:
    table = card.calibrated.table
    image = ax.imshow(table, cmap="viridis", aspect="auto", vmin=min(0.0, float(table.min())))
    ax.figure.colorbar(image, ax=ax, label=_metric(card))
    i, j = card.calibrated.layers
    ax.plot(j, i, marker="o", markersize=9, mfc="none", mec="white", mew=2)
    for axis, encoder in ((ax.yaxis, encoders[card.a]), (ax.xaxis, encoders[card.b])):
        names = encoder.layer_names()
        shown = range(0, len(names), -(-len(names) // _MOST_TICKS))
        axis.set_ticks(list(shown), [names[place] for place in shown])
    ax.tick_params(axis="x", rotation=90)
    a, b = short_names([encoders[card.a], encoders[card.b]])
    ax.set_ylabel(a)
    ax.set_xlabel(b)
    ax.set_title("pairs of layers (circle: the largest)", fontsize=10)


def _draw_null(ax: Axes, encoders: Sequence[Encoder], card: Scorecard) -> None:
    result, interval = card.calibrated, card.interval
    ax.hist(result.null, bins=20, color=_NULL, label=f"{result.num_permutations} wrong pairings")
    ax.axvline(result.threshold, color=_NULL, ls="--", label="threshold, alpha .05")
    ax.axvline(result.score, color=_SCORE, lw=2, label=f"score {result.score:.3f}")
    if interval:
        label = f"{interval.level:.0%} interval"
        ax.axvspan(interval.low, interval.high, color=_SCORE, alpha=0.2, label=label)
    ax.set_xlabel(_metric(card))
    ax.set_ylabel("wrong pairings")
    ax.set_title(f"against chance: p = {result.p_value:.4f}", fontsize=10)
    ax.legend(fontsize=8)


def _draw_against_items(ax: Axes, encoders: Sequence[Encoder], card: Scorecard) -> None:
    points = card.against_items or ()
    ns = [point.n for point in points]
    ax.errorbar(
        ns,
        [point.mean for point in points],
        [point.spread or 0 for point in points],
        color=_SCORE,
        marker="o",
        capsize=3,
        label="mean and spread of subsets",
    )
    _draw_chance(ax, ns, [point.chance for point in points])
    ax.set_xlabel("items N")
    ax.set_title("against the number of items", fontsize=10)


def _draw_against_k(ax: Axes, encoders: Sequence[Encoder], card: Scorecard) -> None:
    points = card.against_k or ()
    ks = [point.k for point in points]
    ax.plot(ks, [point.score for point in points], color=_SCORE, marker="o", label="score")
    _draw_chance(ax, ks, [point.chance for point in points])
    ax.set_xlabel("neighbours k")
    ax.set_title("against the number of neighbours", fontsize=10)


def _draw_chance(ax: Axes, at: Sequence[int], chance: Sequence[float | None]) -> None:
    if all(level is not None for level in chance):
        ax.plot(at, np.array(chance, float), color=_NULL, ls="--", label="chance")
    ax.set_xscale("log", base=2)
    ax.set_xticks(at, [str(value) for value in at])
    ax.set_ylim(bottom=0)
    ax.legend(fontsize=8)


def _bars(encoders: Sequence[Encoder], cards: Sequence[Scorecard]) -> Figure:
    names = short_names(encoders)
    figure = Figure(figsize=(8, 1.2 + 0.4 * len(cards)), layout="constrained")
    ax = figure.subplots()
    places = np.arange(len(cards))[::-1]
    scores = np.array([card.calibrated.score for card in cards])
    ax.barh(places, scores, color=_SCORE, alpha=0.8, height=0.6)
    for place, card in zip(places, cards, strict=True):
        if card.interval:
            half = (card.interval.high - card.interval.low) / 2
            ax.errorbar(card.interval.score, place, xerr=half, ecolor="black", capsize=3)
        # Chance pair by pair: for most metrics it is the mean of the pair's own null.
        for level, color, style in (
            (card.calibrated.threshold, "black", ":"),
            (card.calibrated.chance, _NULL, "--"),
        ):
            ax.plot([level] * 2, [place - 0.35, place + 0.35], color=color, ls=style)
    ax.set_yticks(places, [f"{names[card.a]} ~ {names[card.b]}" for card in cards], fontsize=8)
    interval = cards[0].interval
    ends = f"ends of bars: {interval.level:.0%} interval, " if interval else ""
    ax.set_xlabel(
        f"{_metric(cards[0])}, N = {cards[0].calibrated.n}  "
        f"({ends}dots: threshold of the null, dashes: chance)"
    )
    return figure


def _metric(card: Scorecard) -> str:
    result = card.calibrated
    return result.metric if result.k is None else f"{result.metric}, k = {result.k}"
