import gzip
import json
import shutil

import pytest
from typer.testing import CliRunner

from platojax.cli import app
from platojax.data import rejects
from platojax.data.prepared import PreparedScenes, read_info
from platojax.data.raw import msrvtt
from platojax.data.raw.scene import RawScene
from platojax.data.rejects import Rejected
from tests.shared import real

av = pytest.importorskip("av")

from tests.data.clips import brightening, write_clip  # noqa: E402

SPLITS = ["train", "train", "validate", "test"]


def write_json(folder, captions=20):
    """The official layout, in small."""
    content = {
        "info": {"year": "2016", "version": "1.0", "description": "", "contributor": "Microsoft"},
        "videos": [
            {
                "id": i,
                "video_id": f"video{i}",
                "category": i + 3,
                "url": f"https://example.org/watch?v={i}",
                "start time": 1.5,
                "end time": 12.0,
                "split": split,
            }
            for i, split in enumerate(SPLITS)
        ],
        "sentences": [
            {"sen_id": 20 * i + j, "video_id": f"video{i}", "caption": f"video {i} said {j} times"}
            for j in range(captions)
            for i in range(len(SPLITS))
        ],
    }
    path = folder / "train_val_videodatainfo.json"
    path.write_text(json.dumps(content))
    return path, content


def write_csv(folder, videos=("video1", "video3")):
    path = folder / "MSRVTT_JSFUSION_test.csv"
    rows = [f"ret{n},msr{n},{video},a caption of {video}" for n, video in enumerate(videos)]
    path.write_text("\n".join(["key,vid_key,video_id,sentence", *rows]) + "\n")
    return path


def scenes_of(rows):
    return {row.scene_id: row for row in rows if isinstance(row, RawScene)}


def test_a_scene_is_a_clip_with_all_its_captions(tmp_path):
    path, _ = write_json(tmp_path)
    rows = list(msrvtt.read([path]))
    assert [(row.scene_id, row.split, row.label) for row in rows] == [
        (f"video{i}", split, str(i + 3)) for i, split in enumerate(SPLITS)
    ]
    texts = rows[2].texts
    assert [(text.source, text.language) for text in texts] == [("msrvtt", "en")] * 20
    assert [text.name for text in texts] == [f"video 2 said {j} times" for j in range(20)]


def test_compressed_json_is_read_and_a_missing_one_named(tmp_path):
    path, _ = write_json(tmp_path)
    packed = tmp_path / "a.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert len(scenes_of(msrvtt.read([packed]))) == len(SPLITS)
    with pytest.raises(FileNotFoundError, match=r"nothing.json does not exist"):
        list(msrvtt.read([tmp_path / "nothing.json"]))


def test_the_settings_say_whether_clips_were_taken(tmp_path):
    path, _ = write_json(tmp_path)
    arguments = ["prepare", "msrvtt", str(path), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert read_info(tmp_path / "out").settings["clips"] is False


def test_the_compared_clips_are_the_test_split(tmp_path):
    path, _ = write_json(tmp_path)
    scenes = scenes_of(msrvtt.read([path, write_csv(tmp_path)]))
    assert {name: scene.split for name, scene in scenes.items()} == {
        "video0": "train",
        "video1": "test",
        "video2": "train",
        "video3": "test",
    }
    assert {len(scene.texts) for scene in scenes.values()} == {20}


def test_bad_clips_and_captions_are_rejected_and_the_rest_is_kept(tmp_path):
    path, content = write_json(tmp_path, captions=2)
    content["sentences"] += [
        {"sen_id": 98, "video_id": "video0", "caption": "  "},
        {"sen_id": 99, "video_id": "video77", "caption": "of nothing"},
    ]
    path.write_text(json.dumps(content))
    clip = write_clip(brightening(10))
    (tmp_path / "clips" / "TrainValVideo").mkdir(parents=True)
    for name, found in (("video0", clip), ("video1", clip[:900]), ("video2", b"")):
        (tmp_path / "clips" / "TrainValVideo" / f"{name}.mp4").write_bytes(found)
    for suffix in ("mp4", "webm"):
        (tmp_path / "clips" / f"video3.{suffix}").write_bytes(clip)
    rows = list(msrvtt.read([path], tmp_path / "clips"))
    scenes = scenes_of(rows)
    assert [row.reason for row in rows if isinstance(row, Rejected)] == [
        msrvtt.UNKNOWN_VIDEO,
        rejects.EMPTY_TEXT,
        rejects.BAD_CLIP,
        rejects.EMPTY_FILE,
        rejects.SEVERAL_FILES,
    ]
    assert [one.content for one in scenes["video0"].clips] == [clip]
    assert [len(scene.clips) for scene in scenes.values()] == [1, 0, 0, 0]
    assert [len(scene.texts) for scene in scenes.values()] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no whole JSON file"),
        ("[]", "is not MSR-VTT's JSON"),
        ('{"videos": [{"video_id": "video0"}], "sentences": []}', "no 'split'"),
        ('{"videos": [{"video_id": "video0", "split": 3}], "sentences": []}', "split .* is 3"),
        ('{"videos": [], "sentences": [{"video_id": "v", "caption": [1]}]}', "is of type list"),
    ],
)
def test_other_json_is_refused(tmp_path, content, message):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        list(msrvtt.read([tmp_path / "a.json"]))


def test_what_is_not_there_is_named(tmp_path):
    path, _ = write_json(tmp_path)
    with pytest.raises(FileNotFoundError, match="is no folder of clips"):
        list(msrvtt.read([path], tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"holds no clips \(\.mp4"):
        list(msrvtt.read([path], tmp_path / "empty"))
    (tmp_path / "a.csv").write_text("id,caption\n1,a\n")
    with pytest.raises(ValueError, match="needs rows with video_id and sentence"):
        list(msrvtt.read([tmp_path / "a.csv"]))


def test_real_rows_and_real_clips_become_prepared_data(tmp_path):
    rows = real("video/MSRVTT_JSFUSION_test.csv")
    clips = tmp_path / "clips"
    clips.mkdir()
    names = {"bikes": "video9770", "carphone_pristine": "video9771", "bigbuckbunny": "video7020"}
    for name, video_id in names.items():
        shutil.copy(real(f"video/{name}.mp4"), clips / f"{video_id}.mp4")
    arguments = [str(rows), "--clips", str(clips), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, ["prepare", "msrvtt", *arguments])
    assert result.exit_code == 2  # almost all clips are missing
    assert "missing file 997" in result.output
    result = CliRunner().invoke(app, ["prepare", "msrvtt", *arguments, "--max-bad-fraction", ".6"])
    assert result.exit_code == 0, result.output
    assert read_info(tmp_path / "out").rejected == {"missing file": 997}
    scenes = PreparedScenes(tmp_path / "out", "test")
    assert len(scenes) == 1000
    assert (scenes[0].scene_id, scenes[0].texts[0].name) == (
        "video9770",
        "a person is connecting something to system",
    )
    assert sum(len(scene.clips) for scene in scenes) == 3
    assert scenes[0].clips[0].content == (clips / "video9770.mp4").read_bytes()
