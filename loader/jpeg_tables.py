"""Tables of a JPEG header, with which the kernel decodes the restart intervals of a file."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.jpeg_intervals import BLOCK, FRAME_HEADERS, SOS, JpegLayout, interval_ends, segments
from halofeed.schemas.native.jpeg_decoding import JpegIntervals, JpegTables, code_tables

_DHT, _DQT, _APP0 = 0xC4, 0xDB, 0xE0
_LEAST_SMOOTHED = 5
"""Pixels per row from which chroma of half the width is smoothed: three samples (jdsample.c, jinit_upsampler)."""
_ZIGZAG = np.lexsort(
    [
        [row if (row + column) % 2 else column for row in range(BLOCK) for column in range(BLOCK)],
        [row + column for row in range(BLOCK) for column in range(BLOCK)],
    ]
)
"""Place by rows of each coefficient in the order of a file (T.81, figure A.6)."""


def intervals_of(file: memoryview, layout: JpegLayout) -> tuple[JpegIntervals, JpegTables] | None:
    """Return a file's intervals and tables for the kernel; None if it does not decode such files."""
    if layout.units[1] % layout.interval or layout.size[1] < _LEAST_SMOOTHED:
        return None
    header = bytearray(file[: layout.start])
    # Pictures of a data set have the same tables, whatever their sizes.
    header[layout.size_at : layout.size_at + 4] = bytes(4)
    tables = _tables(bytes(header))
    ends = None if tables is None else interval_ends(file, layout)
    if tables is None or ends is None:
        return None
    found = JpegIntervals(
        file=file, size=layout.size, interval=layout.interval, start=layout.start, ends=ends
    )
    return found, tables


@lru_cache(maxsize=64)
def _tables(header: bytes) -> JpegTables | None:
    """Return the tables of a header that ends with the start of scan.

    None unless the colors are gray or YCbCr, and the scan is complete and in the order of the frame.
    """
    quantization: dict[int, NDArray[np.int16]] = {}
    codes: dict[int, tuple[bytes, bytes]] = {}
    frame, scan, is_jfif, is_known = b"", b"", False, True
    for marker, at, end in segments(memoryview(header)):
        payload = header[at:end]
        if marker == _APP0:
            is_jfif |= payload.startswith(b"JFIF\0")
        elif marker == _DQT:
            is_known &= _add_quantization(payload, quantization)
        elif marker == _DHT:
            is_known &= _add_codes(payload, codes)
        elif marker in FRAME_HEADERS:
            frame = payload[6:]
        elif marker == SOS:
            scan = payload
    count = len(frame) // 3
    # JFIF means YCbCr; other files say by other markers and names what their colors are (jdapimin.c).
    expected = bytes(
        [count, *(byte for pair in zip(frame[::3], scan[2:-3:2], strict=False) for byte in pair)]
    )
    if not (is_jfif and is_known) or scan != expected + b"\0\x3f\0":
        return None
    factors = frame[1::3]
    if count != 1 and factors not in (b"\x11\x11\x11", b"\x22\x11\x11"):
        return None
    return _joined(quantization, codes, frame[2::3], scan[2:-3:2], count == 3 and factors[0] == 0x22)


def _joined(
    quantization: dict[int, NDArray[np.int16]],
    codes: dict[int, tuple[bytes, bytes]],
    quantization_of: bytes,
    codes_of: bytes,
    is_subsampled: bool,
) -> JpegTables | None:
    """Return the tables of all components by the numbers of each one's tables; None if one is missing."""
    tables = []
    for number in codes_of:
        chosen = [codes.get(kind << 4 | digit) for kind, digit in ((0, number >> 4), (1, number & 15))]
        found = code_tables([code for code in chosen if code is not None])
        if found is None or len(found) != 2:
            return None
        tables.append(found)
    if not quantization.keys() >= set(quantization_of):
        return None
    return JpegTables(
        is_subsampled=is_subsampled,
        quantization=np.ascontiguousarray([quantization[number] for number in quantization_of]),
        codes=np.ascontiguousarray(tables),
    )


def _add_quantization(payload: bytes, tables: dict[int, NDArray[np.int16]]) -> bool:
    """Add the quantization tables of a segment by number; False if one has other than 8 bits (T.81, B.2.4.1)."""
    for at in range(0, len(payload), 65):
        values = np.frombuffer(payload, np.uint8)[at + 1 : at + 65]
        if payload[at] > 3 or len(values) != 64:
            return False
        tables[payload[at]] = np.zeros(64, np.int16)
        tables[payload[at]][_ZIGZAG] = values
    return True


def _add_codes(payload: bytes, codes: dict[int, tuple[bytes, bytes]]) -> bool:
    """Add the Huffman codes of a segment by class and number; False if it is cut off (T.81, B.2.4.2)."""
    at = 0
    while at < len(payload):
        counts = payload[at + 1 : at + 17]
        end = at + 17 + sum(counts)
        if len(counts) != 16 or end > len(payload):
            return False
        codes[payload[at]] = counts, payload[at + 17 : end]
        at = end
    return True
