"""Interface of files below a root, wherever they are, and their streams for reading and writing."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Protocol, Self

import numpy as np

from halofeed.storage.retry import Fault, Result, fault_of, retry_request
from halofeed.system.checksum import crc32c

CONNECT_SECONDS, SILENT_SECONDS = 10.0, 30.0
"""Timeouts for a connection and for the next byte."""
_READ_BYTES = 1 << 20
_MIN_BYTES_PER_SECOND = 1 << 20
ANY, ABSENT = "any", "absent"
"""Conditions of a write: any current object, or none. A version as the condition requires that version."""


@dataclass(frozen=True, kw_only=True)
class FileInfo:
    """Size and version of a file, and its age by the store's clock; ANY and 0 where no write has a condition."""

    size: int
    version: str
    age_seconds: float


class Entry(NamedTuple):
    """A file of a listing, or a folder, whose size is None; `version` may differ from that of `FileInfo`."""

    path: str
    size: int | None
    version: str = ANY


class MultipartUpload(Protocol):
    """An object that is uploaded in parts and appears once all parts are there."""

    def send(self, data: bytes) -> None:
        """Send the next bytes: 5 MiB or more (S3) and a multiple of 256 KiB (Google); only the last part may differ."""

    def finish(self, data: bytes) -> None:
        """Send the last bytes and create the object; raise ChangedError where it fails the condition."""

    def abort(self) -> None:
        """Delete the parts that were sent."""


class Files:
    """Files below a root: a local folder or an address; from several threads of one process.

    Paths are relative to the root, with slashes; "" is the root itself. A store implements what its users need: web
    servers can only be read, for example. Methods with `_once` in their names send one request and raise the
    client's own error. The others repeat a request after transient faults, and raise StoreError with the file's
    address where the store refuses it or all attempts fail.

    Attributes:
        root: the folder or address, without secrets.
        endpoint: address of the server, for messages; None where the root says it.
        is_conditional: whether writes compare the current object with the expected one; then conversions take a lease.
        lists_folders: whether `entries` can list one folder without those below it.
    """

    root = ""
    endpoint: str | None = None
    is_conditional = False
    lists_folders = True

    def at(self, root: str) -> Self:
        """Return the files below another root, without a slash at its end, by the same client."""
        files = copy.copy(self)
        files.root = root
        return files

    def address(self, path: str) -> str:
        """Return the address of a file, for messages."""
        return f"{self.root}/{path}" if path else self.root

    def fault_of(self, error: Exception) -> Fault:
        """Return the meaning of an error of a single request."""
        return fault_of(error)

    def retried(self, path: str, act: Callable[[], Result]) -> Result:
        """Return what a single request returns; see `retry_request`."""
        return retry_request(self.address(path), act, self.fault_of)

    def read_once(
        self, path: str, start: int, stop: int | None, seconds: float | None = None
    ) -> bytes | bytearray:
        """Read as `read` does.

        Args:
            path: path of the file.
            start: first byte.
            stop: the byte after the last one; None: all.
            seconds: timeout for one of many concurrent ranges, for which the fastest way is taken.
        """
        raise NotImplementedError

    def stat_once(self, path: str) -> FileInfo | None:
        """Stat as `stat` does; None for an unknown size."""
        raise NotImplementedError

    def entries_once(self, folder: str, page: str, *, deep: bool) -> tuple[Iterable[Entry], str]:
        """Return a page of `entries`, and the name of the next one; "" is the first page, and none after the last."""
        raise NotImplementedError

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes from `start` to `stop`, fewer at the file's end; raise FileNotFoundError without one."""
        if stop is not None and stop <= start:
            return b""
        return bytes(self.retried(path, lambda: self.read_once(path, start, stop)))

    def open(self, path: str) -> Any:
        """Return a stream that reads a file in order; the first read may raise FileNotFoundError."""
        return ObjectReader(self, path)

    def open_ranges(self, path: str) -> FileRanges:
        """Return a reader of ranges of one file, which stays open; a local file raises FileNotFoundError if absent."""
        return FileRanges(self, path)

    def stat(self, path: str) -> FileInfo | None:
        """Return the size, version and age of a file; None where there is none."""
        try:
            return self.retried(path, lambda: self.stat_once(path))
        except FileNotFoundError:
            return None

    def entries(self, folder: str = "", *, deep: bool = True) -> Iterator[Entry]:
        """Yield the files below a folder; if not `deep`, those directly in it and its folders."""
        page = ""
        while True:
            get = functools.partial(self.entries_once, folder, page, deep=deep)
            found, page = self.retried(folder, get)
            # An object whose name ends with a slash stands for an empty folder in consoles of stores.
            yield from (entry for entry in found if entry.path and not entry.path.endswith("/"))
            if not page:
                return

    def write(self, path: str, data: bytes, expected: str = ANY) -> str:
        """Write a file atomically and return its version; raise ChangedError where it fails the condition."""
        raise NotImplementedError

    def start_upload(self, path: str, expected: str = ANY) -> MultipartUpload:
        """Start to write a file in parts."""
        raise NotImplementedError

    def copy_from(self, source: Files, source_path: str, path: str) -> None:
        """Copy a file from another root of the same store."""
        raise NotImplementedError

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; ignore missing ones."""
        raise NotImplementedError

    def abort_uploads(self) -> None:
        """Delete the parts of unfinished uploads."""


class FileRanges:
    """Reader of ranges of one file by requests, from several threads.

    Attributes:
        size: bytes of the file; None if the store does not tell.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files, self._path = files, path
        self._found = files.stat(path)
        self.size = None if self._found is None else self._found.size

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to `stop`, fewer at the file's end."""
        return self._files.read(self._path, start, stop)

    def is_unchanged(self) -> bool:
        """Return whether the file still has the size and the version that it had first, as far as the store tells."""
        if self._found is None:
            return True
        now = self._files.stat(self._path)
        return now is not None and (now.size, now.version) == (self._found.size, self._found.version)

    def close(self) -> None:
        """Release the file."""


