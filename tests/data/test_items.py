import dataclasses
import json

import numpy as np
import pytest
from PIL import Image

from platojax.data.images import hash_image, open_image
from platojax.data.items import Items, emoji_items, load_items
from platojax.data.scenes import Picture, Scene, Text, load_emoji


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def write_image(path, color=(255, 0, 0), size=(6, 4)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)
    return path


# Rows


def test_rows_of_one_id_are_observations_of_one_item(tmp_path):
    photo = write_image(tmp_path / "photos" / "1.png")
    spec = write_rows(
        tmp_path / "mine.jsonl",
        [
            {"scene_id": "b", "caption": "a red bus", "image": "photos/1.png"},
            {"scene_id": "a", "captions": ["zwei Hunde", "🐶🐶"], "image": "photos/1.png", "x": 1},
            {"scene_id": "b", "caption": "ein Bus", "image": "photos/1.png"},
        ],
    )
    items = load_items(spec)
    assert items.name == "mine.jsonl"
    assert items.ids == ("b", "a")
    assert items.texts == (("a red bus", "ein Bus"), ("zwei Hunde", "🐶🐶"))
    assert items.images == ((photo,), (photo,))
    assert items.first(1).texts == (("a red bus",), ("zwei Hunde",))


def test_csv_tsv_txt_and_parquet_hold_the_same(tmp_path):
    import pyarrow
    import pyarrow.parquet

    texts = (("a, b",), ('say "c"',))
    (tmp_path / "x.csv").write_text('\ufeffid,caption\n7,"a, b"\n9,"say ""c"""\n', "utf-8")
    (tmp_path / "x.tsv").write_text('id\tcaption\n7\ta, b\n9\tsay "c"\n', "utf-8")
    table = pyarrow.table({"id": [7, 9], "text": [["a, b"], ['say "c"']], "url": ["u", "v"]})
    (tmp_path / "snapshot" / "data").mkdir(parents=True)
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    pyarrow.parquet.write_table(table, tmp_path / "snapshot" / "data" / "train-0.parquet")
    for name in ("x.csv", "x.tsv", "x.parquet", "snapshot"):
        items = load_items(str(tmp_path / name))
        assert (items.ids, items.texts) == (("7", "9"), texts), name
        assert items.images is None
    (tmp_path / "x.txt").write_text('\ufeffa, b\r\nsay "c"\n', "utf-8")
    assert load_items(str(tmp_path / "x.txt")).texts == texts
    assert load_items(str(tmp_path / "x.txt")).ids == ("0", "1")


