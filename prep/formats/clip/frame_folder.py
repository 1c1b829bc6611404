"""How a folder of frames becomes a clip: each frame a picture file, in the order of the numbers in their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

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
            image = read_image(files.read(path), options.picture, admit=needed)
            if options.refuse_turned and image.orientation != 1:
                raise turned()
            return image.pixels
        except SourceError as error:
            where = f"frame {path!r}"
            raise SourceError(
                error.stage, error.reason, f"{where}: {error.detail}" if error.detail else where
            ) from error

    def decode(indices: Sequence[int]) -> Iterator[Frame]:
        for index in indices:
            pixels = frame(paths[index])
            if pixels.shape[:2] != size:
                raise other_size(f"frame {paths[index]!r}", pixels.shape[:2], size)
            yield pixels

    file_bytes = max(files.size(path) or 0 for path in paths)
    size = frame(paths[0]).shape[:2]
    times_s, findings = None, _gaps(paths)
    if options.frame_rate is not None:
        times_s, _ = time_stamps(np.arange(len(paths)) / options.frame_rate)
    held_bytes = file_bytes + peak_bytes
    admit(options, size, held_bytes)
    return Clip(
        frames=len(paths),
        height=size[0],
        width=size[1],
        times_s=times_s,
        findings=findings,
        held_bytes=held_bytes,
        decode=decode,
    )


def turned() -> SourceError:
    """The error of a frame that its EXIF orientation turns, of which masks may be drawn before or after it."""
    return SourceError(
        "annotation",
        "frame has an EXIF orientation",
        "its masks may lie on its pixels as stored or as displayed; if as displayed, say --annotation-grid displayed, "
        "else turn the files first",
    )


def _gaps(paths: Sequence[str]) -> tuple[str, ...]:
    """What is said of numbers that are left out between the first frame and the last."""
    numbers = [
        found[-1] for path in paths if (found := _NUMBER.findall(path.rpartition("/")[2].rpartition(".")[0]))
    ]
    if len(numbers) < len(paths):
        return ()
    missing = int(numbers[-1]) - int(numbers[0]) + 1 - len(paths)
    return (f"{missing} frame numbers are missing",) if missing > 0 else ()
