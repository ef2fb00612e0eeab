"""Which texts can be used."""

import unicodedata
from collections.abc import Iterable

from platojax.data import rejects
from platojax.data.rejects import Rejected
from platojax.data.scenes import Text

MAX_CHARACTERS = 4_096  # web pages have put whole articles where a caption should be
_UNSEEN = ("Z", "M", "Cc", "Cf")  # spaces, marks on nothing, control and format characters


def fault(text: str | bytes | None) -> str | None:
    """Why a text cannot be used: a reason of `rejects`, or None where it can.

    Args:
      text: what was read; bytes are UTF-8.
    """
    if text is None:
        return rejects.MISSING_TEXT
    if not isinstance(text, str | bytes):  # JSON and Parquet have values of all types
        return rejects.WRONG_TYPE
    try:
        # Also half of a surrogate pair, which JSON can spell, is no text.
        whole = text.decode() if isinstance(text, bytes) else text
        whole.encode()
    except UnicodeError:
        return rejects.NOT_TEXT
    if "\0" in whole:
        return rejects.NOT_TEXT
    if all(unicodedata.category(character).startswith(_UNSEEN) for character in whole):
        return rejects.EMPTY_TEXT
    return rejects.LONG_TEXT if len(whole) > MAX_CHARACTERS else None


def usable_texts(
    captions: Iterable[str | bytes | None], source: str, language: str, where: str
) -> tuple[list[Text], list[Rejected]]:
    """The texts that can be used, trimmed of white space, and those that cannot.

    Args:
      captions: as they were read.
      source: of the texts.
      language: of the texts.
      where: the captions are from.
    """
    texts, rejected = [], []
    for caption in captions:
        if (reason := fault(caption)) is not None:
            rejected.append(Rejected(reason, where))
            continue
        assert caption is not None
        whole = caption.decode() if isinstance(caption, bytes) else caption
        texts.append(Text(source, language, whole.strip()))
    return texts, rejected
