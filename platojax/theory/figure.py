"""The figure of docs/theory.md: bound, phase change, training, counter-examples."""

import pathlib
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

# Okabe and Ito's colours, told apart with any colour vision.
_BLUE, _ORANGE, _GREEN, _RED, _GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#777777"
_CEILING = 2.0  # the residual per dimension of features that have nothing in common


def save_figure(results: dict[str, Any], path: pathlib.Path) -> None:
    """Draws the results of `standard.run_standard_set` to `path`."""
    # Figure, not pyplot: a library must not touch the process's backend and open figures.
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
    figure = Figure(figsize=(10.5, 8.6), layout=layout)
    grid = figure.add_gridspec(2, 2)
    _bound(figure.add_subplot(grid[0, 0]), results)
    phase = grid[0, 1].subgridspec(2, 1, height_ratios=(3, 2))
    upper = figure.add_subplot(phase[0])
    _phase_change(upper, figure.add_subplot(phase[1], sharex=upper), results)
    _training(figure.add_subplot(grid[1, 0]), results)
    _counter_examples(figure.add_subplot(grid[1, 1]), results)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def _bound(axes: Axes, results: dict[str, Any]) -> None:
    sweep = results["nuisance_sweep"]
    axes.loglog(sweep["weight"], sweep["davis_kahan"], ":", color=_GREY, label="Davis-Kahan")
    axes.loglog(sweep["weight"], sweep["bound"], "--", color=_ORANGE, label="bound from the loss")
    axes.loglog(sweep["weight"], sweep["residual"], color=_BLUE, label="closed form")
    trained = [row for row in results["rows"] if row["name"].startswith("nuisance ")]
    axes.plot(
        [row["nuisance_weight"] for row in trained],
        [max(r["observation"] for r in row["trained_residual"]) for row in trained],
        "o",
        color=_RED,
        label="trained",
    )
    axes.axhline(_CEILING, color="black", linewidth=0.8, label="nothing in common")
    axes.set_ylim(1e-6, 1e3)
    axes.set(
        title="a  Bad views, bounded",
        xlabel="nuisance weight a",
        ylabel="residual between modalities, per dimension",
    )
    axes.legend(loc="lower right", frameon=False)


def _phase_change(upper: Axes, lower: Axes, results: dict[str, Any]) -> None:
    sweep = results["phase_sweep"]
    weight = np.asarray(sweep["weight"])
    dim = len(sweep["scene_eigenvalues"]) - 1
    for i, value in enumerate(sweep["scene_eigenvalues"][:dim]):
        label = rf"scene: $(1 - a)\,\lambda_i$, i = 1 .. {dim}" if i == 0 else None
        upper.plot(weight, (1 - weight) * value, color=_BLUE, linewidth=1.2, label=label)
    for j, value in enumerate(sweep["nuisance_eigenvalues"]):
        label = r"nuisance: $a\,\nu_j$" if j == 0 else None
        upper.plot(weight, weight * value, color=_RED, linewidth=1.2, label=label)
    lower.plot(weight, sweep["residual"], color="black")
    for axes in (upper, lower):
        for change in sweep["changes"]:
            axes.axvline(change, color=_GREY, linewidth=0.8, linestyle=":")
    upper.tick_params(labelbottom=False)
    upper.set_ylim(0, 0.95)
    upper.set(title="b  Independent nuisance: a phase change", ylabel="eigenvalue")
    upper.legend(loc="upper center", ncols=2, edgecolor="none", framealpha=1)
    lower.set(xlabel="nuisance weight a", ylabel="residual", xlim=(0, weight[-1]))


def _training(axes: Axes, results: dict[str, Any]) -> None:
    styles = {"0": (_GREEN, "good views"), "0.1": (_ORANGE, "a = 0.1"), "0.3": (_RED, "a = 0.3")}
    for key, (color, label) in styles.items():
        curve = results["training"][key]
        # Step 0 has no place on a logarithmic axis.
        steps = curve["steps"][1:]
        axes.loglog(steps, curve["residual"][1:], color=color, linewidth=1.2)
        axes.loglog(steps, np.max(curve["bound"][1:], axis=1), "--", color=color, linewidth=1)
        axes.plot([], [], color=color, label=label)
        if curve["predicted"] > 1e-12:
            axes.plot(steps[-1] * 1.25, curve["predicted"], "<", color=color, markersize=7)
    axes.plot([], [], "--", color=_GREY, label="bound")
    axes.plot([], [], "<", color=_GREY, label="closed form")
    axes.set_ylim(1e-7, 1e3)
    axes.set(
        title="c  During training",
        xlabel="step",
        ylabel="residual between modalities, per dimension",
    )
    axes.legend(loc="lower left", frameon=False)


def _counter_examples(axes: Axes, results: dict[str, Any]) -> None:
    rows = [
        row
        for row in results["rows"]
        if row["objective"] == "whitening" and row["encoder"] == "tabular"
    ]
    rows = [row for row in rows if not row["name"].startswith(("nuisance", "independent"))][::-1]
    for y, row in enumerate(rows):
        color = _RED if row["name"].startswith("!") else _BLUE
        for level, marker in (("observation", "o"), ("scene", "x")):
            values = [residual[level] for residual in row["trained_residual"]]
            axes.plot(values, [y] * len(values), marker, color=color, markersize=6)
    axes.plot([], [], "o", color=_GREY, label="observations of one scene")
    axes.plot([], [], "x", color=_GREY, label="scene means")
    axes.plot([], [], "s", color=_RED, label="counter-example")
    axes.axvline(_CEILING, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row["name"].removeprefix("! ") for row in rows])
    axes.set_xlim(-0.05, 2.05)
    axes.set(
        title="d  Who agrees, and who does not",
        xlabel="residual of trained encoders, each of 3 seeds",
    )
    axes.legend(loc="upper right", frameon=False)
