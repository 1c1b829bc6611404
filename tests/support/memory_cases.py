"""Pictures of each format that are large for the bytes of their files, and what converting one takes.

Even pictures: what a decoder holds depends on their size alone, and their files are small.
"""

import functools
import io
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.convert.picture_records import PictureConverter
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import Box, SourceExample
from halofeed.system.memory import with_margin
from tests.support.memory_probe import Measured, measure

ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
"""Of each pass of an interlaced PNG the first row and column, and the steps."""
LABELS = LabelMap(entries=((1, "a"), (2, "b")), first_id=1)


class PlannedError(Exception):
    """Ends a conversion once it has said what it takes."""


# Files ----------------------------------------------------------------------------------------------------


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of(*chunks: tuple[bytes, bytes]) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in (*chunks, (b"IEND", b"")))


def even_png(height: int, width: int, bits: int, color_type: int, *, interlaced=False, more=b"") -> bytes:
    """A PNG of zeros; `more` are chunks before the pixels."""
    samples = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color_type]
    compressor, pixels = zlib.compressobj(1), []
    for rows, columns in _passes(height, width) if interlaced else [(height, width)]:
        line = bytes(1 + (columns * samples * bits + 7) // 8)
        some = max(1, (1 << 20) // len(line))
        for start in range(0, rows, some):
            pixels.append(compressor.compress(line * min(some, rows - start)))
    pixels.append(compressor.flush())
    palette = png_chunk(b"PLTE", bytes(range(48))) if color_type == 3 else b""
    header = struct.pack(">IIBBBBB", width, height, bits, color_type, 0, 0, interlaced)
    image = png_chunk(b"IDAT", b"".join(pixels)) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + palette + more + image


def _passes(height: int, width: int) -> Iterator[tuple[int, int]]:
    """The rows and columns of each pass that has some."""
    for top, left, down, across in ADAM7:
        rows, columns = len(range(top, height, down)), len(range(left, width, across))
        if rows and columns:
            yield rows, columns


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def _opencv(extension: str, *shape: int, options: tuple[int, ...] = ()) -> bytes:
    return bytes(cv2.imencode(extension, np.zeros(shape, np.uint16), list(options))[1].tobytes())


def _even(mode: str, side: int) -> Image.Image:
    image = Image.new(mode, (side, side + side // 8))
    if mode == "P":
        image.putpalette(list(range(256)) * 3)
    return image


def _animated(kind: str, side: int) -> bytes:
    frames = [Image.new("RGB", (side, side), color) for color in ("red", "blue")]
    return saved(frames[0], kind, save_all=True, append_images=frames[1:], duration=100)


TRANSPARENT = png_chunk(b"tRNS", b"\0\7")
DEFLATED = {"compression": "tiff_adobe_deflate", "tiffinfo": {278: 1 << 20}}
PICTURES: dict[str, Callable[[int], bytes]] = {
    "PNG 1 bit": lambda side: even_png(side, side, 1, 0),
    "PNG gray": lambda side: even_png(side, side, 8, 0),
    "PNG gray and alpha": lambda side: even_png(side, side, 8, 4),
    "PNG 16 bit gray": lambda side: even_png(side, side, 16, 0),
    "PNG 16 bit gray, transparent": lambda side: even_png(side, side, 16, 0, more=TRANSPARENT),
    "PNG palette": lambda side: even_png(side, side, 4, 3),
    "PNG palette, transparent": lambda side: even_png(side, side, 8, 3, more=png_chunk(b"tRNS", b"\0")),
    "PNG RGB": lambda side: even_png(side, side, 8, 2),
    "PNG RGB, transparent": lambda side: even_png(side, side, 8, 2, more=png_chunk(b"tRNS", bytes(6))),
    "PNG RGBA": lambda side: even_png(side, side, 8, 6),
    "PNG RGBA, interlaced": lambda side: even_png(side, side, 8, 6, interlaced=True),
    "PNG 16 bit RGB": lambda side: even_png(side, side, 16, 2),
    "PNG 16 bit RGBA": lambda side: even_png(side, side, 16, 6),
    "JPEG": lambda side: saved(_even("RGB", side), "JPEG"),
    "JPEG gray": lambda side: saved(_even("L", side), "JPEG"),
    "JPEG progressive": lambda side: saved(_even("RGB", side), "JPEG", progressive=True, subsampling=0),
    "JPEG CMYK": lambda side: saved(_even("CMYK", side), "JPEG"),
    "WebP": lambda side: saved(_even("RGB", side), "WEBP", method=0),
    "WebP with alpha": lambda side: saved(_even("RGBA", side), "WEBP", method=0),
    "WebP lossless": lambda side: saved(_even("RGB", side), "WEBP", lossless=True, method=0),
    "WebP animated": lambda side: _animated("WEBP", side),
    "GIF": lambda side: saved(_even("P", side), "GIF"),
    "GIF, transparent": lambda side: saved(_even("P", side), "GIF", transparency=0),
    "BMP palette": lambda side: saved(_even("P", side), "BMP"),
    "BMP": lambda side: saved(_even("RGB", side), "BMP"),
    "TIFF 1 bit": lambda side: saved(_even("1", side), "TIFF", compression="group4"),
    "TIFF": lambda side: saved(_even("RGB", side), "TIFF"),
    "TIFF LZW": lambda side: saved(_even("RGB", side), "TIFF", compression="tiff_lzw"),
    "TIFF deflate, one strip": lambda side: saved(_even("RGB", side), "TIFF", **DEFLATED),
    "TIFF CMYK": lambda side: saved(_even("CMYK", side), "TIFF", compression="tiff_lzw"),
    "TIFF JPEG": lambda side: saved(_even("RGB", side), "TIFF", compression="jpeg"),
    "TIFF 16 bit gray": lambda side: _opencv(".tiff", side, side),
    "TIFF 16 bit RGB": lambda side: _opencv(".tiff", side, side, 3),
}
"""By name, from a side to the bytes of a file."""

RECIPES: dict[str, dict[str, Any]] = {
    "small": {"height": 300, "width": 300},
    "as it is": {"resize": "none", "encoding": "png"},
    "packed": {"height": 4000, "width": 4000, "encoding": "packed"},
    "color planes": {"height": 4000, "width": 4000, "encoding": "yuv420"},
    "16 bit": {"height": 300, "width": 300, "dtype": "uint16", "channels": 4},
    "TensorFlow's kernel": {"height": 900, "width": 900, "interpolation": "tf2-bicubic", "alpha": "blend"},
    "JPEG": {"resize": "none", "encoding": "jpeg", "jpeg_quality": 80, "channels": 1},
}


# What is measured -----------------------------------------------------------------------------------------


def convert_picture(path: str, options: dict[str, Any], polygons: int = 0) -> int:
    """Convert one file, in the measuring process; the bytes of its record."""
    return converter(options).convert(reference_of(polygons), Path(path).read_bytes()).example.length


def converter(options: dict[str, Any]) -> PictureConverter:
    recipe = Recipe(layout="coco", max_memory=1 << 30, **options)
    return PictureConverter(recipe=recipe, task="detection", labels=LABELS)


def reference_of(polygons: int = 0) -> SourceExample:
    """A reference with so many objects whose outlines are triangles."""
    triangle = [[0.0, 0.0, 3000.0, 50.0, 50.0, 3000.0]]
    boxes = [Box(ymin=0.0, xmin=0.0, ymax=9.0, xmax=9.0, label="a", mask=triangle) for _ in range(polygons)]
    return SourceExample(source="a", key="a", boxes=tuple(boxes))


def planned_bytes(data: bytes, options: dict[str, Any], reference: SourceExample | None = None) -> int:
    found: list[int] = []

    def reserve(byte_count: int) -> None:
        found.append(with_margin(byte_count))
        raise PlannedError

    try:
        converter(options).convert(reference or reference_of(), data, reserve=reserve)
    except PlannedError:
        return found[0]
    raise AssertionError("nobody asked")


@functools.lru_cache(maxsize=1)
def drawn(name: str, side: int) -> bytes:
    """A file of this format, drawn once for all that is measured of it in a row."""
    return PICTURES[name](side)


def measured_picture(name: str, side: int, options, folder: Path, polygons: int = 0) -> tuple[int, Measured]:
    """What converting a picture of a format is planned to take, and what it takes."""
    large, small = folder / "large", folder / "small"
    data = drawn(name, side)
    large.write_bytes(data)
    small.write_bytes(PICTURES[name](64))
    warm = (str(small), options, min(polygons, 1))
    measured = measure(convert_picture, str(large), options, polygons, warm=warm)
    return planned_bytes(data, options, reference_of(polygons)), measured
