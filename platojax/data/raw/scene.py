"""What readers yield."""

import dataclasses
import re
from collections.abc import Iterator

from platojax.data.rejects import Rejected
from platojax.data.scenes import Text

SPLIT_NAME = re.compile(r"[A-Za-z0-9_]+")  # it is part of a file's name


@dataclasses.dataclass(frozen=True, eq=False)
class Encoded:
    """A picture or a clip as it was found.

    Attributes:
      source: where it comes from, such as "flickr"; scenes may have several of one source.
      content: the file's bytes.
    """

    source: str
    content: bytes


@dataclasses.dataclass(frozen=True, eq=False)
class RawScene:
    """A scene as a reader finds it.

    Attributes:
      scene_id: unique over all splits.
      split: such as "train"; letters, digits and underscores.
      texts: usable ones.
      pictures: encoded.
      clips: encoded.
      label: the class, or empty.
    """

    scene_id: str
    split: str
    texts: tuple[Text, ...] = ()
    pictures: tuple[Encoded, ...] = ()
    clips: tuple[Encoded, ...] = ()
    label: str = ""


RawRows = Iterator[RawScene | Rejected]
