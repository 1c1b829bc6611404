"""Encoders of the pixels, voxels and label maps of a record: one function per encoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.color_planes import split_colors
from halofeed.schemas.packed.packed_arrays import pack
from halofeed.schemas.packed.packed_layout import PackedLayout
from halofeed.system.errors import SourceError

PNG_LEVEL = 1
"""Fastest level of deflate; higher levels take several times as long and save a few percent."""
_INTERVAL_PIXELS = (64, 160)
"""Usual width of a restart interval. Of 640² photographs at quality 95, crops of 32, 64 and 80 pixels decoded in 0.69,
0.73 and 0.76 of the time of complete files, which were 1.9, 1.0 and 0.8 % larger than without markers."""
MAX_JPEG_SIDE, MAX_PNG_SIDE = 65_500, 1_000_000
"""Maximum pixels per side that libjpeg-turbo and libpng write."""


def encode_raw(pixels: NDArray[Any], quality: int) -> memoryview:
    """Return the pixels as little-endian bytes, without a copy if possible; `quality` is ignored."""
    return np.ascontiguousarray(pixels, pixels.dtype.newbyteorder("<")).data.cast("B")


def encode_packed(pixels: NDArray[Any], quality: int) -> memoryview:
    """Return the packed value of pixels or voxels [(depth,) height, width, channel]; `quality` is ignored."""
    return pack(pixels, _packed_layout(pixels))


def encode_packed_labels(labels: NDArray[Any], quality: int) -> memoryview:
    """Return the packed value of class indices or class sets [(depth,) height, width, 1]; `quality` is ignored."""
    return pack(labels, _packed_layout(labels), patches=True)


def encode_planes(pixels: NDArray[Any], quality: int) -> memoryview:
    """Return the color planes of uint8 pixels [height, width, 3] of even sizes; `quality` is ignored."""
    return split_colors(pixels).data


def _packed_layout(array: NDArray[Any]) -> PackedLayout:
    return PackedLayout.of(array.shape, array.dtype, axes=array.ndim - 1)


def encode_jpeg(pixels: NDArray[Any], quality: int) -> bytes:
    """Encode uint8 pixels [height, width, 1 or 3] as a baseline JPEG with 4:2:0 chroma and restart markers.

    The loader decodes only the restart intervals that a crop shows (loader/jpeg_intervals.py). Markers are baseline
    JPEG, which every decoder reads; they take 1 % of a file.

    Raises:
        SourceError: a side is too long for a JPEG.
    """
    _check_length(pixels, MAX_JPEG_SIDE, "JPEG", "take --encoding png")
    gray = pixels.shape[2] == 1
    # OpenCV writes restart markers, which simplejpeg does not, and the accurate integer transform at each quality.
    swapped = pixels if gray else cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    options = [
        *(cv2.IMWRITE_JPEG_QUALITY, quality),
        *(cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420),
        *(cv2.IMWRITE_JPEG_RST_INTERVAL, restart_interval(pixels.shape[1], 8 if gray else 16)),
    ]
    done, data = cv2.imencode(".jpg", swapped, options)
    if not done:
        raise ValueError(f"OpenCV could not write {pixels.shape} {pixels.dtype} as JPEG")
    return data.tobytes()


def restart_interval(width: int, unit: int) -> int:
    """Return the coded units of a restart interval: a divisor of the units of a row, so that rows begin with one.

    Args:
        width: width of the picture in pixels.
        unit: width of a coded unit in pixels, 8 without and 16 with subsampled chroma.

    Returns:
        The fewest units of 64 to 160 pixels; where no such number divides the row, the most that are smaller, else
        the complete row.

    >>> restart_interval(640, 16), restart_interval(26 * 16, 16), restart_interval(37 * 16, 16)
    (4, 2, 37)
    """
    across = -(-width // unit)
    least, most = (pixels // unit for pixels in _INTERVAL_PIXELS)
    divisors = [units for units in range(2, most + 1) if across % units == 0]
    usual = [units for units in divisors if units >= least]
    smaller = [units for units in divisors if units < least]
    return (usual[:1] or smaller[-1:] or [across])[0]


def encode_png(pixels: NDArray[Any], quality: int) -> bytes:
    """Encode uint8 or uint16 pixels [height, width, 1, 3 or 4] as a lossless PNG; `quality` is ignored.

    Raises:
        SourceError: a side is too long for a PNG.
    """
    _check_length(pixels, MAX_PNG_SIDE, "PNG", "take --encoding raw --resize fixed-shape")
    order = {1: None, 3: cv2.COLOR_RGB2BGR, 4: cv2.COLOR_RGBA2BGRA}[pixels.shape[2]]
    swapped = pixels if order is None else cv2.cvtColor(pixels, order)
    done, data = cv2.imencode(".png", swapped, [cv2.IMWRITE_PNG_COMPRESSION, PNG_LEVEL])
    if not done:
        raise ValueError(f"OpenCV could not write {pixels.shape} {pixels.dtype} as PNG")
    return data.tobytes()


def _check_length(pixels: NDArray[Any], max_side: int, kind: str, cure: str) -> None:
    height, width = pixels.shape[:2]
    if max(height, width) > max_side:
        detail = f"{height} x {width} pixels (height x width), a side may have {max_side:,}; {cure}"
        raise SourceError("encode", f"picture is too long for a {kind}", detail)


ENCODERS: dict[str, Callable[[NDArray[Any], int], bytes | memoryview]] = {
    "raw": encode_raw,
    "packed": encode_packed,
    "yuv420": encode_planes,
    "jpeg": encode_jpeg,
    "png": encode_png,
}
LABEL_ENCODERS: dict[str, Callable[[NDArray[Any], int], bytes | memoryview]] = {
    "raw": encode_raw,
    "packed": encode_packed_labels,
    "yuv420": encode_packed_labels,
    "jpeg": encode_png,
    "png": encode_png,
}
"""Encoder of label maps [(depth,) height, width, 1], by the encoding of their images."""
