import gzip
import json
import pathlib

import fsspec
import grain
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ml_collections import ConfigDict

from platojax.data.bulk import RECAP, Plan
from platojax.data.parquet import ParquetReader
from platojax.data.paths import find_files
from platojax.data.pipeline import make_pipeline
from platojax.data.recap import SOURCES, RecapScenes
from platojax.data.scenes import hash_scenes
from platojax.data.sources import load_source
from platojax.data.text_columns import REASONS
from platojax.data.views import make_views
from tests import tiny
from tests.data import recap_files

WEB = pathlib.Path("/work/shared/data/web")
SMALL = dict(open_files=2, window=12)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return recap_files.write_files(tmp_path_factory.mktemp("recap"), files=5, rows=23)


def blocks(scenes, count, size=4, **arguments):
    iterator = iter(scenes.blocks(size, seed=arguments.pop("seed", 0), **arguments))
    result = [next(iterator) for _ in range(count)]
    iterator.close()
    return [pair for block in result for pair in block]


def rows(pairs):
    return [key[1:] for key, _ in pairs]


def test_a_scene_is_one_image_known_by_its_two_texts(files):
    scenes = RecapScenes.find(files)
    for (_, file, row), scene in blocks(scenes, 5):
        assert scene.scene_id == f"train-{file:05d}.parquet:{row}"
        assert tuple(text.source for text in scene.texts) == SOURCES
        assert tuple(text.name for text in scene.texts) == recap_files.captions(file * 23 + row)
        assert (scene.pictures, scene.emoji, scene.group) == ((), "", "")


def test_every_epoch_has_every_row_once_in_a_new_order(files):
    pairs = blocks(RecapScenes.find(files, **SMALL), 2 * 5 * 23, size=1)
    one, two = rows(pairs[:115]), rows(pairs[115:])
    assert sorted(one) == sorted(two) == [(file, row) for file in range(5) for row in range(23)]
    assert one != two
    assert {key[0] for key, _ in pairs[:115]} == {0}
    assert {key[0] for key, _ in pairs[115:]} == {1}


def test_windows_mix_the_rows_of_open_files(files):
    window = rows(blocks(RecapScenes.find(files, **SMALL), 12, size=1))
    assert len({file for file, _ in window}) == 2
    assert {row for _, row in window} == set(range(6))
    for file in {file for file, _ in window}:
        order = [row for f, row in window if f == file]
        assert order != sorted(order)


def test_the_order_is_the_seeds(files):
    scenes = RecapScenes.find(files, **SMALL)
    assert rows(blocks(scenes, 9)) == rows(blocks(scenes, 9))
    assert rows(blocks(scenes, 9)) != rows(blocks(scenes, 9, seed=1))


def test_processes_read_disjoint_files_and_together_all(files):
    scenes = RecapScenes.find(files, **SMALL)
    # Three and two files: an epoch of each.
    parts = [
        rows(blocks(scenes, count * 23, size=1, process_index=i, process_count=2))
        for i, count in ((0, 3), (1, 2))
    ]
    assert not set(parts[0]) & set(parts[1])
    assert len(set(parts[0]) | set(parts[1])) == 5 * 23


def test_more_processes_than_files_are_refused(files):
    with pytest.raises(ValueError, match=r"data.files are 5, but 6 processes .* split the files"):
        RecapScenes.find(files).blocks(4, seed=0, process_index=0, process_count=6)


def test_goes_on_exactly_from_anywhere(files):
    scenes = RecapScenes.find(files, **SMALL)
    dataset = scenes.blocks(5, seed=0)
    iterator = iter(dataset)
    whole, states = [], []
    for _ in range(50):  # more than two epochs
        states.append(json.dumps(iterator.get_state()))
        whole.append([key for key, _ in next(iterator)])
    for start in range(0, 50, 7):
        resumed = iter(dataset)
        resumed.set_state(json.loads(states[start]))
        assert [[key for key, _ in next(resumed)] for _ in range(50 - start)] == whole[start:]


