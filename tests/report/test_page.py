import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from platojax.cli import app
from platojax.data.scenes import Picture, Scene
from platojax.evaluation.comparison import RunFeatures, compare
from platojax.evaluation.features import FeatureMeta, write_features
from platojax.hashing import hash_items
from platojax.report import findings
from platojax.report.gallery import evenly_chosen
from platojax.report.page import write_page
from platojax.report.record import Cell, read_record

N, HELDOUT = 60, 40
GROUPS = ("Animals & <Nature>", "Objects", "Symbols")
PROTOCOL = {"metric": "mutual_knn", "k": 5, "clip": "none", "num_permutations": 19, "seed": 0}
LABELS = {
    "image_good": "two artists",
    "image_bad": "two crops",
    "text_good": "two languages & <more>",
    "text_bad": "two masks of one text",
    "text_next_token": "next-token prediction",
}
# How much of an encoder is noise: less noise is a higher score.
NOISE = {"image_good": 0.1, "image_bad": 2, "text_good": 0.3, "text_bad": 3, "text_next_token": 2}


@pytest.fixture(scope="module")
def scenes():
    rng = np.random.default_rng(0)
    return [
        Scene(
            scene_id=f"{i:05x}",
            emoji="x",
            name=f"scene <{i}>",
            group=GROUPS[i % 3],
            subgroup="any",
            texts=(),
            pictures=(Picture("noto", rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)),),
        )
        for i in range(N)
    ]


@pytest.fixture(scope="module")
def make(tmp_path_factory, scenes):
    """Writes a workdir as an experiment leaves it."""

    def make(*, arms=tuple(LABELS), seeds=2, noise=NOISE, metrics=True):
        workdir = tmp_path_factory.mktemp("workdir")
        rng = np.random.default_rng(0)
        signal = rng.normal(size=(N, 1, 8))
        runs = []
        for arm in arms:
            modality = arm.split("_")[0]
            objective = "next_token" if arm == "text_next_token" else "lejepa"
            for seed in range(seeds if modality == "text" else 1):
                folder = workdir / f"{arm}-seed{seed}"
                for step, extra in ((0, 5), (10, 0)):
                    size = (N, 2, 8)
                    features = signal + (noise[arm] + extra) * rng.normal(size=size)
                    write_features(folder / "features" / f"step_{step}", features, meta(scenes))
                if metrics:
                    write_metrics(folder, objective)
                runs.append(
                    RunFeatures(arm, LABELS[arm], modality, objective, seed, 8, folder / "features")
                )
        scores = compare(runs, PROTOCOL, {"heldout": slice(HELDOUT), "all": slice(None)})
        config = {
            "data": "emoji",
            "seed": 0,
            "text": {"num_samples": 80, "encoder": {"width": 8, "depth": 2}},
            "image": {"num_samples": 80},
            "arms": {
                run.arm: {
                    "modality": run.modality,
                    "objective": {"name": run.objective},
                    "seeds": run.seed + 1,  # the last run of an arm decides
                }
                for run in runs
            },
            "evaluation": {"sources": ["cldr_en"], "artists": ["noto"], "drawings": 1},
        }
        (workdir / "config.json").write_text(json.dumps(config))
        (workdir / "scores.json").write_text(json.dumps(scores))
        return workdir

    return make


@pytest.fixture(scope="module")
def workdir(make):
    """One that no test changes."""
    return make()


@pytest.fixture(scope="module")
def page(workdir, scenes):
    return read(workdir, scenes)


def meta(scenes):
    return FeatureMeta(
        encoder="any",
        weights_hash="0",
        dataset="emoji",
        items_hash=hash_items([scene.scene_id for scene in scenes]),
        preprocessing="none",
        pooling="mean",
        layers=("block_0", "embedding"),
    )


def write_metrics(folder, objective):
    rows = [{"step": step, "samples": 8 * step, "loss": 1 / step, "skipped": 0} for step in (1, 5)]
    for row in rows:
        row |= {"spread": 0.5, "effective_rank": None}  # null: it was not finite
        if objective == "lejepa":
            row |= {"sigreg": 2.0, "prediction": None if row["step"] == 1 else 0.1}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def read(workdir, scenes):
    path = write_page(workdir, scenes)
    assert path == workdir / "report.html"
    return path.read_text(encoding="utf-8")


def headline(page):
    return re.search(r"<h1>(.*?)</h1>", page, re.S)[1]


def test_says_that_good_views_are_ahead_where_they_are(page):
    assert headline(page).startswith("Text trained on good views agrees with drawings better")
    assert "by more than the seeds differ" in headline(page)


def test_says_plainly_that_good_views_are_not_ahead(make, scenes):
    page = read(make(noise=NOISE | {"text_good": 2, "text_next_token": 0.3}), scenes)
    assert "does not beat next-token prediction here" in headline(page)
    assert "next-token prediction agrees with drawings better" in headline(page)


def test_a_difference_within_the_spread_is_no_difference(make, scenes):
    workdir = make()
    scores = json.loads((workdir / "scores.json").read_text())
    for entry in scores["scores"]:
        if entry["text"] in ("text_good", "text_next_token"):
            entry["score"] = 0.3 + 0.1 * entry["text_seed"] + 0.01 * (entry["text"] == "text_good")
    (workdir / "scores.json").write_text(json.dumps(scores))
    page = read(workdir, scenes)
    assert "does not beat next-token prediction" in headline(page)
    assert "no larger than the seeds' spread" in headline(page).replace("&#39;", "'")


