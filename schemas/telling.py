"""How does a line for a person reach standard error? Never at the cost of the work: who cannot hear is not told."""

from __future__ import annotations

import contextlib
import sys
from typing import TextIO

from halofeed.schemas.address import redacted


def tell(text: str) -> None:
    """Write a line to standard error, without secrets of addresses; on a terminal in place of a line of progress."""
    text = redacted(text)
    if sys.stderr is not None:
        with contextlib.suppress(ValueError):  # a closed stream
            text = f"\r\x1b[K{text}" if sys.stderr.isatty() else text
        write_if_possible(sys.stderr, f"{text}\n")


def write_if_possible(stream: TextIO, text: str) -> None:
    """Write to a stream at once; where it is closed, full or read by nobody, the text is dropped."""
    with contextlib.suppress(OSError, ValueError):
        stream.write(text)
        stream.flush()
