"""Line charts as inline SVG that takes the colours and the font of the page around it."""

import dataclasses
import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from platojax.report.record import Record

# Okabe and Ito's colours, told apart with any colour vision. They only mark the places: the SVG
# says var(--arm-0) and so on, and the page defines those for light and for dark.
_PALETTE = ("#0072b2", "#009e73", "#cc79a7", "#d55e00", "#e69f00", "#56b4e9")
_INK, _FAINT = "#111213", "#808182"
_FONT = "DejaVu Sans"  # comes with matplotlib; the page puts its own in its place
_SIZE = (4.2, 2.9)  # inches; small, so that the text is legible at the width of a phone


@dataclasses.dataclass(frozen=True)
class Style:
    """How an arm looks, the same everywhere on the page.

    Attributes:
      slot: number of the colour; None is the grey of controls.
      dashes: pattern of its lines; () is solid.
    """

    slot: int | None
    dashes: tuple[int, ...] = ()

    @property
    def css(self) -> str:
        """The colour, as CSS."""
        return "var(--faint)" if self.slot is None else f"var(--arm-{self.slot})"


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a chart; what is not finite is a gap.

    Attributes:
      samples: scenes seen.
      values: at each of them, or None.
      style: of the arm.
      thin: whether it is one of several seeds whose mean is also drawn.
    """

    samples: Sequence[float]
    values: Sequence[float | None]
    style: Style
    thin: bool = False


@dataclasses.dataclass(frozen=True)
class Chart:
    """A figure on the page: title, the arms in it, and the SVG (None where nothing was logged)."""

    title: str
    arms: tuple[str, ...]
    svg: Markup | None


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A column of metrics.jsonl, and how it is drawn.

    Attributes:
      name: of the column.
      title: of the chart.
      unit: label of the vertical axis.
      objective: only of arms with this objective; None for all.
      log: logarithmic axis.
      reference: a dotted line at this value.
    """

    name: str
    title: str
    unit: str
    objective: str | None = None
    log: bool = False
    reference: float | None = None


GAUSSIAN = 1.05  # what SIGReg measures on samples of a Gaussian
LOSSES = (
    Quantity("loss", "Loss of the LeJEPA arms", "loss", "lejepa", log=True),
    Quantity("prediction", "Its prediction part", "squared distance", "lejepa", log=True),
    Quantity("sigreg", "Its SIGReg part", "SIGReg statistic", "lejepa", True, GAUSSIAN),
    Quantity("loss", "Next-token loss", "nats per token", "next_token"),
)
HEALTH = (
    Quantity("spread", "Spread of the embedding", "standard deviation"),
    Quantity("effective_rank", "Effective rank of the embedding", "dimensions"),
)


def arm_styles(record: Record) -> dict[str, Style]:
    """The look of every arm: a colour each, lines of image arms dashed, controls grey."""
    styles = {}
    for i, arm in enumerate(record.trained):
        dashes = () if record.modality(arm) == "text" else (4, 2)
        if i >= len(_PALETTE):  # a colour comes again with another pattern
            dashes = (1, 1, *dashes)
        styles[arm] = Style(i % len(_PALETTE), dashes)
    controls = [a for a in (*record.text_arms, *record.image_arms) if a not in styles]
    return styles | {arm: Style(None) for arm in controls}


def alignment_chart(record: Record, items: str, title: str, chance: float) -> Chart:
    """The score of each text arm's embedding against its samples.

    Args:
      record: the experiment.
      items: name of the range of items.
      title: of the chart.
      chance: the dotted line.
    """
    styles = arm_styles(record)
    runs: dict[str, list[dict[str, Any]]] = {}
    for curve in record.scores["curves"]:
        if curve["items"] == items and curve["image"] == record.reference:
            runs.setdefault(curve["text"], []).append(curve)
    arms = tuple(arm for arm in record.trained if arm in runs)
    lines = []
    for arm in arms:
        curves = runs[arm]
        several = len(curves) > 1
        lines += [Line(c["samples"], c["scores"], styles[arm], thin=several) for c in curves]
        if several and all(c["samples"] == curves[0]["samples"] for c in curves):
            mean = np.mean([c["scores"] for c in curves], axis=0).tolist()
            lines.append(Line(curves[0]["samples"], mean, styles[arm]))
    unit = record.scores["protocol"]["metric"]
    svg = _draw(lines, title, f"score ({unit})", reference=chance, markers=True)
    return Chart(title, arms, svg)


