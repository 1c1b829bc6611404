"""Decoding with Pillow: one plugin per call, every failure is a SourceError, every mode becomes an array.

The module calls the plugins directly. `Image.open` would detect the format again, and it would check the size
against a limit of the process with a warning. The callers check the size first.
"""

from __future__ import annotations

import io
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from PIL import Image, ImageFile

from halofeed.prep.formats.picture.image import (
    PART_PIXELS,
    PixelArray,
    Raster,
    damaged_error,
    decode_error,
    iterate_blocks,
    truncated_error,
)
from halofeed.system.errors import SourceError
from halofeed.system.memory import TOO_MUCH_MEMORY, is_out_of_memory

# Modes whose array is the picture, and the modes that other modes are converted to first.
ARRAY_MODES = ("L", "LA", "RGB", "RGBA")
CONVERTED_MODES = {
    "1": "L",
    "P": "RGB",
    "PA": "RGBA",
    "RGBX": "RGB",
    "RGBa": "RGBA",
    "La": "LA",
    "YCbCr": "RGB",
}


@contextmanager
def decoder_failures() -> Iterator[None]:
    """Convert every exception of a decoder on damaged bytes into a SourceError of stage `decode`.

    Pillow's plugins raise almost any exception on unexpected bytes (OSError, SyntaxError, struct.error,
    IndexError, OverflowError, zlib.error, ...), so this function catches all of them.
    """
    try:
        yield
    except SourceError:
        raise
    except Exception as error:
        # The file is not damaged if memory is missing.
        if is_out_of_memory(error):
            raise decode_error(TOO_MUCH_MEMORY, "the free memory of this machine is too small") from error
        message = _message_of(error)
        # The reason is shared by all files with the same fault, so the decoder's many words are sorted.
        if "truncated" in message.lower() or "not enough image data" in message.lower():
            raise truncated_error(message) from error
        if "unsupported" in message.lower() or "unknown pixel mode" in message.lower():
            raise decode_error("kind of image is not supported", message) from error
        raise damaged_error(message) from error


def _message_of(error: Exception) -> str:
    """Return the message of a decoder about a file, or a general message if the exception is not about the file.

    >>> _message_of(OSError("broken data stream")), _message_of(KeyError(320))
    ('broken data stream', 'it breaks the rules of its format')
    """
    while error.args and isinstance(error.args[0], Exception):  # Pillow wraps the errors of opening a file
        error = error.args[0]
    is_about_file = isinstance(
        error, OSError | SyntaxError | ValueError | RuntimeError | EOFError | zlib.error
    )
    # Others, such as KeyError: 320, describe the program and not the file.
    if is_about_file and not isinstance(error, UnicodeError) and str(error):
        return str(error)
    return "it breaks the rules of its format"


def open_with_plugin(plugin: Callable[[io.BytesIO], ImageFile.ImageFile], data: bytes) -> ImageFile.ImageFile:
    """Open bytes with one Pillow plugin, which reads the header."""
    with decoder_failures():
        return plugin(io.BytesIO(data))


def cmyk_to_rgb(inks: PixelArray) -> PixelArray:
    """Convert cyan, magenta, yellow, black [height, width, 4], 255 full ink, to RGB [height, width, 3].

    Every color is round((255 - ink) * (255 - black) / 255); no color profile is applied.
    """
    colors = np.empty((*inks.shape[:2], 3), np.uint8)
    for block in iterate_blocks(inks.shape[:2]):
        light = (255 - inks[block]).astype(np.uint32)
        colors[block] = (light[..., :3] * light[..., 3:] + 127) // 255
    return colors


