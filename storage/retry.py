"""The retry of requests to stores and servers, and the meaning of their errors."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from enum import Enum
from typing import Final, NoReturn, TypeVar

from halofeed.system.addresses import printable_cause
from halofeed.system.errors import HalofeedError, StoreError

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 5.0
REQUEST_ATTEMPTS = 8
"""Attempts of one request, with 8 to 16 s of pauses between them."""
MAX_SECONDS = 300.0
"""Time after which a failed request is not repeated."""
_RETRIED_CLIENT_ERRORS = (408, 425, 429)
"""Client errors (4xx) worth retrying: timeout, too early, too many requests (RFC 9110, RFC 8470, RFC 6585)."""
_CONNECTION_ERRORS = frozenset(
    (
        *("OSError", "HTTPException", "HTTPError"),  # Python, http.client, urllib3
        *("HTTPClientError", "ConnectionError", "IncompleteReadError", "ClientError"),  # botocore
        "TransportError",  # google.auth
    )
)
"""Names of the classes of refused, reset or cut connections. Other errors of a client mean wrong arguments."""

Result = TypeVar("Result")


class Fault(Enum):
    """Meaning of an error of a store's client."""

    ABSENT = "there is no such object"
    BUCKET = "there is no such bucket"
    CHANGED = "it is not the expected version"
    CREDENTIALS = "the store refuses the credentials"
    FINAL = "another attempt would fail too"
    TRANSIENT = "another attempt may succeed"


_FAULTS: Final = {
    404: Fault.ABSENT,
    410: Fault.ABSENT,
    412: Fault.CHANGED,
    401: Fault.CREDENTIALS,
    403: Fault.CREDENTIALS,
}
"""Faults by HTTP status; the other ones depend on the class of the status."""


class ChangedError(StoreError):
    """Another run has written or deleted the object since it was read."""


def fault_of(error: Exception, status: int = 0) -> Fault:
    """Return the meaning of an error, by the HTTP status of the response or, without one, by the error's class.

    >>> fault_of(ConnectionResetError()).name, fault_of(OSError(), 403).name, fault_of(OSError(), 503).name
    ('TRANSIENT', 'CREDENTIALS', 'TRANSIENT')
    """
    if status:
        return _fault_of_status(status)
    if isinstance(error, FileNotFoundError):
        return Fault.ABSENT
    if isinstance(error, PermissionError):
        return Fault.CREDENTIALS
    # By name: the clients are imported only where they are used.
    named = {kind.__name__ for kind in type(error).__mro__}
    return Fault.TRANSIENT if named & _CONNECTION_ERRORS else Fault.FINAL


def _fault_of_status(status: int) -> Fault:
    if status in _FAULTS:
        return _FAULTS[status]
    is_final = 400 <= status < 500 and status not in _RETRIED_CLIENT_ERRORS
    return Fault.FINAL if is_final else Fault.TRANSIENT


def retry(
    act: Callable[[], Result],
    fault_of: Callable[[Exception], Fault],
    attempts: int,
    *,
    max_seconds: float = math.inf,
    before_retry: Callable[[], object] = lambda: None,
) -> Result:
    """Return what `act` returns, and call it again after a transient fault.

    Args:
        act: sends the request; an error of halofeed's is final.
        fault_of: returns the meaning of any other error.
        attempts: maximum number of calls.
        max_seconds: time after which a failed call is final.
        before_retry: called before each further attempt.

    Raises:
        Exception: the error of the last attempt.
    """
    start = time.monotonic()
    for attempt in range(1, attempts + 1):
        try:
            return act()
        except Exception as error:
            is_last = attempt == attempts or time.monotonic() - start > max_seconds
            if is_last or isinstance(error, HalofeedError) or fault_of(error) is not Fault.TRANSIENT:
                raise
        before_retry()
        time.sleep(backoff_delay(attempt))
    raise AssertionError


def backoff_delay(attempt: int) -> float:
    """Return the pause in seconds after the given attempt, counted from 1; jitter spreads simultaneous clients."""
    longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * (1 << attempt - 1))
    return longest * random.uniform(0.5, 1)  # noqa: S311


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

    try:
        return retry(attempt, fault_of, REQUEST_ATTEMPTS, max_seconds=MAX_SECONDS)
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
