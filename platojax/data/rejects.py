"""Rows that cannot be used, counted by the reason."""

import dataclasses
from collections.abc import Mapping

MISSING_TEXT = "missing text"
EMPTY_TEXT = "empty text"
WRONG_TYPE = "value of another type where a text should be"
NOT_TEXT = "NUL bytes or broken UTF-8"
LONG_TEXT = "over-long text"
IDENTICAL_TEXTS = "identical texts"
MISSING_FILE = "missing file"
SEVERAL_FILES = "several files of one name"
EMPTY_FILE = "empty file"
LARGE_FILE = "file that is too large"
BAD_PICTURE = "unreadable picture"
LARGE_PICTURE = "picture of too many pixels"
BAD_CLIP = "unreadable clip"
DUPLICATE_SCENE = "duplicate scene id"


@dataclasses.dataclass(frozen=True)
class Rejected:
    """A row, a text or a picture that cannot be used.

    Attributes:
      reason: one of this module's, or of the reader's own.
      where: file and row, for whoever wants to mend it.
    """

    reason: str
    where: str


@dataclasses.dataclass
class Rejects:
    """How much was rejected.

    Attributes:
      counts: by the reason.
      first: where the first of each reason is.
    """

    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    first: dict[str, str] = dataclasses.field(default_factory=dict)

    def add(self, rejected: Rejected) -> None:
        """Counts one."""
        self.counts[rejected.reason] = self.counts.get(rejected.reason, 0) + 1
        self.first.setdefault(rejected.reason, rejected.where)

    def check(self, used: int, limit: float, field: str) -> None:
        """Refuses data of which too much cannot be used.

        Args:
          used: how much could be used.
          limit: the largest share that may be rejected.
          field: what sets the limit, for the message.

        Raises:
          ValueError: naming the reasons, the counts and the first of each.
        """
        rejected = sum(self.counts.values())
        if rejected > limit * (rejected + used):
            raise ValueError(
                f"{rejected} of {rejected + used} of what was read cannot be used, more than "
                f"{field} {limit:g}: "
                + describe(self.counts, self.first)
                + ". Mend them, or raise the limit."
            )


def describe(counts: Mapping[str, int], first: Mapping[str, str]) -> str:
    """Such as `empty text 3 (first: captions.csv line 7), over-long text 1 (first: ...)`."""
    return ", ".join(
        f"{reason} {count} (first: {first[reason]})"
        for reason, count in sorted(counts.items(), key=lambda item: -item[1])
    )
