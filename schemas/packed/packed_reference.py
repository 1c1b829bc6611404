"""Slow and obvious encoder and decoder of packed values in NumPy.

Tests compare the kernel's results with these. They are also used where the kernel is not built.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.packed.packed_layout import (
    GROUP_UNITS,
    GROUPS,
    PATCHES,
    RAW,
    SLACK_BYTES,
    PackedLayout,
)
from halofeed.system.checksum import crc32c

Bytes = NDArray[np.uint8]
PartNumbers = NDArray[Any]
"""Unsigned numbers of rows, [row, unit, part]: one part per unit, three for a color, two halves for 32 bits."""


def pack_slowly(array: Bytes, layout: PackedLayout, *, patches: bool = False) -> bytes:
    """Return the packed value of an array.

    Args:
        array: the array's little-endian bytes, uint8 [byte].
        layout: layout of the array.
        patches: also try the mode for label maps, band by band.
    """
    rows = array.reshape(layout.planes, layout.height, layout.row_bytes)
    bands = []
    for band in range(layout.bands):
        plane, first, stop = layout.rows_of(band)
        bands.append(_pack_band(rows[plane, first:stop], layout, patches))
    return layout.write_table(bands) + b"".join(bands) + bytes(SLACK_BYTES)


def unpack_slowly(value: bytes | memoryview, layout: PackedLayout) -> Bytes:
    """Return an array's little-endian bytes, uint8 [byte].

    Raises:
        ValueError: the value is damaged; the message names the band.
    """
    places, checksums = layout.read_table(value, len(value))
    if any(value[places[-1] :]):
        raise ValueError("the bytes after its last band are not 0")
    out = np.empty((layout.planes, layout.height, layout.row_bytes), np.uint8)
    for band in range(layout.bands):
        plane, first, stop = layout.rows_of(band)
        coded = value[places[band] : places[band + 1]]
        if crc32c(coded) != checksums[band]:
            raise ValueError(f"the checksum of band {band} is wrong")
        try:
            out[plane, first:stop] = unpack_band(coded, layout, stop - first)
        except ValueError as error:
            raise ValueError(f"band {band}: {error}") from error
    return out.reshape(-1)


def _pack_band(rows: Bytes, layout: PackedLayout, patches: bool) -> bytes:
    """Return the shortest coding of a band's rows, uint8 [row, byte]; of equally short ones the lowest mode."""
    codings = [bytes([RAW]) + rows.tobytes(), bytes([GROUPS]) + _pack_groups(rows, layout)]
    if patches:
        codings.append(bytes([PATCHES]) + _pack_patches(rows, layout))
    return min(codings, key=len)


def unpack_band(band: bytes | memoryview, layout: PackedLayout, rows: int) -> Bytes:
    """Return the rows of a band, uint8 [row, byte].

    Raises:
        ValueError: the band is damaged.
    """
    mode, coded = band[0], memoryview(band)[1:]
    if mode == RAW:
        if len(coded) != rows * layout.row_bytes:
            raise ValueError("a band that is stored as it is has a wrong size")
        return np.frombuffer(coded, np.uint8).reshape(rows, layout.row_bytes)
    if mode == GROUPS:
        return _unpack_groups(coded, layout, rows)
    if mode == PATCHES:
        return _unpack_patches(bytes(coded), layout, rows)
    raise ValueError(f"expected a band's mode 0, 1 or 2, got {mode}")


# Groups ----------------------------------------------------------------------------------------------------------


def _bits(layout: PackedLayout) -> int:
    """Bits of one packed number."""
    return 16 if layout.unit_bytes in (2, 4) else 8


def _numbers(rows: Bytes, layout: PackedLayout) -> PartNumbers:
    """Return the numbers of rows, uint8 or uint16 [row, unit, part], of their bytes, uint8 [row, byte]."""
    numbers = np.ascontiguousarray(rows).view(f"<u{_bits(layout) // 8}")
    return np.asarray(numbers.reshape(len(rows), layout.units, layout.parts))


