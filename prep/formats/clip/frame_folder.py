"""How a folder of frames becomes a clip: each frame a picture file, in the order of the numbers in their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from posixpath import basename

import numpy as np

from halofeed.prep.formats.clip.clip import (
    Clip,
    ClipOptions,
    Frame,
    admit,
    check_frame_count,
    other_size,
    time_stamps,
)
from halofeed.prep.formats.picture import Footprint, read_image
from halofeed.prep.formats.picture.png import SIGNATURE
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.memory import with_margin
from halofeed.schemas.errors import SourceError

_NUMBER = re.compile(r"(\d+)")


def natural_order(paths: Iterable[str]) -> list[str]:
    """Paths by the numbers in them, not by their digits.

    >>> natural_order(["a/frame10.png", "a/frame9.png", "a/frame009.png"])
    ['a/frame009.png', 'a/frame9.png', 'a/frame10.png']
    """

    def key(path: str) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBER.split(path)]

    return sorted(paths, key=lambda path: (key(path), path))


def open_frame_folder(files: SourceFiles, members: Sequence[str], options: ClipOptions) -> Clip:
    """Open a clip of picture files; the first is decoded, the others when they are read.

    Args:
        members: the frames' paths, in any order.

    Raises:
        SourceError: there is none, or the first cannot be read; when read, also that one is of another size.
    """
    paths = natural_order(members)
    check_frame_count(len(paths))
    peak_bytes = 0

    def needed(footprint: Footprint) -> None:
        nonlocal peak_bytes
        peak_bytes = max(peak_bytes, footprint.peak_bytes)
        options.need(with_margin(file_bytes + footprint.peak_bytes))

    def frame(path: str) -> Frame:
        try:
            image = read_image(read_still(files, path), options.picture, admit=needed)
            if options.refuse_turned and image.orientation != 1:
                raise turned()
            return image.pixels
        except SourceError as error:
            raise error.at(f"frame {path!r}") from error

    def decode(indices: Sequence[int]) -> Iterator[Frame]:
        for index in indices:
            pixels = frame(paths[index])
            if pixels.shape[:2] != size:
                raise other_size(f"frame {paths[index]!r}", pixels.shape[:2], size)
            yield pixels

    file_bytes = max(files.size(path) or 0 for path in paths)
    size = frame(paths[0]).shape[:2]
    times_s = None
    if options.frame_rate is not None:
        times_s, _ = time_stamps(np.arange(len(paths)) / options.frame_rate)
    held_bytes = file_bytes + peak_bytes
    admit(options, size, held_bytes)
    return Clip(
        frames=len(paths),
        height=size[0],
        width=size[1],
        times_s=times_s,
        findings=(),
        missing=_numbers_left_out(paths),
        held_bytes=held_bytes,
        decode=decode,
    )


def moves(head: bytes) -> bool:
    """Whether a PNG or WebP file holds several pictures, by its first bytes.

    Source: Portable Network Graphics, third edition, 11.3.6.1; RFC 9649, section 2.7.1.
    """
    if head.startswith(SIGNATURE):
        at = head.find(b"acTL", 0, head.find(b"IDAT"))
        return at >= 0 and head[at + 4 : at + 8] != b"\0\0\0\1"
    return head[8:16] == b"WEBPVP8X" and bool(head[20:21] and head[20] & 2)


def read_still(files: SourceFiles, path: str) -> bytes:
    """The bytes of a frame, or of the mask of one; SourceError where it is an animation itself."""
    data = files.read(path)
    if moves(data):
        detail = "it may be a clip, or one of the frames beside it; put animations into a folder of their own"
        raise SourceError("selection", "an animation lies among frames", detail)
    return data


def turned() -> SourceError:
    """The error of a frame that its EXIF orientation turns, of which masks may be drawn before or after it."""
    return SourceError(
        "annotation",
        "frame has an EXIF orientation",
        "its masks may lie on its pixels as stored or as displayed; if as displayed, say --annotation-grid displayed, "
        "else turn the files first",
    )


def _numbers_left_out(paths: Sequence[str]) -> SourceError | None:
    """What is said of a gap in the numbers of the frames; each second or each tenth frame has none.

    Where more than one number differs from name to name, none of them is known to count frames.
    """
    numbers = zip(*(_NUMBER.findall(basename(path).rpartition(".")[0]) for path in paths), strict=False)
    counting = [column for column in numbers if len(set(column)) > 1]
    if len(counting) != 1 or len(paths) < 3:
        return None
    steps = [int(after) - int(before) for before, after in pairwise(counting[0])]
    least, largest = min(steps), max(steps)
    if largest < 2 * least:
        return None
    at = steps.index(largest)
    return SourceError(
        "selection",
        "frame numbers have gaps",
        f"{basename(paths[at])!r} is followed by {basename(paths[at + 1])!r}, a step of {largest} where the least is "
        f"{least}; frames are missing, or those of several clips lie in one folder",
    )
