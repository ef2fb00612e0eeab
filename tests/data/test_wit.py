import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from platojax.cli import app
from platojax.data import rejects
from platojax.data.items import load_items
from platojax.data.raw import wit
from platojax.data.raw.scene import RawScene
from tests.data.pictures import encode, pixels

IMAGE = encode(pixels())


def write(folder, rows, name="train-00000-of-00002.parquet"):
    """The layout of the snapshot: image as the datasets library stores it, and captions."""
    folder.mkdir(parents=True, exist_ok=True)
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", image), ("text", pa.list_(pa.string()))])
    images = [None if picture is None else {"bytes": picture, "path": None} for picture, _ in rows]
    table = pa.table({"image": images, "text": [texts for _, texts in rows]}, schema)
    pq.write_table(table, folder / name)
    return folder


def test_items_are_numbered_over_all_files_with_their_captions_in_order(tmp_path):
    write(tmp_path / "data", [(IMAGE, ["a first", "a second"]), (IMAGE, ["b"])])
    write(tmp_path / "data", [(IMAGE, ["c"])], "train-00001-of-00002.parquet")
    scenes = list(wit.read(tmp_path))
    assert [(scene.scene_id, scene.split) for scene in scenes] == [
        ("0000", "test"),
        ("0001", "test"),
        ("0002", "test"),
    ]
    assert [text.name for text in scenes[0].texts] == ["a first", "a second"]
    assert scenes[0].pictures[0].content == IMAGE


def test_a_row_without_picture_or_first_caption_is_left_out_whole(tmp_path):
    rows = [
        (IMAGE[:200], ["a"]),
        (None, ["b"]),
        (IMAGE, ["", "not the first"]),
        (IMAGE, None),
        (IMAGE, ["e"]),
    ]
    found = list(wit.read(write(tmp_path, rows)))
    assert [row.scene_id for row in found if isinstance(row, RawScene)] == ["0004"]
    assert [row.reason for row in found[:-1]] == [
        rejects.BAD_PICTURE,
        rejects.MISSING_FILE,
        rejects.EMPTY_TEXT,
        rejects.MISSING_TEXT,
    ]


def test_what_is_no_snapshot_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="give a snapshot of minhuh/prh"):
        wit.input_files(tmp_path)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"image": ["x.jpg"], "caption": ["a"]}), path)
    with pytest.raises(ValueError, match=r"has no columns \['text'\]; it has \['image', 'caption"):
        list(wit.read(tmp_path))
    pq.write_table(pa.table({"image": ["x.jpg"], "text": ["a"]}), path)
    with pytest.raises(ValueError, match="column image is string, not a struct with bytes"):
        list(wit.read(tmp_path))
    write(tmp_path, [(IMAGE, ["a"])], "a.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="is not a whole Parquet file"):
        list(wit.read(tmp_path))


def test_prepared_it_is_an_evaluation_set_of_first_captions(tmp_path):
    write(tmp_path / "snapshot", [(encode(pixels(seed=i)), [f"{i} a", f"{i} b"]) for i in range(4)])
    out = tmp_path / "out"
    result = CliRunner().invoke(
        app, ["prepare", "wit-1024", str(tmp_path / "snapshot"), "--out", str(out)]
    )
    assert result.exit_code == 0, result.output
    for spec in (f"{out}:test", str(tmp_path / "snapshot")):  # either way
        items = load_items(spec).first(1)
        assert items.texts == tuple((f"{i} a",) for i in range(4))
        assert [image for (image,) in items.images] == [encode(pixels(seed=i)) for i in range(4)]
