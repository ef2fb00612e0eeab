import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow_datasets as tfds
from typer.testing import CliRunner

from platojax.cli import app
from platojax.data import bulk
from platojax.data.bulk import DUPLICATE_IMAGE, DUPLICATE_TEXTS, RECAP, Plan
from platojax.data.paths import find_files
from platojax.data.prepared import PreparedScenes, read_info
from platojax.data.scenes import EMOJI_TOKENIZER
from platojax.data.tokenizer import Tokenizer
from tests.data import recap_files
from tests.data.test_recap import BAD, WEB

ROOT = pathlib.Path(__file__).parents[2]


def write_rows(path, rows, **arguments):
    """Rows `(org_caption, re_caption, sha256)`."""
    org, re, sha256 = (list(column) for column in zip(*rows, strict=True))
    recap_files.write(path, org, re, sha256=sha256, **arguments)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Three files of 40 good rows, with some of every bad kind and duplicates between them."""
    folder = tmp_path_factory.mktemp("rows")
    rows = [(*recap_files.captions(i), f"{i:064x}") for i in range(120)]
    rows[100] = (*recap_files.captions(900), rows[3][2])  # the image of row 3, other texts
    rows[101] = (*recap_files.captions(3), f"{901:064x}")  # the texts of row 3, another image
    rows[102] = (*recap_files.captions(901), None)  # images that are unknown
    rows[103] = (*recap_files.captions(902), None)
    # Its image is row 5's, so it goes; the one after it has its texts, and stays.
    rows[104] = (*recap_files.captions(903), rows[5][2])
    rows[105] = (*recap_files.captions(903), f"{902:064x}")
    for i, texts in enumerate(BAD.values()):
        rows[50 + i] = (*texts, f"{1000 + i:064x}")
    for i in range(3):
        write_rows(folder / f"{i}.parquet", rows[40 * i : 40 * i + 40])
    return sorted(map(str, folder.iterdir()))


LEFT_OUT = {50, 51, 52, 53, 54, 100, 101, 104}


def plan(files, **fields):
    return Plan.make(
        RECAP, files, **dict(rows_per_shard=16, max_characters=100, max_bad_fraction=0.1) | fields
    )


def contents(folder):
    """What is in the files, but for how it is compressed."""
    info = json.loads((folder / "info.json").read_text())
    for split in info["splits"].values():
        for shard in split["shards"]:
            del shard["bytes"]
    return info


@pytest.fixture(scope="module")
def folder(files, tmp_path_factory):
    out = tmp_path_factory.mktemp("prepared") / "recap"
    bulk.prepare(plan(files), out, workers=1)
    return out


def test_usable_rows_are_prepared_in_order_and_others_counted(folder):
    scenes = PreparedScenes(folder, "train")
    ids = [f"{i // 40}.parquet:{i % 40}" for i in range(120) if i not in LEFT_OUT]
    assert [scene.scene_id for scene in scenes] == ids
    assert [text.name for text in scenes[7].texts] == list(recap_files.captions(7))
    assert [(t.source, t.language) for t in scenes[7].texts] == [
        ("org_caption", ""),
        ("re_caption", "en"),
    ]
    info = read_info(folder)
    assert info.rejected == {**dict.fromkeys(BAD, 1), DUPLICATE_IMAGE: 2, DUPLICATE_TEXTS: 1}
    assert info.first_rejected[DUPLICATE_IMAGE] == "2.parquet row 20"
    assert info.first_rejected[DUPLICATE_TEXTS] == "2.parquet row 21"
    assert info.first_rejected["missing text"] == "1.parquet row 10"
    # Three pieces of each file.
    assert [shard.scenes for shard in info.splits["train"].shards] == [
        16,
        16,
        8,
        11,
        16,
        8,
        16,
        13,
        8,
    ]
    assert sorted(p.name for p in folder.parent.iterdir()) == ["recap"]


def test_tensorflow_datasets_reads_it(folder):
    source = tfds.builder_from_directory(folder).as_data_source("train")
    assert len(source) == 112
    assert source[0]["texts"]["text"][1].decode() == recap_files.captions(0)[1]


def test_texts_are_tokenised_once(files, tmp_path):
    out = tmp_path / "out"
    bulk.prepare(plan(files, tokenizer=str(EMOJI_TOKENIZER)), out, workers=1)
    tokenizer = Tokenizer(EMOJI_TOKENIZER)
    text = PreparedScenes(out, "train")[0].texts[1]
    assert text.name == ""
    assert text.ids.tolist() == tokenizer.encode(recap_files.captions(0)[1])
    assert read_info(out).tokenizer["hash"] == tokenizer.hash


def test_processes_change_nothing(files, folder, tmp_path):
    progress = []
    bulk.prepare(
        plan(files), tmp_path / "out", workers=2, on_progress=lambda *done: progress.append(done)
    )
    assert contents(tmp_path / "out") == contents(folder)
    assert progress[0] == ("scan", 0, 120)
    assert progress[-1] == ("write", 120, 120)


def test_a_piece_of_which_nothing_is_left_makes_no_shard(files, folder, tmp_path):
    # A file of rows that are all in another one.
    again = tmp_path / "9.parquet"
    again.write_bytes(pathlib.Path(files[0]).read_bytes())
    bulk.prepare(plan([*files, str(again)]), tmp_path / "out", workers=1)
    info = read_info(tmp_path / "out")
    assert info.splits == read_info(folder).splits
    assert info.rejected[DUPLICATE_IMAGE] == 42


# ---- Stopped, and gone on with --------------------------------------------------------------


def test_a_killed_preparation_goes_on(files, folder, tmp_path):
    """SIGKILL while pieces are scanned, and while they are written: what is there is kept."""
    out, work = tmp_path / "out", tmp_path / "out.work"
    program = (
        "import pathlib, time; from platojax.data import bulk; from tests.data import test_bulk\n"
        "def slow(f):\n"
        "    def g(*a): time.sleep(.2); return f(*a)\n"
        "    return g\n"
        "bulk.scan_piece, bulk.write_piece = slow(bulk.scan_piece), slow(bulk.write_piece)\n"
        f"bulk.prepare(test_bulk.plan({files!r}), pathlib.Path({str(out)!r}), workers=1)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    for results, count in (("scan-*/reasons.npy", 2), ("scan-*/reasons.npy", 6), ("*.json", 5)):
        process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env=environment)
        while len(list(work.glob(results))) < count:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not out.exists()
    done = []
    bulk.prepare(plan(files), out, workers=1, on_progress=lambda *one: done.append(one))
    assert done[0][0] == "write"  # all were scanned
    assert done[0][1] > 0  # and some written
    assert contents(out) == contents(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


@pytest.mark.slow
def test_workers_end_with_their_parent(files, folder, tmp_path):
    out, work = tmp_path / "out", tmp_path / "out.work"
    program = (
        "import pathlib; from platojax.data import bulk; from tests.data import test_bulk\n"
        "if __name__ == '__main__':\n"
        f"    plan = test_bulk.plan({files!r}, rows_per_shard=1)\n"
        f"    bulk.prepare(plan, pathlib.Path({str(out)!r}), workers=2)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env=environment)
    while not list(work.glob("scan-*/reasons.npy")):
        assert process.poll() is None
        time.sleep(0.01)
    of_parent = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = [
        pathlib.Path("/proc", pid)
        for pid in of_parent
        if b"spawn_main" in pathlib.Path("/proc", pid, "cmdline").read_bytes()
    ]
    assert len(workers) == 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 10
    while any(worker.exists() for worker in workers):
        assert time.monotonic() < deadline, "a worker outlives its parent"
        time.sleep(0.01)
    bulk.prepare(plan(files, rows_per_shard=1), out, workers=1)
    assert read_info(out).rejected == read_info(folder).rejected


def test_a_plan_begins_after_the_last_worker_of_another(files, tmp_path, monkeypatch):
    events = []
    (tmp_path / "out.work").mkdir()
    with (tmp_path / "out.work" / ".workers.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)

        def end():
            events.append("end of a worker")
            lock.close()

        threading.Timer(0.5, end).start()
        monkeypatch.setattr(bulk, "scan_piece", lambda *_: events.append("scan") or 1 / 0)
        with pytest.raises(ZeroDivisionError):
            bulk.prepare(plan(files), tmp_path / "out", workers=1)
    assert events == ["end of a worker", "scan"]


@pytest.mark.parametrize("missing", ["plan.json", "out.partial"])
def test_the_rest_of_a_finished_plan_is_not_gone_on_with(
    files, folder, tmp_path, monkeypatch, missing
):
    """Killed while the work is removed; what is left of it is of shards that are gone."""
    out, work = tmp_path / "out", tmp_path / "out.work"
    with monkeypatch.context() as patch:
        patch.setattr(bulk.preparation, "publish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            bulk.prepare(plan(files, rows_per_shard=7), out, workers=1)
    if missing == "plan.json":
        (work / "plan.json").unlink()
    else:
        shutil.rmtree(tmp_path / "out.partial")
    bulk.prepare(plan(files), out, workers=1)
    assert contents(out) == contents(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_a_shard_that_is_gone_is_written_again(files, folder, tmp_path, monkeypatch):
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    with monkeypatch.context() as patch:
        patch.setattr(bulk.preparation, "publish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            bulk.prepare(plan(files), out, workers=1)
    gone, cut = sorted(partial.glob("*array_record*"))[:2]
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    bulk.prepare(plan(files), out, workers=1)
    assert contents(out) == contents(folder)
    assert len(list(PreparedScenes(out, "train"))) == 112


@pytest.mark.parametrize("stage", ["scan_piece", "write_piece"])
def test_after_a_failure_only_what_is_missing_is_done(files, folder, tmp_path, monkeypatch, stage):
    out = tmp_path / "out"
    real, calls = getattr(bulk, stage), []

    def failing(plan, piece, *rest):
        calls.append(piece.index)
        if len(calls) == 6:
            raise OSError("disk full")
        return real(plan, piece, *rest)

    monkeypatch.setattr(bulk, stage, failing)
    with pytest.raises(OSError, match="disk full"):
        bulk.prepare(plan(files), out, workers=1)
    assert not out.exists()
    bulk.prepare(plan(files), out, workers=1)
    assert calls == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8]
    assert contents(out) == contents(folder)


def test_other_settings_do_not_go_on(files, tmp_path, monkeypatch):
    monkeypatch.setattr(bulk, "write_piece", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bulk.prepare(plan(files), tmp_path / "out", workers=1)
    with pytest.raises(ValueError, match=r"out.partial is the beginning of other files, settings"):
        bulk.prepare(plan(files, max_characters=99), tmp_path / "out", workers=1)


def test_a_file_that_is_replaced_is_noticed(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    rows = [(*recap_files.captions(i), f"{i:064x}") for i in range(20)]
    write_rows(path, rows)
    found, real = plan([str(path)]), bulk.count_reasons

    def replace(*arguments):  # between scanning and writing
        write_rows(path, rows[::-1])
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(bulk, "count_reasons", replace)
        with pytest.raises(ValueError, match=r"a.parquet was changed while it was prepared"):
            bulk.prepare(found, tmp_path / "out", workers=1)
    with pytest.raises(ValueError, match="is the beginning of other files"):
        bulk.prepare(plan([str(path)]), tmp_path / "out", workers=1)


def test_two_at_once_are_refused(files, tmp_path, monkeypatch):
    def again(*_):
        bulk.prepare(plan(files), tmp_path / "out", workers=1)

    monkeypatch.setattr(bulk, "scan_piece", again)
    with pytest.raises(ValueError, match=r"another process is writing .*out.partial; wait"):
        bulk.prepare(plan(files), tmp_path / "out", workers=1)


# ---- What is refused ------------------------------------------------------------------------


def test_too_many_unusable_rows_are_refused_with_reasons(files, tmp_path):
    with pytest.raises(ValueError, match=r"5 of 120 .* max_bad_fraction 0.01: .*1.parquet row 10"):
        bulk.prepare(plan(files, max_bad_fraction=0.01), tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_something_else_is_refused(files, tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match="is not empty; name another folder"):
        bulk.prepare(plan(files), tmp_path, workers=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(rows_per_shard=0), "rows_per_shard must be at least 1; got 0"),
        (dict(max_bad_fraction=1), r"max_bad_fraction must be in \[0, 1\); got 1"),
        (dict(split="a-b"), "split 'a-b' must be"),
    ],
)
def test_impossible_fields_are_named(files, fields, message):
    with pytest.raises(ValueError, match=message):
        plan(files, **fields)


def test_a_file_without_hashes_of_images_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"org_caption": ["a"], "re_caption": ["b"]}), path)
    with pytest.raises(ValueError, match=r"a.parquet has the columns .* but no 'sha256'"):
        plan([str(path)])


# ---- Duplicates ----------------------------------------------------------------------------


def test_blank_images_are_unlike_and_white_space_makes_no_difference(tmp_path):
    path = tmp_path / "a.parquet"
    images = ["", " ", "\n", None, "x", " x ", "y", "z"]
    texts = [[f"{i} {kind}" for i in range(len(images))] for kind in ("org", "re")]
    texts[0][7], texts[1][7] = f" {texts[0][6]}\n", f"\u3000{texts[1][6]} "  # those of "y"
    write_rows(path, list(zip(*texts, images, strict=True)))
    bulk.prepare(plan([str(path)], max_bad_fraction=0), tmp_path / "out", workers=1)
    assert read_info(tmp_path / "out").rejected == {DUPLICATE_IMAGE: 1, DUPLICATE_TEXTS: 1}
    kept = [scene.scene_id for scene in PreparedScenes(tmp_path / "out", "train")]
    assert kept == [f"a.parquet:{i}" for i in (0, 1, 2, 3, 4, 6)]


@pytest.mark.parametrize("sorted_at_a_time", [1 << 26, 100])
def test_the_first_of_each_hash_stays(monkeypatch, sorted_at_a_time):
    monkeypatch.setattr(bulk, "_SORTED", sorted_at_a_time)
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 300, 1000).astype(np.uint64) * np.uint64((1 << 54) + 7)
    reasons = (rng.random(1000) < 0.1).astype(np.uint8)
    marked = reasons.copy()
    bulk.mark_duplicates(marked, hashes, 9)
    seen = set()
    for before, after, value in zip(reasons, marked, hashes.tolist(), strict=True):
        if before:
            assert after == before
        else:
            assert after == (9 if value and value in seen else 0)
            seen.add(value)


# ---- On many machines ----------------------------------------------------------------------


def test_beam_gives_the_same(files, folder, tmp_path):
    pytest.importorskip("apache_beam")
    from platojax.data import bulk_beam

    arguments = ["--runner=DirectRunner", "--direct_num_workers=1"]
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "recap-train.array_record-00099").touch()  # of a killed run
    bulk_beam.run(plan(files), str(tmp_path / "out"), arguments)
    assert contents(tmp_path / "out") == contents(folder)
    names = [sorted(path.name for path in one.iterdir()) for one in (tmp_path / "out", folder)]
    assert names[0] == names[1]
    assert [s.scene_id for s in PreparedScenes(tmp_path / "out", "train")] == [
        s.scene_id for s in PreparedScenes(folder, "train")
    ]
    # A bucket has no folder that can be renamed: it is written in place.
    bulk_beam.run(plan(files), f"file://{tmp_path}/bucket", arguments)
    assert contents(tmp_path / "bucket") == contents(folder)
    with pytest.raises(ValueError, match="is not empty; name another folder"):
        bulk_beam.run(plan(files), f"file://{tmp_path}/bucket", arguments)
    with pytest.raises(
        ValueError, match=r"5 of 120 .* cannot be used, more than max_bad_fraction 0.01"
    ) as failed:
        bulk_beam.run(plan(files, max_bad_fraction=0.01), str(tmp_path / "no"), arguments)
    assert "\n" not in str(failed.value)
    assert not (tmp_path / "no").exists()
    assert not (tmp_path / "no.partial").exists()
    # Nothing to leave out, nothing to count.
    clean = recap_files.write_files(tmp_path, files=1, rows=10)
    bulk_beam.run(plan(find_files(clean)), str(tmp_path / "clean"), arguments)
    assert len(PreparedScenes(tmp_path / "clean", "train")) == 10
    assert read_info(tmp_path / "clean").rejected == {}


# ---- As a command --------------------------------------------------------------------------


def test_the_command_prepares_recap(files, tmp_path):
    out = tmp_path / "out"
    command = ["prepare", "recap", *files, "--out", str(out), "--workers", "1"]
    result = CliRunner().invoke(app, [*command, "--max-bad-fraction", "0.1"])
    assert result.exit_code == 0, result.output
    assert "113 scenes, 226 texts" in result.output.replace("\n", " ")  # 4,096 characters may be
    assert "duplicate image 2 (first: 2.parquet row 20)" in result.output.replace("\n", " ")
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 2
    assert "is not empty" in again.output


@pytest.mark.skipif(not WEB.is_dir(), reason="needs the web captions")
def test_real_rows_of_urls_and_texts(tmp_path):
    out = tmp_path / "out"
    laion = str(WEB / "laion_style_test_10000.parquet")
    command = ["prepare", "web", laion, "--out", str(out), "--tokenizer", str(EMOJI_TOKENIZER)]
    result = CliRunner().invoke(app, [*command, "--workers", "1", "--rows-per-shard", "4000"])
    assert result.exit_code == 0, result.output
    scenes = PreparedScenes(out, "train")
    info = read_info(out)
    assert len(info.splits["train"].shards) == 3
    assert len(scenes) + sum(info.rejected.values()) == 10_000
    first = pq.read_table(laion)["TEXT"][0].as_py()
    assert scenes[0].texts[0].ids.tolist() == Tokenizer(EMOJI_TOKENIZER).encode(first)
    assert scenes[0].scene_id == "laion_style_test_10000.parquet:0"
