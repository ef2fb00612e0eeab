r"""The runs of docs/results/multi30k.md: how alignment grows with samples, for each arm.

    python tools/study_multi30k.py prepare --captions MULTI30K --photos PHOTOS --minilm FOLDER \
        --out STUDY
    python tools/study_multi30k.py run --stage STAGE --out STUDY
    python tools/study_multi30k.py collect --out STUDY --results docs/results/multi30k
    python tools/study_multi30k.py predict --results docs/results/multi30k
    python tools/study_multi30k.py rotate --out STUDY --results docs/results/multi30k
    python tools/study_multi30k.py whiten --out STUDY --results docs/results/multi30k
    python tools/study_multi30k.py watch --out STUDY --results docs/results/multi30k

`prepare` makes scenes, a tokenizer and targets: features of photographs by vision models (PHOTOS
has `features.npz`, `captions.json`, and in `exclude.txt` the images that Multi30k must leave
out), and of validation captions by MiniLM, which only choices are made by. `run` trains and
scores the runs of a stage, each in a workdir of its own. It may be killed at any moment and
started again; started twice, it shares the runs out. `collect` gathers what there is:
`RESULTS/STAGE.json`, and `RESULTS/points.json` for `platojax scaling`. `predict` says, before the
stages `large`, `largest` and `wide`, what they will give. `rotate` fits rotations between English
and German; `whiten` scores the best encoders, and MiniLM, with whitened spaces; `watch` trains all
arms of the config in one workdir and keeps their scores while they train.

A run is one arm of configs/multi30k.py with one seed, trained to its end. All layers of its encoder
are scored by mutual 10-NN: on the photographs by one caption and by the mean of five, and on the
validation scenes, which have captions but no images.
"""

import argparse
import dataclasses
import fcntl
import itertools
import json
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import flags
from ml_collections import ConfigDict

from platojax import experiment
from platojax.commands import prepare
from platojax.commands.config_file import load_config
from platojax.data.corpus import sample_texts
from platojax.data.items import Items, load_items, prepared_items
from platojax.data.raw import multi30k
from platojax.data.tokenizer import train_tokenizer
from platojax.encoders.frozen import FrozenEncoder
from platojax.encoders.huggingface import load_huggingface
from platojax.evaluation.alignment import alignment, prepare_side
from platojax.evaluation.calibration import paired_p_value
from platojax.evaluation.confidence import confidence_interval
from platojax.evaluation.extraction import extract
from platojax.evaluation.features import FeatureMeta, read_features, write_features
from platojax.evaluation.rotation import procrustes
from platojax.evaluation.scaling import fit_scaling_law
from platojax.evaluation.transfer import transfer
from platojax.files import to_json, write_whole
from platojax.finished_runs import Point, read_points
from platojax.hashing import hash_items
from platojax.run_encoder import load_run_encoder

CONFIG = str(pathlib.Path(__file__).parent.parent / "configs" / "multi30k.py")
K = 10
VOCABULARY = 4_000
VISION = ("effnet_lite0", "open_nsfw")
ARMS = ("good", "bad_mask", "bad_spans", "bad_prefix", "next_token")
SEEDS = (0, 1, 2)
TUNING_SEED = 100
TUNING_SAMPLES = 2**14
ABLATION_SAMPLES = 2**14
FIRST = tuple(2**i for i in range(8, 11))  # where good views pass next-token prediction's end
SMALL = tuple(2**i for i in range(11, 16))
LARGE = (2**16, 2**17)
PHOTOS, VALIDATION = 500, 980
WATCHED_EVERY = 2**12  # samples
COMPARED = 2**15  # samples, where arms are compared in other ways than by alignment
ROTATED = ("good", "bad_prefix", "next_token")
ROTATION_ITEMS = 5_000
# The encoder whose German features are a target of the English ones: that of this run.
GERMAN = f"main/german_good_multi30k_{2**16}_seed0/features/val_de"

