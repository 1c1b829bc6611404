"""Messages for errors of the operating system: the step, the path, the reason and a fix."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from halofeed.system.errors import HalofeedError

try:
    import resource
except ImportError:  # not a Unix
    resource = None  # type: ignore[assignment]

_LIMIT_COMMANDS = {"AS": "ulimit -v", "DATA": "ulimit -d", "NPROC": "ulimit -u"}
"""Limits of a process (RLIMIT_...) and the shell command that sets each."""
_MIN_MIB = {"AS": 384, "DATA": 192}
"""Smallest limits with which a command can load its libraries; docs/decisions.md (`least memory`) has the figures."""
_MIN_MIB_BY_COMMAND = {
    "convert": {"AS": 832, "DATA": 384},
    "configs": {"AS": 640, "DATA": 192},
    **{name: {"AS": 3072, "DATA": 1024} for name in ("train", "evaluate", "predict", "export", "demo")},
}
_LESS_MEMORY = (
    "raise the limit, or ask for less: of convert fewer --workers and --threads, of train, show and bench a smaller "
    "--batch-size"
)
_MAX_CHAIN = 20
_AGAIN = "then run the same command again"
_NETWORK = f"Check the network and the server, {_AGAIN}"
_RIGHTS = f"Change its permissions (ls -ld shows them) or choose another path, {_AGAIN}"
FIXES = {
    errno.EIO: f"The disk failed. Check it (dmesg shows its errors) or choose another one, {_AGAIN}",
    errno.ENOSPC: f"Free some space or choose a folder on another disk, {_AGAIN}",
    errno.EDQUOT: f"Delete files or have the quota raised, {_AGAIN}",
    errno.EFBIG: f"Raise the limit of file sizes (ulimit -f) or choose a file system without this limit, {_AGAIN}",
    errno.EMFILE: f"Raise the limit of open files (ulimit -n shows it), {_AGAIN}",
    errno.ENFILE: f"Close other programs: the system has too many open files, {_AGAIN}",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: f"Choose a folder on a file system that can be written, {_AGAIN}",
    errno.EBUSY: f"Stop the program that uses it (fuser -v shows it) or unmount what is mounted there, {_AGAIN}",
    errno.ETXTBSY: f"Stop the program that uses it (fuser -v shows it), {_AGAIN}",
    errno.EINTR: "Run the same command again",
    errno.ESTALE: f"Mount the network file system again, {_AGAIN}",
    errno.ENOTCONN: f"Mount the file system again, {_AGAIN}",
    errno.ENAMETOOLONG: f"Choose a shorter path, {_AGAIN}",
    errno.ELOOP: f"Remove the symbolic link or name its target, {_AGAIN}",
    errno.ENOENT: f"Check whether another program removed it, {_AGAIN}",
    errno.EEXIST: f"Remove it or choose another path, {_AGAIN}",
    errno.ENOTEMPTY: f"Remove what is in it or choose another path, {_AGAIN}",
    errno.ENOTDIR: f"Remove the file of this name or choose another path, {_AGAIN}",
    errno.EISDIR: f"Remove the folder of this name or choose another path, {_AGAIN}",
    errno.EXDEV: f"Choose a folder on one file system, {_AGAIN}",
    errno.ENOLCK: f"Choose a folder on a file system with locks, such as a local disk, {_AGAIN}",
    errno.EOPNOTSUPP: f"Choose a folder on a local disk, {_AGAIN}",
    errno.ENOSYS: f"Choose a folder on a local disk, {_AGAIN}",
    **dict.fromkeys(
        (
            *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.ETIMEDOUT),
            *(errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EPIPE),
        ),
        _NETWORK,
    ),
}
"""Fix for each error number."""


def check_least_memory(command: str) -> None:
    """Refuse a command if a limit of this process (`ulimit -v`, `ulimit -d`) is too small for its libraries.

    NumPy, OpenCV, Arrow and XLA raise no error when memory ends while they load: they crash, abort, or stop the process
    like Ctrl-C. So the command line calls this before it loads any of them.

    Raises:
        HalofeedError: names the limit and the memory that is needed.
    """
    # OpenBLAS allocates a buffer and a stack per processor, and the few matrices here are small.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name, min_mib in _MIN_MIB_BY_COMMAND.get(command, _MIN_MIB).items():
        limit = resource_limit(name)
        if limit is not None and limit >> 20 < min_mib:
            raise HalofeedError(
                f"too little memory: {_LIMIT_COMMANDS[name]} is {limit >> 20:,} MiB, and the libraries alone take up "
                f"to {min_mib:,} MiB; raise the limit"
            )


def resource_error(error: BaseException) -> str | None:
    """Return a message if an error says that memory, a thread or a process was refused; else None.

    >>> resource_error(ValueError("x")) is None
    True
    >>> str(resource_error(RuntimeError("can't start new thread"))).startswith("no further thread could be started")
    True
    """
    # The dynamic loader reports this for a library if no address space is left.
    unmapped = isinstance(error, ImportError) and "failed to map segment" in str(error)
    refused = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if isinstance(error, MemoryError) or unmapped or refused:
        return f"too little memory{_limits('AS', 'DATA')}; {_LESS_MEMORY}"
    # CPython raises a plain RuntimeError with this text for a failed pthread_create.
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return f"no further thread could be started{_limits('NPROC', 'AS')}; {_LESS_MEMORY}"
    # fork(2) fails so at the limit of processes (RLIMIT_NPROC).
    if isinstance(error, BlockingIOError) and error.errno == errno.EAGAIN:
        return f"no further process could be started{_limits('NPROC', 'AS')}; {_LESS_MEMORY}"
    return None


@contextmanager
def error_context(step: str, path: str | os.PathLike[str] = "") -> Iterator[None]:
    """Add the step, and a path if it has none, to an OSError that leaves the block.

    >>> try:
    ...     with error_context("cannot write the report", "report.html"):
    ...         raise OSError(errno.ENOSPC, "No space left on device")
    ... except OSError as error:
    ...     print(system_error(error))
    cannot write the report report.html: No space left on device. Free some space or choose a folder on another disk, \
