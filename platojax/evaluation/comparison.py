"""The scores of an experiment, computed from nothing but the feature folders of its runs."""

import dataclasses
import functools
import pathlib
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from platojax.evaluation.alignment import CopiesWarning, Side, prepare_side, score_table
from platojax.evaluation.calibration import calibrate_prepared
from platojax.evaluation.controls import above_untrained
from platojax.evaluation.features import Features, check_same_items, read_features

TEXT_UNTRAINED = "text_untrained"
IMAGE_UNTRAINED = "image_untrained"


@dataclasses.dataclass(frozen=True)
class RunFeatures:
    """One encoder of an experiment, and where its features are.

    Attributes:
      arm: name of the arm.
      label: what the arm is, in words.
      modality: "text" or "image".
      objective: name of the objective.
      seed: of the run.
      batch_size: samples a step.
      features: the folder with one feature folder `step_N` per snapshot.
    """

    arm: str
    label: str
    modality: str
    objective: str
    seed: int
    batch_size: int
    features: pathlib.Path

    def steps(self) -> list[int]:
        """The steps at which features were kept, ascending."""
        names = [path.name for path in self.features.glob("step_*")]
        if not names:
            raise ValueError(
                f"{self.features} holds no features; delete {self.features.parent} to train this "
                "run again."
            )
        return sorted(int(name.removeprefix("step_")) for name in names)

    def read(self, step: int) -> Features:
        """The features at a step."""
        return read_features(self.features / f"step_{step}")


@dataclasses.dataclass(frozen=True)
class _Encoder:
    """A run at one of its steps, with its features."""

    arm: str
    label: str
    seed: int
    features: Features


class _Range:
    """One range of the items: each encoder is prepared once, whatever it is compared with."""

    def __init__(self, span: slice, protocol: Mapping[str, Any]):
        self._span = span
        self._settings = {key: protocol[key] for key in ("metric", "k", "clip")}
        self.embedding = functools.cache(self._embedding)

    def _embedding(self, features: Features) -> Side:
        """The layer that the objective trains and that evaluation is about."""
        if features.meta is None:
            raise ValueError(f"{features.path} has no meta.json, so its layers have no names.")
        layer = features.meta.layers.index("embedding")
        rows = features.features[self._span, layer]
        return prepare_side(str(features.path), rows, **self._settings)

    def all_layers(self, features: Features) -> Side:
        # Some layers tie by nature (the last token of every text is the same one): the maximum over
        # layers does not take them, and its null ties in the same way.
        with warnings.catch_warnings(action="ignore", category=CopiesWarning):
            return prepare_side(str(features.path), features.features[self._span], **self._settings)


def compare(
    runs: Sequence[RunFeatures], protocol: Mapping[str, Any], items: Mapping[str, slice]
) -> dict[str, Any]:
    """Scores every text encoder against every image encoder.

    Each run counts as it is at its last step. The first run of each modality and objective also
    counts as it was at step 0: the control, as the arm `text_untrained`, `text_untrained_causal`
    (next-token prediction's encoder is causal) or `image_untrained`.

    Args:
      runs: of both modalities, over the same items in the same order.
      protocol: `metric`, `k`, `clip`, `num_permutations` and `seed`, see `calibrate`.
      items: named ranges of the items, for instance those held out from every encoder.

    Returns:
      What `scores.json` holds:
      * `protocol`, and `items`: how many items each range has;
      * `arms`: label and modality of each arm, in order;
      * `scores`: one entry per text encoder, image encoder, range of items and choice of layers
        (`embedding`: that layer of both; `best`: the maximum over all pairs of layers, its null
        taken with the same maximum), with the protocol's numbers;
      * `above_untrained`, for mutual_knn without clipping: for each trained text run and image run
        the difference between its score and the untrained text encoder's, and the p-value of that
        difference, see `paired_p_value`;
      * `curves`: the score between embeddings of each text run at each snapshot, against each
        trained image run.

    Raises:
      ValueError: if the runs are not about the same items.
    """
    read = functools.cache(RunFeatures.read)
    final = [_encoder(run, read(run, run.steps()[-1])) for run in runs]
    texts = [e for run, e in zip(runs, final, strict=True) if run.modality == "text"]
    images = [e for run, e in zip(runs, final, strict=True) if run.modality == "image"]
    for encoder in final[1:]:
        check_same_items(final[0].features, encoder.features)
    controls: dict[tuple[str, str], _Encoder] = {}
    for run in runs:
        if (run.modality, run.objective) not in controls:
            arm = TEXT_UNTRAINED if run.modality == "text" else IMAGE_UNTRAINED
            causal = run.objective == "next_token"
            controls[run.modality, run.objective] = dataclasses.replace(
                _encoder(run, read(run, 0)),
                arm=arm + "_causal" * causal,
                label="untrained" + ", causal" * causal,
            )
    all_texts = [*texts, *(c for (modality, _), c in controls.items() if modality == "text")]
    all_images = [*images, *(c for (modality, _), c in controls.items() if modality == "image")]
    ranges = {name: _Range(span, protocol) for name, span in items.items()}

    curves = [
        {
            **_names(text, image, name),
            "samples": [step * run.batch_size for step in run.steps()],
            "scores": [
                float(score_table(part.embedding(read(run, step)), partner)[0, 0])
                for step in run.steps()
            ],
        }
        for run, text in zip(runs, final, strict=True)
        if run.modality == "text"
        for image in images
        for name, part in ranges.items()
        for partner in [part.embedding(image.features)]
    ]
    control = controls.get(("text", "lejepa"))
    differences = [
        {**_names(text, image, name), **_difference(text, control, image, part, protocol)}
        for text in texts
        for image in images
        for name, part in ranges.items()
        if control and (protocol["metric"], protocol["clip"]) == ("mutual_knn", "none")
    ]
    count = len(final[0].features.features)
    return {
        "protocol": dict(protocol),
        "items": {name: len(range(*span.indices(count))) for name, span in items.items()},
        "arms": {
            **{run.arm: {"label": run.label, "modality": run.modality} for run in runs},
            **{
                control.arm: {"label": control.label, "modality": modality}
                for (modality, _), control in controls.items()
            },
        },
        "scores": _scores(all_texts, all_images, ranges, protocol),
        "above_untrained": differences,
        "curves": curves,
    }