# What each arm is tuned by: one thing at a time around a start, as many trials for each. The config
# has what came of it: what gained a twentieth at least over the start, by the embedding.
START: Mapping[str, Mapping[str, Any]] = {
    "good": {},
    "bad_mask": {"views.mask_ratio": 0.5},
    "bad_spans": {"views.ratio": 0.5},
    "bad_prefix": {"views.min_share": 0.25},
    "next_token": {},
}
RATES = (5e-4, 1e-3, 2e-3, 4e-3)
OWN: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "good": {"objective.lam": (0.02, 0.1), "objective.projector_dim": (32, 128)},
    "bad_mask": {"objective.lam": (0.02, 0.1), "views.mask_ratio": (0.25, 0.75)},
    "bad_spans": {"objective.lam": (0.02, 0.1), "views.ratio": (0.3, 0.7)},
    "bad_prefix": {"objective.lam": (0.02, 0.1), "views.min_share": (0.1, 0.4)},
    "next_token": {"optimizer.weight_decay": (0.01, 0.3), "optimizer.b2": (0.9, 0.99)},
}
# Batches of another size than the config's 64, at other rates than its .002 (see `ABLATIONS`).
BATCHES: Mapping[int, tuple[float, ...]] = {32: (1e-3,), 256: (4e-3, 8e-3)}
ABLATIONS: tuple[Mapping[str, Any], ...] = (
    {"batch_size": 32, "packing.group_size": 32, "packing.rows": 16},
    {"batch_size": 128},
    {"batch_size": 256},
    {"objective.num_slices": 32},
    {"objective.num_slices": 1024},
    {"objective.lam": 0.01},
    {"objective.lam": 0.2},
    {"objective.projector_dim": 16},
    {"objective.projector_dim": 256},
    {"encoder.width": 32, "encoder.mlp_dim": 128, "objective.projector_hidden": (64,)},
    {"encoder.width": 64, "encoder.mlp_dim": 256, "objective.projector_hidden": (128,)},
    {"encoder.depth": 1},
    {"encoder.depth": 4},
)
# 21 tokens for each text, which have 18 in the mean.
PACKING = {"group_size": 64, "rows": 28, "row_length": 48}
WIDE = {"encoder.width": 256, "encoder.mlp_dim": 1024, "objective.projector_hidden": (512,)}
WIDE_FLOPS = 6_778_532_134_912  # of such a run


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run.

    Attributes:
      stage: that it is of.
      arm: of configs/multi30k.py.
      samples: scenes that it is trained on.
      seed: of everything random.
      overrides: of fields of the run's config, by their paths.
      data: the prepared scenes.
    """

    stage: str
    arm: str
    samples: int
    seed: int
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    data: str = "multi30k"

    @property
    def name(self) -> str:
        """A file's name."""
        settings = [f"{field.split('.')[-1]}={value}" for field, value in self.overrides.items()]
        parts = [self.arm, self.data, str(self.samples), *settings, f"seed{self.seed}"]
        return "_".join(parts).replace("(", "").replace(")", "").replace(",", "").replace("'", "")

    def workdir(self, study: pathlib.Path) -> pathlib.Path:
        """Of the experiment, in which its run has a folder."""
        return study / self.stage / self.name

    def encoder(self, study: pathlib.Path, layer: str) -> FrozenEncoder:
        """What it trained, giving this layer."""
        encoder = load_run_encoder(self.workdir(study) / f"{self.arm}-seed{self.seed}")
        return dataclasses.replace(encoder, layers=(layer,))

    def config(self, study: pathlib.Path) -> ConfigDict:
        """What `platojax.experiment` runs."""
        form = "best" if self.arm == "best" else ""
        config = study_config(study, form, data=self.data, monitor=self.samples)
        config.seed = self.seed
        arm = ConfigDict({**config.text, **config.arms[self.arm]})
        arm.num_samples = self.samples
        arm.checkpoint.update(every=1_000, keep=1)
        arm.update_from_flattened_dict(self.overrides)
        config.arms = {self.arm: arm}
        return config


def study_config(
    study: pathlib.Path, form: str, *, data: str = "multi30k", monitor: int
) -> ConfigDict:
    """The config on the study's data, scored on the photographs after each `monitor` samples."""
    config = load_config(f"{CONFIG}:{form}" if form else CONFIG, ())
    config.data.folder = str(study / "data" / data)
    config.data.tokenizer = str(study / "data" / "multi30k.model")
    config.data.vocabulary.vocab_size = VOCABULARY
    config.text.packing = PACKING
    config.monitor.every = monitor
    config.monitor.data = str(study / "data" / "photos_1.jsonl")
    config.monitor.targets = tuple(str(study / "targets" / name) for name in VISION)
    return config


