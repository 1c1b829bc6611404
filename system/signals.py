"""Signal handlers of the command line: Ctrl-C, SIGTERM and SIGHUP end it with one line and clean up.

Only a process that calls `install_handlers` is changed, which is the command line. In any other process signals keep
their usual effect, and the context managers here end by exceptions as usual.

The process does not raise an exception, because many libraries swallow one or print its traceback. It prints that it
stops, calls the cleanups of `CleanupOnExit`, and exits at once as if it had been killed. Each command keeps its files
valid after a kill.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

TYPE_CHECKING = False  # avoids importing typing at start-up
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import Self

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that ask a process to stop. SIGQUIT keeps its effect, a core dump."""
SILENT = "HALOFEED_STOPS_SILENTLY"
"""Environment variable of a process whose parent prints the line for both."""

_is_installed = False
_ending_since: float | None = None
_CLEANUP_SECONDS = 3.0
"""Time after which another signal ends a process that is still cleaning up."""
_who, _outlook = "halofeed", ""
_cleanups: list[CleanupOnExit] = []
_graceful_stops: list[GracefulStop] = []
_deferrals: list[DeferSignals] = []
_wakeup_writer = -1
_wakeup_reader = -1
_thread_is_handling = False


def install_handlers() -> None:
    """Install the handlers; call it before anything that takes time.

    A signal that this process was started to ignore (nohup, a shell's `&`) stays ignored.
    """
    global _is_installed
    _is_installed = True
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _on_signal)
    if hasattr(signal, "pthread_sigmask"):  # a parent may have blocked them until now
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def set_stop_message(who: str | None = None, outlook: str | None = None) -> None:
    """Set the line that is printed: `who: stopped (SIGINT); outlook`; None keeps the earlier part."""
    global _who, _outlook
    _who = _who if who is None else who
    _outlook = _outlook if outlook is None else outlook


def handle_in_thread() -> None:
    """Handle signals in a thread, also during long calls of a library such as a compilation.

    Python runs its own handlers only after such a call. A process that will fork must not call this before.
    """
    global _wakeup_writer, _wakeup_reader
    if not _is_installed or _wakeup_writer >= 0:
        return
    import threading

    _wakeup_reader, _wakeup_writer = os.pipe()
    os.set_blocking(_wakeup_writer, False)
    signal.set_wakeup_fd(_wakeup_writer, warn_on_full_buffer=False)

    def read_signals() -> None:
        global _thread_is_handling
        while select.select([_wakeup_reader], [], []):
            _thread_is_handling = True
            (number,) = os.read(_wakeup_reader, 1)
            if number in SIGNALS:
                _handle(number)
            _thread_is_handling = False

    threading.Thread(target=read_signals, name="signals", daemon=True).start()


class CleanupOnExit:
    """Cleanup that is called at the end of a block, or when a signal ends the process within the block.

    >>> with CleanupOnExit(lambda: print("deleted")):
    ...     print("written")
    written
    deleted
    >>> with CleanupOnExit(lambda: print("deleted")) as cleanup:
    ...     cleanup.keep()
    """

    def __init__(self, undo: Callable[[], object]) -> None:
        self.undo = undo

    def keep(self) -> None:
        """Cancel the cleanup."""
        if self in _cleanups:
            _cleanups.remove(self)

    def __enter__(self) -> Self:
        _cleanups.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self in _cleanups:
            _cleanups.remove(self)
            self.undo()


class DeferSignals:
    """Block that no signal interrupts; a signal within it takes effect at its end."""

    def __init__(self) -> None:
        self.number: int | None = None

    def __enter__(self) -> Self:
        _deferrals.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _deferrals.remove(self)
        if self.number is not None:
            _handle(self.number)


@contextlib.contextmanager
def block_signals() -> Iterator[None]:
    """Block signals until the end of the block; a process started in it gets them once it calls `install_handlers`."""
    if not _is_installed or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class GracefulStop:
    """Block in which the first signal calls a function, and a second one has its usual effect.

    A process that has not called `install_handlers` gets signal handlers for the time of the block. In a thread other
    than the main one Python handles no signals, and the block has no effect.

    Args:
        note: function that is called with the signal's number, possibly from another thread.
    """

    def __init__(self, note: Callable[[int], object]) -> None:
        self.note = note
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        if _is_installed:
            _graceful_stops.append(self)
            return self
        import threading

        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        if self in _graceful_stops:
            _graceful_stops.remove(self)
        self._restore()

    def _take(self, number: int, _: FrameType | None) -> None:
        self._restore()
        self.note(number)

    def _restore(self) -> None:
        before, self._before = self._before, {}
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]


def wait_if_ending() -> None:
    """Wait for the end if a signal is ending this process, so that no error of the cleanup is printed."""
    if _ending_since is not None:
        time.sleep(_CLEANUP_SECONDS)


def _on_signal(number: int, _: FrameType | None) -> None:
    # A library such as asyncio may have set another wake-up descriptor; then the thread gets no signal.
    if (
        _wakeup_writer < 0
        or signal.set_wakeup_fd(_wakeup_writer, warn_on_full_buffer=False) != _wakeup_writer
    ):
        _handle(number)
        return
    # The thread handles it. This thread waits, since it must not write again what the cleanup deletes.
    deadline = time.monotonic() + _CLEANUP_SECONDS
    while (
        _thread_is_handling or select.select([_wakeup_reader], [], [], 0)[0]
    ) and time.monotonic() < deadline:
        time.sleep(0.001)


def _handle(number: int) -> None:
    if _ending_since is not None:
        # Users press Ctrl-C several times; only a cleanup that hangs is ended by that.
        if time.monotonic() - _ending_since > _CLEANUP_SECONDS:
            os._exit(128 + number)
    elif _deferrals:
        _deferrals[-1].number = number
    elif _graceful_stops:
        _graceful_stops.pop().note(number)
    else:
        _end_process(number)


def _end_process(number: int) -> None:
    global _ending_since
    _ending_since = time.monotonic()
    if not os.environ.get(SILENT):
        # Python's own stream may be in use by the interrupted line. The line replaces a progress line.
        line = f"{_who}: stopped ({signal.Signals(number).name})" + (f"; {_outlook}" if _outlook else "")
        clear = "\r\x1b[K" if os.isatty(2) else ""
        with contextlib.suppress(OSError):
            os.write(2, f"{clear}{line}\n".encode(errors="backslashreplace"))
    while _cleanups:
        with contextlib.suppress(Exception):
            _cleanups.pop().undo()
    os._exit(128 + number)
