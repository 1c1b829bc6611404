"""Cells of Parquet files that hold the bytes of pictures.

A Parquet file has row groups, and pages in each column of a group, compressed as a whole. So a picture has no place of
its own: reading one decodes the column of its row group, which stays in memory for the next ones.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

from halofeed.prep.sources.range_stream import RangeStream
from halofeed.system.errors import AnnotationsError, SourceError

MAX_GROUP_BYTES = 1 << 30
"""Most bytes of one column in a row group; one group and column is decoded at once."""
_CACHED_BYTES = 256 << 20
"""Bytes of decoded row groups that a process keeps; the last one is kept whatever its size."""


class RangeFiles(Protocol):
    """Source files as far as this reader needs them; see `halofeed.prep.sources.files.SourceFiles`."""

    @property
    def root(self) -> str: ...
    def stamp(self, path: str) -> Any: ...
    def size(self, path: str) -> int | None: ...
    def read_range(self, path: str, start: int, stop: int) -> bytes: ...


def open_parquet(files: RangeFiles, path: str) -> Any:
    """Return the `pyarrow.parquet.ParquetFile` of a path.

    Raises:
        AnnotationsError: pyarrow is not installed, or the file is not readable as Parquet.
    """
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise AnnotationsError(
            f"{path}: a Parquet file needs pyarrow: pip install pyarrow, or write it as metadata.jsonl"
        ) from error
    try:
        stream = RangeStream(files.size(path) or 0, partial(files.read_range, path))
        return parquet.ParquetFile(stream)
    except (ArrowException, SourceError, OSError) as error:
        raise unreadable_parquet(path, error) from error


def unreadable_parquet(path: str, error: Exception) -> AnnotationsError:
    """Return the error about a damaged file."""
    return AnnotationsError(f"{path}: not readable as Parquet: {error}; write the file anew")


def leaf_column(table: Any, column: int) -> Any:
    """Return the chunked array of a column read by itself, without the structs around it."""
    import pyarrow

    found = table.column(column)
    # `Image` columns of Hugging Face datasets are structs of bytes and path.
    while pyarrow.types.is_struct(found.type):
        found = found.flatten()[0]
    return found


class _CellCache:
    """Decoded columns of row groups, the last used ones, and the rows at which the groups begin."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: OrderedDict[tuple[str, str, int, int], Any] = OrderedDict()
        self._starts: dict[tuple[str, str], list[int]] = {}
        self._stamps: dict[tuple[str, str], Any] = {}

    def cell(self, files: RangeFiles, path: str, row: int, column: int) -> bytes:
        stamp = files.stamp(path)
        with self._lock:
            # The file has changed, so its rows and groups may differ.
            if self._stamps.get((files.root, path)) != stamp:
                self._forget(files.root, path)
                self._stamps[files.root, path] = stamp
            starts = self._starts.get((files.root, path))
            if starts is None:
                file = open_parquet(files, path)
                counts = (file.metadata.row_group(one).num_rows for one in range(file.num_row_groups))
                starts = self._starts[files.root, path] = [0, *accumulate(counts)]
            group = bisect_right(starts, row) - 1
            key = files.root, path, group, column
            if key not in self._groups:
                self._groups[key] = _read_group(files, path, group, column)
                self._shrink()
            self._groups.move_to_end(key)
            value = self._groups[key][row - starts[group]].as_py()
        return b"" if value is None else bytes(value)

    def _shrink(self) -> None:
        while len(self._groups) > 1 and sum(one.nbytes for one in self._groups.values()) > _CACHED_BYTES:
            self._groups.popitem(last=False)

    def forget(self, files: RangeFiles, path: str) -> None:
        """Drop what is known of a file, because it has changed."""
        with self._lock:
            self._forget(files.root, path)

    def _forget(self, root: str, path: str) -> None:
        self._starts.pop((root, path), None)
        for key in [key for key in self._groups if key[:2] == (root, path)]:
            del self._groups[key]


_cache = _CellCache()


def _read_group(files: RangeFiles, path: str, group: int, column: int) -> Any:
    file = open_parquet(files, path)
    name = file.schema.column(column).path
    return leaf_column(file.read_row_group(group, columns=[name]), 0)


def read_cell(files: RangeFiles, path: str, row: int, column: int, *, anew: bool = False) -> bytes:
    """Return the bytes in one cell.

    Args:
        anew: read the file instead of what is in memory; files of a store have no stamp that shows a change.
        row: number of the row in the file.
        column: number of the column, counted over all leaves of the schema.

    Raises:
        SourceError: the file is damaged, or has no such cell any more.
    """
    if anew:
        _cache.forget(files, path)
    try:
        return _cache.cell(files, path, row, column)
    except (AnnotationsError, OSError, IndexError, ValueError) as error:
        _cache.forget(files, path)
        raise SourceError("read", "cell of the Parquet file cannot be read", f"row {row}: {error}") from error
