"""How a BMP file is read: by Pillow."""

from __future__ import annotations

from PIL import BmpImagePlugin, ImageFile

from halofeed.prep.formats.picture.image import OpenedImage
from halofeed.prep.formats.picture.pillow import load_raster, open_with, plan_pillow

RASTER_CHANNELS = {"1": 1, "L": 1, "P": 3, "RGB": 3, "RGBX": 3, "RGBA": 4}
END_OF_LINE, END_OF_BITMAP, DELTA = 0, 1, 2


def open_bmp(data: bytes) -> OpenedImage:
    """Open a BMP file: palette, RGB or RGBA, plain or run-length encoded.

    Raises:
        SourceError: the header is damaged or of a kind that is not read; when loaded, the pixels are.
    """
    image = open_with(BmpImagePlugin.BmpImageFile, data)
    size = image.height, image.width

    planned = plan_pillow(
        size,
        1 if image.mode in ("1", "L", "P") else 4,
        RASTER_CHANNELS.get(image.mode, 4),
        beside=2 * _unpacked_bytes(data, image.tile) / max(1, size[0] * size[1]),
    )
    return OpenedImage(
        stored_size=size,
        orientation=1,
        plan=lambda *_: planned,
        load=lambda *_: load_raster(open_with(BmpImagePlugin.BmpImageFile, data)),
    )


def _unpacked_bytes(data: bytes, tiles: list[ImageFile._Tile]) -> int:
    """What Pillow unpacks run lengths to, which a small file can make many times the picture; 0 of plain pixels."""
    if not tiles or tiles[0].codec_name != "bmp_rle":
        return 0
    _, extents, at, arguments = tiles[0]
    assert extents is not None
    width, height = extents[2:]
    four_bits = bool(arguments[1]) if arguments else False
    found = column = 0
    while found < width * height and at + 2 <= len(data):
        count, value = data[at], data[at + 1]
        at += 2
        if count:
            count = min(count, max(0, width - column))
            found, column = found + count, column + count
        elif value == END_OF_LINE:
            found, column = found + -found % width, 0
        elif value == END_OF_BITMAP:
            break
        elif value == DELTA:
            if at + 2 > len(data):
                break
            found += data[at] + data[at + 1] * width
            column = found % width
            at += 2
        else:
            length = value // 2 if four_bits else value
            found += 2 * length if four_bits else length
            column += value
            at += length + (at + length) % 2
    return found
