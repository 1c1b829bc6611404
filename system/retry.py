"""How long is waited before a request to a store is made again?"""

from __future__ import annotations

import random

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 5.0
WORTH_ANOTHER = (408, 425, 429)
"""Of the final ones those that may be answered otherwise later."""


def backoff_delay(attempt: int) -> float:
    """Seconds before an attempt, 1 and on, so that those who failed together do not come back together."""
    longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * (1 << attempt - 1))
    return longest * random.uniform(0.5, 1)  # noqa: S311


def is_final(status: int) -> bool:
    """Whether a server that answered with this number would answer so again."""
    return 400 <= status < 500 and status not in WORTH_ANOTHER
