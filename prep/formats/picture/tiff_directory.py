"""How the first directory of a TIFF structure is read: a TIFF file's own, or the one that holds EXIF data."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.picture.image import damaged, truncated
from halofeed.schemas.errors import SourceError

NEW_SUBFILE_TYPE = 254
ORIENTATION = 274
_REDUCED_OR_MASK = 5
_MOST_PAGES = 64

# Bytes per value of each field type, TIFF 6.0 section 2 and BigTIFF.
SIZES = {1: (1, 2, 6, 7), 2: (3, 8), 4: (4, 9, 11, 13), 8: (5, 10, 12, 16, 17, 18)}
TYPE_BYTES = {type_: size for size, types in SIZES.items() for type_ in types}
UNSIGNED = frozenset((1, 3, 4, 13, 16, 18))
MOST_ENTRIES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Field:
    """One directory entry: its type, its number of values, and their bytes (None: not in the file)."""

    type: int
    count: int
    data: memoryview | None


@dataclass(frozen=True, kw_only=True)
class Directory:
    """A directory: byte order (< or >), whether BigTIFF, fields by tag, where the next one is (0: there is none)."""

    order: str
    big: bool
    fields: Mapping[int, Field]
    following: int

    def integers(self, tag: int) -> NDArray[Any]:
        """The values of an unsigned integer field, of that size; empty where it is absent or of another type."""
        field = self.fields.get(tag)
        if field is None or field.type not in UNSIGNED or field.data is None:
            return np.empty(0, np.int64)
        kind = f"{self.order}u{TYPE_BYTES[field.type]}"
        return np.frombuffer(field.data, kind, field.count)

    def integer(self, tag: int, default: int) -> int:
        """The first value of an unsigned integer field."""
        values = self.integers(tag)
        return int(values[0]) if len(values) else default


def holds_further_page(data: bytes, first: Directory) -> bool:
    """Whether a directory behind the first is a picture of its own, and no smaller copy or mask of another one."""
    directory, seen = first, {0}
    while directory.following not in seen and len(seen) < _MOST_PAGES:
        seen.add(directory.following)
        try:
            directory = read_directory(data, directory.following)
        except SourceError:
            return True
        if not directory.integer(NEW_SUBFILE_TYPE, 0) & _REDUCED_OR_MASK:
            return True
    return False


def read_directory(data: bytes, start: int | None = None) -> Directory:
    """Read the directory at a byte, the first one by default; fields of unknown type are left out, as TIFF 6.0 asks.

    Raises:
        SourceError: the structure is not TIFF, or its directory is not within the bytes.
    """
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None:
        raise damaged("no TIFF header")
    if len(data) < 8:
        raise truncated("no room for a TIFF header")
    version = struct.unpack_from(f"{order}H", data, 2)[0]
    if version not in (42, 43):
        raise damaged(f"TIFF version {version}")
    big = version == 43
    if big and len(data) < 16:
        raise truncated("no room for a BigTIFF header")
    count_format, entry_format, pointer, inline = ("Q", "HHQ", "Q", 8) if big else ("H", "HHI", "I", 4)
    view = memoryview(data)
    if start is None:
        start = int(struct.unpack_from(f"{order}{pointer}", data, inline)[0])
    count_bytes = struct.calcsize(f"{order}{count_format}")
    if start + count_bytes > len(data):
        raise truncated(f"the directory is at byte {start} of {len(data)}")
    count = struct.unpack_from(f"{order}{count_format}", data, start)[0]
    entry_bytes = struct.calcsize(f"{order}{entry_format}") + inline
    first = start + count_bytes
    end = first + count * entry_bytes
    if end > len(data):
        raise truncated(f"the directory of {count} entries ends at byte {end} of {len(data)}")
    if count > MOST_ENTRIES:
        raise damaged(f"a directory of {count} entries")
    fields = {}
    for position in range(first, end, entry_bytes):
        tag, type_, values = struct.unpack_from(f"{order}{entry_format}", data, position)
        if type_ not in TYPE_BYTES:
            continue
        value_bytes = values * TYPE_BYTES[type_]
        at = position + entry_bytes - inline
        if value_bytes > inline:
            at = struct.unpack_from(f"{order}{pointer}", data, at)[0]
        inside = at + value_bytes <= len(data)
        fields[tag] = Field(type=type_, count=values, data=view[at : at + value_bytes] if inside else None)
    following = int.from_bytes(data[end : end + inline], "little" if order == "<" else "big")
    return Directory(order=order, big=big, fields=fields, following=following)


def valid_orientation(value: int) -> int:
    """An orientation of 1 to 8 as it is, anything else as 1 (upright)."""
    return value if 1 <= value <= 8 else 1


def exif_orientation(exif: bytes) -> int:
    """The orientation that a block of EXIF data says; 1 where it says none or cannot be understood.

    Args:
        exif: a TIFF structure, with or without the "Exif" and two zero bytes that JPEG puts before it.

    >>> header, entry = "4949 2a00 08000000 0100", "1201 0300 01000000 0600 0000"
    >>> exif_orientation(bytes.fromhex(header + entry))
    6
    """
    try:
        directory = read_directory(exif.removeprefix(b"Exif\0\0"))
    except SourceError:
        return 1
    return valid_orientation(directory.integer(ORIENTATION, 1))