def test_parquet_images_are_the_encoded_bytes(tmp_path):
    import pyarrow
    import pyarrow.parquet

    encoded = write_image(tmp_path / "1.png").read_bytes()
    table = pyarrow.table({"image": [{"bytes": encoded, "path": "1.png"}], "text": [["a", "b"]]})
    pyarrow.parquet.write_table(table, tmp_path / "wit.parquet")
    items = load_items(str(tmp_path / "wit.parquet"))
    assert items.images == ((encoded,),)
    assert open_image(items.images[0][0]).getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "has no rows; a row of .jsonl is such as"),
        ('{"caption": " "}\n', "1 of 1 rows cannot be used.*line 1 has an empty caption"),
        ('{"caption": "a"}\n{"caption": \n', "1 of 2 rows.*line 2 is not JSON"),
        ('{"caption": 3}\n', "line 1 has a caption of type int, not text"),
        ('"a red bus"\n', "line 1 is a str, not an object such as"),
        ('{"id": " ", "caption": "a"}\n', "line 1 has an empty id"),
        (
            '{"id": 1, "caption": "a", "label": "x"}\n{"id": 1, "caption": "b", "label": "y"}\n',
            "line 2 gives item 1 a second label, 'y'",
        ),
        ("[1]\n", "line 1 is a list, not an object such as"),
        ('{"title": "a"}\n', r"line 1 has neither caption, .* nor image \(it has \['title'\]\)"),
        ('{"image": "gone.png"}\n', "line 1 names the image .*gone.png, which does not exist"),
        ('{"image": 3}\n', "line 1 has an image of type int"),
        ('{"id": 1, "caption": "a"}\n{"caption": "b"}\n', "1 of 2 rows have no scene_id or id"),
        ('{"id": 1, "caption": "a"}\n{"id": 2, "image": "i.png"}\n', "1 of 2 items have no text"),
        ("\n".join('{"caption": ""}' for _ in range(9)), r"9 of 9 rows.*line 5 has .*; \.\.\."),
    ],
)
def test_rows_that_cannot_be_used_are_refused_by_line(tmp_path, content, words):
    write_image(tmp_path / "i.png")
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=words):
        load_items(str(path))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.csv", b"id,caption\n1,a,b\n", "line 2 has another number of fields"),
        ("x.csv", b"id,caption\n1\n", "line 2 has another number of fields"),
        ("x.csv", b'id,caption\n1,"a\n2,b\n', "is not a table of fields"),
        ("x.csv", b"id,caption,caption\n1,a,b\n", "two columns have one name"),
        (
            "x.jsonl",
            b'{"caption": "a\\ud800b"}\n',
            "line 1 has a caption that is not valid Unicode",
        ),
        ("x.jsonl", b'{"id": true, "caption": "a"}\n', "line 1 has an id of type bool"),
        ("x.jsonl", b"[" * 100000, "line 1 is not JSON"),
        ("x.jsonl", b'{"caption": "\xff"}\n', "line 1 has a caption that is not valid Unicode"),
        (
            "x.csv",
            b"id,caption\n1,a\n2,caf\xe9\n",
            "line 3 has a caption that is not valid Unicode",
        ),
        (
            "x.csv",
            b"id,title\n1,a\n",
            r"has the columns \['id', 'title'\], but none of \['caption'",
        ),
        ("x.csv", b"caption\n", "has no rows"),
        ("x.txt", b"a\n\nb\n", "line 2 has an empty caption"),
        ("x.parquet", b"PAR1 truncated", "not a whole Parquet file"),
        ("x.json", b"[]", r"expected a folder of images or a file \.jsonl, \.csv"),
    ],
)
def test_damaged_files_are_refused_by_name(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name}.*{words}"):
        load_items(str(tmp_path / name))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.jsonl does not exist"):
        load_items(str(tmp_path / "gone.jsonl"))


def test_parquet_without_usable_columns_names_those_it_has(tmp_path):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"url": ["u"]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=r"x\.parquet has the columns \['url'\], but none of"):
        load_items(str(tmp_path / "x.parquet"))


def test_rows_about_classes_become_prompts(tmp_path):
    rows = [{"id": "n1", "name": "great_white shark", "definition": "a large fish"}]
    spec = write_rows(tmp_path / "classes.jsonl", rows)
    (clip,) = load_items(spec, "clip").texts
    assert len(clip) == 18
    assert clip[0] == "a photo of a great white shark."
    assert clip[-1] == "a photo of the big great white shark."
    assert load_items(spec, "name").texts == (("great white shark",),)
    assert load_items(spec, "definition").texts == (("great white shark - a large fish",),)
    assert load_items(spec, "name").name == "classes.jsonl, prompts name"
    with pytest.raises(ValueError, match="prompts 'long' are unknown; choose one of clip"):
        load_items(spec, "long")
    bare = write_rows(tmp_path / "bare.jsonl", [{"id": "n1", "name": "shark"}])
    with pytest.raises(ValueError, match="line 1 has no definition, which prompts 'definition'"):
        load_items(bare, "definition")


# Labels


