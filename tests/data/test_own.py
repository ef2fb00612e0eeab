"""`platojax prepare own`: what a newcomer brings, good and bad."""

import json
import os
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from platojax.cli import app
from platojax.data import rejects
from platojax.data.items import load_items
from platojax.data.prepared import PreparedScenes, read_info
from platojax.data.raw import own
from platojax.data.raw.scene import RawScene
from platojax.data.rejects import Rejected
from platojax.data.scenes import EMOJI_TOKENIZER
from platojax.data.tokenizer import Tokenizer
from tests.data.pictures import encode, pixels

TABLE = """scene_id,caption
1,a red bus at a stop
1,a bus waits in the rain
2,"two cats, asleep"
2,cats on a sofa
"""


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def scenes_of(rows):
    return [row for row in rows if isinstance(row, RawScene)]


def reasons_of(rows):
    return [row.reason for row in rows if isinstance(row, Rejected)]


def prepare(*arguments):
    result = CliRunner().invoke(app, ["prepare", "own", *map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


def test_five_lines_are_enough(tmp_path):
    (tmp_path / "captions.csv").write_text(TABLE)
    code, output = prepare(tmp_path / "captions.csv", "--out", tmp_path / "mine")
    assert code == 0, output
    assert "train: 2 scenes, 4 texts" in output
    scene = PreparedScenes(tmp_path / "mine", "train")[1]
    assert (scene.scene_id, [text.name for text in scene.texts]) == (
        "2",
        ["two cats, asleep", "cats on a sofa"],
    )


def test_rows_with_everything(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "1.jpg").write_bytes(encode(pixels()))
    path = write_rows(
        tmp_path / "a.jsonl",
        [
            dict(
                scene_id=7,
                captions=["a bus", "the bus"],
                language="en",
                source="me",
                image="photos/1.jpg",
                split="test",
                label=3,
            ),
            dict(scene_id=7, caption="ein Bus", language="de", image="photos/1.jpg", split="test"),
            dict(scene_id=7, caption="حافلة 🚌", language="ar"),
        ],
    )
    (scene,) = own.read(path)
    assert (scene.scene_id, scene.split, scene.label) == ("7", "test", "3")
    assert [(text.source, text.language, text.name) for text in scene.texts] == [
        ("me", "en", "a bus"),
        ("me", "en", "the bus"),
        ("own", "de", "ein Bus"),
        ("own", "ar", "حافلة 🚌"),
    ]
    assert [picture.content for picture in scene.pictures] == [encode(pixels())]


def test_all_columns_of_texts_are_read(tmp_path):
    (tmp_path / "a.csv").write_text("scene_id,text,caption\n1,a bus,the bus\n2,a cat,\n")
    scenes = list(own.read(tmp_path / "a.csv"))
    found = [[text.name for text in one.texts] for one in scenes]
    assert found == [["the bus", "a bus"], ["a cat"]]
    assert load_items(str(tmp_path / "a.csv")).texts == (("the bus", "a bus"), ("a cat",))


def test_a_text_that_rows_of_several_images_repeat_is_one(tmp_path):
    images = [encode(pixels(seed=i)) for i in range(2)]
    table = pa.table({"scene_id": ["1", "1"], "caption": ["a bus"] * 2, "image": images})
    pq.write_table(table, tmp_path / "a.parquet")
    (scene,) = own.read(tmp_path / "a.parquet")
    assert (len(scene.texts), len(scene.pictures)) == (1, 2)


def test_white_space_around_an_id_is_none_of_it(tmp_path):
    (tmp_path / "a.csv").write_text("scene_id,caption\n3,a bus\n 3 ,the bus\n")
    (scene,) = own.read(tmp_path / "a.csv")
    assert (scene.scene_id, len(scene.texts)) == ("3", 2)
    assert load_items(str(tmp_path / "a.csv")).ids == ("3",)


def test_a_row_may_leave_out_what_another_says(tmp_path):
    rows = [
        dict(scene_id=1, caption="a"),
        dict(scene_id=1, caption="b", label="cat", split="test"),
        dict(scene_id=1, caption="c", label="dog"),
    ]
    rows = list(own.read(write_rows(tmp_path / "a.jsonl", rows)))
    assert rows[0] == Rejected(own.SECOND_VALUE, "a.jsonl line 3")
    assert (rows[1].label, rows[1].split) == ("cat", "test")
    assert [text.name for text in rows[1].texts] == ["a", "b"]


def test_parquet_with_encoded_images_and_rows_without_ids(tmp_path):
    images = [{"bytes": encode(pixels(seed=i)), "path": None} for i in range(3)]
    pq.write_table(
        pa.table({"image": images, "text": ["one", "two", None], "extra": [1, 2, 3]}),
        tmp_path / "a.parquet",
    )
    for path in (tmp_path / "a.parquet", tmp_path):  # a file, or a folder of them
        scenes = scenes_of(own.read(path))
        assert [scene.scene_id for scene in scenes] == ["0", "1", "2"]
        assert [len(scene.texts) for scene in scenes] == [1, 1, 0]
        assert scenes[2].pictures[0].content == images[2]["bytes"]


def test_images_are_not_all_in_memory(tmp_path):
    rng = np.random.default_rng(0)
    table = {
        "scene_id": [str(i // 2) for i in range(600)],
        "caption": [f"caption {i}" for i in range(600)],
        "image": [
            rng.bytes(100_000) for _ in range(600)
        ],  # no image, which is found when it is read
    }
    pq.write_table(pa.table(table), tmp_path / "a.parquet", row_group_size=64)
    del table
    tracemalloc.start()
    scenes = [row for row in own.read(tmp_path / "a.parquet") if not isinstance(row, Rejected)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [len(scene.texts) for scene in scenes] == [2] * 300
    assert peak < 45_000_000


def test_a_scene_whose_rows_are_apart_is_one(tmp_path):
    rows = [dict(scene_id=i, caption=f"{i} {n}") for n in range(3) for i in (2, 1)]
    rows += [dict(scene_id=2, caption=7), dict(scene_id=3, label=[])]
    found = list(own.read(write_rows(tmp_path / "a.jsonl", rows)))
    assert [(one.scene_id, [text.name for text in one.texts]) for one in scenes_of(found)] == [
        ("1", ["1 0", "1 1", "1 2"]), ("2", ["2 0", "2 1", "2 2"]),
    ]  # fmt: skip
    assert reasons_of(found) == [rejects.WRONG_TYPE, own.BAD_FIELD]


def test_a_folder_of_images(tmp_path):
    for name in ("cat/1.jpg", "dog/1.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(encode(pixels(), "PNG" if name.endswith("png") else "JPEG"))
    (tmp_path / "dog" / "2.jpg").write_bytes(b"")
    rows = list(own.read(tmp_path))
    assert [(one.scene_id, one.label, len(one.pictures)) for one in scenes_of(rows)] == [
        ("cat/1", "cat", 1),
        ("dog/1", "dog", 1),
        ("dog/2", "dog", 0),
    ]
    assert [row for row in rows if isinstance(row, Rejected)] == [
        Rejected(rejects.EMPTY_FILE, str(tmp_path / "dog" / "2.jpg"))
    ]


def test_pipes_and_links_to_nowhere_are_not_waited_for(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "1.jpg").write_bytes(encode(pixels()))
    (tmp_path / "photos" / "2.jpg").symlink_to("gone.jpg")
    os.mkfifo(tmp_path / "photos" / "3.jpg")
    code, output = prepare(
        *(tmp_path / "photos", "--out", tmp_path / "out", "--max-bad-fraction", 0.7)
    )
    assert code == 0, output
    assert read_info(tmp_path / "out").rejected == {rejects.MISSING_FILE: 2}
    with pytest.raises(ValueError, match=r"2.jpg is a link to nowhere, or a pipe"):
        load_items(str(tmp_path / "photos"))
    for name in ("a.csv", "b.parquet"):
        os.mkfifo(tmp_path / name)
        code, output = prepare(tmp_path / name, "--out", tmp_path / "none")
        assert code == 2
        assert f"{name} is a pipe or a device" in output


def test_a_share_is_held_out_and_stays_so_when_scenes_are_added(tmp_path):
    def heldout(count):
        rows = [dict(scene_id=i, caption=f"caption {i}") for i in range(count)]
        scenes = scenes_of(own.read(write_rows(tmp_path / "a.jsonl", rows), heldout=0.2))
        assert {scene.split for scene in scenes} == {"train", "heldout"}
        return {int(scene.scene_id) for scene in scenes if scene.split == "heldout"}

    few, many = heldout(500), heldout(1000)
    assert few == {i for i in many if i < 500}
    assert len(many) == pytest.approx(200, abs=40)


# ---- The bad-input table -------------------------------------------------------------------

GOOD = [dict(scene_id=f"good {i}", caption=f"caption {i}", label="a") for i in range(8)]
MEGABYTE = "long " * 200_000


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (dict(scene_id="x", caption=""), rejects.EMPTY_TEXT),
        (dict(scene_id="x", caption=" \t\n\u2003"), rejects.EMPTY_TEXT),
        (dict(scene_id="x", caption="a\0b"), rejects.NOT_TEXT),
        (dict(scene_id="x", caption="half a pair \ud83d"), rejects.NOT_TEXT),
        (dict(scene_id="x", caption=MEGABYTE), rejects.LONG_TEXT),
        (dict(scene_id="x", caption=5), rejects.WRONG_TYPE),
        (dict(scene_id="x", captions=[None]), rejects.MISSING_TEXT),
        (dict(scene_id="x", caption=["fine", {}]), rejects.WRONG_TYPE),
        (dict(scene_id="x"), own.NOTHING),
        (dict(scene_id="x", text=None), own.NOTHING),
        (dict(caption="no id"), own.BAD_ID),
        (dict(scene_id="", caption="empty id"), own.BAD_ID),
        (dict(scene_id=1.5, caption="a number"), own.BAD_ID),
        (dict(scene_id="x", caption="a bus", label=["a"]), own.BAD_FIELD),
        (dict(scene_id="x", caption="a bus", image=5), own.BAD_IMAGE_FIELD),
        (dict(scene_id="x", caption="a bus", image="nowhere.jpg"), rejects.MISSING_FILE),
        (dict(scene_id="good 1", caption="a bus", label="b"), own.SECOND_VALUE),
        (dict(scene_id="x", caption="a bus", label="\ud83d"), own.BAD_FIELD),
        (dict(scene_id="good 1", caption="caption 1"), rejects.IDENTICAL_TEXTS),
        ([1, 2], own.BAD_ROW),
    ],
)
def test_what_cannot_be_used_is_counted_by_reason_and_skipped(tmp_path, bad, reason):
    path = write_rows(tmp_path / "a.jsonl", [*GOOD[:3], bad, *GOOD[3:]])
    code, output = prepare(path, "--out", tmp_path / "out", "--max-bad-fraction", 0.2)
    assert code == 0, output
    assert f"{reason} 1 (first: " in output
    assert read_info(tmp_path / "out").rejected == {reason: 1}
    ids = [scene.scene_id for scene in PreparedScenes(tmp_path / "out", "train")]
    assert sorted(one for one in ids if one != "x") == [row["scene_id"] for row in GOOD]
    code, output = prepare(path, "--out", tmp_path / "strict", "--max-bad-fraction", 0)
    assert code == 2
    assert "more than max_bad_fraction 0" in output
    assert not (tmp_path / "strict").exists()


def test_where_the_first_of_a_reason_is_can_be_found(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [*GOOD, dict(scene_id="x", caption="")])
    rejected = [row for row in own.read(path) if isinstance(row, Rejected)]
    assert rejected == [Rejected(rejects.EMPTY_TEXT, "a.jsonl line 9")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"\xff\xfes\0c\0,\0", "a.csv is not UTF-8; convert it"),
        ("a.csv", b"scene_id,caption\n1,caf\xe9\n", "broken UTF-8 1 (first: a.csv line 2)"),
        ("a.csv", b"scene_id;caption\n1;a\n", "a.csv has the columns ['scene_id;caption'], but"),
        ("a.csv", b"scene_id,caption\n", "a.csv has no rows"),
        ("a.csv", b'scene_id,caption\n1,"open\n', "a.csv is not a table of fields"),
        ("a.csv", b"scene_id,caption,caption\n1,a,b\n", "two columns have one name"),
        ("a.csv", b"", "a.csv has no rows"),
        ("a.parquet", b"PAR1 and no more", "is not a whole Parquet file"),
        ("a.xlsx", b"", "expected a folder of images or a file"),
        (
            "a.jsonl",
            b'{"scene_id": 1, "caption": "a", "split": "a b"}\n',
            "split that is not letters, digits and _ 1 (first: a.jsonl line 1)",
        ),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    code, output = prepare(tmp_path / name, "--out", tmp_path / "out")
    assert code == 2
    assert message in output
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_is_not_there_is_refused(tmp_path):
    code, output = prepare(tmp_path / "nothing.csv", "--out", tmp_path / "out")
    assert code == 2
    assert "nothing.csv does not exist" in output
    (tmp_path / "captions.csv").write_text(TABLE)
    assert prepare(tmp_path / "captions.csv", "--out", tmp_path / "o", "--heldout", 1)[0] == 2


def test_a_caption_of_a_megabyte_in_a_table_costs_only_itself(tmp_path):
    (tmp_path / "a.csv").write_text(f"{TABLE}3,{MEGABYTE}\n")
    rows = list(own.read(tmp_path / "a.csv"))
    assert reasons_of(rows) == [rejects.LONG_TEXT]
    assert [len(scene.texts) for scene in scenes_of(rows)] == [2, 2, 0]


def test_a_broken_byte_in_a_table_costs_only_its_text(tmp_path):
    (tmp_path / "a.csv").write_bytes(TABLE.encode() + b"3,caf\xe9\n3,a coffee\n")
    rows = list(own.read(tmp_path / "a.csv"))
    assert Rejected(rejects.NOT_TEXT, "a.csv line 6") in rows
    assert [len(scene.texts) for scene in scenes_of(rows)] == [2, 2, 1]


def test_texts_of_any_script_come_back(tmp_path):
    captions = ["שלום עולם", "مرحبا", "👩‍👩‍👧‍👦 🏳️‍🌈", "é", "a‮b"]
    path = write_rows(tmp_path / "a.jsonl", [dict(scene_id=1, captions=captions)])
    assert prepare(path, "--out", tmp_path / "out")[0] == 0
    scene = PreparedScenes(tmp_path / "out", "train")[0]
    assert [text.name for text in scene.texts] == captions


def test_the_same_rows_give_the_same_data(tmp_path):
    rows = [
        dict(scene_id=int(i), caption=f"c {n}")
        for n, i in enumerate(np.random.default_rng(0).integers(9, size=40))
    ]
    path = write_rows(tmp_path / "a.jsonl", rows)
    infos = []
    for name in ("one", "two"):
        assert prepare(path, "--out", tmp_path / name)[0] == 0
        infos.append((tmp_path / name / "info.json").read_bytes())
    assert infos[0] == infos[1]


# ---- What all sources take -----------------------------------------------------------------


def test_texts_can_be_tokenised_at_once(tmp_path):
    (tmp_path / "captions.csv").write_text(TABLE)
    code, output = prepare(
        *(tmp_path / "captions.csv", "--out", tmp_path / "ids", "--tokenizer", EMOJI_TOKENIZER)
    )
    assert code == 0, output
    tokenizer = Tokenizer(EMOJI_TOKENIZER)
    assert read_info(tmp_path / "ids").tokenizer == {"hash": tokenizer.hash, "vocab_size": 4000}
    texts = PreparedScenes(tmp_path / "ids", "train")[0].texts
    assert tokenizer.decode(texts[0].ids) == "a red bus at a stop"


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (b"1\n", "Left out 1 scenes of the 1 in"),
        (b"1\nelsewhere\n", "Left out 1 scenes of the 2 in"),
        (b"\xef\xbb\xbf1\n", "Left out 1 scenes of the 1 in"),
        (b"1\n2\n", "no scene is left to write"),
        (
            b"1.jpg\n",
            "none of the 1 ids to exclude, such as '1.jpg', is a scene's; those are such as '1'.",
        ),
        (b" \n", "exclude.txt is empty; give ids, one a line"),
        (b"\xff\n", "exclude.txt is not UTF-8"),
        (None, "exclude.txt cannot be read (No such file or directory); give a file of ids"),
    ],
)
def test_scenes_are_left_out_by_their_ids(tmp_path, ids, message):
    (tmp_path / "captions.csv").write_text(TABLE)
    if ids is not None:
        (tmp_path / "exclude.txt").write_bytes(ids)
    code, output = prepare(
        *(tmp_path / "captions.csv", "--out", tmp_path / "out"),
        *("--exclude", tmp_path / "exclude.txt"),
    )
    assert message in output
    assert (code == 0) == message.startswith("Left out")
    assert (tmp_path / "out").exists() == (code == 0)


def test_where_nothing_can_be_written_is_refused(tmp_path):
    (tmp_path / "captions.csv").write_text(TABLE)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    for out, message in (
        ("captions.csv/x", "captions.csv/x cannot be made there (Not a directory)"),
        ("link", "link is a link; name the folder it leads to"),
    ):
        code, output = prepare(tmp_path / "captions.csv", "--out", tmp_path / out)
        assert code == 2
        assert message in output
    for arguments in ((tmp_path / "captions.csv", "--out", ""), ("", "--out", tmp_path / "out")):
        code, output = prepare(*arguments)
        assert code == 2
        assert "the path is empty" in output
    assert not list((tmp_path / "folder").iterdir())


def test_of_a_folder_of_images_no_file_is_hashed(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "1.jpg").write_bytes(encode(pixels()))
    assert prepare(tmp_path / "photos", "--out", tmp_path / "out")[0] == 0
    assert read_info(tmp_path / "out").source == {"files": []}


@pytest.mark.parametrize("fraction", [-0.1, 1])
def test_an_impossible_share_is_refused(tmp_path, fraction):
    (tmp_path / "captions.csv").write_text(TABLE)
    code, output = prepare(
        *(tmp_path / "captions.csv", "--out", tmp_path / "out", "--max-bad-fraction", fraction)
    )
    assert code == 2
    assert "max_bad_fraction must be in [0, 1)" in output
