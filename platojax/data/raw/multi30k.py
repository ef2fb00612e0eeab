"""Multi30k, task 2: five English and five German captions of each of Flickr30k's images.

The files are those of github.com/multi30k/dataset (arXiv 1605.00459): for each of five captions,
language and split a text file such as `data/task2/raw/train.1.en.gz`, or without `.gz`, whose line
i is about image i; and the images' names, one a line, such as
`data/task2/image_splits/train_images.txt`, which may lie beside the captions or where they are in
the repository. The German captions are not translations: other people wrote them, looking at the
image.
"""

import pathlib
import re

from platojax.data.captions import usable_texts
from platojax.data.raw.bounded import read_whole
from platojax.data.raw.flickr30k import SOURCE
from platojax.data.raw.media import in_threads
from platojax.data.raw.pictures import Pictures
from platojax.data.raw.scene import RawRows, RawScene
from platojax.data.rejects import Rejected
from platojax.data.scenes import Text

_CAPTIONS = re.compile(r"\w+\.\d+\.[a-z]{2}(\.gz)?")


def input_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files that are read.

    Raises:
      FileNotFoundError: there are none, or one of several is missing.
    """
    captions = [path for path in sorted(folder.glob("*")) if _CAPTIONS.fullmatch(path.name)]
    if not captions:
        raise FileNotFoundError(
            f"{folder} holds no captions of Multi30k, such as train.1.en or train.1.en.gz; give "
            "the folder data/task2/raw of github.com/multi30k/dataset."
        )
    splits = sorted({_split_of(path) for path in captions})
    for split in splits:
        _check_none_missing(folder, [path for path in captions if _split_of(path) == split])
    return [*captions, *(_names_file(folder, split) for split in splits)]


def _check_none_missing(folder: pathlib.Path, captions: list[pathlib.Path]) -> None:
    """Of a split, each language has the captions 1 to the largest number of any."""
    known = {tuple(path.name.split(".")[:3]) for path in captions}
    most = max(int(number) for _, number, _ in known)
    for split, _, language in sorted(known):
        for number in range(1, most + 1):
            if (split, str(number), language) not in known:
                raise FileNotFoundError(
                    f"{folder} lacks {split}.{number}.{language} (or .gz), though others of "
                    f"{split} have {most} captions; fetch it, or take the whole language out."
                )


def read(folder: pathlib.Path, images: pathlib.Path | None = None) -> RawRows:
    """Yields the scenes: the image's name is their id, "en" and "de" are the texts' sources.

    Args:
      folder: see the module.
      images: the folder of Flickr30k's images; None for texts alone.

    Raises:
      FileNotFoundError: there are no captions, no image names, or no folder of images.
      ValueError: the files of a split differ in their numbers of lines.
    """
    pictures = Pictures(images, SOURCE)
    files = input_files(folder)
    captions = [path for path in files if _CAPTIONS.fullmatch(path.name)]
    for split in sorted({_split_of(path) for path in captions}):
        files = [path for path in captions if _split_of(path) == split]
        yield from _read_split(folder, split, files, pictures)


def _read_split(
    folder: pathlib.Path, split: str, files: list[pathlib.Path], pictures: Pictures
) -> RawRows:
    captions = {path: _lines(path) for path in files}
    names = _lines(_names_file(folder, split))
    for path, lines in captions.items():
        if len(lines) != len(names):
            raise ValueError(
                f"{path} has {len(lines)} captions for {len(names)} images of {split}; fetch it "
                "again, whole."
            )

    def rows_of(row: int) -> list[RawScene | Rejected]:
        texts: list[Text] = []
        found: list[RawScene | Rejected] = []
        for path, lines in captions.items():
            language = path.name.removesuffix(".gz").rpartition(".")[2]
            usable, rejected = usable_texts(
                [lines[row]], language, language, f"{path.name} line {row + 1}"
            )
            texts += usable
            found += rejected
        name = names[row].decode(errors="replace").strip()
        own, missing = pictures.read(name)
        return [*found, *missing, RawScene(name, split, tuple(texts), own)]

    for rows in in_threads(rows_of, range(len(names))):
        yield from rows


def _split_of(path: pathlib.Path) -> str:
    return path.name.partition(".")[0]


def _names_file(folder: pathlib.Path, split: str) -> pathlib.Path:
    name = f"{split}_images.txt"
    for path in (folder / name, folder.parent / "image_splits" / name):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"{folder} has captions of {split}, but no {name}, the names of their images; it is in "
        "data/task2/image_splits of github.com/multi30k/dataset."
    )


def _lines(path: pathlib.Path) -> list[bytes]:
    """The lines as bytes, so that broken UTF-8 costs a caption and not the file."""
    lines = read_whole(path).removesuffix(b"\n").split(b"\n")
    return [line.rstrip(b"\r") for line in lines]
