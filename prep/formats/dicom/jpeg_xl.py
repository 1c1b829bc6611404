"""Decoder of JPEG XL frames (DICOM Supplement 232), by imagecodecs; pydicom 3.0 has none.

The size is read from the header before any pixel, because a damaged header may claim a billion of them.

Source: ISO/IEC 18181-1, Annex D.2 (signature and SizeHeader) and ISO/IEC 18181-2 (the boxes of a container).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.system.errors import SourceError, require_extra

JPEG_XL: Final = "JPEG XL"
_SIGNATURE: Final = b"\xff\x0a"
_CONTAINER: Final = b"\0\0\0\x0cJXL \r\n\x87\n"
_SIDE_BITS: Final = (9, 13, 18, 30)
_RATIOS: Final = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))


def jpeg_xl_size(frame: bytes) -> tuple[int, int] | None:
    """Return the (height, width) of a frame, a bare codestream or one in a container; None for other bytes.

    >>> jpeg_xl_size(bytes.fromhex("ff0a8f61")), jpeg_xl_size(b"no picture")
    ((64, 80), None)
    """
    start = _codestream_at(frame)
    if start is None:
        return None
    bits = int.from_bytes(frame[start + 2 : start + 14], "little")
    if len(frame) < start + 14:
        bits = int.from_bytes(frame[start + 2 :], "little")
    at = 0

    def take(count: int) -> int:
        nonlocal at
        value = bits >> at & (1 << count) - 1
        at += count
        return value

    def side(is_small: bool) -> int:
        return 8 * (take(5) + 1) if is_small else take(_SIDE_BITS[take(2)]) + 1

    is_small = bool(take(1))
    height = side(is_small)
    ratio = take(3)
    if ratio == 0:
        return height, side(is_small)
    across, down = _RATIOS[ratio - 1]
    return height, height * across // down


def _codestream_at(frame: bytes) -> int | None:
    """Return the offset of the first codestream; None without one."""
    if frame.startswith(_SIGNATURE):
        return 0
    if not frame.startswith(_CONTAINER):
        return None
    for kind, start in _boxes(frame):
        # Parts of a codestream in several boxes have a number of 4 bytes before them.
        at = start + (4 if kind == b"jxlp" else 0)
        if kind in (b"jxlc", b"jxlp") and frame.startswith(_SIGNATURE, at):
            return at
    return None


def _boxes(frame: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the kind of each box and the offset of its content."""
    at = 0
    while at + 8 <= len(frame):
        size, kind, head = int.from_bytes(frame[at : at + 4], "big"), frame[at + 4 : at + 8], 8
        if size == 1:
            size, head = int.from_bytes(frame[at + 8 : at + 16], "big"), 16
        yield kind, at + head
        # 0: the box reaches to the end of the file.
        if size < head:
            return
        at += size


def decode_jpeg_xl(frame: bytes) -> NDArray[Any]:
    """Return the pixels of a frame.

    Raises:
        SourceError: the frame is damaged.
        MissingExtraError: imagecodecs is not installed.
    """
    with require_extra("large", "imagecodecs"):
        import imagecodecs
    try:
        return np.asarray(imagecodecs.jpegxl_decode(frame))
    except (
        ValueError,
        RuntimeError,
        TypeError,
        IndexError,
    ) as error:  # imagecodecs.JpegxlError is a RuntimeError
        raise SourceError("decode", "pixel data is damaged", f"its {JPEG_XL} cannot be decoded") from error
