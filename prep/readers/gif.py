"""How the first frame of a GIF file is read: its blocks here, its compressed pixels by Pillow."""

from __future__ import annotations

import struct

from PIL import GifImagePlugin

from halofeed.prep.readers.image import OpenedImage, Raster, Size, truncated, undecodable
from halofeed.prep.readers.pillow import load_raster, open_with
from halofeed.schemas.errors import SourceError

EXTENSION, FRAME, TRAILER = 0x21, 0x2C, 0x3B


def _after_sub_blocks(data: bytes, at: int) -> int:
    while True:
        if at >= len(data):
            raise truncated(f"no end of the block before byte {at}")
        if not data[at]:
            return at + 1
        at += data[at] + 1


def _palette_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _next_frame(data: bytes, at: int) -> int | None:
    """Where the next image descriptor is; None at the trailer or where the file ends between blocks."""
    while at < len(data):
        if data[at] == FRAME:
            return at
        if data[at] == TRAILER:
            return None
        if data[at] != EXTENSION:
            raise undecodable("file is damaged", f"block type {data[at]:#04x} at byte {at}")
        at = _after_sub_blocks(data, at + 2)
    return None


def read_layout(data: bytes) -> tuple[Size, bool]:
    """The (height, width) of the first frame's canvas, and whether another frame follows.

    Raises:
        SourceError: there is no frame, or the first is cut off.

    Source: GIF89a specification, sections 17 to 23.
    """
    if len(data) < 13:
        raise truncated("no room for the screen descriptor")
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at = _next_frame(data, 13 + _palette_bytes(flags))
    if at is None:
        raise truncated("no frame")
    if at + 10 > len(data):
        raise truncated("no room for the frame's descriptor")
    left, top, frame_width, frame_height, flags = struct.unpack_from("<HHHHB", data, at + 1)
    end = _after_sub_blocks(data, at + 11 + _palette_bytes(flags))
    # A frame that passes the screen's edge enlarges it, as in Pillow and browsers.
    size = max(height, top + frame_height), max(width, left + frame_width)
    return size, _another_frame(data, end)


def _another_frame(data: bytes, at: int) -> bool:
    """Whether a frame follows; what is damaged behind the first frame does not matter, it is not read."""
    try:
        return _next_frame(data, at) is not None
    except SourceError:
        return False


def open_gif(data: bytes) -> OpenedImage:
    """Open a GIF file's first frame, on its canvas.

    Raises:
        SourceError: as `read_layout`; when loaded, also that the pixels are damaged.
    """
    size, more = read_layout(data)

    def load(grey_is_enough: bool, needed_size: Size) -> Raster:
        raster = load_raster(open_with(GifImagePlugin.GifImageFile, data))
        return Raster(pixels=raster.pixels, notes=(*raster.notes, *(("first of several frames",) * more)))

    return OpenedImage(stored_size=size, orientation=1, load=load)
