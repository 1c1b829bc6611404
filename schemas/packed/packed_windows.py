"""Windows of packed arrays: unpacking of the part that a view shows, band by band, with verification.

value                                array
┌───────┬────────┬────────┐          ┌───────────────┐
│ table │ band 0 │ band 1 │          │ band 0        │
└───────┴────────┴────────┘          ├───────────────┤
               │                     │ ┌────────┐    │
               └───────────────────> │ │ window │    │  Only the table and the bands of the window's rows are
                                     │ └────────┘    │  verified, and only these bands are unpacked.
                                     └───────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.native import packing
from halofeed.schemas.packed.packed_layout import PackedLayout
from halofeed.schemas.packed.packed_reference import unpack_band
from halofeed.system.checksum import crc32c

Flags = NDArray[np.bool_]
"""Which bands of a value are verified, bool [band]."""
_AXES = 3


@dataclass(frozen=True, kw_only=True)
class PackedWindow:
    """A part of a packed array, and along which axes it is mirrored.

    Args:
        start: first stored plane, row and column.
        shape: number of planes, rows and columns.
        backwards: whether each axis is mirrored.
    """

    start: tuple[int, int, int]
    shape: tuple[int, int, int]
    backwards: tuple[bool, bool, bool] = (False, False, False)

    @classmethod
    def of(cls, start: Sequence[int], shape: Sequence[int], backwards: Sequence[bool] = ()) -> PackedWindow:
        """Return the window of an array with two or three axes.

        >>> PackedWindow.of((8, 4), (2, 3)).start
        (0, 8, 4)
        """
        outer, back = _AXES - len(start), tuple(backwards) or (False,) * len(start)
        return cls(
            start=(*(0,) * outer, *start),  # type: ignore[arg-type]
            shape=(*(1,) * outer, *shape),  # type: ignore[arg-type]
            backwards=(*(False,) * outer, *back),  # type: ignore[arg-type]
        )

    @classmethod
    def whole(cls, layout: PackedLayout) -> PackedWindow:
        """Return the window that shows a complete array."""
        return cls(start=(0, 0, 0), shape=(layout.planes, layout.height, layout.width))

    @cached_property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The (start, stop) of planes, rows and columns."""
        return tuple((at, at + size) for at, size in zip(self.start, self.shape, strict=True))

    def bands(self, layout: PackedLayout) -> NDArray[np.int64]:
        """Return the numbers of the bands that hold the window, int64 [band], ascending."""
        planes, rows, _ = self.ranges
        return layout.bands_of(planes, rows)


def pixels_of(out: NDArray[Any], axes: int) -> NDArray[np.uint8]:
    """Return an array [axis ..., channel, or none] as bytes, uint8 [plane, row, column, byte], without a copy."""
    pixels = out[..., None] if out.ndim == axes else out
    return pixels.view(np.uint8).reshape(*(1,) * (_AXES - axes), *pixels.shape[:-1], -1)


def read_window(
    value: NDArray[np.uint8],
    layout: PackedLayout,
    window: PackedWindow,
    out: NDArray[np.uint8],
    flags: Flags | None,
) -> None:
    """Unpack a window of a packed value; only the table and the bands of the window are read.

    Args:
        value: the packed value, uint8 [byte].
        layout: layout of the complete array.
        window: the part to unpack.
        out: uint8 [plane, row, column, byte] of the window's shape, with contiguous bytes of a pixel.
        flags: which bands are verified. Each other band that the window needs is verified, and its flag is set. None
            verifies nothing.

    Raises:
        ValueError: the value is damaged; the message names the band.
    """
    if packing.packs():
        bits = None if flags is None else flags.view(np.uint8)
        verifies = flags is not None
        if packing.unpack_window(value, layout, window.start, window.backwards, out, bits, verifies=verifies):
            return
    _unpack_slowly(value, layout, window, out, flags)


def _unpack_slowly(
    value: NDArray[np.uint8],
    layout: PackedLayout,
    window: PackedWindow,
    out: NDArray[np.uint8],
    flags: Flags | None,
) -> None:
    """Unpack a window with NumPy, where the kernel is not built, or for the message about a damaged value."""
    places, checksums = layout.read_table(value.data, len(value))
    target = out[tuple(slice(None, None, -1 if back else 1) for back in window.backwards)]
    planes, (top, bottom), columns = window.ranges
    for band in window.bands(layout).tolist():
        coded = value[places[band] : places[band + 1]].data
        if flags is not None and not flags[band]:
            if crc32c(coded) != checksums[band]:
                raise ValueError(f"the checksum of band {band} is wrong")
            flags[band] = True
        plane, first, stop = layout.rows_of(band)
        try:
            rows = unpack_band(coded, layout, stop - first)
        except ValueError as error:
            raise ValueError(f"band {band}: {error}") from error
        low, high = max(first, top), min(stop, bottom)
        pixels = rows.reshape(stop - first, layout.width, layout.pixel_bytes)
        target[plane - planes[0], low - top : high - top] = pixels[
            low - first : high - first, slice(*columns)
        ]
