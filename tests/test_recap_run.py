"""configs/recap_940m.py:runlocal from a Parquet file to a trained encoder, as a user starts it."""

import gzip
import os
import pathlib
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from platojax.tracking import read_jsonl
from tests.data import recap_files
from tests.data.test_recap import WEB

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[1]
STEPS = 24
SMALLER = [
    f"--config.text.num_samples={64 * STEPS}",
    "--config.text.log_every=4",
    "--config.text.encoder.width=32",
    "--config.text.encoder.mlp_dim=64",
    "--config.text.encoder.depth=1",
    "--config.text.optimizer.learning_rate=0.01",
    "--config.arms.text_good.objective.projector_hidden=(32,)",
]


def synthetic(folder):
    return recap_files.write_files(folder, files=1, rows=200)


def web(folder):
    """Real alt texts, each beside a real caption of another image."""
    if not WEB.is_dir():
        pytest.skip("needs the web captions")
    alt_texts = pq.read_table(WEB / "laion_style_test_1000.parquet")["TEXT"].to_pylist()
    with gzip.open(WEB / "cc3m_validation.tsv.gz", "rt", encoding="utf-8") as lines:
        captions = [next(lines).split("\t")[0] for _ in alt_texts]
    return str(recap_files.write(folder / "web.parquet", alt_texts, captions, row_group_size=100))


def start(files, workdir):
    return subprocess.run(
        [
            *(sys.executable, "-m", "platojax.main", "--config", "configs/recap_940m.py:runlocal"),
            *("--workdir", str(workdir), f"--config.data.files={files}", *SMALLER),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        timeout=300,
    )


@pytest.mark.parametrize("rows", [synthetic, web])
def test_the_form_for_a_laptop_trains_and_is_not_trained_twice(rows, tmp_path):
    files, workdir = rows(tmp_path), tmp_path / "workdir"
    result = start(files, workdir)
    assert result.returncode == 0, result.stderr
    run = workdir / "text_good-seed0"
    logged = read_jsonl(run / "metrics.jsonl")
    assert [row["step"] for row in logged] == list(range(4, STEPS + 1, 4))
    assert [row["samples"] for row in logged] == [64 * row["step"] for row in logged]
    losses = [row["loss"] for row in logged]
    assert np.mean(losses[-2:]) < 0.9 * np.mean(losses[:2]), losses
    assert logged[-1]["skipped"] == 0

    written = {path: path.stat().st_mtime_ns for path in (run / "checkpoints").rglob("*")}
    kept = [(run / name).read_bytes() for name in ("metrics.jsonl", "timing.jsonl")]
    assert written
    again = start(files, workdir)
    assert again.returncode == 0, again.stderr
    assert [(run / name).read_bytes() for name in ("metrics.jsonl", "timing.jsonl")] == kept
    assert {p: p.stat().st_mtime_ns for p in (run / "checkpoints").rglob("*")} == written
