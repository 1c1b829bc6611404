"""Standard streams that are closed, full, or have no reader."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

NOBODY_READS = 141
"""Exit status of a program whose reader has closed the pipe, as after SIGPIPE: 128 + 13."""


def open_closed_streams() -> None:
    """Open the null device in place of a closed standard input, output or error.

    Call it before anything is opened. Otherwise the next file or socket gets the free descriptor, and a library that
    writes to standard error writes into it.
    """
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            # POSIX open uses the lowest free descriptor, which is this one, because the lower ones are open already.
            opened = os.open(os.devnull, os.O_RDWR)
            if opened == descriptor:
                # Python's descriptors are not inherited (PEP 446); dup2 makes one that is.
                os.set_inheritable(descriptor, True)
            else:
                os.dup2(opened, descriptor)
                os.close(opened)
        # Python sets a stream such as sys.stdout to None if its descriptor was closed when the interpreter started.
        if getattr(sys, name) is None:
            stream = open(descriptor, mode, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


class _Output(io.FileIO):
    """Standard output that remembers its error, even if the caller ignores it."""

    error: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.error = error
            raise


_output: _Output | None = None


def watch_output() -> None:
    """Record every error of standard output for `output_error` from now on."""
    global _output
    before = sys.stdout
    # A program or a test that replaced the stream handles its errors itself.
    if not isinstance(before, io.TextIOWrapper):
        return
    _output = _Output(1, "wb", closefd=False)
    # Of `python -u`: each write goes to the descriptor at once.
    buffered: Any = _output if before.write_through else io.BufferedWriter(_output)
    sys.stdout = io.TextIOWrapper(
        buffered,
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )


def output_error() -> OSError | None:
    """Flush standard output and return its error, or None."""
    try:
        sys.stdout.flush()
    except OSError as error:
        return error
    # A library that prints may have swallowed the error.
    return None if _output is None else _output.error


def output_status(error: OSError) -> tuple[int, str | None]:
    """Return the exit status and the message for an error of standard output; a closed pipe has no message.

    >>> output_status(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    (141, None)
    >>> output_status(OSError(errno.ENOSPC, "No space left on device"))[0]
    1
    """
    # `halofeed inspect ... | head` is not a failure: shell tools also end silently by SIGPIPE.
    if error.errno == errno.EPIPE:
        return NOBODY_READS, None
    return 1, f"standard output: {error.strerror}; all files are complete"
