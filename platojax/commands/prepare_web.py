"""`platojax prepare recap` and `web`: captions from the web, of which there are many."""

import dataclasses
import pathlib
import shlex
import time
from collections.abc import Sequence

from rich.console import Console

from platojax.commands import prepare
from platojax.data import bulk, parquet
from platojax.data.paths import file_name, find_files, is_url
from platojax.data.prepared import read_info
from platojax.data.raw import url_text, webdataset
from platojax.terminal import stage_line

_KINDS = (".parquet", ".tsv", ".tar")


@dataclasses.dataclass(frozen=True)
class Options:
    """What all of these take.

    Attributes:
      tokenizer: a model file, by which texts are tokenised now; None keeps them.
      split: the name of the only one.
      max_bad_fraction: the largest share of what is read that may be unusable.
      workers: processes on this machine; 0 is one for each core.
      beam: arguments of Apache Beam, which then does the work; empty for none.
      rows_per_shard: of Parquet files.
    """

    tokenizer: pathlib.Path | None
    split: str
    max_bad_fraction: float
    workers: int
    beam: str
    rows_per_shard: int


def run_recap(patterns: Sequence[str], out: str, options: Options) -> None:
    """Prepares Recap-DataComp-1B.

    Raises:
      ValueError: `out` is a URL, but Beam does not do the work.
      ValueError, OSError: as `bulk.prepare`.
    """
    _check_out(out, options)
    _run_tables(bulk.RECAP, _find(patterns), out, options)


def run_web(patterns: Sequence[str], out: str, options: Options, *, pictures: bool) -> None:
    """Prepares captions with their URLs, or shards of webdataset, by what the files' names end in.

    Raises:
      ValueError: the files are of several kinds, or of none; or an option is not for their kind;
        or `out` is a URL, but Beam does not do the work.
      ValueError, OSError: as `bulk.prepare` and `preparation.write_prepared`.
    """
    _check_out(out, options)
    files = _find(patterns)
    kinds = {kind for file in files for kind in _KINDS if _is_kind(file, kind)}
    if len(kinds) != 1 or not all(_is_kind(file, *kinds) for file in files):
        raise ValueError(
            f"{', '.join(patterns)}: expected files of one kind, {', '.join(_KINDS)} (the last "
            f"two also with .gz); the first of {len(files)} is {files[0]}."
        )
    (kind,) = kinds
    if pictures and kind != ".tar":
        raise ValueError(f"--pictures is for .tar; {files[0]} has none.")
    if kind == ".parquet":
        layout = bulk.find_layout(parquet.column_names(files[0]))
        return _run_tables(layout, files, out, options)
    for flag, given in (
        ("--beam", options.beam),
        ("--workers", options.workers > 1),
        ("--rows-per-shard", options.rows_per_shard != bulk.ROWS_PER_SHARD),
    ):
        if given:
            raise ValueError(f"{flag} is for .parquet; {files[0]} is read by one process.")
    read = webdataset.read if kind == ".tar" else url_text.read
    more = {"pictures": pictures} if kind == ".tar" else {}
    prepare.run(
        "web",
        read(files, options.split, **more),
        (),
        pathlib.Path(out),
        prepare.Options(options.tokenizer, None, options.max_bad_fraction),
        settings=more,
        source={"files": [file_name(file) for file in files]},
    )
    return None


def _check_out(out: str, options: Options) -> None:
    if is_url(out) and not options.beam:
        raise ValueError(
            f"--out {out} is a URL, to which only --beam writes; give a folder, and copy it there."
        )


def _is_kind(file: str, kind: str) -> bool:
    return file.removesuffix(".gz").endswith(kind)


def _find(patterns: Sequence[str]) -> tuple[str, ...]:
    files = [file for pattern in patterns for file in find_files(pattern, "FILES")]
    return tuple(sorted(set(files)))


def _run_tables(layout: bulk.Layout, files: Sequence[str], out: str, options: Options) -> None:
    console = Console()
    start = time.perf_counter()
    plan = bulk.Plan.make(
        layout,
        files,
        tokenizer=None if options.tokenizer is None else str(options.tokenizer.resolve()),
        split=options.split,
        rows_per_shard=options.rows_per_shard,
        max_bad_fraction=options.max_bad_fraction,
    )
    if options.beam:
        from platojax.data import bulk_beam

        bulk_beam.run(plan, out, shlex.split(options.beam))
    else:
        with stage_line(console, layout.name) as show:
            bulk.prepare(plan, pathlib.Path(out), workers=options.workers, on_progress=show)
    if (folder := pathlib.Path(out)).is_dir():
        prepare.describe_info(console, folder, read_info(folder))
    console.print(f"{time.perf_counter() - start:.1f} s")
