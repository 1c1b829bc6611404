"""What the container of a video says before anything of it is decoded, and what every reader of containers needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from halofeed.prep.formats.picture.image import Size, damaged, undecodable
from halofeed.schemas.errors import SourceError

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
