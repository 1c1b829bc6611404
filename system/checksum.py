"""How bytes are checked: CRC32C, plain and in TFRecord's masked form."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, cast

import google_crc32c
import numpy as np
from numpy.typing import NDArray

_LARGE_BYTES = 1 << 15
BLOCK_BYTES = 1 << 20
"""A raw field is checked in blocks of this many bytes, so that a slab can be checked without the rest."""


def crc32c(data: Any, crc: int = 0) -> int:
    """The CRC32C (Castagnoli) of a bytes-like object, continuing from `crc`.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    if isinstance(data, bytes) and len(data) < _LARGE_BYTES:
        return int(google_crc32c.extend(crc, data))
    array = np.frombuffer(data, np.uint8)
    if array.nbytes < _LARGE_BYTES or _extend is None:
        return int(google_crc32c.extend(crc, array))
    return int(_extend(crc, array.ctypes.data, array.nbytes))


def _found_extend() -> Callable[[int, int, int], int] | None:
    """`crc32c_extend` of the library that google-crc32c is made of; None where it cannot be called by itself.

    google-crc32c holds the interpreter's lock while it sums, so that threads sum one after the other.
    """
    found = importlib.util.find_spec("google_crc32c._crc32c")
    try:
        extend = ctypes.CDLL(found.origin if found else None).crc32c_extend
    except (AttributeError, OSError):
        return None
    extend.argtypes, extend.restype = (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_uint32
    return cast(Callable[[int, int, int], int], extend)


_extend = _found_extend()


@cache
def extend_address() -> int | None:
    """Where a C function lies that continues a CRC32C, (uint32, const uint8 *, size_t) -> uint32; None without one."""
    return None if _extend is None else ctypes.cast(cast(Any, _extend), ctypes.c_void_p).value


def with_checksum(data: bytes) -> bytes:
    """Bytes that are kept for a later step, followed by their CRC32C."""
    return data + crc32c(data).to_bytes(4, "little")


def without_checksum(data: bytes) -> bytes:
    """The bytes that `with_checksum` was given.

    Raises:
        ValueError: these are others.

    >>> without_checksum(with_checksum(b"abc")), without_checksum(with_checksum(b"abd")[:3] + with_checksum(b"abc")[3:])
    Traceback (most recent call last):
        ...
    ValueError: its checksum is wrong, so it was changed after it was written
    """
    if crc32c(data[:-4]).to_bytes(4, "little") != data[-4:]:
        raise ValueError("its checksum is wrong, so it was changed after it was written")
    return data[:-4]


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
    (M. Adler, crc32_combine of zlib). That of a length is kept, so that fields of a static size cost four
    look-ups; for pieces of ever new lengths it is cheaper to compute the checksum again.

    >>> combine(crc32c(b"12345"), crc32c(b"6789"), 4) == crc32c(b"123456789")
    True
    """
    return _apply(_append_zeros(second_length), first) ^ second


Operator = tuple[list[int], ...]
"""What becomes of each byte of a CRC, lowest first: four tables of 256."""


def _apply(operator: Operator, crc: int) -> int:
    first, second, third, fourth = operator
    return first[crc & 255] ^ second[crc >> 8 & 255] ^ third[crc >> 16 & 255] ^ fourth[crc >> 24]


def combine_blocks(blocks: list[int], length: int) -> int:
    """The CRC32C of a value of `length` bytes from that of its blocks."""
    whole = 0
    for number, block in enumerate(blocks):
        whole = combine(whole, block, min(BLOCK_BYTES, length - number * BLOCK_BYTES))
    return whole


@cache
def block_shifts(length: int) -> NDArray[np.uint32]:
    """What appending zeros makes of each byte of a CRC, [of a whole block, of the last of a value; byte; 256].

    Args:
        length: of the value, in bytes.
    """
    return np.array([_append_zeros(BLOCK_BYTES), _append_zeros(length % BLOCK_BYTES)], np.uint32)


@lru_cache(maxsize=64)
def _append_zeros(count: int) -> Operator:
    columns = [1 << place for place in range(32)]
    for bit in range(count.bit_length()):
        if count >> bit & 1:
            columns = [_apply(_append_power_of_two(bit), column) for column in columns]
    return _operator(columns)


@cache
def _append_power_of_two(bit: int) -> Operator:
    if bit == 0:
        return _operator([_append_zero(1 << place) for place in range(32)])
    half = _append_power_of_two(bit - 1)
    return _operator([_apply(half, _apply(half, 1 << place)) for place in range(32)])


def _operator(columns: list[int]) -> Operator:
    """The tables of a linear map from what it makes of each bit."""
    tables = []
    for byte in range(4):
        table = [0] * 256
        for value in range(1, 256):
            lowest = value & -value
            table[value] = table[value ^ lowest] ^ columns[8 * byte + lowest.bit_length() - 1]
        tables.append(table)
    return tuple(tables)


def _append_zero(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc
