"""Do charts draw every number once, in few bytes, within their frame?"""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numbers

from halofeed.inspection.html import charts
from halofeed.inspection.html.line_chart import Series, line_chart, running_mean, thinned


@pytest.mark.parametrize("highest", [0, 1, 2, 3, 7, 10, 99, 101, 12345, 3e9])
def test_axes_have_few_round_ticks_that_reach_far(highest: float) -> None:
    ticks = charts.nice_ticks(highest)
    assert ticks[0] == 0 and len(ticks) <= 6 and ticks[-1] <= highest
    assert highest == 0 or ticks[-1] >= highest * 0.5


@given(st.dictionaries(st.integers(0, 5000), st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40))
def test_a_histogram_draws_every_image_once(values: dict[int, tuple[int, int]]) -> None:
    drawn = charts.histogram(values, unit="boxes", marker=(7, "limit"))
    titles = [int(count.replace(",", "")) for count in re.findall(r"boxes: ([\d,]+)</title>", drawn)]
    assert sum(titles) == sum(map(sum, values.values()))


@pytest.mark.parametrize("points", [0, 1, 2, 19, 100_000])
@pytest.mark.parametrize("kind", ["falling", "level", "zeros", "negative", "gaps", "nothing"])
def test_a_line_chart_draws_any_number_of_points_in_few_bytes(points: int, kind: str) -> None:
    steps = np.arange(1.0, points + 1)
    values = {
        "falling": 100 * 0.5 ** (10 * steps / max(points, 1)),
        "level": np.full(points, 0.25),
        "zeros": np.zeros(points),
        "negative": np.sin(steps),
        "gaps": np.where(steps % 10 > 7, np.nan, 1 / steps),
        "nothing": np.full(points, np.nan),
    }[kind]
    drawn = line_chart([Series(name="loss", steps=steps, values=values, smooth=True)], "Loss")
    assert len(drawn) < 40_000 and "nan" not in drawn and "inf" not in drawn
    if points == 0 or kind == "nothing":
        assert "No values are logged." in drawn
        return
    logarithmic = {("falling", 2), ("falling", 19), ("falling", 100_000), ("gaps", 100_000)}
    assert ("logarithmic" in drawn) == ((kind, points) in logarithmic)
    heights = re.findall(r"[ML][\d.]+ ([-\d.]+)", drawn) + re.findall(r'cy="([-\d.]+)"', drawn)
    places = [float(height) for height in heights]
    assert places and all(13 < place < 171 for place in places), "inside the frame"


def test_a_gap_parts_a_line_and_a_lonely_point_is_a_dot() -> None:
    values = np.array([1, 2, np.nan, 3, np.nan, 4, 5.0])
    drawn = line_chart([Series(name="a", steps=np.arange(7.0), values=values)], "A")
    (path,) = re.findall(r'<path class="line s0" d="([^"]*)"', drawn)
    assert path.count("M") == 3 and path.count("L") == 2 and drawn.count("<circle") == 5
    assert "a from 1 at step 0 to 5 at step 6, lowest 1 at step 0, highest 5 at step 6" in drawn


@given(numbers.arrays(np.float64, st.integers(700, 4000), elements=st.floats(-5, 5) | st.just(math.nan)))
def test_thinning_keeps_the_highest_the_lowest_and_the_order(values: np.ndarray) -> None:
    steps, kept = thinned(np.arange(len(values), dtype=np.float64), values)
    assert len(steps) <= 640 and (np.diff(steps) > 0).all()
    np.testing.assert_array_equal(values[steps.astype(int)], kept)
    if np.isfinite(values).any():
        assert np.nanmax(kept) == np.nanmax(values) and np.nanmin(kept) == np.nanmin(values)


@given(numbers.arrays(np.float64, st.integers(1, 200), elements=st.floats(-5, 5) | st.just(math.nan)))
def test_the_running_mean_is_that_of_known_neighbors(values: np.ndarray) -> None:
    reach = max(1, len(values) // 60)
    for at, mean in enumerate(running_mean(values).tolist()):
        near = min(reach, at, len(values) - 1 - at)
        known = [value for value in values[at - near : at + near + 1].tolist() if not math.isnan(value)]
        if math.isnan(values[at]):
            assert math.isnan(mean)
        else:
            assert mean == pytest.approx(sum(known) / len(known), abs=1e-9)