def test_ahead_only_in_the_embedding_is_said_in_the_headline(make, scenes):
    workdir = make()
    scores = json.loads((workdir / "scores.json").read_text())
    for entry in scores["scores"]:
        if entry["text"] == "text_next_token" and entry["layers"] == "best":
            entry["score"] = 0.99
    (workdir / "scores.json").write_text(json.dumps(scores))
    assert "but not when each is scored at its best layers" in headline(read(workdir, scenes))


def test_one_seed_is_not_called_a_difference(make, scenes):
    page = read(make(seeds=1), scenes)
    assert "one seed cannot tell a difference from luck" in headline(page)
    assert "±" not in page.split("<section>")[0].split('<p class="note">')[0]
    assert "†" in page


@pytest.mark.parametrize(
    ("good", "other", "verdict"),
    [
        ((0.2, 0.01), (0.1, 0.02), "above"),
        ((0.1, 0.01), (0.2, 0.02), "below"),
        ((0.2, 0.01), (0.1, 0.11), "within"),
        ((0.2, None), (0.1, 0.01), "untested"),
    ],
)
def test_the_larger_spread_decides(good, other, verdict):
    cells = [Cell(m, s, 3, 0.05, 0.03, 0.1, (("a", "b"),)) for m, s in (good, other)]
    assert findings.judge(*cells) == verdict


def test_names_every_arm_and_escapes_what_it_did_not_write(page):
    for arm in (*LABELS, "text_untrained", "text_untrained_causal"):
        assert f" {arm}" in page
    assert "two languages &amp; &lt;more&gt;" in page
    assert "&lt;Nature&gt;" in page
    assert "<Nature>" not in page
    assert "<title>scene &lt;" in page


def test_needs_nothing_but_itself(page):
    sources = re.findall(r"""(?:src|href|url\(|@import)\s*=?\s*["'(]?([^"')>\s]+)""", page)
    assert sources
    assert all(source.startswith(("#", "data:image/png;base64,")) for source in sources)
    assert "<script" not in page
    assert "<link" not in page
    assert "http" not in page


def test_ids_are_unique_and_all_references_are_met(page):
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)


def test_is_the_same_every_time(workdir, page, scenes):
    assert read(workdir, scenes) == page


def test_survives_missing_metrics(make, scenes):
    page = read(make(metrics=False), scenes)
    assert page.count("Nothing of this was logged.") == 6
    assert headline(page).startswith("Text trained on good views agrees")


@pytest.mark.parametrize(
    ("arms", "said"),
    [
        (("image_good", "text_good"), "there is no arm text_next_token"),
        (("image_good", "text_next_token", "text_bad"), "says nothing about good views"),
        (("image_bad", "text_good", "text_next_token"), "needs the features of the arms"),
        (("text_good", "text_next_token"), "There is no trained image arm"),
        (("image_good",), "There are no scores"),
    ],
)
def test_says_which_part_is_left_out_where_arms_are_missing(make, scenes, arms, said):
    page = read(make(arms=arms), scenes)
    assert said in page
    assert all(f" {arm}" in page for arm in arms)


def test_another_arm_of_the_users_is_shown_under_its_label(make, scenes, monkeypatch):
    monkeypatch.setitem(LABELS, "text_mine", "my own views")
    page = read(make(arms=tuple(LABELS), noise=NOISE | {"text_mine": 1}), scenes)
    assert "text_mine" in page
    assert "my own views" in page


def test_neighbours_are_chosen_without_the_scores(scenes):
    chosen = evenly_chosen(scenes[:HELDOUT], 12)
    assert chosen == evenly_chosen(scenes[:HELDOUT], 12)
    assert len(set(chosen)) == 12
    counts = [sum(scenes[i].group == group for i in chosen) for group in GROUPS]
    assert counts == [4, 4, 4]
    assert sorted(evenly_chosen(scenes[:5], 12)) == list(range(5))


def test_neighbours_are_held_out_and_shared_ones_are_marked_on_both_sides(page):
    shown = {int(i, 16) for i in re.findall(r'href="#scene-(\w+)"', page)}
    assert max(shown) < HELDOUT
    shared = [int(count) for count in re.findall(r"(\d) of 5 shared", page)]
    assert len(shared) == 12
    assert page.count('class="tile shared"') == 2 * sum(shared) > 0


def test_each_drawing_is_on_the_page_once(page):
    drawings = re.findall(r"data:image/png;base64,[^\"]+", page)
    assert len(drawings) == len(set(drawings))


def test_refuses_scenes_that_the_features_are_not_about(workdir, scenes):
    with pytest.raises(ValueError, match=r"about 60 scenes, the data has 59"):
        write_page(workdir, scenes[1:])
    with pytest.raises(ValueError, match="other scenes than the data has"):
        write_page(workdir, scenes[::-1])


def test_cells_are_means_over_seeds(workdir):
    record = read_record(workdir)
    cell = record.cells("heldout", "best")["text_good", "image_good"]
    entries = [
        e
        for e in record.scores["scores"]
        if (e["text"], e["image"], e["items"], e["layers"])
        == ("text_good", "image_good", "heldout", "best")
    ]
    assert cell.seeds == len(entries) == 2
    assert cell.calibrated == pytest.approx(np.mean([e["calibrated"] for e in entries]))
    assert cell.spread == pytest.approx(np.std([e["score"] for e in entries], ddof=1))


def test_report_command_on_a_missing_workdir_says_so_in_one_line(tmp_path):
    result = CliRunner().invoke(app, ["report", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "has no config.json" in result.stderr
    assert not (tmp_path / "none").exists()
