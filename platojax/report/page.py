"""The page that an experiment leaves behind: one file, computed from those of its workdir."""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import jinja2

from platojax.data.scenes import Scene
from platojax.evaluation.comparison import short_number
from platojax.files import write_whole
from platojax.report import figures, findings
from platojax.report.gallery import Gallery, embeddings, make_gallery
from platojax.report.record import GOOD, HELDOUT, IMAGE_GOOD, Cell, Record, read_record


@dataclasses.dataclass(frozen=True)
class TableCell:
    """A score in a table: of the embedding, and of the best pair of layers."""

    embedding: Cell
    best: Cell


@dataclasses.dataclass(frozen=True)
class ScoreTable:
    """The scores on a range of items: a row for each text arm, a column for each image arm."""

    title: str
    chance: float
    cells: dict[tuple[str, str], TableCell]


@dataclasses.dataclass(frozen=True)
class StripRow:
    """A text arm in the picture of scores at the top; positions are percent of the width."""

    arm: str
    embedding: Cell
    best: Cell
    dots: tuple[float, ...]
    best_at: float
    chance_at: float


def write_page(workdir: pathlib.Path, scenes: Sequence[Scene]) -> pathlib.Path:
    """Writes `report.html`, which needs no other file and no network.

    Args:
      workdir: of a finished experiment, with `config.json`, `scores.json` and a folder per run.
      scenes: N scenes in the order of the rows of its features: held out, then training.

    Returns:
      The path of the page.

    Raises:
      ValueError: if the workdir holds no finished experiment, or one about other scenes.
    """
    record = read_record(workdir)
    record.check_scenes(scenes)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("platojax.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"short": short_number, "show": findings.show}
    page = environment.get_template("page.html").render(_content(record, scenes))
    path = workdir / "report.html"
    write_whole(path, page)
    return path


def _content(record: Record, scenes: Sequence[Scene]) -> dict[str, Any]:
    return {
        "record": record,
        "protocol": record.scores["protocol"],
        "evaluation": record.config.get("evaluation", {}),
        "heldout": record.scores["items"][HELDOUT],
        "total": len(scenes),
        "styles": figures.arm_styles(record),
        "findings": findings.find(record),
        "strip": _strip(record),
        "gallery": _gallery(record, scenes[: record.scores["items"][HELDOUT]]),
        "tables": _tables(record),
        "alignment_charts": _alignment_charts(record),
        "loss_charts": [figures.training_chart(record, q) for q in figures.LOSSES],
        "health_charts": [figures.training_chart(record, q) for q in figures.HEALTH],
        "gaussian": figures.GAUSSIAN,
        "versions": _versions(record),
        "skipped": _skipped(record),
        "config_json": json.dumps(record.config, indent=1, ensure_ascii=False),
    }


def _strip(record: Record) -> list[StripRow]:
    """Every text arm's held-out score against the reference image arm, each seed a dot."""
    image = record.reference
    if image is None:
        return []
    cells, best = record.cells(HELDOUT, "embedding"), record.cells(HELDOUT, "best")
    entries = [e for e in record.scores["scores"] if e["items"] == HELDOUT and e["image"] == image]
    # A little wider than the largest score, so that no dot is cut at the edge.
    full = 1.05 * max(e["score"] for e in entries)
    rows = []
    for arm in record.text_arms:
        own = [e["score"] for e in entries if e["text"] == arm and e["layers"] == "embedding"]
        cell, at_best = cells[arm, image], best[arm, image]
        dots = tuple(100 * score / full for score in own)
        at = (100 * at_best.mean / full, 100 * cell.chance / full)
        rows.append(StripRow(arm, cell, at_best, dots, *at))
    return rows


def _gallery(record: Record, heldout: Sequence[Scene]) -> Gallery | None:
    if GOOD not in record.trained or IMAGE_GOOD not in record.trained:
        return None
    words = record.features(GOOD, record.seeds(GOOD)[0])
    drawings = record.features(IMAGE_GOOD, record.seeds(IMAGE_GOOD)[0])
    if words is None or drawings is None:
        return None
    count = len(heldout)
    return make_gallery(heldout, embeddings(words)[:count], embeddings(drawings)[:count])


def _tables(record: Record) -> list[ScoreTable]:
    tables = []
    for items, count in record.scores["items"].items():
        embedding, best = record.cells(items, "embedding"), record.cells(items, "best")
        if not embedding:
            continue
        name = "Held-out scenes" if items == HELDOUT else f"{items.capitalize()} scenes"
        tables.append(
            ScoreTable(
                f"{name} (N = {count:,})",
                next(iter(embedding.values())).chance,
                {pair: TableCell(embedding[pair], best[pair]) for pair in embedding},
            )
        )
    return tables


def _alignment_charts(record: Record) -> list[figures.Chart]:
    return [
        figures.alignment_chart(
            record,
            items,
            "Held-out scenes" if items == HELDOUT else f"{items.capitalize()} scenes",
            next(iter(record.cells(items, "embedding").values())).chance,
        )
        for items in record.scores["items"]
        if record.reference is not None
    ]


def _versions(record: Record) -> dict[str, str]:
    """Of the libraries that computed the features of the first arm that still has them."""
    for arm in record.trained:
        features = record.features(arm, record.seeds(arm)[0])
        if features and features.meta:
            return dict(features.meta.versions)
    return {}


def _skipped(record: Record) -> int:
    """Updates that were skipped in all runs because they were not finite."""
    logs = (record.metrics(arm, seed) for arm in record.trained for seed in record.seeds(arm))
    return int(sum(log[-1].get("skipped") or 0 for log in logs if log))