def _pack_groups(rows: Bytes, layout: PackedLayout) -> bytes:
    """Return bases, widths and data of a band."""
    bits, numbers = _bits(layout), _numbers(rows, layout)
    grouped = layout.groups * GROUP_UNITS
    # The last group repeats the last unit, so that it needs no more bits than the others.
    numbers = np.pad(numbers, ((0, 0), (0, grouped - layout.units), (0, 0)), "edge").astype(np.int64)
    first = numbers[0].reshape(layout.groups, GROUP_UNITS, layout.parts)
    half = 1 << (bits - 1)
    # The row above the first one: half-way between a group's extremes, as differences to its first number, so that
    # numbers around 0 are near each other.
    from_first = (first - first[:, :1] + half) % (2 * half) - half
    middle = (from_first.min(axis=1) + from_first.max(axis=1) + 1) >> 1
    bases: NDArray[np.int64] = (first[:, 0] + middle) % (2 * half)
    above = np.concatenate([np.repeat(bases, GROUP_UNITS, axis=0)[None], numbers[:-1]])
    deltas = numbers - above
    if layout.unit_bytes == 3:  # green, and what red and blue differ by from it
        red, green, blue = np.moveaxis(deltas, -1, 0)
        deltas = np.stack([green, red - green, blue - green], axis=-1)
    deltas = (deltas + half) % (2 * half) - half
    # [row, group, part, 16]
    deltas = deltas.reshape(len(rows), layout.groups, GROUP_UNITS, layout.parts).swapaxes(2, 3)
    widths = _widths(deltas, bits)
    codes = np.minimum(widths, 15).reshape(len(rows), -1)
    codes = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2))).astype(np.uint8)
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).tobytes()
    data = [
        _pack_sixteen(group, int(width))
        for group, width in zip(deltas.reshape(-1, GROUP_UNITS), widths.reshape(-1), strict=True)
    ]
    coded: list[bytes] = [bases.astype(f"<u{bits // 8}").tobytes(), packed, *data]
    return b"".join(coded)


