import io
import json
import pathlib
import pickle

import numpy as np
import pytest
import tensorflow_datasets as tfds
from ml_collections import ConfigDict
from PIL import Image

from platojax.data import preparation, prepared, rejects
from platojax.data.captions import fault
from platojax.data.items import load_items
from platojax.data.pipeline import make_pipeline
from platojax.data.preparation import MAX_KINDS, ShardWriter, shard_name, write_prepared
from platojax.data.prepared import PreparedScenes, read_info
from platojax.data.raw.scene import Encoded, RawScene
from platojax.data.rejects import Rejected
from platojax.data.scenes import Text, hash_scenes
from platojax.data.sources import load_source
from platojax.data.usable import usable_scenes
from platojax.data.views import make_views
from tests import tiny

TEXTS = ["a red bus", "قطة صغيرة", "🐈 on a mat", "ein Haus"]


def png(number):
    file = io.BytesIO()
    Image.new("RGB", (3, 2), (number, 0, 255)).save(file, "PNG")
    return file.getvalue()


def scene(number, split="train", captions=4):
    texts = [
        Text("en" if i % 2 else "de", "en" if i % 2 else "de", f"{TEXTS[i % 4]} {number}")
        for i in range(captions)
    ]
    pictures = (Encoded("photo", png(number)),) if number % 3 == 0 else ()
    clips = (Encoded("web", b"\0mp4\xff"),) if number % 5 == 0 else ()
    return RawScene(f"scene {number}", split, tuple(texts), pictures, clips, f"class {number % 2}")


