"""A run tells soon how long it takes: a line at its first step, later ones by time, and none too many."""

import io
import re

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from halofeed.trainer.config import TrainConfig
from halofeed.trainer.run_progress import Progress

MESH = Mesh(np.array(jax.devices()[:1]), ("replica",))


class Clock:
    """A clock that moves only when it is told to."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def lines_of(steps: int, seconds: float, *, taken: int | None = None, start: int = 0) -> list[str]:
    """The lines of a run whose step takes so long, and whose program is compiled in 5 s."""
    clock, stream = Clock(), io.StringIO()
    progress = Progress(TrainConfig(steps=steps), stream, start, clock=clock)
    clock.seconds += 100  # other work before the compilation
    with progress.compiling():
        clock.seconds += 5
    progress.begin(MESH, 10, is_cached=False)
    for step in range(start + 1, (taken or steps) + 1):
        clock.seconds += seconds
        progress.record(step, {"loss": 1.0}, seconds, 0.0)
    return stream.getvalue().splitlines()


def shown(lines: list[str]) -> list[int]:
    return [int(found[1]) for line in lines if (found := re.match(r"step (\d+)/", line))]


def test_a_step_a_minute_has_a_line_with_the_time_left_from_the_first_one_on() -> None:
    head, first, second, *rest = lines_of(100, 60, taken=20)
    assert "compiled in 5.0 s" in head
    assert first == "step 1/100  loss 1.0000  about 1:39 h left"
    assert second.startswith("step 2/100 ") and second.endswith(" 1:38 h left")
    assert shown([first, second, *rest]) == list(range(1, 21))


def test_lines_of_a_slow_run_come_after_10_s_and_later_after_a_twentieth_of_the_time() -> None:
    # Step 50 is due by its number, as each twentieth of a run is.
    assert shown(lines_of(1000, 4, taken=50)) == [
        1,
        4,
        7,
        10,
        13,
        16,
        19,
        22,
        25,
        28,
        31,
        34,
        37,
        40,
        43,
        46,
        49,
        50,
    ]
    late = shown(lines_of(10_000, 10, taken=480))
    assert late[-1] - late[-2] == 24, "4,800 s of which are 240 s"


@pytest.mark.parametrize(("seconds", "most"), [(0.01, 21), (1.0, 140), (10.0, 200)])
def test_a_run_never_has_many_lines(seconds: float, most: int) -> None:
    count = len(shown(lines_of(8640, seconds)))
    assert 20 <= count <= most


@pytest.mark.parametrize(
    ("steps", "seconds", "after", "told"),
    [
        (
            700,
            0.5,
            20,
            "the 700 steps of this run take about 5:50 min: 0.5 s each, by the first 20, after 5.0 s to ",
        ),
        (
            100,
            60,
            2,
            "the 100 steps of this run take about 1:40 h: 60 s each, by the first 2, after 5.0 s to compile",
        ),
        (40, 0.4, 20, ""),
    ],
)
def test_the_time_of_the_whole_run_is_told_after_20_steps_or_a_minute(
    steps: int, seconds: float, after: int, told: str
) -> None:
    lines = lines_of(steps, seconds)
    found = [number for number, line in enumerate(lines) if "steps" in line]
    if not told:  # 8 s are left after 20 steps
        assert not found
        return
    (at,) = found
    assert lines[at].startswith(told)
    assert shown(lines[:at])[-1] == max(step for step in shown(lines) if step <= after)


def test_a_resumed_run_tells_of_its_own_steps() -> None:
    lines = lines_of(700, 1, start=600)
    assert any(line.startswith("the other 100 steps take about 1:40 min: 1 s each") for line in lines)


def test_a_program_of_the_cache_is_not_said_to_be_compiled() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress(TrainConfig(), stream, 0, clock=clock)
    with progress.compiling():
        clock.seconds += 2.5
    progress.begin(MESH, 10, is_cached=True)
    assert "; loaded in 2.5 s from the compile cache" in stream.getvalue()
    assert "compiled" not in stream.getvalue()
