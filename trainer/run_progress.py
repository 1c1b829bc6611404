"""Stop signals, step times and the progress line of a training run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import TextIO

from jax.sharding import Mesh

from halofeed.schemas.partition import REPLICA_AXIS
from halofeed.system.console import VERBOSE, shows_status, status_with_time, write_if_possible
from halofeed.system.signals import GracefulStop
from halofeed.trainer.config import TrainConfig

COMPILING = "Compiling or loading"
_SECONDS_PER_LINE, _SHARE_PER_LINE = 10.0, 0.05
"""Least time between two lines that are due by time, and its least share of the time so far."""
_OUTLOOK_STEPS, _OUTLOOK_SECONDS = 20, 60.0
"""Steps, or seconds of steps, after which the time of the whole run is printed."""


class StopRequest(AbstractContextManager["StopRequest"]):
    """First SIGTERM, SIGHUP or Ctrl-C after `begin`: the run saves after the current step and ends.

    A second signal has its usual effect. Outside the main thread Python delivers no signals.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._handler = GracefulStop(self._record)

    def begin(self) -> None:
        """Record signals from now on: a step is running whose result is worth saving."""
        self._handler.__enter__()

    def __exit__(self, *details: object) -> None:
        self._handler.__exit__(*details)

    def _record(self, number: int) -> None:
        self.signal = number
        if sys.stderr is not None and sys.stderr.isatty():
            text = "\r\x1b[Ksaving after the current step; a second signal ends the run without saving\n"
            write_if_possible(sys.stderr, text)


class StepTimer:
    """Timer of steps that overlap: a step is dispatched before the previous one has ended.

    A step counts from the end of the previous one, or from its own dispatch if that is later. So the times of all
    steps add up to the elapsed time.

    >>> timer = StepTimer()
    >>> timer.end_step(began=0.0, waited_before=0.0, now=3.0, waited=0.5)
    (3.0, 0.5)
    >>> timer.end_step(began=1.0, waited_before=0.25, now=5.0, waited=1.5)
    (2.0, 1.0)
    """

    def __init__(self) -> None:
        self._now = self._waited = float("-inf")

    def end_step(
        self, *, began: float, waited_before: float, now: float, waited: float
    ) -> tuple[float, float]:
        """Return the seconds of a step that ended now, and the seconds of these in which it waited for its batch.

        Args:
            began: time of its dispatch, in seconds.
            waited_before: total waiting time of the run at its dispatch, in seconds.
            now: time of its end, in seconds.
            waited: total waiting time of the run at its end, in seconds.
        """
        seconds, waiting = now - max(began, self._now), waited - max(waited_before, self._waited)
        self._now, self._waited = now, waited
        return seconds, waiting


