"""MSR-VTT: video clips of 10 to 30 seconds with 20 captions each (CVPR 2016).

Annotations are the official JSON, plain or with `.gz`, one file or several
(`train_val_videodatainfo.json`, `test_videodatainfo.json`), with `videos` (`video_id`, `category`,
`split`) and `sentences` (`video_id`, `caption`); and `MSRVTT_JSFUSION_test.csv` (`video_id`,
`sentence`), the thousand clips on which retrieval is compared. Given both, those clips are the
split "test" and all others "train", as in that comparison; given the JSON alone, the splits are its
own; given the CSV alone, each of its clips has one caption. Clips are files called by their
`video_id`, such as `video0.mp4`.
"""

import collections
import csv
import pathlib
from collections.abc import Sequence
from typing import Any

from platojax.data.captions import usable_texts
from platojax.data.raw.json_files import read_json
from platojax.data.raw.media import in_threads, usable_clip
from platojax.data.raw.scene import Encoded, RawRows, RawScene
from platojax.data.rejects import SEVERAL_FILES, Rejected
from platojax.data.scenes import Text

SOURCE = "msrvtt"
UNKNOWN_VIDEO = "caption of an unknown video"
_SUFFIXES = (".mp4", ".webm", ".avi", ".mkv")


def read(annotations: Sequence[pathlib.Path], clips: pathlib.Path | None = None) -> RawRows:
    """Yields the scenes: the video's id is theirs, "msrvtt" the source, the category the label.

    Args:
      annotations: see the module.
      clips: the folder of the clips, which may lie in folders of their own; None for texts alone.

    Raises:
      FileNotFoundError: a file or the folder is missing.
      ValueError: a file is not what the module says, or the folder holds no clip.
      ImportError: there are clips, and PyAV is not installed.
    """
    videos: dict[str, dict[str, Any]] = {}
    sentences: list[tuple[str, Any, str]] = []
    compared: dict[str, tuple[Any, str]] = {}
    for path in annotations:
        if path.suffix == ".csv":
            compared |= _read_csv(path)
        else:
            found, spoken = _read_json(path)
            videos |= found
            sentences += spoken
    captions: dict[str, list[tuple[Any, str]]] = {}
    for video_id, caption, where in sentences:
        if video_id in videos:
            captions.setdefault(video_id, []).append((caption, where))
        else:
            yield Rejected(UNKNOWN_VIDEO, where)
    if not videos:
        videos = {video_id: {"split": "test"} for video_id in compared}
        captions = {video_id: [caption] for video_id, caption in compared.items()}
    elif compared:
        for video_id, video in videos.items():
            video["split"] = "test" if video_id in compared else "train"
    files, several = ({}, set()) if clips is None else _clip_files(clips)

    def scene(video_id: str) -> list[RawScene | Rejected]:
        texts: list[Text] = []
        found: list[RawScene | Rejected] = []
        for caption, where in captions.get(video_id, ()):
            usable, rejected = usable_texts([caption], SOURCE, "en", where)
            texts += usable
            found += rejected
        own: tuple[Encoded, ...] = ()
        if clips is not None:
            where = f"{video_id} in {clips}"
            clip: Encoded | Rejected = Rejected(SEVERAL_FILES, where)
            if video_id not in several:
                clip = usable_clip(files.get(video_id), SOURCE, where)
            if isinstance(clip, Encoded):
                own = (clip,)
            else:
                found.append(clip)
        label = str(videos[video_id].get("category", ""))
        split = videos[video_id]["split"]
        return [*found, RawScene(video_id, split, tuple(texts), clips=own, label=label)]

    for rows in in_threads(scene, videos):
        yield from rows


def _read_json(
    path: pathlib.Path,
) -> tuple[dict[str, dict[str, Any]], list[tuple[str, Any, str]]]:
    """The videos by their ids, and of each sentence the video, the caption and where it is."""
    content = read_json(path)
    try:
        videos = {str(video["video_id"]): video for video in content["videos"]}
        for video in videos.values():
            if not isinstance(video["split"], str):
                raise ValueError(f"the split of {video['video_id']} is {video['split']!r}")
        sentences = [
            (str(one["video_id"]), one["caption"], f"{path.name} sentence {number}")
            for number, one in enumerate(content["sentences"])
        ]
        for _, caption, where in sentences:
            if not isinstance(caption, str | None):
                raise ValueError(f"the caption of {where} is of type {type(caption).__name__}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"{path} is not MSR-VTT's JSON ({reason}); it has `videos` with video_id and split, "
            "and `sentences` with video_id and caption."
        ) from error
    return videos, sentences


def _read_csv(path: pathlib.Path) -> dict[str, tuple[Any, str]]:
    """The caption of each video by its id, and where it is."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            # Fields are parted by commas, or by semicolons in copies of it.
            first = file.readline()
            file.seek(0)
            rows = list(csv.DictReader(file, delimiter=";" if ";" in first else ","))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no CSV in UTF-8 ({error}); fetch it again.") from error
    if not rows or not {"video_id", "sentence"} <= set(rows[0]):
        raise ValueError(
            f"{path} is not MSRVTT_JSFUSION_test.csv: it needs rows with video_id and sentence."
        )
    return {
        row["video_id"]: (row["sentence"], f"{path.name} line {line}")
        for line, row in enumerate(rows, 2)
    }


def _clip_files(folder: pathlib.Path) -> tuple[dict[str, pathlib.Path], set[str]]:
    """The clips by their names, and the names that several have."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder of clips.")
    paths = [path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES]
    if not paths:
        raise ValueError(f"{folder} holds no clips ({', '.join(_SUFFIXES)}).")
    counts = collections.Counter(path.stem for path in paths)
    return {path.stem: path for path in paths}, {name for name, n in counts.items() if n > 1}
