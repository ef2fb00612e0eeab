"""A fitted map with the encoders that it is for, and features taken into their common space."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from platojax.evaluation.features import FeatureMeta, Features
from platojax.evaluation.rotation import LinearMap, hash_map, load_map

# What of an encoder's meta must be as it was when the map was fitted.
_IDENTITY = ("weights_hash", "preprocessing", "pooling", "dtype")


def describe_side(features: Features, layer: int) -> dict[str, Any]:
    """What a map's protocol says of one side.

    Args:
        features: it was fitted on.
        layer: of them.
    """
    about: dict[str, Any] = {"layer": features.layer_name(layer)}
    if features.meta is not None:
        about["encoder"] = features.meta.encoder
        about["dataset"] = features.meta.dataset
        about |= {name: getattr(features.meta, name) for name in _IDENTITY}
    return about


@dataclasses.dataclass(frozen=True, eq=False)
class Placement:
    """How the features of one encoder get into the common space.

    Attributes:
        fitted: the map.
        side: "x", which the map moves, or "y", whose space is the common one.
        layer: index of the layer that it is for.
        layer_name: of that layer.
    """

    fitted: LinearMap
    side: str
    layer: int
    layer_name: str

    @property
    def width(self) -> int:
        """Dy."""
        return self.fitted.matrix.shape[1]

    def rows(self, features: np.ndarray) -> np.ndarray:
        """`[N, L, D]` features -> `[N, Dy]` float32 in the common space."""
        chosen = features[:, self.layer]
        return self.fitted.apply(chosen) if self.side == "x" else self.fitted.target(chosen)

    def meta(self, meta: FeatureMeta) -> FeatureMeta:
        """Of such features, from the meta of the encoder's own."""
        return dataclasses.replace(
            meta,
            layers=("mapped",),
            pooling=f"{meta.pooling}; layer {self.layer_name} as side {self.side} of map "
            f"{hash_map(self.fitted)[:16]}",
        )


@dataclasses.dataclass(frozen=True, eq=False)
class MapFile:
    """A map that `platojax rotate` wrote.

    Attributes:
        fitted: the map.
        protocol: with `x` and `y`, see `describe_side`.
        name: of the file.
    """

    fitted: LinearMap
    protocol: Mapping[str, Any]
    name: str

    def placement(self, meta: FeatureMeta, where: str) -> Placement:
        """How features with this meta get into the common space.

        The side is known by the hash of the encoder's weights.

        Args:
            meta: of the features.
            where: what messages call them.

        Raises:
            ValueError: the features are of neither encoder, or of another layer, pooling,
                preprocessing or dtype than the map was fitted for; the map does not tell its
                encoders apart.
        """
        sides = [
            side
            for side in ("x", "y")
            if self.protocol[side].get("weights_hash") == meta.weights_hash
        ]
        if not any(self.protocol[side].get("weights_hash") for side in ("x", "y")):
            raise ValueError(
                f"{self.name} was fitted on arrays that do not say which encoders they are of; "
                "fit it on feature folders"
            )
        if len(sides) == 2:
            raise ValueError(
                f"{self.name} is for {meta.encoder} on both sides, so {where} may be of either; "
                "apply it in Python: load_map, then LinearMap.apply or target"
            )
        if not sides:
            raise ValueError(
                f"{where} is of {meta.encoder}, but {self.name} is for "
                f"{self.protocol['x'].get('encoder')} and {self.protocol['y'].get('encoder')}"
            )
        wanted = self.protocol[sides[0]]
        for name in _IDENTITY:
            if getattr(meta, name) != wanted[name]:
                raise ValueError(
                    f"{where} has {name} {getattr(meta, name)!r}, but {self.name} was fitted for "
                    f"{wanted[name]!r}; extract the features alike"
                )
        if wanted["layer"] not in meta.layers:
            raise ValueError(
                f"{where} has no layer {wanted['layer']}, for which {self.name} was fitted; it has "
                f"{', '.join(meta.layers)}"
            )
        layer = meta.layers.index(wanted["layer"])
        return Placement(self.fitted, sides[0], layer, wanted["layer"])

    def place(self, *sides: Features) -> list[np.ndarray]:
        """Takes features of the two encoders, in either order, into the common space.

        Returns:
            `[N, Dy]` float32 of each.

        Raises:
            ValueError: as `placement`; the features do not say which encoder they are of, or both
                are of the same one.
        """
        placed = [self._placement(features) for features in sides]
        if len({placement.side for placement in placed}) < len(sides):
            raise ValueError(
                f"{' and '.join(str(features.path) for features in sides)} are of the same "
                f"encoder; {self.name} brings two together: give one of each"
            )
        return [
            placement.rows(features.features)
            for placement, features in zip(placed, sides, strict=True)
        ]

    def _placement(self, features: Features) -> Placement:
        if features.meta is None:
            raise ValueError(
                f"{features.path} does not say which encoder it is of; extract it to a folder"
            )
        return self.placement(features.meta, str(features.path))


def read_map(path: str | os.PathLike) -> MapFile:
    """Reads a map.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it holds no map.
    """
    fitted, protocol = load_map(path)
    if not isinstance(protocol, dict) or not all(
        isinstance(protocol.get(side), dict) for side in ("x", "y")
    ):
        raise ValueError(f"{path} does not say which encoders it is for; fit it again")
    return MapFile(fitted, protocol, str(path))
