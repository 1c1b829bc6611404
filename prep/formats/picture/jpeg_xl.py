"""Reader of JPEG XL files: the header is parsed here, and imagecodecs (libjxl) decodes the pixels.

The codestream says how the picture is turned; an EXIF orientation in the container has no effect (ISO 18181-2). libjxl
is asked for the pixels as stored, so that the turn is applied as that of other formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from halofeed.prep.formats.picture.image import (
    OpenedImage,
    Raster,
    Size,
    damaged_error,
    decode_error,
    estimate_decoding,
    truncated_error,
)
from halofeed.prep.formats.picture.optional_codecs import codec, three_axes, to_full_depth
from halofeed.prep.formats.picture.pillow import decoder_failures
from halofeed.system.errors import SourceError

CONTAINER = b"\0\0\0\x0cJXL "
_CODESTREAM = b"\xff\x0a"
_RATIOS = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))
"""Width to height of the ratios 1 to 7."""
_HEAD_BYTES = 256
"""Bytes of the codestream that hold the fields read here; the longest form has less than 50."""
_EXTRA_PIXEL_BYTES = 32
"""Most bytes per pixel beside the raster: two frames of four channels in float32. 0.6 to 3.1 were measured."""


@dataclass(frozen=True, kw_only=True)
class _Header:
    """Fields at the start of a codestream.

    Args:
        size: (height, width) as stored.
        orientation: EXIF orientation, 1 to 8.
        bits: bits of a sample.
        is_float: whether samples are floating-point numbers.
        is_animated: whether frames follow each other.
        extra_channels: number of channels beside the colors, such as alpha.
    """

    size: Size
    orientation: int = 1
    bits: int = 8
    is_float: bool = False
    is_animated: bool = False
    extra_channels: int = 0


class _Bits:
    """Bits of the codestream, the least significant one of each byte first (ISO 18181-1, annex B)."""

    def __init__(self, data: bytes) -> None:
        self._value, self._left = int.from_bytes(data, "little"), 8 * len(data)

    def take(self, count: int) -> int:
        """Return an unsigned number of some bits."""
        if count > self._left:
            raise truncated_error("the header ends early")
        value = self._value & ((1 << count) - 1)
        self._value >>= count
        self._left -= count
        return value

    def choose(self, *forms: tuple[int, int]) -> int:
        """Return a number in one of four forms (offset, bits), which two bits choose: U32 of the specification."""
        offset, bits = forms[self.take(2)]
        return offset + self.take(bits)


_SIDE = ((1, 9), (1, 13), (1, 18), (1, 30))
_INTEGER_BITS, _FLOAT_BITS = ((8, 0), (10, 0), (12, 0), (1, 6)), ((32, 0), (16, 0), (24, 0), (1, 6))
_PREVIEW_EIGHTHS = ((16, 0), (32, 0), (1, 5), (33, 9))
_PREVIEW_SIDE = ((1, 6), (65, 8), (321, 10), (1345, 12))


def _read_size(bits: _Bits) -> Size:
    """Read a SizeHeader (ISO 18181-1, D.2)."""
    is_small = bits.take(1)

    def side() -> int:
        return 8 * (1 + bits.take(5)) if is_small else bits.choose(*_SIDE)

    height = side()
    ratio = bits.take(3)
    if not ratio:
        return height, side()
    across, down = _RATIOS[ratio - 1]
    return height, height * across // down


def _skip_preview(bits: _Bits) -> None:
    forms = _PREVIEW_EIGHTHS if bits.take(1) else _PREVIEW_SIDE
    bits.choose(*forms)
    if not bits.take(3):
        bits.choose(*forms)


def _skip_animation(bits: _Bits) -> None:
    bits.choose((100, 0), (1000, 0), (1, 10), (1, 30))
    bits.choose((1, 0), (1001, 0), (1, 8), (1, 10))
    bits.choose((0, 0), (0, 3), (0, 16), (0, 32))
    bits.take(1)


def _read_header(codestream: bytes) -> _Header:
    """Read the size and the first fields of the metadata (ISO 18181-1, D.2 and D.3)."""
    bits = _Bits(codestream[2:])
    size = _read_size(bits)
    if bits.take(1):  # all fields have their defaults
        return _Header(size=size)
    orientation, is_animated = 1, False
    if bits.take(1):
        orientation = 1 + bits.take(3)
        if bits.take(1):
            _read_size(bits)
        if bits.take(1):
            _skip_preview(bits)
        is_animated = bool(bits.take(1))
        if is_animated:
            _skip_animation(bits)
    is_float = bool(bits.take(1))
    sample_bits = bits.choose(*(_FLOAT_BITS if is_float else _INTEGER_BITS))
    if is_float:
        bits.take(4)
    bits.take(1)  # whether 16 bits suffice for the decoder's buffers
    extra = bits.choose((0, 0), (1, 0), (2, 4), (1, 12))
    return _Header(
        size=size,
        orientation=orientation,
        bits=sample_bits,
        is_float=is_float,
        is_animated=is_animated,
        extra_channels=extra,
    )


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the type and the first bytes of each box of a container (ISO 18181-2, 9)."""
    at = 0
    while at + 8 <= len(data):
        length, kind, start = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8], at + 8
        if length == 1:
            length, start = int.from_bytes(data[at + 8 : at + 16], "big"), at + 16
        end = len(data) if length == 0 else at + length
        if end < start:
            raise damaged_error(f"box {kind!r} at byte {at} has {length} bytes")
        yield kind, data[start : min(end, start + _HEAD_BYTES)]
        at = end


