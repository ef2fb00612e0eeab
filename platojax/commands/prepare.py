"""`platojax prepare`: what all data sets that one process goes through have in common."""

import dataclasses
import pathlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console

from platojax.data.preparation import write_prepared
from platojax.data.prepared import Info
from platojax.data.raw.scene import RawScene
from platojax.data.rejects import Rejected, describe
from platojax.data.tokenizer import Tokenizer
from platojax.hashing import hash_files, hash_items
from platojax.terminal import count_line


@dataclasses.dataclass(frozen=True)
class Options:
    """What all data sets take.

    Attributes:
      tokenizer: a model file, by which texts are tokenised now; None keeps them.
      exclude: a file of scene ids to be left out, one a line.
      max_bad_fraction: the largest share of what is read that may be unusable.
    """

    tokenizer: pathlib.Path | None = None
    exclude: pathlib.Path | None = None
    max_bad_fraction: float = 0.05


def run(
    name: str,
    rows: Iterable[RawScene | Rejected],
    files: Sequence[pathlib.Path],
    out: pathlib.Path,
    options: Options,
    settings: Mapping[str, Any] | None = None,
    source: Mapping[str, Any] | None = None,
) -> None:
    """Writes the scenes of a reader, and says what there is.

    Args:
      name: of the data set.
      rows: of the reader.
      files: that the reader reads; pictures, whose bytes are kept, need not be among them.
      out: the folder to be.
      options: see there.
      settings: of the reader, where it has any.
      source: what is read, where that is too much to be hashed.

    Raises:
      ValueError, OSError: as the reader and `write_prepared`.
    """
    console = Console()
    start = time.perf_counter()
    if not 0 <= options.max_bad_fraction < 1:
        raise ValueError(f"max_bad_fraction must be in [0, 1); got {options.max_bad_fraction}.")
    for path in files:
        if path.exists() and not path.is_file():  # whose end may never come
            raise ValueError(f"{path} is no file, but a folder, a pipe or a device.")
    exclude = frozenset() if options.exclude is None else read_ids(options.exclude)
    with count_line(console, name, None) as show:
        info = write_prepared(
            rows,
            out,
            name=name,
            source=source or _describe_files(files),
            settings={**(settings or {}), "exclude": hash_items(sorted(exclude))},
            tokenizer=None if options.tokenizer is None else Tokenizer(options.tokenizer),
            exclude=exclude,
            max_bad_fraction=options.max_bad_fraction,
            on_progress=show,
        )
    describe_info(console, out, info)
    if options.exclude is not None:
        console.print(f"Left out {info.excluded} scenes of the {len(exclude)} in {options.exclude}")
    console.print(f"{time.perf_counter() - start:.1f} s")


def _describe_files(files: Sequence[pathlib.Path]) -> Mapping[str, Any]:
    names = [path.name for path in files]
    return {"files": names, "sha256": hash_files(files)} if files else {"files": names}


def read_ids(path: pathlib.Path) -> frozenset[str]:
    """The ids in a file, one a line.

    Raises:
      ValueError: there is no such file, or it is empty, or no text.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise ValueError(
            f"--exclude {path} cannot be read ({error.strerror}); give a file of ids, one a line."
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error}); give ids, one a line.") from error
    if not (ids := frozenset(line.strip() for line in lines if line.strip())):
        raise ValueError(f"{path} is empty; give ids, one a line.")
    return ids


def describe_info(console: Console, out: pathlib.Path, info: Info) -> None:
    """Prints what prepared data holds, and what was rejected."""
    for name, split in info.splits.items():
        counts = {"texts": split.texts, "pictures": split.pictures, "clips": split.clips}
        held = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        size = sum(shard.bytes for shard in split.shards)
        console.print(
            f"{out} {name}: {split.scenes:,} scenes, {held}, {size / 1e6:,.1f} MB, "
            f"SHA-256 {split.content_hash[:12]}",
            markup=False,
            soft_wrap=True,
        )
    if info.rejected:
        console.print(
            f"Could not be used: {describe(info.rejected, info.first_rejected)}",
            markup=False,
            soft_wrap=True,
        )
