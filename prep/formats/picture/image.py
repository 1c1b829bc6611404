"""What goes into reading an image and what comes out: the options, the opened file, the decoded picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from halofeed.errors import SourceError, UsageError
from halofeed.prep.geometry.resize import displayed_size

# uint8 or uint16; each docstring says the axes.
Pixels = NDArray[Any]
Size = tuple[int, int]
Extent = tuple[float, float, float, float]
"""Top, left, bottom, right in pixels, from the corner of the first."""

UPSIDE_DOWN, MIRRORED = (3, 4, 7, 8), (2, 3, 6, 7)
"""Orientations whose displayed rows, or columns, run from the end to the beginning of the stored ones."""

SAMPLE_BITS = (0, *range(8, 17))
MAX_PIXELS = 178_956_970
BLOCK_PIXELS = 1 << 18
"""Pixels are converted so many at a time; beside its result a step makes less than 64 bytes for each of these."""


_CHOICES = {"channels": (1, 3, 4), "dtype": ("uint8", "uint16"), "alpha": ("drop", "blend")}


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What the caller wants every picture turned into.

    Args:
        channels: 1 (gray: ITU-R BT.601 luma), 3 (red, green, blue) or 4 (with alpha; opaque where the file
            has none).
        dtype: "uint8" or "uint16"; the full range of the one maps to the full range of the other.
        alpha: what happens to a file's alpha where channels is 1 or 3: "drop" keeps the stored colors,
            "blend" puts them over `background`.
        background: one gray or three red, green, blue values of 0 to 255, whatever the dtype.
        max_pixels: a file that claims more pixels than this is refused before memory is taken for it.
        sample_bits: how many bits the 16-bit samples of a file use, where they become 8 bits: 0 to 2^bits - 1 becomes 0
            to 255. 0: 16, and a file whose values look as if it were fewer is refused.

    >>> ReadOptions(channels=2)
    Traceback (most recent call last):
    halofeed.errors.UsageError: channels: expected 1, 3 or 4, got 2
    """

    channels: int = 3
    dtype: str = "uint8"
    alpha: str = "drop"
    background: tuple[int, ...] = (0, 0, 0)
    max_pixels: int = MAX_PIXELS
    sample_bits: int = 16

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                *most, last = (str(value) for value in allowed)
                expected = f"{', '.join(most)} or {last}"
                raise UsageError(f"{name}: expected {expected}, got {getattr(self, name)}")
        if len(self.background) not in (1, 3) or not all(0 <= value <= 255 for value in self.background):
            raise UsageError(
                f"background: expected one or three values of 0 to 255, got {self.background}; "
                "write (255, 255, 255) for white"
            )
        if self.sample_bits not in SAMPLE_BITS:
            raise UsageError(f"sample_bits: expected one of {SAMPLE_BITS}, got {self.sample_bits}")
        if self.max_pixels < 1:
            raise UsageError(f"max_pixels: expected at least 1, got {self.max_pixels}")


@dataclass(frozen=True, kw_only=True)
class DecodedImage:
    """One picture, as the options asked for it.

    Args:
        pixels: [height, width, channel], C-contiguous, as displayed (the orientation is applied).
        orientation: the EXIF orientation that the file said, 1 to 8; 1 where it said none or nonsense.
        stored_size: (height, width) in the file, at full resolution, before the orientation.
        scale: 1, or by how much fewer pixels lie along each side than in the file.
        notes: what was done to the picture that someone might count, in the order it was done.
        plain_jpeg_channels: 1 or 3 where the file is a JPEG that every decoder reads as these very pixels, upright;
            else 0.
    """

    pixels: Pixels
    orientation: int
    stored_size: Size
    scale: int
    notes: tuple[str, ...]
    plain_jpeg_channels: int = 0

    @property
    def extent(self) -> Extent:
        """Which part of `pixels` the file's picture takes.

        A decoder that leaves out pixels rounds up: at a scale of 1/8, 1201 columns take 150.125 of 151. What hangs
        over lies at the end of the stored rows and columns, wherever the orientation has put that.
        """
        height, width = (side / self.scale for side in displayed_size(self.orientation, self.stored_size))
        rows, columns = self.pixels.shape[:2]
        top = rows - height if self.orientation in UPSIDE_DOWN else 0.0
        left = columns - width if self.orientation in MIRRORED else 0.0
        return top, left, top + height, left + width


