"""How an encoder aligns with cached features while it is trained."""

import dataclasses
import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from platojax.data.items import Items
from platojax.encoders.frozen import FrozenEncoder
from platojax.evaluation.calibration import calibrate
from platojax.evaluation.extraction import extract
from platojax.evaluation.features import read_features, read_meta
from platojax.hashing import hash_items


@dataclasses.dataclass(frozen=True, eq=False)
class Monitor:
    """Scores an encoder against the same targets again and again.

    Attributes:
      items: that are encoded.
      targets: features `[N, L, D]` of the same items by frozen encoders, by name.
      protocol: keyword arguments of `calibrate`.
    """

    items: Items
    targets: Mapping[str, np.ndarray]
    protocol: Mapping[str, Any]

    def __call__(
        self, encoder: FrozenEncoder, on_failure: Callable[[str], None]
    ) -> dict[str, float]:
        """The scores of an encoder's layers against each target.

        Nothing that goes wrong ends the run that is being watched: the scores that there are not
        are left out, `TARGET/failed` is 1, and the message goes to `on_failure`.

        Args:
          encoder: of a modality that the items have.
          on_failure: called with a message.

        Returns:
          For each target `TARGET/score`, `TARGET/chance`, `TARGET/p_value`, `TARGET/calibrated`;
          and `score`, the mean of the targets' scores, where there are all.
        """
        values: dict[str, float] = {}
        scores = []
        features = None
        for name, target in self.targets.items():
            try:
                if features is None:
                    features = self._features(encoder)
                result = calibrate(features, target, **self.protocol)
            except Exception as error:  # whatever it is, it must not cost the run
                values[f"{name}/failed"] = 1.0
                on_failure(f"{encoder.name} was not scored against {name}: {error}")
                continue
            values |= {
                f"{name}/score": result.score,
                f"{name}/chance": result.chance,
                f"{name}/p_value": result.p_value,
                f"{name}/calibrated": result.calibrated,
            }
            scores.append(result.score)
        if len(scores) == len(self.targets):
            values["score"] = float(np.mean(scores))
        return values

    def _features(self, encoder: FrozenEncoder) -> np.ndarray:
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch) / "features"
            extract(encoder, self.items, folder)
            return np.array(read_features(folder).features)


def load_monitor(items: Items, folders: Sequence[str], protocol: Mapping[str, Any]) -> Monitor:
    """Opens the targets.

    Args:
      items: to be encoded.
      folders: feature folders of the same items, each with a name of its own.
      protocol: keyword arguments of `calibrate`.

    Raises:
      ValueError: there is no folder, one is no feature folder or of other items, or two have one
        name.
    """
    if not folders:
        raise ValueError("monitor.targets is empty; name feature folders, or set monitor.every 0.")
    targets: dict[str, np.ndarray] = {}
    for folder in map(pathlib.Path, folders):
        meta = read_meta(folder)
        if meta.items_hash != hash_items(items.ids):
            raise ValueError(
                f"monitor.targets {folder} holds features of {meta.dataset}, not of the "
                f"{len(items.ids)} items of monitor.data ({items.name}); extract them from the "
                "same data."
            )
        if folder.name in targets:
            raise ValueError(f"monitor.targets has two folders named {folder.name}; rename one.")
        targets[folder.name] = read_features(folder).features
    return Monitor(items, targets, protocol)
