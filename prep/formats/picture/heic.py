"""Reader of HEIC and HEIF files by pillow-heif, whose libheif decodes and turns the pixels.

libheif applies the boxes `irot`, `imir` and `clap`, which say how the picture is displayed. The EXIF orientation beside
them has no effect (ISO 23008-12, 6.5.10), so that the pixels are as displayed and the orientation is 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from halofeed.prep.formats.picture.image import (
    OpenedImage,
    Raster,
    decode_error,
    estimate_decoding,
    truncated_error,
)
from halofeed.prep.formats.picture.optional_codecs import codec, three_axes, to_full_depth
from halofeed.prep.formats.picture.pillow import decoder_failures
from halofeed.system.errors import SourceError

_CHANNELS = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}
_EXTRA_PIXEL_BYTES = 16
"""Most bytes per pixel beside the raster; 2.5 (4:2:0) to 7 (4:4:4) were measured with 8 bits and without alpha."""


def open_heic(data: bytes) -> OpenedImage:
    """Open the primary picture of a HEIC or HEIF file.

    Raises:
        SourceError: pillow-heif is not installed, or the boxes are damaged or truncated. `load` also reports damaged
            pixels.
    """
    opened = _open(data)
    mode, _, depth = opened.mode.partition(";")
    if mode not in _CHANNELS:
        raise decode_error("pixel type is not supported", f"pillow-heif's mode {opened.mode}")
    bits = int(opened.info.get("bit_depth", 8)) if depth else 8
    width, height = opened.size
    estimate = estimate_decoding(
        (height, width), _CHANNELS[mode], 2 if depth else 1, extra_pixel_bytes=_EXTRA_PIXEL_BYTES
    )
    return OpenedImage(
        stored_size=(height, width),
        orientation=1,
        estimate=lambda *_: estimate,
        load=lambda *_: _load(data, bits),
        more=len(opened) > 1,
    )


def _open(data: bytes) -> Any:
    library = codec("pillow_heif", "heic", "HEIC pictures")
    # A conversion has a worker for each core.
    library.options.DECODE_THREADS = 1
    return _checked(lambda: library.open_heif(data, convert_hdr_to_8bit=False))


def _load(data: bytes, bits: int) -> Raster:
    pixels = three_axes(_checked(lambda: np.array(_open(data))))
    # libheif puts the bits of deep samples in front: 1023 of 10 bits is 65472.
    if pixels.dtype == np.uint16:
        pixels >>= 16 - bits
    filled, notes = to_full_depth(pixels, bits)
    return Raster(pixels=filled, notes=notes)


def _checked(read: Any) -> Any:
    """Return what a function of libheif returns; its failures become a SourceError."""
    try:
        with decoder_failures():
            return read()
    except SourceError as error:
        # libheif's words for a box that ends behind the file.
        if "end of file" in error.detail.lower():
            raise truncated_error(error.detail.strip()) from error
        raise
