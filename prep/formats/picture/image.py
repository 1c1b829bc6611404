"""Types of the picture readers: options, opened file, decoded picture and errors; and conversion of decoded pixels.

Pixels are converted to the requested orientation, alpha, channels and depth, in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.geometry.resize import displayed_size
from halofeed.prep.voxels.levels import Levels, picture_levels
from halofeed.system.errors import SourceError, UsageError

# uint8 or uint16; each docstring states the axes.
PixelArray = NDArray[Any]
Size = tuple[int, int]
Extent = tuple[float, float, float, float]
"""Top, left, bottom, right in pixels, measured from the top left corner of the first pixel."""

UPSIDE_DOWN, MIRRORED = (3, 4, 7, 8), (2, 3, 6, 7)
"""EXIF orientations that reverse the stored rows (UPSIDE_DOWN) or columns (MIRRORED)."""

SAMPLE_BITS = (0, *range(8, 17))
MAX_PIXELS = 178_956_970
"""Default limit: that of Pillow's DecompressionBombError, 2 x 89,478,485 pixels."""
PART_PIXELS = 1 << 20
"""Pixels copied from a Pillow image at a time; Pillow holds two copies of them meanwhile."""
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
        may_be_uint16: whether records may hold 16 bits, so that messages name --dtype uint16; clips hold 8.
        window: DICOM: which window or VOI LUT is applied, see `halofeed.prep.formats.dicom.display_values.plan_gray`.

    >>> ReadOptions(channels=2)
    Traceback (most recent call last):
    halofeed.system.errors.UsageError: channels: expected 1, 3 or 4, got 2
    """

    channels: int = 3
    dtype: str = "uint8"
    alpha: str = "drop"
    background: tuple[int, ...] = (0, 0, 0)
    max_pixels: int = MAX_PIXELS
    sample_bits: int = 16
    may_be_uint16: bool = True
    window: str | None = None

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
class StatedFacts:
    """Facts that a file states about its picture beside the pixels.

    Args:
        spacing_mm: distance between rows, and between columns, of the pixels that the file stores; None if unknown.
        words: words about what the picture shows, by the name of their field in `schemas.kinds.STATED_FIELDS`.
    """

    spacing_mm: tuple[float, float] | None = None
    words: tuple[tuple[str, str], ...] = ()


NOTHING_STATED = StatedFacts()


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
        levels: levels of 16-bit samples that were scaled to 8 bits; None for others.
        stated: what the file states beside the pixels.
    """

    pixels: PixelArray
    orientation: int
    stored_size: Size
    scale: int
    notes: tuple[str, ...]
    plain_jpeg_channels: int = 0
    levels: Levels | None = None
    stated: StatedFacts = NOTHING_STATED

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
        fills_depth: whether the file states that its 16-bit samples use all bits, so that a dark picture is dark.
    """

    pixels: PixelArray
    scale: int = 1
    notes: tuple[str, ...] = ()
    fills_depth: bool = False


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
    size: Size,
    channels: int,
    sample_bytes: int = 1,
    *,
    pillow_bytes: int = 0,
    extra_pixel_bytes: float = 0,
    held_bytes: int = 0,
) -> MemoryEstimate:
    """Return the memory estimate for a decoder, which allocates its own raster.

    Args:
        size: (height, width) of the raster.
        channels: number of channels of the raster.
        sample_bytes: bytes per value of the raster.
        pillow_bytes: bytes per pixel of Pillow's image, from which the raster is copied in parts: 1 for modes 1, L and
            P, 2 for I;16, else 4; 0 for other decoders.
        extra_pixel_bytes: bytes per pixel that the decoder holds in addition.
        held_bytes: bytes that the decoder holds for any number of pixels.
    """
    pixels = size[0] * size[1]
    raster_bytes = pixels * channels * sample_bytes
    if pillow_bytes:  # a part of the picture and its conversion, see `PART_PIXELS`
        held_bytes += 16 * min(pixels, PART_PIXELS)
    return MemoryEstimate(
        size=size,
        channels=channels,
        sample_bytes=sample_bytes,
        peak_bytes=raster_bytes + round(pixels * (extra_pixel_bytes + pillow_bytes)) + held_bytes,
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
        frames: number of frames, each of which is a picture of its own.
        opened_for: function from the options and the number of a frame, from 0, to the picture with these; None for a
            format whose pixels depend on neither.
        stated: what the file states beside the pixels.
    """

    stored_size: Size
    orientation: int
    estimate: Callable[[bool, Size], MemoryEstimate]
    load: Callable[[bool, Size], Raster]
    plain_channels: int = 0
    more: bool = False
    frames: int = 1
    opened_for: Callable[[ReadOptions, int], OpenedImage] | None = None
    stated: StatedFacts = NOTHING_STATED


