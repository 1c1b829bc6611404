"""How a WebP file is read: its chunks here, its compressed pixels by Pillow and libwebp."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from PIL import WebPImagePlugin

from halofeed.prep.formats.picture.image import OpenedImage, Raster, Size, damaged, plan_decoding, truncated
from halofeed.prep.formats.picture.pillow import decoder_failures
from halofeed.prep.formats.picture.tiff_directory import exif_orientation

CHUNKS_AT = 12


def riff_chunks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """The type and the payload of each chunk; SourceError where one is damaged or cut off."""
    if len(data) < CHUNKS_AT + 8:
        raise truncated("no room for the first chunk")
    end = 8 + struct.unpack_from("<I", data, 4)[0]
    if end > len(data):
        raise truncated(f"the RIFF container ends at byte {end} of {len(data)}")
    at = CHUNKS_AT
    while at + 8 <= end:
        kind, length = struct.unpack_from("<4sI", data, at)
        if at + 8 + length > end:
            raise truncated(f"chunk {kind!r} of {length} bytes at byte {at} of {end}")
        yield kind, memoryview(data)[at + 8 : at + 8 + length]
        at += 8 + length + length % 2
    if at == CHUNKS_AT:
        raise damaged("a RIFF container without chunks")


def stored_size(kind: bytes, payload: bytes | memoryview) -> Size:
    """(height, width) of the canvas, from the first chunk.

    Source: RFC 9649, sections 2.5 to 2.7; RFC 6386, section 9.1.
    """
    if kind == b"VP8X" and len(payload) >= 10:
        sides = [1 + int.from_bytes(payload[at : at + 3], "little") for at in (7, 4)]
        return sides[0], sides[1]
    if kind == b"VP8L" and len(payload) >= 5 and payload[0] == 0x2F:
        bits = int.from_bytes(payload[1:5], "little")
        return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF)
    if kind == b"VP8 " and len(payload) >= 10 and payload[3:6] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", payload, 6)
        return height & 0x3FFF, width & 0x3FFF
    raise damaged(f"first chunk {kind!r} of {len(payload)} bytes")


def open_webp(data: bytes) -> OpenedImage:
    """Open a WebP file, lossy or lossless; of an animated one the first frame.

    Raises:
        SourceError: the container is damaged or cut off; when loaded, also that the pixels are damaged.
    """
    size, exif, frames = (0, 0), b"", 0
    for number, (kind, payload) in enumerate(riff_chunks(data)):
        if number == 0:
            size = stored_size(kind, payload)
        frames += kind == b"ANMF"
        if kind == b"EXIF" and not exif:
            exif = bytes(payload)

    planned = replace(plan_decoding(size, 4, beside=8), channels=3)
    return OpenedImage(
        stored_size=size,
        orientation=exif_orientation(exif),
        plan=lambda *_: planned,
        load=lambda *_: _load(data, size),
        more=frames > 1,
    )


def _load(data: bytes, size: Size) -> Raster:
    """The first frame. Pillow's own `load` would hold the picture once more, beside libwebp's two canvases."""
    with decoder_failures():
        image = WebPImagePlugin.WebPImageFile(io.BytesIO(data))
        pixels, _, _ = image._get_next()
        if image.size[::-1] != size:
            raise damaged(f"header says {size}, decoded are {image.size[::-1]}")
        return Raster(pixels=np.frombuffer(pixels, np.uint8).reshape(*size, 4)[..., : len(image.mode)])
