"""COCO and Flickr30k: the official layouts, in small, and real rows where there are some."""

import gzip
import json
import pathlib
import shutil

import pytest
from typer.testing import CliRunner

from platojax.cli import app
from platojax.data.prepared import PreparedScenes, read_info
from platojax.data.raw import coco, flickr30k
from platojax.data.rejects import (
    BAD_PICTURE,
    EMPTY_TEXT,
    MISSING_FILE,
    SEVERAL_FILES,
    WRONG_TYPE,
    Rejected,
)
from tests.data.pictures import encode, pixels

REAL = pathlib.Path("/work/shared/data")


def write(path, content):
    text = json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def official(folder, name="captions_val2017.json", numbers=(7, 9)):
    return write(
        folder / name,
        {
            "info": {},
            "images": [{"id": i, "file_name": f"{i:012d}.jpg", "height": 4} for i in numbers],
            "annotations": [
                {"image_id": i, "id": 10 * i + n, "caption": f" Image {i}, caption {n}.\n"}
                for n in range(2)
                for i in numbers
            ],
        },
    )


def karpathy(folder, name, images):
    return write(
        folder / name,
        {
            "dataset": "x",
            "images": [
                {
                    "filename": f"{i}.jpg",
                    "split": split,
                    "sentences": [{"raw": f"{i} caption {n}.", "tokens": []} for n in range(2)],
                    **more,
                }
                for i, split, more in images
            ],
        },
    )


def images(folder, names):
    (folder / "images" / "val").mkdir(parents=True)
    for name in names:
        (folder / "images" / "val" / name).write_bytes(encode(pixels()))
    return folder / "images"


def of_kind(rows, kind):
    return [row for row in rows if isinstance(row, kind)]


def described(rows):
    return [
        (row.scene_id, row.split, [text.name for text in row.texts], len(row.pictures))
        for row in rows
        if not isinstance(row, Rejected)
    ]


# ---- COCO ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["captions_val2017.json", "captions_val2017.json.gz"])
def test_official_captions_have_the_split_of_their_file(tmp_path, name):
    rows = list(coco.read([official(tmp_path, name)]))
    assert described(rows) == [
        ("7", "val2017", ["Image 7, caption 0.", "Image 7, caption 1."], 0),
        ("9", "val2017", ["Image 9, caption 0.", "Image 9, caption 1."], 0),
    ]
    assert {(text.source, text.language) for row in rows for text in row.texts} == {("coco", "en")}


def test_karpathys_splits_divide_official_captions(tmp_path):
    splits = karpathy(
        tmp_path,
        "dataset_coco.json",
        [(7, "restval", {"cocoid": 7}), (9, "test", {"cocoid": 9})],
    )
    path = official(tmp_path, "train.json", (7, 9, 11))
    rows = list(coco.read([path], splits=splits))
    assert [one[:2] for one in described(rows)] == [("7", "train"), ("9", "test")]
    assert of_kind(rows, Rejected) == [Rejected(coco.NO_SPLIT, "train.json image 11")]
    alone = list(coco.read([splits]))
    assert described(alone) == [
        ("7", "train", ["7 caption 0.", "7 caption 1."], 0),
        ("9", "test", ["9 caption 0.", "9 caption 1."], 0),
    ]


def test_images_lie_in_folders_of_their_own_and_may_be_missing_or_broken(tmp_path):
    folder = images(tmp_path, ["000000000007.jpg"])
    (folder / "000000000011.jpg").write_bytes(encode(pixels())[:-200])
    rows = list(coco.read([official(tmp_path, numbers=(7, 9, 11))], folder))
    assert [one[3] for one in described(rows)] == [1, 0, 0]
    assert of_kind(rows, Rejected) == [
        Rejected(MISSING_FILE, f"000000000009.jpg in {folder}"),
        Rejected(BAD_PICTURE, f"000000000011.jpg in {folder}"),
    ]


def test_captions_that_cannot_be_used_are_rejected(tmp_path):
    path = official(tmp_path)
    content = json.loads(path.read_text())
    for annotation, caption in zip(content["annotations"], ("", 5), strict=False):
        annotation["caption"] = caption
    content["annotations"].append({"image_id": 8, "id": 1, "caption": "a cat"})
    rows = list(coco.read([write(path, content)]))
    assert of_kind(rows, Rejected) == [
        Rejected(EMPTY_TEXT, "captions_val2017.json annotation 70"),
        Rejected(WRONG_TYPE, "captions_val2017.json annotation 90"),
        Rejected(coco.UNKNOWN_IMAGE, "captions_val2017.json annotation 1"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("captions_a.json", b'{"images": [', "is no whole JSON file"),
        ("captions_a.json.gz", gzip.compress(b"{}")[:-5], "is no whole gzip file"),
        ("captions_a.json", b'{"annotations": []}', "COCO's captions have `images`"),
        ("captions_a.json", b"[]", "COCO's captions have `images`"),
        ("captions_a.json", b'{"images": [{"id": 1}]}', "a Karpathy JSON has `images`"),
        ("a.json", b'{"images": [], "annotations": []}', "tells no split in its name"),
    ],
)
def test_other_files_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(coco.read([tmp_path / name]))


