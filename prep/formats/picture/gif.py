"""How the first frame of a GIF file is read: its blocks here, its compressed pixels by Pillow."""

from __future__ import annotations

import struct

from PIL import GifImagePlugin

from halofeed.prep.formats.picture.image import OpenedImage, damaged, truncated
from halofeed.prep.formats.picture.pillow import load_raster, open_with, plan_pillow
from halofeed.schemas.errors import SourceError

EXTENSION, GRAPHIC_CONTROL, FRAME, TRAILER = 0x21, 0xF9, 0x2C, 0x3B


def after_sub_blocks(data: bytes, at: int) -> int:
    """Where a row of sub-blocks ends."""
    while True:
        if at >= len(data):
            raise truncated(f"no end of the block before byte {at}")
        if not data[at]:
            return at + 1
        at += data[at] + 1


def palette_bytes(flags: int) -> int:
    """How long the palette is that the flags of a screen or a frame announce."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def next_frame(data: bytes, at: int) -> int | None:
    """Where the next image descriptor is; None at the trailer or where the file ends between blocks."""
    while at < len(data):
        if data[at] == FRAME:
            return at
        if data[at] == TRAILER:
            return None
        if data[at] != EXTENSION:
            raise damaged(f"block type {data[at]:#04x} at byte {at}")
        at = after_sub_blocks(data, at + 2)
    return None


def frame_end(data: bytes, at: int) -> int:
    """Where the frame ends whose image descriptor is at `at`."""
    if at + 10 > len(data):
        raise truncated("no room for the frame's descriptor")
    return after_sub_blocks(data, at + 11 + palette_bytes(data[at + 9]))


def _plain_gif(data: bytes, begin: int, end: int) -> bytes:
    """One frame alone, with what says its transparent color: Pillow would gather comments block by block."""
    at = 13 + palette_bytes(data[10])
    parts = [data[:at]]
    while at < begin:
        after = after_sub_blocks(data, at + 2)
        if data[at + 1] == GRAPHIC_CONTROL:
            parts.append(data[at:after])
        at = after
    return b"".join([*parts, memoryview(data)[begin:end], bytes([TRAILER])])


def _another_frame(data: bytes, at: int) -> bool:
    """Whether a frame follows; what is damaged behind the first frame does not matter, it is not read."""
    try:
        return next_frame(data, at) is not None
    except SourceError:
        return False


def open_gif(data: bytes) -> OpenedImage:
    """Open a GIF file's first frame, on its canvas.

    Raises:
        SourceError: there is no frame, or the first is cut off; when loaded, also that the pixels are damaged.

    Source: GIF89a specification, sections 17 to 23.
    """
    if len(data) < 13:
        raise truncated("no room for the screen descriptor")
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    begin = next_frame(data, 13 + palette_bytes(flags))
    if begin is None:
        raise truncated("no frame")
    end = frame_end(data, begin)
    left, top, frame_width, frame_height = struct.unpack_from("<HHHH", data, begin + 1)
    # A frame that passes the screen's edge enlarges it, as in Pillow and browsers.
    size = max(height, top + frame_height), max(width, left + frame_width)
    # Whether its palette has a transparent color only the blocks before the frame say.
    planned = plan_pillow(size, 1, 4, held_bytes=end)
    return OpenedImage(
        stored_size=size,
        orientation=1,
        plan=lambda *_: planned,
        load=lambda *_: load_raster(open_with(GifImagePlugin.GifImageFile, _plain_gif(data, begin, end))),
        more=_another_frame(data, end),
    )
