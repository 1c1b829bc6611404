"""Table of the picture formats, and the function that reads one file of any of them.

To add a format, write one file here, and extend FORMATS and `halofeed.prep.sources.file_names.IMAGE_EXTENSIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from halofeed.prep.formats.dicom.headers import is_dicom
from halofeed.prep.formats.picture.avif import open_avif
from halofeed.prep.formats.picture.gif_webp_bmp import open_bmp, open_gif, open_webp
from halofeed.prep.formats.picture.heic import open_heic
from halofeed.prep.formats.picture.image import (
    BLOCK_PIXELS,
    DecodedImage,
    MemoryEstimate,
    OpenedImage,
    PictureFile,
    ReadOptions,
    Size,
    apply_orientation,
    check_pixel_count,
    check_sample_bits,
    convert_pixels,
    damaged_error,
    decode_error,
    is_converted,
    levels_of,
)
from halofeed.prep.formats.picture.jpeg import open_jpeg
from halofeed.prep.formats.picture.jxl import CONTAINER, open_jpeg_xl
from halofeed.prep.formats.picture.png import open_png
from halofeed.prep.formats.picture.tiff import open_tiff
from halofeed.prep.geometry.resize import displayed_size
from halofeed.prep.sources.files import POINTERS
from halofeed.prep.voxels.encoded_image import PNG_SIGNATURE, START_OF_IMAGE
from halofeed.system.errors import SourceError

_HEVC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx")
_ANY_BRANDS = (b"mif1", b"msf1")


def open_heif(data: bytes) -> OpenedImage:
    """Open a file of the format HEIF, whose brands say whether its pictures are AV1 or HEVC."""
    brands = data[8 : int.from_bytes(data[:4], "big")]
    # The general brands are those of both (ISO 23008-12, 10.2; AVIF, 6).
    is_avif = data[8:12] in _ANY_BRANDS and any(brand in brands for brand in (b"avif", b"avis"))
    return (open_avif if is_avif else open_heic)(data)


def _open_dicom(data: bytes) -> OpenedImage:
    from halofeed.prep.formats.picture.dicom_picture import open_dicom  # takes 0.5 s

    return open_dicom(data)


def _dicom_size(head: bytes) -> Size | None:
    from halofeed.prep.formats.dicom.picture_header import size_of_head  # takes 0.1 s

    return size_of_head(head)


# Format name: (first bytes of a file, function that opens it). A "." in a pattern matches any byte.
FORMATS: dict[str, tuple[tuple[bytes, ...], Callable[[bytes], OpenedImage]]] = {
    "jpeg": ((START_OF_IMAGE + b"\xff",), open_jpeg),
    "png": ((PNG_SIGNATURE,), open_png),
    "webp": ((b"RIFF....WEBP",), open_webp),
    "tiff": ((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), open_tiff),
    "gif": ((b"GIF87a", b"GIF89a"), open_gif),
    "bmp": ((b"BM",), open_bmp),
    "avif": ((b"....ftypavif", b"....ftypavis"), open_avif),
    "heic": (tuple(b"....ftyp" + brand for brand in (*_HEVC_BRANDS, *_ANY_BRANDS)), open_heif),
    "jxl": ((b"\xff\x0a", CONTAINER), open_jpeg_xl),
    "dicom": ((b"." * 128 + b"DICM",), _open_dicom),
}

FIRST_OF_SEVERAL = "first of several frames"
"""Note of a `DecodedImage` whose file has more frames or pages."""
# Formats that people keep in image folders and that halofeed cannot read. The error message names them.
UNSUPPORTED_PICTURES = {
    "a PNG picture with a damaged signature": (b"\x89PNG", b".PNG\r\n"),
    "a JPEG 2000 picture": (b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51"),
    "a Photoshop document": (b"8BPS",),
    "a PDF document": (b"%PDF",),
    "a PostScript document": (b"%!PS",),
    "a web page or XML": (b"<!DOCTYPE", b"<!doctype", b"<html", b"<HTML", b"<?xml", b"<svg"),
    "a gzip archive": (b"\x1f\x8b",),
    "a zip archive": (b"PK\x03\x04",),
    **{kind: (start,) for kind, start in POINTERS.items()},
}


def recognize(data: bytes, kinds: Mapping[str, Iterable[bytes]]) -> str | None:
    """Return the kind whose patterns (see `matches_start`) match the first bytes of a file; None if no kind matches."""
    return next((kind for kind, patterns in kinds.items() if matches_start(data, patterns)), None)


def matches_start(data: bytes, patterns: Iterable[bytes]) -> bool:
    """Return whether a file starts with one of the patterns; a "." matches any byte."""
    return any(
        len(data) >= len(pattern) and all(p in (b, ord(".")) for b, p in zip(data, pattern, strict=False))
        for pattern in patterns
    )


def sniff(data: bytes) -> str:
    """Return the name in FORMATS that matches the first bytes of a file.

    Raises:
        SourceError: the file is empty or has another format.

    >>> sniff(b"GIF89a...")
    'gif'
    """
    if not data:
        raise decode_error("file is empty")
    # The first bytes of a DICOM file may be those of a TIFF file, or of any other (PS3.10, 7.1).
    if is_dicom(data):
        return "dicom"
    name = recognize(data, {name: patterns for name, (patterns, _) in FORMATS.items()})
    if name is None:
        kind = recognize(data, UNSUPPORTED_PICTURES) or f"begins with {data[:8].hex(' ')}"
        raise decode_error("not an image format that is read", f"{kind}; read are {', '.join(FORMATS)}")
    return name


def size_and_orientation(head: bytes) -> tuple[Size, int] | None:
    """Return the stored (height, width) and the EXIF orientation from the first bytes of a file.

    The result is None if the bytes end too early or are damaged. The size is (0, 0), unknown, for GIF, BMP, WebP
    without EXIF data and other files than pictures. These, and PNG without EXIF data in these bytes, count as upright.
    """
    try:
        name = sniff(head)
    except SourceError:
        return (0, 0), 1
    if name in ("gif", "bmp"):  # they have no EXIF data
        return (0, 0), 1
    if name == "dicom":
        size = _dicom_size(head)
        return None if size is None else (size, 1)
    # The size is in the first chunk; reading the header would check the checksums of all chunks.
    if name == "png" and b"eXIf" not in head:
        return (int.from_bytes(head[20:24], "big"), int.from_bytes(head[16:20], "big")), 1
    # The first chunk of a WebP file with EXIF data is VP8X, and its flags contain the bit 8.
    if name == "webp" and (head[12:16] != b"VP8X" or not head[20:21] or not head[20] & 8):
        return (0, 0), 1
    try:
        opened = FORMATS[name][1](head)
    except SourceError:
        return None
    return opened.stored_size, opened.orientation


def open_picture(data: bytes, options: ReadOptions, frame: int = 0) -> OpenedImage:
    """Return the picture that a file holds, for some options and a frame from 0, with pixels not decoded.

    Raises:
        SourceError: the file is damaged or has another format.
    """
    opened = FORMATS[sniff(data)][1](data)
    return opened if opened.opened_for is None else opened.opened_for(options, frame)


def open_header(data: bytes) -> OpenedImage | None:
    """Return the picture that a file holds, with pixels not decoded; None for a damaged file or another format."""
    try:
        return FORMATS[sniff(data)][1](data)
    except SourceError:
        return None


_RETAINED_BYTES = 256 << 20
"""Freed memory that the allocator may keep: the trim threshold that `halofeed.system.memory` sets."""


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Memory that reading an image needs: decoding, see `MemoryEstimate`, and the conversion of the pixels.

    Args:
        peak_bytes: peak memory, without the bytes of the file.
        pixel_bytes: size of the returned pixels.
        size: (height, width) of the returned pixels, as displayed.
        displayed_size: (height, width) of the picture at full resolution, as displayed.
    """

    peak_bytes: int
    pixel_bytes: int
    size: Size
    displayed_size: Size


