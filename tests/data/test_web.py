"""Captions from the web with one caption an image: tables of URLs, and shards of webdataset."""

import gzip
import io
import json
import pathlib
import tarfile
import tracemalloc

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

from platojax.cli import app
from platojax.data import rejects
from platojax.data.bulk import find_layout
from platojax.data.prepared import PreparedScenes, read_info
from platojax.data.raw import url_text, webdataset
from platojax.data.raw.scene import RawScene
from platojax.data.raw.url_text import OTHER_FIELDS
from platojax.data.rejects import Rejected
from tests.data.test_recap import WEB


def split_rows(rows):
    rows = list(rows)
    scenes = [row for row in rows if isinstance(row, RawScene)]
    return scenes, [row for row in rows if not isinstance(row, RawScene)]


# ---- Tables --------------------------------------------------------------------------------

TABLES = {
    "as of Conceptual Captions": "a red bus\thttp://x.org/1.jpg\nقطة صغيرة\thttps://x.org/2.jpg\n",
    "as of CC12M": "http://x.org/1.jpg\ta red bus\nhttps://x.org/2.jpg\tقطة صغيرة\n",
    "with a header": "Key\tURL\tTEXT\n1\thttp://x.org/1.jpg\ta red bus\n"
    "2\thttps://x.org/2.jpg\tقطة صغيرة\n",
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("suffix", ["tsv", "tsv.gz"])
def test_a_scene_is_a_line_known_by_its_url(tmp_path, table, suffix):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(gzip.compress(table.encode()) if suffix.endswith("gz") else table.encode())
    scenes, rejected = split_rows(url_text.read([str(path)], "val"))
    assert [one.scene_id for one in scenes] == ["http://x.org/1.jpg", "https://x.org/2.jpg"]
    assert [one.texts[0].name for one in scenes] == ["a red bus", "قطة صغيرة"]
    assert {(one.split, one.texts[0].source, len(one.texts)) for one in scenes} == {
        ("val", "caption", 1)
    }
    assert rejected == []


def test_lines_that_cannot_be_used_are_rejected(tmp_path):
    lines = [
        b"a red bus\thttp://x.org/1.jpg",
        b"one field",
        b"a\tb\tc",
        b" \thttp://x.org/2.jpg",
        b"\xff\xfe\thttp://x.org/3.jpg",
        b"a\0b\thttp://x.org/4.jpg",
        b"x" * (1 << 20) + b"\thttp://x.org/5.jpg",
        b"a cat\t",
        "🐈 a cat".encode() + b"\thttp://x.org/6.jpg",
    ]
    path = tmp_path / "a.tsv"
    path.write_bytes(b"\r\n".join(lines))
    scenes, rejected = split_rows(url_text.read([str(path)]))
    assert [one.texts[0].name for one in scenes] == ["a red bus", "🐈 a cat"]
    assert [(one.reason, one.where) for one in rejected] == [
        (OTHER_FIELDS, "a.tsv line 2"),
        (OTHER_FIELDS, "a.tsv line 3"),
        (rejects.EMPTY_TEXT, "a.tsv line 4"),
        (rejects.NOT_TEXT, "a.tsv line 5"),
        (rejects.NOT_TEXT, "a.tsv line 6"),
        (rejects.LONG_TEXT, "a.tsv line 7"),
        (rejects.EMPTY_TEXT, "a.tsv line 8"),
    ]


def test_a_line_without_an_end_is_rejected_and_not_kept(tmp_path):
    path = tmp_path / "a.tsv.gz"
    line = b"\tof 30 MB" + b" " * (30 << 20)
    path.write_bytes(gzip.compress(b"a cat\thttp://x.org/1\n" + line + b"\na dog\thttp://x.org/2"))
    tracemalloc.start()
    scenes, rejected = split_rows(url_text.read([str(path)]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [one.texts[0].name for one in scenes] == ["a cat", "a dog"]
    assert rejected == [Rejected(rejects.LONG_TEXT, "a.tsv.gz line 2")]
    assert peak < 25 << 20


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_byte_order_mark_is_no_part_of_a_table(tmp_path, table):
    path = tmp_path / "a.tsv"
    path.write_text(table, encoding="utf-8-sig")
    scenes, _ = split_rows(url_text.read([str(path)]))
    assert [one.scene_id for one in scenes] == ["http://x.org/1.jpg", "https://x.org/2.jpg"]
    assert scenes[0].texts[0].name == "a red bus"


def test_tables_that_are_none_are_refused(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("id\tcaption\n1\ta red bus\n")
    with pytest.raises(ValueError, match=r"a.tsv begins with \['id', 'caption'\]: expected a capt"):
        list(url_text.read([str(path)]))
    whole = gzip.compress(("a red bus\thttp://x.org/1.jpg\n" * 1000).encode())
    short = tmp_path / "short.tsv.gz"
    short.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"short.tsv.gz is cut short or damaged .* fetch it again"):
        list(url_text.read([str(short)]))
    with pytest.raises(FileNotFoundError, match="gone"):
        list(url_text.read([str(tmp_path / "gone.tsv")]))


def test_tables_of_a_bucket():
    memory = fsspec.filesystem("memory")
    memory.pipe("/tables/a.tsv", TABLES["as of CC12M"].encode())
    scenes, _ = split_rows(url_text.read(["memory://tables/a.tsv"]))
    assert len(scenes) == 2
    memory.rm("/tables", recursive=True)


@pytest.mark.parametrize(
    ("columns", "text", "url"),
    [
        (["URL", "TEXT", "__index_level_0__"], "TEXT", "URL"),
        (["key", "caption", "text", "url"], "caption", "url"),
        (["image_url", "caption"], "caption", "image_url"),
    ],
)
def test_columns_are_found_by_their_names(columns, text, url):
    layout = find_layout(columns)
    assert (layout.texts, layout.image) == (((text, "caption", ""),), url)


def test_unknown_columns_are_refused():
    with pytest.raises(ValueError, match=r"called caption or text .* there are URL, ALT"):
        find_layout(["URL", "ALT"])


# ---- Shards of webdataset ------------------------------------------------------------------


def jpeg(number):
    file = io.BytesIO()
    Image.new("RGB", (8, 6), (number, 0, 0)).save(file, "JPEG")
    return file.getvalue()


def write_tar(path, members):
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return str(path)


def sample(number, caption):
    """As img2dataset writes one."""
    key = f"{number:09d}"
    row = {"url": f"http://x.org/{number}.jpg", "caption": caption, "key": key, "width": 8}
    return [
        (f"{key}.jpg", jpeg(number)),
        (f"{key}.json", json.dumps(row).encode()),
        (f"{key}.txt", caption.encode()),
    ]


@pytest.mark.parametrize("pictures", [False, True])
def test_a_scene_is_a_sample(tmp_path, pictures):
    members = [member for i in range(3) for member in sample(i, f"caption {i}")]
    path = write_tar(tmp_path / "00000.tar", members)
    scenes, rejected = split_rows(webdataset.read([path], pictures=pictures))
    assert [one.scene_id for one in scenes] == [f"{i:09d}" for i in range(3)]
    assert [one.texts[0].name for one in scenes] == [f"caption {i}" for i in range(3)]
    assert [[p.content for p in one.pictures] for one in scenes] == [
        [jpeg(i)] if pictures else [] for i in range(3)
    ]
    assert rejected == []


def test_captions_come_from_the_json_where_there_is_no_txt(tmp_path):
    members = [
        ("a/x.json", b'{"caption": "from the json"}'),
        ("b/x.json", b'{"caption": 3}'),
        ("c.jpg", jpeg(0)),
        ("d.json", b"not json"),
        ("e.tar.gz.txt", b"no caption: its kind is tar.gz.txt"),
    ]
    path = write_tar(tmp_path / "0.tar", members)
    scenes, rejected = split_rows(webdataset.read([path]))
    assert [(one.scene_id, len(one.texts)) for one in scenes] == [
        ("a/x", 1), ("b/x", 0), ("c", 0), ("d", 0), ("e", 0),
    ]  # fmt: skip
    assert [one.reason for one in rejected] == [rejects.MISSING_TEXT] * 4
    assert rejected[1].where == "0.tar sample c"


def test_a_tar_that_is_cut_anywhere_is_refused(tmp_path):
    whole = pathlib.Path(write_tar(tmp_path / "whole.tar", [*sample(0, "a"), *sample(1, "b")]))
    content = whole.read_bytes()
    end = 2 * 3 * 1024  # of the last member: header and content of each take 512 bytes or more
    short = tmp_path / "short.tar"
    for size in (0, 100, 512, 700, 1536, 2048, end):
        short.write_bytes(content[:size])
        with pytest.raises(
            ValueError, match=r"short.tar is not a whole tar file .* fetch it again"
        ):
            list(webdataset.read([str(short)]))


def test_pictures_that_cannot_be_decoded_are_rejected(tmp_path):
    members = [
        ("a.jpg", b""), ("a.txt", b"one"),
        ("b.jpg", b"not a jpeg"), ("b.txt", b"two"),
        ("c.png", jpeg(0)[:-20]), ("c.txt", b"three"),
        ("d.jpg", jpeg(0)), ("d.txt", b"four"),
    ]  # fmt: skip
    path = write_tar(tmp_path / "0.tar", members)
    scenes, rejected = split_rows(webdataset.read([path], pictures=True))
    assert [(one.texts[0].name, len(one.pictures)) for one in scenes] == [
        ("one", 0), ("two", 0), ("three", 0), ("four", 1),
    ]  # fmt: skip
    assert rejected == [
        Rejected(rejects.EMPTY_FILE, "0.tar sample a"),
        Rejected(rejects.BAD_PICTURE, "0.tar sample b"),
        Rejected(rejects.BAD_PICTURE, "0.tar sample c"),
    ]
    assert split_rows(webdataset.read([path]))[1] == []


def sparse_member(name, size):
    """A file of `size` zeros that takes 1,024 bytes (GNU's format)."""
    info = tarfile.TarInfo(name)
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 512
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"%011o\0" % 0 + b"%011o\0" % 512
    header[483:495] = b"%011o\0" % size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + b"\0" * 512


def test_members_that_would_fill_the_memory_are_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(webdataset, "_MAX_TEXT_BYTES", 1000)
    monkeypatch.setattr(webdataset, "MAX_PICTURE_BYTES", 1000)
    members = [("b.txt", b"x" * 1001), ("c.jpg", b"x" * 1001), ("c.txt", b"a caption")]
    path = pathlib.Path(write_tar(tmp_path / "0.tar", members))
    path.write_bytes(sparse_member("a.txt", 1 << 32) + path.read_bytes())
    scenes, rejected = split_rows(webdataset.read([str(path)], pictures=True))
    assert [(one.scene_id, len(one.texts), len(one.pictures)) for one in scenes] == [
        ("a", 0, 0), ("b", 0, 0), ("c", 1, 0),
    ]  # fmt: skip
    assert rejected == [
        Rejected(webdataset.SPARSE, "0.tar sample a"),
        Rejected(rejects.LARGE_FILE, "0.tar sample b"),
        Rejected(rejects.LARGE_FILE, "0.tar sample c"),
    ]


def test_a_member_with_a_name_of_megabytes_is_refused(tmp_path):
    path = write_tar(tmp_path / "0.tar", [("x" * (2 << 20) + ".txt", b"a caption")])
    with pytest.raises(ValueError, match=r"0.tar is not a whole tar file \(a header of 2,"):
        list(webdataset.read([path]))


def test_the_command_keeps_pictures_where_it_is_asked_to(tmp_path):
    out = tmp_path / "out"
    path = write_tar(tmp_path / "0.tar", [m for i in range(3) for m in sample(i, f"caption {i}")])
    result = CliRunner().invoke(app, ["prepare", "web", path, "--out", str(out), "--pictures"])
    assert result.exit_code == 0, result.output
    assert "3 scenes, 3 texts, 3 pictures" in result.output.replace("\n", " ")
    assert PreparedScenes(out, "train")[1].pictures[0].image.shape == (6, 8, 3)


# ---- As a command --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "arguments", "message"),
    [
        (["a.tsv", "b.tar"], [], "expected files of one kind"),
        (["a.txt"], [], "expected files of one kind"),
        (["a.tsv"], ["--pictures"], "--pictures is for .tar"),
        (["a.tsv"], ["--beam", "--runner=X"], "--beam is for .parquet"),
        (["a.tsv"], ["--workers", "2"], "--workers is for .parquet"),
        (["a.tar"], ["--rows-per-shard", "9"], "--rows-per-shard is for .parquet"),
        (["a.tsv"], ["--out", "gs://b/a"], "--out gs://b/a is a URL, to which only --beam writes"),
        (["a.parquet"], ["--out", "gs://b/a"], "--out gs://b/a is a URL, to which only --beam"),
    ],
)
def test_what_cannot_be_prepared_is_refused(tmp_path, names, arguments, message):
    for name in names:
        (tmp_path / name).touch()
    files = [str(tmp_path / name) for name in names]
    result = CliRunner().invoke(
        app, ["prepare", "web", *files, "--out", str(tmp_path / "out"), *arguments]
    )
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_no_files_are_refused(tmp_path):
    result = CliRunner().invoke(app, ["prepare", "web", f"{tmp_path}/*.tsv", "--out", "x"])
    assert result.exit_code == 2
    assert "matches no file" in result.output


def test_a_column_of_numbers_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"URL": ["u"], "TEXT": [3]}), path)
    result = CliRunner().invoke(app, ["prepare", "web", str(path), "--out", str(tmp_path / "o")])
    assert result.exit_code == 2
    assert "has 'TEXT' of type int64" in " ".join(result.output.split())


@pytest.mark.skipif(not WEB.is_dir(), reason="needs the web captions")
def test_real_rows_of_conceptual_captions(tmp_path):
    out = tmp_path / "out"
    table = WEB / "cc3m_validation.tsv.gz"
    result = CliRunner().invoke(app, ["prepare", "web", str(table), "--out", str(out)])
    assert result.exit_code == 0, result.output
    scenes = PreparedScenes(out, "train")
    with gzip.open(table, "rt", encoding="utf-8") as lines:
        first = next(lines).rstrip("\n").split("\t")
    assert [scenes[0].texts[0].name, scenes[0].scene_id] == [first[0].strip(), first[1]]
    assert len(scenes) + sum(read_info(out).rejected.values()) >= 15_800
