"""The tables and figures of docs/results/multi30k.md, from its raw results alone.

    python tools/draw_multi30k.py docs/results/multi30k

Prints Markdown tables, and writes `layers.png`, `ablations.png` and `watched.png` beside the raw
results. Scores of finished runs against samples are drawn by
`platojax scaling RESULTS/points.json --plot FIGURE`.
"""

import argparse
import json
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

TARGETS = ("effnet_lite0", "open_nsfw", "minilm")
LAYERS = ("tokens", "block_0", "block_1", "embedding", "last_token")
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
GREY = "#777777"

Run = Mapping[str, Any]


def read(results: pathlib.Path, stage: str) -> Any:
    """All runs of a stage, or what else is in the file; none where it was not collected."""
    path = results / f"{stage}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def setting(run: Run) -> str:
    """What differs from the config of the main runs."""
    shown = {name.split(".")[-1]: value for name, value in run["overrides"].items()}
    for follows in ("group_size", "rows", "mlp_dim", "projector_hidden"):
        shown.pop(follows, None)
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def by(runs: Iterable[Run], *names: str) -> dict[tuple[Any, ...], list[Run]]:
    """Runs that agree in these fields."""
    found: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        found.setdefault(tuple(run[name] for name in names), []).append(run)
    return found


def score(run: Run, target: str, layer: str) -> float:
    """Of one layer."""
    return run["scores"][target][layer]


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds."""
    mean = short(statistics.mean(values))
    return f"{mean} ± {short(statistics.stdev(values))}" if len(values) > 1 else mean


def short(value: float, sign: str = "") -> str:
    """Four digits, without the 0 before them."""
    return f"{value:{sign}.4f}".replace("0.", ".", 1)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """In Markdown."""
    print(f"\n**{title}**\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def print_tuning(runs: Sequence[Run]) -> None:
    """Each trial, by the embedding."""
    rows = []
    for run in runs:
        scores = [short(score(run, target, "embedding")) for target in TARGETS]
        rows.append((run["arm"], setting(run), *scores))
    rows.sort(key=lambda row: (row[0], -float(row[-1])))
    print_table("Tuning", ("arm", "setting", *TARGETS), rows)


def print_layers(runs: Sequence[Run], samples: int) -> None:
    """What pooling and the choice of a layer do."""
    rows = []
    for (arm, size), own in sorted(by(runs, "arm", "samples").items()):
        if size == samples and own[0]["scores"]:
            for layer in LAYERS:
                values = [spread([score(run, target, layer) for run in own]) for target in TARGETS]
                rows.append((arm, layer, *values))
    print_table(f"Layers at {samples:,} samples", ("arm", "layer", *TARGETS), rows)


def draw_layers(path: pathlib.Path, runs: Sequence[Run], samples: int) -> None:
    """A panel a target, an arm a colour, a seed a point."""
    figure = Figure(figsize=(12, 4), layout="constrained")
    panels = figure.subplots(1, len(TARGETS))
    arms = [
        (arm, own)
        for (arm, size), own in by(runs, "arm", "samples").items()
        if size == samples and own[0]["scores"]
    ]
    for ax, target in zip(panels, TARGETS, strict=True):
        for color, (arm, own) in zip(COLORS, arms, strict=False):
            means = [statistics.mean(score(run, target, layer) for run in own) for layer in LAYERS]
            ax.plot(LAYERS, means, color=color, marker="o", label=arm)
            for run in own:
                values = [score(run, target, layer) for layer in LAYERS]
                ax.plot(LAYERS, values, ".", color=color, alpha=0.4)
        ax.set_title(f"against {target}")
        ax.tick_params(axis="x", rotation=30)
        ax.set_ylim(bottom=0)
    panels[0].set_ylabel(f"mutual 10-NN, {samples:,} samples")
    _save(figure, path)


def draw_watched(path: pathlib.Path, rows: Sequence[Run]) -> None:
    """A panel a target, an arm a colour: the scores of one run while it trains."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for ax, target in zip(panels, TARGETS[:2], strict=True):  # MiniLM is not watched
        for color, ((arm,), own) in zip(COLORS, by(rows, "arm").items(), strict=False):
            scores = [row[f"{target}/score"] for row in own]
            ax.plot([row["samples"] for row in own], scores, color=color, marker=".", label=arm)
        ax.axhline(rows[0][f"{target}/chance"], color=GREY, linestyle=":", linewidth=1)
        ax.set_title(f"against {target}")
        ax.set_xlabel("samples")
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel("mutual 10-NN of the embedding")
    _save(figure, path)


def _save(figure: Figure, path: pathlib.Path) -> None:
    """With what all figures have; a legend where the lines of a panel have names."""
    for ax in figure.axes:
        ax.spines[["top", "right"]].set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=130)