def _footprint(estimate: MemoryEstimate, opened: OpenedImage, options: ReadOptions) -> Footprint:
    pixels = estimate.size[0] * estimate.size[1]
    peak_bytes, pixel_bytes = estimate.peak_bytes, estimate.raster_bytes
    # Conversion and rotation copy the pixels while the decoder's memory may still be held by the allocator.
    if opened.orientation != 1 or not is_converted(estimate.channels, estimate.sample_bytes, options):
        retained = min(peak_bytes - pixel_bytes, _RETAINED_BYTES)
        converted = pixels * options.channels * np.dtype(options.dtype).itemsize
        working = 64 * min(pixels, BLOCK_PIXELS)  # see `BLOCK_PIXELS`
        peak_bytes = max(peak_bytes, pixel_bytes + retained + converted + working)
        pixel_bytes = converted
    return Footprint(
        peak_bytes=peak_bytes,
        pixel_bytes=pixel_bytes,
        size=displayed_size(opened.orientation, estimate.size),
        displayed_size=displayed_size(opened.orientation, opened.stored_size),
    )


def read_image(
    data: bytes | PictureFile,
    options: ReadOptions,
    needed_size: Callable[[int, int], Size] | None = None,
    reserve: Callable[[Footprint], None] | None = None,
    inspect: Callable[[DecodedImage], None] = lambda image: None,
    frame: int = 0,
) -> DecodedImage:
    """Decode an image file into upright pixels with the channels and the depth of the options.

    The first bytes determine the format; the file name does not matter. The steps are, in this order:

    1. Decode at the depth of the file. Expand 1, 2 and 4 bits and palettes to 8 bits; convert CMYK to RGB.
    2. Apply the EXIF orientation.
    3. Drop or blend alpha.
    4. Convert color to gray (ITU-R BT.601 luma), or repeat gray in three channels.
    5. Scale the full range of the depth.

    If the file has several frames or pages, only the first is read. Color profiles are not applied.

    Args:
        data: bytes of the file, or a picture in a file that is not read completely.
        options: requested channels, depth and alpha handling.
        needed_size: function from the displayed (height, width) at full resolution to the (height, width) that later
            steps need. A JPEG is then decoded at 1/2, 1/4 or 1/8 if the result is not smaller than that, so
            `pixels` may be smaller than `stored_size`. None: full resolution.
        reserve: function that receives the memory footprint before the large allocations; it may raise to stop the
            reading.
        inspect: function that receives the picture with 16-bit samples, as displayed, before they become 8 bits.
        frame: number of the frame, from 0, of a format whose frames are pictures of their own.

    Raises:
        SourceError: stage `decode`: the file is not a supported image, or it is damaged, truncated or too large.
            An incomplete picture is never returned. Also: the 16-bit samples use more bits than the options say.
    """
    opened = open_picture(data, options, frame) if isinstance(data, bytes) else data.opened(options)
    check_pixel_count(opened.stored_size, options.max_pixels)
    displayed = displayed_size(opened.orientation, opened.stored_size)
    # The sides as stored: `displayed_size` swaps them for some orientations, and a second time swaps them back.
    needed = displayed_size(opened.orientation, needed_size(*displayed) if needed_size else displayed)
    gray_is_enough = options.channels == 1
    if reserve is not None:
        reserve(_footprint(opened.estimate(gray_is_enough, needed), opened, options))
    raster = opened.load(gray_is_enough, needed)
    notes = list(raster.notes)
    # Memory was reserved for the size in the header, so a decoder must not return another one.
    if not needed_size and raster.pixels.shape[:2] != opened.stored_size:
        decoded = raster.pixels.shape[:2]
        raise damaged_error(f"header says {opened.stored_size}, the decoded size is {decoded}")
    if opened.orientation != 1:
        notes.append("orientation applied")
    # --sample-bits is for files that do not state it.
    if raster.fills_depth:
        options = replace(options, sample_bits=16)
    notes += check_sample_bits(raster.pixels, options)
    image = DecodedImage(
        pixels=apply_orientation(raster.pixels, opened.orientation),
        orientation=opened.orientation,
        stored_size=opened.stored_size,
        scale=raster.scale,
        notes=(),
        levels=levels_of(raster.pixels, options),
        stated=opened.stated,
    )
    # The levels must be counted before they become 8 bits.
    if image.levels is not None:
        inspect(image)
    pixels, conversions = convert_pixels(image.pixels, options)
    changes = (*notes, *conversions)
    return replace(
        image,
        pixels=pixels,
        notes=(FIRST_OF_SEVERAL, *changes) if opened.more else changes,
        plain_jpeg_channels=0 if changes else opened.plain_channels,
    )
