"""`platojax score`: how well encoders agree, from their features."""

import itertools
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
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
from platojax.files import check_writable, to_json, write_whole
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
    inputs = [*paths, *([untrained] if untrained else [])]
    for out in (json_out, plot):
        if out not in (None, "-"):
            check_writable(out, inputs)
    if plot is not None:
        from platojax.report.score_figure import check_format

        check_format(plot)
    _check_named(paths, against)
    if (untrained or curves) and (against is not None or len(paths) != 2):
        raise ValueError("--untrained and --curves are about one pair: name exactly two encoders")
    console = Console(file=sys.stderr if json_out == "-" else sys.stdout)
    features = [read_features(path) for path in paths]
    if against is not None:
        features += _same_items(console, features[0], against)
    encoders = load_encoders(
        features,
        protocol,
        _choices(layers, len(features), against is not None),
        untrained=read_features(untrained) if untrained else None,
    )
    if against is None:
        pairs = itertools.combinations(range(len(encoders)), 2)
        cards = [score(encoders, a, b, protocol, curves=curves) for a, b in pairs]
    else:
        with count_line(console, "encoders", len(encoders) - 1) as show:
            cards = rank(encoders, protocol, on_progress=show)
    if json_out is not None:
        _write_json(json_out, _document(encoders, cards, protocol))
    if json_out != "-":
        table = _details(encoders, cards[0]) if len(cards) == 1 else _rows(encoders, cards)
        console.print(table)
        console.print(_protocol_line(cards), markup=False)
    if plot is not None:
        from platojax.report.score_figure import draw

        draw(plot, encoders, cards)


def _check_named(paths: Sequence[str], against: pathlib.Path | None) -> None:
    if against is None and len(paths) < 2:
        raise ValueError("give at least two encoders, or one and --against FOLDER")
    if against is not None and len(paths) != 1:
        raise ValueError(f"--against takes one encoder, not {len(paths)}")


def _choices(layers: Sequence[str], num_encoders: int, ranked: bool) -> list[str]:
    """The choice of layers of each encoder."""
    wanted = 2 if ranked else num_encoders
    if len(layers) not in (1, wanted):
        raise ValueError(
            f"{len(layers)} choices of layers for {num_encoders} encoders; give one, or "
            + ("one for A and one for the others" if ranked else "one each")
        )
    if len(layers) == num_encoders:
        return list(layers)
    return [layers[0], *[layers[-1]] * (num_encoders - 1)]


