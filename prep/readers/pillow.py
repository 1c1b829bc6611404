"""How Pillow is made to decode: one plugin at a time, every failure a SourceError, every mode an array.

The plugins are called directly, not through Image.open: that would guess the format anew and would judge the
size by a limit that is shared by the whole process, with a warning. The size is checked here beforehand.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from PIL import Image, ImageFile

from halofeed.prep.readers.image import Pixels, Raster, truncated, undecodable
from halofeed.schemas.errors import SourceError

# Modes whose array is the picture, and what other modes are converted to first.
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
    """Turn whatever a decoder raises on damaged bytes into a SourceError of stage `decode`.

    Pillow's plugins raise almost any exception on bytes that are not what they expect (OSError, SyntaxError,
    struct.error, IndexError, OverflowError, zlib.error, ...), so all are caught, here alone.
    """
    try:
        yield
    except SourceError:
        raise
    except MemoryError as error:
        raise undecodable("not enough memory to decode") from error
    except Exception as error:
        message = str(error) or type(error).__name__
        if "truncated" in message.lower() or "not enough image data" in message.lower():
            raise truncated(message) from error
        if "unsupported" in message.lower() or "unknown pixel mode" in message.lower():
            raise undecodable("kind of image is not supported", message) from error
        raise undecodable("file is damaged", message) from error


def open_with(plugin: Callable[[io.BytesIO], ImageFile.ImageFile], data: bytes) -> ImageFile.ImageFile:
    """Open bytes with one Pillow plugin, which reads the header."""
    with decoder_failures():
        return plugin(io.BytesIO(data))


def cmyk_to_rgb(inks: Pixels) -> Pixels:
    """Red, green, blue [height, width, 3] of cyan, magenta, yellow, black [height, width, 4], 255 full ink.

    Every colour is round((255 - ink) * (255 - black) / 255): no colour profile is applied.
    """
    light = (255 - inks).astype(np.uint16)
    return ((light[..., :3].astype(np.uint32) * light[..., 3:] + 127) // 255).astype(np.uint8)


def with_transparent_colour(pixels: Pixels, key: int | tuple[int, ...]) -> Pixels:
    """Add an alpha channel that is zero where a pixel has exactly the colour `key`."""
    transparent = (pixels == np.array(key, pixels.dtype)).all(axis=2, keepdims=True)
    alpha = np.where(transparent, 0, np.iinfo(pixels.dtype).max).astype(pixels.dtype)
    return np.concatenate([pixels, alpha], axis=2)


def load_raster(image: ImageFile.ImageFile) -> Raster:
    """Decode an opened Pillow image whole.

    Returns:
        1 bit and palettes expanded, CMYK converted; a transparent palette entry or colour becomes alpha.

    Raises:
        SourceError: the pixels are damaged or cut off, or of a mode that has no exact 8-bit form.
    """
    with decoder_failures():
        image.load()
        mode, transparency = image.mode, image.info.get("transparency")
        if mode == "CMYK":
            return Raster(pixels=cmyk_to_rgb(np.asarray(image)), notes=("CMYK converted",))
        if mode in CONVERTED_MODES:
            has_key = mode == "P" and transparency is not None
            converted: Image.Image = image.convert("RGBA" if has_key else CONVERTED_MODES[mode])
            return Raster(pixels=_three_axes(converted))
        if mode not in ARRAY_MODES:
            raise undecodable("pixel type is not supported", f"Pillow's mode {mode}")
        pixels = _three_axes(image)
        if mode in ("L", "RGB") and transparency is not None:
            pixels = with_transparent_colour(pixels, transparency)
        return Raster(pixels=pixels)


def _three_axes(image: Image.Image) -> Pixels:
    array = np.asarray(image)
    return array[..., None] if array.ndim == 2 else array


def load_16_bit(open_again: Callable[[], ImageFile.ImageFile]) -> Pixels:
    """Decode 16-bit colour samples, which Pillow's own modes cut to 8 bits.

    Pillow's unpacker keeps one byte of each sample; the last letter of its raw mode ("RGB;16B") says in
    which byte order the samples lie, and so which byte. Decoding with the other order gives the low ones.

    Args:
        open_again: opens the image anew.

    Returns:
        uint16 [height, width, channel].
    """
    other_order = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
    with decoder_failures():
        high, low = open_again(), open_again()
        tiles = []
        for tile in low.tile:
            raw_mode, *rest = tile.args if isinstance(tile.args, tuple) else (str(tile.args),)
            other = raw_mode[:-1] + other_order[raw_mode[-1]]
            tiles.append(tile._replace(args=(other, *rest) if rest else other))
        low.tile = tiles
        high.load()
        low.load()
        samples: Pixels = np.asarray(high).astype(np.uint16) << 8 | np.asarray(low)
        return samples