def write(out, rows, **arguments):
    defaults = dict(name="tiny", source={"files": ["here"]}, settings={})
    return write_prepared(rows, out, **defaults | arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("prepared") / "tiny"
    rows = [scene(i) for i in range(40)] + [scene(i, "val") for i in range(40, 50)]
    write(out, rows, shard_bytes=3000)
    return out


def same(one, raw):
    assert (one.scene_id, one.label, one.texts) == (raw.scene_id, raw.label, raw.texts)
    for kept, given in ((one.pictures, raw.pictures), (one.clips, raw.clips)):
        assert [part.content for part in kept] == [part.content for part in given]


def test_every_scene_comes_back_from_any_place(folder):
    scenes = PreparedScenes(folder, "train")
    assert len(scenes.info.shards) > 2
    assert len(scenes) == 40
    for index in np.random.default_rng(0).permutation(40):
        same(scenes[index], scene(index))
    same(scenes[-1], scene(39))
    same(PreparedScenes(str(folder), "val")[3], scene(43))
    assert [one.scene_id for one in scenes] == [f"scene {i}" for i in range(40)]
    with pytest.raises(IndexError):
        scenes[40]


def test_several_scenes_come_back_in_the_order_in_which_they_are_asked_for(folder):
    indices = [39, 0, 20, 0, 7, 38]
    for index, one in zip(indices, PreparedScenes(folder, "train").read(indices), strict=True):
        same(one, scene(index))


def test_tensorflow_datasets_reads_the_same(folder):
    source = tfds.builder_from_directory(folder).as_data_source("train")
    scenes = PreparedScenes(folder, "train")
    assert len(source) == len(scenes)
    for record, one in zip(source, scenes, strict=True):
        assert record["scene_id"].decode() == one.scene_id
        assert record["label"].decode() == one.label
        texts = record["texts"]
        read = zip(texts["source"], texts["language"], texts["text"], strict=True)
        assert [tuple(part.decode() for part in row) for row in read] == [
            (text.source, text.language, text.name) for text in one.texts
        ]
        for image, picture in zip(record["pictures"]["image"], one.pictures, strict=True):
            np.testing.assert_array_equal(image, picture.image)
        assert list(record["clips"]["video"]) == [clip.content for clip in one.clips]


def test_info_says_what_there_is(folder):
    info = read_info(folder)
    assert info.source == {"files": ["here"]}
    train = info.splits["train"]
    assert (train.scenes, train.texts, train.pictures, train.clips) == (40, 160, 14, 8)
    assert sum(kind.scenes for kind in train.kinds) == 40
    assert {kind.first for kind in train.kinds} == {0, 1, 3, 5}
    assert train.kinds[0].texts == (("de", "de", 2), ("en", "en", 2))
    assert train.kinds[0].pictures == (("photo", 1),)
    assert json.loads((folder / "info.json").read_text())["splits"]["val"]["scenes"] == 10


def test_many_kinds_of_scenes_are_not_listed(tmp_path):
    rows = [
        RawScene(str(i), "train", (Text(f"by {i}", "", "a text"),)) for i in range(MAX_KINDS + 1)
    ]
    write(tmp_path / "many", rows)
    assert read_info(tmp_path / "many").splits["train"].kinds is None


def test_the_hash_is_of_the_scenes(folder, tmp_path):
    rows = [scene(i) for i in range(40)]
    write(tmp_path / "again", rows, shard_bytes=3000)
    again = PreparedScenes(tmp_path / "again", "train")
    assert hash_scenes(again) == hash_scenes(PreparedScenes(folder, "train"))
    rows[7] = scene(7, captions=3)
    write(tmp_path / "other", rows, shard_bytes=3000)
    assert hash_scenes(PreparedScenes(tmp_path / "other", "train")) != hash_scenes(again)


def text_batches(folder, count, **changes):
    views = make_views(
        ConfigDict(dict(name="two_texts")), ConfigDict(dict(max_length=12)), tiny.tokenizer()
    )
    batches = make_pipeline(
        PreparedScenes(folder, "train"), views, **dict(batch_size=8, seed=0) | changes
    )
    result = [next(batches) for _ in range(count)]
    batches.close()
    return np.stack(result)


def test_batches_are_the_same_for_any_workers_processes_and_beginning(folder):
    whole = text_batches(folder, 7)
    np.testing.assert_array_equal(whole, text_batches(folder, 7, num_workers=2))
    np.testing.assert_array_equal(whole[3:], text_batches(folder, 4, first_batch=3))
    halves = [text_batches(folder, 7, process_index=i, process_count=2) for i in range(2)]
    np.testing.assert_array_equal(whole, np.concatenate(halves, axis=2))


def test_open_scenes_can_be_pickled(folder):
    scenes = PreparedScenes(folder, "train")
    same(scenes[5], scene(5))
    same(pickle.loads(pickle.dumps(scenes))[6], scene(6))


def test_no_more_shards_are_open_than_may_be(folder, monkeypatch):
    monkeypatch.setattr(prepared, "_MAX_OPEN_SHARDS", 2)
    scenes = PreparedScenes(folder, "train")
    for index in (0, 39, 20, 0, 39, 1):
        same(scenes[index], scene(index))
    assert len(scenes._readers) == 2


# ---- Tokens ---------------------------------------------------------------------------------


def data_config(folder, **changes):
    return ConfigDict(
        dict(
            name="prepared",
            folder=str(folder),
            train="train",
            tokenizer="emoji",
            vocabulary=dict(vocab_size=4000, pad_id=0),
            max_bad_fraction=0.0,
        )
        | changes
    )


def test_views_of_tokenised_scenes_are_those_of_their_texts(folder, tmp_path):
    tokenizer = tiny.tokenizer()
    write(tmp_path / "ids", [scene(i) for i in range(40)], shard_bytes=3000, tokenizer=tokenizer)
    text = PreparedScenes(tmp_path / "ids", "train")[3].texts[2]
    assert (text.name, text.ids.tolist()) == ("", tokenizer.encode("🐈 on a mat 3"))
    for policy in (
        dict(name="two_texts", apart="language"),
        dict(name="two_masks"),
        dict(name="two_spans"),
        dict(name="prefix_continuation"),
    ):
        views = make_views(ConfigDict(policy), ConfigDict(dict(max_length=9)), tokenizer)
        plain, ids = (
            [views(one, np.random.default_rng(i)) for i, one in enumerate(scenes)]
            for scenes in (PreparedScenes(f, "train") for f in (folder, tmp_path / "ids"))
        )
        np.testing.assert_array_equal(plain, ids)
    distinct = make_views(
        ConfigDict(dict(name="two_texts", distinct=True)),
        ConfigDict(dict(max_length=9)),
        tokenizer,
    )
    with pytest.raises(ValueError, match=r"views.distinct compares words.*Prepare it without"):
        distinct(PreparedScenes(tmp_path / "ids", "train")[0], np.random.default_rng(0))
    assert len(load_source(data_config(tmp_path / "ids")).train) == 40


def test_ids_of_a_large_vocabulary_need_four_bytes(tmp_path):
    class Large:
        hash, vocab_size = "x", 100_000

        def encode_all(self, texts):
            return [np.array([99_999, 1]) for _ in texts]

    write(tmp_path / "ids", [scene(1)], tokenizer=Large())
    ids = PreparedScenes(tmp_path / "ids", "train")[0].texts[0].ids
    assert ids.tolist() == [99_999, 1]


def test_a_text_of_no_tokens_is_rejected(tmp_path):
    class Silent:
        vocab_size, hash = 100, "0" * 64

        def encode_all(self, texts):
            return [np.array([ord(one) for one in text if one != "?"]) for text in texts]

    def row(number, *names):
        return RawScene(str(number), "train", tuple(Text("en", "en", name) for name in names))

    rows = [row(1, "a", "??"), row(2, "?"), row(3, "b")]
    info = write(tmp_path / "out", rows, tokenizer=Silent(), max_bad_fraction=0.5)
    assert info.rejected == {rejects.EMPTY_TEXT: 2}
    assert info.first_rejected == {rejects.EMPTY_TEXT: "scene 1 of train"}
    scenes = PreparedScenes(tmp_path / "out", "train")
    assert [(one.scene_id, [text.ids.tolist() for text in one.texts]) for one in scenes] == [
        ("1", [[97]]), ("3", [[98]]),
    ]  # fmt: skip
    assert [(kind.texts, kind.scenes) for kind in scenes.kinds] == [((("en", "en", 1),), 2)]


@pytest.mark.parametrize("text", ["\u200b", "\ufeff", "\x01", " \u0301", "\u2003\u00ad\ufe0f", ""])
def test_a_text_in_which_nothing_is_seen_is_empty(text):
    assert fault(text) == fault(text.encode()) == rejects.EMPTY_TEXT


@pytest.mark.parametrize(
    "text", ["x", "?", "7", "❤️", "👩\u200d🚀", "猫", "ا", "\u200b.", "\U0001fa8e"]
)
def test_a_text_of_one_character_is_a_text(text):
    assert fault(text) is None


def test_another_tokenizer_is_refused(folder, tmp_path):
    write(tmp_path / "ids", [scene(1)], tokenizer=tiny.tokenizer())
    path = tmp_path / "ids" / "info.json"
    path.write_text(path.read_text().replace(tiny.tokenizer().hash, "0" * 64))
    with pytest.raises(
        ValueError, match=r"tokens of the tokenizer 000000000000, but .* give theirs"
    ):
        load_source(data_config(tmp_path / "ids"))


# ---- As the data of an experiment ----------------------------------------------------------


def test_source(folder):
    source = load_source(data_config(folder))
    assert len(source.train) == 40
    assert [one.scene_id for one in source.sample] == ["scene 0", "scene 1", "scene 3", "scene 5"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(folder=""), "data.folder names no folder; make one with `platojax prepare`"),
        (dict(folder="/nowhere"), "/nowhere is no prepared data: it has no info.json"),
        (dict(train="trian"), "has no split 'trian'; it has train, val"),
        (dict(tokenizer="", vocabulary={}), "tiny --vocab-size 8000 --out FILE"),
        (dict(tokenizer=""), "data.tokenizer names no file; train one with `platojax prepare tok"),
    ],
)
def test_impossible_data_is_refused(folder, changes, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_source(data_config(**dict(folder=folder) | changes))


# ---- Scenes that lack what views need ------------------------------------------------------

ONE_IN_TEN = [scene(i, captions=1 if i % 10 == 3 else 4) for i in range(40)]


def two_texts(**fields):
    return make_views(
        ConfigDict(dict(name="two_texts", **fields)),
        ConfigDict(dict(max_length=9)),
        tiny.tokenizer(),
    )


@pytest.fixture(params=[MAX_KINDS, 1], ids=["known kinds", "too many kinds"])
def lacking(request, tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "MAX_KINDS", request.param)
    write(tmp_path / "out", ONE_IN_TEN, shard_bytes=3000)
    scenes = PreparedScenes(tmp_path / "out", "train")
    assert (scenes.info.kinds is None) == (request.param == 1)
    return scenes


def test_scenes_that_lack_what_views_need_are_skipped_and_counted(lacking):
    usable = usable_scenes(lacking, two_texts(), 0.1)
    assert [int(one.scene_id.split()[1]) for one in usable] == [i for i in range(40) if i % 10 != 3]
    assert hash_scenes(usable) == hash_scenes(lacking)
    assert usable.lacking == {"1 of the 2 texts": 4}
    batches = make_pipeline(usable, two_texts(), batch_size=36, seed=0)
    next(batches)
    assert batches.skipped() == {"1 of the 2 texts": 4}
    batches.close()


def test_too_many_of_them_are_refused_with_what_they_lack(lacking):
    with pytest.raises(
        ValueError,
        match=r"4 of 40 scenes of train .* data.max_bad_fraction 0.05: "
        r"4 have 1 of the 2 texts. scene scene \d+ has 1 .* Choose other views",
    ):
        usable_scenes(lacking, two_texts(), 0.05)
    with pytest.raises(ValueError, match=r"40 of 40 scenes of train cannot give the views"):
        usable_scenes(lacking, two_texts(sources=("en",), apart="source"), 0.99)


def test_where_all_scenes_suit_they_are_the_same_object(folder):
    scenes = PreparedScenes(folder, "train")
    assert usable_scenes(scenes, two_texts(apart="language"), 0.0) is scenes


# ---- What cannot be used -------------------------------------------------------------------


def test_what_is_rejected_is_counted_with_where_the_first_is(tmp_path):
    rows = [
        *(scene(i) for i in range(30)),
        Rejected(rejects.EMPTY_TEXT, "a.txt line 7"),
        Rejected(rejects.EMPTY_TEXT, "a.txt line 9"),
        scene(3, "val"),
        RawScene("nothing", "train"),
    ]
    info = write(tmp_path / "out", rows, exclude={"scene 4", "scene 5"})
    assert read_info(tmp_path / "out").rejected == info.rejected
    assert info.rejected == {"duplicate scene id": 1, "empty text": 2}
    assert info.first_rejected["empty text"] == "a.txt line 7"
    assert info.excluded == 2
    ids = [one.scene_id for one in PreparedScenes(tmp_path / "out", "train")]
    assert ids == [f"scene {i}" for i in range(30) if i not in (4, 5)]


def test_duplicates_are_no_bad_scenes(tmp_path):
    info = write(tmp_path / "out", [scene(1), scene(1), scene(1)], max_bad_fraction=0.0)
    assert info.rejected == {"duplicate scene id": 2}
    assert info.splits["train"].scenes == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [scene(1), *[Rejected(rejects.LONG_TEXT, "b.txt line 2")] * 2],
            r"2 of \d of what was read cannot be used, more than max_bad_fraction 0.05: "
            r"over-long text 2 \(first: b.txt line 2\)",
        ),
        ([], "no scene is left to write"),
        ([scene(1, "a-b")], "split 'a-b' must be letters"),
    ],
)
def test_what_cannot_be_prepared_leaves_nothing(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "out", rows)
    assert not list(tmp_path.iterdir())


