"""Feature files: write once, read by anyone, know what they are.

A feature folder holds `features.npy` [N, L, D] float32 (items, layers, width) and `meta.json`,
which says what the features are of. Nothing in it is pickled. Features of other programs are read
from `.npy`, `.npz` and the `.pt` files of platonic-rep.
"""

import dataclasses
import fcntl
import importlib.metadata
import json
import os
import pathlib
import shutil
import warnings
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

import platojax
from platojax.files import write_whole

_FEATURES = "features.npy"
_META = "meta.json"
_PROGRESS = "progress.json"  # only in folders that are being written
# What makes features the same, of their meta.
_OPTIONAL = ("content_hash", "request")  # folders of version 0.1.0 lack them
_IDENTITY = (
    *("weights_hash", "items_hash", "content_hash", "preprocessing", "pooling", "layers", "dtype"),
)
# Rows looked at together when values are checked, so that a large file is never in memory at once.
_CHECK_BYTES = 2**26


def library_versions(*others: str) -> dict[str, str]:
    """The versions of the libraries that computed: platojax, jax, numpy and the others named."""
    return {"platojax": platojax.__version__} | {
        name: _version(name) for name in ("jax", "numpy", *others)
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # such as onnxruntime installed for GPUs
        return "unknown"


@dataclasses.dataclass(frozen=True)
class FeatureMeta:
    """What features are of; two sets of features with equal meta should be equal.

    Attributes:
        encoder: name of the encoder, as its authors spell it.
        weights_hash: `hash_tree` of its parameters.
        dataset: name of the data set and split.
        items_hash: `hash_items` of the ids of the items, in the order of the rows.
        preprocessing: what was done to the inputs, for example "resize 256 bicubic, crop 224".
        pooling: how tokens became one vector, for example "cls" or "mean over valid tokens".
        layers: name of each layer, in the order of axis 1.
        dtype: number format the encoder computed in; what is stored is always float32.
        versions: of the libraries.
        content_hash: of the texts or images themselves; empty where unknown.
        request: by which `platojax extract` knows at a glance what it made; empty elsewhere.
    """

    encoder: str
    weights_hash: str
    dataset: str
    items_hash: str
    preprocessing: str
    pooling: str
    layers: tuple[str, ...]
    dtype: str = "float32"
    versions: Mapping[str, str] = dataclasses.field(default_factory=library_versions)
    content_hash: str = ""
    request: str = ""

    def to_json(self) -> dict[str, Any]:
        """The content of `meta.json`."""
        return dataclasses.asdict(self) | {"layers": list(self.layers)}

    @classmethod
    def from_json(cls, values: Any) -> "FeatureMeta":
        """The inverse of `to_json`.

        Raises:
            ValueError: a field is missing, unknown or of the wrong type; the message names it.
        """
        if not isinstance(values, dict):
            raise ValueError(f"expected an object, found {type(values).__name__}")
        fields = [field.name for field in dataclasses.fields(cls)]
        missing = [name for name in fields if name not in values and name not in _OPTIONAL]
        unknown = [name for name in values if name not in fields]
        if missing or unknown:
            raise ValueError(f"missing fields {missing}, unknown fields {unknown}")
        for name, value in values.items():
            if name == "layers":
                right = isinstance(value, list) and all(isinstance(x, str) for x in value)
            elif name == "versions":
                right = isinstance(value, dict) and all(isinstance(x, str) for x in value.values())
            else:
                right = isinstance(value, str)
            if not right:
                raise ValueError(f"field {name!r} has a value of the wrong type: {value!r}")
        return cls(**values | {"layers": tuple(values["layers"])})


@dataclasses.dataclass(frozen=True, eq=False)
class Features:
    """Features and what is known of them.

    Attributes:
        features: [N, L, D] float32; memory-mapped where the file allows it.
        meta: what they are of; None for files without it.
        path: where they were read from.
    """

    features: np.ndarray
    meta: FeatureMeta | None
    path: pathlib.Path

    def layer_name(self, layer: int) -> str:
        """The layer's name where it is known, else its number, counted from 0."""
        return self.meta.layers[layer] if self.meta else str(layer)


def write_features(folder: str | os.PathLike, features: Any, meta: FeatureMeta) -> None:
    """Writes a feature folder so that it is there whole or not at all.

    Args:
        folder: where; parents are created.
        features: [N, L, D], real and finite; stored as float32.
        meta: what they are of, with one name per layer.

    Raises:
        ValueError: features are not finite, have the wrong shape, or meta names other layers.
        FileExistsError: `folder` exists.
    """
    array = np.asarray(features)
    if array.ndim != 3:
        raise ValueError(f"features have shape {array.shape}; needed are [items, layers, width]")
    array = as_float32(array, "features")
    _check_layers(array, meta, "features")
    with FeatureWriter(folder, len(array), array.shape[2], meta, resume=False) as writer:
        writer.append(array)


class FeatureWriter:
    """A feature folder in the making, filled row by row; a killed one is taken up again.

    The rows go to a memory-mapped array in a hidden folder `.NAME.partial` beside the target, which
    is renamed to it when all rows are there: what carries the target's name is whole. After each
    `append` the rows are on the disk, and a later writer with equal meta goes on behind them.

        with FeatureWriter(folder, num_items, width, meta) as writer:
            for start in range(writer.done, num_items, 512):
                writer.append(features_of(start, start + 512))

    Attributes:
        done: rows that are there.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        num_items: int,
        width: int,
        meta: FeatureMeta,
        *,
        resume: bool = True,
    ) -> None:
        """Starts, or takes up, the writing.

        Args:
            folder: where; parents are created.
            num_items: N.
            width: D.
            meta: what the features are of; L is the number of its layers.
            resume: whether to go on behind the rows that an earlier writer left.

        Raises:
            FileExistsError: `folder` exists.
            ValueError: another process is writing the same folder.
            OSError: the disk has no room for all rows.
        """
        FeatureMeta.from_json(meta.to_json())  # what is written must be readable
        self._folder = pathlib.Path(os.path.abspath(folder))
        self._shape = (num_items, len(meta.layers), width)
        self._meta = meta
        if os.path.lexists(self._folder):  # also a link to nowhere
            raise FileExistsError(f"{folder} exists; delete it or give another path")
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        self._partial = self._folder.with_name(f".{self._folder.name}.partial")
        if self._partial.is_symlink():
            raise FileExistsError(f"{self._partial} is a link; delete it or give another path")
        self._partial.mkdir(exist_ok=True)
        try:
            self._lock = os.open(self._partial, os.O_RDONLY)
        except FileNotFoundError as error:  # another process has renamed it meanwhile
            raise FileExistsError(f"{folder} has just been written by another process") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise ValueError(
                f"another process is writing {folder}; wait for it or give another path"
            ) from error
        if self._folder.exists():  # another process has finished it meanwhile
            os.close(self._lock)
            raise FileExistsError(f"{folder} exists; delete it or give another path")
        try:
            self.done = self._rows_kept() if resume else 0
            if not self.done and (self._partial / _PROGRESS).exists():
                warnings.warn(
                    f"an unfinished extraction to {folder} was of other features, or by other "
                    "versions of libraries; it starts again",
                    stacklevel=2,
                )
            self._array = self._open_array()
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> "FeatureWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            os.close(self._lock)

    def append(self, features: np.ndarray) -> None:
        """Writes the next rows and waits until the disk has them.

        Args:
            features: [n, L, D], finite.

        Raises:
            ValueError: they are not finite, or do not fit.
        """
        stop = self.done + len(features)
        if features.shape[1:] != self._shape[1:] or stop > self._shape[0]:
            raise ValueError(
                f"features {features.shape} behind {self.done} rows do not fit {self._shape}"
            )
        if len(features):
            # The number of the item in the message is that in the whole array.
            self._array[self.done : stop] = as_float32(features, "features", self.done)
            self._array.flush()
            self.done = stop
            self._write_json(_PROGRESS, self._progress(self.done))

    def _open_array(self) -> np.memmap:
        path = self._partial / _FEATURES
        if self.done:
            return np.lib.format.open_memmap(path, mode="r+")
        for stale in self._partial.iterdir():
            shutil.rmtree(stale) if stale.is_dir() and not stale.is_symlink() else stale.unlink()
        array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=self._shape)
        if hasattr(os, "posix_fallocate"):  # not on macOS
            with path.open("r+b") as file:
                # The file is sparse: with no room for a row, the mapping would end the process.
                size = path.stat().st_size
                try:
                    os.posix_fallocate(file.fileno(), 0, size)
                except OSError as error:
                    raise OSError(f"{path} needs {size:,} bytes: {error.strerror}") from error
        return array

    def _rows_kept(self) -> int:
        """Rows that an earlier writer of the same features left."""
        try:
            saved = json.loads((self._partial / _PROGRESS).read_text(encoding="utf-8"))
            done = int(saved["done"])
            mapped = np.load(self._partial / _FEATURES, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, KeyError, TypeError, EOFError, OverflowError):
            return 0
        fits = mapped.shape == self._shape and mapped.dtype == np.float32
        good = fits and saved == self._progress(done) and 0 < done <= self._shape[0]
        return done if good else 0

    def _progress(self, done: int) -> dict[str, Any]:
        """What is written after each append; a later writer with all of this equal goes on."""
        meta = self._meta.to_json()
        # Versions too: features of one folder are all by the same libraries.
        same = {name: meta[name] for name in (*_IDENTITY, "versions")}
        return {"features": same, "shape": list(self._shape), "done": done}

    def _finish(self) -> None:
        if self.done != self._shape[0]:
            raise ValueError(f"{self.done} of {self._shape[0]} rows were written")
        self._write_json(_META, self._meta.to_json())
        _sync_folder(self._partial)
        self._partial.rename(self._folder)
        _sync_folder(self._folder.parent)
        (self._folder / _PROGRESS).unlink(missing_ok=True)  # last: until here it could be taken up

    def _write_json(self, name: str, content: Any) -> None:
        temporary = self._partial / f"{name}.tmp"
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=2, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._partial / name)


def _sync_folder(folder: pathlib.Path) -> None:
    """Flushes the folder's entries: without it a power cut may undo a rename."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def holds(folder: str | os.PathLike, meta: FeatureMeta) -> bool:
    """Whether `folder` is a feature folder with these very features; False where nothing is there.

    Names and versions of libraries do not count: the same weights saw the same data in the same
    way. The request by which they are known at a glance is renewed.

    Raises:
        FileExistsError: something else is there.
    """
    folder = pathlib.Path(folder)
    if not folder.exists():
        return False
    try:
        old = read_meta(folder)
    except (ValueError, OSError) as error:
        raise FileExistsError(
            f"{folder} exists and is not a whole feature folder ({error}); delete it or give "
            "another path"
        ) from error
    for name in _IDENTITY:
        if getattr(old, name) != getattr(meta, name):
            raise FileExistsError(
                f"{folder} holds other features ({name} is {getattr(old, name)!r}, now "
                f"{getattr(meta, name)!r}): delete it or give another path"
            )
    if old.request != meta.request:
        renewed = dataclasses.replace(old, request=meta.request)
        write_whole(folder / _META, json.dumps(renewed.to_json(), indent=2, ensure_ascii=False))
    return True


def read_features(path: str | os.PathLike) -> Features:
    """Reads features and checks them.

    A feature folder; `.npy`; `.npz` (its array `features`, or its only array); platonic-rep `.pt`
    (a dict with "feats" [N, L, D]; needs torch). Arrays [N, D] become [N, 1, D]; integers and other
    float formats become float32.

    Args:
        path: a folder or a file, told apart by its name.

    Returns:
        The features, memory-mapped where they come from a folder or a float32 `.npy`.

    Raises:
        FileNotFoundError: there is nothing at `path`.
        ImportError: a `.pt` file, and torch is not installed.
        ValueError: the file is not what its name says, or its features are not finite, empty,
            pickled objects, or of another number of axes. The message names file, value and fix.
    """
    path = pathlib.Path(path)
    if not path.exists():
        if path.with_name(f".{path.name}.partial").is_dir():
            raise FileNotFoundError(
                f"{path} is an unfinished extraction; run the same command again, which goes on "
                "with it"
            )
        raise FileNotFoundError(f"{path} does not exist")
    meta = None
    if path.is_dir():
        meta = read_meta(path)
        array = _load_numpy(path / _FEATURES)
    elif path.suffix in (".npy", ".npz"):
        array = _load_numpy(path)
    elif path.suffix == ".pt":
        array = _load_torch(path)
    else:
        raise ValueError(f"{path}: expected a feature folder, .npy, .npz or platonic-rep .pt")
    if array.ndim == 2:
        array = array[:, None, :]
    if array.ndim != 3:
        raise ValueError(
            f"{path} has shape {array.shape}; needed are [items, layers, width] or [items, width]"
        )
    array = as_float32(array, str(path))
    if meta:
        _check_layers(array, meta, str(path))
    return Features(array, meta, path)


def check_same_items(a: Features, b: Features) -> None:
    """Checks that row i of both is the same item, as far as the files can tell.

    Args:
        a: one side.
        b: the other side.

    Raises:
        ValueError: the numbers of items differ, or both sides know the ids of their items and the
            ids or their order differ.
    """
    if len(a.features) != len(b.features):
        raise ValueError(
            f"{a.path} has {len(a.features)} items and {b.path} has {len(b.features)}: row i of "
            "both must be the same item; extract both from the same items in the same order"
        )
    if a.meta and b.meta and a.meta.items_hash != b.meta.items_hash:
        raise ValueError(
            f"{a.path} ({a.meta.dataset}, items {a.meta.items_hash[:12]}) and {b.path} "
            f"({b.meta.dataset}, items {b.meta.items_hash[:12]}) are of other items or in another "
            "order; extract both from the same items in the same order"
        )


def as_float32(array: np.ndarray, where: str, first_item: int = 0) -> np.ndarray:
    """Brings features to the format of all arithmetic.

    Args:
        array: [N, L, D] of any real dtype; integers and booleans count as numbers.
        where: what messages call it.
        first_item: the number of item 0 in messages.

    Returns:
        [N, L, D] float32, the array itself where it is that.

    Raises:
        ValueError: there are none, the dtype is no real number's, or a value is not finite; the
            message names the place and the fix.
    """
    if array.size == 0:
        raise ValueError(f"{where} is empty (shape {array.shape}); extract the features again")
    # JAX's own formats, such as bfloat16, are floating to JAX but void to NumPy; read back from a
    # file they are void to both.
    if array.dtype.kind not in "biuf" and not jnp.issubdtype(array.dtype, jnp.floating):
        hint = " (bfloat16 that NumPy cannot read back?)" if array.dtype.kind == "V" else ""
        raise ValueError(f"{where} has dtype {array.dtype}{hint}; save real numbers, best float32")
    with np.errstate(over="ignore"):  # an overflow is reported below, with its place
        converted = array.astype(np.float32, copy=False)
    index = first_nonfinite(converted)
    if index is None:
        return converted
    item, layer, channel = index
    value = array[index]
    if array.dtype == np.float16 and np.isinf(value):
        fix = "float16 overflows above 65504; extract in float32 or bfloat16"
    elif np.isfinite(value):
        fix = "this overflows float32; scale the features down"
    else:
        fix = "fix the extraction, or leave the item out on both sides"
    raise ValueError(
        f"{where} is {value} at item {first_item + item}, layer {layer}, channel {channel}: {fix}"
    )


def first_nonfinite(array: np.ndarray) -> tuple[int, ...] | None:
    """The index of the first NaN or infinity in row order; None where there is none."""
    rows = max(1, _CHECK_BYTES * len(array) // array.nbytes)
    for start in range(0, len(array), rows):
        finite = np.isfinite(array[start : start + rows])
        if not finite.all():
            item, *rest = (int(i) for i in np.unravel_index(np.argmin(finite), finite.shape))
            return (start + item, *rest)
    return None


def _check_layers(array: np.ndarray, meta: FeatureMeta, where: str) -> None:
    if array.shape[1] != len(meta.layers):
        raise ValueError(
            f"{where}: {array.shape[1]} layers, but meta names {len(meta.layers)} "
            f"({', '.join(meta.layers)}); give one name per layer"
        )


def read_meta(folder: pathlib.Path) -> FeatureMeta:
    """What the features of a folder are of, without reading them.

    Raises:
        ValueError: it is no feature folder, or an unfinished or damaged one.
    """
    path = folder / _META
    if not path.exists():
        if (folder / _PROGRESS).exists():
            raise ValueError(
                f"{folder} is an unfinished extraction; run the same command again, which goes on "
                "with it"
            )
        raise ValueError(f"{folder} is not a feature folder: it has no {_META}")
    try:
        meta = FeatureMeta.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path}: {error}; delete the folder and extract the features again"
        ) from error
    shape = _load_numpy(folder / _FEATURES).shape  # mapped, not read
    if len(shape) != 3 or shape[1] != len(meta.layers):
        raise ValueError(
            f"{folder / _FEATURES} has shape {shape}, but {path} names {len(meta.layers)} layers; "
            "delete the folder and extract the features again"
        )
    return meta


