"""Source files that count the bytes that they return."""

from __future__ import annotations

import threading
from collections.abc import Callable

from halofeed.prep.sources.files import SourceFiles, SourceRanges, SourceStream


class CountedFiles:
    """Source files that count the bytes that are read of them, from any thread.

    Members of container files count by their own bytes. A file that is read twice counts twice.
    """

    def __init__(self, files: SourceFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self.bytes_read = 0
        self.root, self.sizes, self.size, self.faults = files.root, files.sizes, files.size, files.faults
        self.refusal, self.files_in, self.has_folder = files.refusal, files.files_in, files.has_folder
        self.stamp = files.stamp

    def _counted(self, data: bytes) -> bytes:
        with self._lock:  # threads that decode tiles of one picture read at the same time
            self.bytes_read += len(data)
        return data

    def read(self, path: str) -> bytes:
        return self._counted(self._files.read(path))

    def head(self, path: str, size: int) -> bytes:
        return self._counted(self._files.head(path, size))

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        return self._counted(self._files.read_range(path, start, stop))

    def open(self, path: str) -> SourceStream:
        return _CountedStream(self._files.open(path), self._counted)

    def open_ranges(self, path: str) -> SourceRanges:
        return _CountedRanges(self._files.open_ranges(path), self._counted)


class _CountedStream:
    """Stream of a source file whose bytes are counted."""

    def __init__(self, stream: SourceStream, counted: Callable[[bytes], bytes]) -> None:
        self._stream, self._counted, self.close = stream, counted, stream.close

    def read(self, size: int, /) -> bytes:
        return self._counted(self._stream.read(size))


class _CountedRanges(SourceRanges):
    """Ranges of a source file whose bytes are counted."""

    def __init__(self, ranges: SourceRanges, counted: Callable[[bytes], bytes]) -> None:
        self._inner, self._counted, self.size = ranges, counted, ranges.size

    def read(self, start: int, stop: int) -> bytes:
        return self._counted(self._inner.read(start, stop))

    def check_unchanged(self) -> None:
        self._inner.check_unchanged()

    def close(self) -> None:
        self._inner.close()
