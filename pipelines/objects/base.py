"""Interface of an object store, the retry of its requests, and objects as readable and writable streams."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any, Final, NoReturn, Protocol, Self, TypeVar

import numpy as np

from halofeed.errors import HalofeedError, StoreError
from halofeed.system.addresses import printable_cause
from halofeed.system.checksum import crc32c
from halofeed.system.retry import retry

REQUEST_ATTEMPTS = 8
"""Attempts of one request, with about 15 s of pauses between them."""
CONNECT_SECONDS, SILENT_SECONDS = 10.0, 30.0
"""Timeouts for a connection and for the next byte."""
MOST_SECONDS = 300.0
"""Time after which a failed request is not repeated."""
READ_AT_ONCE = 1 << 20
Result = TypeVar("Result")
ANY, ABSENT = "any", "absent"
"""Conditions of a write: any current object, or none. A version as the condition requires that version."""


@dataclass(frozen=True, kw_only=True)
class ObjectInfo:
    """Size and version of an object, and its age by the store's clock."""

    size: int
    version: str
    age_seconds: float


class ChangedError(StoreError):
    """Another run has written or deleted the object since it was read."""


class MultipartUpload(Protocol):
    """An object that is uploaded in parts and appears once all parts are there."""

    def send(self, data: bytes) -> None:
        """Send the next bytes: 5 MiB or more, and a multiple of 256 KiB; only the last part may be smaller."""

    def finish(self, data: bytes) -> None:
        """Send the last bytes and create the object; raise ChangedError where it fails the condition."""

    def abort(self) -> None:
        """Delete the parts that were sent."""


