import pathlib

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from platojax.cli import app
from platojax.data.preparation import write_prepared
from platojax.data.raw.scene import Encoded, RawScene
from platojax.data.scenes import Text
from platojax.report.view_sheet import Block, draw_sheet
from tests.data import recap_files
from tests.data.pictures import encode, pixels

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"
PICTURES = ("two_pictures", "two_crops")


def show(*arguments):
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


def test_text_arms_show_their_pairs_with_token_counts():
    result = show(CONFIGS / "emoji.py", "--arm", "text_good", "--scenes", 2)
    assert result.exit_code == 0, result.output
    title, *lines = result.output.splitlines()
    assert title.startswith("text_good, two languages: two_texts of 1,080 scenes; tokens of a view")
    assert "at most" in title
    assert len(lines) == 6
    assert all("tokens  " in lines[i] for i in (1, 2, 4, 5))
    assert lines[1].split("tokens  ")[1] != lines[2].split("tokens  ")[1]


def test_the_sheet_shows_all_arms(tmp_path):
    path = tmp_path / "sheet.png"
    result = show(CONFIGS / "emoji.py", "--out", path, "--scenes", 2)
    assert result.exit_code == 0, result.output
    assert f"Sheet: {path}" in result.output
    with Image.open(path) as image:
        colours = image.convert("RGB").getcolors(1 << 24)
        assert image.width == 1800
    assert len(colours) > 1000  # drawings, not words alone
    # Without a sheet, the command says how to get one.
    result = show(CONFIGS / "emoji.py", "--arm", "image_good")
    assert "pixels: 32x32 32x32" in result.output
    assert "--out sheet.png draws the pictures" in result.output


def test_frames_of_clips_are_drawn_side_by_side(tmp_path):
    def strip_of(*cells):
        path = tmp_path / "sheet.png"
        draw_sheet(path, [Block("clips", [("1", cells)])])
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB")).astype(int)
        return [np.sum((abs(pixels - colour) < 8).all(-1)) for colour in colours]

    colours = np.array([[200, 0, 0], [0, 200, 0], [0, 0, 200]])
    clip = np.broadcast_to(colours[:, None, None].astype(np.uint8), (3, 8, 8, 3))
    areas = strip_of(clip, clip[::-1])
    assert min(areas) > 10_000
    assert max(areas) < 1.1 * min(areas)
    still = strip_of(clip[0])[0]
    assert areas[0] == pytest.approx(2 * still, rel=0.1)


def test_the_same_seed_shows_the_same_and_another_one_another():
    def output(seed):
        return show(CONFIGS / "emoji.py", "--arm", "text_bad", "--seed", seed).output

    assert output(1) == output(1)
    assert output(1) != output(2)


def test_a_stream_is_shown(tmp_path):
    files = recap_files.write_files(tmp_path, files=1, rows=20)
    result = show(
        *(f"{CONFIGS / 'recap_940m.py'}:runlocal", "--set", f"data.files={files}", "--set"),
        *("data.tokenizer=emoji", "--set", "data.vocabulary.vocab_size=4000"),
    )
    assert result.exit_code == 0, result.output
    assert "two_texts of a stream of scenes" in result.output


def test_a_mixture_is_shown_in_its_shares(tmp_path):
    for name, count in (("one", 4), ("two", 6)):
        texts = (Text("by a", "en", f"{name} a"), Text("by b", "en", f"{name} b"))
        rows = [RawScene(f"{name} {i}", "train", texts) for i in range(count)]
        write_prepared(rows, tmp_path / name, name=name, source={}, settings={})
    parts = {
        name: dict(name="prepared", folder=str(tmp_path / name), train="train", weight=w)
        for name, w in (("one", 3.0), ("two", 1.0))
    }
    config = tmp_path / "mixed.py"
    config.write_text(f"""
from ml_collections import ConfigDict

def get_config():
    views = dict(name="two_texts")
    arms = dict(words=dict(label="mixed words", modality="text", seeds=1, views=views))
    data = dict(name="mixture", tokenizer="emoji", vocabulary=dict(), parts={parts!r},
                max_bad_fraction=0.0)
    text = dict(encoder=dict(max_length=16))
    return ConfigDict(dict(seed=0, data=data, text=text, arms=arms))
""")
    result = show(config, "--scenes", 8)
    assert result.exit_code == 0, result.output
    assert "words, mixed words: two_texts of 4 and 6 mixed scenes" in result.output
    assert (result.output.count("  one "), result.output.count("  two ")) == (6 + 12, 2 + 4)


def test_photographs_and_captions_of_prepared_data_are_shown(tmp_path):
    rows = [
        RawScene(
            f"photo {i}",
            "train",
            (Text("coco", "en", f"it costs $5 and ${i}"), Text("coco", "ar", "قطة صغيرة")),
            tuple(Encoded("coco", encode(pixels(90, 60, 2 * i + j))) for j in range(2)),
        )
        for i in range(5)
    ]
    write_prepared(rows, tmp_path / "out", name="photos", source={}, settings={})
    config = tmp_path / "photos.py"
    config.write_text(f"""
from ml_collections import ConfigDict

def get_config():
    views = dict(
        words=dict(name="two_texts"),
        crops=dict(name="multi_crop", local_size=16),
        both=dict(name="two_pictures"),
    )
    arms = {{
        name: dict(label=name, modality="text" if name == "words" else "image", seeds=1, views=view)
        for name, view in views.items()
    }}
    return ConfigDict(dict(
        seed=0,
        data=dict(name="prepared", folder={str(tmp_path / "out")!r}, train="train",
                  tokenizer="emoji", vocabulary=dict(), max_bad_fraction=0.0),
        text=dict(encoder=dict(max_length=16)),
        image=dict(encoder=dict(image_size=32)),
        arms=arms,
    ))
""")
    result = show(config, "--out", tmp_path / "sheet.pdf", "--scenes", 5)
    assert result.exit_code == 0, result.output
    assert "crops, crops: multi_crop of 5 scenes" in result.output
    assert "pixels: 32x32 32x32" + " 16x16" * 6 in result.output
    assert (tmp_path / "sheet.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arm", "text_best"], "--arm 'text_best' is not in the config; there are image_bad"),
        (["--scenes", "0"], "--scenes must be at least 1; got 0"),
        (["--out", "sheet.txt"], "--out sheet.txt must end in .png"),
        (["--out", "nowhere/sheet.png"], "nowhere"),
        (["--set", "data.name=tiles"], "data.name must be one of"),
        (["--set", "arms.text_good.views.name=good"], "text_good: views.name must be one of"),
        (
            ["--set", "arms.text_good.views.name=two_crops"],
            "text_good: a field is missing or of another",
        ),
    ],
)
def test_what_is_impossible_is_one_line(arguments, message):
    result = show(CONFIGS / "emoji.py", *arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert result.output.count("\n") == 1
