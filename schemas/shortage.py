"""What was short where memory, threads or processes could not be had, and what helps?"""

from __future__ import annotations

import errno

try:
    import resource
except ImportError:  # not a Unix
    resource = None  # type: ignore[assignment]

LIMITS = {"AS": "ulimit -v", "DATA": "ulimit -d", "NPROC": "ulimit -u"}
_CURE = "take fewer --workers and --threads, or a smaller batch, or raise the limit"


def shortage(error: BaseException) -> str | None:
    """In words, where an error says that memory, a thread or a process was not to be had; else None.

    >>> shortage(ValueError("x")) is None
    True
    >>> str(shortage(RuntimeError("can't start new thread"))).startswith("no further thread could be started")
    True
    """
    unmapped = isinstance(error, ImportError) and "failed to map segment" in str(error)
    refused = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if isinstance(error, MemoryError) or unmapped or refused:
        return f"too little memory{_limits('AS', 'DATA')}; {_CURE}"
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return f"no further thread could be started{_limits('NPROC', 'AS')}; {_CURE}"
    if isinstance(error, BlockingIOError) and error.errno == errno.EAGAIN:
        return f"no further process could be started{_limits('NPROC', 'AS')}; {_CURE}"
    return None


def limit_of(name: str) -> int | None:
    """One of this process's limits, by its name in `LIMITS`: bytes or a count; None where there is none."""
    if resource is None:
        return None
    limit: int = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0]
    return None if limit == resource.RLIM_INFINITY else limit


def likely_limits() -> str:
    """The limits of this process by which a process may end without a word, in brackets; none where none is set."""
    return _limits("AS", "DATA", "NPROC")


def _limits(*names: str) -> str:
    """The limits of this process that may be the reason, as `ulimit` names them."""
    found = []
    for name in names:
        if (limit := limit_of(name)) is not None:
            found.append(f"{LIMITS[name]}: {f'{limit:,}' if name == 'NPROC' else f'{limit >> 20:,} MiB'}")
    return f" (limits of this process: {', '.join(found)})" if found else ""
