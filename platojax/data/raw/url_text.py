"""Tables of URLs and captions: Conceptual Captions, and whatever else has a caption an image.

Google's files have a caption and a URL in each line, with a tab between them and no header
(Train_GCC-training.tsv, Validation_GCC-1.1.0-Validation.tsv; CC12M has them the other way round).
Other tables name their columns in the first line. An image has one caption, so a scene of these
files can be the source of bad views and of next-token prediction, and of nothing that needs two
texts.
"""

import codecs
import gzip
import zlib
from collections.abc import Sequence

from platojax.data import captions
from platojax.data.paths import file_name, open_bytes
from platojax.data.raw.bounded import read_lines
from platojax.data.raw.scene import RawRows, RawScene
from platojax.data.rejects import LONG_TEXT, Rejected

SOURCE = "caption"
TEXT_COLUMNS = ("caption", "text")
URL_COLUMNS = ("url", "image_url")
OTHER_FIELDS = "another number of fields"


def read(files: Sequence[str], split: str = "train") -> RawRows:
    """Yields a scene a line, known by its URL; its text's source is "caption".

    Args:
      files: paths or URLs of `.tsv` or `.tsv.gz`.
      split: that they are.

    Raises:
      ValueError: a file is no such table, or is cut short.
      FileNotFoundError: a file is missing.
    """
    for path in files:
        try:
            yield from _read_file(path, split)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path} is cut short or damaged ({error}); fetch it again.") from (
                error
            )


def _read_file(path: str, split: str) -> RawRows:
    with open_bytes(path) as file:
        columns: tuple[int, int, int] | None = None
        for number, line in enumerate(read_lines(file), 1):
            where = f"{file_name(path)} line {number}"
            if line is None:
                yield Rejected(LONG_TEXT, where)
                continue
            fields = line.rstrip(b"\r").split(b"\t")
            if columns is None:
                fields[0] = fields[0].removeprefix(codecs.BOM_UTF8)
                names = [field.decode(errors="replace").strip().lower() for field in fields]
                columns, is_header = _columns(path, names)
                if is_header:
                    continue
            text, url, count = columns
            if len(fields) != count:
                yield Rejected(OTHER_FIELDS, where)
                continue
            texts, rejected = captions.usable_texts([fields[text]], SOURCE, "", where)
            yield from rejected
            address, wrong = captions.usable_texts([fields[url]], "url", "", where)
            yield from wrong
            if texts and address:
                yield RawScene(address[0].name, split, tuple(texts))


def _columns(path: str, first: list[str]) -> tuple[tuple[int, int, int], bool]:
    """Where text and URL are, how many fields there are, and whether the first line names them."""
    texts = [i for i, name in enumerate(first) if name in TEXT_COLUMNS]
    urls = [i for i, name in enumerate(first) if name in URL_COLUMNS]
    if texts and urls:
        return (texts[0], urls[0], len(first)), True
    urls = [i for i, field in enumerate(first) if field.startswith(("http://", "https://"))]
    if len(first) < 2 or len(urls) != 1:
        raise ValueError(
            f"{path} begins with {first}: expected a caption and a URL with a tab between them, or "
            f"the names of columns, of which one is {' or '.join(TEXT_COLUMNS)} and one "
            f"{' or '.join(URL_COLUMNS)}."
        )
    return (1 if urls[0] == 0 else 0, urls[0], len(first)), False
