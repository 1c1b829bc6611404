"""Records of ArrayRecord files, in which TFDS and Grain store data sets for random access.

Records are in compressed chunks, so that a picture is no range of the file's bytes. A member is named by the number of
its record and its first byte in it. The library of the format reads local files only.
https://github.com/google/array_record
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from halofeed.prep.sources.parquet import RangeFiles
from halofeed.storage.atomic_files import encode_name
from halofeed.system.addresses import is_remote
from halofeed.system.errors import AnnotationsError, SourceError, install_command

_NAME = re.compile(r"[^/]*\.array_?records?(?:-\d{5,}-of-\d{5,})?", re.IGNORECASE)
_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
"""Options for random access, by the documentation of the reader."""
_OPEN_FILES = 16
"""Files that a process keeps open; each has an index in memory."""
_RECORDS_AT_ONCE = 64


def is_array_record(path: str) -> bool:
    """Return whether a path is named as an ArrayRecord file.

    >>> is_array_record("1.0.0/cards-train.array_record-00000-of-00002"), is_array_record("a.tfrecord")
    (True, False)
    """
    return _NAME.fullmatch(path.rpartition("/")[2]) is not None


def iterate_records(files: RangeFiles, path: str) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each record.

    Raises:
        AnnotationsError: array_record is not installed, the file is not local, or it is damaged.
    """
    reader = _open(files, path)
    try:
        count = reader.num_records()
        for start in range(0, count, _RECORDS_AT_ONCE):
            rows = range(start, min(start + _RECORDS_AT_ONCE, count))
            yield from zip(rows, _read(reader, path, list(rows)), strict=True)
    finally:
        _close(reader, path)


def _read(reader: Any, path: str, rows: list[int]) -> list[bytes]:
    try:
        return [bytes(record) for record in reader.read(rows)]
    except (ValueError, RuntimeError, IndexError, OSError) as error:
        raise _unreadable(path, error) from error


def _close(reader: Any, path: str) -> None:
    """Close a reader, which then reports what it found wrong with the file."""
    try:
        reader.close()
    except (ValueError, RuntimeError, OSError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: Exception) -> AnnotationsError:
    return AnnotationsError(
        f"{path}: not readable as ArrayRecord: {str(error)[:300]}; copy or write the file anew"
    )


def _open(files: RangeFiles, path: str) -> Any:
    # The library would read an address as a path of this machine.
    if is_remote(files.root):
        raise AnnotationsError(
            f"{path} in {files.root}: the library of ArrayRecord reads local files; copy the folder to a local disk"
        )
    try:
        from array_record.python.array_record_module import ArrayRecordReader
    except ImportError as error:
        command = install_command("array-record")
        raise AnnotationsError(f"{path}: an ArrayRecord file needs array-record: {command}") from error
    try:
        reader = ArrayRecordReader(os.path.join(files.root, encode_name(path)), _OPTIONS)
        reader.num_records()
    except (ValueError, RuntimeError, OSError) as error:
        raise _unreadable(path, error) from error
    return reader


class _OpenReaders:
    """Readers of the last used files, opened again where a file has changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: OrderedDict[tuple[str, str], tuple[Any, Any]] = OrderedDict()

    def record(self, files: RangeFiles, path: str, row: int) -> bytes:
        key, stamp = (files.root, path), files.stamp(path)
        with self._lock:
            known = self._readers.pop(key, None)
            if known is None or known[0] != stamp:
                if known is not None:
                    _close(known[1], path)
                known = stamp, _open(files, path)
            self._readers[key] = known
            while len(self._readers) > _OPEN_FILES:
                _close(self._readers.popitem(last=False)[1][1], path)
            if row >= known[1].num_records():
                raise IndexError(f"{known[1].num_records():,} records")
            return _read(known[1], path, [row])[0]


_readers = _OpenReaders()


def read_in_record(files: RangeFiles, path: str, row: int, start: int, size: int) -> bytes:
    """Return some bytes of a record.

    Raises:
        SourceError: the file is damaged, or has no such record any more.
    """
    try:
        return _readers.record(files, path, row)[start : start + size]
    except (AnnotationsError, OSError, IndexError) as error:
        raise SourceError(
            "read", "record of the ArrayRecord file cannot be read", f"record {row}: {error}"
        ) from error
