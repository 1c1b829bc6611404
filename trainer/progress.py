"""Has somebody asked this run to stop? SIGTERM, SIGHUP and Ctrl-C end it after the step in hand, saved.

What does a person see while a run goes on?
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TextIO

from jax.sharding import Mesh

from halofeed.system.console import write_if_possible
from halofeed.system.signals import GracefulStop
from halofeed.trainer.config import TrainConfig


class StopRequest(AbstractContextManager["StopRequest"]):
    """From `begin` to the end of the block the first signal is noted; a second one acts as ever.

    In another thread than the main one, where Python takes no signals, nothing is noted.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._noted = GracefulStop(self._note)

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


class StepTimer:
    """How long each step took, where one is dispatched before the one before it has ended.

    The times of all steps add up to the time that passed: each counts from the end of the one before it, or from its
    own beginning where that is later.

    >>> pace = StepTimer()
    >>> pace.ended(began=0.0, waited_before=0.0, now=3.0, waited=0.5)
    (3.0, 0.5)
    >>> pace.ended(began=1.0, waited_before=0.25, now=5.0, waited=1.5)
    (2.0, 1.0)
    """

    def __init__(self) -> None:
        self._now = self._waited = float("-inf")

    def ended(self, *, began: float, waited_before: float, now: float, waited: float) -> tuple[float, float]:
        """What a step took that ended now, and what of it was waiting.

        Args:
            began: when its turn began, in seconds.
            waited_before: what had been waited by then, in seconds of the whole run.
            now: when it ended.
            waited: what has been waited by now.
        """
        seconds, waiting = now - max(began, self._now), waited - max(waited_before, self._waited)
        self._now, self._waited = now, waited
        return seconds, waiting


class Progress:
    """One line, in place on a terminal, else about twenty times in a run.

    Rates leave out compilation, evaluation and saving.

    Args:
        config: of the run.
        stream: where the line goes; None for a process that says nothing.
        start: the steps that an earlier process took.
    """

    def __init__(self, config: TrainConfig, stream: TextIO | None, start: int) -> None:
        self._config, self._stream, self._start = config, stream, start
        self._in_place = stream is not None and stream.isatty()
        self._done, self._working, self._waiting = 0, 0.0, 0.0

    def say(self, text: str) -> None:
        """A line of its own."""
        if self._stream is not None:
            clear = "\r\x1b[K" if self._in_place else ""
            write_if_possible(self._stream, f"{clear}{text}\n")

    def compiling(self) -> None:
        """Say on a terminal, in place, that the step is being compiled."""
        if self._in_place and self._stream is not None:
            write_if_possible(self._stream, "\r\x1b[Kcompiling the step (minutes, of a large model)")

    def begin(self, mesh: Mesh, parameters: int, compile_seconds: float) -> None:
        """Say what is trained where."""
        axes = " x ".join(f"{name} {size}" for name, size in mesh.shape.items())
        platform = mesh.devices.flat[0].platform
        self.say(
            f"{self._config.model}: {parameters:,} parameters, {self._config.compute_dtype}, on {platform} as {axes}; "
            f"compiled in {compile_seconds:.1f} s"
        )

    def record(self, step: int, values: Mapping[str, float], seconds: float, waited: float) -> None:
        """Count one step.

        Args:
            step: how many have been taken, earlier processes' included.
            values: at least `loss`.
            seconds: that the step took, waiting included.
            waited: seconds of these in which it waited for its batch.
        """
        self._done += 1
        if self._done > 1:
            self._working += seconds
            self._waiting += waited
        if self._stream is None:
            return
        text = f"step {step}/{self._config.steps}  loss {values['loss']:.4f}"
        if self._done > 1:
            text += (
                f"  {self.images_per_second():.1f} images/s  input {self.waiting_share():.0%}"
                f"  {_duration(self._time_left(step))} left"
            )
        if self._in_place:
            write_if_possible(self._stream, f"\r\x1b[K{text}")
        elif self._done == 1 or step == self._config.steps or step % max(1, self._config.steps // 20) == 0:
            self.say(text)

    def images_per_second(self) -> float:
        """Over the run so far; 0 before the second step."""
        return (self._done - 1) * self._config.batch_size / self._working if self._working else 0.0

    def waiting_share(self) -> float:
        """The share of the time that steps waited for their batch."""
        return self._waiting / self._working if self._working else 0.0

    def end(self) -> None:
        """Leave the line that was shown in place."""
        if self._in_place and self._done and self._stream is not None:
            write_if_possible(self._stream, "\n")

    def _time_left(self, step: int) -> float:
        return (self._config.steps - step) * self._working / max(1, self._done - 1)


def _duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> [_duration(seconds) for seconds in (8.4, 125, 7325)]
    ['8 s', '2:05 min', '2:02 h']
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