def test_grains_own_check_of_checkpoints_passes(files):
    keys = (
        RecapScenes.find(files, **SMALL)
        .blocks(5, seed=0)
        .map(lambda block: np.array([key for key, _ in block]))
    )
    grain.experimental.assert_equal_output_after_checkpoint(
        grain.experimental.LimitIterDataset(keys, 20)
    )


# ---- What cannot be used --------------------------------------------------------------------

BAD = {
    "missing text": (None, "a text"),
    "empty text": ("a text", " \n\t"),
    "NUL bytes or broken UTF-8": ("a\0b", "a text"),
    "over-long text": ("a text", "x" * 101),
    "identical texts": ("a text", " a text "),
}


def test_unusable_rows_are_counted_by_reason_and_skipped(tmp_path):
    assert set(BAD) == set(REASONS)
    org, re = (list(texts) for texts in zip(*map(recap_files.captions, range(60)), strict=True))
    for i, (one, two) in enumerate(BAD.values()):
        org.insert(10 * i, one)
        re.insert(10 * i, two)
    recap_files.write(tmp_path / "a.parquet", org, re)
    scenes = RecapScenes.find(
        str(tmp_path / "a.parquet"), window=16, max_characters=100, max_bad_fraction=0.4
    )
    views = make_views(
        ConfigDict(dict(name="two_texts", sources=SOURCES, distinct=False)),
        ConfigDict(dict(max_length=16)),
        tiny.tokenizer(),
    )
    batches = make_pipeline(scenes, views, batch_size=60, seed=0)
    next(batches)
    assert batches.skipped() == dict.fromkeys(REASONS, 1)
    batches.close()
    names = {text.name for _, scene in blocks(scenes, 60, 1) for text in scene.texts}
    assert names == {text for i in range(60) for text in recap_files.captions(i)}


def test_broken_utf8_is_skipped(tmp_path):
    good = pa.array(["one", "two", "three"])
    raw = pa.array([b"eins", b"\xff\xfe", None], pa.binary())
    broken = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    table = pa.table({"org_caption": good, "re_caption": broken})
    pq.write_table(table, tmp_path / "a.parquet")
    scenes = RecapScenes.find(str(tmp_path / "a.parquet"), max_bad_fraction=0.9)
    iterator = iter(scenes.blocks(2, seed=0))
    assert {scene.texts[1].name for _, scene in next(iterator)} == {"eins"}
    skipped = iterator.get_state()["window"]["skipped"]
    assert skipped["NUL bytes or broken UTF-8"] == skipped["missing text"] == 1


def test_too_many_unusable_rows_name_file_row_and_reasons(tmp_path):
    org, re = (list(texts) for texts in zip(*map(recap_files.captions, range(40)), strict=True))
    org[7], org[9], re[11] = None, None, org[11]
    path = recap_files.write(tmp_path / "web.parquet", org, re)
    scenes = RecapScenes.find(str(path), max_bad_fraction=0.05)
    with pytest.raises(ValueError, match="3 of the 40 rows") as error:
        scenes.first()
    for part in ("max_bad_fraction 0.05", "missing text 2, identical texts 1", f"row 7 of {path}"):
        assert part in str(error.value)


def test_files_that_cannot_be_used_are_refused_before_anything_is_read(tmp_path, files):
    with pytest.raises(FileNotFoundError, match=r"'.*nothing\*' matches no file; give a path"):
        RecapScenes.find(f"{tmp_path}/nothing*")
    whole = pathlib.Path(RecapScenes.find(files).files[0]).read_bytes()
    short = tmp_path / "short.parquet"
    short.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"short.parquet is not a whole Parquet file .* again"):
        RecapScenes.find(str(short))
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"URL": ["u"], "TEXT": ["a text"]}), other)
    with pytest.raises(ValueError, match=r"other.parquet has .*'TEXT'.* but no 'org_caption'"):
        RecapScenes.find(str(other))
    wrong = tmp_path / "wrong.parquet"
    pq.write_table(pa.table({"org_caption": [1], "re_caption": ["a text"]}), wrong)
    with pytest.raises(ValueError, match=r"wrong.parquet has 'org_caption' of type int64"):
        RecapScenes.find(str(wrong))
    with pytest.raises(ValueError, match=r"empty.parquet has no rows"):
        RecapScenes.find(str(recap_files.write(tmp_path / "empty.parquet", [], [])))


