"""How a JPEG file is read: by libjpeg-turbo, at a reduced scale where less is needed, strict about damage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import simplejpeg
from PIL import JpegImagePlugin

from halofeed.prep.formats.picture.image import (
    Decoding,
    OpenedImage,
    Pixels,
    Raster,
    Size,
    damaged,
    plan_decoding,
    truncated,
)
from halofeed.prep.formats.picture.jpeg_markers import JpegHeader, read_jpeg_header, without_strays
from halofeed.prep.formats.picture.pillow import (
    cmyk_to_rgb,
    decoder_failures,
    load_raster,
    open_with,
    plan_pillow,
)
from halofeed.prep.formats.picture.tiff_directory import read_directory
from halofeed.schemas.errors import SourceError

PREMATURE_END = "Premature end of JPEG file"
END_OF_IMAGE = b"\xff\xd9"
PLAIN_FRAMES = (0xC0, 0xC1, 0xC2)
"""Baseline, extended and progressive, all with Huffman codes."""
_MP_ENTRIES = 0xB002
_MPF_WITHIN, _MPF_BYTES = 1 << 18, 1 << 16
UNKNOWN_SAMPLING = "Could not determine subsampling level"
SCALES = (8, 4, 2)
ROW_BYTES = 512
"""Of each column, what libjpeg holds of the rows under way."""


def reduction(stored_size: Size, needed_size: Size) -> int:
    """The largest of 1, 2, 4, 8 by which the decoder can divide both sides and still deliver `needed_size`.

    Sizes are (height, width); the decoder rounds up. Below 16 pixels its choice of a scale is not clear from the
    size that it is asked for.

    >>> reduction((1200, 1800), (300, 400)), reduction((1200, 1800), (301, 400))
    (4, 2)
    """
    (height, width), (needed_height, needed_width) = stored_size, needed_size
    if (needed_height >= height and needed_width >= width) or min(height, width) < 16:
        return 1
    for scale in SCALES:
        if -(-height // scale) >= needed_height and -(-width // scale) >= needed_width:
            return scale
    return 1


def _lacks_end(error: ValueError, data: bytes) -> bool:
    """Whether the end marker alone is missing, and every block of the picture is there."""
    if PREMATURE_END not in str(error) or data.endswith(END_OF_IMAGE):
        return False
    try:
        _decode(data + END_OF_IMAGE, "GRAY", (0, 0))
    except ValueError:
        return False
    return True


def _decode(data: bytes, colors: str, least: Size) -> Pixels:
    pixels: Pixels = simplejpeg.decode_jpeg(
        data, colors, min_height=least[0], min_width=least[1], strict=True
    )
    return pixels


def _load(data: bytes, header: JpegHeader, gray_is_enough: bool, needed_size: Size) -> Raster:
    components = len(header.sampling)
    plain = without_strays(data, header) if header.stray_bytes else data
    colors = "CMYK" if components == 4 else "GRAY" if components == 1 or gray_is_enough else "RGB"
    scale, size = _scaled(header, needed_size)
    notes: list[str] = []
    try:
        pixels = _decode(plain, colors, size)
    except ValueError as error:
        if UNKNOWN_SAMPLING in str(error):
            raster = load_raster(open_with(JpegImagePlugin.JpegImageFile, without_strays(data, header)))
            return replace(raster, notes=(*raster.notes, "unusual JPEG sampling, damage would go unseen"))
        if not (header.has_one_scan and _lacks_end(error, plain)):
            raise (truncated if PREMATURE_END in str(error) else damaged)(str(error)) from error
        pixels = _decode(plain + END_OF_IMAGE, colors, size)
        notes.append("end marker of the JPEG is missing")
    if scale > 1:
        notes.append(f"decoded at 1/{scale}")
    if colors == "CMYK":
        # Adobe's convention, which every known writer of such files follows: 255 is no ink.
        pixels = cmyk_to_rgb(np.subtract(255, pixels, out=pixels))
        notes.append("CMYK converted")
    return Raster(pixels=pixels, scale=scale, notes=tuple(notes))


def _scaled(header: JpegHeader, needed_size: Size) -> tuple[int, Size]:
    """By how much the sides are divided, and the size that is decoded."""
    scale = reduction(header.size, needed_size)
    height, width = (-(-side // scale) for side in header.size)
    return scale, (height, width)


def _plan(byte_count: int, header: JpegHeader, gray_is_enough: bool, needed_size: Size) -> Decoding:
    inks = len(header.sampling) == 4
    channels = 1 if len(header.sampling) == 1 or (gray_is_enough and not inks) else 3
    held_bytes = header.coefficient_bytes + ROW_BYTES * header.size[1]
    if header.stray_bytes or not header.is_usual:
        held_bytes += byte_count
    _, size = _scaled(header, needed_size)
    planned = plan_decoding(size, channels, beside=4 if inks else 0, held_bytes=held_bytes)
    if header.is_usual:
        return planned
    by_pillow = plan_pillow(header.size, 1 if channels == 1 else 4, channels, held_bytes=held_bytes)
    return replace(planned, peak_bytes=max(planned.peak_bytes, by_pillow.peak_bytes))


def open_jpeg(data: bytes) -> OpenedImage:
    """Open a JPEG file: baseline or progressive, Huffman or arithmetic; gray, YCbCr, RGB, CMYK or YCCK.

    Gray from color is the file's own luma where it stores luma and chroma (ITU-R BT.601, as JFIF says).
    Of damage in the compressed data everything is an error that libjpeg warns of; where the components are
    sampled so unusually that the fast decoder does not take them, Pillow reads the file, without warnings.

    Raises:
        SourceError: as `read_jpeg_header`; when loaded, also that the compressed data are damaged.
    """
    header = read_jpeg_header(data)
    components = len(header.sampling)
    is_plain = components in (1, 3) and header.frame in PLAIN_FRAMES and not header.stray_bytes

    def load(gray_is_enough: bool, needed_size: Size) -> Raster:
        with decoder_failures():
            return _load(data, header, gray_is_enough, needed_size)

    return OpenedImage(
        stored_size=header.size,
        orientation=header.orientation,
        plan=lambda gray_is_enough, needed: _plan(len(data), header, gray_is_enough, needed),
        load=load,
        # TensorFlow, libjpeg and browsers all take such a file as it is.
        plain_channels=components if is_plain else 0,
        more=_holds_views(data, header.size),
    )


def _holds_views(data: bytes, size: Size) -> bool:
    """Whether a multi-picture file (MPO) holds another picture of that size; previews and gain maps are smaller.

    Source: CIPA DC-007, sections 5.1 and 5.2.3.
    """
    at = data.find(b"MPF\0", 0, _MPF_WITHIN) + 4
    if at < 4:
        return False
    try:
        directory = read_directory(data[at : at + _MPF_BYTES])
        entries = directory.fields.get(_MP_ENTRIES)
        if entries is None or entries.data is None:
            return False
        numbers = np.frombuffer(entries.data[: len(entries.data) // 16 * 16], f"{directory.order}u4")
        starts = [at + int(offset) for offset in numbers[2::4] if offset]
        return any(read_jpeg_header(data[start:]).size == size for start in starts)
    except SourceError:
        return False
