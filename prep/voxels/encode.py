"""How the pixels of a record become bytes: one function per encoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from halofeed.errors import SourceError

PNG_LEVEL = 1
"""Deflate's fastest level: the higher ones cost several times as long for a few percent."""
LONGEST_JPEG, LONGEST_PNG = 65_500, 1_000_000
"""Pixels along a side that libjpeg-turbo and libpng write."""


def encode_raw(pixels: NDArray[Any], quality: int) -> memoryview:
    """The pixels' little-endian bytes, without a copy where they lie so already."""
    return np.ascontiguousarray(pixels, pixels.dtype.newbyteorder("<")).data.cast("B")


def encode_jpeg(pixels: NDArray[Any], quality: int) -> bytes:
    """A baseline JPEG with 4:2:0 chroma of uint8 pixels [height, width, 1 or 3]; SourceError where it is too long."""
    _check_length(pixels, LONGEST_JPEG, "JPEG", "take --encoding png")
    gray = pixels.shape[2] == 1
    colors = {"colorspace": "GRAY", "colorsubsampling": "Gray"} if gray else {"colorsubsampling": "420"}
    return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=quality, **colors))


def encode_png(pixels: NDArray[Any], quality: int) -> bytes:
    """A PNG of uint8 or uint16 pixels [height, width, 1, 3 or 4]; exact, so `quality` has no say.

    Raises:
        SourceError: it is too long.
    """
    _check_length(pixels, LONGEST_PNG, "PNG", "take --encoding raw --resize fixed-shape")
    order = {1: None, 3: cv2.COLOR_RGB2BGR, 4: cv2.COLOR_RGBA2BGRA}[pixels.shape[2]]
    swapped = pixels if order is None else cv2.cvtColor(pixels, order)
    done, data = cv2.imencode(".png", swapped, [cv2.IMWRITE_PNG_COMPRESSION, PNG_LEVEL])
    if not done:
        raise ValueError(f"OpenCV could not write {pixels.shape} {pixels.dtype} as PNG")
    return data.tobytes()


def _check_length(pixels: NDArray[Any], longest: int, kind: str, cure: str) -> None:
    height, width = pixels.shape[:2]
    if max(height, width) > longest:
        detail = f"{height} x {width} pixels (height x width), a side may have {longest:,}; {cure}"
        raise SourceError("encode", f"picture is too long for a {kind}", detail)


ENCODERS: dict[str, Callable[[NDArray[Any], int], bytes | memoryview]] = {
    "raw": encode_raw,
    "jpeg": encode_jpeg,
    "png": encode_png,
}
