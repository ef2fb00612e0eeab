"""`platojax score`: how well encoders agree, from their features."""

import itertools
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from platojax.evaluation.comparison import short_number
from platojax.evaluation.features import Features, library_versions, read_features
from platojax.evaluation.scorecard import (
    Encoder,
    Protocol,
    Scorecard,
    load_encoders,
    rank,
    score,
    short_names,
)
from platojax.terminal import count_line


def run(
    paths: Sequence[str],
    protocol: Protocol,
    *,
    layers: Sequence[str],
    against: pathlib.Path | None,
    untrained: str | None,
    curves: bool,
    json_out: str | None,
    plot: pathlib.Path | None,
) -> None:
    """Scores every pair of encoders, or one against all in a folder; prints, writes and draws.

    Args:
      paths: of features, see `read_features`.
      protocol: how to score.
      layers: see `load_encoders`.
      against: folder with feature folders to rank by their agreement with the one of `paths`.
      untrained: features of the first encoder before its training.
      curves: whether to score fewer items and other k as well.
      json_out: file for everything as JSON; "-" for stdout, and then nothing else is printed.
      plot: file for the figure.

    Raises:
      ValueError, OSError, ImportError: features cannot be read or scored; settings do not fit.
    """
    _check_writable(json_out, plot)
    console = Console(file=sys.stderr if json_out == "-" else sys.stdout)
    if against is None:
        if len(paths) < 2:
            raise ValueError("give at least two encoders, or one and --against FOLDER")
        features = [read_features(path) for path in paths]
    else:
        if len(paths) != 1:
            raise ValueError(f"--against takes one encoder, not {len(paths)}")
        if untrained or curves:
            raise ValueError("--untrained and --curves are for encoders that are named one by one")
        features = _same_items(console, read_features(paths[0]), against)
    control = [read_features(untrained)] if untrained else []
    choices = _choices(layers, len(features), against is not None, len(control))
    encoders = load_encoders([*features, *control], protocol, choices)
    before = encoders.pop() if control else None
    if against is None:
        pairs = itertools.combinations(range(len(encoders)), 2)
        cards = [
            score(encoders, a, b, protocol, untrained=before if a == 0 else None, curves=curves)
            for a, b in pairs
        ]
    else:
        with count_line(console, "encoders", len(encoders) - 1) as show:
            cards = rank(encoders, protocol, on_progress=show)
    if json_out is not None:
        _write_json(json_out, _document(encoders, cards, protocol))
    if json_out != "-":
        table = _details(encoders, cards[0]) if len(cards) == 1 else _rows(encoders, cards)
        console.print(table)
        console.print(_protocol_line(cards[0]), markup=False)
    if plot is not None:
        from platojax.report.score_figure import draw

        draw(plot, encoders, cards)


def _choices(
    layers: Sequence[str], num_encoders: int, ranked: bool, num_controls: int
) -> list[str]:
    """The choice of layers of each encoder, and the first one's for its untrained control."""
    wanted = 2 if ranked else num_encoders
    if len(layers) not in (1, wanted):
        raise ValueError(
            f"{len(layers)} choices of layers for {num_encoders} encoders; give one, or "
            + ("one for A and one for the others" if ranked else "one each")
        )
    first, *others = layers
    if len(others) != num_encoders - 1:
        others = [layers[-1]] * (num_encoders - 1)
    return [first, *others, *[first] * num_controls]


def _same_items(console: Console, one: Features, folder: pathlib.Path) -> list[Features]:
    """The encoder, and all cached ones in the folder that are of the same items."""
    found = sorted(path.parent for path in folder.rglob("meta.json"))
    found = [path for path in found if not path.name.startswith(".")]
    others = [read_features(path) for path in found if path.resolve() != one.path.resolve()]
    if not others:
        raise ValueError(f"{folder} holds no feature folders but the encoder's own")
    if one.meta is None:
        raise ValueError(f"{one.path} does not say which items it is of; --against needs a folder")
    same = [
        other
        for other in others
        if other.meta is not None and other.meta.items_hash == one.meta.items_hash
    ]
    if not same:
        raise ValueError(f"none of the {len(others)} encoders in {folder} is of the same items")
    if len(same) < len(others):
        console.print(f"{len(others) - len(same)} of {len(others)} encoders are of other items")
    return [one, *same]


def _check_writable(json_out: str | None, plot: pathlib.Path | None) -> None:
    """A slip in a path should not cost the computation."""
    for out in (json_out, plot):
        if out not in (None, "-"):
            folder = pathlib.Path(out).parent
            if not folder.is_dir():
                raise FileNotFoundError(f"{folder} does not exist, so {out} cannot be written")
    if plot is not None and plot.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"{plot} must end in .png, .svg or .pdf")


# What is shown