def summarise(scores: Mapping[str, Any], *, items: str, layers: str) -> dict[tuple[str, str], Any]:
    """Means over seeds of the entries of `compare`.

    Args:
      scores: what `compare` returned.
      items: name of a range of items.
      layers: "embedding" or "best".

    Returns:
      For each (text arm, image arm): `mean` and `spread` (the sample standard deviation; None for
      one seed) of the score over seeds, the number of `seeds`, the largest `p_value`, and the
      `chance` level.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in scores["scores"]:
        if entry["items"] == items and entry["layers"] == layers:
            groups.setdefault((entry["text"], entry["image"]), []).append(entry)
    return {
        pair: {
            "mean": float(np.mean([e["score"] for e in entries])),
            "spread": float(np.std([e["score"] for e in entries], ddof=1))
            if len(entries) > 1
            else None,
            "seeds": len(entries),
            "p_value": max(e["p_value"] for e in entries),
            "chance": entries[0]["chance"],
        }
        for pair, entries in groups.items()
    }


def short_number(value: float) -> str:
    """Three decimals, without the zero before the point: such as `.123`."""
    return re.sub(r"^(-?)0\.", r"\1.", f"{value:.3f}")


def _encoder(run: RunFeatures, features: Features) -> _Encoder:
    return _Encoder(run.arm, run.label, run.seed, features)


def _names(text: _Encoder, image: _Encoder, items: str) -> dict[str, Any]:
    return {
        "text": text.arm,
        "text_seed": text.seed,
        "image": image.arm,
        "image_seed": image.seed,
        "items": items,
    }


def _difference(
    text: _Encoder,
    control: _Encoder,
    image: _Encoder,
    part: _Range,
    protocol: Mapping[str, Any],
) -> dict[str, float]:
    sides = (part.embedding(encoder.features) for encoder in (text, control, image))
    result = above_untrained(*sides, seed=protocol["seed"])
    return {"difference": result.difference, "p_value": result.p_value}


def _scores(
    texts: Sequence[_Encoder],
    images: Sequence[_Encoder],
    ranges: Mapping[str, _Range],
    protocol: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """The entries by text, image, range of items and choice of layers, in this order."""
    all_layers = {
        name: [part.all_layers(image.features) for image in images] for name, part in ranges.items()
    }
    entries = []
    for text in texts:
        own = {name: part.all_layers(text.features) for name, part in ranges.items()}
        for i, image in enumerate(images):
            for name, part in ranges.items():
                embeddings = part.embedding(text.features), part.embedding(image.features)
                best = own[name], all_layers[name][i]
                for layers, sides in (("embedding", embeddings), ("best", best)):
                    entries.append(
                        {
                            **_names(text, image, name),
                            "layers": layers,
                            **_score(text, image, layers, sides, protocol),
                        }
                    )
    return entries


def _score(
    text: _Encoder,
    image: _Encoder,
    layers: str,
    sides: tuple[Side, Side],
    protocol: Mapping[str, Any],
) -> dict[str, Any]:
    result = calibrate_prepared(
        *sides, num_permutations=protocol["num_permutations"], seed=protocol["seed"]
    )
    if layers == "embedding":
        names = ("embedding", "embedding")
    else:
        names = (
            text.features.layer_name(result.layers[0]),
            image.features.layer_name(result.layers[1]),
        )
    return {
        "score": result.score,
        "text_layer": names[0],
        "image_layer": names[1],
        "chance": result.chance,
        "p_value": result.p_value,
        "calibrated": result.calibrated,
        "threshold": result.threshold,
        "n": result.n,
    }
