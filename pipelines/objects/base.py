"""What a store of objects can do for a conversion, and how a request to it is repeated: `ObjectStore`.

An object as a stream: read by ranges, or written in parts while it is made.
"""

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
from halofeed.system.retry import backoff_delay

ATTEMPTS = 8
"""Of a request, with some fifteen seconds of pauses between them."""
CONNECT_SECONDS, SILENT_SECONDS = 10.0, 30.0
"""How long is waited for a connection, and for the next byte."""
MOST_SECONDS = 300.0
"""After which a request that fails is not made again."""
READ_AT_ONCE = 1 << 20
Result = TypeVar("Result")
ANY, ABSENT = "any", "absent"
"""What a write expects to stand under the name: whatever it is, nothing; else a version."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What is known of an object; `age_seconds` is by the store's own clock."""

    size: int
    version: str
    age_seconds: float


class ChangedError(StoreError):
    """Another has written or deleted the object meanwhile."""


class Parts(Protocol):
    """An object that is sent in parts, and is there once all of them are."""

    def send(self, data: bytes) -> None:
        """The next bytes; of every part but the last a multiple of 256 KiB, and 5 MiB or more."""

    def finish(self, data: bytes) -> None:
        """The last bytes; ChangedError where what stands is not what was expected."""

    def abort(self) -> None:
        """Leave nothing of it."""


class ObjectStore(Protocol):
    """Objects by their addresses; safe to use from several threads of one process.

    Every method raises StoreError, which names the object, where the store refuses, or does not answer properly in
    `ATTEMPTS` attempts.
    """

    def read(self, address: str, start: int = 0, stop: int | None = None) -> bytes:
        """An object's bytes from `start` to before `stop`, fewer where it ends; FileNotFoundError."""

    def stat(self, address: str) -> Stored | None:
        """What is known of an object; None where there is none."""

    def write(self, address: str, data: bytes, expected: str = ANY) -> str:
        """Write an object, whole or not at all; its version. ChangedError: what stood was not what was expected."""

    def parts(self, address: str, expected: str = ANY) -> Parts:
        """Begin to write an object in parts."""

    def listed(self, prefix: str) -> Iterator[tuple[str, int]]:
        """The address and size of every object whose address begins so."""

    def versions(self, prefix: str) -> Iterator[tuple[str, int, str]]:
        """The same, each with its version, which is another once the object was written again."""

    def straight(self, prefix: str) -> Iterator[tuple[str, int | None]] | None:
        """What lies straight in the folder whose address, with a slash, is `prefix`: objects with sizes, and folders.

        A folder's address ends with a slash, and its size is None. None in place of all of it where the store cannot
        tell without going through everything below.
        """

    def copy(self, source: str, target: str) -> None:
        """Write an object that is the same as another one of this store."""

    def delete(self, addresses: Iterable[str]) -> None:
        """Delete objects; those that are not there are no error."""

    def abort_uploads(self, prefix: str) -> None:
        """Leave nothing of objects that were begun in parts and not finished."""


class Fault(Enum):
    """What an error of a store's client means."""

    ABSENT = "there is no such object"
    BUCKET = "there is no such bucket"
    CHANGED = "it is not what was expected"
    CREDENTIALS = "the store does not let you"
    FINAL = "it would be answered so again"
    PASSING = "it may be answered otherwise later"


def repeated(address: str, act: Callable[[], Result], fault_of: Callable[[Exception], Fault]) -> Result:
    """What a request gives, in as many attempts as it takes.

    Raises:
        FileNotFoundError: there is no such object.
        ChangedError: what stands there is not what was expected.
        StoreError: the store refuses, or did not answer properly any time.
    """
    begun = time.monotonic()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return act()
        except HalofeedError:
            raise
        except Exception as error:
            fault = fault_of(error)
            late = attempt == ATTEMPTS or time.monotonic() - begun > MOST_SECONDS
            if fault is not Fault.PASSING or late:
                _refuse(address, fault, error, attempt)
        time.sleep(backoff_delay(attempt))
    raise AssertionError


