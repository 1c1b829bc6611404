"""How the stored voxels of a file become values: block by block, in one pass, into one array.

    file ──(decompress)──> block of 1 MiB ──(swap bytes, rescale, check)──> its place in the array

A block stays in a core's cache from one step to the next, so that memory holds the file, one volume in the type
of the result, and nothing else. Where nothing is to be changed, the block is the place in the array itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import SourceError
from halofeed.prep.formats.volume.streams import skip
from halofeed.prep.formats.volume.volume_header import Content, StoredVoxels

BLOCK_VALUES = 1 << 18
INTEGERS = ("uint8", "int8", "uint16", "int16", "int32")
"""What integers are kept in, smallest first; larger ones are not needed by any scanner."""
LABELS = ("uint8", "uint16", "int32")
LABEL_TOLERANCE = 1e-3
"""How far a mask's value may be from a whole number: scaled masks of float32 are off by some 1e-6 of the value."""
LARGEST_WHOLE_STEP = 2**31
"""Slopes and intercepts up to here leave integers exact in int64."""

Block = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """Into which array stored values go.

    Args:
        dtype: of the array.
        stored_range: the stored integers whose values the dtype holds, where it does not hold all; else None.
        non_finite_value: what values that are no number become; None: they are refused.
    """

    dtype: str
    stored_range: tuple[int, int] | None = None
    non_finite_value: float | None = None