def _load_numpy(path: pathlib.Path) -> np.ndarray:
    """The array of a `.npy` (memory-mapped) or `.npz` file."""
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded as arrays:
            names = list(arrays)
            if "features" not in names and len(names) != 1:
                raise ValueError(f"it has the arrays {names}; name the right one 'features'")
            return arrays["features" if "features" in names else names[0]]
    except FileNotFoundError as error:
        raise ValueError(f"{path.parent} is not a feature folder: it has no {path.name}") from error
    except Exception as error:  # broken files make NumPy raise errors of many kinds
        if "allow_pickle" in str(error) or "Python objects" in str(error):
            error = ValueError("it is no array file, or one of pickled objects; save a plain array")
        raise ValueError(f"{path} cannot be read: {error}") from error


def _load_torch(path: pathlib.Path) -> np.ndarray:
    """The features in a platonic-rep file: torch.save({"feats": [N, L, D], ...})."""
    try:
        import torch  # only here: nothing else in platojax's evaluation needs it
    except ImportError as error:
        raise ImportError(f"{path} needs torch to be read: pip install torch") from error
    try:
        # weights_only: a pickle from elsewhere must not run code.
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises pickle, runtime and zip errors of many kinds
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} cannot be read by torch.load: {first_line}") from error
    if not isinstance(saved, Mapping) or "feats" not in saved:
        found = list(saved) if isinstance(saved, Mapping) else type(saved).__name__
        raise ValueError(f"{path} has no 'feats' (found {found}); expected platonic-rep's format")
    features = saved["feats"]
    if not isinstance(features, torch.Tensor) or features.is_complex() or features.is_sparse:
        raise ValueError(f"{path}: 'feats' is no dense tensor of real numbers")
    try:
        return features.detach().float().numpy()
    except (RuntimeError, TypeError, NotImplementedError) as error:  # quantised, on no device
        raise ValueError(f"{path}: 'feats' has no plain numbers ({error})") from error
