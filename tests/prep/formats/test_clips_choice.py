"""Which frames make which records? Properties that hold for every clip, and the times that frames are taken at."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halofeed.errors import SourceError, UsageError
from halofeed.prep.formats.clip.frame_choice import FrameChoice, choose_frames

COUNTS = st.integers(1, 200)
FRAMES = st.integers(1, 40)
STRIDES = st.integers(1, 12)
TIMES = st.lists(st.floats(0.001, 2.0), max_size=80).map(lambda steps: np.cumsum([0.0, *steps]))


@given(COUNTS, FRAMES, STRIDES)
def test_all_windows_follow_one_another_at_the_stride_and_less_than_one_is_left(count, frames, stride):
    chosen = choose_frames(count, None, FrameChoice(frames=frames, stride=stride, short="repeat"))
    sampled = range(0, count, stride)
    if len(sampled) < frames:
        assert [w.tolist() for w in chosen.windows] == [[*sampled, *[sampled[-1]] * (frames - len(sampled))]]
        assert chosen.repeated == frames - len(sampled)
        return
    taken = [index for window in chosen.windows for index in window]
    assert all(len(window) == frames for window in chosen.windows)
    assert taken == list(sampled)[: len(taken)] and len(sampled) - len(taken) < frames


@given(COUNTS, FRAMES, STRIDES, st.integers(1, 9))
def test_so_many_windows_lie_evenly_and_in_the_middle(count, frames, stride, number):
    choice = FrameChoice(frames=frames, stride=stride, starts=number, short="repeat")
    windows = choose_frames(count, None, choice).windows
    assert len(windows) == number and all(len(window) == frames for window in windows)
    starts = [int(window[0]) // stride for window in windows]
    last = max(0, len(range(0, count, stride)) - frames)
    assert starts == sorted(starts) and 0 <= starts[0] <= starts[-1] <= last
    assert abs(starts[0] - (last - starts[-1])) <= 1
    steps = np.diff(starts)
    assert not len(steps) or steps.max() - steps.min() <= 1


@given(TIMES, st.floats(0.2, 60))
def test_at_a_frame_rate_the_frame_is_taken_that_is_shown_then(times, rate):
    sampled = choose_frames(len(times), times, FrameChoice(frames=1, frame_rate=rate)).windows
    for number, (index,) in enumerate(sampled):
        at = number / rate + 0.001
        assert times[index] <= at and (index + 1 == len(times) or times[index + 1] > at)
    assert len(sampled) / rate >= times[-1] - 1e-9 and (len(sampled) - 1) / rate <= times[-1] + 0.001 + 1e-9


@given(st.integers(1, 120), st.sampled_from([1, 2, 3, 5, 6]), st.sampled_from([24, 25, 29.97, 30, 50, 60]))
def test_a_rate_is_the_stride_that_it_divides_whatever_the_container_rounds(count, stride, rate):
    for rounded in (9, 3):  # Matroska rounds to thousandths
        times = (np.arange(count) / rate).round(rounded)
        by_rate = choose_frames(count, times, FrameChoice(frames=1, frame_rate=rate / stride)).windows
        by_stride = choose_frames(count, None, FrameChoice(frames=1, stride=stride)).windows
        assert [int(window[0]) for window in by_rate] == [int(window[0]) for window in by_stride]


def test_a_clip_that_is_too_short_is_refused_with_the_numbers():
    with pytest.raises(SourceError) as caught:
        choose_frames(30, None, FrameChoice(frames=16, stride=2))
    assert caught.value.reason == "clip is shorter than a window"
    for number in ("30 frames", "15 of its", "stride of 2", "needs 16", "--frames, or --short-clips repeat"):
        assert number in caught.value.detail
    times = np.arange(30) / 30
    with pytest.raises(SourceError, match="10 frames per second"):
        choose_frames(30, times, FrameChoice(frames=16, frame_rate=10))


def test_a_frame_rate_needs_time_stamps():
    """Variable ones are sampled by time, and those of ages make no frames without end."""
    times = np.array([0, 0.1, 0.2, 1.0, 1.05, 2.0])
    chosen = choose_frames(6, times, FrameChoice(frames=5, frame_rate=2))
    assert [window.tolist() for window in chosen.windows] == [[0, 2, 3, 4, 5]]
    with pytest.raises(SourceError, match="no time stamps"):
        choose_frames(30, None, FrameChoice(frames=4, frame_rate=10))
    with pytest.raises(SourceError, match="more frames than allowed"):
        choose_frames(2, np.array([0, 1e12]), FrameChoice(frames=4, frame_rate=30))
    for options in (
        {"stride": 0},
        {"stride": 2, "frame_rate": 10.0},
        {"frame_rate": 0.0},
        {"frame_rate": np.nan},
    ):
        with pytest.raises(UsageError, match=r"expected|only one"):
            FrameChoice(frames=4, **options)
