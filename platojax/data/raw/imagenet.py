"""ImageNet and ImageNet-100: folders of images, one for each class.

A class is known by its synset, such as n01440764. Read are, below the folder:

    SPLIT/n01440764/*.JPEG      as torchvision and most copies have it; also the synsets alone
    train.X1/n01440764/*.JPEG   ImageNet-100: the split's name ends at the point
    Data/CLS-LOC/SPLIT/...      the official archive, whose val/*.JPEG are in no class folders:
                                LOC_val_solution.csv says their classes
    LOC_synset_mapping.txt      names of the classes (`n01440764 tench, Tinca tinca`), or
    Labels.json                 the same as an object
"""

import csv
import json
import os
import pathlib
import re
from collections.abc import Iterator

from platojax.data.images import IMAGE_SUFFIXES
from platojax.data.raw.media import in_threads, usable_picture
from platojax.data.raw.scene import RawRows, RawScene
from platojax.data.rejects import Rejected
from platojax.data.scenes import Text

SOURCE = "imagenet"
UNKNOWN_CLASS = "image of no known class"
_SYNSET = re.compile(r"n\d{8}")
_NAMES = ("LOC_synset_mapping.txt", "Labels.json")
_SOLUTION = "LOC_val_solution.csv"


def input_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The files that are read beside the images."""
    return [path for name in (*_NAMES, _SOLUTION) if (path := folder / name).is_file()]


def read(folder: pathlib.Path, synsets: frozenset[str] = frozenset()) -> RawRows:
    """Yields the scenes: an image, the synset as the label and, where known, its name as the text.

    Args:
      folder: see the module. Where there are synsets but no splits, all are "val".
      synsets: only these classes, such as ImageNet-100's of ImageNet; all where empty.

    Raises:
      FileNotFoundError: there is no such folder.
      ValueError: it holds no image of a class, or a file is not what the module says.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder of images.")
    names, solution = _read_names(folder), _read_solution(folder)
    official = folder / "Data" / "CLS-LOC"
    root = official if official.is_dir() else folder

    def scene(path: pathlib.Path) -> list[RawScene | Rejected]:
        *folders, _ = path.relative_to(root).parts
        split = "val" if not folders or _SYNSET.fullmatch(folders[0]) else folders[0]
        synset = next(filter(_SYNSET.fullmatch, folders), solution.get(path.stem))
        if synset is None:
            # Nobody published the classes of ImageNet's test images.
            return [] if split == "test" else [Rejected(UNKNOWN_CLASS, str(path))]
        if synsets and synset not in synsets:
            return []
        picture = usable_picture(path, SOURCE, str(path))
        if isinstance(picture, Rejected):
            return [picture]
        texts = (Text("class", "en", names[synset]),) if synset in names else ()
        scene_id = "/".join((*folders, path.stem))
        split = split.partition(".")[0]
        return [RawScene(scene_id, split, texts, pictures=(picture,), label=synset)]

    found = False
    for rows in in_threads(scene, _images(root)):
        yield from rows
        found = found or bool(rows)
    if not found:
        raise ValueError(
            f"{folder} holds no image of a class{' in the list of synsets' if synsets else ''}; "
            "images lie in folders called by their synset, such as val/n01440764/1.JPEG."
        )


def _images(root: pathlib.Path) -> Iterator[pathlib.Path]:
    """In order, a folder at a time: a list of all ImageNet would take a gigabyte."""
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith("."):
                yield pathlib.Path(folder, name)


def read_synsets(path: pathlib.Path) -> frozenset[str]:
    """The synsets in a file, one a line.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: a line is no synset, or there is none.
    """
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    wrong = [line for line in lines if line and not _SYNSET.fullmatch(line)]
    if wrong or not any(lines):
        found = repr(wrong[0]) if wrong else "nothing"
        raise ValueError(f"{path} must hold synsets such as n01440764, one a line; it has {found}.")
    return frozenset(line for line in lines if line)


def _read_names(folder: pathlib.Path) -> dict[str, str]:
    mapping, labels = (folder / name for name in _NAMES)
    if mapping.is_file():
        rows = (line.split(maxsplit=1) for line in mapping.read_text("utf-8").splitlines())
        return {row[0]: row[1].strip() for row in rows if len(row) == 2}
    if labels.is_file():
        try:
            return {
                str(synset): str(name) for synset, name in json.loads(labels.read_bytes()).items()
            }
        except (ValueError, AttributeError) as error:
            raise ValueError(f"{labels} is no object of synsets and names ({error}).") from error
    return {}


def _read_solution(folder: pathlib.Path) -> dict[str, str]:
    path = folder / _SOLUTION
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    # ImageId, and a class and a box for each object, of which the first is the image's.
    return {row[0]: row[1].split()[0] for row in rows if len(row) == 2 and row[1].split()}
