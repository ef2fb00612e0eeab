"""Parquet files of texts, read in their order from any row on."""

import glob
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_DECODED_ROWS = 4096  # at a time: bounds what an open file holds in memory


def find_files(pattern: str) -> tuple[str, ...]:
    """The files that a pattern such as `data/train-*.parquet` matches, sorted.

    Args:
      pattern: a path, or with `*`, `?`, `[...]` and `**`.

    Raises:
      FileNotFoundError: if there is none.
    """
    files = tuple(sorted(path for path in glob.glob(pattern, recursive=True)))
    if not files:
        raise FileNotFoundError(
            f"data.files {pattern!r} matches no file; name Parquet files, such as "
            "--config.data.files='DIR/*.parquet'."
        )
    return files


def count_rows(files: Sequence[str], columns: Sequence[str]) -> tuple[int, ...]:
    """How many rows each file has, by its footer, which is all that is read.

    Args:
      files: paths.
      columns: each file must have them, as strings.

    Raises:
      ValueError: a file is cut short or no Parquet file, or lacks a column; names the file.
      FileNotFoundError: a file is missing.
    """
    with ThreadPoolExecutor(16) as pool:  # a footer is a wait for the disk or the network
        return tuple(pool.map(lambda file: _count_rows(file, columns), files))


def _count_rows(path: str, columns: Sequence[str]) -> int:
    with _open(path) as file:
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
    if not Path(path).exists():
        raise FileNotFoundError(f"{path} is missing; restore it, or train on other data.files.")
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} is not a whole Parquet file ({error}); fetch it again, or take it out of "
            "data.files."
        ) from error


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
        groups = list(range(group, metadata.num_row_groups))
        self._batches = self._file.iter_batches(_DECODED_ROWS, row_groups=groups, columns=columns)
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
        except (pa.ArrowException, OSError, StopIteration) as error:
            raise ValueError(
                f"{self._path} is damaged before row {self.row} ({error}); fetch it again, or take "
                "it out of data.files."
            ) from error

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
