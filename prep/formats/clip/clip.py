"""What every reader of clips gives: a clip whose frames are decoded when they are asked for, and its options.

What the container of a video says before anything of it is decoded, and what every reader of containers needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import SourceError
from halofeed.prep.formats.picture import ReadOptions
from halofeed.prep.formats.picture.image import Size, damaged, undecodable
from halofeed.system.memory import Need, unlimited, with_margin

Frame = NDArray[np.uint8]
"""[height, width, 3]: red, green, blue, as displayed."""

MOST_FRAMES = 2_000_000
"""A file that claims more is refused: 18 hours at 30 frames a second."""
VARIES_S = 0.002
"""Intervals that differ by more make a variable frame rate; containers round time stamps to a thousandth."""


@dataclass(frozen=True, kw_only=True)
class ClipOptions:
    """What is allowed of a clip and how its frames are converted.

    Args:
        picture: of the frames: `alpha`, `background` and `max_pixels` (of one frame); 3 channels of uint8.
        frame_rate: of folders of frames, which have no time stamps: frames per second; None: their times stay
            unknown.
        incomplete: what becomes of a clip of which frames are missing: "refuse", or "keep" those that are there.
        refuse_turned: whether frames that their EXIF orientation turns are refused.
        need: told how many bytes the clip takes, before they are taken.
    """

    picture: ReadOptions = field(default_factory=ReadOptions)
    frame_rate: float | None = None
    incomplete: str = "refuse"
    refuse_turned: bool = False
    need: Need = unlimited


@dataclass(frozen=True, kw_only=True)
class Clip:
    """A clip that was opened.

    Args:
        frames: how many can be read.
        height, width: of each, as displayed.
        times_s: float64 [frames], when each is shown, in seconds from the first, never decreasing; None where
            nothing says it.
        findings: what someone should know of the file.
        missing: what says that frames are missing; `table.open_clip` raises it, or makes it a finding.
        held_bytes: the most that is held while frames are read, the file and the decoder's own frames among it; the
            frames that the caller keeps are not.
        decode: from ascending indices to these frames.
    """

    frames: int
    height: int
    width: int
    times_s: NDArray[np.float64] | None
    findings: tuple[str, ...]
    held_bytes: int
    decode: Callable[[Sequence[int]], Iterator[Frame]]
    missing: SourceError | None = None

    @property
    def frame_bytes(self) -> int:
        """Of one frame."""
        return self.height * self.width * 3

    def read(self, indices: Sequence[int] | NDArray[np.int64]) -> Iterator[Frame]:
        """The frames of these indices, each once, by ascending index, one at a time.

        Yields:
            uint8 [height, width, 3], C-contiguous.

        Raises:
            SourceError: a frame is damaged, or of another size.
            IndexError: there is no such frame.
        """
        wanted = sorted({int(index) for index in indices})
        if wanted and not 0 <= wanted[0] <= wanted[-1] < self.frames:
            raise IndexError(f"frames {wanted[0]} to {wanted[-1]} of a clip of {self.frames}")
        for index, pixels in zip(wanted, self.decode(wanted), strict=True):
            if pixels.shape != (self.height, self.width, 3):
                raise other_size(
                    f"frame {index}", (pixels.shape[0], pixels.shape[1]), (self.height, self.width)
                )
            yield pixels


def other_size(frame: str, size: Size, first: Size) -> SourceError:
    """The error of a frame that is not as large as the first."""
    return undecodable(
        "frames differ in size",
        f"{frame} is {size[0]} x {size[1]} pixels (height x width), the first {first[0]} x {first[1]}; "
        "bring them to one size first",
    )


def frames_missing(found: int, promised: int) -> SourceError:
    """What says that a file that was not cut off has fewer frames than it should."""
    return undecodable("frames are missing", f"{found} of {promised} that it says it has can be read")


def check_frame_count(count: int) -> None:
    """Refuse a clip without frames, and one of more frames than any."""
    if count < 1:
        raise undecodable("clip has no frames", "its file holds none; leave it out, or export it again")
    if count > MOST_FRAMES:
        raise undecodable(
            "more frames than allowed", f"{count:,}, allowed are {MOST_FRAMES:,}; cut it in parts"
        )


def admit(options: ClipOptions, size: Size, held_bytes: int) -> None:
    """Ask for what reading a clip of frames of (height, width) takes: `held_bytes` and a frame."""
    options.need(with_margin(held_bytes + 3 * size[0] * size[1]))


def time_stamps(
    stamps_s: Sequence[float] | NDArray[np.float64],
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Time stamps from the first one on, and what is odd about them.

    A stamp that lies before the one in front of it is raised to that.

    >>> time_stamps([1.0, 1.04, 1.08, 1.16])
    (array([0.  , 0.04, 0.08, 0.16]), ('variable frame rate',))
    """
    times = np.asarray(stamps_s, np.float64)
    times = times - times[0] if len(times) else times
    findings = []
    steps = np.diff(times)
    if (steps <= 0).any():
        findings.append(f"{int((steps <= 0).sum())} time stamps do not increase")
        times = np.maximum.accumulate(times)
    elif len(steps) and steps.max() - steps.min() > VARIES_S:
        findings.append("variable frame rate")
    return times.round(9), tuple(findings)


T = TypeVar("T")
MOST_ELEMENTS = 5_000_000
"""Boxes, chunks or elements; a file of more is refused."""


@dataclass(frozen=True, kw_only=True)
class Container:
    """A video file by its headers and tables.

    Args:
        size: stored (height, width) of the first video track.
        codec: the container's name of how it is compressed.
        packets: how many of its compressed frames are whole.
        declared: how many the headers promise; None where they do not say.
        end: how many bytes of the file hold these; what comes behind belongs to a frame that is not whole.
        is_cut: the file ends before its container does.
        orientation: 1 to 8, as of EXIF.
        hides_frames: it says itself that not all of them are shown.
        is_interlaced: it says itself that they are.
        has_alpha: it says itself that pixels may be transparent.
        times_s: when each of the whole frames is shown, where the container alone says so.
    """

    size: Size
    codec: str
    packets: int
    declared: int | None
    end: int
    is_cut: bool
    orientation: int = 1
    hides_frames: bool = False
    is_interlaced: bool = False
    has_alpha: bool = False
    times_s: tuple[float, ...] | None = None


def printable(name: bytes) -> str:
    """A name of a few letters as text.

    >>> printable(b"av01"), printable(bytes([0, 0x58, 0x59, 0xFF]))
    ('av01', '?XY?')
    """
    return "".join(chr(byte) if 32 <= byte < 127 else "?" for byte in name[:40])


def no_quarter_turn(what: str) -> SourceError:
    """The error of a video that is shown mirrored or turned in another way than pictures can be."""
    return undecodable(
        "display matrix is not supported", f"{what} does not turn by quarter turns; export it upright"
    )


def no_video(tracks: int) -> SourceError:
    """The error of a file in which nothing can be seen."""
    detail = f"{tracks} track{'s' * (tracks != 1)}, none of them video; leave it out"
    return undecodable("file has no video", f"audio only: {detail}" if tracks else "no track at all")


def limited(elements: Iterator[T]) -> Iterator[T]:
    """Elements as they come; SourceError where there are so many that a file would take forever."""
    for number, element in enumerate(elements):
        if number >= MOST_ELEMENTS:
            raise damaged(f"more than {MOST_ELEMENTS:,} elements")
        yield element
