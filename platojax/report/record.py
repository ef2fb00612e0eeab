"""What an experiment left in its workdir, as the page needs it."""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from platojax.data.scenes import Scene
from platojax.evaluation.comparison import summarise
from platojax.evaluation.features import Features, read_features
from platojax.hashing import hash_items
from platojax.tracking import read_jsonl

HELDOUT = "heldout"
# The arms that the page knows the meaning of; all others appear under their own labels.
GOOD, NEXT_TOKEN = "text_good", "text_next_token"
SAME_WORDING, BAD = "text_same_wording", "text_bad"
IMAGE_GOOD, IMAGE_BAD = "image_good", "image_bad"
_ORDER = (GOOD, NEXT_TOKEN, SAME_WORDING, BAD, IMAGE_GOOD, IMAGE_BAD)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One text arm against one image arm, over seeds.

    Attributes:
      mean: of the score.
      spread: sample standard deviation of the score; None for one seed.
      seeds: how many pairs of runs.
      p_value: the largest.
      chance: expected score of unrelated features.
      calibrated: mean of the calibrated score.
      layers: names of the layers of text and image that were scored, without repetition.
    """

    mean: float
    spread: float | None
    seeds: int
    p_value: float
    chance: float
    calibrated: float
    layers: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class Record:
    """A finished experiment.

    Attributes:
      workdir: where it is.
      config: the content of `config.json`.
      scores: the content of `scores.json`, see `platojax.evaluation.comparison.compare`.
    """

    workdir: pathlib.Path
    config: dict[str, Any]
    scores: dict[str, Any]

    @property
    def trained(self) -> tuple[str, ...]:
        """The trained arms that were compared: texts first, and of them those the page knows."""
        arms = sorted(arm for arm in self.config["arms"] if arm in self.scores["arms"])
        rank = {arm: i for i, arm in enumerate(_ORDER)}
        arms.sort(key=lambda arm: (self.modality(arm) != "text", rank.get(arm, len(rank))))
        return tuple(arms)

    @property
    def text_arms(self) -> tuple[str, ...]:
        """All text arms that were scored: the trained ones as above, then the controls."""
        return self._scored("text")

    @property
    def image_arms(self) -> tuple[str, ...]:
        """All image arms that were scored: the trained ones as above, then the controls."""
        return self._scored("image")

    @property
    def reference(self) -> str | None:
        """The image arm that text arms are compared by: good views if there is such an arm."""
        trained = [arm for arm in self.image_arms if arm in self.trained]
        return IMAGE_GOOD if IMAGE_GOOD in trained else next(iter(trained), None)

    def label(self, arm: str) -> str:
        """What the arm is, in words."""
        return self.scores["arms"][arm]["label"]

    def modality(self, arm: str) -> str:
        """Of a trained arm."""
        return self.config["arms"][arm]["modality"]

    def setting(self, arm: str, name: str) -> Any:
        """A field of a trained arm's config, its own or else its modality's."""
        own = self.config["arms"][arm]
        return own[name] if name in own else self.config.get(self.modality(arm), {}).get(name)

    def seeds(self, arm: str) -> list[int]:
        """Of a trained arm, ascending."""
        first = self.config["seed"]
        return list(range(first, first + self.config["arms"][arm]["seeds"]))

    def metrics(self, arm: str, seed: int) -> list[dict[str, Any]]:
        """The logged steps of a run; none where the file is missing."""
        return read_jsonl(self._folder(arm, seed) / "metrics.jsonl")

    def features(self, arm: str, seed: int) -> Features | None:
        """The features of a run at its last step, or None where they are gone."""
        folder = self._folder(arm, seed) / "features"
        steps = [int(path.name.removeprefix("step_")) for path in folder.glob("step_*")]
        return read_features(folder / f"step_{max(steps)}") if steps else None

    def cells(self, items: str, layers: str) -> dict[tuple[str, str], Cell]:
        """The scores of each (text arm, image arm).

        Args:
          items: name of a range of items.
          layers: "embedding" or "best".
        """
        entries = [
            e for e in self.scores["scores"] if e["items"] == items and e["layers"] == layers
        ]
        cells = {}
        for pair, summary in summarise(self.scores, items=items, layers=layers).items():
            own = [e for e in entries if (e["text"], e["image"]) == pair]
            cells[pair] = Cell(
                **summary,
                calibrated=float(np.mean([e["calibrated"] for e in own])),
                layers=tuple(dict.fromkeys((e["text_layer"], e["image_layer"]) for e in own)),
            )
        return cells

    def check_scenes(self, scenes: Sequence[Scene]) -> None:
        """Checks that the scenes are those of the features, in their order.

        Raises:
          ValueError: if they are not.
        """
        expected = max(self.scores["items"].values())
        if len(scenes) != expected:
            raise ValueError(
                f"{self.workdir} is about {expected} scenes, the data has {len(scenes)}; "
                "install the version that made the workdir, or run the experiment again"
            )
        items_hash = hash_items([scene.scene_id for scene in scenes])
        for arm in self.trained:
            features = self.features(arm, self.seeds(arm)[0])
            if features and features.meta and features.meta.items_hash != items_hash:
                raise ValueError(
                    f"{features.path} is about other scenes than the data has, or in another "
                    "order; install the version that made it, or run the experiment again"
                )

    def _scored(self, side: str) -> tuple[str, ...]:
        found = dict.fromkeys(entry[side] for entry in self.scores["scores"])
        trained = [arm for arm in self.trained if arm in found]
        return (*trained, *(arm for arm in found if arm not in trained))

    def _folder(self, arm: str, seed: int) -> pathlib.Path:
        return self.workdir / f"{arm}-seed{seed}"


def read_record(workdir: pathlib.Path) -> Record:
    """Reads a workdir.

    Raises:
      ValueError: if it is no workdir of a finished experiment.
    """
    content = {}
    for name in ("config.json", "scores.json"):
        path = workdir / name
        if not path.is_file():
            raise ValueError(
                f"{workdir} has no {name}: give the --workdir of an experiment that has finished"
            )
        try:
            content[name] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is not JSON ({error}); run the experiment again") from error
    return Record(workdir, content["config.json"], content["scores.json"])