@dataclass(frozen=True, kw_only=True)
class Raster:
    """What a format's decoder delivers.

    Args:
        pixels: [height, width, channel] as stored, uint8 or uint16; 1 channel is gray, 2 gray and alpha,
            3 red, green, blue, 4 those and alpha (straight, not premultiplied).
        notes: what the decoder did that someone might count.
        scale: as of a `DecodedImage`.
    """

    pixels: Pixels
    scale: int = 1
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """What loading a picture takes, by its header alone.

    Args:
        size: (height, width) of the raster.
        channels: of the raster.
        sample_bytes: of each of its values.
        peak_bytes: the most that is held while it is loaded, the raster among it, the bytes of the file left out.
        raster_bytes: what the raster holds once it is loaded.
    """

    size: Size
    channels: int
    sample_bytes: int
    peak_bytes: int
    raster_bytes: int


def plan_decoding(
    size: Size, channels: int, sample_bytes: int = 1, *, beside: float = 0, held_bytes: int = 0
) -> Decoding:
    """The decoding of a raster of its own.

    Args:
        beside: bytes a pixel that are held beside the raster while it is filled.
        held_bytes: what is held besides, whatever the number of pixels.
    """
    pixels = size[0] * size[1]
    raster_bytes = pixels * channels * sample_bytes
    return Decoding(
        size=size,
        channels=channels,
        sample_bytes=sample_bytes,
        peak_bytes=raster_bytes + round(pixels * beside) + held_bytes,
        raster_bytes=raster_bytes,
    )


@dataclass(frozen=True, kw_only=True)
class OpenedImage:
    """A file whose header was read and whose pixels were not.

    Args:
        stored_size: (height, width) in the file.
        orientation: EXIF orientation, 1 to 8.
        plan: from what `load` takes to what loading will take.
        load: from (gray is enough, the least stored (height, width) needed) to the pixels. Only a format
            with a cheap way to less makes use of either.
        plain_channels: 1 or 3 where this is a baseline or progressive JPEG of that many components with nothing odd
            about it, which any decoder reads; else 0.
        more: whether other frames or pages follow, which are not read.
    """

    stored_size: Size
    orientation: int
    plan: Callable[[bool, Size], Decoding]
    load: Callable[[bool, Size], Raster]
    plain_channels: int = 0
    more: bool = False


def undecodable(reason: str, detail: str = "") -> SourceError:
    """The error of a file that cannot be decoded, for a reason that is the same for all with this fault."""
    return SourceError("decode", reason, detail)


def truncated(detail: str) -> SourceError:
    """The error of a file whose end is missing."""
    return undecodable("file is truncated", detail)


def damaged(detail: str) -> SourceError:
    """The error of a file that breaks the rules of its format."""
    return undecodable("file is damaged", detail)


def check_pixel_count(size: Size, max_pixels: int, where: str = "") -> None:
    """Refuse an empty picture and one with more pixels than allowed; `size` is (height, width)."""
    height, width = size
    if height < 1 or width < 1:
        raise undecodable("image has no pixels", f"{height} x {width} pixels (height x width){where}")
    if height * width > max_pixels:
        raise undecodable(
            "more pixels than allowed",
            f"{height} x {width} pixels (height x width){where}, allowed are {max_pixels} in all",
        )


def blocks(size: Size, most: int = BLOCK_PIXELS) -> Iterator[tuple[slice, slice]]:
    """The rows and columns of blocks that together are a picture of (height, width), each of at most so many pixels.

    >>> [(rows.start, columns.start) for rows, columns in blocks((3, 4), 8)]
    [(0, 0), (2, 0)]
    """
    height, width = size
    columns = min(width, most)
    rows = max(1, most // columns)
    for top in range(0, height, rows):
        for left in range(0, width, columns):
            yield slice(top, min(top + rows, height)), slice(left, min(left + columns, width))