def by_setting(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs that have the same changed."""
    groups = by([dict(run, setting=setting(run)) for run in runs], "setting")
    return {name: own for (name,), own in groups.items()}


def print_ablations(groups: Mapping[str, Sequence[Run]], reference: Sequence[Run]) -> None:
    """The embedding of the good arm, one setting changed."""
    rows = [("as the main runs", *_embedding(reference))]
    rows += [(name, *_embedding(own)) for name, own in groups.items()]
    print_table("Ablations", ("changed", *TARGETS), rows)


def _embedding(runs: Sequence[Run]) -> list[str]:
    return [spread([score(run, target, "embedding") for run in runs]) for target in TARGETS]


def draw_ablations(
    path: pathlib.Path, groups: Mapping[str, Sequence[Run]], reference: Sequence[Run]
) -> None:
    """A panel a target, a setting a row, a seed a point; the line is the main runs' mean."""
    figure = Figure(figsize=(12, 1.5 + 0.3 * len(groups)), layout="constrained")
    panels = figure.subplots(1, len(TARGETS), sharey=True)
    for ax, target in zip(panels, TARGETS, strict=True):
        mean = statistics.mean(score(run, target, "embedding") for run in reference)
        ax.axvline(mean, color=GREY, linestyle="--", linewidth=1)
        for name, own in groups.items():
            values = [score(run, target, "embedding") for run in own]
            ax.plot(values, [name] * len(values), ".", color=COLORS[0], alpha=0.5)
            ax.plot(statistics.mean(values), name, "D", color=COLORS[0])
        ax.set_title(f"against {target}")
        ax.set_xlabel("mutual 10-NN")
    panels[0].invert_yaxis()
    _save(figure, path)


def print_predictions(results: pathlib.Path, runs: Sequence[Run]) -> None:
    """What the laws of the smaller runs said of the larger, and what came."""
    measured: dict[tuple[str, str, float], list[float]] = {}
    for point in read(results, "points")["points"]:
        key = point["arm"], point["target"], point["samples"]
        measured.setdefault(key, []).append(point["score"])
    for run in runs:  # ablations of the good arm, known by their FLOPs
        for target in run["scores"]:
            key = run["arm"], target, run["flops"]
            measured.setdefault(key, []).append(score(run, target, "embedding"))
    rows = []
    for one in read(results, "predictions"):
        size = one[one["axis"]]
        found = measured.get((one["arm"], one["target"], size), [])
        if len(found) > 1 and one["target"] in TARGETS:
            law, predicted = one["law"], one["predicted"]
            sizes = "width 256", "width 128"  # known by their FLOPs
            if one["axis"] == "samples":
                sizes = f"{size:,.0f} samples", f"{law['fitted'][1]:,.0f}"
            error = short(statistics.mean(found) - predicted, "+")
            start = (one["arm"], *sizes, one["target"], law["form"])
            rows.append((*start, short(predicted), spread(found), error))
    columns = ("arm", "size", "from up to", "against", "law", "predicted", "measured", "difference")
    print_table("Predictions", columns, rows)


def print_rotation(results: pathlib.Path) -> None:
    """English into German by one rotation."""
    rows = []
    for (arm, captions), own in by(read(results, "rotation"), "arm", "captions").items():
        recall = [run["retrieval"]["recall_xy"]["1"] for run in own]
        ten = [run["retrieval"]["recall_xy"]["10"] for run in own]
        residual = [run["residual"] for run in own]
        rows.append((arm, captions, *(spread(values) for values in (residual, recall, ten))))
    print_table("One rotation", ("arm", "captions", "residual", "R@1", "R@10"), rows)


def print_whitened(results: pathlib.Path) -> None:
    """The best encoder and the arms beside MiniLM, as they are and whitened."""
    rows = []
    for (arm, captions, target), own in by(
        read(results, "whitened"), "arm", "captions", "target"
    ).items():
        scores = (spread([row[name] for row in own]) for name in ("as it is", "whitened"))
        rows.append((arm, captions, target, *scores))
    print_table("Whitened", ("encoder", "captions", "against", "as it is", "whitened"), rows)


def main() -> None:
    """Tables and figures of everything that is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=pathlib.Path)
    results = parser.parse_args().results
    if not (results / "points.json").exists():
        parser.error(f"{results} has no points.json; make it with study_multi30k.py collect")
    runs = read(results, "main")
    if tuning := read(results, "tuning"):
        print_tuning(tuning)
    # The largest size that all arms have: masks have no larger ones.
    if samples := max((run["samples"] for run in runs if run["arm"] == "bad_mask"), default=0):
        print_layers(runs, samples)
        draw_layers(results / "layers.png", runs, samples)
    if ablations := read(results, "ablations"):
        size = ablations[0]["samples"]
        reference = [run for run in runs if (run["arm"], run["samples"]) == ("good", size)]
        changed = by_setting([*ablations, *read(results, "batches")])
        print_ablations(changed, reference)
        draw_ablations(results / "ablations.png", changed, reference)
    print_predictions(results, ablations)
    if captions := read(results, "captions"):
        rows = [
            (data.removeprefix("multi30k_"), *_embedding(own))
            for (data,), own in by(captions, "data").items()
        ]
        size = captions[0]["samples"]
        five = [run for run in runs if (run["arm"], run["samples"]) == ("good", size)]
        print_table("Captions per scene", ("captions", *TARGETS), [*rows, ("5", *_embedding(five))])
    print_rotation(results)
    print_whitened(results)
    if watched := read(results, "watched"):
        draw_watched(results / "watched.png", watched)


if __name__ == "__main__":
    main()
