"""Interface of a store of files, and its objects as readable and writable streams."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol, Self

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
class ObjectInfo:
    """Size and version of an object, and its age by the store's clock; ANY and 0 where no write has a condition."""

    size: int
    version: str
    age_seconds: float


class MultipartUpload(Protocol):
    """An object that is uploaded in parts and appears once all parts are there."""

    def send(self, data: bytes) -> None:
        """Send the next bytes: 5 MiB or more (S3) and a multiple of 256 KiB (Google); only the last part may differ."""

    def finish(self, data: bytes) -> None:
        """Send the last bytes and create the object; raise ChangedError where it fails the condition."""

    def abort(self) -> None:
        """Delete the parts that were sent."""


class ObjectStore:
    """Files by their addresses, from several threads of one process.

    A store implements what its users need: web servers can only be read, for example. Methods without `_once` in
    their names repeat a request after transient faults. They raise StoreError with the object's address where the
    store refuses a request or all attempts fail.

    Attributes:
        endpoint: address of the server, for messages; None where the object's address says it.
        is_conditional: whether writes compare the current object with the expected one; then conversions take a lease.
    """

    endpoint: str | None = None
    is_conditional = False

    def fault_of(self, error: Exception) -> Fault:
        """Return the meaning of an error of a single request."""
        return fault_of(error)

    def retried(self, address: str, act: Callable[[], Result]) -> Result:
        """Return what a single request returns; see `retry_request`."""
        return retry_request(address, act, self.fault_of)

    def read_once(self, address: str, start: int, stop: int | None) -> bytes:
        """Read as `read` does, by a single request that raises the client's own error."""
        raise NotImplementedError

    def stat_once(self, address: str) -> ObjectInfo | None:
        """Stat as `stat` does, by a single request that raises the client's own error; None for an unknown size."""
        raise NotImplementedError

    def read_range_once(self, address: str, start: int, stop: int, seconds: float) -> bytes | bytearray:
        """Read as `read_once` does, in the fastest way for many concurrent readers.

        Args:
            seconds: timeout of the request, as far as the client has one.
        """
        return self.read_once(address, start, stop)

    def read(self, address: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes from `start` to `stop`, fewer at the object's end; raise FileNotFoundError without one."""
        if stop is not None and stop <= start:
            return b""
        return self.retried(address, lambda: self.read_once(address, start, stop))

    def open(self, address: str) -> Any:
        """Return a stream that reads an object in order; the first read may raise FileNotFoundError."""
        return ObjectReader(self, address)

    def stat(self, address: str) -> ObjectInfo | None:
        """Return the size, version and age of an object; None where there is no object."""
        try:
            return self.retried(address, lambda: self.stat_once(address))
        except FileNotFoundError:
            return None

    def write(self, address: str, data: bytes, expected: str = ANY) -> str:
        """Write an object atomically and return its version; raise ChangedError where it fails the condition."""
        raise NotImplementedError

    def start_upload(self, address: str, expected: str = ANY) -> MultipartUpload:
        """Start to write an object in parts."""
        raise NotImplementedError

    def listed(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Return the address and size of every object whose address has this prefix."""
        return ((address, size) for address, size, _ in self.versions(prefix))

    def versions(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        """Return address, size and version of the same objects; this version may differ from that of `stat`."""
        raise NotImplementedError

    def files_in(self, folder: str, inside: str = "") -> dict[str, int]:
        """Return the sizes of the files directly in a folder and in its folder `inside`, by path below the folder."""
        prefix = f"{folder}/"
        found = {address[len(prefix) :]: size for address, size in self.listed(prefix)}
        return {
            name: size
            for name, size in found.items()
            if name and ("/" not in name or (inside and name.startswith(f"{inside}/")))
        }

    def list_dir(self, prefix: str) -> Iterator[tuple[str, int | None]] | None:
        """Yield the objects directly in a folder with their sizes, and its folders with size None.

        A folder's address and `prefix` end with a slash. Return None where the store cannot list one folder.
        """
        return None

    def copy(self, source: str, target: str) -> None:
        """Copy an object within this store."""
        raise NotImplementedError

    def delete(self, addresses: Iterable[str]) -> None:
        """Delete objects; ignore missing ones."""
        raise NotImplementedError

    def abort_uploads(self, prefix: str) -> None:
        """Delete the parts of unfinished uploads."""


def read_body(stream: Any, size: int) -> bytes:
    """Return the body of a response.

    Raises:
        TimeoutError: the body takes longer than its size allows.
    """
    deadline = time.monotonic() + SILENT_SECONDS + size / _MIN_BYTES_PER_SECOND
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

    def __init__(self, store: ObjectStore, address: str) -> None:
        self._store, self._address = store, address
        self._offset, self._ahead = 0, b""

    def read(self, size: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        if len(self._ahead) < size:
            start = self._offset + len(self._ahead)
            self._ahead += self._store.read(self._address, start, start + max(size, PART_BYTES))
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

    def __init__(self, store: ObjectStore, address: str) -> None:
        self._store, self._address = store, address
        current = store.stat(address)
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
            self._upload = self._store.start_upload(self._address, self._expected)
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
            self._store.write(self._address, last, self._expected)
            return
        self._wait()
        self._upload.finish(last)
        self._stop_thread()

    def matches_stored(self) -> bool:
        """Return whether the stored object equals the one written here, because another run wrote the same bytes."""
        checksum = 0
        with ObjectReader(self._store, self._address) as reader:
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
