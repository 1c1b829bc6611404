"""Choice among candidates by a compiler's verdict on memory and by the time of a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from halofeed.system.errors import UsageError
from halofeed.trainer.auto.candidates import PlanCandidate

LEAST_STEPS = 300
"""Fewest steps of a run: with fewer a larger network is worth less than more steps (docs/decisions.md)."""
MOST_STEPS = 250_000
"""Most steps of a run: nnU-Net's 1,000 epochs of 250."""
STEP_SHARE = 0.85
"""Share of the time budget for steps; the rest is for evaluation and saving."""
PLANNING_SHARE = 0.25
"""Share of the time budget after which no further candidate is compiled, if one fits."""
_TRIES = 5
_SLACK = 0.8
"""Share of `LEAST_STEPS` that a measured candidate may have, because times of two runs differ by that."""
_BYTES_SCALE, _WORK_PER_SECOND = 2.0, {"cpu": 2e11, "gpu": 4e13, "tpu": 6e13}
"""Estimates before the first verdict. A core of an AMD EPYC has 1.8e11 (3-D U-Nets of width 8 and 16)."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Result of compiling a step, and of taking it where the devices are present.

    Args:
        fits: whether the memory suffices.
        total_bytes: memory of a device that the step needs; None if the compiler did not say.
        limit_bytes: memory of a device; None if unknown.
        step_seconds: time of a step; None if unknown.
        is_measured: whether that time was measured; else it is the lower bound by published rates.
        compile_seconds: time of the compiler, which the run needs once more; 0 where the run has another machine.
        seconds: time that the verdict took from the run's budget; 0 where the run has another machine.
    """

    fits: bool
    total_bytes: int | None = None
    limit_bytes: int | None = None
    step_seconds: float | None = None
    is_measured: bool = False
    compile_seconds: float = 0.0
    seconds: float = 0.0


AnyCandidate = TypeVar("AnyCandidate", bound=PlanCandidate)
Judge = Callable[[AnyCandidate], Verdict]
"""Function that compiles a candidate, and takes steps where that is possible."""


@dataclass(frozen=True, kw_only=True)
class Chosen(Generic[AnyCandidate]):
    """PlanCandidate that fits, with its verdict and the number of candidates that were compiled.

    Args:
        candidate: the chosen one.
        verdict: its verdict.
        refused: candidates that were compiled before and did not fit, or took too long, with their verdicts.
        is_in_time: whether it can take `LEAST_STEPS` steps in the budget.
        seconds: time that all verdicts took from the budget.
    """

    candidate: AnyCandidate
    verdict: Verdict
    refused: tuple[tuple[AnyCandidate, Verdict], ...] = ()
    is_in_time: bool = True
    seconds: float = 0.0


@dataclass
class _Search(Generic[AnyCandidate]):
    """State of a choice: estimates that each verdict corrects.

    Args:
        candidates: all candidates, the preferred first.
        judge: function that compiles one.
        seconds: time of the run with its plan; None for no limit.
        limit_bytes: memory of a device; None takes the verdict's.
        work_per_second: work of a device per second, by the last verdict.
    """

    candidates: list[AnyCandidate]
    judge: Judge[AnyCandidate]
    seconds: float | None
    limit_bytes: int | None
    work_per_second: float
    bytes_scale: float = _BYTES_SCALE
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    in_time: set[int] = field(default_factory=set)

    @property
    def spent(self) -> float:
        """Time that the verdicts took."""
        return sum(one.seconds for one in self.verdicts.values())

    @property
    def is_late(self) -> bool:
        """Return whether one more verdict would take time that the steps need."""
        if self.seconds is None or not self.verdicts:
            return False
        return self.spent + _last(self.verdicts).seconds > PLANNING_SHARE * self.seconds

    def is_fitting(self, number: int) -> bool:
        """Return whether a candidate fits the memory, by its verdict or else by the estimate."""
        if number in self.verdicts:
            return self.verdicts[number].fits
        limit = self.limit_bytes
        return limit is None or self.candidates[number].bytes * self.bytes_scale <= limit

    def is_in_time(self, number: int) -> bool:
        """Return whether a candidate can take enough steps, by its verdict or else by the estimate."""
        # A verdict counts as it was given: later ones took time from all candidates.
        if self.seconds is None or number in self.in_time:
            return True
        if number in self.verdicts and self.verdicts[number].step_seconds is not None:
            return False
        step_seconds = self.candidates[number].work / self.work_per_second
        planning = 0.0
        if self.verdicts:
            last = _last(self.verdicts)
            planning = last.seconds + last.compile_seconds
        return step_seconds * LEAST_STEPS <= STEP_SHARE * (self.seconds - self.spent - planning)

    def best(self) -> int | None:
        """Return the first candidate that fits and is in time; None if there is none."""
        numbers = range(len(self.candidates))
        return next((one for one in numbers if self.is_fitting(one) and self.is_in_time(one)), None)

    def cheapest(self) -> int | None:
        """Return the candidate with the least work among those that may fit the memory; None if none does."""
        fitting = [one for one in range(len(self.candidates)) if self.is_fitting(one)]
        return min(fitting, key=lambda one: self.candidates[one].work, default=None)

    def smallest(self) -> int | None:
        """Return the candidate with the least memory among those without a verdict; None if all have one."""
        left = [one for one in range(len(self.candidates)) if one not in self.verdicts]
        return min(left, key=lambda one: self.candidates[one].bytes, default=None)

    def ask(self, number: int) -> Verdict:
        """Compile a candidate and correct the estimates by the result."""
        candidate = self.candidates[number]
        verdict = self.verdicts[number] = self.judge(candidate)
        if verdict.limit_bytes is not None and self.limit_bytes is None:
            self.limit_bytes = verdict.limit_bytes
        if verdict.total_bytes is not None:
            self.bytes_scale = verdict.total_bytes / candidate.bytes
        if verdict.step_seconds:
            self.work_per_second = candidate.work / verdict.step_seconds
            left = math.inf if self.seconds is None else self.seconds - self.spent - verdict.compile_seconds
            if verdict.step_seconds * LEAST_STEPS * _SLACK <= STEP_SHARE * left:
                self.in_time.add(number)
        return verdict


