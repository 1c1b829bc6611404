"""Types of the picture readers: the options, the opened file, the decoded picture, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from halofeed.errors import SourceError, UsageError
from halofeed.prep.geometry.resize import displayed_size

# uint8 or uint16; each docstring states the axes.
PixelArray = NDArray[Any]
Size = tuple[int, int]
Extent = tuple[float, float, float, float]
"""Top, left, bottom, right in pixels, measured from the top left corner of the first pixel."""

UPSIDE_DOWN, MIRRORED = (3, 4, 7, 8), (2, 3, 6, 7)
"""EXIF orientations that reverse the stored rows (UPSIDE_DOWN) or columns (MIRRORED)."""

SAMPLE_BITS = (0, *range(8, 17))
MAX_PIXELS = 178_956_970
BLOCK_PIXELS = 1 << 18
"""Pixels per conversion block. A step needs less than 64 bytes of working memory per pixel of a block."""

_CHOICES = {"channels": (1, 3, 4), "dtype": ("uint8", "uint16"), "alpha": ("drop", "blend")}


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Channels, depth and alpha handling that every picture is converted to.

    Args:
        channels: 1 (gray: ITU-R BT.601 luma), 3 (red, green, blue) or 4 (with alpha; opaque if the file has no
            alpha).
        dtype: "uint8" or "uint16"; the full range of one maps to the full range of the other.
        alpha: handling of alpha if channels is 1 or 3: "drop" keeps the stored colors, "blend" blends them
            over `background`.
        background: one gray value, or red, green and blue; each is 0 to 255 for both dtypes.
        max_pixels: maximum pixels per file; larger files are refused before memory is allocated.
        sample_bits: number of bits that 16-bit samples use when they are converted to 8 bits: 0 to 2^bits - 1 becomes
            0 to 255. 0 means 16, and refuses a file whose values suggest fewer bits.

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
    """Decoded picture with the channels and the depth of the options.

    Args:
        pixels: [height, width, channel], C-contiguous, as displayed (the orientation is applied).
        orientation: EXIF orientation in the file, 1 to 8; 1 if it is absent or invalid.
        stored_size: (height, width) in the file, at full resolution, before the orientation is applied.
        scale: 1, 2, 4 or 8: the divisor of both sides when the file was decoded.
        notes: conversions that were applied, in order; callers count them.
        plain_jpeg_channels: 1 or 3 if the file is an upright JPEG that every decoder reads as exactly these pixels;
            else 0.
    """

    pixels: PixelArray
    orientation: int
    stored_size: Size
    scale: int
    notes: tuple[str, ...]
    plain_jpeg_channels: int = 0

    @property
    def extent(self) -> Extent:
        """Area of `pixels` that the picture covers.

        A decoder that skips pixels rounds up: at a scale of 1/8, 1201 columns cover 150.125 of 151 columns.
        The excess is at the end of the stored rows and columns; the orientation may move it.
        """
        height, width = (side / self.scale for side in displayed_size(self.orientation, self.stored_size))
        rows, columns = self.pixels.shape[:2]
        top = rows - height if self.orientation in UPSIDE_DOWN else 0.0
        left = columns - width if self.orientation in MIRRORED else 0.0
        return top, left, top + height, left + width


@dataclass(frozen=True, kw_only=True)
class Raster:
    """Output of the decoder of one format.

    Args:
        pixels: [height, width, channel] as stored, uint8 or uint16. 1 channel is gray, 2 are gray and alpha,
            3 are red, green, blue, 4 add alpha (straight, not premultiplied).
        notes: conversions by the decoder that callers count.
        scale: divisor of both sides, see `DecodedImage`.
    """

    pixels: PixelArray
    scale: int = 1
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Memory estimate for decoding a picture, from its header alone.

    Args:
        size: (height, width) of the raster.
        channels: number of channels of the raster.
        sample_bytes: bytes per value of the raster.
        peak_bytes: peak memory while decoding, with the raster, without the bytes of the file.
        raster_bytes: size of the decoded raster.
    """

    size: Size
    channels: int
    sample_bytes: int
    peak_bytes: int
    raster_bytes: int


def estimate_decoding(
    size: Size, channels: int, sample_bytes: int = 1, *, extra_pixel_bytes: float = 0, held_bytes: int = 0
) -> MemoryEstimate:
    """Return the memory estimate for a decoder that allocates its own raster.

    Args:
        size: (height, width) of the raster.
        channels: number of channels of the raster.
        sample_bytes: bytes per value of the raster.
        extra_pixel_bytes: bytes per pixel that the decoder holds in addition to the raster.
        held_bytes: bytes that the decoder holds for any number of pixels.
    """
    pixels = size[0] * size[1]
    raster_bytes = pixels * channels * sample_bytes
    return MemoryEstimate(
        size=size,
        channels=channels,
        sample_bytes=sample_bytes,
        peak_bytes=raster_bytes + round(pixels * extra_pixel_bytes) + held_bytes,
        raster_bytes=raster_bytes,
    )


@dataclass(frozen=True, kw_only=True)
class OpenedImage:
    """Image file whose header was read and whose pixels were not decoded.

    Args:
        stored_size: (height, width) in the file.
        orientation: EXIF orientation, 1 to 8.
        estimate: function from the arguments of `load` to the memory estimate.
        load: function from (gray is enough, minimum stored (height, width)) to the pixels. Only formats that can
            decode less at lower cost use these arguments.
        plain_channels: 1 or 3 if this is a common baseline or progressive JPEG with that many components, which any
            decoder reads; else 0.
        more: whether other frames or pages follow; they are not read.
    """

    stored_size: Size
    orientation: int
    estimate: Callable[[bool, Size], MemoryEstimate]
    load: Callable[[bool, Size], Raster]
    plain_channels: int = 0
    more: bool = False


def decode_error(reason: str, detail: str = "") -> SourceError:
    """Return the error of a file that cannot be decoded; all files with the same fault share the reason."""
    return SourceError("decode", reason, detail)


def truncated_error(detail: str) -> SourceError:
    """Return the error of a file whose end is missing."""
    return decode_error("file is truncated", detail)


def damaged_error(detail: str) -> SourceError:
    """Return the error of a file that breaks the rules of its format."""
    return decode_error("file is damaged", detail)


def check_pixel_count(size: Size, max_pixels: int, where: str = "") -> None:
    """Refuse an empty picture and a picture with too many pixels; `size` is (height, width)."""
    height, width = size
    if height < 1 or width < 1:
        raise decode_error("image has no pixels", f"{height} x {width} pixels (height x width){where}")
    if height * width > max_pixels:
        raise decode_error(
            "more pixels than allowed",
            f"{height} x {width} pixels (height x width){where}, allowed are {max_pixels} in all",
        )


def iterate_blocks(size: Size, max_pixels: int = BLOCK_PIXELS) -> Iterator[tuple[slice, slice]]:
    """Yield the rows and columns of blocks that cover a picture of (height, width).

    >>> [(rows.start, columns.start) for rows, columns in iterate_blocks((3, 4), 8)]
    [(0, 0), (2, 0)]
    """
    height, width = size
    columns = min(width, max_pixels)
    rows = max(1, max_pixels // columns)
    for top in range(0, height, rows):
        for left in range(0, width, columns):
            yield slice(top, min(top + rows, height)), slice(left, min(left + columns, width))