def seconds_for(size: int) -> float:
    """Return the timeout of a request for `size` bytes."""
    return SILENT_SECONDS + size / _MIN_BYTES_PER_SECOND


def read_body(stream: Any, size: int) -> bytes:
    """Return the body of a response.

    Raises:
        TimeoutError: the body takes longer than its size allows.
    """
    deadline = time.monotonic() + seconds_for(size)
    chunks = []
    while chunk := stream.read(_READ_BYTES):
        chunks.append(chunk)
        if time.monotonic() > deadline:
            raise TimeoutError("the body takes too long")
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def age_seconds(written: datetime, now: str | None) -> float:
    """Return an object's age by the `Date` header of the store's response, or by this machine's clock without one."""
    from email.utils import parsedate_to_datetime  # takes 10 ms to import

    return ((parsedate_to_datetime(now) if now else datetime.now(UTC)) - written).total_seconds()


def split_url(address: str) -> tuple[str, str]:
    """Return the bucket and the key of an address.

    >>> split_url("s3://bucket/cards/1.0.0/manifest.json")
    ('bucket', 'cards/1.0.0/manifest.json')
    """
    bucket, _, key = address.partition("://")[2].partition("/")
    return bucket, key


PART_BYTES: Final = 16 << 20
_PARTS_OF_A_SIZE: Final = 1000
"""Part size doubles after this many parts, because S3 allows 10,000 parts."""


class ObjectReader:
    """Sequential reader of an object, which reads ahead by PART_BYTES."""

    def __init__(self, files: Files, path: str) -> None:
        self._files, self._path = files, path
        self._offset, self._ahead = 0, b""

    def read(self, size: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        # Readers ask for small parts, and each request has the latency of the store.
        if len(self._ahead) < size:
            start = self._offset + len(self._ahead)
            self._ahead += self._files.read(self._path, start, start + max(size, PART_BYTES))
        chunk, self._ahead = self._ahead[:size], self._ahead[size:]
        self._offset += len(chunk)
        return chunk

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the bytes that were read ahead."""
        self._ahead = b""


class ObjectWriter:
    """Writer of an object that appears when it is finished, unless another run has changed the object since.

    It holds two parts in memory: the one that is filled and the one that is sent.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files, self._path = files, path
        current = files.stat(path)
        self._expected = ABSENT if current is None else current.version
        self._pending, self._bytes, self._checksum, self._parts_sent = bytearray(), 0, 0, 0
        self._upload: MultipartUpload | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._sending: Future[None] | None = None

    def write(self, data: Any, /) -> int:
        """Add bytes and upload each complete part in a thread."""
        view = np.frombuffer(data, np.uint8).data
        self._pending += view
        self._bytes += len(view)
        # Strictly more: the last part goes with `finish`, which creates the object.
        while len(self._pending) > (size := PART_BYTES << self._parts_sent // _PARTS_OF_A_SIZE):
            part, self._pending = bytes(self._pending[:size]), self._pending[size:]
            self._send(part)
        return len(view)

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._bytes

    def _send(self, part: bytes) -> None:
        self._checksum = crc32c(part, self._checksum)
        if self._upload is None:
            self._upload = self._files.start_upload(self._path, self._expected)
            # One part at a time, so that memory is bounded; the next one is made meanwhile.
            self._executor = ThreadPoolExecutor(1, "upload")
        assert self._executor is not None
        self._wait()
        self._sending = self._executor.submit(self._upload.send, part)
        self._parts_sent += 1

    def _wait(self) -> None:
        if self._sending is not None:
            sending, self._sending = self._sending, None
            sending.result()

    def finish(self) -> None:
        """Create the object; raise ChangedError where another run wrote or deleted it since this writer was made."""
        last = bytes(self._pending)
        self._checksum, self._pending = crc32c(last, self._checksum), bytearray()
        if self._upload is None:
            self._files.write(self._path, last, self._expected)
            return
        self._wait()
        self._upload.finish(last)
        self._stop_thread()

    def matches_stored(self) -> bool:
        """Return whether the stored object equals the one written here, because another run wrote the same bytes."""
        checksum = 0
        with ObjectReader(self._files, self._path) as reader:
            try:
                while chunk := reader.read(PART_BYTES):
                    checksum = crc32c(chunk, checksum)
            except FileNotFoundError:
                return False
        return checksum == self._checksum

    def abort(self) -> None:
        """Delete the parts that were sent."""
        self._stop_thread()
        if self._upload is not None:
            upload, self._upload = self._upload, None
            upload.abort()

    def _stop_thread(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