def test_of_several_images_of_one_name_none_is_taken(tmp_path):
    folder = images(tmp_path, ["000000000007.jpg", "000000000009.jpg"])
    (folder / "other").mkdir()
    (folder / "other" / "000000000007.jpg").write_bytes(encode(pixels(seed=1)))
    rows = list(coco.read([official(tmp_path)], folder))
    assert [one[0::3] for one in described(rows)] == [("7", 0), ("9", 1)]
    assert of_kind(rows, Rejected) == [Rejected(SEVERAL_FILES, f"000000000007.jpg in {folder}")]


def test_a_folder_without_images_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no image"):
        list(coco.read([official(tmp_path)], tmp_path))
    with pytest.raises(FileNotFoundError, match="nowhere is no folder"):
        list(coco.read([official(tmp_path)], tmp_path / "nowhere"))


# ---- Flickr30k -----------------------------------------------------------------------------


def test_karpathys_flickr30k(tmp_path):
    path = karpathy(
        tmp_path, "dataset_flickr30k.json", [(1, "train", {}), (2, "val", {}), (3, "test", {})]
    )
    rows = list(flickr30k.read(path, images(tmp_path, ["1.jpg", "2.jpg", "3.jpg"])))
    assert described(rows) == [
        (f"{i}.jpg", split, [f"{i} caption 0.", f"{i} caption 1."], 1)
        for i, split in ((1, "train"), (2, "val"), (3, "test"))
    ]
    assert rows[0].texts[0].source == "flickr30k"


def test_the_token_file(tmp_path):
    path = tmp_path / "results_20130124.token"
    path.write_bytes(
        b"1.jpg#0\tA dog .\n1.jpg#1\tA \xc3\xbcber dog .\n2.jpg#0\tA cat .\n"
        b"no caption here\n2.jpg#1\t\xff\xfe\n"
    )
    rows = list(flickr30k.read(path, images(tmp_path, ["1.jpg"])))
    assert described(rows) == [
        ("1.jpg", "train", ["A dog .", "A über dog ."], 1),
        ("2.jpg", "train", ["A cat ."], 0),
    ]
    assert [row.where for row in of_kind(rows, Rejected)] == [
        "results_20130124.token line 4",
        "results_20130124.token line 5",
        f"2.jpg in {tmp_path / 'images'}",
    ]
    (tmp_path / "other.csv").write_text("image_name| comment_number| comment\n")
    with pytest.raises(ValueError, match="has no line such as"):
        list(flickr30k.read(tmp_path / "other.csv"))


# ---- Commands, and real files ------------------------------------------------------------------


def prepare(*arguments):
    result = CliRunner().invoke(app, ["prepare", *map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


def test_the_commands(tmp_path):
    folder = images(tmp_path, ["000000000007.jpg", "000000000009.jpg", "1.jpg"])
    code, output = prepare("coco", official(tmp_path), "--images", folder, "--out", tmp_path / "c")
    assert code == 0, output
    assert "val2017: 2 scenes, 4 texts, 2 pictures" in output
    path = karpathy(tmp_path, "dataset_flickr30k.json", [(1, "train", {}), (2, "train", {})])
    (tmp_path / "exclude.txt").write_text("2.jpg\nother.jpg\n")
    code, output = prepare(
        *("flickr30k", path, "--images", folder, "--out", tmp_path / "f"),
        *("--exclude", tmp_path / "exclude.txt"),
    )
    assert code == 2
    assert "1 of 4 of what was read cannot be used" in output
    assert "missing file 1 (first: 2.jpg in" in output
    code, output = prepare(
        *("flickr30k", path, "--out", tmp_path / "f"),
        *("--exclude", tmp_path / "exclude.txt"),
    )
    assert code == 0, output
    assert "Left out 1 scenes of the 2 in" in output
    assert len(PreparedScenes(tmp_path / "f", "train")) == 1
    assert prepare("coco", tmp_path / "nothing.json", "--out", tmp_path / "x")[0] == 2


@pytest.mark.skipif(not REAL.is_dir(), reason="needs COCO's captions")
def test_the_real_captions(tmp_path):
    path = REAL / "coco" / "captions_val2017.json.gz"
    code, output = prepare("coco", path, "--out", tmp_path / "coco")
    assert code == 0, output
    split = read_info(tmp_path / "coco").splits["val2017"]
    assert (split.scenes, split.texts) == (5000, 25014)
    first = PreparedScenes(tmp_path / "coco", "val2017")[0]
    assert first.scene_id == "397133"
    assert len(first.texts) == 5


@pytest.mark.skipif(not REAL.is_dir(), reason="needs COCO's photographs")
def test_real_photographs_with_their_captions(tmp_path):
    rows = json.loads((REAL / "coco_mini" / "captions.json").read_text())[:20]
    (tmp_path / "images").mkdir()
    for row in rows:
        shutil.copy(REAL / "coco_mini" / "images" / row["file"], tmp_path / "images")
    path = write(
        tmp_path / "captions_mini.json",
        {
            "images": [{"id": row["id"], "file_name": row["file"]} for row in rows],
            "annotations": [
                {"image_id": row["id"], "id": n, "caption": caption}
                for row in rows
                for n, caption in enumerate(row["captions"])
            ],
        },
    )
    out = tmp_path / "mini"
    code, output = prepare("coco", path, "--images", tmp_path / "images", "--out", out)
    assert code == 0, output
    scenes = PreparedScenes(out, "mini")
    assert len(scenes) == 20
    assert all(len(scene.texts) == 5 for scene in scenes)
    assert {scene.pictures[0].image.ndim for scene in scenes} == {3}