def with_transparent_color(pixels: PixelArray, key: int | tuple[int, ...]) -> PixelArray:
    """Add an alpha channel that is zero for pixels of exactly the color `key`."""
    height, width, channels = pixels.shape
    with_alpha = np.empty((height, width, channels + 1), pixels.dtype)
    with_alpha[..., :-1] = pixels
    for block in iterate_blocks((height, width)):
        transparent = (pixels[block] == np.array(key, pixels.dtype)).all(axis=2)
        with_alpha[block][..., -1] = np.where(transparent, 0, np.iinfo(pixels.dtype).max)
    return with_alpha


def load_raster(image: ImageFile.ImageFile) -> Raster:
    """Decode an opened Pillow image.

    Returns:
        Raster with 1 bit and palettes expanded and CMYK converted; a transparent palette entry or color
        becomes alpha.

    Raises:
        SourceError: the pixels are damaged or truncated, or their mode has no exact 8-bit form.
    """
    with decoder_failures():
        image.load()
        mode, transparency = image.mode, image.info.get("transparency")
        if mode == "CMYK":
            pixels = copy_pixels(image, lambda part: cmyk_to_rgb(np.asarray(part)), 3)
            return Raster(pixels=pixels, notes=("CMYK converted",))
        # Pillow applies the transparency of a palette itself, but only on the way to RGBA.
        has_key = mode == "P" and transparency is not None
        wanted = "RGBA" if has_key else CONVERTED_MODES.get(mode, mode)
        # Others, such as F, I, HSV and LAB, have no exact 8-bit form.
        if wanted not in ARRAY_MODES:
            raise decode_error("pixel type is not supported", f"Pillow's mode {mode}")
        pixels = copy_pixels(
            image, lambda part: _three_axes(part if mode == wanted else part.convert(wanted)), len(wanted)
        )
        # A transparent color stays in the file's metadata, because these modes have no alpha.
        if mode in ("L", "RGB") and transparency is not None:
            pixels = with_transparent_color(pixels, transparency)
        return Raster(pixels=pixels)


def copy_pixels(
    image: Image.Image, take: Callable[[Image.Image], PixelArray], channels: int, dtype: str = "uint8"
) -> PixelArray:
    """Copy the pixels [height, width, channel] of a decoded image; `take` converts one part at a time."""
    # np.asarray copies Pillow's image twice, so a large picture is copied in parts.
    if image.width * image.height <= PART_PIXELS:
        return take(image)
    pixels = np.empty((image.height, image.width, channels), dtype)
    for rows, columns in iterate_blocks((image.height, image.width), PART_PIXELS):
        part = image.crop((columns.start, rows.start, columns.stop, rows.stop))
        pixels[rows, columns] = take(part)
    return pixels


def _three_axes(image: Image.Image) -> PixelArray:
    array = np.asarray(image)
    return array[..., None] if array.ndim == 2 else array


def load_16_bit(open_again: Callable[[], ImageFile.ImageFile]) -> PixelArray:
    """Decode 16-bit color samples, which Pillow's own modes reduce to 8 bits.

    Pillow's unpacker keeps one byte of each sample. The last letter of its raw mode ("RGB;16B") is the byte order
    of the samples, and so selects this byte. Decoding with the other byte order returns the low bytes.

    Args:
        open_again: function that opens the image again.

    Returns:
        uint16 [height, width, channel].
    """
    other_order = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
    with decoder_failures():
        image = open_again()
        image.load()
        channels = len(image.getbands())
        samples = copy_pixels(image, lambda part: np.asarray(part).astype(np.uint16) << 8, channels, "uint16")
        image = open_again()
        tiles = []
        for tile in image.tile:
            raw_mode, *rest = tile.args if isinstance(tile.args, tuple) else (str(tile.args),)
            other = raw_mode[:-1] + other_order[raw_mode[-1]]
            tiles.append(tile._replace(args=(other, *rest) if rest else other))
        image.tile = tiles
        image.load()
        for rows, columns in iterate_blocks((image.height, image.width), PART_PIXELS):
            part = image.crop((columns.start, rows.start, columns.stop, rows.stop))
            samples[rows, columns] |= np.asarray(part)
        return samples