def _details(encoders: Sequence[Encoder], card: Scorecard) -> Table:
    """Everything about one pair."""
    result = card.calibrated
    rows = []
    for name, index, place in zip("AB", (card.a, card.b), result.layers, strict=True):
        features = encoders[index].features
        rows.append((name, str(features.path)))
        if features.meta:
            meta = features.meta
            rows.append(("", f"{meta.encoder}; {meta.pooling}; {meta.dataset}"))
        layer = encoders[index].layers[place]
        position = f"{layer} of 0..{features.features.shape[1] - 1}"
        rows.append(
            ("  layer", f"{features.layer_name(layer)} ({position})" if features.meta else position)
        )
    rows.append(("score", f"{result.score:.4f}  (maximum over layers)"))
    if card.interval:
        ends = f"{card.interval.low:.4f} to {card.interval.high:.4f}"
        name = f"{card.interval.level:.0%} interval"
        rows.append((name, f"{ends}  (at these layers, over other items)"))
    matched = card.width_matched
    rows += [
        ("chance", f"{result.chance:.4f}"),
        ("p-value", f"{result.p_value:.4f}"),
        ("threshold", f"{result.threshold:.4f}  (alpha {result.alpha:g})"),
        ("calibrated", f"{result.calibrated:.4f}"),
        ("equal widths", f"{matched.score:.4f}  (both by PCA to {matched.dim} dimensions)"),
    ]
    if card.above_untrained:
        above = card.above_untrained
        rows.append(
            (
                "untrained A",
                f"{above.untrained:.4f}  "
                f"(difference {above.difference:.4f}, p = {above.p_value:.4f})",
            )
        )
    if card.retrieval:
        found = card.retrieval
        chance = found.chance
        rows.append(
            ("rotation", f"fitted on one half, tried on the other {found.n} items (chance):")
        )
        for name, recall in (("  A to B", found.recall_xy), ("  B to A", found.recall_yx)):
            shares = (
                f"R@{k} {share:.3f} ({chance.recall_xy[k]:.3f})" for k, share in recall.items()
            )
            rows.append((name, ", ".join(shares)))
        rows.append(("  FOSCTTM", f"{found.foscttm:.4f} (0.5)"))
    for points, label in ((card.against_items, "N"), (card.against_k, "k")):
        for point in points or ():
            at, value = (
                (point.k, point.score) if label == "k" else (point.n, point.mean)  # type: ignore[union-attr]
            )
            chance_level = "" if point.chance is None else f"  (chance {point.chance:.4f})"
            rows.append((f"{label} = {at}", f"{value:.4f}{chance_level}"))
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        # As Text, because a path may hold the square brackets of rich's markup.
        table.add_row(name, Text(value, overflow="fold"))
    return table


def _rows(encoders: Sequence[Encoder], cards: Sequence[Scorecard]) -> Table:
    """One row per pair."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("A: layer", "B: layer"):
        table.add_column(name, overflow="fold")
    for name in ("score", "p", "calibrated", "R@1", "FOSCTTM"):
        table.add_column(name, justify="right", no_wrap=True)
    names = short_names(encoders)
    for card in cards:
        result, found, interval = card.calibrated, card.retrieval, card.interval
        half = f" ±{short_number((interval.high - interval.low) / 2)}" if interval else ""
        table.add_row(
            Text(f"{names[card.a]}: {card.layers[0]}"),
            Text(f"{names[card.b]}: {card.layers[1]}"),
            f"{short_number(result.score)}{half}",
            f"{result.p_value:.4f}".removeprefix("0"),
            short_number(result.calibrated),
            short_number(found.recall_xy[1]) if found else "",
            short_number(found.foscttm) if found else "",
        )
    return table


def _protocol_line(card: Scorecard) -> str:
    result = card.calibrated
    k = "" if result.k is None else f" k = {result.k},"
    line = (
        f"{result.metric},{k} N = {result.n}, clip {result.clip}; maximum over layers; null of "
        f"{result.num_permutations} permutations with the same maximum, chance "
        f"{result.chance:.4f}; "
    )
    if card.interval:
        line += (
            f"{card.interval.level:.0%} interval by {card.interval.num_subsamples} subsamples of "
            f"{card.interval.fraction:.0%}; "
        )
    return f"{line}seed {result.seed}"


# What is written


def _document(
    encoders: Sequence[Encoder], cards: Sequence[Scorecard], protocol: Protocol
) -> dict[str, Any]:
    return {
        "protocol": protocol.to_json(),
        "encoders": [
            {
                "path": str(encoder.features.path),
                "layers": encoder.layer_names(),
                "meta": encoder.features.meta.to_json() if encoder.features.meta else None,
            }
            for encoder in encoders
        ],
        "pairs": [card.to_json() for card in cards],
        "versions": library_versions(),
    }


def _write_json(out: str, document: dict[str, Any]) -> None:
    """Strict JSON: a NaN would be an error here, not a word that other parsers refuse."""
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    if out == "-":
        sys.stdout.write(text)
    else:
        pathlib.Path(out).write_text(text, encoding="utf-8")
