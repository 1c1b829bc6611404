"""What a store of objects can do for a conversion, and how a request to it is repeated: `ObjectStore`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any, NoReturn, Protocol, TypeVar

from halofeed.schemas.address import printable_cause
from halofeed.schemas.errors import HalofeedError, StoreError
from halofeed.schemas.repeating import pause_seconds

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
        time.sleep(pause_seconds(attempt))
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
