import gzip
import pathlib

import pytest

from platojax.data.raw import multi30k
from platojax.data.rejects import EMPTY_TEXT, MISSING_FILE, NOT_TEXT, Rejected
from tests.data.pictures import encode, pixels

REAL = pathlib.Path("/work/shared/data/multi30k")


def write(folder, lines=3, compress=True):
    """The official layout, in small."""
    raw = folder / "raw"
    raw.mkdir(parents=True)
    (folder / "image_splits").mkdir()
    for split in ("train", "val"):
        names = [f"{split}{i}.jpg" for i in range(lines)]
        (folder / "image_splits" / f"{split}_images.txt").write_text("\n".join(names) + "\n")
        for language in ("en", "de"):
            for number in (1, 2):
                text = "".join(f"{language} {number}, Bild {i} ü\n" for i in range(lines)).encode()
                path = raw / f"{split}.{number}.{language}"
                if compress:
                    path.with_name(path.name + ".gz").write_bytes(gzip.compress(text))
                else:
                    path.write_bytes(text)
    return raw


@pytest.mark.parametrize("compress", [True, False])
def test_a_scene_is_an_image_with_all_its_captions(tmp_path, compress):
    scenes = list(multi30k.read(write(tmp_path, compress=compress)))
    assert [(one.split, one.scene_id) for one in scenes[2:4]] == [
        ("train", "train2.jpg"),
        ("val", "val0.jpg"),
    ]
    assert [(text.source, text.language, text.name) for text in scenes[1].texts] == [
        ("de", "de", "de 1, Bild 1 ü"),
        ("en", "en", "en 1, Bild 1 ü"),
        ("de", "de", "de 2, Bild 1 ü"),
        ("en", "en", "en 2, Bild 1 ü"),
    ]


def test_unusable_captions_are_rejected_with_their_line(tmp_path):
    raw = write(tmp_path, compress=False)
    (raw / "val.1.en").write_bytes(b"one\n \n\xff\n")
    rows = [row for row in multi30k.read(raw) if isinstance(row, Rejected)]
    assert rows == [
        Rejected(EMPTY_TEXT, "val.1.en line 2"),
        Rejected(NOT_TEXT, "val.1.en line 3"),
    ]


def test_flickr30ks_images_are_the_scenes(tmp_path):
    raw = write(tmp_path)
    images = tmp_path / "images"
    images.mkdir()
    for name in ("train0.jpg", "val2.jpg"):
        (images / name).write_bytes(encode(pixels()))
    rows = list(multi30k.read(raw, images))
    scenes = [row for row in rows if not isinstance(row, Rejected)]
    assert [len(scene.pictures) for scene in scenes] == [1, 0, 0, 0, 0, 1]
    assert [row.reason for row in rows if isinstance(row, Rejected)] == [MISSING_FILE] * 4


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no captions of Multi30k, such as train"):
        multi30k.input_files(tmp_path)
    raw = write(tmp_path / "a")
    (tmp_path / "a" / "image_splits" / "val_images.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"captions of val, but no val_images.txt"):
        list(multi30k.read(raw))


def test_a_missing_file_among_others_is_named(tmp_path):
    raw = write(tmp_path)
    (raw / "train.1.de.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks train.1.de \(or .gz\).* have 2 captions"):
        multi30k.input_files(raw)
    (raw / "train.2.de.gz").unlink()
    assert len(multi30k.input_files(raw)) == 2 + 4 + 2  # one language will do


def test_damaged_files_are_named(tmp_path):
    raw = write(tmp_path)
    path = raw / "train.1.en.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-12])
    with pytest.raises(ValueError, match=r"train.1.en.gz is no whole gzip file"):
        list(multi30k.read(raw))
    path.write_bytes(gzip.compress(b"one\ntwo\n"))
    with pytest.raises(ValueError, match=r"train.1.en.gz has 2 captions for 3 images of train"):
        list(multi30k.read(raw))


@pytest.mark.skipif(not REAL.is_dir(), reason="needs Multi30k")
def test_the_real_files():
    rows = list(multi30k.read(REAL))
    assert not [row for row in rows if isinstance(row, Rejected)]
    assert [sum(row.split == split for row in rows) for split in ("train", "val")] == [29000, 1014]
    assert {len(row.texts) for row in rows} == {10}
    first = rows[0]
    assert first.scene_id == "1000092795.jpg"
    assert {text.name for text in first.texts if text.language == "en"} > {
        "Two young guys with shaggy hair look at their hands while hanging out in the yard."
    }
