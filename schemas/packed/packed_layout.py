"""Layout of a packed value: how an array is cut into bands and groups, and the table at the value's start.

    value                                       band of at most 32 rows of one plane
    ┌───────────────────────────────────────┐   ┌──────┬───────┬────────┬──────┐
    │ version, checksum of the table        │   │ mode │ bases │ widths │ data │
    │ end and checksum of each band (table) │   └──────┴───────┴────────┴──────┘
    │ band 0 │ band 1 │ ... │ 16 zero bytes │
    └───────────────────────────────────────┘

A unit is the smallest piece that is predicted together: one byte, one 16-bit or 32-bit number, or the three bytes of a
color. 16 units of a row are a group. A window needs the bands of its rows, and of these only the groups of its columns.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.system.checksum import crc32c

PACKED_VERSION = 1
BAND_ROWS = 32
GROUP_UNITS = 16
HEAD_BYTES, ENTRY_BYTES = 8, 8
"""Bytes before the table, and of each of its entries: the band's end in the value and its CRC32C, uint32 each."""
SLACK_BYTES = 16
"""Zero bytes at the end of a value, so that a decoder may load 16 bytes at any place of a band."""
MAX_VALUE_BYTES = 2**32 - 1
"""Bytes of the largest value, because its table has offsets of 32 bits."""
RAW, GROUPS, PATCHES = range(3)
"""Modes of a band."""
_HEAD = struct.Struct("<II")