def tuning() -> Iterator[Trial]:
    """One thing at a time, for each arm."""
    for arm in ARMS:
        settings: list[dict[str, Any]] = [{"optimizer.learning_rate": rate} for rate in RATES]
        settings += [{field: v} for field, values in OWN[arm].items() for v in values]
        for changed in settings:
            overrides = {"optimizer.learning_rate": 1e-3, **START[arm], **changed}
            yield Trial("tuning", arm, TUNING_SAMPLES, TUNING_SEED, overrides)


def small() -> Iterator[Trial]:
    """All arms at sizes that are soon done; laws are fitted to them."""
    for seed, samples, arm in itertools.product(SEEDS, SMALL, (*ARMS, "german_good")):
        yield Trial("main", arm, samples, seed)
    for seed, samples in itertools.product(SEEDS, FIRST):
        yield Trial("main", "good", samples, seed)


def large() -> Iterator[Trial]:
    """What the laws predict."""
    for arm, seed in itertools.product(ARMS, SEEDS):
        yield Trial("main", arm, LARGE[0], seed)
    yield Trial("main", "german_good", LARGE[0], 0)


def largest() -> Iterator[Trial]:
    """What the laws predict, and takes longest."""
    for arm, seed in itertools.product(("good", "next_token"), SEEDS):
        yield Trial("main", arm, LARGE[1], seed)


def ablations() -> Iterator[Trial]:
    """The good arm with one setting changed."""
    for seed, overrides in itertools.product(SEEDS, ABLATIONS):
        yield Trial("ablations", "good", ABLATION_SAMPLES, seed, overrides)


def wide() -> Iterator[Trial]:
    """After it was predicted from the narrower ones."""
    for seed in SEEDS:
        yield Trial("ablations", "good", ABLATION_SAMPLES, seed, WIDE)


def captions() -> Iterator[Trial]:
    """The good arm on scenes of fewer captions."""
    for seed, count in itertools.product(SEEDS, (2, 3)):
        yield Trial("captions", "good", COMPARED, seed, data=f"multi30k_{count}")


def german() -> Iterator[Trial]:
    """What rotations from English need beside the good German arm."""
    for seed, arm in itertools.product(SEEDS, ROTATED[1:]):
        yield Trial("german", arm, COMPARED, seed, {"views.sources": ("de",)})


