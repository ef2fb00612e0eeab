import json
import zipfile

import numpy as np
import pytest
from typer.testing import CliRunner

from platojax.cli import app
from platojax.data import rejects
from platojax.data.prepared import PreparedScenes
from platojax.data.raw import imagenet
from platojax.data.raw.scene import RawScene
from platojax.data.rejects import Rejected
from tests.data.pictures import encode, pixels
from tests.shared import real

TENCH, FISH = "n01440764", "n01443537"


def write(folder, *names):
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(pixels(seed=number)))


def read(folder, synsets=frozenset()):
    return [
        (row.scene_id, row.split, row.label, *(text.name for text in row.texts))
        for row in imagenet.read(folder, synsets)
        if isinstance(row, RawScene)
    ]


def test_folders_of_classes_are_read(tmp_path):
    write(tmp_path, f"train/{TENCH}/a.JPEG", f"val/{FISH}/b.JPEG", f"val/{FISH}/c.jpg")
    assert read(tmp_path) == [
        (f"train/{TENCH}/a", "train", TENCH),
        (f"val/{FISH}/b", "val", FISH),
        (f"val/{FISH}/c", "val", FISH),
    ]
    assert read(tmp_path, frozenset([TENCH])) == [(f"train/{TENCH}/a", "train", TENCH)]
    assert read(tmp_path / "val") == [(f"{FISH}/b", "val", FISH), (f"{FISH}/c", "val", FISH)]


def test_imagenet_100s_parts_and_names_are_read(tmp_path):
    write(tmp_path, f"train.X1/{TENCH}/a.JPEG", f"train.X2/{FISH}/a.JPEG", f"val.X/{TENCH}/b.JPEG")
    (tmp_path / "Labels.json").write_text(json.dumps({TENCH: "tench, Tinca tinca"}))
    assert read(tmp_path) == [
        (f"train.X1/{TENCH}/a", "train", TENCH, "tench, Tinca tinca"),
        (f"train.X2/{FISH}/a", "train", FISH),
        (f"val.X/{TENCH}/b", "val", TENCH, "tench, Tinca tinca"),
    ]


def test_the_official_archive_is_read(tmp_path):
    data = "Data/CLS-LOC"
    write(
        tmp_path,
        f"{data}/train/{TENCH}/{TENCH}_10026.JPEG",
        f"{data}/val/ILSVRC2012_val_00000001.JPEG",
        f"{data}/val/ILSVRC2012_val_00000002.JPEG",
        f"{data}/test/ILSVRC2012_test_00000001.JPEG",
    )
    (tmp_path / "LOC_val_solution.csv").write_text(
        f"ImageId,PredictionString\nILSVRC2012_val_00000001,{FISH} 1 2 3 4 {FISH} 5 6 7 8\n"
    )
    (tmp_path / "LOC_synset_mapping.txt").write_text(f"{FISH} goldfish, Carassius auratus\n")
    assert read(tmp_path) == [
        (f"train/{TENCH}/{TENCH}_10026", "train", TENCH),
        ("val/ILSVRC2012_val_00000001", "val", FISH, "goldfish, Carassius auratus"),
    ]
    rows = [row for row in imagenet.read(tmp_path) if isinstance(row, Rejected)]
    assert [row.reason for row in rows] == [imagenet.UNKNOWN_CLASS]  # of val 2; test has no classes
    assert rows[0].where.endswith("ILSVRC2012_val_00000002.JPEG")


def test_images_that_cannot_be_decoded_are_rejected(tmp_path):
    write(tmp_path, f"val/{TENCH}/a.JPEG", f"val/{TENCH}/b.JPEG", f"val/{TENCH}/c.JPEG")
    whole = (tmp_path / f"val/{TENCH}/a.JPEG").read_bytes()
    (tmp_path / f"val/{TENCH}/b.JPEG").write_bytes(whole[: len(whole) // 2])
    (tmp_path / f"val/{TENCH}/c.JPEG").write_bytes(b"")
    rows = list(imagenet.read(tmp_path))
    assert rows[0].pictures[0].content == whole
    assert [row.reason for row in rows[1:]] == [rejects.BAD_PICTURE, rejects.EMPTY_FILE]


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="is no folder of images"):
        list(imagenet.read(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="holds no image of a class; images lie in folders"):
        list(imagenet.read(tmp_path))
    write(tmp_path, f"val/{TENCH}/a.JPEG")
    with pytest.raises(ValueError, match="no image of a class in the list of synsets"):
        list(imagenet.read(tmp_path, frozenset([FISH])))
    (tmp_path / "synsets.txt").write_text("tench\n")
    with pytest.raises(ValueError, match=r"must hold synsets such as n01440764.*it has 'tench'"):
        imagenet.read_synsets(tmp_path / "synsets.txt")
    (tmp_path / "Labels.json").write_text("[1]")
    with pytest.raises(ValueError, match="is no object of synsets and names"):
        list(imagenet.read(tmp_path))


def test_the_real_images_of_imagenet_100_become_prepared_data(tmp_path):
    classes = json.loads(real("imagenet_sample/classes.json").read_text())
    with zipfile.ZipFile(real("imagenet_sample/images128.zip")) as archive:
        for name in archive.namelist():
            synset = name.split("_")[0]
            path = tmp_path / "imagenet" / "val" / synset / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(name))
    mapping = "".join(f"{one['wnid']} {one['name']}\n" for one in classes)
    (tmp_path / "imagenet" / "LOC_synset_mapping.txt").write_text(mapping)
    synsets = real("imagenet_sample/imagenet100.txt")
    out = tmp_path / "out"
    arguments = [str(tmp_path / "imagenet"), "--synsets", str(synsets), "--out", str(out)]
    result = CliRunner().invoke(app, ["prepare", "imagenet", *arguments])
    assert result.exit_code == 0, result.output
    scenes = PreparedScenes(out, "val")
    assert len(scenes) == 100
    assert {scene.label for scene in scenes} == set(synsets.read_text().split())
    names = {one["wnid"]: one["name"] for one in classes}
    for scene in scenes:
        assert [text.name for text in scene.texts] == [names[scene.label]]
        assert scene.pictures[0].image.dtype == np.uint8
        assert max(scene.pictures[0].image.shape[:2]) >= 128