def training_chart(record: Record, quantity: Quantity) -> Chart:
    """A logged quantity of every arm that has it, one line per seed."""
    styles = arm_styles(record)
    lines, arms = [], []
    for arm in record.trained:
        objective = record.setting(arm, "objective")["name"]
        if quantity.objective not in (None, objective):
            continue
        for seed in record.seeds(arm):
            rows = [row for row in record.metrics(arm, seed) if quantity.name in row]
            values = [row[quantity.name] for row in rows]
            if any(value is not None for value in values):
                lines.append(Line([row["samples"] for row in rows], values, styles[arm]))
                arms.append(arm)
    svg = _draw(lines, quantity.title, quantity.unit, quantity.log, quantity.reference)
    return Chart(quantity.title, tuple(dict.fromkeys(arms)), svg)


def _draw(
    lines: Sequence[Line],
    title: str,
    unit: str,
    log: bool = False,
    reference: float | None = None,
    markers: bool = False,
) -> Markup | None:
    if not lines:
        return None
    # Settings of this block only; text stays text, and ids do not change from run to run.
    with matplotlib.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "platojax", "font.family": _FONT}
    ):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.add_subplot()
        for line in lines:
            _plot(axes, line, markers)
        if reference is not None:
            axes.axhline(reference, color=_INK, linestyle=":", linewidth=1.2)
        _dress(axes, unit, log)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return _for_page(file.getvalue(), title)


def _plot(axes: Axes, line: Line, markers: bool) -> None:
    color = _FAINT if line.style.slot is None else _PALETTE[line.style.slot]
    axes.plot(
        np.asarray(line.samples) / 1000,
        np.asarray(line.values, dtype=float),
        color=color,
        dashes=line.style.dashes,
        linewidth=0.7 if line.thin else 1.8 if markers else 1.2,
        alpha=0.6 if line.thin else 1,
        marker="o" if markers and not line.thin else None,
        markersize=3.5,
    )


def _dress(axes: Axes, unit: str, log: bool) -> None:
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(numticks=6))
        axes.yaxis.set_minor_formatter(NullFormatter())
        low, high = axes.get_ylim()
        if high < 100 * low:  # powers of ten alone would leave one tick or two
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=9))
    else:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlim(left=0)
    axes.set_xlabel("scenes seen in training (thousands)", color=_INK)
    axes.set_ylabel(unit, color=_INK)
    axes.grid(axis="y", color=_FAINT, alpha=0.25, linewidth=0.8)
    axes.tick_params(which="both", color=_FAINT, labelcolor=_INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_FAINT)


def _for_page(svg: str, title: str) -> Markup:
    """Makes matplotlib's file a part of the page: no header, the page's colours, font and ids."""
    body = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.S)
    # Ids are counted from 1 in each file but must differ within the page.
    prefix = re.sub(r"\W+", "-", title.lower())
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", body)
    body = body.replace("xlink:href", "href")
    body = re.sub(rf"'{_FONT}'[^;\"]*", "var(--font)", body)
    for color, css in _page_colors():
        body = body.replace(color, css)
    width, height = (72 * inches for inches in _SIZE)
    return Markup('<svg role="img" aria-label="{}" viewBox="0 0 {:g} {:g}">{}</svg>').format(
        title, width, height, Markup(body)
    )


def _page_colors() -> list[tuple[str, str]]:
    slots = [(color, f"var(--arm-{i})") for i, color in enumerate(_PALETTE)]
    return [*slots, (_INK, "currentColor"), (_FAINT, "var(--faint)")]
