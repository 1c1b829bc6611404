"""Readers of GIF, WebP and BMP files. The containers are parsed here; Pillow decodes the pixels."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from PIL import BmpImagePlugin, GifImagePlugin, ImageFile, WebPImagePlugin

from halofeed.prep.formats.picture.image import (
    OpenedImage,
    Raster,
    Size,
    damaged_error,
    estimate_decoding,
    truncated_error,
)
from halofeed.prep.formats.picture.pillow import (
    decoder_failures,
    load_raster,
    open_with_plugin,
)
from halofeed.prep.formats.picture.tiff import exif_orientation
from halofeed.system.errors import SourceError
from halofeed.system.wording import plural

EXTENSION, GRAPHIC_CONTROL, FRAME, TRAILER = 0x21, 0xF9, 0x2C, 0x3B


def after_sub_blocks(data: bytes, at: int) -> int:
    """Return the position after a sequence of GIF sub-blocks."""
    while True:
        if at >= len(data):
            raise truncated_error(f"no end of the block before byte {at}")
        # An empty sub-block ends the sequence (GIF89a, section 16).
        if not data[at]:
            return at + 1
        at += data[at] + 1


def palette_bytes(flags: int) -> int:
    """Return the palette length that the flags of a GIF screen or frame declare."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def next_frame(data: bytes, at: int) -> int | None:
    """Return the position of the next image descriptor, or None at the trailer or the end of the file."""
    while at < len(data):
        if data[at] == FRAME:
            return at
        if data[at] == TRAILER:
            return None
        # Pillow 12.3 skips bytes that are no block, so it would return other pixels for some damaged files.
        if data[at] != EXTENSION:
            raise damaged_error(f"block type {data[at]:#04x} at byte {at}")
        at = after_sub_blocks(data, at + 2)
    return None


def frame_end(data: bytes, at: int) -> int:
    """Return the end of the frame whose image descriptor is at `at`."""
    if at + 10 > len(data):
        raise truncated_error("no room for the frame's descriptor")
    return after_sub_blocks(data, at + 11 + palette_bytes(data[at + 9]))


def _plain_gif(data: bytes, begin: int, end: int) -> bytes:
    """Return a GIF with one frame and its graphic control.

    Pillow 12.3 would read every comment before it, in quadratic time: 2 s for 4 MB, 55 s for 16 MB.
    """
    at = 13 + palette_bytes(data[10])
    parts = [data[:at]]
    while at < begin:
        after = after_sub_blocks(data, at + 2)
        if data[at + 1] == GRAPHIC_CONTROL:  # it has the transparent color
            parts.append(data[at:after])
        at = after
    return b"".join([*parts, memoryview(data)[begin:end], bytes([TRAILER])])


def _another_frame(data: bytes, at: int) -> bool:
    """Return whether a frame follows; damage after the first frame is ignored because it is not read."""
    try:
        return next_frame(data, at) is not None
    except SourceError:
        return False


def open_gif(data: bytes) -> OpenedImage:
    """Open the first frame of a GIF file, on its canvas.

    Raises:
        SourceError: there is no frame, or the first is truncated. `load` also reports damaged pixels.

    Source: GIF89a specification, sections 17 to 23.
    """
    if len(data) < 13:
        raise truncated_error("no room for the screen descriptor")
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    begin = next_frame(data, 13 + palette_bytes(flags))
    if begin is None:
        raise truncated_error("no frame")
    end = frame_end(data, begin)
    left, top, frame_width, frame_height = struct.unpack_from("<HHHH", data, begin + 1)
    # A frame that extends beyond the screen enlarges it, as in Pillow and browsers.
    size = max(height, top + frame_height), max(width, left + frame_width)
    # Only the blocks before the frame say whether its palette has a transparent color: assume alpha.
    estimate = estimate_decoding(size, 4, pillow_bytes=1, held_bytes=end)
    return OpenedImage(
        stored_size=size,
        orientation=1,
        estimate=lambda *_: estimate,
        load=lambda *_: load_raster(
            open_with_plugin(GifImagePlugin.GifImageFile, _plain_gif(data, begin, end))
        ),
        more=_another_frame(data, end),
    )


CHUNKS_AT = 12


