"""Which formats are read, and how one file becomes a picture.

A new format is one file beside this one and one line in FORMATS.

How large does a record's JPEG or PNG say it is? Asked before it is decoded: few bytes may unpack to any number.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import simplejpeg

from halofeed.errors import SourceError
from halofeed.prep.formats.picture.gif_webp_bmp import open_bmp, open_gif, open_webp
from halofeed.prep.formats.picture.image import (
    BLOCK_PIXELS,
    DecodedImage,
    Decoding,
    OpenedImage,
    ReadOptions,
    Size,
    check_pixel_count,
    damaged,
    undecodable,
)
from halofeed.prep.formats.picture.jpeg import START_OF_IMAGE, open_jpeg
from halofeed.prep.formats.picture.pixels import apply_orientation, check_sample_bits, convert, is_converted
from halofeed.prep.formats.picture.png import SIGNATURE, open_png
from halofeed.prep.formats.picture.tiff import open_tiff
from halofeed.prep.geometry.resize import displayed_size

# Name: (what the file's bytes begin with, how it is opened). A "." in a beginning stands for any byte.
FORMATS: dict[str, tuple[tuple[bytes, ...], Callable[[bytes], OpenedImage]]] = {
    "jpeg": ((b"\xff\xd8\xff",), open_jpeg),
    "png": ((b"\x89PNG\r\n\x1a\n",), open_png),
    "webp": ((b"RIFF....WEBP",), open_webp),
    "tiff": ((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), open_tiff),
    "gif": ((b"GIF87a", b"GIF89a"), open_gif),
    "bmp": ((b"BM",), open_bmp),
}

FIRST_OF_SEVERAL = "first of several frames"
# What people have in image folders that is not read, so that the reject can say what it is.
RECOGNIZED = {
    "a PNG picture with a damaged signature": (b"\x89PNG", b".PNG\r\n"),
    "an AVIF or HEIC picture": (b"....ftypavif", b"....ftypheic", b"....ftypheix", b"....ftypmif1"),
    "a JPEG 2000 picture": (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51"),
    "a JPEG XL picture": (b"\xff\x0a", b"\0\0\0\x0cJXL "),
    "a Photoshop document": (b"8BPS",),
    "a PDF document": (b"%PDF",),
    "a PostScript document": (b"%!PS",),
    "a web page or XML": (b"<!DOCTYPE", b"<!doctype", b"<html", b"<HTML", b"<?xml", b"<svg"),
    "a gzip archive": (b"\x1f\x8b",),
    "a zip archive": (b"PK\x03\x04",),
    "a Git LFS pointer; run `git lfs pull`": (b"version https://git-lfs",),
}


def begins(data: bytes, patterns: Iterable[bytes]) -> bool:
    """Whether a file begins as one of the patterns says; a "." stands for any byte."""
    return any(
        len(data) >= len(pattern) and all(p in (b, ord(".")) for b, p in zip(data, pattern, strict=False))
        for pattern in patterns
    )


def recognized(data: bytes, kinds: Mapping[str, Iterable[bytes]]) -> str | None:
    """Which of these kinds a file is, by the patterns that it may begin with; None if it is none of them."""
    return next((kind for kind, patterns in kinds.items() if begins(data, patterns)), None)


def sniff(data: bytes) -> str:
    """The format's name in FORMATS, by the file's first bytes.

    Raises:
        SourceError: the file is empty, or no format that is read.

    >>> sniff(b"GIF89a...")
    'gif'
    """
    if not data:
        raise undecodable("file is empty")
    name = recognized(data, {name: patterns for name, (patterns, _) in FORMATS.items()})
    if name is None:
        kind = recognized(data, RECOGNIZED) or f"begins with {data[:8].hex(' ')}"
        raise undecodable("not an image format that is read", f"{kind}; read are {', '.join(FORMATS)}")
    return name


def _open(data: bytes) -> OpenedImage:
    return FORMATS[sniff(data)][1](data)


def read_size(data: bytes) -> Size:
    """The (height, width) of an image as displayed, at full resolution, from its header alone.

    Raises:
        SourceError: as `read_image`, as far as the header shows it.
    """
    opened = _open(data)
    return displayed_size(opened.orientation, opened.stored_size)


def size_and_orientation(head: bytes) -> tuple[Size, int] | None:
    """The stored (height, width) and the EXIF orientation of a file by its first bytes; None where they lack them.

    A PNG, GIF, BMP or WebP whose beginning has no EXIF data counts as upright; the size of the latter three, and of
    what is no picture, is then (0, 0).
    """
    try:
        name = sniff(head)
    except SourceError:
        return (0, 0), 1
    if name in ("gif", "bmp"):
        return (0, 0), 1
    if name == "png" and b"eXIf" not in head:
        return (int.from_bytes(head[20:24], "big"), int.from_bytes(head[16:20], "big")), 1
    if name == "webp" and (head[12:16] != b"VP8X" or not head[20:21] or not head[20] & 8):
        return (0, 0), 1
    try:
        opened = FORMATS[name][1](head)
    except SourceError:
        return None
    return opened.stored_size, opened.orientation


LET_GO_BYTES = 256 << 20
"""So much of what was let go may still be the process's: see `halofeed.system.memory`."""


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What reading an image takes, told before its pixels are decoded.

    Args:
        peak_bytes: the most that is held, the bytes of the file left out.
        pixel_bytes: what the pixels hold at the end.
        size: (height, width) of these, as displayed.
        displayed_size: that of the whole picture, at full resolution.
    """

    peak_bytes: int
    pixel_bytes: int
    size: Size
    displayed_size: Size


def _footprint(decoding: Decoding, opened: OpenedImage, options: ReadOptions) -> Footprint:
    pixels = decoding.size[0] * decoding.size[1]
    converted = pixels * options.channels * np.dtype(options.dtype).itemsize
    peak_bytes, kept = decoding.peak_bytes, decoding.raster_bytes
    if opened.orientation != 1 or not is_converted(decoding.channels, decoding.sample_bytes, options):
        let_go = min(peak_bytes - kept, LET_GO_BYTES)
        peak_bytes = max(peak_bytes, kept + let_go + converted + 64 * min(pixels, BLOCK_PIXELS))
        kept = converted
    return Footprint(
        peak_bytes=peak_bytes,
        pixel_bytes=kept,
        size=displayed_size(opened.orientation, decoding.size),
        displayed_size=displayed_size(opened.orientation, opened.stored_size),
    )


def read_image(
    data: bytes,
    options: ReadOptions,
    needed_size: Callable[[int, int], Size] | None = None,
    admit: Callable[[Footprint], None] | None = None,
) -> DecodedImage:
    """Decode a whole image file into the channels and depth that the options ask for, the right way up.

    The format is found by the file's first bytes, never by a name. In this order: decoded at the file's own
    depth (1, 2 and 4 bits and palettes expanded to 8, CMYK converted), turned upright, alpha dropped or
    blended, color converted to gray (ITU-R BT.601 luma) or gray repeated in three channels, the depth scaled
    over its full range. Of several frames or pages the first is read. Color profiles are not applied.

    Args:
        data: the file's bytes.
        options: what is wanted.
        needed_size: from the displayed (height, width) at full resolution to the (height, width) that later
            steps make use of. A JPEG is then decoded at 1/2, 1/4 or 1/8 where that is not smaller, so that
            `pixels` may be smaller than `stored_size`. Left out: always at full resolution.
        admit: told what reading takes before anything of that size is made; what it raises ends the reading.

    Raises:
        SourceError: stage `decode`: not an image, of a kind that is not read, damaged, cut off or too large.
            A picture of which a part is missing is never returned. Or its 16-bit samples use other bits than the
            options say.
    """
    opened = _open(data)
    check_pixel_count(opened.stored_size, options.max_pixels)
    displayed = displayed_size(opened.orientation, opened.stored_size)
    needed = displayed_size(opened.orientation, needed_size(*displayed) if needed_size else displayed)
    gray_is_enough = options.channels == 1
    if admit is not None:
        admit(_footprint(opened.plan(gray_is_enough, needed), opened, options))
    raster = opened.load(gray_is_enough, needed)
    notes = list(raster.notes)
    if not needed_size and raster.pixels.shape[:2] != opened.stored_size:
        decoded = raster.pixels.shape[:2]
        raise damaged(f"header says {opened.stored_size}, decoded are {decoded}")
    if opened.orientation != 1:
        notes.append("orientation applied")
    notes += check_sample_bits(raster.pixels, options)
    pixels, conversions = convert(apply_orientation(raster.pixels, opened.orientation), options)
    changes = (*notes, *conversions)
    return DecodedImage(
        pixels=pixels,
        orientation=opened.orientation,
        stored_size=opened.stored_size,
        scale=raster.scale,
        notes=(FIRST_OF_SEVERAL, *changes) if opened.more else changes,
        plain_jpeg_channels=0 if changes else opened.plain_channels,
    )


_IHDR_END = len(SIGNATURE) + 16


def check_stored(data: memoryview | bytes, encoding: str, largest: Size) -> Size:
    """Refuse to decode what is no picture of an encoding, or larger than it may be.

    Args:
        data: the file.
        encoding: jpeg or png.
        largest: (height, width).

    Returns:
        its (height, width).

    Raises:
        ValueError: says what is wrong.
    """
    if encoding == "jpeg":
        if bytes(data[: len(START_OF_IMAGE)]) != START_OF_IMAGE:
            raise ValueError("not a JPEG file")
        try:
            height, width, *_ = simplejpeg.decode_jpeg_header(data, strict=False)
        except KeyError as error:  # the number of a color space or a sampling that it has no name for
            raise ValueError("its header is damaged") from error
    else:
        head = bytes(data[:_IHDR_END])
        if len(head) < _IHDR_END or not head.startswith(SIGNATURE) or head[12:16] != b"IHDR":
            raise ValueError("not a PNG file")
        width, height = struct.unpack_from(">II", head, 16)
    if not (1 <= height <= largest[0] and 1 <= width <= largest[1]):
        raise ValueError(f"it is {height} x {width}, and at most {largest[0]} x {largest[1]} is expected")
    return height, width
