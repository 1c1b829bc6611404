"""Has somebody asked this run to stop? SIGTERM, SIGHUP and Ctrl-C end it after the step in hand, saved."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager

from halofeed.schemas.stopping import Noted
from halofeed.schemas.telling import write_if_possible


class StopRequest(AbstractContextManager["StopRequest"]):
    """From `begin` to the end of the block the first signal is noted; a second one acts as ever.

    In another thread than the main one, where Python takes no signals, nothing is noted.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._noted = Noted(self._note)

    def begin(self) -> None:
        """Note it from now on: there is a step in hand, which is worth saving."""
        self._noted.__enter__()

    def __exit__(self, *details: object) -> None:
        self._noted.__exit__(*details)

    def _note(self, number: int) -> None:
        self.signal = number
        if sys.stderr is not None and sys.stderr.isatty():
            text = "\r\x1b[Ksaving after the step in hand; once more ends the run without\n"
            write_if_possible(sys.stderr, text)
