"""`platojax retrieve` and `platojax zero-shot`: what a map is good for."""

import pathlib
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from platojax.data.items import Items, load_items
from platojax.evaluation.features import Features, check_same_items, read_features
from platojax.evaluation.mapped import read_map
from platojax.evaluation.retrieval import retrieval
from platojax.evaluation.zero_shot import zero_shot
from platojax.files import check_writable, to_json, write_whole
from platojax.hashing import hash_items


def retrieve(
    a_path: str, b_path: str, rotation: pathlib.Path, json_out: pathlib.Path | None
) -> None:
    """Retrieval between two encoders of the same items, in the common space of a map.

    Args:
      a_path: feature folder of the one encoder.
      b_path: feature folder of the other.
      rotation: the map between them, in either direction.
      json_out: file for the numbers.

    Raises:
      ValueError, OSError: features or map cannot be read, or do not belong together.
    """
    _check_json(json_out, a_path, b_path, rotation)
    fitted = read_map(rotation)
    sides = read_features(a_path), read_features(b_path)
    check_same_items(*sides)
    result = retrieval(*fitted.place(*sides))
    chance = result.chance
    table = Table(box=box.SIMPLE_HEAD, title=f"{result.n} items")
    for name in ("", "R@1", "R@5", "R@10", "median rank"):
        table.add_column(name, justify="right")
    for name, recall, rank in (
        ("A to B", result.recall_xy, result.median_rank_xy),
        ("B to A", result.recall_yx, result.median_rank_yx),
        ("chance", chance.recall_xy, chance.median_rank_xy),
    ):
        table.add_row(name, *(f"{share:.3f}" for share in recall.values()), f"{rank:g}")
    console = Console()
    console.print(table)
    console.print(f"FOSCTTM {result.foscttm:.4f} (chance .5)")
    document = {"rotation": dict(fitted.protocol), "retrieval": result.to_json()}
    _write(json_out, document)


def classify(
    images_path: str,
    image_data: str,
    classes_path: str,
    class_data: str,
    rotation: pathlib.Path,
    json_out: pathlib.Path | None,
) -> None:
    """Zero-shot classification through a map.

    Args:
      images_path: feature folder of images.
      image_data: the data it was extracted from, whose labels are the truth.
      classes_path: feature folder of prompts about classes.
      class_data: the data it was extracted from, whose ids are the labels.
      rotation: the map between the two encoders, in either direction.
      json_out: file for the numbers.

    Raises:
      ValueError, OSError: features, data or map cannot be read, or do not belong together.
    """
    _check_json(json_out, images_path, image_data, classes_path, class_data, rotation)
    fitted = read_map(rotation)
    images, classes = read_features(images_path), read_features(classes_path)
    image_items, class_items = load_items(image_data), load_items(class_data, "name")
    _check_items(images, image_items, image_data)
    _check_items(classes, class_items, class_data)
    if image_items.labels is None:
        raise ValueError(
            f"{image_data} has no labels: a column `label`, or a folder for each class, says them"
        )
    numbers = {name: number for number, name in enumerate(class_items.ids)}
    if unknown := sorted(set(image_items.labels) - numbers.keys()):
        raise ValueError(
            f"{class_data} has no class {unknown[0]!r}, as {len(unknown)} labels of {image_data}; "
            f"its classes are {', '.join(class_items.ids[:5])}, ..."
        )
    labels = [numbers[label] for label in image_items.labels]
    placed_images, placed_classes = fitted.place(images, classes)
    result = zero_shot(placed_images, placed_classes, labels)
    chance = result.chance
    Console().print(
        f"{result.n} images, {result.num_classes} classes: top-1 {result.top1:.3f} (chance "
        f"{chance[0]:.3f}), top-5 {result.top5:.3f} (chance {chance[1]:.3f})"
    )
    document = {
        "rotation": dict(fitted.protocol),
        "classes": list(class_items.ids),
        "zero_shot": result.to_json(),
    }
    _write(json_out, document)


def _check_items(features: Features, items: Items, data: str) -> None:
    if features.meta is None:
        raise ValueError(f"{features.path} does not say which items it is of; extract it")
    if features.meta.items_hash != hash_items(items.ids):
        raise ValueError(
            f"{features.path} is of other items than {data}, or in another order; give the data "
            "that it was extracted from"
        )


def _check_json(path: pathlib.Path | None, *inputs: str | pathlib.Path) -> None:
    if path is not None:
        check_writable(path, inputs)


def _write(path: pathlib.Path | None, document: dict[str, Any]) -> None:
    if path is not None:
        write_whole(path, to_json(document))