def test_a_reader_that_fails_leaves_nothing(tmp_path):
    def rows():
        yield scene(1)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        write(tmp_path / "out", rows())
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_empty_is_refused_and_kept(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty; name another folder"):
        write(tmp_path, [scene(1)])
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_what_a_killed_preparation_left_is_in_nobodys_way(tmp_path):
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "tiny-train.array_record-00000.tmp").write_bytes(b"half")
    write(tmp_path / "out", [scene(1)])
    assert len(PreparedScenes(tmp_path / "out", "train")) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_is_not_left_by_a_preparation_is_kept(tmp_path):
    folder = tmp_path / "out.partial"
    folder.mkdir()
    (folder / "info.json").touch()
    (folder / "photo.jpg").write_bytes(b"mine")
    with pytest.raises(ValueError, match=r"out.partial holds photo.jpg, which no preparation left"):
        write(tmp_path / "out", [scene(1)])
    assert (folder / "photo.jpg").read_bytes() == b"mine"
    assert (folder / "info.json").exists()
    folder.rename(tmp_path / "mine")
    folder.symlink_to(tmp_path / "mine")
    with pytest.raises(ValueError, match=r"out.partial is a link"):
        write(tmp_path / "out", [scene(1)])
    assert (tmp_path / "mine" / "photo.jpg").exists()


