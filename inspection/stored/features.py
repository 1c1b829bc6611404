"""Which single value has a key of a record? None where a record, which anyone may have written, has none."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.picture.stored import check_stored
from halofeed.schemas.tfexample import Decoded


def integer_of(features: Decoded, key: str) -> int | None:
    """The single integer of a key, or None where there is none."""
    value = features.get(key)
    return (
        int(value[0])
        if isinstance(value, np.ndarray) and value.dtype == np.int64 and len(value) == 1
        else None
    )


def bytes_of(features: Decoded, key: str) -> memoryview | None:
    """The single bytes value of a key, or None where there is none."""
    value = features.get(key)
    return value[0] if isinstance(value, list) and len(value) == 1 else None


def text_of(features: Decoded, key: str) -> str | None:
    """The single text of a key, or None; bytes that are not UTF-8 become lone surrogates, as in file names."""
    value = bytes_of(features, key)
    return None if value is None else str(value, "utf-8", "surrogateescape")


def decode_stored(data: memoryview, encoding: str, largest: tuple[int, int]) -> NDArray[Any] | None:
    """The pixels [height, width, channel] of a stored JPEG or PNG, channels in OpenCV's order.

    None if it is none, cannot be decoded, or is larger than it may be.
    """
    try:
        check_stored(data, encoding, largest)
    except ValueError:
        return None
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    return None if pixels is None else pixels.reshape(*pixels.shape[:2], -1)
