"""Do the limits of this process leave room for the libraries of a command?

NumPy, OpenCV, Arrow and XLA do not raise where memory ends while they are loaded: they crash, abort, or stop the
process as Ctrl-C would. So a limit that is known to be too small is refused before any of them is loaded.
"""

from __future__ import annotations

import os

from halofeed.errors import HalofeedError
from halofeed.system.resource_errors import LIMITS, limit_of

_LEAST_MIB = {"AS": 384, "DATA": 192}
"""By the name of the limit; see `least memory` in docs/decisions.md for how they were measured."""
_LEAST_MIB_OF = {
    "convert": {"AS": 832, "DATA": 384},
    "configs": {"AS": 640, "DATA": 192},
    **{name: {"AS": 3072, "DATA": 1024} for name in ("train", "evaluate", "predict", "export", "demo")},
}


def check_least_memory(command: str) -> None:
    """Refuse to begin where a limit of this process (`ulimit -v`, `ulimit -d`) is below what the command loads.

    Raises:
        HalofeedError: names the limit and what is needed.
    """
    # A buffer and a stack for each processor take memory, and the few matrices here are small.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name, least_mib in _LEAST_MIB_OF.get(command, _LEAST_MIB).items():
        limit = limit_of(name)
        if limit is not None and limit >> 20 < least_mib:
            raise HalofeedError(
                f"too little memory: {LIMITS[name]} is {limit >> 20:,} MiB, and the libraries alone take up to "
                f"{least_mib:,} MiB; raise the limit"
            )