def riff_chunks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the type and the payload of each chunk; SourceError if a chunk is damaged or truncated."""
    if len(data) < CHUNKS_AT + 8:
        raise truncated_error("no room for the first chunk")
    end = 8 + struct.unpack_from("<I", data, 4)[0]
    if end > len(data):
        raise truncated_error(f"the RIFF container ends at byte {end} of {len(data)}")
    at = CHUNKS_AT
    while at + 8 <= end:
        kind, length = struct.unpack_from("<4sI", data, at)
        if at + 8 + length > end:
            raise truncated_error(f"chunk {kind!r} of {plural(length, 'byte')} at byte {at} of {end}")
        yield kind, memoryview(data)[at + 8 : at + 8 + length]
        at += 8 + length + length % 2  # chunks begin at even bytes (RFC 9649, 2.3)
    if at == CHUNKS_AT:
        raise damaged_error("a RIFF container without chunks")


def webp_size(kind: bytes, payload: bytes | memoryview) -> Size:
    """Return the (height, width) of the canvas of a WebP file from its first chunk.

    Source: RFC 9649, sections 2.5 to 2.7; RFC 6386, section 9.1.
    """
    # 24 bits for each side of the canvas, less 1
    if kind == b"VP8X" and len(payload) >= 10:
        sides = [1 + int.from_bytes(payload[at : at + 3], "little") for at in (7, 4)]
        return sides[0], sides[1]
    # a signature of one byte, then 14 bits for each side, less 1
    if kind == b"VP8L" and len(payload) >= 5 and payload[0] == 0x2F:
        bits = int.from_bytes(payload[1:5], "little")
        return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF)
    # a tag of 3 bytes and a start code; the two high bits of each side ask for scaling
    if kind == b"VP8 " and len(payload) >= 10 and payload[3:6] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", payload, 6)
        return height & 0x3FFF, width & 0x3FFF
    raise damaged_error(f"first chunk {kind!r} of {plural(len(payload), 'byte')}")


def open_webp(data: bytes) -> OpenedImage:
    """Open a lossy or lossless WebP file; only the first frame of an animation is read.

    Raises:
        SourceError: the container is damaged or truncated. `load` also reports damaged pixels.
    """
    size, exif, frames = (0, 0), b"", 0
    for number, (kind, payload) in enumerate(riff_chunks(data)):
        if number == 0:  # the size must be known before Pillow allocates two canvases of it
            size = webp_size(kind, payload)
        frames += kind == b"ANMF"
        if kind == b"EXIF" and not exif:  # readers ignore all but the first (RFC 9649, 2.7.1.5)
            exif = bytes(payload)
    estimate = replace(estimate_decoding(size, 4, extra_pixel_bytes=8), channels=3)
    return OpenedImage(
        stored_size=size,
        orientation=exif_orientation(exif),
        estimate=lambda *_: estimate,
        load=lambda *_: _load_webp(data, size),
        more=frames > 1,
    )


def _load_webp(data: bytes, size: Size) -> Raster:
    """Decode the first frame. Pillow's own `load` would add a third copy to libwebp's two canvases."""
    with decoder_failures():
        image = WebPImagePlugin.WebPImageFile(io.BytesIO(data))
        pixels, _, _ = image._get_next()
        if image.size[::-1] != size:
            raise damaged_error(f"header says {size}, the decoded size is {image.size[::-1]}")
        return Raster(pixels=np.frombuffer(pixels, np.uint8).reshape(*size, 4)[..., : len(image.mode)])


RASTER_CHANNELS = {"1": 1, "L": 1, "P": 3, "RGB": 3, "RGBX": 3, "RGBA": 4}
_MAX_SKIPPED = 255


def open_bmp(data: bytes) -> OpenedImage:
    """Open a BMP file with a palette, RGB or RGBA, uncompressed or run-length encoded.

    Raises:
        SourceError: the header is damaged or not supported. `load` also reports damaged pixels.
    """
    image = open_with_plugin(BmpImagePlugin.BmpImageFile, data)
    size = image.height, image.width
    estimate = estimate_decoding(
        size,
        RASTER_CHANNELS.get(image.mode, 4),
        pillow_bytes=1 if image.mode in ("1", "L", "P") else 4,
        extra_pixel_bytes=2 * _unpacked_bytes(image.tile) / max(1, size[0] * size[1]),
    )
    return OpenedImage(
        stored_size=size,
        orientation=1,
        estimate=lambda *_: estimate,
        load=lambda *_: load_raster(open_with_plugin(BmpImagePlugin.BmpImageFile, data)),
    )


def _unpacked_bytes(tiles: list[ImageFile._Tile]) -> int:
    """Return the most bytes that Pillow unpacks run lengths to, which exceed the picture; 0 for other codecs.

    Pillow stops after the picture's last pixel, but the last code may skip 255 rows and 255 columns (DELTA).
    """
    if not tiles or tiles[0].codec_name != "bmp_rle":
        return 0
    extents = tiles[0].extents
    assert extents is not None
    width, height = extents[2:]
    return width * height + _MAX_SKIPPED * (width + 1)