def _same_items(console: Console, one: Features, folder: pathlib.Path) -> list[Features]:
    """All cached encoders in the folder, but this one, that are of the same items."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder; --against takes one with feature folders")
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
    return same


# What is shown


def _details(encoders: Sequence[Encoder], card: Scorecard) -> Table:
    """Everything about one pair."""
    rows = [
        *_encoder_rows("A", encoders[card.a], card.calibrated.layers[0]),
        *_encoder_rows("B", encoders[card.b], card.calibrated.layers[1]),
        *_score_rows(card),
        *_control_rows(card),
        *_retrieval_rows(card),
        *_curve_rows(card),
    ]
    table = Table(box=box.SIMPLE_HEAD, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        # As Text, because a path may hold the square brackets of rich's markup.
        table.add_row(name, Text(value, overflow="fold"))
    return table


def _encoder_rows(name: str, encoder: Encoder, place: int) -> Iterator[tuple[str, str]]:
    features, layer = encoder.features, encoder.layers[place]
    position = f"{layer} of 0..{features.features.shape[1] - 1}"
    yield name, str(features.path)
    if features.meta:
        yield "", f"{features.meta.encoder}; {features.meta.pooling}; {features.meta.dataset}"
        position = f"{features.layer_name(layer)} ({position})"
    yield "  layer", position


def _score_rows(card: Scorecard) -> Iterator[tuple[str, str]]:
    result, interval = card.calibrated, card.interval
    yield "score", f"{result.score:.4f}  (maximum over layers)"
    if interval:
        ends = f"{interval.low:.4f} to {interval.high:.4f}"
        yield f"{interval.level:.0%} interval", f"{ends}  (at these layers, over other items)"
    yield "chance", f"{result.chance:.4f}"
    yield "p-value", f"{result.p_value:.4f}"
    yield "threshold", f"{result.threshold:.4f}  (alpha {result.alpha:g})"
    yield "calibrated", f"{result.calibrated:.4f}"


def _control_rows(card: Scorecard) -> Iterator[tuple[str, str]]:
    matched, above = card.width_matched, card.above_untrained
    yield "equal widths", f"{matched.score:.4f}  (both by PCA to {matched.dim} dimensions)"
    if above:
        gain = f"difference {above.difference:.4f}, p = {above.p_value:.4f}"
        yield "untrained A", f"{above.untrained:.4f}  ({gain})"


def _retrieval_rows(card: Scorecard) -> Iterator[tuple[str, str]]:
    found = card.retrieval
    if not found:
        return
    yield "rotation", f"fitted on one half, tried on the other {found.n} items (chance):"
    for name, recall in (("  A to B", found.recall_xy), ("  B to A", found.recall_yx)):
        shares = (
            f"R@{k} {share:.3f} ({found.chance.recall_xy[k]:.3f})" for k, share in recall.items()
        )
        yield name, ", ".join(shares)
    yield "  FOSCTTM", f"{found.foscttm:.4f} (0.5)"


def _curve_rows(card: Scorecard) -> Iterator[tuple[str, str]]:
    points = [(f"N = {point.n}", point.mean, point.chance) for point in card.against_items or ()]
    points += [(f"k = {point.k}", point.score, point.chance) for point in card.against_k or ()]
    for name, value, chance in points:
        yield name, f"{value:.4f}" + ("" if chance is None else f"  (chance {chance:.4f})")


def _rows(encoders: Sequence[Encoder], cards: Sequence[Scorecard]) -> Table:
    """One row per pair."""
    columns: dict[str, Callable[[Scorecard], str]] = {
        "score": _score_cell,
        "chance": lambda card: short_number(card.calibrated.chance),
        "p": lambda card: f"{card.calibrated.p_value:.4f}".removeprefix("0"),
        "calibrated": lambda card: short_number(card.calibrated.calibrated),
        "R@1": lambda card: short_number(card.retrieval.recall_xy[1]) if card.retrieval else "",
        "FOSCTTM": lambda card: short_number(card.retrieval.foscttm) if card.retrieval else "",
    }
    if _has_one_chance(cards):
        del columns["chance"]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))  # narrow: names need the room
    for name in ("A: layer", "B: layer"):
        table.add_column(name, overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    names = short_names(encoders)
    for card in cards:
        pair = zip((card.a, card.b), card.layer_names, strict=True)
        table.add_row(
            *(Text(f"{names[index]}: {layer}") for index, layer in pair),
            *(cell(card) for cell in columns.values()),
        )
    return table


def _score_cell(card: Scorecard) -> str:
    interval = card.interval
    half = f" ±{short_number((interval.high - interval.low) / 2)}" if interval else ""
    return f"{short_number(card.calibrated.score)}{half}"


def _has_one_chance(cards: Sequence[Scorecard]) -> bool:
    """Whether chance follows from k and N; of other metrics it is the mean of each pair's null."""
    return cards[0].calibrated.metric == "mutual_knn"


def _protocol_line(cards: Sequence[Scorecard]) -> str:
    """What all pairs have in common."""
    result, interval = cards[0].calibrated, cards[0].interval
    parts = [
        result.metric + ("," if result.k is None else f", k = {result.k},") + f" N = {result.n}, "
        f"clip {result.clip}",
        "maximum over layers",
        f"null of {result.num_permutations} permutations with the same maximum"
        + (f", chance {result.chance:.4f}" if _has_one_chance(cards) else ""),
    ]
    if interval:
        parts.append(
            f"{interval.level:.0%} interval by {interval.num_subsamples} subsamples of "
            f"{interval.fraction:.0%}"
        )
    return "; ".join([*parts, f"seed {result.seed}"])


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
    text = to_json(document)
    if out == "-":
        sys.stdout.write(text)
    else:
        write_whole(pathlib.Path(out), text)
