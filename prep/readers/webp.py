"""How a WebP file is read: its chunks here, its compressed pixels by Pillow and libwebp."""

from __future__ import annotations

import struct

from PIL import WebPImagePlugin

from halofeed.prep.readers.image import OpenedImage, Raster, Size, truncated, undecodable
from halofeed.prep.readers.pillow import load_raster, open_with
from halofeed.prep.readers.tiff_directory import exif_orientation

CHUNKS_AT = 12


def _chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    if len(data) < CHUNKS_AT + 8:
        raise truncated("no room for the first chunk")
    end = 8 + struct.unpack_from("<I", data, 4)[0]
    if end > len(data):
        raise truncated(f"the RIFF container ends at byte {end} of {len(data)}")
    found, at = [], CHUNKS_AT
    while at + 8 <= end:
        kind, length = struct.unpack_from("<4sI", data, at)
        if at + 8 + length > end:
            raise truncated(f"chunk {kind!r} of {length} bytes at byte {at} of {end}")
        found.append((kind, data[at + 8 : at + 8 + length]))
        at += 8 + length + length % 2
    if not found:
        raise undecodable("file is damaged", "a RIFF container without chunks")
    return found


def stored_size(kind: bytes, payload: bytes) -> Size:
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
    raise undecodable("file is damaged", f"first chunk {kind!r} of {len(payload)} bytes")


def open_webp(data: bytes) -> OpenedImage:
    """Open a WebP file, lossy or lossless; of an animated one the first frame.

    Raises:
        SourceError: the container is damaged or cut off; when loaded, also that the pixels are damaged.
    """
    chunks = _chunks(data)
    size = stored_size(*chunks[0])
    animated = sum(kind == b"ANMF" for kind, _ in chunks) > 1
    exif = next((payload for kind, payload in chunks if kind == b"EXIF"), b"")

    def load(grey_is_enough: bool, needed_size: Size) -> Raster:
        raster = load_raster(open_with(WebPImagePlugin.WebPImageFile, data))
        return Raster(pixels=raster.pixels, notes=(*raster.notes, *(("first of several frames",) * animated)))

    return OpenedImage(stored_size=size, orientation=exif_orientation(exif), load=load)
