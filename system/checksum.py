"""CRC32C checksums, plain and in TFRecord's masked form."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import numpy as np

_LARGE_BYTES = 1 << 15
BLOCK_BYTES = 1 << 16
"""Block size of the checksums of a raw field, so that a part of it can be checked without the other bytes."""


def crc32c(data: Any, crc: int = 0) -> int:
    """Return the CRC32C (Castagnoli) of a bytes-like object, continuing from `crc`.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    extend, extend_unlocked = _functions()
    if isinstance(data, bytes) and len(data) < _LARGE_BYTES:
        return int(extend(crc, data))
    array = np.frombuffer(data, np.uint8)
    # A call through ctypes costs more than the checksum of a small piece.
    if array.nbytes < _LARGE_BYTES or extend_unlocked is None:
        return int(extend(crc, array))
    return int(extend_unlocked(crc, array.ctypes.data, array.nbytes))


@cache
def _functions() -> tuple[Callable[[int, Any], int], Callable[[int, int, int], int] | None]:
    """Load `extend` of google-crc32c, and `crc32c_extend` of its C library; None where that cannot be called directly.

    google-crc32c holds the interpreter's lock while it computes, which would make threads wait for each other. It is
    loaded at the first checksum, because a help text needs none.
    """
    import google_crc32c

    found = importlib.util.find_spec("google_crc32c._crc32c")
    try:
        unlocked = ctypes.CDLL(found.origin if found else None).crc32c_extend
    except (AttributeError, OSError):
        return google_crc32c.extend, None
    unlocked.argtypes, unlocked.restype = (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_uint32
    return google_crc32c.extend, cast(Callable[[int, int, int], int], unlocked)


@cache
def extend_address() -> int | None:
    """Return the address of a C function that continues a CRC32C; None where there is none.

    Its signature is (uint32, const uint8 *, size_t) -> uint32.
    """
    unlocked = _functions()[1]
    return None if unlocked is None else ctypes.cast(cast(Any, unlocked), ctypes.c_void_p).value


def with_checksum(data: bytes) -> bytes:
    """Return bytes followed by their CRC32C."""
    return data + crc32c(data).to_bytes(4, "little")


def without_checksum(data: bytes) -> bytes:
    """Return the bytes that `with_checksum` was given.

    Raises:
        ValueError: the checksum does not match.

    >>> without_checksum(with_checksum(b"abc")), without_checksum(with_checksum(b"abd")[:3] + with_checksum(b"abc")[3:])
    Traceback (most recent call last):
        ...
    ValueError: its checksum is wrong, so it was changed after it was written
    """
    if crc32c(data[:-4]).to_bytes(4, "little") != data[-4:]:
        raise ValueError("its checksum is wrong, so it was changed after it was written")
    return data[:-4]


def mask_crc(crc: int) -> int:
    """Return TFRecord's masked CRC: rotated right by 15 bits, plus a constant, modulo 2**32."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def block_checksums(data: Any, block_bytes: int = BLOCK_BYTES) -> list[int]:
    """Return the CRC32C of each block of `data`; the last block may be shorter."""
    view = np.frombuffer(data, np.uint8)
    return [crc32c(view[start : start + block_bytes]) for start in range(0, len(view), block_bytes)]


def combine(first: int, second: int, second_length: int) -> int:
    """Return the CRC32C of two concatenated pieces from the CRC32C of each and the length of the second.

    Appending zeros is linear over GF(2); the operator for 2**n zeros is the square of that for 2**(n - 1)
    (M. Adler, crc32_combine of zlib). Each bit that is set in the length costs four look-ups. A block has one such bit,
    and a packed value of 600 kB about ten, which take 3 µs.

    >>> combine(crc32c(b"12345"), crc32c(b"6789"), 4) == crc32c(b"123456789")
    True
    """
    for bit in range(second_length.bit_length()):
        if second_length >> bit & 1:
            first = _apply(_append_power_of_two(bit), first)
    return first ^ second


def combine_blocks(blocks: list[int], length: int, block_bytes: int = BLOCK_BYTES) -> int:
    """Return the CRC32C of a value of `length` bytes from the CRC32C of its blocks."""
    crc = 0
    for number, block in enumerate(blocks):
        crc = combine(crc, block, min(block_bytes, length - number * block_bytes))
    return crc


_Operator = tuple[list[int], ...]
"""Linear map of a CRC as four tables of 256 entries, one per byte of the CRC, lowest byte first."""


def _apply(operator: _Operator, crc: int) -> int:
    first, second, third, fourth = operator
    return first[crc & 255] ^ second[crc >> 8 & 255] ^ third[crc >> 16 & 255] ^ fourth[crc >> 24]


@cache
def _append_power_of_two(bit: int) -> _Operator:
    if bit == 0:
        return _operator([_append_zero(1 << place) for place in range(32)])
    half = _append_power_of_two(bit - 1)
    return _operator([_apply(half, _apply(half, 1 << place)) for place in range(32)])


def _operator(columns: list[int]) -> _Operator:
    """Return the tables of a linear map from its value for each bit."""
    tables = []
    for byte in range(4):
        table = [0]
        for column in columns[8 * byte : 8 * byte + 8]:
            table += [value ^ column for value in table]  # the values with this bit
        tables.append(table)
    return tuple(tables)


def _append_zero(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc
