"""How does a process end that is asked to stop (Ctrl-C, SIGTERM, SIGHUP)? In one line, with nothing left behind.

Only a process that calls `listen` is changed: the command line. Anywhere else a signal does what it always does, and
what is entered here is left by exceptions as usual.

The process does not unwind: an exception that comes up at any line is swallowed, or told with a traceback, by many a
library. It says that it stops, undoes what was entered with `Undone`, and is gone, as if it had been killed: whatever
a command promises of its files holds after a kill.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import Self

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Those that ask a process to stop. SIGQUIT stays what it is, a way to have a core dump."""
SILENT = "HALOFEED_STOPS_SILENTLY"
"""Set in the environment of a process whose parent says for both that they stop."""

_listening = False
_ending_since: float | None = None
_PATIENCE_SECONDS = 3.0
"""After which a further signal ends a process that is still undoing."""
_who, _outlook = "halofeed", ""
_undone: list[CleanupOnExit] = []
_noted: list[GracefulStop] = []
_waiting: list[DeferSignals] = []
_wakes = -1
_hears = -1
_deciding = False


def listen() -> None:
    """End this process as described from now on; to be called before anything that takes time.

    A signal that whoever started this process has it ignore (nohup, a shell's `&`) stays ignored.
    """
    global _listening
    _listening = True
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle)
    if hasattr(signal, "pthread_sigmask"):  # a parent may have blocked them until now
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def say_at_stop(who: str | None = None, outlook: str | None = None) -> None:
    """What the line says: `who: stopped (SIGINT); outlook`; None leaves what was."""
    global _who, _outlook
    _who = _who if who is None else who
    _outlook = _outlook if outlook is None else outlook


def hear_in_long_calls() -> None:
    """Hear signals while a library's call lasts, a compilation for example, which Python itself would wait for.

    It starts a thread; a process that will be copied by fork must not call it before.
    """
    global _wakes, _hears
    if not _listening or _wakes >= 0:
        return
    import threading

    _hears, _wakes = os.pipe()
    os.set_blocking(_wakes, False)
    signal.set_wakeup_fd(_wakes, warn_on_full_buffer=False)

    def hear() -> None:
        global _deciding
        while select.select([_hears], [], []):
            _deciding = True
            (number,) = os.read(_hears, 1)
            if number in SIGNALS:
                _hear(number)
            _deciding = False

    threading.Thread(target=hear, name="hear-signals", daemon=True).start()


class CleanupOnExit:
    """What is called at the end of a block, and where a signal ends the process within it, unless it is to be kept.

    >>> with Undone(lambda: print("gone")):
    ...     print("there")
    there
    gone
    >>> with Undone(lambda: print("gone")) as begun:
    ...     begun.keep()
    """

    def __init__(self, undo: Callable[[], object]) -> None:
        self.undo = undo

    def keep(self) -> None:
        """Call nothing any more."""
        if self in _undone:
            _undone.remove(self)

    def __enter__(self) -> Self:
        _undone.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self in _undone:
            _undone.remove(self)
            self.undo()


class DeferSignals:
    """A block that no signal interrupts; what came within it is heard at its end."""

    def __init__(self) -> None:
        self.number: int | None = None

    def __enter__(self) -> Self:
        _waiting.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _waiting.remove(self)
        if self.number is not None:
            _hear(self.number)


@contextlib.contextmanager
def block_signals() -> Iterator[None]:
    """A block that signals reach at its end only, and processes that are started in it once they listen."""
    if not _listening or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class GracefulStop:
    """A block in which the first signal is noted, and a second one acts as ever.

    Where this process does not listen, the signals are taken for as long; in another thread than the main one, where
    Python takes no signals, nothing is noted.

    Args:
        note: is called with the signal's number, from any thread and anywhere in the program.
    """

    def __init__(self, note: Callable[[int], object]) -> None:
        self.note = note
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        if _listening:
            _noted.append(self)
            return self
        import threading

        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        if self in _noted:
            _noted.remove(self)
        self._restore()

    def _take(self, number: int, _: FrameType | None) -> None:
        self._restore()
        self.note(number)

    def _restore(self) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


def stay_silent_if_ending() -> None:
    """Wait for the end where a signal ends this process just now: what fails meanwhile fails by that."""
    if _ending_since is not None:
        time.sleep(_PATIENCE_SECONDS)


def _handle(number: int, _: FrameType | None) -> None:
    if _wakes < 0 or signal.set_wakeup_fd(_wakes, warn_on_full_buffer=False) != _wakes:
        _hear(number)
        return
    # The thread hears it. What it undoes must not be done again by the program, which would go on meanwhile.
    patient_until = time.monotonic() + _PATIENCE_SECONDS
    while (_deciding or select.select([_hears], [], [], 0)[0]) and time.monotonic() < patient_until:
        time.sleep(0.001)


def _hear(number: int) -> None:
    if _ending_since is not None:
        if time.monotonic() - _ending_since > _PATIENCE_SECONDS:
            os._exit(128 + number)
    elif _waiting:
        _waiting[-1].number = number
    elif _noted:
        _noted.pop().note(number)
    else:
        _end(number)


def _end(number: int) -> None:
    global _ending_since
    _ending_since = time.monotonic()
    if not os.environ.get(SILENT):
        # Past Python's own stream, which the interrupted line may be writing to; in place of a line of progress.
        line = f"{_who}: stopped ({signal.Signals(number).name})" + (f"; {_outlook}" if _outlook else "")
        clear = "\r\x1b[K" if os.isatty(2) else ""
        with contextlib.suppress(OSError):
            os.write(2, f"{clear}{line}\n".encode(errors="backslashreplace"))
    while _undone:
        with contextlib.suppress(Exception):
            _undone.pop().undo()
    os._exit(128 + number)
