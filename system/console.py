"""Status lines on standard error, and readable sizes."""

from __future__ import annotations

import contextlib
import sys
from typing import TextIO

from halofeed.system.addresses import redacted


def print_status(text: str) -> None:
    """Write a line to standard error without secrets; on a terminal it replaces the progress line."""
    text = redacted(text)
    if sys.stderr is not None:
        with contextlib.suppress(ValueError):  # a closed stream
            text = f"\r\x1b[K{text}" if sys.stderr.isatty() else text
        write_if_possible(sys.stderr, f"{text}\n")


def write_if_possible(stream: TextIO, text: str) -> None:
    """Write to a stream and flush it; drop the text if the stream is closed or full, or has no reader."""
    with contextlib.suppress(OSError, ValueError):
        stream.write(text)
        stream.flush()


def human_bytes(count: int) -> str:
    """Return a readable size.

    >>> human_bytes(999), human_bytes(123_456), human_bytes(5_000_000_000)
    ('999 B', '123 kB', '5.00 GB')
    """
    size, unit = float(count), "B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if size < 999.5 or unit == "PB":
            break
        size /= 1000
    return f"{count} B" if unit == "B" else f"{size:.3g} {unit}" if size >= 100 else f"{size:#.3g} {unit}"
