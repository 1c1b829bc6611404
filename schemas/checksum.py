"""How bytes are checked: CRC32C, plain and in TFRecord's masked form."""

from __future__ import annotations

from functools import cache
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


def combine(first: int, second: int, second_length: int) -> int:
    """The CRC32C of two pieces one after the other, from that of each and the second's length.

    Appending zeros is linear over GF(2); the operator for 2**n of them is the square of that for 2**(n - 1)
    (M. Adler, crc32_combine of zlib).

    >>> combine(crc32c(b"12345"), crc32c(b"6789"), 4) == crc32c(b"123456789")
    True
    """
    bit = 0
    while second_length >> bit:
        if second_length >> bit & 1:
            table = _append_zeros(bit)
            low, high = first & 0xFFFF, first >> 16
            first = table[0][low & 255] ^ table[1][low >> 8] ^ table[2][high & 255] ^ table[3][high >> 8]
        bit += 1
    return first ^ second


def combine_blocks(blocks: list[int], length: int) -> int:
    """The CRC32C of a value of `length` bytes from that of its blocks."""
    whole = 0
    for number, block in enumerate(blocks):
        whole = combine(whole, block, min(BLOCK_BYTES, length - number * BLOCK_BYTES))
    return whole


@cache
def _append_zeros(bit: int) -> list[list[int]]:
    """What becomes of each byte of a CRC, lowest first, when 2**bit zero bytes are appended."""
    if bit == 0:
        columns = [_append_zero(1 << place) for place in range(32)]
    else:
        half = _append_zeros(bit - 1)
        once = [half[place // 8][1 << place % 8] for place in range(32)]
        columns = [
            half[0][value & 255]
            ^ half[1][value >> 8 & 255]
            ^ half[2][value >> 16 & 255]
            ^ half[3][value >> 24]
            for value in once
        ]
    tables = []
    for byte in range(4):
        table = [0] * 256
        for value in range(1, 256):
            lowest = value & -value
            table[value] = table[value ^ lowest] ^ columns[8 * byte + lowest.bit_length() - 1]
        tables.append(table)
    return tables


def _append_zero(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc
