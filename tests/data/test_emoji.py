"""The embedded emoji data set, its reader, and the tool that builds it."""

import importlib.util
import json
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds

from platojax.data import scenes
from platojax.data.scenes import EMOJI_FOLDER, load_emoji

TOOL = Path(__file__).parents[2] / "tools" / "build_emoji.py"


def test_split_sizes():
    train, heldout = load_emoji("train"), load_emoji("heldout")
    assert 1350 <= len(train) + len(heldout) <= 1900
    assert len(heldout) >= 300
    assert 0.20 <= len(heldout) / (len(train) + len(heldout)) <= 0.22


def test_splits_are_disjoint_and_in_order():
    train = [scene.scene_id for scene in load_emoji("train")]
    heldout = [scene.scene_id for scene in load_emoji("heldout")]
    assert not set(train) & set(heldout)
    assert train == sorted(set(train))
    assert heldout == sorted(set(heldout))
    assert [scene.scene_id for scene in load_emoji("all")] == train + heldout


def test_no_drawing_is_in_both_splits():
    drawings = [
        {(picture.source, picture.image.tobytes()) for scene in load_emoji(split)
         for picture in scene.pictures}
        for split in ("train", "heldout")
    ]  # fmt: skip
    assert not drawings[0] & drawings[1]


def test_heldout_has_the_same_share_of_each_group():
    everything = Counter(scene.group for scene in load_emoji("all"))
    heldout = Counter(scene.group for scene in load_emoji("heldout"))
    assert len(everything) == 8
    assert all(0.18 <= heldout[group] / count <= 0.25 for group, count in everything.items())


def test_one_symbol_per_scene():
    for scene in load_emoji("all"):
        codes = [ord(character) for character in scene.emoji]
        assert scene.scene_id == "-".join(f"{code:x}" for code in codes if code != 0xFE0F)
        assert scene.group != "Flags"
        assert 0x200D not in codes
        assert not any(0x1F3FB <= code <= 0x1F3FF or 0x1F1E6 <= code <= 0x1F1FF for code in codes)


def test_pictures():
    corners, mean = [], []
    for scene in load_emoji("all"):
        assert len(scene.pictures) >= 4
        assert len({picture.source for picture in scene.pictures}) == len(scene.pictures)
        for picture in scene.pictures:
            assert picture.image.shape == (64, 64, 3)
            assert picture.image.dtype == np.uint8
            assert not picture.image.flags.writeable
            assert picture.image.min() < 240  # something is drawn
            corners.append((picture.image[[0, 0, -1, -1], [0, -1, 0, -1]] >= 250).all())
            mean.append(picture.image.mean())
    assert np.mean(corners) > 0.85
    assert 100 < np.mean(mean) < 250


def test_texts():
    for scene in load_emoji("all"):
        languages = Counter(text.language for text in scene.texts)
        assert languages.pop("en") >= 2
        assert len(languages) >= 6
        assert len({text.source for text in scene.texts}) == len(scene.texts)
        for text in scene.texts:
            assert text.name
            assert text.name == " ".join(text.name.split())
            assert text.keywords
            assert all(text.keywords)


def test_a_known_scene():
    turtle = next(scene for scene in load_emoji("all") if scene.scene_id == "1f422")
    assert (turtle.emoji, turtle.name, turtle.group) == ("🐢", "turtle", "Animals & Nature")
    assert turtle.subgroup == "animal-reptile"
    names = {text.source: text.name for text in turtle.texts}
    assert names["cldr_de"] == "Schildkröte"
    assert names["cldr_ja"] == "カメ"
    assert "tortoise" in next(t.keywords for t in turtle.texts if t.source == "cldr_en")


def test_a_second_load_gives_the_same_scenes():
    assert load_emoji("train")[0] is load_emoji("all")[0]


def test_tfds_reads_it_too():
    source = tfds.builder_from_directory(EMOJI_FOLDER).as_data_source("heldout")
    scene = load_emoji("heldout")[7]
    record = source[7]
    assert len(source) == len(load_emoji("heldout"))
    assert record["scene_id"].decode() == scene.scene_id
    for image, picture in zip(record["pictures"]["image"], scene.pictures, strict=True):
        np.testing.assert_array_equal(image, picture.image)


def test_size_and_attribution():
    assert sum(path.stat().st_size for path in EMOJI_FOLDER.rglob("*")) < 10e6
    attribution = (EMOJI_FOLDER / "ATTRIBUTION.md").read_text(encoding="utf-8")
    packages = json.loads((EMOJI_FOLDER / "metadata.json").read_text())["packages"]
    for package, version in packages.items():
        assert f"| {package} | {version} |" in attribution
    for picture in {p.source for scene in load_emoji("all") for p in scene.pictures}:
        assert f"| {picture} |" in attribution


def test_wrong_split():
    with pytest.raises(ValueError, match=r"split is 'test'; choose one of train, heldout, all"):
        load_emoji("test")


def test_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="rebuild the folder"):
        load_emoji("train", folder=tmp_path / "none")


def test_missing_file(tmp_path):
    folder = shutil.copytree(EMOJI_FOLDER, tmp_path / "emoji")
    (folder / "emoji-heldout.array_record-00000-of-00001").unlink()
    with pytest.raises(ValueError, match=r"is damaged .* rebuild the folder"):
        load_emoji("heldout", folder=folder)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("emoji-heldout.array_record-00000-of-00001", b"not records" * 1000),
        ("emoji-heldout.array_record-00000-of-00001", b""),
        ("dataset_info.json", b"{"),
        ("features.json", b"{}"),
    ],
)
def test_damaged_folder(tmp_path, file, content):
    folder = shutil.copytree(EMOJI_FOLDER, tmp_path / "emoji")
    (folder / file).write_bytes(content)
    with pytest.raises(ValueError, match=f"{folder} is damaged .* rebuild the folder"):
        load_emoji("heldout", folder=folder)


def test_records_lost_from_the_end(tmp_path):
    folder = shutil.copytree(EMOJI_FOLDER, tmp_path / "emoji")
    path = folder / "emoji-heldout.array_record-00000-of-00001"
    path.write_bytes(path.read_bytes()[: 10 * 65536])
    with pytest.raises(ValueError, match="is damaged"):
        load_emoji("heldout", folder=folder)


# The tool, on packages of a handful of emojis.

EMOJIS = {"🐢": "turtle", "🐸": "frog", "🍎": "red apple", "🚗": "automobile", "⚓": "anchor"}


@pytest.fixture(scope="module")
def tool():
    pytest.importorskip("cairosvg", exc_type=(ImportError, OSError))  # OSError: without libcairo2
    spec = importlib.util.spec_from_file_location("build_emoji", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def _write(root: Path, package: str, files: dict) -> None:
    for name, content in files.items():
        path = root / package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


@pytest.fixture
def node_modules(tmp_path, tool):
    root = tmp_path / "node_modules"
    for package, version in tool.VERSIONS.items():
        _write(root, package, {"package.json": {"version": version}})
    slugs = {emoji: name.replace(" ", "-") for emoji, name in EMOJIS.items()}
    for number, icons in enumerate(tool.ARTISTS.values()):
        bodies = {
            slug: {"body": f'<circle cx="8" cy="8" r="{3 + index}" fill="#{number}0{index}"/>'}
            for index, slug in enumerate(slugs.values())
        }
        bodies["anchor"] = {"body": '<circle cx="8" cy="8" r="3" fill="white"/>'}  # blank
        with_codes = icons in ("noto", "twemoji")
        codes = {f"{ord(emoji):x}": slug for emoji, slug in slugs.items()} if with_codes else {}
        _write(root, f"@iconify-json/{icons}", {
            "icons.json": {"icons": bodies, "width": 16, "height": 16},
            "chars.json": codes,
        })  # fmt: skip
    for language in ("en", *tool.LANGUAGES):
        annotations = {
            emoji: {"tts": [f"{name} {language}"], "default": ["thing", name]}
            for emoji, name in EMOJIS.items()
        }
        for package, folder, content in (
            ("cldr-annotations-full", "annotations", annotations),
            ("cldr-annotations-derived-full", "annotationsDerived", {}),
        ):
            _write(root, package, {
                f"{folder}/{language}/annotations.json": {folder: {"annotations": content}}
            })  # fmt: skip
    _write(root, "emojilib", {
        "dist/emoji-en-US.json": {
            emoji: [name.replace(" ", "_"), "a\u00a0thing"] for emoji, name in EMOJIS.items()
        }
    })  # fmt: skip
    entry = {"group": "Objects", "emoji_version": "0.6"}
    extra = {"🇩🇪": "flag", "👍🏽": "thumb", "👨‍🚀": "astronaut"}
    _write(root, "unicode-emoji-json", {
        "data-by-emoji.json": {
            emoji: {**entry, "name": name, "slug": name.replace(" ", "_")}
            for emoji, name in (EMOJIS | extra).items()
        } | {"🇩🇪": {**entry, "group": "Flags", "name": "flag", "slug": "flag"}},
    })  # fmt: skip
    _write(root, "emojibase-data", {
        "meta/groups.json": {"subgroups": {"3": "some-things"}},
        "en/data.json": [{"hexcode": f"{ord(emoji):X}", "subgroup": 3} for emoji in EMOJIS],
    })  # fmt: skip
    return root


def test_build_is_deterministic(tool, node_modules, tmp_path):
    for name in ("one", "two"):
        assert tool.main([str(node_modules), "--out", str(tmp_path / name)]) == 0
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "two").iterdir())
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_build_keeps_what_is_drawn_and_named(tool, node_modules, tmp_path):
    tool.build(node_modules, tmp_path / "out")
    built = load_emoji("all", folder=tmp_path / "out")
    assert {scene.emoji for scene in built} == set(EMOJIS) - {"⚓"}
    apple = next(scene for scene in built if scene.emoji == "🍎")
    assert (apple.name, apple.subgroup) == ("red apple", "some-things")
    assert len(apple.pictures) == len(tool.ARTISTS)
    assert apple.texts[1] == scenes.Text("emojilib", "en", "red apple", ("a thing",))
    assert apple.pictures[0].image[0, 0].tolist() == [255, 255, 255]


def test_build_names_a_wrong_version(tool, node_modules, tmp_path, capsys):
    _write(node_modules, "emojilib", {"package.json": {"version": "9.9.9"}})
    assert tool.main([str(node_modules), "--out", str(tmp_path / "out")]) == 1
    assert "emojilib is 9.9.9, pinned 4.0.3" in capsys.readouterr().err
    assert tool.main([str(node_modules), "--out", str(tmp_path / "out"), "--any-version"]) == 0


def test_build_names_a_missing_package(tool, node_modules, tmp_path, capsys):
    shutil.rmtree(node_modules / "emojilib")
    assert tool.main([str(node_modules), "--out", str(tmp_path / "out")]) == 1
    assert "npm install emojilib@4.0.3" in capsys.readouterr().err


def test_look_alikes_stay_together(tool):
    rng = np.random.default_rng(0)
    drawings = rng.integers(0, 255, (3, 64, 64, 3)).astype(np.uint8)
    ids = ["a", "b", "c", "d"]
    pictures = dict(zip(ids, ({"x": drawings[i]} for i in (0, 1, 0, 2)), strict=True))
    alike = tool.look_alikes(ids, pictures)
    assert alike == [0, 1, 0, 3]
    heldout = tool.split_scenes(ids, ["g"] * 4, alike)
    assert ("a" in heldout) == ("c" in heldout)


def test_flipped_and_wide_icons_are_centred(tool, node_modules):
    body = '<rect width="4" height="8" fill="black"/>'
    _write(node_modules, "@iconify-json/noto", {
        "icons.json": {
            "icons": {"left": {"body": body, "width": 16, "height": 8}},
            "aliases": {"right": {"parent": "left", "hFlip": True}},
        }
    })  # fmt: skip
    icons = tool.IconSet(tool.Packages(node_modules), "noto")
    left, right = tool.render(icons.svg("left")), tool.render(icons.svg("right"))
    np.testing.assert_array_equal(left, right[:, ::-1])
    assert (left[16:48, :16] == 0).all()
    assert (left[:16] == 255).all()
