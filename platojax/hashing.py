"""Hashes by which data and weights are known again."""

import hashlib
import pathlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np


def hash_items(ids: Iterable[str | int]) -> str:
    """SHA-256 (hexadecimal) of the ids in their order; an integer id counts as its decimal text."""
    digest = hashlib.sha256()
    for item in ids:
        text = str(item).encode()
        # With its length, so that ("ab", "c") and ("a", "bc") differ.
        digest.update(f"{len(text)}:".encode() + text)
    return digest.hexdigest()


def hash_tree(params: Any) -> str:
    """SHA-256 (hexadecimal) of a tree of arrays: paths, dtypes, shapes and bytes of its leaves.

    The same on every machine and for NumPy and JAX arrays; the order of dictionaries is immaterial.

    Args:
        params: a pytree whose leaves are arrays or numbers.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    digest = hashlib.sha256()
    for path, leaf in sorted(
        ((jax.tree_util.keystr(path), leaf) for path, leaf in leaves), key=lambda item: item[0]
    ):
        array = np.asarray(leaf)
        if array.dtype.hasobject:
            raise ValueError(f"leaf {path} is a {type(leaf).__name__}, not an array")
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{path} {array.dtype.name} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()


def hash_files(paths: Iterable[pathlib.Path]) -> str:
    """SHA-256 (hexadecimal) of the names and contents of files, in the order of their names."""

    def digest(path: pathlib.Path) -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    ordered = sorted(paths, key=lambda path: path.name)
    with ThreadPoolExecutor() as pool:  # hashing releases the interpreter's lock
        digests = list(pool.map(digest, ordered))
    lines = (f"{path.name} {one}\n" for path, one in zip(ordered, digests, strict=True))
    return hashlib.sha256("".join(lines).encode()).hexdigest()