def _last(verdicts: Mapping[int, Verdict]) -> Verdict:
    """Return the latest verdict."""
    return next(reversed(list(verdicts.values())))


def choose_candidate(
    candidates: Iterable[AnyCandidate],
    judge: Judge[AnyCandidate],
    *,
    platform: str,
    seconds: float | None = None,
    limit_bytes: int | None = None,
) -> Chosen[AnyCandidate]:
    """Return the first candidate that fits the memory and can take `LEAST_STEPS` steps in the time.

    Estimates choose which candidate to compile next, each verdict corrects them, and only a candidate whose verdict is
    that it fits is returned. If none is fast enough, the fastest that fits is returned. Verdicts take time from the
    steps, so no more are asked for after `PLANNING_SHARE` of it, if one fits.

    Args:
        candidates: the preferred first.
        judge: function that compiles one; it is called a few times.
        platform: "cpu", "gpu" or "tpu".
        seconds: time of the run with its plan; None for no limit.
        limit_bytes: memory of a device; None if only the compiler knows.

    Raises:
        UsageError: no candidate fits.
    """
    search = _Search(
        candidates=list(candidates),
        judge=judge,
        seconds=seconds,
        limit_bytes=limit_bytes,
        work_per_second=_WORK_PER_SECOND[platform],
    )
    accepted: int | None = None
    for _ in range(_TRIES):
        number = search.best()
        if number is None:
            number = search.cheapest()
        # The estimates point to a candidate that has its verdict already, or to none.
        if number is None or number in search.verdicts:
            break
        if search.is_late and any(one.fits for one in search.verdicts.values()):
            break
        if search.ask(number).fits and search.is_in_time(number):
            accepted = number if accepted is None else min(accepted, number)
    fitting = [number for number, verdict in search.verdicts.items() if verdict.fits]
    if not fitting and (accepted := _first_that_fits(search)) is None:
        raise UsageError(_too_large(search))
    if accepted is None:
        accepted = min(fitting, key=lambda number: search.verdicts[number].step_seconds or 0.0)
    others = ((search.candidates[one], found) for one, found in search.verdicts.items() if one < accepted)
    return Chosen(
        candidate=search.candidates[accepted],
        verdict=search.verdicts[accepted],
        refused=tuple(others),
        is_in_time=search.is_in_time(accepted),
        seconds=search.spent,
    )


def _first_that_fits(search: _Search[AnyCandidate]) -> int | None:
    """Compile candidates from the smallest on until one fits; None if none of a few does."""
    for _ in range(_TRIES):
        number = search.smallest()
        if number is None:
            return None
        if search.ask(number).fits:
            return number
    return None


def _too_large(search: _Search[AnyCandidate]) -> str:
    least = min((one.total_bytes for one in search.verdicts.values() if one.total_bytes), default=0)
    limit = f" of {search.limit_bytes / 2**30:.2f} GiB" if search.limit_bytes else ""
    return (
        f"--config auto: nothing fits the memory{limit}; the smallest of {len(search.verdicts)} configurations that "
        f"were compiled needs {least / 2**30:.2f} GiB. Take a machine with more memory, or convert smaller records"
    )


def steps_in(seconds: float, step_seconds: float) -> int:
    """Return the number of steps that a time has room for, besides the evaluation.

    Args:
        seconds: time of the run without its plan and the compiler.
        step_seconds: time of a step.

    >>> steps_in(180, 0.5), steps_in(1e9, 0.1), steps_in(10, 60)
    (306, 250000, 50)
    """
    return max(50, min(MOST_STEPS, int(STEP_SHARE * seconds / step_seconds)))
