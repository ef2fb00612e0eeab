"""What the documents show as Python runs as it stands."""

import pathlib
import re

import pytest

PAGES = sorted((pathlib.Path(__file__).parents[1] / "docs").glob("*.md"))
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    )
]


@pytest.mark.parametrize("block", BLOCKS)
def test_python_runs(block, tmp_path, monkeypatch):
    if "import torch" in block:
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "block", "exec"), {})


def test_there_are_blocks():
    assert len(BLOCKS) >= 2
