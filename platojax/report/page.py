"""The page that an experiment leaves behind."""

import pathlib
from collections.abc import Sequence

from platojax.data.scenes import Scene


def write_page(workdir: pathlib.Path, scenes: Sequence[Scene]) -> pathlib.Path:
    """Writes `report.html`."""
    return workdir / "report.html"
