r"""The study of docs/results/rotation.md: rotations with and without pairs between real encoders.

    python -m platojax.main --config configs/emoji.py
    python -m platojax.main --config configs/multi30k.py
    python tools/study_rotation.py fit --captions MULTI30K --minilm FOLDER --out STUDY
    python tools/study_rotation.py recovery --features MINILM.npz --out STUDY
    python tools/study_rotation.py draw --out STUDY

`fit` takes from runs/ the encoders of words and of drawings, and those of English and of German
captions, each of which was trained on its own good views (two captions of one image). It extracts
features of the captions in the files of Multi30k's task 2 (train.1.en.gz and so on), fits every map
on training scenes and tries it on the validation scenes, which neither the encoders nor the maps
have seen; it writes STUDY/study.json. `recovery` rotates real sentence embeddings at random, adds
noise, and asks for the rotation back without pairs; it writes STUDY/recovery.json. `draw` makes the
figures of both.
"""

import argparse
import gzip
import itertools
import json
import pathlib
import time
from collections.abc import Callable, Iterator

import numpy as np
from absl import flags
from matplotlib.figure import Figure

from platojax.data.items import Items, emoji_items
from platojax.data.scenes import load_emoji
from platojax.encoders.huggingface import load_huggingface
from platojax.evaluation.extraction import extract
from platojax.evaluation.features import read_features
from platojax.evaluation.rotation import LinearMap, procrustes, ridge
from platojax.evaluation.transfer import against_pairs, transfer
from platojax.evaluation.unpaired import UnpairedRotation, mini_vec2vec, unpaired_rotation
from platojax.run_encoder import load_run_encoder

RUNS = pathlib.Path("runs")
LANGUAGES = {"en": "good", "de": "german_good"}  # and their arms
SPLITS = ("train", "val")
CAPTIONS = 5
CHOICES = {"all": slice(None), "first": slice(1), "second": slice(1, 2)}  # of the captions
ROWS = 5000  # of each side, at most, that maps are fitted on
SEEDS = 5
# Hardly better than chance, both methods scatter: five seeds do not compare them.
MORE_SEEDS = {"emoji, words and drawings": 30}
NOISES = (0.0, 0.01, 0.03, 0.05)
ITEMS = (500, 1000)
UNPAIRED: dict[str, Callable[..., LinearMap]] = {
    "rosetta": unpaired_rotation,
    "mini-vec2vec": mini_vec2vec,
}


def read_captions(folder: pathlib.Path, split: str, language: str) -> list[tuple[str, ...]]:
    """The five captions of each image."""
    columns = []
    for number in range(1, CAPTIONS + 1):
        with gzip.open(folder / f"{split}.{number}.{language}.gz", "rt", encoding="utf-8") as file:
            columns.append([line.strip() for line in file])
    return list(zip(*columns, strict=True))


def extract_captions(
    run: pathlib.Path, captions: pathlib.Path, language: str, out: pathlib.Path
) -> None:
    """Features of the means over captions, and of the first and second captions alone."""
    encoder = load_run_encoder(run)
    for split, (name, chosen) in itertools.product(SPLITS, CHOICES.items()):
        several = read_captions(captions, split, language)[: 2 * ROWS]
        ids = tuple(str(number) for number in range(len(several)))
        items = Items(f"multi30k/{split}, {name}", ids, tuple(one[chosen] for one in several))
        extract(encoder, items, out / f"{language}-{split}-{name}")


