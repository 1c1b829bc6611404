"""Choice of the frames of a clip for each record: pure functions of its time stamps and the options."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halofeed.system.errors import SourceError, UsageError
from halofeed.system.wording import plural

Indices = NDArray[np.int64]
EARLY_S = 0.001
"""A frame counts as shown this long before its time stamp, because containers round time stamps to 1 ms."""
MAX_SAMPLES = 10_000_000
SHORT_CLIP_CHOICES = ("refuse", "repeat")
INCOMPLETE_CLIP_CHOICES = ("refuse", "keep")


@dataclass(frozen=True, kw_only=True)
class FrameChoice:
    """Rule that selects frames of a clip.

    Args:
        frames: number of frames per window.
        stride: take every stride-th frame; 1 if neither this nor `frame_rate` is given.
        frame_rate: alternative to a stride: frames per second. For each sampled time, the frame shown at that time is
            taken: the last one whose time stamp is not later.
        starts: "all": consecutive windows without common frames; the rest at the end is dropped. A number: that many
            windows, each in the middle of its share of the clip. They may overlap, and are identical if the clip
            is as short as one window.
        short: handling of a clip that is shorter than a window: "refuse" it, or "repeat" its last frame.

    >>> FrameChoice(frames=16, stride=2, frame_rate=5)
    Traceback (most recent call last):
    halofeed.system.errors.UsageError: --frame-stride 2 and --frame-rate 5: expected only one of them
    """

    frames: int
    stride: int | None = None
    frame_rate: float | None = None
    starts: str | int = "all"
    short: str = "refuse"

    def __post_init__(self) -> None:
        if self.stride is not None and self.frame_rate is not None:
            raise UsageError(
                f"--frame-stride {self.stride} and --frame-rate {self.frame_rate}: expected only one of them"
            )
        if self.stride is not None and self.stride < 1:
            raise UsageError(f"--frame-stride {self.stride}: expected 1 or more")
        if self.frame_rate is not None and not 0 < self.frame_rate < math.inf:
            raise UsageError(f"--frame-rate {self.frame_rate}: expected frames per second above 0")


@dataclass(frozen=True, kw_only=True)
class ChosenFrames:
    """Frames that a rule selects from a clip.

    Args:
        windows: indices of the frames of each window, int64 [choice.frames], never decreasing.
        repeated: number of repetitions of the last frame in all windows.
    """

    windows: tuple[Indices, ...]
    repeated: int


def choose_frames(count: int, times_s: NDArray[np.float64] | None, choice: FrameChoice) -> ChosenFrames:
    """Select the windows of a clip.

    Args:
        count: number of frames of the clip.
        times_s: [count] time of each frame, never decreasing; None if unknown.
        choice: rule that selects the frames.

    Raises:
        SourceError: the clip is shorter than a window, or a frame rate is requested and the times are unknown.

    >>> [window.tolist() for window in choose_frames(7, None, FrameChoice(frames=3)).windows]
    [[0, 1, 2], [3, 4, 5]]
    >>> choose_frames(9, None, FrameChoice(frames=3, stride=2, starts=1)).windows[0].tolist()
    [2, 4, 6]
    """
    sampled = _sampled(count, times_s, choice)
    repeated = max(0, choice.frames - len(sampled))
    # A clip without a sampled frame has no last frame that could be repeated.
    if repeated and (choice.short == "refuse" or not len(sampled)):
        rate = f"a stride of {choice.stride or 1}"
        if choice.frame_rate is not None:
            rate = f"{choice.frame_rate:g} frames per second"
        # Without any frame there is none to repeat.
        way = ", or --short-clips repeat" if len(sampled) else ""
        raise SourceError(
            "selection",
            "clip is shorter than a window",
            f"{len(sampled)} of its {plural(count, 'frame')} remain at {rate}, and a window needs "
            f"{choice.frames}; take a smaller --frames{way}",
        )
    sampled = np.concatenate([sampled, np.repeat(sampled[-1:], repeated)])
    slack = len(sampled) - choice.frames
    # Windows without common frames, or a number of windows in the middle of equal shares.
    if choice.starts == "all":
        starts = np.arange(0, slack + 1, choice.frames)
    else:
        number = int(choice.starts)
        starts = slack * (2 * np.arange(number) + 1) // (2 * number)
    windows = tuple(sampled[start : start + choice.frames] for start in starts)
    return ChosenFrames(windows=windows, repeated=repeated * len(windows))


def _sampled(count: int, times_s: NDArray[np.float64] | None, choice: FrameChoice) -> Indices:
    """Return the frames at the stride or the rate, for the complete clip."""
    # A stride counts frames and needs no times.
    if choice.frame_rate is None:
        return np.arange(0, count, choice.stride or 1)
    if times_s is None:  # a folder of frames
        raise SourceError(
            "selection",
            "frames have no time stamps",
            f"{choice.frame_rate:g} frames per second are requested; name the rate of folders of frames with "
            "--folder-frame-rate, or use --frame-stride",
        )
    # Damaged time stamps may claim years, whose samples would exceed memory.
    samples = (float(times_s[-1]) + EARLY_S) * choice.frame_rate
    if samples >= MAX_SAMPLES:
        raise SourceError(
            "selection",
            "more frames than allowed",
            f"{times_s[-1]:g} s at {choice.frame_rate:g} frames per second; at most {MAX_SAMPLES:,} are sampled",
        )
    wanted_s = np.arange(int(samples) + 1) / choice.frame_rate
    return np.searchsorted(times_s, wanted_s + EARLY_S, side="right") - 1
