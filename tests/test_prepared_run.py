"""From raw files to trained encoders, as configs/multi30k.py and configs/own.py say."""

import gzip
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from platojax.evaluation.features import FeatureMeta, read_features, write_features
from platojax.hashing import hash_items
from platojax.tracking import read_jsonl
from tests.data.pictures import encode, pixels

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[1]
STEPS = 6
THINGS = ["bus", "cat", "tree", "house", "river", "dog", "lamp", "bird", "boat", "door"]
WHERE = ["on a mat", "in the rain", "at a stop", "near a wall", "under the sun"]
SMALLER = [
    "--config.text.log_every=2",
    f"--config.text.num_samples={64 * STEPS}",
    "--config.text.encoder.width=32",
    "--config.text.encoder.mlp_dim=64",
    "--config.text.encoder.depth=1",
]


@pytest.fixture
def start(tmp_path):
    """Runs one of our commands in the folder of the test."""

    def run(*command, code=0):
        program = ["-m", "platojax.main"]
        if command[0] == "platojax":
            command = command[1:]
            program = ["-c", "from platojax.cli import app; app()"]
        result = subprocess.run(
            [sys.executable, *program, *map(str, command)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
            timeout=400,
        )
        assert result.returncode == code, result.stderr
        return result.stdout if code == 0 else result.stdout + result.stderr

    return run


def caption(scene, number):
    return f"a {THINGS[scene % 10]} {WHERE[(scene + number) % 5]}, no {scene}, picture {number}"


def test_multi30k(tmp_path, start):
    scenes = 80
    raw = tmp_path / "raw"
    raw.mkdir()
    ids = [f"{i}.jpg" for i in range(scenes)]
    for split in ("train", "val"):
        (raw / f"{split}_images.txt").write_text("".join(f"{split}{name}\n" for name in ids))
        for language in ("en", "de"):
            for number in range(1, 6):
                lines = [f"{language}: {caption(i, number)}" for i in range(scenes)]
                path = raw / f"{split}.{number}.{language}.gz"
                path.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n"))
    (tmp_path / "exclude.txt").write_text("train3.jpg\n")
    start(
        *("platojax", "prepare", "multi30k", raw, "--out", "prepared/multi30k"),
        *("--exclude", "exclude.txt"),
    )
    start(
        *("platojax", "prepare", "tokenizer", "prepared/multi30k", "--vocab-size", 300),
        *("--out", "prepared/multi30k.model"),
    )
    meta = FeatureMeta(
        encoder="frozen",
        weights_hash="x",
        dataset="val",
        items_hash=hash_items([f"val{name}" for name in ids]),
        preprocessing="none",
        pooling="none",
        layers=("embedding",),
        versions={},
    )
    target = np.random.default_rng(0).normal(size=(scenes, 1, 16)).astype(np.float32)
    write_features(tmp_path / "target", target, meta)
    arguments = [
        *("--config", ROOT / "configs" / "multi30k.py:runlocal", "--workdir", "work", *SMALLER),
        "--config.data.vocabulary.vocab_size=300",
        f"--config.monitor.every={64 * 3}",
        "--config.monitor.targets=('target',)",
        "--config.monitor.num_permutations=99",
    ]
    start(*arguments)
    arms = ("good", "bad_mask", "bad_spans", "bad_prefix", "next_token", "german_good")
    for arm in arms:
        run = tmp_path / "work" / f"{arm}-seed0"
        losses = [row["loss"] for row in read_jsonl(run / "metrics.jsonl")]
        assert len(losses) == STEPS / 2
        assert np.isfinite(losses).all()
        validation = read_jsonl(run / "validation.jsonl")
        assert [row["step"] for row in validation] == [3, 6]
        assert 0 <= validation[-1]["target/score"] <= 1
    assert {path.name for path in (tmp_path / "work").glob("*-seed0")} == {
        f"{a}-seed0" for a in arms
    }

    # The prepared data may move; other data may not take its place.
    (tmp_path / "prepared" / "multi30k").rename(tmp_path / "moved")
    start(*arguments, "--config.data.folder=moved", "--config.monitor.data=moved:val:en")
    config = (tmp_path / "work" / "config.json").read_bytes()
    start("platojax", "prepare", "multi30k", raw, "--out", "other")
    other = ("--config.data.folder=other", "--config.monitor.data=other:val:en")
    refusal = start(*arguments, *other, code=2)
    assert "work holds runs on other data: config.data has scenes" in refusal
    assert (tmp_path / "work" / "config.json").read_bytes() == config


def test_scenes_of_ones_own(tmp_path, start):
    scenes = 100
    (tmp_path / "photos").mkdir()
    rows = ["scene_id,caption,image"]
    for i in range(scenes):
        (tmp_path / "photos" / f"{i}.jpg").write_bytes(encode(pixels(70, 66, seed=i)))
        captions = 1 if i % 20 == 0 else 3
        rows += [f'{i},"{caption(i, n)}",photos/{i}.jpg' for n in range(captions)]
    (tmp_path / "captions.csv").write_text("\n".join(rows) + "\n")
    output = start(
        *("platojax", "prepare", "own", "captions.csv", "--heldout", 0.2, "--out", "prepared/own")
    )
    heldout = int(re.search(r"heldout: (\d+) scenes", output)[1])
    start(
        *("platojax", "prepare", "tokenizer", "prepared/own", "--vocab-size", 300),
        *("--out", "prepared/own.model"),
    )
    output = start(
        *("--config", ROOT / "configs" / "own.py:images", "--workdir", "work", *SMALLER),
        *("--config.image.num_samples=128", "--config.image.encoder.width=32"),
        *("--config.image.encoder.depth=1", "--config.image.encoder.image_size=32"),
    )
    assert "scenes that this process skipped so far, by reason: 1 of the 2 texts: " in output
    for encoder, kind in (("text_good", "words"), ("image_crops", "pictures")):
        start(
            *("platojax", "extract", "--encoder", f"work/{encoder}-seed0"),
            *("--data", "prepared/own:heldout", "--out", f"cache/{kind}"),
        )
        assert read_features(tmp_path / "cache" / kind).features.shape[0] == heldout
    assert "chance" in start("platojax", "score", "cache/words", "cache/pictures", "--k", 3)