def test_two_processes_do_not_write_one_folder(tmp_path):
    def rows():
        yield scene(1)
        with pytest.raises(ValueError, match=r"another process is writing .*out.partial; wait"):
            write(tmp_path / "out", [scene(2)])
        yield scene(3)

    write(tmp_path / "out", rows())
    assert len(PreparedScenes(tmp_path / "out", "train")) == 2


def test_a_shard_is_there_when_it_is_finished(tmp_path):
    path = tmp_path / shard_name("tiny", "train", 3)
    with ShardWriter(path) as writer:
        writer.add(scene(1))
    assert not list(tmp_path.iterdir())
    with ShardWriter(path) as writer:
        writer.add(scene(1))
        written = writer.finish()
    assert [one.name for one in tmp_path.iterdir()] == [written.shard.file]
    assert (written.shard.scenes, written.texts) == (1, 4)


@pytest.fixture
def broken(tmp_path):
    write(tmp_path / "out", [scene(i) for i in range(20)], shard_bytes=3000)
    scenes = PreparedScenes(tmp_path / "out", "train")
    return scenes, tmp_path / "out" / scenes.info.shards[-1].file


def test_a_missing_or_short_shard_is_named_at_once(broken):
    scenes, path = broken
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000])
    with pytest.raises(ValueError, match=rf"{path.name} has \d+ bytes, not the \d+"):
        PreparedScenes(scenes.folder, "train")
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{path.name} is missing; restore it"):
        PreparedScenes(scenes.folder, "train")


