"""Packing and unpacking of complete arrays by the kernel, or by NumPy where the kernel is not built.

`packed_windows` unpacks windows of one value, and `halofeed.schemas.native.packing` those of many in one call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.native import packing
from halofeed.schemas.packed.packed_layout import SLACK_BYTES, PackedLayout
from halofeed.schemas.packed.packed_reference import pack_slowly, unpack_slowly


def pack(array: NDArray[Any], layout: PackedLayout, *, patches: bool = False) -> memoryview:
    """Return the packed value of an array.

    Args:
        array: an array of the layout's shape and dtype.
        layout: layout of the array.
        patches: also try the mode for label maps, band by band.

    Returns:
        The value, uint8 [byte].

    >>> layout = PackedLayout.of((32, 64), "uint8", axes=2)
    >>> value = pack(np.zeros((32, 64), np.uint8), layout)
    >>> len(value), unpack(value, layout).reshape(32, 64).any()
    (101, np.False_)
    """
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    numbers = little.reshape(-1).view(np.uint8)
    if packing.packs():
        return packing.pack_bytes(numbers, layout, patches=patches).data
    return memoryview(pack_slowly(numbers, layout, patches=patches))


def unpack(value: bytes | memoryview, layout: PackedLayout) -> NDArray[np.uint8]:
    """Return an array's little-endian bytes, uint8 [byte], after every checksum was compared.

    Args:
        value: the packed value.
        layout: layout of the array.

    Raises:
        ValueError: the value is damaged; every changed bit is found. The message names the band.
    """
    # The kernel does not read the zeros at the end, because a reader of a window may not have them.
    if packing.packs() and not any(value[-SLACK_BYTES:]):
        out = np.empty((layout.planes, layout.height, layout.width, layout.pixel_bytes), np.uint8)
        if packing.unpack_window(np.frombuffer(value, np.uint8), layout, (0, 0, 0), (False,) * 3, out):
            return out.reshape(-1)
    return unpack_slowly(value, layout)  # its error names what is wrong with a damaged value