then run the same command again
    """
    try:
        yield
    except OSError as error:
        if path and error.filename is None and error.errno is not None:
            error.filename = os.fspath(path)
        error.add_note(step)
        raise


def system_error(error: OSError) -> str | None:
    """Return the step, path, reason and fix of an error; None if it has no error number.

    Args:
        error: the error; its first note is the step that `error_context` has added.

    >>> system_error(OSError(errno.EBUSY, "Device or resource busy", "set/1.0.0", None, "old"))[:46]
    'set/1.0.0 to old: Device or resource busy. Sto'
    """
    if error.errno is None:
        return None
    steps = getattr(error, "__notes__", [])[:1]
    if steps and (folder := _missing_folder(error)):
        made = f"`mkdir -p {shlex.quote(folder)}` makes it; {_AGAIN}"
        return f"{steps[0]} into {folder}: no such folder. {made}"
    paths = " to ".join(
        os.fsdecode(one) for one in (error.filename, error.filename2) if isinstance(one, str | bytes)
    )
    what = " ".join([*steps, *([paths] if paths else [])])
    reason = error.strerror or os.strerror(error.errno)
    fix = FIXES.get(error.errno, "Run the command with --debug to see where it failed")
    return f"{what}: {reason}. {fix}" if what else f"{reason}. {fix}"


def _missing_folder(error: OSError) -> str:
    """Return the folder that is missing where a file could not be made; "" for any other error.

    The system says "No such file or directory" of the file, although the folder is what the user has to make.
    """
    if error.errno != errno.ENOENT or not isinstance(error.filename, str):
        return ""
    folder = os.path.dirname(error.filename) or "."
    return "" if os.path.isdir(folder) else folder


def describe_error(error: BaseException) -> str:
    """Return the message of the first error of the system among an error and its causes, else its type and text.

    >>> describe_error(ValueError("x"))
    'ValueError: x'
    """
    cause: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if cause is None:
            break
        text = resource_error(cause) or (system_error(cause) if isinstance(cause, OSError) else None)
        if text is not None:
            return text
        cause = cause.__cause__ or (cause.__context__ if isinstance(cause, RuntimeError) else None)
    return f"{type(error).__name__}: {error}"


def resource_limit(name: str) -> int | None:
    """Return a limit of this process such as "AS", in bytes or as a count; None where there is none."""
    if resource is None:
        return None
    limit: int = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0]
    return None if limit == resource.RLIM_INFINITY else limit


def describe_limits() -> str:
    """Return the limits that may have ended a process without a message, in parentheses; "" if none is set."""
    return _limits("AS", "DATA", "NPROC")


def _limits(*names: str) -> str:
    found = []
    for name in names:
        if (limit := resource_limit(name)) is not None:
            found.append(
                f"{_LIMIT_COMMANDS[name]}: {f'{limit:,}' if name == 'NPROC' else f'{limit >> 20:,} MiB'}"
            )
    return f" (limits of this process: {', '.join(found)})" if found else ""