def test_a_shard_that_disappears_while_it_is_used_is_named(broken):
    scenes, path = broken
    same(scenes[0], scene(0))
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"{path.name} is missing; restore it"):
        scenes[19]


def test_a_damaged_shard_is_named(broken):
    scenes, path = broken
    content = path.read_bytes()
    path.write_bytes(bytes(len(content)))
    with pytest.raises(ValueError, match=rf"{path.name} is damaged, among the scenes"):
        scenes[19]


def test_a_record_that_is_no_scene_is_named(broken):
    scenes, path = broken
    with pytest.raises(ValueError, match=rf"{path.name} is damaged, among the scenes \[.*\] \(no"):
        scenes.parse(19, b"\xff")


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 0}', '{"format": 1}'])
def test_a_damaged_info_is_refused(tmp_path, content):
    (tmp_path / "info.json").write_text(content)
    with pytest.raises(ValueError, match=r"info.json cannot be used .* prepare the data again"):
        read_info(pathlib.Path(tmp_path))


# ---- As items ------------------------------------------------------------------------------


def test_a_split_is_items(folder):
    items = load_items(f"{folder}:val")
    assert (items.name, items.ids) == ("tiny:val", tuple(f"scene {i}" for i in range(40, 50)))
    assert items.texts[3] == tuple(text.name for text in scene(43).texts)
    assert items.labels[:2] == ("class 0", "class 1")
    german = load_items(f"{folder}:val:de")
    assert german.texts[3] == ("a red bus 43", "🐈 on a mat 43")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "has no split ''; it has train, val"),
        (":val:fr", r"tiny:val has no texts of source 'fr'; it has \['de', 'en'\]"),
    ],
)
def test_impossible_items_are_refused(folder, spec, message):
    with pytest.raises(ValueError, match=message):
        load_items(f"{folder}{spec}")


def test_pictures_are_items_where_all_scenes_have_some(folder, tmp_path):
    write(tmp_path / "photos", [scene(i) for i in range(0, 40, 3)])
    items = load_items(f"{tmp_path}/photos:train")
    assert items.modalities == ["text", "image"]
    assert items.images[1] == (png(3),)
    with pytest.raises(ValueError, match="encoder is for images"):
        load_items(f"{folder}:val").observations("image")
