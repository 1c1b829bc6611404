"""How the run lengths of one DICOM frame are decoded: a piece for each byte of a pixel, the highest first.

The plug-in decodes one piece at a time: given a whole frame with runs beyond its end, it panics, which prints a
traceback of its own before anyone can catch it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from rle.rle import decode_segment

from halofeed.schemas.errors import SourceError

HEADER_BYTES = 64


def damaged_pixels(detail: str) -> SourceError:
    """The error of pixel data that is not what its header says."""
    return SourceError("decode", "pixel data is damaged", detail)


def too_short(detail: str) -> SourceError:
    """The error of pixel data that ends early."""
    return SourceError("decode", "pixel data is truncated", detail)


def check_run_lengths(frame: bytes, planes: int) -> list[int]:
    """Where each piece of a frame begins, and where the last one ends.

    Raises:
        SourceError: the header is not one of `planes` pieces in order.
    """
    count, *offsets = np.frombuffer(frame[:HEADER_BYTES].ljust(HEADER_BYTES, b"\0"), "<u4").tolist()
    if count != planes or offsets[0] != HEADER_BYTES or offsets[:planes] != sorted(set(offsets[:planes])):
        raise damaged_pixels(f"run lengths of {count} planes, expected {planes}")
    if offsets[planes - 1] >= len(frame):
        raise too_short(f"run lengths from byte {offsets[planes - 1]} of {len(frame)}")
    return [*offsets[:planes], len(frame)]


def decode_run_lengths(frame: bytes, planes: int, size: tuple[int, int]) -> NDArray[np.unsignedinteger]:
    """The pixels [row, column] of a frame, of `planes` bytes each, unsigned.

    Raises:
        SourceError: the header, or the runs, are not those of so many pixels; zeros behind them are padding.
    """
    places = check_run_lengths(frame, planes)
    count = size[0] * size[1]
    pixels = np.empty((count, planes), np.uint8)
    for plane in range(planes):
        try:
            decoded = bytes(decode_segment(frame[places[plane] : places[plane + 1]]))
        except ValueError as error:
            raise damaged_pixels("the last run ends after the end") from error
        if len(decoded) < count or any(decoded[count:]):
            raise damaged_pixels(f"run lengths of {len(decoded)} values, expected {count}")
        pixels[:, planes - 1 - plane] = np.frombuffer(decoded, np.uint8, count)
    return pixels.view(f"<u{planes}").reshape(size)
