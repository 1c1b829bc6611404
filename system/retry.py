"""The retry loop for requests to stores and servers, with exponential backoff and jitter."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import TypeVar

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 5.0
RETRIED_CLIENT_ERRORS = (408, 425, 429)
"""Client errors (4xx) worth retrying."""

Result = TypeVar("Result")


def retry(
    act: Callable[[], Result],
    is_transient: Callable[[Exception], bool],
    attempts: int,
    *,
    max_seconds: float = math.inf,
    before_retry: Callable[[], object] = lambda: None,
) -> Result:
    """Return what `act` returns, and call it again after a transient error.

    Args:
        act: sends the request.
        is_transient: says whether a later attempt may succeed.
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
            if is_last or not is_transient(error):
                raise
        before_retry()
        time.sleep(backoff_delay(attempt))
    raise AssertionError


def backoff_delay(attempt: int) -> float:
    """Return the pause in seconds after the given attempt, counted from 1; jitter spreads simultaneous clients."""
    longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * (1 << attempt - 1))
    return longest * random.uniform(0.5, 1)  # noqa: S311


def is_final(status: int) -> bool:
    """Return whether an HTTP status is a client error that another attempt would get again."""
    return 400 <= status < 500 and status not in RETRIED_CLIENT_ERRORS