def plan_conversion(header: StoredVoxels, non_finite_value: float | None = None) -> Conversion:
    """The smallest type that holds every value exactly, as far as the header shows it.

    Integers that a whole slope and intercept leave whole stay integers; values beyond int32 are refused when they
    are met. All else becomes float32: float64 is rounded, and integers times a fraction are.
    """
    slope, inter = header.slope, header.inter
    whole = slope.is_integer() and inter.is_integer() and max(abs(slope), abs(inter)) <= LARGEST_WHOLE_STEP
    if header.dtype.kind == "f" or not whole:
        return Conversion(dtype="float32", non_finite_value=non_finite_value)
    info = np.iinfo(header.dtype)
    ends = sorted(int(end) * int(slope) + int(inter) for end in (info.min, info.max))
    for name in INTEGERS:
        if np.iinfo(name).min <= ends[0] and ends[1] <= np.iinfo(name).max:
            return Conversion(dtype=name)
    # stored = (value - inter) / slope, rounded inwards
    low, high = -(2**31) - int(inter), 2**31 - 1 - int(inter)
    if slope < 0:
        low, high = -high, -low
    step = abs(int(slope))
    return Conversion(dtype="int32", stored_range=(-(-low // step), high // step))


def check_byte_count(header: StoredVoxels, data: Content) -> None:
    """Refuse a header that claims more, or much less, than the file can hold; allocates nothing.

    Raises:
        SourceError: voxels are missing or left over; of compressed data, only what is certain already.
    """
    needed, most = header.offset + header.voxel_bytes, data.open().max_bytes
    if needed > most:
        detail = f"the header says {needed} bytes, {data.packed_bytes} bytes of file hold at most {most}"
        raise SourceError("decode", "voxels are missing", detail)
    if data.is_plain and most - needed >= header.slice_bytes:
        raise _left_over(header, most - needed)


def _left_over(header: StoredVoxels, byte_count: int) -> SourceError:
    """What is less than a slice can be padding; more shows that the header speaks of another volume."""
    detail = f"after {header.voxel_bytes} bytes of voxels follow at least {byte_count} more"
    return SourceError("decode", "more voxels than the header says", detail)


def is_stored_as_is(header: StoredVoxels, conversion: Conversion) -> bool:
    """Whether the stored voxels are the values, bit for bit."""
    return header.dtype == np.dtype(conversion.dtype).newbyteorder("<") and not header.rescales


def reads_in_place(header: StoredVoxels, data: Content, conversion: Conversion) -> bool:
    """Whether the values are a view of the file's bytes."""
    return is_stored_as_is(header, conversion) and data.is_plain and conversion.non_finite_value is None


def value_bytes(header: StoredVoxels, conversion: Conversion) -> int:
    """The bytes of all values."""
    return header.value_count * np.dtype(conversion.dtype).itemsize


def label_bytes(header: StoredVoxels) -> tuple[int, int]:
    """The most that reading labels takes, while they go over to a wider type, and what one of them takes at most."""
    as_stored = header.dtype.kind != "f" and not header.rescales
    item = min(header.dtype.itemsize, 4) if as_stored else 4
    return header.value_count * {1: 1, 2: 3}.get(item, 6), item


def read_values(header: StoredVoxels, data: Content, conversion: Conversion) -> tuple[NDArray[Any], int]:
    """All values in the file's order, flat, and the number of those that were no number and were replaced.

    Raises:
        SourceError: the file holds too few or too many bytes, or is damaged; a value does not fit.
    """
    replaced = 0

    def fill(stored: Block, values: Block) -> None:
        nonlocal replaced
        replaced += _convert(stored, values, header, conversion)

    if reads_in_place(header, data, conversion):
        values = np.frombuffer(data.data, header.dtype, header.value_count, data.start + header.offset)
        for start in range(0, len(values), BLOCK_VALUES):
            block = values[start : start + BLOCK_VALUES]
            _check_finite(block, block)
        return values, 0
    values, in_place = np.empty(header.value_count, conversion.dtype), is_stored_as_is(header, conversion)
    _read_blocks(header, data, lambda start, stop: values[start:stop], fill, in_place=in_place)
    return values, replaced


def read_labels(
    header: StoredVoxels, data: Content, *, non_finite_is_background: bool = False
) -> tuple[NDArray[Any], int]:
    """The values of a mask in the file's order, flat, in the smallest type that holds them.

    Returns:
        The values, and how many were no number and became 0.

    Raises:
        SourceError: as `read_values`; or a value is not a whole number from 0 to 2**31 - 1.
    """
    labels = np.empty(header.value_count, LABELS[0])
    at = replaced = 0

    def fill(stored: Block, _: Block) -> None:
        nonlocal labels, at, replaced
        if non_finite_is_background and stored.dtype.kind == "f":
            bad = ~np.isfinite(stored)
            replaced += int(np.count_nonzero(bad))
            with np.errstate(divide="ignore", invalid="ignore"):
                stored = np.where(bad, stored.dtype.type(-header.inter / header.slope), stored)
        block = _to_labels(stored, header)
        highest = int(block.max())
        if highest > np.iinfo(labels.dtype).max:
            wider = np.empty(len(labels), next(name for name in LABELS if highest <= np.iinfo(name).max))
            wider[:at] = labels[:at]
            labels = wider
        labels[at : at + len(block)] = block
        at += len(block)

    _read_blocks(header, data, lambda start, stop: labels[start:stop], fill, in_place=False)
    return labels, replaced


def _read_blocks(
    header: StoredVoxels,
    data: Content,
    place: Callable[[int, int], Block],
    fill: Callable[[Block, Block], None],
    *,
    in_place: bool,
) -> None:
    """Hand every block of stored values to `fill` with its place, then see that the file ends there."""
    stream = data.open()
    count = header.value_count
    if skip(stream, header.offset) < header.offset:
        raise SourceError("decode", "voxels are missing", f"the file ends before byte {header.offset}")
    scratch = np.empty(min(BLOCK_VALUES, count), header.dtype)
    for start in range(0, count, BLOCK_VALUES):
        stop = min(start + BLOCK_VALUES, count)
        target = place(start, stop)
        stored = target if in_place else scratch[: stop - start]
        wanted = stored.nbytes
        got = stream.read_into(stored.view(np.uint8).data)
        if got < wanted:
            present = start * header.dtype.itemsize + got
            detail = f"{present} bytes of voxels, the header says {header.voxel_bytes}"
            raise SourceError("decode", "voxels are missing", detail)
        fill(stored, target)
    # Reading on also makes the decompressor compare its checksum.
    left_over = skip(stream, header.slice_bytes)
    if left_over >= header.slice_bytes:
        raise _left_over(header, left_over)


def _convert(stored: Block, values: Block, header: StoredVoxels, conversion: Conversion) -> int:
    """Fill `values` from stored ones, which may be the same memory; how many were no number and were replaced."""
    if values.dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            if header.rescales:
                values[...] = _rescaled(stored, np.float64(header.slope), np.float64(header.inter))
            elif not np.may_share_memory(stored, values):
                values[...] = stored
        if conversion.non_finite_value is None:
            _check_finite(stored, values)
            return 0
        return _replace(stored, values, conversion.non_finite_value)
    if conversion.stored_range is not None:
        low, high = conversion.stored_range
        least, most = int(stored.min()), int(stored.max())
        if least < low or most > high:
            detail = f"stored values of {least} to {most}; {low} to {high} fit"
            raise SourceError("decode", "voxels do not fit in 32 bits", detail)
    if header.rescales:
        values[...] = _rescaled(stored, np.int64(header.slope), np.int64(header.inter))
    elif not np.may_share_memory(stored, values):
        values[...] = stored
    return 0


def _rescaled(stored: Block, slope: np.number[Any], inter: np.number[Any]) -> Block:
    """`stored * slope + inter` in the type of the slope."""
    if slope == 1:
        return np.add(stored, inter, dtype=slope.dtype, casting="unsafe")
    values = np.multiply(stored, slope, dtype=slope.dtype, casting="unsafe")
    if inter != 0:
        values += inter
    return values


def _check_finite(stored: Block, values: Block) -> None:
    """Refuse NaN and infinity, and say whether the file holds them or the rescaling made them."""
    if values.dtype.kind != "f":
        return
    bad = len(values) - int(np.count_nonzero(np.isfinite(values)))
    if not bad:
        return
    _check_range(stored, values)
    cure = "--non-finite-value, such as -1024 or 0, sets them"
    raise SourceError("decode", "voxels that are no number", f"{bad} in a block of {len(values)}; {cure}")


def _check_range(stored: Block, values: Block) -> None:
    finite_before = np.ones(len(stored), bool) if stored.dtype.kind != "f" else np.isfinite(stored)
    too_large = int(np.count_nonzero(finite_before & ~np.isfinite(values)))
    if too_large:
        detail = f"{too_large} in a block of {len(values)}"
        raise SourceError("decode", "voxels do not fit in float32", detail)


def _replace(stored: Block, values: Block, value: float) -> int:
    bad = ~np.isfinite(values)
    count = int(np.count_nonzero(bad))
    if count:
        if not np.may_share_memory(stored, values):
            _check_range(stored, values)
        values[bad] = value
    return count


def _to_labels(stored: Block, header: StoredVoxels) -> Block:
    """The class values of a block of stored ones, as integers; SourceError where one is not from 0 to 2**31 - 1."""
    labels = exact = stored
    if header.rescales or stored.dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            if header.rescales:
                exact = _rescaled(stored, np.float64(header.slope), np.float64(header.inter))
            labels = np.rint(exact)
            off = ~(np.abs(exact - labels) <= LABEL_TOLERANCE)  # NaN and infinity too
        if off.any():
            example = float(exact[int(np.argmax(off))])
            detail = f"{int(np.count_nonzero(off))} in a block of {len(exact)}, the first is {example:.6g}"
            if not np.isfinite(exact[off]).any():
                detail += "; --non-finite-labels background takes them for the background"
            else:
                detail += "; are image and label swapped? Probabilities have to be made classes first"
            raise SourceError("decode", "mask values are not whole numbers", detail)
    least, most = int(labels.min()), int(labels.max())  # Python's, since float32 rounds 2**31 - 1 up
    if least < 0:
        detail = f"down to {least}; are image and label swapped?"
        raise SourceError("decode", "mask has negative values", detail)
    if most > np.iinfo(np.int32).max:
        raise SourceError("decode", "mask values do not fit in 32 bits", f"up to {most}")
    return labels if labels.dtype.kind in "iu" else labels.astype(np.int32)