def _codestream_head(data: bytes) -> bytes:
    """Return the first bytes of the codestream, which a container may hold in parts."""
    if data.startswith(_CODESTREAM):
        return data[:_HEAD_BYTES]
    head = b""
    for kind, content in _boxes(data):
        if kind == b"jxlc":
            return content
        if kind == b"jxlp":  # a part, after its number
            head += content[4:]
            if len(head) >= _HEAD_BYTES:
                break
    if not head.startswith(_CODESTREAM):
        raise truncated_error("no codestream in the container")
    return head


def open_jpeg_xl(data: bytes) -> OpenedImage:
    """Open a JPEG XL file, as a codestream or in a container; only the first frame of an animation is read.

    Raises:
        SourceError: the header is damaged or truncated, or samples are floating-point numbers. `load` also reports
            damaged and truncated pixels, and that imagecodecs is not installed.
    """
    header = _read_header(_codestream_head(data))
    if header.is_float or header.bits > 16:
        kind = "floating-point numbers" if header.is_float else "whole numbers"
        raise decode_error("pixel type is not supported", f"JPEG XL of {header.bits} bits, {kind}")
    estimate = estimate_decoding(
        header.size,
        4 if header.extra_channels else 3,
        1 if header.bits <= 8 else 2,
        extra_pixel_bytes=_EXTRA_PIXEL_BYTES,
    )
    return OpenedImage(
        stored_size=header.size,
        orientation=header.orientation,
        estimate=lambda *_: estimate,
        load=lambda *_: _load(data, header),
        more=header.is_animated,
    )


def _load(data: bytes, header: _Header) -> Raster:
    imagecodecs = codec("imagecodecs", "pictures", "JPEG XL pictures")
    try:
        with decoder_failures():
            decoded = imagecodecs.jpegxl_decode(data, index=0, keeporientation=True, numthreads=1)
    except SourceError as error:
        # libjxl's word for a file that ends early.
        if "NEED_MORE_INPUT" in error.detail:
            raise truncated_error("the codestream ends early") from error
        raise
    pixels = three_axes(decoded)
    if pixels.shape[2] > 4 or pixels.dtype not in (np.uint8, np.uint16):
        raise decode_error("pixel type is not supported", f"{pixels.shape[2]} channels of {pixels.dtype}")
    filled, notes = to_full_depth(pixels, header.bits)
    return Raster(pixels=filled, notes=notes)