def _widths(deltas: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    """Return the bits that hold all numbers of a group in two's complement, 0 if all are 0; 15 becomes 16."""
    low, high = deltas.min(axis=-1), deltas.max(axis=-1)
    widths = np.zeros(low.shape, np.int64)
    for width in range(1, bits + 1):
        half = 1 << (width - 1)
        widths[(widths == 0) & ((low | high) != 0) & (low >= -half) & (high < half)] = width
    return np.where(widths == 15, 16, widths)


def _pack_sixteen(deltas: NDArray[np.int64], width: int) -> bytes:
    """Return 16 numbers in `width` bits each."""
    biased = [int(value) + (1 << width >> 1) for value in deltas]
    if width <= 8:
        return _pack_bits(biased, width)
    return bytes(value & 255 for value in biased) + _pack_bits([value >> 8 for value in biased], width - 8)


def _pack_bits(values: list[int], width: int) -> bytes:
    """Return values of at most 8 bits as one little-endian number, the first one lowest."""
    return sum(value << place * width for place, value in enumerate(values)).to_bytes(2 * width, "little")


def _unpack_groups(coded: memoryview, layout: PackedLayout, rows: int) -> Bytes:
    bits, count = _bits(layout), layout.groups * layout.parts
    base_bytes = layout.groups * layout.unit_bytes
    start = base_bytes + rows * layout.width_bytes
    if len(coded) < start:
        raise ValueError("a band ends before its widths do")
    bases = np.frombuffer(coded[:base_bytes], f"<u{bits // 8}").reshape(layout.groups, layout.parts)
    packed = np.frombuffer(coded[base_bytes:start], np.uint8).reshape(rows, layout.width_bytes)
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(rows, -1)
    widths = codes[:, :count].astype(np.int64)
    if bits == 8 and (widths > 8).any():
        raise ValueError("a group of a band has numbers of more than 8 bits")
    # An unused half byte must be 0, so that every array has one packed form.
    if codes[:, count:].any():
        raise ValueError("a band has a width too many")
    widths = np.where(widths == 15, 16, widths)
    if len(coded) != start + 2 * int(widths.sum()):
        raise ValueError("a band's size is not that of its groups")
    deltas: NDArray[np.int64] = np.zeros((rows * count, GROUP_UNITS), np.int64)
    at = start
    for number, width in enumerate(widths.reshape(-1).tolist()):
        deltas[number] = _unpack_sixteen(coded[at : at + 2 * width], width)
        at += 2 * width
    deltas = deltas.reshape(rows, layout.groups, layout.parts, GROUP_UNITS).swapaxes(2, 3)
    if layout.unit_bytes == 3:
        green, red, blue = np.moveaxis(deltas, -1, 0)
        deltas = np.stack([red + green, green, blue + green], axis=-1)
    deltas[0] += bases[:, None]
    numbers = np.cumsum(deltas, axis=0).reshape(rows, -1, layout.parts)[:, : layout.units]
    return (
        np.ascontiguousarray((numbers % (1 << bits)).astype(f"<u{bits // 8}"))
        .view(np.uint8)
        .reshape(rows, -1)
    )


def _unpack_sixteen(data: memoryview, width: int) -> list[int]:
    if width <= 8:
        values = _unpack_bits(data, width)
    else:
        high = _unpack_bits(data[GROUP_UNITS:], width - 8)
        values = [low | more << 8 for low, more in zip(data[:GROUP_UNITS], high, strict=True)]
    return [value - (1 << width >> 1) for value in values]


def _unpack_bits(data: memoryview, width: int) -> list[int]:
    number = int.from_bytes(data, "little")
    return [number >> place * width & ((1 << width) - 1) for place in range(GROUP_UNITS)]


# Patches ---------------------------------------------------------------------------------------------------------


def _pack_patches(rows: Bytes, layout: PackedLayout) -> bytes:
    """Return each row as what differs from the row above, runs of equal units; the row above the first one is 0."""
    size = layout.unit_bytes
    above, coded = bytes(layout.row_bytes), bytearray()
    for row in rows:
        current = row.tobytes()
        units = [current[at : at + size] for at in range(0, len(current), size)]
        before = [above[at : at + size] for at in range(0, len(above), size)]
        patches, at, done = [], 0, 0
        while at < len(units):
            if units[at] == before[at]:
                at += 1
                continue
            stop = at + 1
            # A run goes on over units that are as above only if these have its value too.
            while stop < len(units) and units[stop] == units[at]:
                stop += 1
            while units[stop - 1] == before[stop - 1]:
                stop -= 1
            patches.append(_varint(at - done) + _varint(stop - at) + units[at])
            at = done = stop
        coded += _varint(len(patches)) + b"".join(patches)
        above = current
    return bytes(coded)


def _unpack_patches(coded: bytes, layout: PackedLayout, rows: int) -> Bytes:
    size, at = layout.unit_bytes, 0
    out = np.zeros((rows, layout.units, size), np.uint8)
    for row in range(rows):
        if row:
            out[row] = out[row - 1]
        count, at = _read_varint(coded, at)
        place = 0
        for _ in range(count):
            skip, at = _read_varint(coded, at)
            length, at = _read_varint(coded, at)
            start, place = place + skip, place + skip + length
            value = coded[at : at + size]
            at += size
            if length == 0 or place > layout.units or len(value) < size:
                raise ValueError("a patch of a band is outside its row")
            out[row, start:place] = np.frombuffer(value, np.uint8)
    if at != len(coded):
        raise ValueError("a band has bytes after its last row")
    return out.reshape(rows, -1)


def _varint(number: int) -> bytes:
    """Return a number in groups of 7 bits, the lowest first; every byte but the last has bit 7 set."""
    coded = bytearray()
    while number > 127:
        coded.append(number & 127 | 128)
        number >>= 7
    return bytes([*coded, number])


def _read_varint(coded: bytes, at: int) -> tuple[int, int]:
    """Return a number of at most 5 bytes and where it ends."""
    number = 0
    for place in range(5):
        if at >= len(coded):
            raise ValueError("a band ends inside a number")
        byte = coded[at]
        number |= (byte & 127) << 7 * place
        at += 1
        if byte < 128:
            return number, at
    raise ValueError("a number of a band is too long")