def test_files_of_one_name_are_refused(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        recap_files.write_files(tmp_path / folder, files=1, rows=3)
    with pytest.raises(ValueError, match=r"a/train-00000.parquet and .*b/train.* rename one"):
        RecapScenes.find(f"{tmp_path}/*/*.parquet")
    with pytest.raises(ValueError, match=r"a/train-00000.parquet and .*b/train.* rename one"):
        Plan.make(RECAP, find_files(f"{tmp_path}/*/*.parquet"))


def test_a_file_that_disappears_or_changes_is_named(tmp_path):
    pattern = recap_files.write_files(tmp_path, files=2, rows=20)
    scenes = RecapScenes.find(pattern, open_files=1, window=20)
    iterator = iter(scenes.blocks(20, seed=0))
    first = pathlib.Path(next(next(iterator))[1].scene_id.split(":")[0])
    other = next(path for path in tmp_path.iterdir() if path.name != first.name)
    content = other.read_bytes()
    other.unlink()
    with pytest.raises(FileNotFoundError, match=f"{other.name} is missing"):
        next(iterator)
    other.write_bytes(content[:40] + bytes(len(content) - 1000) + content[-960:])
    with pytest.raises(ValueError, match=f"{other.name} is (damaged|not a whole)"):
        next(iterator)


def test_of_an_open_file_one_row_group_is_in_memory(tmp_path):
    """Arrow would keep all that were read, which in files of gigabytes is all of the memory."""
    texts = ["x" * 200 + str(i) for i in range(40_000)]
    table = pa.table({"org_caption": texts, "re_caption": texts[::-1]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=4_000, compression="none")
    reader = ParquetReader(str(tmp_path / "a.parquet"), SOURCES)
    before, most = pa.total_allocated_bytes(), 0
    while not reader.exhausted:
        reader.read(1_000)
        most = max(most, pa.total_allocated_bytes() - before)
    assert 0 < most < 0.5 * table.nbytes
    reader.close()


# ---- In a bucket ---------------------------------------------------------------------------


@pytest.fixture
def bucket(files):
    """The same files in fsspec's file system in memory, by their URL."""
    memory = fsspec.filesystem("memory")
    for path in pathlib.Path(files).parent.iterdir():
        memory.pipe(f"/bucket/{path.name}", path.read_bytes())
    yield "memory://bucket/train-*.parquet"
    memory.rm("/bucket", recursive=True)


def test_files_of_a_bucket_are_read_as_those_of_a_disk(files, bucket):
    local = RecapScenes.find(files, **SMALL)
    for pattern in (bucket, f"file://{files}"):
        remote = RecapScenes.find(pattern, **SMALL)
        assert remote.content_hash == local.content_hash
        assert [
            (key, scene.scene_id, scene.texts) for key, scene in blocks(remote, 60, size=3)
        ] == [(key, scene.scene_id, scene.texts) for key, scene in blocks(local, 60, size=3)]


def test_a_shard_that_disappears_from_a_bucket_is_named_and_then_goes_on(bucket):
    memory = fsspec.filesystem("memory")
    scenes = RecapScenes.find(bucket, open_files=1, window=23)
    dataset = scenes.blocks(23, seed=0)
    iterator = iter(dataset)
    whole = [[key for key, _ in next(iterator)] for _ in range(4)]
    iterator = iter(dataset)
    next(iterator)
    state = iterator.get_state()
    name = f"train-{whole[1][0][1]:05d}.parquet"
    content = memory.cat(f"/bucket/{name}")
    memory.rm(f"/bucket/{name}")
    with pytest.raises(FileNotFoundError, match=f"memory:/+bucket/{name} is missing; restore it"):
        next(iterator)
    memory.pipe(f"/bucket/{name}", content)
    resumed = iter(dataset)
    resumed.set_state(state)
    assert [[key for key, _ in next(resumed)] for _ in range(3)] == whole[1:]


@pytest.mark.parametrize("pattern", ["nobody://bucket/*.parquet", "hdfs3x://a"])
def test_an_unknown_kind_of_bucket_is_refused(pattern):
    with pytest.raises(ValueError, match=r"data.files .* cannot be opened: Protocol not known"):
        RecapScenes.find(pattern)


@pytest.mark.parametrize(
    ("field", "value"),
    [("open_files", 0), ("window", 0), ("max_characters", 0), ("max_bad_fraction", 1.0)],
)
def test_impossible_fields_are_named(files, field, value):
    with pytest.raises(ValueError, match=f"data.{field} must be .* got {value}"):
        RecapScenes.find(files, **{field: value})


# ---- As the data of an experiment ----------------------------------------------------------


def data_config(pattern, **changes):
    vocabulary = dict(vocab_size=4000, pad_id=0)
    return ConfigDict(
        dict(name="recap", files=pattern, tokenizer="emoji", vocabulary=vocabulary, **SMALL)
        | changes
    )


def test_source_of_files(files):
    source = load_source(data_config(files))
    assert len(source.heldout) == 0
    assert [text.source for text in source.sample[0].texts] == list(SOURCES)
    again = load_source(data_config(files, window=30))
    assert hash_scenes(again.train) == hash_scenes(source.train)


def test_source_of_emoji():
    source = load_source(ConfigDict(dict(name="emoji")))
    assert len(source.train) == len(source.sample) == 1080
    assert len(source.heldout) == 304


def test_the_hash_knows_other_files_again(files, tmp_path):
    other = recap_files.write_files(tmp_path, files=5, rows=24)
    assert RecapScenes.find(files).content_hash != RecapScenes.find(other).content_hash


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(name="laion"),
            "data.name must be one of 'emoji', 'recap', 'prepared', 'mixture'; got 'laion'",
        ),
        (dict(tokenizer=""), r"names no file; train one with `platojax prepare tokenizer"),
        (dict(vocabulary=dict(vocab_size=32_000)), r"vocab_size 4000, but .* is 32000"),
        (dict(vocabulary=dict(pad_id=3)), r"pad_id 0, but data.vocabulary.pad_id is 3"),
        (dict(windw=9), r"data.windw is no field; data has files, open_files, window, "),
        (dict(files=""), r"data.files names no files"),
    ],
)
def test_impossible_data_is_refused(files, changes, message):
    with pytest.raises(ValueError, match=message):
        load_source(data_config(files, **changes))


