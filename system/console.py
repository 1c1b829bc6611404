"""Errors and status lines on standard error, and readable sizes."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from halofeed.system.addresses import redacted

QUIET, NORMAL, VERBOSE = -1, 0, 1
"""Levels of status: none, the usual lines, and all lines."""
_level = NORMAL


@contextlib.contextmanager
def status_level(level: int) -> Iterator[None]:
    """Print the status lines up to a level in a block.

    >>> with status_level(QUIET):
    ...     shows_status()
    False
    """
    global _level
    before, _level = _level, level
    try:
        yield
    finally:
        _level = before


def shows_status(level: int = NORMAL) -> bool:
    """Return whether status lines of a level are printed."""
    return _level >= level


def print_status(text: str, level: int = NORMAL) -> None:
    """Print a status line, as `print_error` does, if its level is shown."""
    if shows_status(level):
        print_error(text)


def print_error(text: str) -> None:
    """Write a line to standard error without secrets; on a terminal it replaces the progress line."""
    text = redacted(text)
    if sys.stderr is not None:  # None under pythonw and in some services
        with contextlib.suppress(ValueError):  # a closed stream
            text = f"\r\x1b[K{text}" if sys.stderr.isatty() else text
        write_if_possible(sys.stderr, f"{text}\n")


def write_if_possible(stream: TextIO, text: str) -> None:
    """Write to a stream and flush it; drop the text if the stream is closed or full, or has no reader."""
    with contextlib.suppress(OSError, ValueError):
        stream.write(text)
        stream.flush()


@contextlib.contextmanager
def without_banner(library: str) -> Iterator[None]:
    """Discard what the C++ code of a library writes to standard error while a block imports it for the first time."""
    try:
        kept = None if library in sys.modules else os.dup(2)
    except OSError:  # a closed standard error
        kept = None
    if kept is None:
        yield
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


class StatusLine:
    """Line of progress: a terminal updates it in place, and other streams get it as lines from time to time.

    Args:
        stream: output stream; default: standard error.
        every_seconds: time between two lines, and before the first, where the stream is no terminal.
        terminal_seconds: time between two updates on a terminal.
        show: whether to write anything.
    """

    def __init__(
        self,
        *,
        stream: TextIO | None = None,
        every_seconds: float = 10.0,
        terminal_seconds: float = 0.2,
        show: bool = True,
    ) -> None:
        self._stream = stream or sys.stderr
        self._show = show and shows_status() and self._stream is not None
        self._terminal = self._show and self._stream.isatty()
        self._pause = terminal_seconds if self._terminal else every_seconds
        self._began = time.monotonic()
        self._next = 0.0 if self._terminal else every_seconds
        self._drawn = 0

    def update(self, text: Callable[[float], str]) -> None:
        """Show a new state if it is time; `text` returns it for the seconds since the line was made."""
        elapsed = time.monotonic() - self._began
        # The text is formed only when it is shown: callers update after each item.
        if self._show and elapsed >= self._next:
            self._next = elapsed + self._pause
            line = text(elapsed)
            if self._terminal:
                write_if_possible(self._stream, f"\r{line:<{self._drawn}}")
                self._drawn = len(line)
            else:
                write_if_possible(self._stream, f"{line}\n")

    def close(self) -> None:
        """Clear the line on a terminal."""
        if self._drawn:
            write_if_possible(self._stream, "\r" + " " * self._drawn + "\r")


@contextlib.contextmanager
def status_with_time(
    what: str, *, stream: TextIO | None = None, every_seconds: float = 30.0, show: bool = True
) -> Iterator[None]:
    """Print "WHAT, 30 s so far" while a block runs: every second on a terminal, elsewhere every 30 s.

    >>> import io
    >>> stream = io.StringIO()
    >>> with status_with_time("Compiling", stream=stream, every_seconds=0.05):
    ...     time.sleep(0.5)
    >>> stream.getvalue().startswith("Compiling, 0 s so far\\nCompiling, 0 s")
    True
    """
    ended = threading.Event()
    line = StatusLine(stream=stream, every_seconds=every_seconds, terminal_seconds=1.0, show=show)

    def report() -> None:
        while not ended.wait(min(1.0, every_seconds)):
            line.update(lambda elapsed: f"{what}, {elapsed:.0f} s so far")

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        line.close()


def human_bytes(count: int) -> str:
    """Return a readable size.

    >>> human_bytes(999), human_bytes(123_456), human_bytes(5_000_000_000)
    ('999 B', '123 kB', '5.00 GB')
    """
    # 999.5 rounds to 1000, which is written as 1.00 of the next unit.
    size, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if size < 999.5 or unit == "PB":
            break
        size /= 1000
    return f"{count} B" if unit == "B" else f"{size:.3g} {unit}" if size >= 100 else f"{size:#.3g} {unit}"
