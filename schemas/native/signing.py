"""Python interface to signing.c, which makes the signatures of pictures and stacks.

A call releases the interpreter's lock, so that threads work in parallel.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from halofeed.schemas.native import kernel

_KINDS = {"|u1": 0, "<u2": 1, "<i2": 2, "<f4": 3}
_BFLOAT16 = 4
_SIGNING = struct.Struct("=9q")
"""`Signing` of signing.c."""
_WORDS = 16
_Numbers = NDArray[Any]


def sign(
    parts: Sequence[_Numbers], planes: int, *, are_bfloat16: bool = False
) -> tuple[list[int], list[int]] | None:
    """Return the spread of each thumbnail, and the words of all.

    Args:
        parts: numbers [row, column, channel] of one shape, dtype and strides; each thumbnail is made of an equal share
            of them.
        planes: number of thumbnails.
        are_bfloat16: the numbers are the bits of bfloat16.

    Returns:
        None if the kernel is not built, or if it does not read such numbers or shapes.
    """
    library = kernel.library()
    first = parts[0]
    kind = _BFLOAT16 if are_bfloat16 else _KINDS.get(first.dtype.str)
    if library is None or library.sign is None or kind is None:
        return None
    addresses = [part.__array_interface__["data"][0] for part in parts]
    signing = _SIGNING.pack(len(parts), planes, kind, *first.shape, *first.strides)
    out = (ctypes.c_int64 * (planes * (1 + _WORDS)))()
    if not library.sign(signing, struct.pack(f"={len(parts)}q", *addresses), out):
        return None
    numbers = list(out)
    spreads = numbers[:: 1 + _WORDS]
    del numbers[:: 1 + _WORDS]
    return spreads, numbers
