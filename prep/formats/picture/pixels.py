"""Conversion of decoded pixels to the requested orientation, alpha, channels and depth, in this order."""

from __future__ import annotations

import numpy as np

from halofeed.prep.formats.picture.image import (
    BLOCK_PIXELS,
    MIRRORED,
    UPSIDE_DOWN,
    PixelArray,
    ReadOptions,
    decode_error,
    iterate_blocks,
)

# ITU-R BT.601 luma in 1/65536, summing to 65536, so that gray stays gray: 0.299, 0.587, 0.114.
LUMA = (19595, 38470, 7471)
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

    Source: EXIF 2.32, 4.6.5.1.6.
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
    if pixels.dtype != np.uint16 or options.dtype == "uint16" or options.sample_bits == 16:
        return ()
    most = int((pixels[..., :-1] if pixels.shape[2] in (2, 4) else pixels).max(initial=0))
    if most >> (options.sample_bits or 16):
        peak, bits = (1 << options.sample_bits) - 1, _usual_bits(most)
        detail = (
            f"the largest value is {most}, and {options.sample_bits} bits end at {peak}; say --sample-bits {bits}, or "
            "for pictures that differ in it --dtype uint16 in place of that"
        )
        raise decode_error("samples use more bits", detail)
    if options.sample_bits or most == 0 or most > _DARKEST:
        return (FEWER_BITS,) if not options.sample_bits and 0 < most < _DARK else ()
    detail = (
        f"the largest value of the 16-bit samples is {most}, which would be {(most + 128) // 257} of 255; say "
        f"--sample-bits {_usual_bits(most)} if they use that many bits, or 16 if the picture is that dark; or keep the "
        "values with --dtype uint16"
    )
    raise decode_error("picture would become nearly black", detail)


def _usual_bits(most: int) -> int:
    """Return the fewest bits of common cameras and scanners that hold a value."""
    return next(bits for bits in (8, 10, 12, 14, 16) if most >> bits == 0)


def fill_depth(pixels: PixelArray, bits: int) -> PixelArray:
    """Scale 16-bit samples that use `bits` bits to all 16 bits; alpha stays the same.

    >>> fill_depth(np.array([[[0], [2048], [4095]]], np.uint16), 12).ravel().tolist()
    [0, 32776, 65535]
    """
    colors = pixels[..., :-1] if pixels.shape[2] in (2, 4) else pixels
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
    notes = []
    if pixels.dtype == np.uint16 and options.dtype == "uint8" and 0 < options.sample_bits < 16:
        pixels = fill_depth(pixels, options.sample_bits)
    has_alpha = pixels.shape[2] in (2, 4)
    if has_alpha and options.channels != 4:
        blends = options.alpha == "blend"
        pixels = blend(pixels, options.background) if blends else pixels[..., :-1]
        notes.append("alpha blended" if blends else "alpha dropped")
    if options.channels == 1 and pixels.shape[2] == 3:
        pixels = luma(pixels)
        notes.append("color converted to gray")
    if options.channels >= 3 and pixels.shape[2] in (1, 2):
        gray = np.broadcast_to(pixels[..., :1], (*pixels.shape[:2], 3))
        pixels = np.concatenate([gray, pixels[..., 1:]], axis=2)
    if options.channels == 4 and pixels.shape[2] == 3:
        opaque = np.full((*pixels.shape[:2], 1), np.iinfo(pixels.dtype).max, pixels.dtype)
        pixels = np.concatenate([pixels, opaque], axis=2)
        notes.append("opaque alpha added")
    if pixels.dtype != options.dtype:
        notes.append("16 bit scaled to 8" if options.dtype == "uint8" else "8 bit scaled to 16")
    return np.ascontiguousarray(scale_depth(pixels, options.dtype)), tuple(notes)