def batches() -> Iterator[Trial]:
    """The good arm with batches of another size, and the learning rate tuned for them."""
    for seed, (size, rates) in itertools.product(SEEDS, BATCHES.items()):
        packed = {f"packing.{name}": PACKING[name] * size // 64 for name in ("group_size", "rows")}
        for rate in rates:
            overrides = {"batch_size": size, "optimizer.learning_rate": rate, **packed}
            yield Trial("batches", "good", ABLATION_SAMPLES, seed, overrides)


def best() -> Iterator[Trial]:
    """The best encoder that we can train."""
    samples = load_config(f"{CONFIG}:best", ()).text.num_samples
    for seed in SEEDS:
        yield Trial("best", "best", samples, seed)


STAGES = dict(
    tuning=tuning,
    small=small,
    large=large,
    largest=largest,
    ablations=ablations,
    wide=wide,
    captions=captions,
    german=german,
    batches=batches,
    best=best,
)


# ---- Data ----------------------------------------------------------------------------------

# The numbers of the captions' files. An image's captions are sorted by their length.
CAPTIONS = {"multi30k": (1, 2, 3, 4, 5), "multi30k_3": (1, 3, 5), "multi30k_2": (2, 4)}


def prepare_data(
    source: pathlib.Path, photos: pathlib.Path, minilm: pathlib.Path, study: pathlib.Path
) -> None:
    """See above; what is there already is kept."""
    data, targets = study / "data", study / "targets"
    data.mkdir(parents=True, exist_ok=True)
    for name, numbers in CAPTIONS.items():
        raw = data / f"{name}_raw"
        raw.mkdir(exist_ok=True)
        files = [*source.glob("*_images.txt")]
        for number in numbers:
            files += source.glob(f"*.{number}.??.gz")
        for file in files:
            if not (raw / file.name).exists():
                (raw / file.name).symlink_to(file.resolve())
        if not (data / name).exists():
            prepare.run(
                "multi30k",
                multi30k.read(raw),
                multi30k.input_files(raw),
                data / name,
                prepare.Options(exclude=photos / "exclude.txt"),
            )
    model = data / "multi30k.model"
    if not model.exists():
        train_tokenizer(
            sample_texts(str(data / "multi30k"), 1_000_000), model, vocab_size=VOCABULARY
        )
    rows = json.loads((photos / "captions.json").read_text(encoding="utf-8"))
    for count in (1, 5):
        lines = [
            json.dumps({"id": row["photo"], "captions": row["captions"][:count]}) for row in rows
        ]
        write_whole(data / f"photos_{count}.jsonl", "\n".join(lines) + "\n")
    ids = hash_items([row["photo"] for row in rows])
    with np.load(photos / "features.npz") as arrays:
        for name in VISION:
            meta = FeatureMeta(
                encoder=name,
                weights_hash="",
                dataset="photos",
                items_hash=ids,
                preprocessing="of the file's author",
                pooling="of the file's author",
                layers=("features",),
            )
            if not (targets / name).exists():
                write_features(targets / name, arrays[name][:, None], meta)
    encoder = load_huggingface(minilm)
    extract(encoder, validation_items(study, "en", slice(1, None)), targets / "minilm")
    for name, items in whitening_items(study).items():
        extract(encoder, items, targets / f"minilm_{name}")


def photo_items(study: pathlib.Path) -> dict[str, Items]:
    """The photographs' captions: one of each, and five."""
    folder = study / "data"
    return {f"photos_{n}": load_items(str(folder / f"photos_{n}.jsonl")) for n in (1, 5)}


def validation_items(study: pathlib.Path, language: str, which: slice) -> Items:
    """Some of each validation scene's five captions."""
    return _some_captions(prepared_items(study / "data" / "multi30k", "val", language), which)


def training_items(study: pathlib.Path, language: str, which: slice) -> Items:
    """Some of the five captions of each of the training scenes that rotations are fitted on."""
    items = prepared_items(study / "data" / "multi30k", "train", language)
    assert items.texts is not None
    first = {"ids": items.ids[:ROTATION_ITEMS], "texts": items.texts[:ROTATION_ITEMS]}
    return _some_captions(dataclasses.replace(items, **first), which)


def whitening_items(study: pathlib.Path) -> dict[str, Items]:
    """What spaces are whitened by, and what they are then scored on."""
    return {"train": training_items(study, "en", slice(0, 1)), **photo_items(study)}


def _some_captions(items: Items, which: slice) -> Items:
    assert items.texts is not None
    return dataclasses.replace(
        items,
        name=f"{items.name} {which.start}:{which.stop}",
        texts=tuple(texts[which] for texts in items.texts),
    )


# ---- Runs ----------------------------------------------------------------------------------


def run_stage(stage: str, study: pathlib.Path) -> None:
    """Trains and scores what is neither done nor another process's."""
    study = study.resolve()
    jax.config.update("jax_compilation_cache_dir", str(study / "compiled"))
    trials = list(STAGES[stage]())
    for number, trial in enumerate(trials, 1):
        workdir = trial.workdir(study)
        workdir.mkdir(parents=True, exist_ok=True)
        with (workdir / ".trial").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue  # another process has it
            if (workdir / "result.json").exists():
                continue
            start = time.process_time()
            experiment.run(trial.config(study), workdir)
            point = read_points([workdir])[0][0]
            cost = {
                name: getattr(point, name) for name in ("label", "objective", "tokens", "flops")
            }
            scores = score(trial, study)
            result = dataclasses.asdict(trial) | cost | {"scores": scores}
            result["cpu_seconds"] = round(time.process_time() - start, 1)
            write_whole(workdir / "result.json", to_json(result, indent=None))
            best = {target: max(by_layer.values()) for target, by_layer in scores.items()}
            print(f"{number}/{len(trials)} {trial.name}: best layers {best}", flush=True)
        jax.clear_caches()


def score(
    trial: Trial, study: pathlib.Path, untrained: int | None = None
) -> dict[str, dict[str, float]]:
    """The score of each layer against each target, which also says on what."""
    workdir = trial.workdir(study)
    encoder = load_run_encoder(workdir / f"{trial.arm}-seed{trial.seed}", untrained=untrained)
    encoder = dataclasses.replace(encoder, layers=encoder.all_layers)
    folder = workdir / ("features" if untrained is None else f"untrained_{untrained}")
    scores: dict[str, dict[str, float]] = {}
    for name, items, targets in evaluations(trial, study):
        x = features(encoder, items, folder / name)
        for target in targets:
            y = target_features(study, target)
            label = f"{target}, five captions" if name == "photos_5" else target
            scores[label] = layer_scores(encoder.layers, x, y)
    return scores


def layer_scores(layers: Sequence[str], x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """The score of each layer of `x`, `[N, L, D]`, against `y`, `[N, D]`."""
    values = (round(float(value), 5) for value in alignment(x, y, k=K)[:, 0])
    return dict(zip(layers, values, strict=True))


def evaluations(trial: Trial, study: pathlib.Path) -> Iterator[tuple[str, Items, tuple[str, ...]]]:
    """What an encoder encodes, and the targets of the same items."""
    if trial.arm == "german_good" or trial.overrides.get("views.sources") == ("de",):
        yield "val_de", validation_items(study, "de", slice(None)), ()
        return
    for name, items in photo_items(study).items():
        yield name, items, VISION
    yield "val_en_1", validation_items(study, "en", slice(0, 1)), ("minilm",)
    yield "val_en", validation_items(study, "en", slice(None)), ()


def features(encoder: FrozenEncoder, items: Items, folder: pathlib.Path) -> np.ndarray:
    """Of all layers that the encoder gives, `[N, L, D]`; kept in the folder."""
    extract(encoder, items, folder)
    return np.array(read_features(folder).features)


def target_features(study: pathlib.Path, target: str) -> np.ndarray:
    """`[N, D]`."""
    return np.array(read_features(study / "targets" / target).features[:, -1])


# ---- Results -------------------------------------------------------------------------------


def collect(study: pathlib.Path, results: pathlib.Path) -> None:
    """Writes what there is: `STAGE.json`, and for `platojax scaling` `points.json`.

    Beside them `intervals.json` and, of encoders without training, `untrained.json`.
    """
    results.mkdir(parents=True, exist_ok=True)
    stages = sorted({trial.stage for make in STAGES.values() for trial in make()})
    found = {stage: read_results(study, stage) for stage in stages}
    for stage, rows in found.items():
        if rows:
            write_whole(results / f"{stage}.json", one_per_line(rows))
    runs = found["main"]
    write_whole(results / "points.json", one_per_line(points(runs), "points"))
    write_whole(results / "intervals.json", one_per_line(intervals(study, runs)))
    untrained = []
    for trial in small():
        chosen = trial.arm in ("good", "next_token") and trial.samples == SMALL[0]
        if chosen and trial.workdir(study).exists():
            scores = score(trial, study, untrained=trial.seed)
            untrained.append({"arm": trial.arm, "seed": trial.seed, "scores": scores})
    write_whole(results / "untrained.json", one_per_line(untrained))


def read_results(study: pathlib.Path, stage: str) -> list[dict[str, Any]]:
    """Of all runs of a stage that are done; with the German target, where that is there."""
    paths = sorted((study / stage).glob("*/result.json"))
    results = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    reference = study / GERMAN
    if reference.exists():
        y = read_features(reference).features[:, -2]
        for path, result in zip(paths, results, strict=True):
            folder = path.parent / "features" / "val_en"
            if folder.exists():
                x = read_features(folder)
                assert x.meta is not None
                result["scores"]["german"] = layer_scores(x.meta.layers, x.features, y)
    return results


def intervals(study: pathlib.Path, runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """How scores would vary with other photographs, and whether the good arm's is really higher."""
    layers = best_layers(runs)
    done = [(run["arm"], run["seed"]) for run in runs if run["samples"] == COMPARED]
    rows = []
    for seed, target in itertools.product(SEEDS, VISION):
        if not all((arm, seed) in done for arm in ARMS):
            continue
        y = target_features(study, target)
        sides = {}
        for arm in ARMS:
            workdir = Trial("main", arm, COMPARED, seed).workdir(study)
            x = read_features(workdir / "features" / "photos_1")
            assert x.meta is not None
            sides[arm] = np.array(x.features[:, x.meta.layers.index(layers[arm])])
        for arm, x in sides.items():
            interval = confidence_interval(x, y, k=K)
            row = {"arm": arm, "seed": seed, "target": target, "samples": COMPARED}
            row |= {name: round(getattr(interval, name), 5) for name in ("score", "low", "high")}
            if arm != "good":
                compared = {"good": sides["good"], arm: x, target: y}
                prepared = [prepare_side(name, z, k=K) for name, z in compared.items()]
                row["p_good_higher"] = paired_p_value(*prepared)
            rows.append(row)
    return rows


def points(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The `Point`s of runs: each arm by the layer that suits it best on the validation scenes."""
    layers = best_layers(runs)
    found = []
    for run in runs:
        for target, by_layer in run["scores"].items():
            point = Point(
                **{name: run[name] for name in ("arm", "objective", "seed", "samples", "tokens")},
                label=f"{run['label']} ({layers[run['arm']]})",
                target=target,
                score=by_layer[layers[run["arm"]]],
                chance=round(
                    K / ((VALIDATION if target in ("minilm", "german") else PHOTOS) - 1), 5
                ),
                flops=run["flops"],
            )
            found.append(dataclasses.asdict(point))
    return found


def predict(results: pathlib.Path) -> None:
    """Fits laws to the smaller runs alone, and predicts the larger: `RESULTS/predictions.json`.

    In samples, each arm from the sizes in `SMALL` those in `LARGE`, and the second of these again
    once there are runs of the first; in FLOPs, of the good arm with as many samples, the widest
    encoder from the narrower ones.
    """
    rows = []

    def add(axis: str, arm: str, target: str, runs: Sequence[Any], wanted: Sequence[float]) -> None:
        law = fit_scaling_law([run[axis] for run in runs], [run["score"] for run in runs])
        for size in wanted:
            rows.append(
                {"axis": axis, "arm": arm, "target": target, axis: size}
                | {"predicted": round(float(law.predict(size)), 5), "law": law.to_json()}
            )

    known = json.loads((results / "points.json").read_text(encoding="utf-8"))["points"]
    for arm, target in dict.fromkeys((point["arm"], point["target"]) for point in known):
        if target == "german":  # which is itself an encoder of the first of these sizes
            continue
        runs = [p for p in known if (p["arm"], p["target"]) == (arm, target)]
        add("samples", arm, target, [p for p in runs if p["samples"] in SMALL], LARGE)
        if any(p["samples"] == LARGE[0] for p in runs):
            sizes = (*SMALL, LARGE[0])
            add("samples", arm, target, [p for p in runs if p["samples"] in sizes], LARGE[1:])
    ablations = results / "ablations.json"
    narrower = [
        run
        for run in (json.loads(ablations.read_text("utf-8")) if ablations.exists() else ())
        if "encoder.width" in run["overrides"] and run["flops"] < WIDE_FLOPS
    ]
    for target in narrower[0]["scores"] if narrower else ():
        runs = [run | {"score": run["scores"][target]["embedding"]} for run in narrower]
        runs += [
            point
            for point in known
            if (point["arm"], point["target"], point["samples"])
            == ("good", target, ABLATION_SAMPLES)
        ]
        add("flops", "good", target, runs, [WIDE_FLOPS])
    write_whole(results / "predictions.json", one_per_line(rows))


def best_layers(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """By arm, the layer with the best mean score against MiniLM over the small sizes and all seeds.

    But for "tokens", the mean of the token embeddings: a bag of words, whatever was learned.
    """
    layers = {}
    for arm in {run["arm"]: None for run in runs}:
        own = [run for run in runs if run["arm"] == arm and run["samples"] in SMALL]
        scores = [run["scores"]["minilm"] for run in own if run["scores"]]
        if scores:
            contextual = [layer for layer in scores[0] if layer != "tokens"]
            layers[arm] = max(contextual, key=lambda layer: sum(one[layer] for one in scores))
    return layers


def one_per_line(rows: Sequence[Mapping[str, Any]], name: str | None = None) -> str:
    """JSON with a row a line, so that changes show; a list, or an object with it by this name."""
    lines = ",\n".join(to_json(row, indent=None).strip() for row in rows)
    return f"[\n{lines}\n]\n" if name is None else f'{{"{name}": [\n{lines}\n]}}\n'


def rotate(study: pathlib.Path, results: pathlib.Path) -> None:
    """English and German encoders, each trained on its own, and one rotation between them."""
    train = {language: training_items(study, language, slice(None)) for language in ("en", "de")}
    layers = best_layers(read_results(study, "main"))
    rows = []
    for seed, arm in itertools.product(SEEDS, ROTATED):
        english = Trial("main", arm, COMPARED, seed)
        german_arm = Trial("main", "german_good", COMPARED, seed)
        if arm != "good":
            german_arm = Trial("german", arm, COMPARED, seed, {"views.sources": ("de",)})
        sides = {}
        for language, trial in (("en", english), ("de", german_arm)):
            encoder = trial.encoder(study, layers[arm])
            for split, items in (
                ("train", train[language]),
                ("one", validation_items(study, language, slice(0, 1))),
                ("five", validation_items(study, language, slice(None))),
            ):
                folder = trial.workdir(study) / "features" / f"rotation_{split}_{language}"
                sides[language, split] = features(encoder, items, folder)[:, 0]
        fitted = procrustes(sides["en", "train"], sides["de", "train"])
        for captions in ("one", "five"):
            result = transfer(fitted, sides["en", captions], sides["de", captions])
            rows.append(
                dict(arm=arm, seed=seed, layer=layers[arm], captions=captions) | result.to_json()
            )
    write_whole(results / "rotation.json", one_per_line(rows))


def whiten(study: pathlib.Path, results: pathlib.Path) -> None:
    """The best encoders, three arms and MiniLM, as they are and whitened by training captions."""
    layers = best_layers(read_results(study, "main"))
    layers["best"] = "embedding"  # as `platojax extract` gives it
    items = whitening_items(study)
    compared = [Trial("main", arm, LARGE[0], seed) for arm in ROTATED for seed in SEEDS]
    spaces: dict[tuple[str, int | None], dict[str, np.ndarray]] = {}
    for trial in (*compared, *best()):
        encoder = trial.encoder(study, layers[trial.arm])
        folder = trial.workdir(study) / "features"
        spaces[trial.arm, trial.seed] = {
            name: features(encoder, one, folder / f"whiten_{name}")[:, 0]
            for name, one in items.items()
        }
    spaces["minilm", None] = {name: target_features(study, f"minilm_{name}") for name in items}
    rows = []
    for (arm, seed), sides in spaces.items():
        train = sides.pop("train")
        # Onto itself: what is left of the map is the whitening.
        whitening = procrustes(train, train, whiten=True)
        for target, (captions, x) in itertools.product(VISION, sides.items()):
            y = target_features(study, target)
            row = dict(arm=arm, seed=seed, layer=layers.get(arm), target=target, captions=captions)
            for name, space in (("as it is", x), ("whitened", whitening.apply(x))):
                row[name] = round(float(alignment(space, y, k=K)[0, 0]), 5)
            rows.append(row)
    write_whole(results / "whitened.json", one_per_line(rows))


def watch(study: pathlib.Path, results: pathlib.Path) -> None:
    """All arms of the config in one run, scored while they train."""
    study = study.resolve()
    config = study_config(study, "", monitor=WATCHED_EVERY)
    config.text.num_samples = COMPARED
    experiment.run(config, study / "watched")
    rows = [
        {"arm": arm} | {name: round(value, 5) for name, value in json.loads(line).items()}
        for arm in config.arms
        for line in (study / "watched" / f"{arm}-seed0" / "validation.jsonl")
        .read_text(encoding="utf-8")
        .splitlines()
    ]
    write_whole(results / "watched.json", one_per_line(rows))


def main() -> None:
    """Runs a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    preparing = commands.add_parser("prepare")
    for name in ("captions", "photos", "minilm"):
        preparing.add_argument(f"--{name}", type=pathlib.Path, required=True)
    running = commands.add_parser("run")
    running.add_argument("--stage", choices=STAGES, required=True)
    gathering = dict(collect=collect, rotate=rotate, whiten=whiten, watch=watch)
    for name in (*gathering, "predict"):
        command = commands.add_parser(name)
        command.add_argument("--results", type=pathlib.Path, required=True)
    for name, command in commands.choices.items():
        if name != "predict":
            command.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    flags.FLAGS.mark_as_parsed()  # grain's workers read absl's flags
    if arguments.command == "prepare":
        prepare_data(arguments.captions, arguments.photos, arguments.minilm, arguments.out)
    elif arguments.command == "run":
        run_stage(arguments.stage, arguments.out)
    elif arguments.command == "predict":
        predict(arguments.results)
    else:
        gathering[arguments.command](arguments.out, arguments.results)


if __name__ == "__main__":
    main()
