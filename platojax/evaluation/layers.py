"""A user's choice of layers, in words, as a list of indices."""

import re
from collections.abc import Sequence

_RANGE = re.compile(r"(\d+)-(\d+)")


def select_layers(choice: str, names: Sequence[str] | int) -> list[int]:
    """Resolves a choice of layers.

    The choice is one or more of these, separated by commas:

    * `all`, `last`;
    * the name of a layer, which goes before any other reading;
    * an index, from the end if negative: `3`, `-1`;
    * a range of indices, both ends included: `3-7`;
    * the beginning of names, before a star: `block_*`.

    Args:
        choice: such as `all`, `embedding,-1` or `0,4-8`.
        names: the names of the layers, or how many there are if they have none.

    Returns:
        Indices in the order of the choice, each once.

    Raises:
        ValueError: a part of the choice fits no layer; the message lists the layers.
    """
    known = [] if isinstance(names, int) else list(names)
    count = names if isinstance(names, int) else len(known)
    parts = [part.strip() for part in choice.split(",")]
    chosen = [layer for part in parts for layer in _resolve(part, known, count)]
    return list(dict.fromkeys(chosen))


def _resolve(part: str, names: Sequence[str], count: int) -> list[int]:
    if part in names:
        return [layer for layer, name in enumerate(names) if name == part]
    if part == "all":
        found = list(range(count))
    elif part == "last":
        found = [count - 1]
    elif re.fullmatch(r"-?\d+", part):
        found = [int(part) + count if part.startswith("-") else int(part)]
    elif match := _RANGE.fullmatch(part):
        found = list(range(int(match[1]), min(int(match[2]), count) + 1))
    elif part.endswith("*"):
        found = [layer for layer, name in enumerate(names) if name.startswith(part[:-1])]
    else:
        found = []
    if not found or min(found) < 0 or max(found) >= count:
        listed = f" ({', '.join(names)})" if names else ""
        raise ValueError(
            f"layers={part!r} fits none of the {count} layers 0..{count - 1}{listed}; give all, "
            "last, names, indices such as -1, ranges such as 0-3, or beginnings such as block_*"
        )
    return found