class PictureFile(Protocol):
    """Picture in a file that is not read completely."""

    @property
    def byte_count(self) -> int:
        """Bytes that are read for it."""

    def opened(self, options: ReadOptions) -> OpenedImage:
        """Return the picture with these options, with pixels not decoded."""


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
    # JPEG allows a height of 0 that follows the pixels (T.81, B.2.5); the other formats have no empty pictures.
    if height < 1 or width < 1:
        raise decode_error("image has no pixels", f"{height} x {width} pixels (height x width){where}")
    if height * width > max_pixels:
        raise decode_error(
            "more pixels than allowed",
            f"{height} x {width} pixels (height x width){where}, allowed are {max_pixels} in all; --max-pixels "
            f"{height * width} allows them",
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


# ITU-R BT.601 luma in 1/65536, summing to 65536, so that gray stays gray: 0.299, 0.587, 0.114.
LUMA = (19595, 38470, 7471)
GRAY_BANDS = (
    "a TIFF with three gray bands was taken for a color picture: red, green, blue in the order of the bands"
)
MORE_BANDS = (
    "a TIFF has bands beyond red, green and blue, such as infrared, which are not read: a record has 1 or 3 "
    "channels"
)
BURNED_IN_TEXT = (
    "DICOM files state that text is burned into the pixels (Burned In Annotation), which may name the patient; it is "
    "kept"
)
OVERLAYS_LEFT_OUT = "DICOM files have overlays, such as marks and texts, which are left out"
SEVERAL_VIEWS = (
    "DICOM files have several windows or VOI LUTs, of which the first was applied; --window 2 takes the "
    "second"
)
IGNORED_WINDOWS = "DICOM files have windows whose width is too small to be one, which are left out"
NARROW_VALUES = (
    "DICOM files without a window use at most a quarter of the range of their values, so that the pictures have little "
    "contrast; --window CENTER/WIDTH shows a part of the range, or --dtype uint16 keeps all values"
)
SPACING_AT_DETECTOR = (
    "DICOM: the pixel spacing is that at the detector, because the file states no magnification; it is smaller in the "
    "patient"
)
PADDING_IN_BLACK = "DICOM: padding pixels are black"
INVERTED = "DICOM: inverted, as MONOCHROME1 shows low values in white"
FEWER_BITS = "16-bit samples use at most 14 bits, so that the picture is dark; --sample-bits says how many"
"""Note that is added to a dark picture; the conversion prints a warning about it."""
_DARKEST, _DARK = (1 << 12) - 1, 1 << 14
"""16-bit pictures are refused up to the first maximum value, and noted below the second."""


def apply_orientation(pixels: PixelArray, orientation: int) -> PixelArray:
    """Return the displayed view of stored pixels.

    The pictures show where each orientation displays the stored letters a (first row, first column), b (end of the
    first row) and c (last row, first column):

        1     2     3     4     5     6     7     8
        a.b   b.a   ..c   c..   a.c   c.a   ..b   b..
        ...   ...   ...   ...   ...   ...   ...   ...
        c..   ..c   b.a   a.b   b..   ..b   c.a   a.c

    Args:
        pixels: [height, width, channel] as stored.
        orientation: 1 to 8.

    Returns:
        View [height, width, channel] as displayed; height and width are swapped for 5 to 8.

    Source: EXIF 3.0, 4.6.5.1.6.
    """
    displayed = pixels.swapaxes(0, 1) if orientation >= 5 else pixels
    if orientation in UPSIDE_DOWN:
        displayed = displayed[::-1]
    if orientation in MIRRORED:
        displayed = displayed[:, ::-1]
    return displayed


def luma(colors: PixelArray) -> PixelArray:
    """Convert red, green, blue [height, width, 3] to gray [height, width, 1]: ITU-R BT.601, rounded to nearest.

    >>> luma(np.array([[[255, 0, 0], [255, 255, 255]]], np.uint8)).tolist()
    [[[76], [255]]]
    """
    wide = colors.astype(np.uint32)
    total = wide[..., 0] * LUMA[0] + wide[..., 1] * LUMA[1] + wide[..., 2] * LUMA[2]
    return ((total + 32768) >> 16).astype(colors.dtype)[..., None]


def scale_depth(pixels: PixelArray, dtype: str) -> PixelArray:
    """Map the full range of one depth to that of the other: round(v * 255 / 65535), or v * 257.

    >>> scale_depth(np.array([0, 128, 129, 65535], np.uint16), "uint8").tolist()
    [0, 0, 1, 255]
    """
    if pixels.dtype == dtype:
        return pixels
    if dtype == "uint8":
        return ((pixels.astype(np.uint32) + 128) // 257).astype(np.uint8)
    return pixels.astype(np.uint16) * np.uint16(257)


def check_sample_bits(pixels: PixelArray, options: ReadOptions) -> tuple[str, ...]:
    """Compare the largest color value of 16-bit samples with the number of bits in the options.

    Returns:
        A note if the samples seem to use fewer than the assumed 16 bits.

    Raises:
        SourceError: a value needs more bits, or the number of bits is unknown and the picture would be nearly black.
    """
    # With --sample-bits 16 the user states that the values use all bits, even in a dark picture.
    if pixels.dtype != np.uint16 or options.dtype == "uint16" or options.sample_bits == 16:
        return ()
    most = int(_without_alpha(pixels).max(initial=0))
    # A stated number of bits is checked; without one, the largest value suggests it.
    if options.sample_bits:
        if most >> options.sample_bits:
            raise _more_bits(most, options)
        return ()
    # 12 bits or fewer would become at most 16 of 255.
    if 0 < most <= _DARKEST:
        raise _nearly_black(most, options)
    return (FEWER_BITS,) if 0 < most < _DARK else ()


def _more_bits(most: int, options: ReadOptions) -> SourceError:
    wide = ", or for pictures that differ in it --dtype uint16 in place of that"
    detail = (
        f"the largest value is {most}, and {options.sample_bits} bits end at {(1 << options.sample_bits) - 1}; "
        f"use --sample-bits {_usual_bits(most)}{wide if options.may_be_uint16 else ''}"
    )
    return decode_error("samples use more bits", detail)


def _nearly_black(most: int, options: ReadOptions) -> SourceError:
    detail = (
        f"the largest value of the 16-bit samples is {most}, which would be {(most + 128) // 257} of 255; use "
        f"--sample-bits {_usual_bits(most)} if they use that many bits, or 16 if the picture is that dark"
        f"{'; or keep the values with --dtype uint16' if options.may_be_uint16 else ''}"
    )
    return decode_error("picture would become nearly black", detail)


def _without_alpha(pixels: PixelArray) -> PixelArray:
    """Return the colors of [height, width, channel], in which 2 or 4 channels end with alpha."""
    return pixels[..., :-1] if pixels.shape[2] in (2, 4) else pixels


def levels_of(pixels: PixelArray, options: ReadOptions) -> Levels | None:
    """Return what scaling to 8 bits does to the levels of 16-bit pixels [height, width, channel]; None for others."""
    # Only scaling from 16 to 8 bits loses levels.
    if pixels.dtype != np.uint16 or options.dtype == "uint16":
        return None
    bits = options.sample_bits or 16

    def to_stored(values: PixelArray) -> PixelArray:
        filled = fill_depth(values[:, None, None], bits)[:, 0, 0] if bits < 16 else values
        return scale_depth(filled, "uint8")

    return picture_levels(
        _without_alpha(pixels),
        to_stored,
        lambda stored: stored.astype(np.float64) * ((1 << bits) - 1) / 255,
    )


def _usual_bits(most: int) -> int:
    """Return the fewest bits of common cameras and scanners that hold a value."""
    return next(bits for bits in (8, 10, 12, 14, 16) if most >> bits == 0)


def fill_depth(pixels: PixelArray, bits: int) -> PixelArray:
    """Scale 16-bit samples that use `bits` bits to all 16 bits; alpha stays the same.

    >>> fill_depth(np.array([[[0], [2048], [4095]]], np.uint16), 12).ravel().tolist()
    [0, 32776, 65535]
    """
    colors = _without_alpha(pixels)
    peak = (1 << bits) - 1
    filled = ((np.minimum(colors, peak).astype(np.uint32) * 65535 + peak // 2) // peak).astype(np.uint16)
    return filled if colors is pixels else np.concatenate([filled, pixels[..., -1:]], axis=2)


def blend(pixels: PixelArray, background: tuple[int, ...]) -> PixelArray:
    """Blend colors with alpha over a background: round((alpha * color + (peak - alpha) * background) / peak).

    Args:
        pixels: [height, width, 2 or 4]; the last channel is alpha.
        background: one value or three values, 0 to 255; they are scaled to the depth of the pixels.

    Returns:
        [height, width, 3], or 1 channel if both the pixels and the background are gray.
    """
    peak = int(np.iinfo(pixels.dtype).max)
    under = np.array(background, np.uint32) * np.uint32(peak // 255)
    color, alpha = pixels[..., :-1].astype(np.uint32), pixels[..., -1:].astype(np.uint32)
    return ((alpha * color + (peak - alpha) * under + peak // 2) // peak).astype(pixels.dtype)


def convert_pixels(pixels: PixelArray, options: ReadOptions) -> tuple[PixelArray, tuple[str, ...]]:
    """Convert pixels of 1 to 4 channels to the channels and the depth of the options.

    A large picture is converted in blocks to limit the working memory.

    Args:
        pixels: [height, width, channel]; gray, gray and alpha, color, or color and alpha.
        options: requested channels, depth and alpha handling.

    Returns:
        C-contiguous [height, width, options.channels], and notes about the conversions.
    """
    height, width, channels = pixels.shape
    if is_converted(channels, pixels.dtype.itemsize, options):
        return np.ascontiguousarray(pixels), ()
    # In blocks, the working memory is 16 MiB; at once it would be up to 64 bytes per pixel.
    if height * width <= BLOCK_PIXELS:
        return _convert_block(pixels, options)
    converted = np.empty((height, width, options.channels), options.dtype)
    notes: tuple[str, ...] = ()
    for block in iterate_blocks((height, width)):
        converted[block], notes = _convert_block(pixels[block], options)
    return converted, notes


def is_converted(channels: int, sample_bytes: int, options: ReadOptions) -> bool:
    """Return whether pixels with this number of channels and bytes per sample need no conversion."""
    return channels == options.channels and sample_bytes == np.dtype(options.dtype).itemsize


def _convert_block(pixels: PixelArray, options: ReadOptions) -> tuple[PixelArray, tuple[str, ...]]:
    # Cameras of 10 to 14 bits leave the high bits empty; scaling 16 bits would make them dark.
    if pixels.dtype == np.uint16 and options.dtype == "uint8" and 0 < options.sample_bits < 16:
        pixels = fill_depth(pixels, options.sample_bits)
    pixels, notes = _apply_alpha(pixels, options)
    pixels, more = _with_channels(pixels, options.channels)
    notes += more
    if pixels.dtype != options.dtype:
        notes += ("16 bit scaled to 8" if options.dtype == "uint8" else "8 bit scaled to 16",)
    return np.ascontiguousarray(scale_depth(pixels, options.dtype)), notes


def _apply_alpha(pixels: PixelArray, options: ReadOptions) -> tuple[PixelArray, tuple[str, ...]]:
    """Drop or blend alpha if the result has none."""
    # Four channels keep the stored alpha.
    if pixels.shape[2] not in (2, 4) or options.channels == 4:
        return pixels, ()
    if options.alpha == "blend":
        return blend(pixels, options.background), ("alpha blended",)
    return pixels[..., :-1], ("alpha dropped",)


def _with_channels(pixels: PixelArray, channels: int) -> tuple[PixelArray, tuple[str, ...]]:
    """Convert color to gray or gray to color, and add alpha, where `channels` needs that."""
    notes: tuple[str, ...] = ()
    if channels == 1 and pixels.shape[2] == 3:
        return luma(pixels), ("color converted to gray",)
    # Gray and alpha keep their alpha as the fourth channel.
    if channels >= 3 and pixels.shape[2] in (1, 2):
        gray = np.broadcast_to(pixels[..., :1], (*pixels.shape[:2], 3))
        pixels = np.concatenate([gray, pixels[..., 1:]], axis=2)
    if channels == 4 and pixels.shape[2] == 3:
        opaque = np.full((*pixels.shape[:2], 1), np.iinfo(pixels.dtype).max, pixels.dtype)
        pixels = np.concatenate([pixels, opaque], axis=2)
        notes = ("opaque alpha added",)
    return pixels, notes
