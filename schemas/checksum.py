"""How bytes are checked: CRC32C, plain and in TFRecord's masked form."""

from __future__ import annotations

from typing import Any

import google_crc32c
import numpy as np

BLOCK_BYTES = 1 << 20
"""A raw field is checked in blocks of this many bytes, so that a slab can be checked without the rest."""


def crc32c(data: Any, crc: int = 0) -> int:
    """The CRC32C (Castagnoli) of a bytes-like object, continuing from `crc`.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    view = data if isinstance(data, bytes) else np.frombuffer(data, np.uint8)
    return int(google_crc32c.extend(crc, view))


def mask_crc(crc: int) -> int:
    """TFRecord's masked CRC: rotated right by 15 bits, plus a constant, modulo 2**32."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def block_checksums(data: Any) -> list[int]:
    """The CRC32C of each `BLOCK_BYTES` block of `data`, the last one shorter."""
    view = np.frombuffer(data, np.uint8)
    return [crc32c(view[start : start + BLOCK_BYTES]) for start in range(0, len(view), BLOCK_BYTES)]