class ObjectStore(Protocol):
    """Objects by their addresses, from several threads of one process.

    Every method raises StoreError with the object's address where the store refuses a request or all attempts fail.
    """

    def read(self, address: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes from `start` to `stop`, fewer at the object's end; raise FileNotFoundError without one."""

    def stat(self, address: str) -> ObjectInfo | None:
        """Return the size, version and age of an object; None where there is no object."""

    def write(self, address: str, data: bytes, expected: str = ANY) -> str:
        """Write an object atomically and return its version; raise ChangedError where it fails the condition."""

    def start_upload(self, address: str, expected: str = ANY) -> MultipartUpload:
        """Start to write an object in parts."""

    def listed(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Return the address and size of every object whose address has this prefix."""
        return ((address, size) for address, size, _ in self.versions(prefix))

    def versions(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        """Return address, size and version of the same objects; each write changes the version."""

    def list_dir(self, prefix: str) -> Iterator[tuple[str, int | None]] | None:
        """Yield the objects directly in a folder with their sizes, and its folders with size None.

        A folder's address and `prefix` end with a slash. Return None where the store can list only recursively.
        """

    def copy(self, source: str, target: str) -> None:
        """Copy an object within this store."""

    def delete(self, addresses: Iterable[str]) -> None:
        """Delete objects; ignore missing ones."""

    def abort_uploads(self, prefix: str) -> None:
        """Delete the parts of unfinished uploads."""


class Fault(Enum):
    """Meaning of an error of a store's client."""

    ABSENT = "there is no such object"
    BUCKET = "there is no such bucket"
    CHANGED = "it is not the expected version"
    CREDENTIALS = "the store refuses the credentials"
    FINAL = "another attempt would fail too"
    TRANSIENT = "another attempt may succeed"


def retry_request(address: str, act: Callable[[], Result], fault_of: Callable[[Exception], Fault]) -> Result:
    """Return what a request returns, and repeat it after transient faults.

    Raises:
        FileNotFoundError: the object does not exist.
        ChangedError: the object is not the expected version.
        StoreError: the store refuses the request, or no attempt succeeded.
    """
    attempts = 0

    def attempt() -> Result:
        nonlocal attempts
        attempts += 1
        return act()

    def is_transient(error: Exception) -> bool:
        return not isinstance(error, HalofeedError) and fault_of(error) is Fault.TRANSIENT

    try:
        return retry(attempt, is_transient, REQUEST_ATTEMPTS, max_seconds=MOST_SECONDS)
    except HalofeedError:
        raise
    except Exception as error:
        _refuse(address, fault_of(error), error, attempts)


def _refuse(address: str, fault: Fault, error: Exception, attempts: int) -> NoReturn:
    problem = f"{type(error).__name__}: {error}".rstrip(": ")
    cause = printable_cause(error)
    if fault is Fault.ABSENT:
        raise FileNotFoundError(address) from cause
    if fault is Fault.CHANGED:
        raise ChangedError(f"{address}: another run has written or deleted it meanwhile") from cause
    reasons = {
        Fault.BUCKET: "there is no such bucket; make it, or name another",
        Fault.CREDENTIALS: f"the store refuses it: {problem}; see whether the credentials are still valid and allow "
        "it (docs/stores.md), and run again",
        Fault.FINAL: f"the store refuses it: {problem}",
        Fault.TRANSIENT: f"the store did not answer as it should in {attempts} attempts; the last one: {problem}; see "
        "whether it can be reached, and run again",
    }
    raise StoreError(f"{address}: {reasons[fault]}") from cause


def read_body(stream: Any, size: int) -> bytes:
    """Return the body of a response.

    Raises:
        TimeoutError: the body takes longer than its size allows.
    """
    deadline = time.monotonic() + SILENT_SECONDS + size / READ_AT_ONCE
    chunks = []
    while chunk := stream.read(READ_AT_ONCE):
        chunks.append(chunk)
        if time.monotonic() > deadline:
            raise TimeoutError("the body takes too long")
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def age_seconds(written: datetime, now: str | None) -> float:
    """Return an object's age by the `Date` header of the store's response, or by this machine's clock without one."""
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
    """Sequential reader of an object."""

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

    Memory: two parts.
    """

    def __init__(self, store: ObjectStore, address: str) -> None:
        self._store, self._address = store, address
        current = store.stat(address)
        self._expected = ABSENT if current is None else current.version
        self._pending, self._bytes, self._checksum, self._sent = bytearray(), 0, 0, 0
        self._parts: MultipartUpload | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._sending: Future[None] | None = None

    def write(self, data: Any, /) -> int:
        """Add bytes and upload each complete part in a thread."""
        view = np.frombuffer(data, np.uint8).data
        self._pending += view
        self._bytes += len(view)
        while len(self._pending) > (size := PART_BYTES << self._sent // _PARTS_OF_A_SIZE):
            part, self._pending = bytes(self._pending[:size]), self._pending[size:]
            self._send(part)
        return len(view)

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._bytes

    def _send(self, part: bytes) -> None:
        self._checksum = crc32c(part, self._checksum)
        if self._parts is None:
            self._parts = self._store.start_upload(self._address, self._expected)
            self._thread = ThreadPoolExecutor(1, "upload")
        assert self._thread is not None
        self._wait()
        self._sending = self._thread.submit(self._parts.send, part)
        self._sent += 1

    def _wait(self) -> None:
        if self._sending is not None:
            sending, self._sending = self._sending, None
            sending.result()

    def finish(self) -> None:
        """Create the object; raise ChangedError where another run wrote or deleted it since this writer was made."""
        last = bytes(self._pending)
        self._checksum, self._pending = crc32c(last, self._checksum), bytearray()
        if self._parts is None:
            self._store.write(self._address, last, self._expected)
            return
        self._wait()
        self._parts.finish(last)
        self._end()

    def is_there(self) -> bool:
        """Return whether the stored object equals the one written here, because another run wrote the same bytes."""
        checksum = 0
        with ObjectReader(self._store, self._address) as reader:
            try:
                while chunk := reader.read(PART_BYTES):
                    checksum = crc32c(chunk, checksum)
            except FileNotFoundError:
                return False
        self.abort()
        return checksum == self._checksum

    def abort(self) -> None:
        """Delete the parts that were sent."""
        self._end()
        if self._parts is not None:
            parts, self._parts = self._parts, None
            parts.abort()

    def _end(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
