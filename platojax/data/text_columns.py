"""Texts in columns: which rows can be used, and which are the same."""

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from platojax.data import rejects

# Of Recap-DataComp-1B: source, which is the column's name, and language.
RECAP_TEXTS = (("org_caption", ""), ("re_caption", "en"))

REASONS = (
    rejects.MISSING_TEXT,
    rejects.EMPTY_TEXT,
    rejects.NOT_TEXT,
    rejects.LONG_TEXT,
    rejects.IDENTICAL_TEXTS,
)


def check_texts(
    window: pa.Table, columns: Sequence[str], max_characters: int
) -> tuple[pa.Table, np.ndarray]:
    """Finds the rows that cannot be used.

    Args:
      window: with these columns, as large strings.
      columns: the texts of a row, all of which are needed, and no two of which may be equal.
      max_characters: of a text.

    Returns:
      The table, in which these texts are now trimmed of white space and broken UTF-8 is missing,
      and for each row 0, or 1 + the index in `REASONS` of the first that applies.
    """
    reasons = np.zeros(window.num_rows, np.int64)

    def mark(reason: str, rows: pa.BooleanArray) -> None:
        found = np.asarray(pc.fill_null(rows, False))
        reasons[found & (reasons == 0)] = 1 + REASONS.index(reason)

    trimmed: list[pa.Array] = []
    for column in columns:
        texts = window[column].combine_chunks()
        mark(rejects.MISSING_TEXT, pc.is_null(texts))
        texts, broken = _decode(texts)
        if broken is not None:
            mark(rejects.NOT_TEXT, broken)
        trimmed.append(pc.utf8_trim_whitespace(texts))
        window = window.set_column(window.schema.get_field_index(column), column, trimmed[-1])
        mark(rejects.EMPTY_TEXT, pc.equal(trimmed[-1], ""))
        if _has_nul(texts):
            mark(rejects.NOT_TEXT, pc.match_substring(texts, "\0"))
        mark(rejects.LONG_TEXT, pc.greater(pc.utf8_length(texts), max_characters))
        for other in trimmed[:-1]:
            mark(rejects.IDENTICAL_TEXTS, pc.equal(trimmed[-1], other))
    return window, reasons


def hash_rows(window: pa.Table, columns: Sequence[str]) -> np.ndarray:
    """64 bits of each row's values together: `[rows]` uint64; 0 where one is missing or blank.

    White space around a value makes no difference.

    Among a billion rows, the expected number of pairs that differ and have one hash is .03.
    """
    # No text that can be used has a NUL, so none of these joints is ambiguous.
    joint = pa.scalar("\0", pa.large_string())
    # Of ASCII only: what is no text here may be broken UTF-8.
    trimmed = [pc.ascii_trim_whitespace(window[column]) for column in columns]
    known = [pc.if_else(pc.equal(values, ""), None, values) for values in trimmed]
    joined = pc.binary_join_element_wise(*known, joint)
    digests = (
        bytes(8) if value is None else hashlib.blake2b(value, digest_size=8).digest()
        for value in joined.cast(pa.large_binary()).to_pylist()
    )
    return np.frombuffer(b"".join(digests), "<u8")


def _has_nul(texts: pa.Array) -> bool:
    """Whether any may have one; a tenth of the time that it takes to look which."""
    characters = texts.buffers()[2]
    return bool(characters) and not np.frombuffer(characters, np.uint8).all()


def _decode(texts: pa.Array) -> tuple[pa.Array, pa.BooleanArray | None]:
    """The same texts, None where the bytes are no UTF-8, and where that is, if anywhere."""
    try:
        texts.validate(full=True)  # Parquet's strings are whatever bytes the writer put there
        return texts, None
    except pa.ArrowInvalid:
        raw = texts.cast(pa.large_binary()).to_pylist()
    decoded: list[str | None] = []
    for value in raw:
        try:
            decoded.append(None if value is None else value.decode())
        except UnicodeDecodeError:
            decoded.append(None)
    broken = [text is None and value is not None for text, value in zip(decoded, raw, strict=True)]
    return pa.array(decoded, pa.large_string()), pa.array(broken)