Case = tuple[str, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def rows(path: pathlib.Path, layer: str = "embedding") -> np.ndarray:
    """[N, D] of one layer of a feature folder."""
    features = read_features(path)
    assert features.meta is not None
    return np.asarray(features.features[:, features.meta.layers.index(layer)])


def cases(captions: pathlib.Path, minilm: pathlib.Path, out: pathlib.Path) -> Iterator[Case]:
    """Name, both sides to fit on (row i: the same scene), and both to try the map on."""
    for language, arm in LANGUAGES.items():
        extract_captions(RUNS / "multi30k" / f"{arm}-seed0", captions, language, out)
    yield (
        "Multi30k, English and German encoders",
        *(rows(out / f"{language}-train-all") for language in LANGUAGES),
        *(rows(out / f"{language}-val-all") for language in LANGUAGES),
    )
    sentence = load_huggingface(minilm)
    for split in SPLITS:
        texts = read_captions(captions, split, "en")[: 2 * ROWS]
        ids = tuple(str(number) for number in range(len(texts)))
        firsts = tuple(several[:1] for several in texts)
        extract(sentence, Items(f"multi30k/{split}, first", ids, firsts), out / f"minilm-{split}")
    yield (
        "Multi30k, MiniLM and our encoder, other captions",
        rows(out / "minilm-train", "hidden_6"),
        rows(out / "en-train-second"),
        rows(out / "minilm-val", "hidden_6"),
        rows(out / "en-val-second"),
    )
    words = load_run_encoder(RUNS / "emoji" / "text_good-seed0")
    drawings = load_run_encoder(RUNS / "emoji" / "image_good-seed0")
    for name, encoder, source in (
        ("words-en", words, "cldr_en"),
        ("words-de", words, "cldr_de"),
        ("drawings", drawings, "cldr_en"),
    ):
        for split in ("train", "heldout"):
            items = emoji_items(load_emoji(split), name=f"emoji:{split}", sources=(source,))
            extract(encoder, items, out / f"{name}-{split}")
    for name, x, y in (
        ("emoji, English and German words", "words-en", "words-de"),
        ("emoji, words and drawings", "words-en", "drawings"),
    ):
        yield (
            name,
            *(rows(out / f"{side}-train") for side in (x, y)),
            *(rows(out / f"{side}-heldout") for side in (x, y)),
        )


def fit_all(captions: pathlib.Path, minilm: pathlib.Path, out: pathlib.Path) -> None:
    """Fits and tries all maps; goes on behind the cases that are there."""
    path = out / "study.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    paired: dict[str, Callable[..., LinearMap]] = {
        "procrustes": procrustes,
        "procrustes, whitened": lambda x, y: procrustes(x, y, whiten=True),
        "ridge": ridge,
    }
    for name, x, y, test_x, test_y in cases(captions, minilm, out):
        if name in results:
            continue
        result: dict = {
            "items": len(x),
            "held_out": len(test_x),
            "widths": [x.shape[1], y.shape[1]],
        }
        for method, fit in paired.items():
            result[method] = transfer(fit(x, y), test_x, test_y).to_json()
            half = len(x) // 2  # the other half tries them
            least = 4 if fit is ridge else 1  # ridge's penalty takes at least 10 to be chosen
            counts = [2**power for power in range(least, 20) if 2**power < half]
            curve = against_pairs(fit, x, y, [*counts, half])
            result[f"{method}, pairs"] = [point.to_json() for point in curve]
        side = min(len(x) // 2, ROWS)
        result["rows without pairs"] = side
        result |= fit_unpaired(name, side, x, y, test_x, test_y)
        results[name] = result
        path.write_text(json.dumps(results, indent=1) + "\n")


def fit_unpaired(
    name: str, half: int, x: np.ndarray, y: np.ndarray, test_x: np.ndarray, test_y: np.ndarray
) -> dict[str, list]:
    """Both methods on the same disjoint halves, which each seed draws anew."""
    results: dict[str, list] = {method: [] for method in UNPAIRED}
    for seed in range(MORE_SEEDS.get(name, SEEDS)):
        order = np.random.default_rng(seed).permutation(len(x))
        one, other = x[order[:half]], y[order[half : 2 * half]]
        for method, fit in UNPAIRED.items():
            start = time.perf_counter()
            fitted = fit(one, other, seed=seed)
            found = {
                "seed": seed,
                "seconds": time.perf_counter() - start,
                **transfer(fitted, test_x, test_y).to_json(),
            }
            if isinstance(fitted, UnpairedRotation):
                found |= verdict(fitted)
            results[method].append(found)
            print(name, method, seed, found["retrieval"]["foscttm"], flush=True)
    return results


def verdict(fitted: UnpairedRotation) -> dict:
    """What a rotation says of itself without labels."""
    names = ("matched_cosine", "estimated_foscttm", "shared_geometry", "trusted")
    return {name: getattr(fitted, name) for name in names}


def recover(features: pathlib.Path, out: pathlib.Path) -> None:
    """FOSCTTM of a known rotation of real embeddings against noise and against the sample size."""
    path = out / "recovery.json"
    results = json.loads(path.read_text()) if path.exists() else []
    done = {(one["noise"], one["items"], one["method"], one["seed"]) for one in results}
    x = np.load(features)["features"].astype(np.float32)
    settings = [(noise, 1500) for noise in NOISES] + [(0.01, items) for items in ITEMS]
    for seed in range(SEEDS):
        for noise, items in settings:
            rng = np.random.default_rng(seed)
            rotation = np.linalg.qr(rng.standard_normal((x.shape[1],) * 2))[0].astype(np.float32)
            order = rng.permutation(len(x))
            y = x @ rotation + noise * rng.standard_normal(x.shape, np.float32)
            for method, fit in UNPAIRED.items():
                if (noise, items, method, seed) in done:
                    continue
                fitted = fit(x[order[:items]], y[order[-items:]], seed=seed)
                found = {
                    "noise": noise,
                    "items": items,
                    "method": method,
                    "seed": seed,
                    "foscttm": transfer(fitted, x, y).retrieval.foscttm,
                }
                if isinstance(fitted, UnpairedRotation):
                    found |= verdict(fitted)
                results.append(found)
                print(found, flush=True)
                path.write_text(json.dumps(results, indent=1) + "\n")


def draw(out: pathlib.Path) -> None:
    """The figures of study.json and recovery.json."""
    colors = dict(zip(UNPAIRED, ("#0072b2", "#d55e00"), strict=True))
    recovery = json.loads((out / "recovery.json").read_text())
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for ax, (axis, fixed) in zip(
        figure.subplots(1, 2, sharey=True), (("noise", "items"), ("items", "noise")), strict=True
    ):
        value = {"items": 1500, "noise": 0.01}[fixed]
        for method, color in colors.items():
            chosen = [one for one in recovery if one[fixed] == value and one["method"] == method]
            at = sorted({one[axis] for one in chosen})
            means = [
                np.median([max(one["foscttm"], 1e-6) for one in chosen if one[axis] == x])
                for x in at
            ]
            ax.plot(at, means, color=color, label=f"{method} (line: median)")
            ax.plot(
                [one[axis] for one in chosen],
                [max(one["foscttm"], 1e-6) for one in chosen],
                "o",
                color=color,
                alpha=0.6,
            )
        ax.axhline(1e-3, color="grey", ls=":", label="recovered")
        ax.set_yscale("log")
        ax.set_xlabel({"noise": "noise per coordinate", "items": "items on each side"}[axis])
        ax.set_title({"items": f"{value} items a side", "noise": f"noise {value}"}[fixed])
    ax.legend(fontsize=8)
    figure.axes[0].set_ylabel("FOSCTTM (0 drawn at 1e-6)")
    figure.savefig(out / "recovery.png", dpi=120)

    study = json.loads((out / "study.json").read_text())
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for place, (name, result) in enumerate(study.items()):
        for method, color in colors.items():
            values = [one["retrieval"]["foscttm"] for one in result[method]]
            left.plot(values, [place] * len(values), "o", color=color, alpha=0.6)
        left.plot(result["procrustes"]["retrieval"]["foscttm"], place, "k|", markersize=14)
        points = result["procrustes, pairs"]
        right.plot(
            [point["pairs"] for point in points],
            [np.mean([r["retrieval"]["foscttm"] for r in p["repetitions"]]) for p in points],
            marker="o",
            label=name,
        )
    left.set_yticks(range(len(study)), list(study), fontsize=7)
    left.axvline(0.5, color="grey", ls=":")
    left.set_xlabel("FOSCTTM; bar: Procrustes with all pairs; dots: chance", fontsize=8)
    left.set_title("without pairs (blue: rosetta, orange: mini-vec2vec)", fontsize=9)
    right.set_xscale("log")
    right.set_xlabel("pairs")
    right.set_ylabel("FOSCTTM")
    right.set_title("with pairs: Procrustes", fontsize=9)
    right.set_ylim(0, 0.65)  # room for the legend
    right.legend(fontsize=7)
    figure.savefig(out / "study.png", dpi=120)


def draw_verdicts(out: pathlib.Path) -> None:
    """What rosetta says of its own results, against what they are worth."""
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    ax = figure.subplots()
    for (name, result), marker in zip(
        json.loads((out / "study.json").read_text()).items(), "osD^", strict=True
    ):
        runs = [one for one in result["rosetta"] if "shared_geometry" in one]
        if not runs:
            continue
        points = ax.scatter(
            [one["shared_geometry"] for one in runs],
            [max(one["estimated_foscttm"], 1e-4) for one in runs],
            c=[one["retrieval"]["foscttm"] for one in runs],
            marker=marker,
            label=name,
            vmin=0,
            vmax=0.5,
            cmap="viridis",
            edgecolors="black",
        )
    figure.colorbar(points, ax=ax, label="true FOSCTTM")
    ax.axhline(0.05, color="grey", ls=":")
    ax.axvline(0.6, color="grey", ls=":")
    ax.set_yscale("log")
    ax.set_xlabel("shared geometry")
    ax.set_ylabel("estimated FOSCTTM (0 drawn at 1e-4)")
    ax.set_title("below and right of the dotted lines: to be trusted", fontsize=9)
    ax.legend(fontsize=7)
    figure.savefig(out / "verdicts.png", dpi=120)


def main() -> None:
    """Reads the arguments and runs the stage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=("fit", "recovery", "draw"))
    parser.add_argument("--captions", type=pathlib.Path)
    parser.add_argument("--features", type=pathlib.Path)
    parser.add_argument("--minilm", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    flags.FLAGS.mark_as_parsed()  # grain reads them
    out = args.out.resolve()
    if args.stage == "recovery":
        recover(args.features, out)
    elif args.stage == "draw":
        draw(out)
        draw_verdicts(out)
    else:
        fit_all(args.captions, args.minilm, out)


if __name__ == "__main__":
    main()
