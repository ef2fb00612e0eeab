"""Flickr30k: 31,783 photographs with five captions each (TACL 2014).

Captions are Karpathy's `dataset_flickr30k.json`, see `karpathy`, or the data set's own
`results_20130124.token`, whose lines are `1000092795.jpg#0`, a tab and a caption; it has no splits,
so that all its scenes are "train". (Its copy on Kaggle, a table with bars, is another file.)
"""

import pathlib

from platojax.data.captions import usable_texts
from platojax.data.raw import karpathy
from platojax.data.raw.bounded import read_lines
from platojax.data.raw.json_files import read_json
from platojax.data.raw.media import in_threads
from platojax.data.raw.pictures import Pictures
from platojax.data.raw.scene import RawRows, RawScene
from platojax.data.rejects import LONG_TEXT, Rejected
from platojax.data.scenes import Text

SOURCE = "flickr30k"
NO_CAPTION_LINE = "line without image, number and caption"


def read(captions: pathlib.Path, images: pathlib.Path | None = None) -> RawRows:
    """Yields the scenes: the image's name is their id, "flickr30k" the source.

    Args:
      captions: see the module; a name that ends in `.json` or `.json.gz` is Karpathy's.
      images: the folder of the images; None for texts alone.

    Raises:
      FileNotFoundError: a file or folder is missing.
      ValueError: a file is not what the module says, or the folder holds no image.
    """
    if ".json" in captions.suffixes:
        yield from karpathy.read(captions, read_json(captions), SOURCE, Pictures(images, SOURCE))
    else:
        yield from _read_tokens(captions, images)


def _read_tokens(path: pathlib.Path, images: pathlib.Path | None) -> RawRows:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist.")
    texts: dict[str, list[Text]] = {}
    found = False
    with path.open("rb") as file:
        for number, line in enumerate(read_lines(file), 1):
            where = f"{path.name} line {number}"
            if line is None:
                yield Rejected(LONG_TEXT, where)
                continue
            key, tab, caption = line.rstrip(b"\r").partition(b"\t")
            name, mark, _ = key.partition(b"#")
            if not (tab and mark):
                yield Rejected(NO_CAPTION_LINE, where)
                continue
            found = True
            usable, rejected = usable_texts([caption], SOURCE, "en", where)
            texts.setdefault(name.decode(errors="replace"), []).extend(usable)
            yield from rejected
    if not found:
        raise ValueError(
            f"{path} has no line such as `1000092795.jpg#0`, a tab and a caption; give "
            "results_20130124.token or dataset_flickr30k.json."
        )
    pictures = Pictures(images, SOURCE)

    def rows_of(name: str) -> list[RawScene | Rejected]:
        own, missing = pictures.read(name)
        return [*missing, RawScene(name, "train", tuple(texts[name]), own)]

    for rows in in_threads(rows_of, texts):
        yield from rows
