"""How long methods say how far they are."""

from collections.abc import Callable

OnProgress = Callable[[str, int, int], None]
"""Called with the stage's name and how many of how many parts of it are done."""


def report(on_progress: OnProgress | None, stage: str, done: int, total: int) -> None:
    """Calls `on_progress` if there is one."""
    if on_progress is not None:
        on_progress(stage, done, total)
