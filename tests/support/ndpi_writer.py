"""Writer of small NDPI files: Hamamatsu's TIFF, in which each level is one JPEG with restart markers."""

import io
import struct
from pathlib import Path

import numpy as np
from PIL import Image

_SHORT, _LONG, _SIGNED, _RATIONAL, _FLOAT, _TEXT = 3, 4, 9, 5, 11, 2
_MCUS = 4
"""Minimum coded units of 16 x 8 pixels (4:2:2) between two restart markers."""


def encode(picture: np.ndarray) -> tuple[bytes, list[int]]:
    """Return a JPEG with restart markers, and the start of each part between them."""
    stream = io.BytesIO()
    Image.fromarray(picture).save(
        stream, "JPEG", quality=90, subsampling="4:2:2", restart_marker_blocks=_MCUS
    )
    data = stream.getvalue()
    start = data.index(b"\xff\xda")
    first = start + 2 + struct.unpack_from(">H", data, start + 2)[0]
    # Other bytes of 255 in the coded pixels are followed by 0.
    marks = [at + 2 for at in range(first, len(data) - 1) if data[at] == 255 and 0xD0 <= data[at + 1] <= 0xD7]
    return data, [first, *marks]


def write_ndpi(path: Path, pages: list[tuple[np.ndarray, float]], micrometers: float) -> None:
    """Write pictures with the magnification of each; -1 is the photograph of the slide."""
    body, directory = bytearray(12), []
    for picture, lens in pages:
        data, starts = encode(picture)
        at = len(body)
        body += data
        height, width = picture.shape[:2]
        pixels = round(10_000_000 / micrometers)
        directory.append(
            [
                (256, _LONG, [width]),
                (257, _LONG, [height]),
                (258, _SHORT, [8, 8, 8]),
                (259, _SHORT, [7]),
                (262, _SHORT, [6]),
                (271, _TEXT, b"Hamamatsu\0"),
                (273, _LONG, [at]),
                (277, _SHORT, [3]),
                (278, _LONG, [height]),
                (279, _LONG, [len(data)]),
                (282, _RATIONAL, [pixels, 1000]),
                (283, _RATIONAL, [pixels, 1000]),
                (296, _SHORT, [3]),
                (530, _SHORT, [2, 1]),
                (65420, _LONG, [1]),
                (65421, _FLOAT, [lens]),
                (65424, _SIGNED, [0]),
                *([(65426, _LONG, starts)] if lens > 0 else []),
            ]
        )
    link = 4
    for entries in directory:
        table, at = b"", []
        for tag, kind, values in entries:
            code = {_SHORT: "H", _LONG: "I", _SIGNED: "i", _RATIONAL: "I", _FLOAT: "f"}.get(kind)
            packed = values if code is None else struct.pack(f"<{len(values)}{code}", *values)
            count = len(values) // 2 if kind == _RATIONAL else len(values)
            if len(packed) > 4:
                at.append(len(body))
                body += packed + b"\0" * (len(packed) % 2)
                packed = struct.pack("<I", at[-1])
            table += struct.pack("<HHI", tag, kind, count) + packed.ljust(4, b"\0")
        struct.pack_into("<Q", body, link, len(body))
        body += struct.pack("<H", len(entries)) + table
        link = len(body)
        body += bytes(8) + bytes(4 * len(entries))  # the next directory, and the upper halves of the values
    body[:4] = b"II*\0"
    path.write_bytes(body)