# ---- Real rows ---------------------------------------------------------------------------


@pytest.mark.skipif(not WEB.is_dir(), reason="needs the web captions")
def test_web_rows_of_another_format_are_refused_and_their_texts_train(tmp_path):
    laion = WEB / "laion_style_test_10000.parquet"
    with pytest.raises(ValueError, match="but no 'org_caption'"):
        RecapScenes.find(str(laion))
    alt_texts = pq.read_table(laion)["TEXT"].to_pylist()
    with gzip.open(WEB / "cc3m_validation.tsv.gz", "rt", encoding="utf-8") as lines:
        captions = [line.split("\t")[0] for line in lines][: len(alt_texts)]
    alt_texts = alt_texts[: len(captions)]
    recap_files.write(tmp_path / "web.parquet", alt_texts, captions, row_group_size=1000)
    views = make_views(
        ConfigDict(dict(name="two_texts", sources=SOURCES, distinct=False)),
        ConfigDict(dict(max_length=32)),
        tiny.tokenizer(),
    )
    batches = make_pipeline(
        RecapScenes.find(str(tmp_path / "web.parquet")), views, batch_size=256, seed=0
    )
    seen = np.concatenate([next(batches) for _ in range(len(captions) // 256)], axis=1)
    batches.close()
    assert seen.shape[::2] == (2, 32)
    assert sum(batches.skipped().values()) < 0.05 * len(captions)
    lengths = (seen != 0).sum(axis=2)
    assert lengths.min() >= 3
    assert 8 < lengths.mean() < 32