def test_labels_are_a_column_or_the_first_folder_or_the_group_of_an_emoji(tmp_path):
    rows = [{"id": 1, "caption": "a", "label": "x"}, {"id": 1, "caption": "b", "label": "x"}]
    assert load_items(write_rows(tmp_path / "r.jsonl", rows)).labels == ("x",)
    for name in ("n01/1.png", "n02/deep/2.png"):
        write_image(tmp_path / "images" / name)
    assert load_items(str(tmp_path / "images")).labels == ("n01", "n02")
    write_image(tmp_path / "images" / "loose.png")
    assert load_items(str(tmp_path / "images")).labels is None
    assert set(load_items("emoji:heldout").labels) >= {"Food & Drink", "Animals & Nature"}


@pytest.mark.parametrize(
    ("names", "prefix"), [("batches.meta.txt", b""), ("fine_label_names.txt", b"\x07")]
)
def test_cifar_in_its_binary_format(tmp_path, names, prefix):
    (tmp_path / names).write_text("airplane\ncat\n\n")
    pixels = np.arange(2 * 3072, dtype=np.uint16).astype(np.uint8).reshape(2, 3, 32, 32)
    records = b"".join(
        prefix + bytes([label]) + image.tobytes()
        for label, image in zip((1, 0), pixels, strict=True)
    )
    path = tmp_path / "test_batch.bin"
    path.write_bytes(records)
    items = load_items(str(path))
    assert items.ids == ("test_batch/0", "test_batch/1")
    assert items.labels == ("cat", "airplane")
    np.testing.assert_array_equal(items.images[1][0], pixels[1].transpose(1, 2, 0))
    path.write_bytes(records[:-1])
    with pytest.raises(ValueError, match="which is no whole number of records of"):
        load_items(str(path))
    path.write_bytes(prefix + b"\x05" + bytes(3072))
    with pytest.raises(ValueError, match=r"has class 5, but .* names 2"):
        load_items(str(path))
    (tmp_path / names).unlink()
    with pytest.raises(ValueError, match="unpack CIFAR's whole archive"):
        load_items(str(path))


# Folders of images


def test_a_folder_of_images_is_read_in_the_order_of_names(tmp_path):
    for name in ("b/2.PNG", "b/1.jpg", "a.webp", ".hidden.png", "notes.md"):
        write_image(tmp_path / name) if name != "notes.md" else (tmp_path / name).write_text("x")
    items = load_items(str(tmp_path))
    assert items.ids == ("a", "b/1", "b/2")
    assert items.texts is None
    with pytest.raises(ValueError, match=r"the encoder is for texts, and data .* has images only"):
        items.observations("text")


def test_folders_without_images_or_with_twins_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds no images .* and no \.parquet"):
        load_items(str(tmp_path))
    write_image(tmp_path / "1.png")
    write_image(tmp_path / "1.jpg")
    with pytest.raises(ValueError, match="has two images called 1; rename one"):
        load_items(str(tmp_path))


# Emoji


def test_emoji_are_items_of_both_modalities():
    items = load_items("emoji:heldout")
    assert len(items.ids) == len(load_emoji("heldout"))
    assert len(items.images[0]) == 3
    assert items.images[0][0].shape == (64, 64, 3)
    with pytest.raises(ValueError, match=r"'emoji:test'.* emoji:heldout"):
        load_items("emoji:test")


def test_emoji_texts_are_by_the_sources_in_the_order_asked():
    scenes = load_emoji("heldout")[:3]
    items = emoji_items(scenes, name="three", sources=("cldr_de", "cldr_en"))
    german = next(text for text in scenes[0].texts if text.source == "cldr_de")
    assert items.texts[0][0] == ", ".join([german.name, *german.keywords])
    assert len(items.texts[0]) == 2
    with pytest.raises(ValueError, match=r"\['klingon'\] do not describe scene"):
        emoji_items(scenes, name="three", sources=("klingon",))