def _refuse(address: str, fault: Fault, error: Exception, attempts: int) -> NoReturn:
    problem = f"{type(error).__name__}: {error}".rstrip(": ")
    cause = printable_cause(error)
    if fault is Fault.ABSENT:
        raise FileNotFoundError(address) from cause
    if fault is Fault.CHANGED:
        raise ChangedError(f"{address}: another run has written or deleted it meanwhile") from cause
    told = {
        Fault.BUCKET: "there is no such bucket; make it, or name another",
        Fault.CREDENTIALS: f"the store refuses it: {problem}; see whether the credentials are still valid and allow "
        "it (docs/stores.md), and run again",
        Fault.FINAL: f"the store refuses it: {problem}",
        Fault.PASSING: f"the store did not answer as it should in {attempts} attempts; the last one: {problem}; see "
        "whether it can be reached, and run again",
    }
    raise StoreError(f"{address}: {told[fault]}") from cause


def whole(stream: Any, size: int) -> bytes:
    """What a response's body gives, within the time that so many bytes may take.

    Raises:
        OSError: it takes longer.
    """
    deadline = time.monotonic() + SILENT_SECONDS + size / READ_AT_ONCE
    pieces = []
    while piece := stream.read(READ_AT_ONCE):
        pieces.append(piece)
        if time.monotonic() > deadline:
            raise TimeoutError("the body takes too long")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def age_seconds(written: datetime, now: str | None) -> float:
    """How old an object is by the store's clock, the date of its answer; by this machine's where that is missing."""
    return ((parsedate_to_datetime(now) if now else datetime.now(UTC)) - written).total_seconds()


def divided(address: str) -> tuple[str, str]:
    """An address's bucket and key.

    >>> divided("s3://bucket/cards/1.0.0/manifest.json")
    ('bucket', 'cards/1.0.0/manifest.json')
    """
    bucket, _, key = address.partition("://")[2].partition("/")
    return bucket, key


PART_BYTES: Final = 16 << 20
_PARTS_OF_A_SIZE: Final = 1000
"""After so many parts the next ones are twice as large: S3 takes ten thousand."""


class ObjectReader:
    """Reads an object in order."""

    def __init__(self, store: ObjectStore, address: str) -> None:
        self._store, self._address = store, address
        self._offset, self._ahead = 0, b""

    def read(self, size: int) -> bytes:
        """The next bytes, fewer at the end."""
        if len(self._ahead) < size:
            start = self._offset + len(self._ahead)
            self._ahead += self._store.read(self._address, start, start + max(size, PART_BYTES))
        piece, self._ahead = self._ahead[:size], self._ahead[size:]
        self._offset += len(piece)
        return piece

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what was read ahead."""
        self._ahead = b""


class ObjectWriter:
    """Takes the bytes of an object, which is there once it is finished, and only where nobody wrote it meanwhile.

    Memory: two parts.
    """

    def __init__(self, store: ObjectStore, address: str) -> None:
        self._store, self._address = store, address
        stands = store.stat(address)
        self._expected = ABSENT if stands is None else stands.version
        self._pending, self._bytes, self._checksum, self._sent = bytearray(), 0, 0, 0
        self._parts: Parts | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._sending: Future[None] | None = None

    def write(self, data: Any, /) -> int:
        """Take the next bytes."""
        view = np.frombuffer(data, np.uint8).data
        self._pending += view
        self._bytes += len(view)
        while len(self._pending) > (size := PART_BYTES << self._sent // _PARTS_OF_A_SIZE):
            part, self._pending = bytes(self._pending[:size]), self._pending[size:]
            self._send(part)
        return len(view)

    def tell(self) -> int:
        """How many bytes were taken."""
        return self._bytes

    def _send(self, part: bytes) -> None:
        self._checksum = crc32c(part, self._checksum)
        if self._parts is None:
            self._parts = self._store.parts(self._address, self._expected)
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
        """Have the object be there; ChangedError where another wrote or deleted it meanwhile."""
        last = bytes(self._pending)
        self._checksum, self._pending = crc32c(last, self._checksum), bytearray()
        if self._parts is None:
            self._store.write(self._address, last, self._expected)
            return
        self._wait()
        self._parts.finish(last)
        self._end()

    def is_there(self) -> bool:
        """Whether what stands is what was written here, by another that made the same."""
        checksum = 0
        with ObjectReader(self._store, self._address) as reader:
            try:
                while piece := reader.read(PART_BYTES):
                    checksum = crc32c(piece, checksum)
            except FileNotFoundError:
                return False
        self.abort()
        return checksum == self._checksum

    def abort(self) -> None:
        """Leave nothing of it."""
        self._end()
        if self._parts is not None:
            parts, self._parts = self._parts, None
            parts.abort()

    def _end(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
