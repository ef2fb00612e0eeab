"""Parquet files of texts, here or in a bucket, read in their order from any row on."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from platojax.data.paths import file_name, is_url

_DECODED_ROWS = 4096  # at a time: bounds what an open file holds in memory


def count_rows(files: Sequence[str], columns: Sequence[str]) -> tuple[int, ...]:
    """How many rows each file has, by its footer, which is all that is read.

    Args:
      files: paths or URLs.
      columns: each file must have them, as strings.

    Raises:
      ValueError: a file is cut short or no Parquet file, or lacks a column; names the file.
      FileNotFoundError: a file is missing.
    """
    with ThreadPoolExecutor(16) as pool:  # a footer is a wait for the disk or the network
        return tuple(pool.map(lambda file: _count_rows(file, columns), files))


def stamp_files(files: Sequence[str]) -> tuple[str, ...]:
    """What tells whether a file was changed: its size and time, or what its bucket knows it by.

    Raises:
      FileNotFoundError: a file is missing.
    """
    with ThreadPoolExecutor(16) as pool:
        return tuple(pool.map(_stamp, files))


def _stamp(path: str) -> str:
    try:
        if is_url(path):
            system, root = fsspec.url_to_fs(path)
            return str(system.ukey(root))
        found = os.stat(path)
        return f"{found.st_size} bytes, {found.st_mtime_ns} ns"
    except FileNotFoundError as error:
        raise _missing(path) from error


def check_names(files: Sequence[str]) -> None:
    """Refuses files of one name in several folders: a row is known by that and its number.

    Raises:
      ValueError: naming two such files.
    """
    known: dict[str, str] = {}
    for file in files:
        if (other := known.setdefault(file_name(file), file)) != file:
            raise ValueError(
                f"{other} and {file} have one name, by which their rows are known; rename one."
            )


def column_names(path: str) -> list[str]:
    """Of a file; raises what `count_rows` does."""
    with _opened(path) as file:
        return list(file.schema_arrow.names)


def _count_rows(path: str, columns: Sequence[str]) -> int:
    with _opened(path) as file:
        schema = file.schema_arrow
        for column in columns:
            if column not in schema.names:
                raise ValueError(
                    f"{path} has the columns {schema.names}, but no {column!r}; give files that "
                    "have it, or rename one of theirs."
                )
            kind = schema.field(column).type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise ValueError(f"{path} has {column!r} of type {kind}; it must be a string.")
        return file.metadata.num_rows


def _open(path: str) -> pq.ParquetFile:
    try:
        if is_url(path):
            # One request for the column chunks of a row group, not one for each.
            return pq.ParquetFile(fsspec.open(path, "rb").open(), pre_buffer=True)
        return pq.ParquetFile(path)
    except FileNotFoundError as error:
        raise _missing(path) from error
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} is not a whole Parquet file ({error}); fetch it again, or leave it out."
        ) from error


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(f"{path} is missing; restore it, or leave it out.")


@contextmanager
def _opened(path: str) -> Iterator[pq.ParquetFile]:
    file = _open(path)
    try:
        yield file
    finally:
        file.close(force=True)  # also what fsspec opened


def read_row_groups(
    files: Sequence[str], columns: Sequence[str], rng: np.random.Generator
) -> Iterator[pa.Table]:
    """Row groups at random: first one of each file, then another one of each, until all are read.

    Args:
      files: paths.
      columns: to read; each file must have them, as strings.
      rng: of the order.

    Raises:
      ValueError, FileNotFoundError: as `count_rows`.
    """
    rest: dict[str, list[int]] = {}
    for file in (files[i] for i in rng.permutation(len(files))):
        _count_rows(file, columns)
        with _opened(file) as opened:
            rest[file] = rng.permutation(opened.num_row_groups).tolist()
            if rest[file]:
                yield opened.read_row_group(rest[file].pop(), columns=list(columns))
    while any(rest.values()):
        for file in [file for file, groups in rest.items() if groups]:
            with _opened(file) as opened:
                yield opened.read_row_group(rest[file].pop(), columns=list(columns))


class ParquetReader:
    """Reads columns of one file from a row on, a piece at a time.

    Attributes:
      row: that comes next.
    """

    def __init__(self, path: str, columns: Sequence[str], row: int = 0) -> None:
        """Opens the file.

        Args:
          path: of the file.
          columns: to read; the others are not decoded.
          row: to begin with. Row groups before it are skipped unread.

        Raises:
          ValueError: it is no whole Parquet file.
          FileNotFoundError: it is missing.
        """
        self._path = path
        self._file = _open(path)
        metadata = self._file.metadata
        self._num_rows = metadata.num_rows
        group = start = 0
        while group < metadata.num_row_groups:
            if row < start + metadata.row_group(group).num_rows:
                break
            start += metadata.row_group(group).num_rows
            group += 1
        # A row group at a time: of several, Arrow keeps those that were read until the last is.
        self._batches = (
            batch
            for number in range(group, metadata.num_row_groups)
            for batch in self._file.iter_batches(
                _DECODED_ROWS, row_groups=[number], columns=columns
            )
        )
        self._schema = pa.schema([self._file.schema_arrow.field(column) for column in columns])
        self._rest: list[pa.RecordBatch] = []
        self.row = start
        self.read(row - start)

    @property
    def exhausted(self) -> bool:
        """Whether all rows were read."""
        return self.row >= self._num_rows

    def read(self, count: int) -> pa.Table:
        """The next `count` rows, fewer at the end of the file.

        Raises:
          ValueError: the file is damaged.
        """
        taken: list[pa.RecordBatch] = []
        missing = min(count, self._num_rows - self.row)
        self.row += missing
        while missing:
            if not self._rest:
                self._rest.append(self._next_batch())
            batch = self._rest.pop()
            taken.append(batch.slice(0, missing))
            if batch.num_rows > missing:
                self._rest.append(batch.slice(missing))
            missing -= taken[-1].num_rows
        return pa.Table.from_batches(taken, self._schema)

    def _next_batch(self) -> pa.RecordBatch:
        try:
            return next(self._batches)
        except FileNotFoundError as error:  # of a bucket: an open file here stays readable
            raise _missing(self._path) from error
        except (pa.ArrowException, OSError, StopIteration) as error:
            raise ValueError(
                f"{self._path} is damaged before row {self.row} ({error}); fetch it again, or "
                "leave it out."
            ) from error

    def close(self) -> None:
        """Closes the file."""
        self._file.close(force=True)
