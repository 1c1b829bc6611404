"""Label images in DICOM files: the stored numbers of a picture, as mammography sets have masks (CBIS-DDSM).

A label is no gray value, so no LUT and no window is applied: a pixel's class is the number that the file stores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.picture_header import GRAY, PictureHeader, read_picture_header, rescale_of
from halofeed.prep.formats.dicom.pixels import SLICE_BIT_DEPTHS, extract_values, read_frames
from halofeed.prep.formats.picture.image import check_pixel_count, decode_error
from halofeed.system.memory import ReserveMemory
from halofeed.system.wording import plural

_BIT_DEPTHS = (1, *SLICE_BIT_DEPTHS)
_PIXEL_BYTES = 16
"""Bytes per pixel while a frame is decoded; see `dicom_picture`."""
_LOSSY_SYNTAXES = ("1.2.840.10008.1.2.4.50", "1.2.840.10008.1.2.4.51")
"""JPEG baseline and extended. Others say by their error bound or Lossy Image Compression whether they are exact."""
_CURE = "save it as an 8-bit PNG with one value for each class"
_LARGEST = 65535


def label_bits(data: bytes) -> int:
    """Return the bits of a stored number: 1, 8 or 16.

    Raises:
        SourceError: as `read_dicom_label`.
    """
    stored = _open(data)[0].stored
    return 1 if stored.bits_allocated == 1 else 8 if stored.bits_allocated == 8 else 16


def read_dicom_label(data: bytes, max_pixels: int, reserve: ReserveMemory) -> NDArray[Any]:
    """Return the stored numbers [height, width] of a picture, uint8 or uint16.

    Args:
        data: the file.
        max_pixels: largest number of pixels.
        reserve: called with the number of bytes for the file and its pixels before they are decoded.

    Raises:
        SourceError: the file holds no picture, several frames, colors, numbers that a display changes, values below 0
            or above 65535, or was compressed with loss; or it is damaged.
    """
    header, body = _open(data)
    check_pixel_count(header.stored.size, max_pixels, " in the label")
    reserve(len(data) + _PIXEL_BYTES * header.stored.size[0] * header.stored.size[1])
    words, near = read_frames(body, header, _BIT_DEPTHS).words(0)
    if near:
        raise decode_error("label image is stored with loss", f"JPEG-LS with errors up to {near}; {_CURE}")
    values = extract_values(words, header.stored)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > _LARGEST:
        raise decode_error(
            "label image holds values that are no classes",
            f"{low} to {high}; expected whole numbers from 0 to {_LARGEST}; {_CURE}",
        )
    is_wide = header.stored.bits_allocated > 8
    return np.ascontiguousarray(values.astype(np.uint16 if is_wide else np.uint8))


def _open(data: bytes) -> tuple[PictureHeader, bytes]:
    header, body = read_picture_header(data)
    if len(header.frames) > 1:
        raise decode_error(
            "label image holds several pictures", f"{plural(len(header.frames), 'frame')}; {_CURE}"
        )
    if not header.is_gray:
        raise decode_error("label image is in color", f"DICOM of {header.color}; {_CURE}")
    # Readers differ in whether they apply what a display does, and so in which class a number is.
    if header.color == GRAY[0] or rescale_of(header.groups(0)) not in (None, (1, 0)):
        detail = "DICOM whose low values are white (MONOCHROME1), or with a rescale slope and intercept"
        raise decode_error("label image is ambiguous", f"{detail}; {_CURE}")
    is_lossy = headers.text(header.elements, headers.LOSSY_COMPRESSION) == "01"
    if is_lossy or header.syntax in _LOSSY_SYNTAXES:
        raise decode_error("label image is stored with loss", f"DICOM compressed with loss; {_CURE}")
    return header, body
