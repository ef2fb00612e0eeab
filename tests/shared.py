"""Real data that cannot be part of the repository; tests that read it skip where it is absent."""

import os
import pathlib

import pytest

SHARED = pathlib.Path(
    os.environ.get("PLATOJAX_SHARED_DATA", pathlib.Path(__file__).parents[2] / "shared" / "data")
)


def real(name: str) -> pathlib.Path:
    """A file or folder of the real data; skips the test where it is not there."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"needs {path}; PLATOJAX_SHARED_DATA says where the data is")
    return path
