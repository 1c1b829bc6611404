"""Types that all clip readers share: the opened clip, its options, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.picture import ReadOptions
from halofeed.prep.formats.picture.image import Size, decode_error
from halofeed.prep.voxels.levels import Levels
from halofeed.system.errors import SourceError
from halofeed.system.memory import ReserveMemory, no_memory_limit

RgbFrame = NDArray[np.uint8]
"""uint8 [height, width, 3]: red, green, blue, as displayed."""

MAX_FRAMES = 2_000_000
"""Maximum frames of a clip: 18 hours at 30 frames per second."""
VARIABLE_RATE_S = 0.002
"""Intervals that differ by more are a variable frame rate; containers round time stamps to 1 ms."""


@dataclass(frozen=True, kw_only=True)
class FrameOptions:
    """Options of a clip: checks of the file and conversion of the frames.

    Args:
        picture: options of the frames: `alpha`, `background` and `max_pixels` (per frame); 3 channels of uint8.
        frame_rate: frames per second of folders of frames, which have no time stamps; None: the times are unknown.
        incomplete: handling of a clip with missing frames: "refuse" it, or "keep" the existing frames.
        refuse_turned: whether to refuse frames with an EXIF orientation other than 1.
        reserve: function that receives the bytes that the clip needs before they are allocated; it may raise.
        note_levels: function that receives the levels of each 16-bit frame that was scaled to 8 bits.
    """

    picture: ReadOptions = field(default_factory=ReadOptions)
    frame_rate: float | None = None
    incomplete: str = "refuse"
    refuse_turned: bool = False
    reserve: ReserveMemory = no_memory_limit
    note_levels: Callable[[Levels], None] = lambda levels: None


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Opened clip.

    Args:
        frames: number of frames that can be read.
        height: height of each frame, as displayed.
        width: width of each frame, as displayed.
        times_s: float64 [frames], time of each frame in seconds after the first, never decreasing; None if
            unknown.
        findings: facts about the file that the user should know.
        missing: error that says that frames are missing; `table.open_clip` raises it or turns it into a finding.
        held_bytes: peak memory while frames are read, with the file and the decoder's frames, without the frames
            that the caller keeps.
        decode: function from ascending indices, of which it takes one after the other, to their frames.
    """

    frames: int
    height: int
    width: int
    times_s: NDArray[np.float64] | None
    findings: tuple[str, ...]
    held_bytes: int
    decode: Callable[[Iterable[int]], Iterator[RgbFrame]]
    missing: SourceError | None = None

    @property
    def frame_bytes(self) -> int:
        """Bytes of one frame."""
        return self.height * self.width * 3

    def read(self, indices: Sequence[int] | NDArray[np.int64]) -> Iterator[RgbFrame]:
        """Decode frames one at a time, each once, by ascending index.

        Yields:
            uint8 [height, width, 3], C-contiguous.

        Raises:
            SourceError: a frame is damaged or has another size.
            IndexError: there is no such frame.
        """
        wanted = sorted({int(index) for index in indices})
        if wanted and not 0 <= wanted[0] <= wanted[-1] < self.frames:
            raise IndexError(f"frames {wanted[0]} to {wanted[-1]} of a clip of {self.frames}")
        for index, pixels in zip(wanted, self.decode(wanted), strict=True):
            if pixels.shape != (self.height, self.width, 3):
                size = pixels.shape[0], pixels.shape[1]
                raise size_mismatch(f"frame {index}", size, (self.height, self.width))
            yield pixels


def size_mismatch(frame: str, size: Size, first: Size) -> SourceError:
    """Return the error of a frame whose size differs from that of the first frame."""
    return decode_error(
        "frames differ in size",
        f"{frame} is {size[0]} x {size[1]} pixels (height x width), the first {first[0]} x {first[1]}; "
        "resize them to one size first",
    )


def missing_frames(found: int, promised: int) -> SourceError:
    """Return the error of a file that is not truncated but has too few frames."""
    return decode_error("frames are missing", f"{found} of {promised} that it says it has can be read")


def check_frame_count(count: int) -> None:
    """Refuse a clip without frames or with too many."""
    if count < 1:
        raise decode_error("clip has no frames", "its file holds none; leave it out, or export it again")
    # Tables of times and offsets grow with the frames that a header claims.
    if count > MAX_FRAMES:
        raise decode_error(
            "more frames than allowed", f"{count:,}, allowed are {MAX_FRAMES:,}; cut it in parts"
        )


def reserve_memory(options: FrameOptions, size: Size, held_bytes: int) -> None:
    """Reserve the memory for reading a clip: `held_bytes` and one frame of (height, width)."""
    options.reserve(held_bytes + 3 * size[0] * size[1])


def normalize_times(
    stamps_s: Sequence[float] | NDArray[np.float64],
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return time stamps relative to the first, and findings about them.

    A stamp that is earlier than the previous stamp is raised to it.

    >>> normalize_times([1.0, 1.04, 1.08, 1.16])
    (array([0.  , 0.04, 0.08, 0.16]), ('variable frame rate',))
    """
    times = np.asarray(stamps_s, np.float64)
    # Streams cut from longer ones begin at any time.
    times = times - times[0] if len(times) else times
    findings = []
    steps = np.diff(times)
    # Frames are in the order of display, so a stamp that is not later is damage; windows need times that do not fall.
    if (steps <= 0).any():
        findings.append(f"{int((steps <= 0).sum())} time stamps do not increase")
        times = np.maximum.accumulate(times)
    elif len(steps) and steps.max() - steps.min() > VARIABLE_RATE_S:
        findings.append("variable frame rate")
    return times.round(9), tuple(findings)