@dataclass(frozen=True, kw_only=True)
class PackedLayout:
    """Places of bands and groups in the packed values of one shape and dtype.

    Args:
        planes: number of planes, such as the slices of a volume; 1 for a picture.
        height: rows of a plane.
        width: pixels of a row.
        pixel_bytes: bytes of a pixel with all its channels.
        unit_bytes: 1, 2 or 4 for numbers of that size, 3 for the bytes of a color.

    Raises:
        ValueError: an axis is empty, a pixel is not a whole number of units, or a value could be larger than offsets of
            32 bits can state.

    >>> layout = PackedLayout.of((640, 640, 3), "uint8", axes=2)
    >>> layout.bands, layout.groups, layout.table_bytes
    (20, 40, 168)
    """

    planes: int
    height: int
    width: int
    pixel_bytes: int
    unit_bytes: int

    def __post_init__(self) -> None:
        # The kernel takes these numbers as they are, and they decide which bytes it reads and writes.
        if min(self.planes, self.height, self.width, self.pixel_bytes) < 1:
            shape = [self.planes, self.height, self.width, self.pixel_bytes]
            raise ValueError(f"expected planes, rows, columns and pixels that are not empty, got {shape}")
        if self.unit_bytes not in (1, 2, 3, 4) or self.pixel_bytes % self.unit_bytes:
            raise ValueError(
                f"expected units of 1 to 4 bytes, got {self.unit_bytes} of {self.pixel_bytes} bytes"
            )
        if self.max_bytes > MAX_VALUE_BYTES:
            raise ValueError(
                f"a packed value has at most {MAX_VALUE_BYTES:,} bytes, and this array may need {self.max_bytes:,}"
            )

    @classmethod
    def of(cls, shape: Sequence[int], dtype: str | np.dtype[Any], axes: int) -> PackedLayout:
        """Return the layout of arrays of a shape and a dtype.

        Args:
            shape: the stored shape, [axis ..., channel ...]; the last two of the first `axes` axes are height and
                width, and those before them are planes.
            dtype: NumPy dtype of 1, 2 or 4 bytes, or its name; "bfloat16" has 2 bytes.
            axes: number of leading axes that are not channels, at least two.

        Raises:
            ValueError: the dtype has another size, or as for the class.
        """
        item = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
        if item not in (1, 2, 4):
            raise ValueError(f"expected numbers of 1, 2 or 4 bytes, got {dtype}")
        channels = math.prod(shape[axes:])
        return cls(
            planes=math.prod(shape[: axes - 2]),
            height=shape[axes - 2],
            width=shape[axes - 1],
            pixel_bytes=channels * item,
            unit_bytes=3 if (item, channels) == (1, 3) else item,
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of an unpacked row."""
        return self.width * self.pixel_bytes

    @property
    def array_bytes(self) -> int:
        """Bytes of the unpacked array."""
        return self.planes * self.height * self.row_bytes

    @property
    def units(self) -> int:
        """Units of a row."""
        return self.row_bytes // self.unit_bytes

    @property
    def groups(self) -> int:
        """Groups of a row; the last one may be short."""
        return -(-self.units // GROUP_UNITS)

    @property
    def parts(self) -> int:
        """Numbers that are packed for a unit: three for a color, two halves for 32 bits, else one."""
        return {1: 1, 2: 1, 3: 3, 4: 2}[self.unit_bytes]

    @property
    def width_bytes(self) -> int:
        """Bytes of the widths of one row of groups, two widths in a byte."""
        return -(-self.groups * self.parts // 2)

    @property
    def bands_per_plane(self) -> int:
        """Bands of a plane; the last one may have fewer rows."""
        return -(-self.height // BAND_ROWS)

    @property
    def bands(self) -> int:
        """Bands of a value."""
        return self.planes * self.bands_per_plane

    @property
    def table_bytes(self) -> int:
        """Bytes of a value before its first band."""
        return HEAD_BYTES + ENTRY_BYTES * self.bands

    @property
    def min_bytes(self) -> int:
        """Smallest size of a value: each band has at least its mode."""
        return self.table_bytes + self.bands + SLACK_BYTES

    @property
    def max_bytes(self) -> int:
        """Largest size of a value: every band stored as it is."""
        return self.table_bytes + self.bands + self.array_bytes + SLACK_BYTES

    @property
    def packing_bytes(self) -> int:
        """Bytes of memory for packing, because a band in groups may be larger than its rows before it is replaced."""
        group_bytes = BAND_ROWS * self.groups * (GROUP_UNITS * self.unit_bytes + self.parts) + self.unit_bytes
        return self.max_bytes + group_bytes + 4 * SLACK_BYTES + self.groups * self.unit_bytes

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """The layout as the kernel takes it, int64 [5]."""
        return np.array([self.planes, self.height, self.width, self.pixel_bytes, self.unit_bytes], np.int64)

    def rows_of(self, band: int) -> tuple[int, int, int]:
        """Return the plane of a band, its first row, and the row after its last one."""
        plane, place = divmod(band, self.bands_per_plane)
        return plane, place * BAND_ROWS, min((place + 1) * BAND_ROWS, self.height)

    def bands_of(self, planes: tuple[int, int], rows: tuple[int, int]) -> NDArray[np.int64]:
        """Return the numbers of the bands that hold rows of planes, both (start, stop), in order.

        >>> PackedLayout.of((2, 100, 100), "int16", axes=3).bands_of((1, 2), (30, 65)).tolist()
        [4, 5, 6]
        """
        first, last = rows[0] // BAND_ROWS, -(-rows[1] // BAND_ROWS)
        starts = np.arange(*planes, dtype=np.int64)[:, None] * self.bands_per_plane
        return (starts + np.arange(first, max(first, last))).reshape(-1)

    def write_table(self, bands: Sequence[bytes | memoryview]) -> bytes:
        """Return the bytes before the first band, for the bytes of all bands."""
        ends = self.table_bytes + np.cumsum([len(band) for band in bands])
        table = np.array([ends, [crc32c(band) for band in bands]], "<u4").T.tobytes()
        return _HEAD.pack(PACKED_VERSION, crc32c(table)) + table

    def read_table(self, head: bytes | memoryview, size: int) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Return where bands begin and end, int64 [band + 1], and their checksums, uint32 [band].

        Args:
            head: the first `table_bytes` bytes of a value, or more.
            size: bytes of the complete value.

        Raises:
            ValueError: the bytes are not a table of this layout, or the table does not fit the size.
        """
        if len(head) < self.table_bytes:
            raise ValueError(f"expected a table of {self.table_bytes:,} bytes, got {len(head):,} bytes")
        version, checksum = _HEAD.unpack_from(head)
        if version != PACKED_VERSION:
            raise ValueError(f"expected version {PACKED_VERSION} of packed arrays, got {version}")
        table = memoryview(head)[HEAD_BYTES : self.table_bytes]
        if crc32c(table) != checksum:
            raise ValueError("the checksum of its table of bands is wrong")
        entries = np.frombuffer(table, "<u4").reshape(-1, 2)
        places = np.concatenate([[self.table_bytes], entries[:, 0].astype(np.int64)])
        if (np.diff(places) < 1).any() or places[-1] + SLACK_BYTES != size:
            raise ValueError(f"its table of bands does not describe a value of {size:,} bytes")
        return places, entries[:, 1].astype(np.uint32)
