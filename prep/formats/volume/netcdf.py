"""Reader of the header of NetCDF files in the classic formats (CDF-1, CDF-2), which MINC 1 uses.

    magic, record count | dimensions | global attributes | variables with their attributes, type and offset | values

Only the header is parsed; a variable's values are a view of the file's bytes.

Source: https://docs.unidata.ucar.edu/netcdf-c/current/file_format_specifications.html
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import SourceError
from halofeed.prep.formats.volume.streams import COPY_AGAIN
from halofeed.prep.formats.volume.volume_header import damaged_header

NETCDF_MAGIC: Final = (b"CDF\1", b"CDF\2")
_DIMENSIONS, _VARIABLES, _ATTRIBUTES = 10, 11, 12
_TYPES: Final = {1: "i1", 2: "S1", 3: ">i2", 4: ">i4", 5: ">f4", 6: ">f8"}
_MAX_ITEMS = 4096


@dataclass(frozen=True, kw_only=True)
class NetcdfVariable:
    """One variable of a file.

    Args:
        dimensions: names of its axes, the slowest first.
        shape: lengths of its axes; 0 for the axis of records.
        attributes: text or a big-endian array by name.
        dtype: dtype of a stored value.
        offset: offset of the first value in the file.
    """

    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    attributes: Mapping[str, str | NDArray[Any]]
    dtype: np.dtype[Any]
    offset: int

    def values(self, data: bytes) -> NDArray[Any]:
        """Return the values as a view of the file's bytes.

        Raises:
            SourceError: the file ends before the last value.
        """
        count = math.prod(self.shape)
        needed = self.offset + count * self.dtype.itemsize
        if needed > len(data):
            detail = f"the header says {needed} bytes, the file has {len(data)}; {COPY_AGAIN}"
            raise SourceError("decode", "voxels are missing", detail)
        return np.frombuffer(data, self.dtype, count, self.offset).reshape(self.shape)


def read_netcdf_header(data: bytes) -> dict[str, NetcdfVariable]:
    """Return the variables of a file by name.

    Raises:
        SourceError: the header is damaged or truncated.

    >>> [name for name in read_netcdf_header(b"CDF" + bytes([1]) + bytes(28))]
    []
    """
    return _HeaderParser(data).variables()


class _HeaderParser:
    """Cursor over the bytes of a header, which reads one part after another."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 4
        self.offset_bytes = 8 if data.startswith(NETCDF_MAGIC[1]) else 4
        self.integer()  # number of records

    def take(self, size: int) -> bytes:
        """Return the next bytes and skip the padding to a multiple of four."""
        taken = self.data[self.at : self.at + size]
        if len(taken) < size:
            raise damaged_header(f"it ends at byte {len(self.data)}, within a value of {size} bytes")
        self.at += -(-size // 4) * 4
        return taken

    def integer(self, size: int = 4) -> int:
        return int.from_bytes(self.take(size), "big")

    def name(self) -> str:
        return self.take(self.integer()).decode("utf-8", "replace")

    def count(self, tag: int) -> int:
        """Return the number of items of a list, which is 0 if the list is absent."""
        found, count = self.integer(), self.integer()
        if (found, count) != (0, 0) and (found != tag or count > _MAX_ITEMS):
            raise damaged_header(f"a list of {count} items with tag {found}; expected tag {tag}")
        return count

    def dtype(self) -> np.dtype[Any]:
        code = self.integer()
        if code not in _TYPES:
            raise damaged_header(f"type {code}; known: {', '.join(map(str, _TYPES))}")
        return np.dtype(_TYPES[code])

    def attributes(self) -> dict[str, str | NDArray[Any]]:
        found: dict[str, str | NDArray[Any]] = {}
        for _ in range(self.count(_ATTRIBUTES)):
            name, dtype, length = self.name(), self.dtype(), self.integer()
            raw = self.take(length * dtype.itemsize)
            found[name] = raw.decode("utf-8", "replace") if dtype.kind == "S" else np.frombuffer(raw, dtype)
        return found

    def variables(self) -> dict[str, NetcdfVariable]:
        axes = [(self.name(), self.integer()) for _ in range(self.count(_DIMENSIONS))]
        self.attributes()
        found: dict[str, NetcdfVariable] = {}
        for _ in range(self.count(_VARIABLES)):
            name, rank = self.name(), self.integer()
            numbers = [self.integer() for _ in range(min(rank, _MAX_ITEMS))]
            if rank > _MAX_ITEMS or any(number >= len(axes) for number in numbers):
                raise damaged_header(f"{name!r:.60}: an axis that is not defined")
            attributes, dtype = self.attributes(), self.dtype()
            self.integer()  # size in bytes, which the shape also gives
            found[name] = NetcdfVariable(
                dimensions=tuple(axes[number][0] for number in numbers),
                shape=tuple(axes[number][1] for number in numbers),
                attributes=attributes,
                dtype=dtype,
                offset=self.integer(self.offset_bytes),
            )
        return found
