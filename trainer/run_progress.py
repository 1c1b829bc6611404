"""Stop signals, step times and the progress line of a training run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TextIO

from jax.sharding import Mesh

from halofeed.schemas.partition import REPLICA_AXIS
from halofeed.system.console import VERBOSE, shows_status, status_with_time, write_if_possible
from halofeed.system.signals import GracefulStop
from halofeed.trainer.config import TrainConfig

COMPILING = "Compiling"


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
    """Progress line: updated in place on a terminal, else printed about twenty times in a run.

    Rates exclude compilation, evaluation and saving.

    Args:
        config: options of the run.
        stream: stream for the line; None, or a level without status, prints nothing.
        start: number of steps that earlier processes took.
    """

    def __init__(self, config: TrainConfig, stream: TextIO | None, start: int) -> None:
        stream = stream if shows_status() else None
        self._config, self._stream, self._start = config, stream, start
        self._in_place = stream is not None and stream.isatty()
        self._steps_per_line = 1 if shows_status(VERBOSE) else max(1, config.steps // 20)
        self._done, self._working, self._waiting = 0, 0.0, 0.0

    def say(self, text: str) -> None:
        """Print a separate line."""
        if self._stream is not None:
            clear = "\r\x1b[K" if self._in_place else ""
            write_if_possible(self._stream, f"{clear}{text}\n")

    def compiling(self) -> AbstractContextManager[None]:
        """Show for how long the step has been compiled so far, in a block."""
        return status_with_time(COMPILING, stream=self._stream, show=self._stream is not None)

    def begin(self, mesh: Mesh, parameters: int, compile_seconds: float) -> None:
        """Print the model, its number of parameters and its devices."""
        axes = " x ".join(f"{name} {size}" for name, size in mesh.shape.items())
        platform = mesh.devices.flat[0].platform
        self.say(
            f"{self._config.model}: {parameters:,} parameters, {self._config.compute_dtype}, on {platform} as {axes}; "
            f"compiled in {compile_seconds:.1f} s"
        )
        is_split = mesh.size > mesh.shape[REPLICA_AXIS]
        if is_split and ":" in self._config.model:
            self.say(
                "a model of your own on a split: its gradients may be wrong silently; "
                "halofeed.trainer.check_gradients compares them (docs/partition.md)"
            )

    def record(self, step: int, values: Mapping[str, float], seconds: float, waited: float) -> None:
        """Count one step.

        Args:
            step: number of steps taken, including those of earlier processes.
            values: numbers by name, at least `loss`.
            seconds: duration of the step, including waiting.
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
        elif self._done == 1 or step == self._config.steps or step % self._steps_per_line == 0:
            self.say(text)

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


def _duration(seconds: float) -> str:
    """Format seconds for people.

    >>> [_duration(seconds) for seconds in (8.4, 125, 7325)]
    ['8 s', '2:05 min', '2:02 h']
    """
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60}:{total % 60:02d} min"
    return f"{total // 3600}:{total % 3600 // 60:02d} h"
