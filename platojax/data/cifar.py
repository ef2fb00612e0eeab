"""CIFAR-10 and CIFAR-100 in their official binary format (cs.toronto.edu/~kriz/cifar.html)."""

import pathlib

import numpy as np

_PIXELS = 3 * 32 * 32
# The file with the names of the classes, and bytes of labels before an image; the last counts.
_KINDS = {"batches.meta.txt": 1, "fine_label_names.txt": 2}


def read_cifar(path: pathlib.Path) -> tuple[tuple[str, ...], list[np.ndarray], tuple[str, ...]]:
    """Reads a batch, such as `cifar-10-batches-bin/test_batch.bin`.

    Args:
      path: of the batch; the names of the classes are in the same folder, in `batches.meta.txt`
        (CIFAR-10) or `fine_label_names.txt` (CIFAR-100, whose fine labels count).

    Returns:
      Ids such as `test_batch/0`, images `[32, 32, 3]` uint8, and the name of each image's class.

    Raises:
      ValueError: there are no names of classes, or the file is no whole number of records.
    """
    kind = next((name for name in _KINDS if (path.parent / name).is_file()), None)
    if kind is None:
        raise ValueError(
            f"{path}: there is no {' or '.join(_KINDS)} beside it; unpack CIFAR's whole archive"
        )
    names = (path.parent / kind).read_text(encoding="utf-8").split()
    labels = _KINDS[kind]
    raw = np.fromfile(path, np.uint8)
    if not raw.size or raw.size % (labels + _PIXELS):
        raise ValueError(
            f"{path} has {raw.size} bytes, which is no whole number of records of "
            f"{labels + _PIXELS}; unpack it again"
        )
    records = raw.reshape(-1, labels + _PIXELS)
    numbers = records[:, labels - 1]
    if numbers.max() >= len(names):
        raise ValueError(f"{path} has class {numbers.max()}, but {kind} names {len(names)}")
    images = records[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    ids = tuple(f"{path.stem}/{number}" for number in range(len(records)))
    return ids, list(np.ascontiguousarray(images)), tuple(names[number] for number in numbers)