class Progress:
    """Progress line: updated in place on a terminal, else printed about twenty times in a run, in slow ones more often.

    Rates exclude compilation, evaluation and saving.

    Args:
        config: options of the run.
        stream: stream for the line; None, or a level without status, prints nothing.
        start: number of steps that earlier processes took.
        clock: time in seconds, from any start.
    """

    def __init__(
        self,
        config: TrainConfig,
        stream: TextIO | None,
        start: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        stream = stream if shows_status() else None
        self._config, self._stream, self._start, self._clock = config, stream, start, clock
        self._in_place = stream is not None and stream.isatty()
        self._steps_per_line = 1 if shows_status(VERBOSE) else max(1, config.steps // 20)
        self._done, self._working, self._waiting = 0, 0.0, 0.0
        self._began = self._last_line = clock()
        self._compiling, self._has_outlook = "", False
        self._first = ExitStack()

    def say(self, text: str) -> None:
        """Print a separate line."""
        if self._stream is not None:
            clear = "\r\x1b[K" if self._in_place else ""
            write_if_possible(self._stream, f"{clear}{text}\n")

    def compiling(self) -> AbstractContextManager[None]:
        """Show for how long the step has been compiled so far, in a block."""
        self._began = self._clock()
        return status_with_time(COMPILING, stream=self._stream, show=self._stream is not None)

    def begin(self, mesh: Mesh, parameters: int, *, is_cached: bool) -> None:
        """Print the model, its number of parameters, its devices, and how long its step was compiled or loaded.

        Args:
            mesh: mesh of the devices.
            parameters: number of the model's parameters.
            is_cached: whether the program of the step came from the compilation cache.
        """
        axes = " x ".join(f"{name} {size}" for name, size in mesh.shape.items())
        platform = mesh.devices.flat[0].platform
        now = self._clock()
        seconds, self._began, self._last_line = now - self._began, now, now
        self._compiling = f"{seconds:.1f} s to {'load' if is_cached else 'compile'} it"
        made = (
            f"loaded in {seconds:.1f} s from the compile cache"
            if is_cached
            else f"compiled in {seconds:.1f} s"
        )
        self.say(
            f"{self._config.model}: {parameters:,} parameters, {self._config.compute_dtype}, on {platform} as {axes}; "
            f"{made}"
        )
        is_split = mesh.size > mesh.shape[REPLICA_AXIS]
        if is_split and ":" in self._config.model:
            self.say(
                "a model of your own on a split: its gradients may be wrong silently; "
                "halofeed.trainer.check_gradients compares them (docs/partition.md)"
            )

    def first_step(self) -> AbstractContextManager[object]:
        """Show for how long the first step has run so far, until it is counted, in a block of all steps."""
        waiting = status_with_time(
            f"Step {self._start + 1}",
            stream=self._stream,
            every_seconds=_SECONDS_PER_LINE,
            show=self._stream is not None,
        )
        self._first.enter_context(waiting)
        return self._first

    def record(self, step: int, values: Mapping[str, float], seconds: float, waited: float) -> None:
        """Count one step.

        Args:
            step: number of steps taken, including those of earlier processes.
            values: numbers by name, at least `loss`.
            seconds: duration of the step, including waiting.
            waited: seconds of these in which it waited for its batch.
        """
        self._first.close()
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
                f"  {time_text(self._time_left(step))} left"
            )
        else:
            # The first step may be slower than the others, but in a slow run the second one comes late.
            text += f"  about {time_text((self._config.steps - step) * seconds)} left"
        if self._in_place:
            write_if_possible(self._stream, f"\r\x1b[K{text}")
        elif self._is_line_due(step):
            self.say(text)
            self._last_line = self._clock()
        self._show_outlook(step)

    def _is_line_due(self, step: int) -> bool:
        """Return whether to print a line: for about twenty steps of a run, and after 10 s or 5 % of the time so far.

        So a slow run shows a line every 10 s or each step, and a day of training has 140 lines.
        """
        now = self._clock()
        pause = max(_SECONDS_PER_LINE, _SHARE_PER_LINE * (now - self._began))
        by_number = self._done == 1 or step == self._config.steps or step % self._steps_per_line == 0
        return by_number or now - self._last_line >= pause

    def _show_outlook(self, step: int) -> None:
        """Print the time of the whole run, once: after 20 steps, or after a minute of slower ones."""
        if self._has_outlook or self._done < 2:
            return
        if self._done < _OUTLOOK_STEPS and self._working < _OUTLOOK_SECONDS:
            return
        self._has_outlook = True
        # A run that ends before anyone could act on it needs no forecast.
        if (left := self._time_left(step)) < _SECONDS_PER_LINE:
            return
        each = self._working / (self._done - 1)
        count = self._config.steps - self._start
        steps = f"the {count:,} steps of this run" if not self._start else f"the other {count:,} steps"
        self.say(
            f"{steps} take about {time_text(count * each)}: {each:.3g} s each, by the first {self._done:,}, after "
            f"{self._compiling}; {time_text(left)} left, and evaluations and checkpoints come on top"
        )

    def images_per_second(self) -> float:
        """Return the mean throughput so far; 0 before the second step."""
        return (self._done - 1) * self._config.batch_size / self._working if self._working else 0.0

    def waiting_share(self) -> float:
        """Return the share of the time in which steps waited for their batch."""
        return self._waiting / self._working if self._working else 0.0

    def end(self) -> None:
        """End the line that was updated in place."""
        if self._in_place and self._done and self._stream is not None:
            write_if_possible(self._stream, "\n")

    def _time_left(self, step: int) -> float:
        return (self._config.steps - step) * self._working / max(1, self._done - 1)


def time_text(seconds: float) -> str:
    """Format seconds for people.

    >>> [time_text(seconds) for seconds in (8.4, 125, 7325)]
    ['8 s', '2:05 min', '2:02 h']
    """
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60}:{total % 60:02d} min"
    return f"{total // 3600}:{total % 3600 // 60:02d} h"
