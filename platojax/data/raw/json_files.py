"""JSON files, plain or compressed."""

import json
import pathlib
from typing import Any

from platojax.data.raw.bounded import read_whole


def read_json(path: pathlib.Path) -> Any:
    """The content of a JSON file; a name that ends in `.gz` is compressed.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is no JSON, not whole, or larger than `bounded.MAX_FILE`.
    """
    content = read_whole(path)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no whole JSON file ({error}); fetch it again.") from error
