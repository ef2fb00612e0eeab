"""Nearest neighbours of a few scenes, by words beside by drawing."""

import base64
import dataclasses
import io
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from PIL import Image

from platojax.data.scenes import Picture, Scene
from platojax.evaluation.features import Features
from platojax.evaluation.neighbors import nearest_neighbors, unit_rows

_ARTIST = "noto"


@dataclasses.dataclass(frozen=True)
class Tile:
    """A drawing on the page.

    Attributes:
      scene_id: of the scene; the drawing itself is on the page once, under this name.
      name: of the scene.
      shared: whether the scene is a neighbour on both sides.
    """

    scene_id: str
    name: str
    shared: bool = False


@dataclasses.dataclass(frozen=True)
class Row:
    """A scene with its neighbours, nearest first."""

    scene: Tile
    group: str
    by_words: tuple[Tile, ...]
    by_drawing: tuple[Tile, ...]
    shared: int


@dataclasses.dataclass(frozen=True)
class Gallery:
    """The scenes shown.

    Attributes:
      rows: one for each scene.
      drawings: scene id to PNG as a data URL.
      artists: who drew them.
      k: neighbours on each side.
      mean_shared: mean over ALL scenes of how many of the k are shared.
      chance_shared: what unrelated rankings would share.
    """

    rows: tuple[Row, ...]
    drawings: dict[str, str]
    artists: tuple[str, ...]
    k: int
    mean_shared: float
    chance_shared: float


def make_gallery(
    scenes: Sequence[Scene], words: np.ndarray, drawings: np.ndarray, *, rows: int = 12, k: int = 5
) -> Gallery:
    """Shows evenly chosen scenes with their nearest other scenes.

    Args:
      scenes: N scenes.
      words: `[N, D]` embeddings of their words.
      drawings: `[N, E]` embeddings of their drawings.
      rows: how many scenes to show.
      k: neighbours.
    """
    k = min(k, len(scenes) - 1)
    by_words, by_drawing = _neighbors(words, k), _neighbors(drawings, k)
    shared = [set(a) & set(b) for a, b in zip(by_words, by_drawing, strict=True)]

    def tiles(neighbors: list[int], common: set[int]) -> tuple[Tile, ...]:
        return tuple(Tile(scenes[i].scene_id, scenes[i].name, i in common) for i in neighbors)

    shown = [
        Row(
            Tile(scenes[i].scene_id, scenes[i].name),
            scenes[i].group,
            tiles(by_words[i], shared[i]),
            tiles(by_drawing[i], shared[i]),
            len(shared[i]),
        )
        for i in evenly_chosen(scenes, rows)
    ]
    wanted = {t.scene_id for row in shown for t in (row.scene, *row.by_words, *row.by_drawing)}
    pictures = {s.scene_id: _picture(s) for s in scenes if s.scene_id in wanted}
    return Gallery(
        rows=tuple(shown),
        drawings={scene_id: _data_url(picture.image) for scene_id, picture in pictures.items()},
        artists=tuple(sorted({picture.source for picture in pictures.values()})),
        k=k,
        mean_shared=float(np.mean([len(common) for common in shared])),
        chance_shared=k * k / (len(scenes) - 1),
    )


def evenly_chosen(scenes: Sequence[Scene], count: int) -> list[int]:
    """Indices of scenes evenly spaced in the order of group, subgroup and id.

    No score has a part in it, and each group gets scenes in proportion to its size.
    """
    order = sorted(
        range(len(scenes)),
        key=lambda i: (scenes[i].group, scenes[i].subgroup, scenes[i].scene_id),
    )
    count = min(count, len(order))
    return [order[(2 * i + 1) * len(order) // (2 * count)] for i in range(count)]


def embeddings(features: Features) -> np.ndarray:
    """`[N, D]`: the layer that the scores are about."""
    layers = features.meta.layers if features.meta else ()
    if "embedding" not in layers:
        raise ValueError(f"{features.path} has no layer named embedding; it has {layers}")
    return features.features[:, layers.index("embedding")]


def _neighbors(x: np.ndarray, k: int) -> list[list[int]]:
    indices, _ = nearest_neighbors(unit_rows(jnp.asarray(x)), k)
    return np.asarray(indices).tolist()


def _picture(scene: Scene) -> Picture:
    """By one artist where possible, so that neighbours differ by what they show, not by style."""
    return next((p for p in scene.pictures if p.source == _ARTIST), scene.pictures[0])


def _data_url(image: np.ndarray) -> str:
    """`[height, width, 3]` uint8 as a PNG."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
