"""Small Parquet files in the official layout of Recap-DataComp-1B, with texts of our own."""

import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

_WORDS = ["red", "blue", "old", "small", "bright", "wooden", "sleeping", "running", "quiet", "tall"]
_THINGS = ["bus", "cat", "tree", "house", "river", "dog", "lamp", "bird", "boat", "door"]


def captions(number: int) -> tuple[str, str]:
    """An alt text and a recaption of scene `number`, unlike those of any other."""
    word, thing = _WORDS[number % 10], _THINGS[number // 10 % 10]
    return (
        f"{word} {thing} no {number}",
        f"Photo {number} of a {thing} that looks {word}.",
    )


def write(
    path: pathlib.Path,
    org: list[str | None],
    re: list[str | None],
    *,
    row_group_size: int = 7,
    sha256: list[str | None] | None = None,
) -> pathlib.Path:
    """Writes rows with all columns of the data set."""
    n = len(org)
    table = {
        "url": [f"https://example.org/{i}.jpg" for i in range(n)],
        "re_caption": pa.array(re, pa.string()),
        "org_caption": pa.array(org, pa.string()),
        "sha256": pa.array(sha256 or [f"{i:064x}" for i in range(n)], pa.string()),
        "key": [f"{i:09d}" for i in range(n)],
        "re_clip_score": pa.array([0.3] * n, pa.float64()),
        "org_clip_score": pa.array([0.2] * n, pa.float64()),
        "re_length": [len(text or "") for text in re],
        "org_length": [len(text or "") for text in org],
        "re_gpt4v_score": [4] * n,
        "org_gpt4v_score": [3] * n,
    }
    pq.write_table(pa.table(table), path, row_group_size=row_group_size)
    return path


def write_files(folder: pathlib.Path, *, files: int, rows: int, first: int = 0) -> str:
    """Writes `files` files of `rows` rows each, all of them usable; returns a pattern."""
    for file in range(files):
        org, re = zip(*(captions(first + file * rows + row) for row in range(rows)), strict=True)
        write(folder / f"train-{file:05d}.parquet", list(org), list(re))
    return f"{folder}/train-*.parquet"