def test_drawings_are_by_the_first_artists_who_drew_the_scene():
    red, green, blue = (np.full((8, 8, 3), c, np.uint8) for c in np.diag([255, 255, 255]))
    scenes = [
        scene_with([("c", blue), ("b", green), ("a", red)]),
        scene_with([("c", blue), ("b", green)]),
    ]
    items = emoji_items(scenes, name="x", sources=("s",), artists=("a", "b", "c"), drawings=2)
    assert [[id(image) for image in images] for images in items.images] == [
        [id(red), id(green)],
        [id(green), id(blue)],
    ]
    with pytest.raises(ValueError, match=r"has 0 drawings by evaluation\.artists"):
        emoji_items(scenes, name="x", sources=("s",), artists=("z",), drawings=1)


def scene_with(pictures):
    return Scene(
        scene_id="1f408",
        emoji="🐈",
        name="cat",
        group="Animals & Nature",
        subgroup="animal-mammal",
        texts=(Text("s", "en", "cat", ()),),
        pictures=tuple(Picture(artist, image) for artist, image in pictures),
    )


# Hashes


def test_hashes_follow_the_content_and_stamps_the_files(tmp_path):
    path = write_image(tmp_path / "1.png")
    items = Items("x", ("1",), (("a", "b"),), ((path,),))
    texts, images, stamp = items.content_hash("text"), items.content_hash("image"), items.stamp()
    regrouped = Items("x", ("1", "2"), (("a",), ("b",)), ((path,), (path,)))
    assert regrouped.content_hash("text") != texts
    write_image(path, (0, 255, 0))
    items = dataclasses.replace(items)  # the hashes of an object are computed once
    assert items.content_hash("text") == texts
    assert items.content_hash("image") != images
    assert items.stamp() != stamp


# Images


def test_images_of_all_kinds_become_rgb(tmp_path):
    gray16 = np.full((4, 6), 40000, np.uint16)
    transparent = Image.new("RGBA", (6, 4), (255, 0, 0, 0))
    palette = Image.new("P", (6, 4), 1)
    palette.putpalette([0, 0, 0, 0, 0, 255])
    images = {
        "gray16.png": (Image.fromarray(gray16), (156, 156, 156)),
        "transparent.png": (transparent, (255, 255, 255)),
        "palette.png": (palette, (0, 0, 255)),
        "gray.png": (Image.new("L", (6, 4), 7), (7, 7, 7)),
        "cmyk.tiff": (Image.new("CMYK", (6, 4), (0, 255, 255, 0)), (255, 0, 0)),
    }
    for name, (image, color) in images.items():
        image.save(tmp_path / name)
        opened = open_image(tmp_path / name)
        assert opened.mode == "RGB"
        assert opened.getpixel((0, 0)) == color, name


def test_the_first_frame_of_an_animation_counts(tmp_path):
    frames = [Image.new("RGB", (6, 4), color) for color in ("red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert open_image(tmp_path / "a.gif").getpixel((0, 0)) == (255, 0, 0)


def test_what_the_camera_noted_about_its_rotation_is_applied(tmp_path):
    image = Image.new("RGB", (6, 4))
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "r.jpg", exif=exif)
    assert open_image(tmp_path / "r.jpg").size == (4, 6)


@pytest.mark.parametrize("content", [b"", b"no image", "truncated"])
def test_what_is_no_image_is_refused_by_name(tmp_path, content):
    path = tmp_path / "bad.jpg"
    whole = write_image(tmp_path / "good.jpg", size=(99, 99)).read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content == "truncated" else content)
    with pytest.raises(ValueError, match=r"bad\.jpg cannot be read as an image: .*; replace it"):
        open_image(path)


def test_a_decompression_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with pytest.raises(ValueError, match=r"big\.png cannot be read .* decompression bomb"):
        open_image(write_image(tmp_path / "big.png"))


def test_image_hashes_tell_files_bytes_and_pixels_apart(tmp_path):
    path = write_image(tmp_path / "1.png")
    assert hash_image(path) == hash_image(path.read_bytes())
    pixels = np.zeros((2, 3, 3), np.uint8)
    assert hash_image(pixels) != hash_image(pixels.reshape(3, 2, 3))
