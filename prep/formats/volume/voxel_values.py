"""Reader of the values of stored voxels, which converts one block after another into one array.

    file ──(decompress)──> block of 1 MiB ──(swap bytes, rescale, check)──> its part of the array

A block stays in the CPU cache between the steps. Memory holds only the file and one volume in the type of the result.
If the values need no conversion, the stream decompresses directly into the array.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.volume.streams import COPY_AGAIN, OUTPUT_BYTES, skip
from halofeed.prep.formats.volume.volume_header import Content, StoredVoxels
from halofeed.system.errors import SourceError
from halofeed.system.large_arrays import empty_array
from halofeed.system.wording import plural

BLOCK_VALUES = 1 << 18
INTEGERS = ("uint8", "int8", "uint16", "int16", "int32")
"""Types for integer values, smallest first; no scanner needs larger ones."""
LABELS = ("uint8", "uint16", "int32")
NEGATIVE_LABELS = "mask has negative values"
MAX_NEGATIVE = 4
"""Distinct negative values of a mask that may be marks; a scan that was taken for a mask has more."""
LABEL_TOLERANCE = 1e-3
"""Largest distance of a mask's value from an integer; rescaled float32 masks deviate by about 1e-6 of the value."""
_SURE_STEP = 0.5
"""Steps below it leave no fraction near a whole number by chance: half of all values are farther away."""
_NOT_QUANTIZED_LABELS = (
    "so they are no whole numbers that were rounded to a step below 1: are image and label swapped? Save labels as "
    "integers without a slope"
)
_BYTE_STEPS = 255
"""Steps into which programs divide the range of floats that they store in 8 bits."""
_ROUNDING = 1e-6
"""Largest relative difference of values that were the same number before they were rescaled in float32."""
MAX_EXACT_SLOPE = 2**31
"""Integer slopes and intercepts up to this limit give exact results in int64."""

Block = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class ValueConversion:
    """Conversion of stored values.

    Args:
        dtype: dtype of the values.
        stored_range: range of the stored integers whose values the dtype holds; None if it holds all.
        non_finite_value: replacement for NaN and infinity; None refuses them.
    """

    dtype: str
    stored_range: tuple[int, int] | None = None
    non_finite_value: float | None = None


def plan_conversion(header: StoredVoxels, non_finite_value: float | None = None) -> ValueConversion:
    """Choose the smallest type that holds every possible value exactly.

    Integers with an integer slope and intercept stay integers; `read_values` refuses values beyond int32. Everything
    else becomes float32, with rounding.
    """
    slope, inter = header.slope, header.inter
    # Larger slopes could overflow int64.
    stays_exact = slope.is_integer() and inter.is_integer() and max(abs(slope), abs(inter)) <= MAX_EXACT_SLOPE
    if header.dtype.kind == "f" or not stays_exact:
        return ValueConversion(dtype="float32", non_finite_value=non_finite_value)
    info = np.iinfo(header.dtype)
    ends = sorted(int(end) * int(slope) + int(inter) for end in (info.min, info.max))
    for name in INTEGERS:
        if np.iinfo(name).min <= ends[0] and ends[1] <= np.iinfo(name).max:
            return ValueConversion(dtype=name)
    # stored = (value - inter) / slope, rounded inwards
    low, high = -(2**31) - int(inter), 2**31 - 1 - int(inter)
    if slope < 0:
        low, high = -high, -low
    step = abs(int(slope))
    return ValueConversion(dtype="int32", stored_range=(-(-low // step), high // step))


def check_byte_count(header: StoredVoxels, data: Content) -> None:
    """Refuse a header that claims more, or much less, than the file can hold. This allocates nothing.

    Raises:
        SourceError: voxels are missing or left over. Compressed data may still have this fault when it is read.
    """
    needed, most = header.offset + header.voxel_bytes, data.open().max_bytes
    # Before anything is allocated: a header of 348 bytes may claim terabytes.
    if needed > most:
        detail = (
            f"the header says {plural(needed, 'byte')}, {plural(data.packed_bytes, 'byte')} of file "
            f"hold at most {most}; {COPY_AGAIN}"
        )
        raise SourceError("decode", "voxels are missing", detail)
    # The size of compressed content is known only when it is read.
    if data.is_plain and not header.has_trailer and most - needed >= header.slice_bytes:
        raise _left_over(header, most - needed)


def _left_over(header: StoredVoxels, byte_count: int) -> SourceError:
    """Return the error for a slice or more left over: the header is that of another volume. Less may be padding."""
    detail = f"after {plural(header.voxel_bytes, 'byte')} of voxels follow at least {byte_count} more"
    return SourceError("decode", "more voxels than the header says", detail)


def is_stored_as_is(header: StoredVoxels, conversion: ValueConversion) -> bool:
    """Return whether the stored voxels are identical to the values."""
    return header.dtype == np.dtype(conversion.dtype).newbyteorder("<") and not header.rescales


def reads_in_place(header: StoredVoxels, data: Content, conversion: ValueConversion) -> bool:
    """Return whether the values are a view of the file's bytes."""
    return is_stored_as_is(header, conversion) and data.is_plain and conversion.non_finite_value is None


def value_bytes(header: StoredVoxels, conversion: ValueConversion) -> int:
    """Return the size of all values in bytes."""
    return header.value_count * np.dtype(conversion.dtype).itemsize


def label_memory(header: StoredVoxels, *, has_negative: bool = False) -> tuple[int, int]:
    """Return the most memory that `read_labels` takes, while it copies into a wider type, and the bytes per label."""
    as_stored = header.dtype.kind != "f" and not header.rescales
    item = min(header.dtype.itemsize, 4) if as_stored and not has_negative else 4
    if has_negative:  # labels become int32
        return header.value_count * 6, item
    return header.value_count * {1: 1, 2: 3}.get(item, 6), item


def read_values(header: StoredVoxels, data: Content, conversion: ValueConversion) -> tuple[NDArray[Any], int]:
    """Read all values in the file's order, as a flat array.

    Returns:
        The values, and the number of NaN and infinite values that were replaced.

    Raises:
        SourceError: the file has too few or too many bytes, or is damaged; or a value does not fit.
    """
    replaced = 0

    def fill(stored: Block, values: Block) -> None:
        nonlocal replaced
        replaced += _convert(stored, values, header, conversion)

    # No copy: the array is a view of the file.
    if reads_in_place(header, data, conversion):
        values = np.frombuffer(data.data, header.dtype, header.value_count, data.start + header.offset)
        for start in range(0, len(values), BLOCK_VALUES):
            block = values[start : start + BLOCK_VALUES]
            _check_finite(block, block)
        return values, 0
    values, in_place = empty_array(header.value_count, conversion.dtype), is_stored_as_is(header, conversion)
    _read_blocks(header, data, lambda start, stop: values[start:stop], fill, in_place=in_place)
    return values, replaced


def is_quantized(header: StoredVoxels) -> bool:
    """Return whether integers were stored with a step that is no whole number.

    Programs write such a slope when they store floats as integers: nibabel divides the range of the values into as many
    steps as the type has numbers. A label that is no multiple of the step comes back up to half a step away.
    """
    if header.step:
        return True
    return header.dtype.kind != "f" and not (header.slope.is_integer() and header.inter.is_integer())


def quantization_tolerance(header: StoredVoxels, data: Content) -> float | None:
    """Return how far whole numbers may be from the values of a quantized mask.

    The result is None if `LABEL_TOLERANCE` suffices, or if the values are not whole numbers.

    All values must be within half a step of a whole number, and each whole number must have only one stored value. A
    fraction is between two whole numbers by chance only if the step is large: from a step of 0.5 on, the highest and
    the lowest value must also be whole, as they are where a program divided the range of whole numbers.
    """
    step = header.step or abs(header.slope)
    # From a step of 1 on, several whole numbers share a stored value.
    if not is_quantized(header) or step >= 1:
        return None
    # The content was rescaled slice by slice, so stored values cannot be compared.
    if header.step:
        return _tolerance_of_slices(header, data)
    stored = np.empty(0, header.dtype)

    def add(block: Block, _: Block) -> None:
        nonlocal stored
        stored = np.union1d(stored, block)

    unused = np.empty(0, np.uint8)
    _read_blocks(header, data, lambda start, stop: unused, add, in_place=False)
    exact = _rescaled(stored, np.float64(header.slope), np.float64(header.inter))
    # float32, in which NIfTI stores the slope, is off by 6e-8 of the value.
    tolerance = max(LABEL_TOLERANCE, step / 2 + 1e-6 * max(1.0, float(np.abs(exact).max())))
    whole = np.rint(exact)
    distance = float(np.abs(exact - whole).max())
    are_near = LABEL_TOLERANCE < distance <= tolerance and len(np.unique(whole)) == len(whole)
    ends = exact[[int(exact.argmin()), int(exact.argmax())]]
    are_ends_whole = bool((np.abs(ends - np.rint(ends)) <= LABEL_TOLERANCE).all())
    return tolerance if are_near and (step < _SURE_STEP or are_ends_whole) else None


def _tolerance_of_slices(header: StoredVoxels, data: Content) -> float | None:
    """Return as `quantization_tolerance` for slices of different steps, in which a whole number has several values."""
    tolerance = header.step / 2 + _ROUNDING
    distance = 0.0

    def measure(block: Block, _: Block) -> None:
        nonlocal distance
        distance = max(distance, float(np.abs(block - np.rint(block)).max()))

    unused = np.empty(0, np.uint8)
    _read_blocks(header, data, lambda start, stop: unused, measure, in_place=False)
    return tolerance if header.step < _SURE_STEP and LABEL_TOLERANCE < distance <= tolerance else None


def read_labels(
    header: StoredVoxels,
    data: Content,
    *,
    non_finite_is_background: bool = False,
    tolerance: float = LABEL_TOLERANCE,
    negative: Collection[int] = (),
) -> tuple[NDArray[Any], int]:
    """Read the values of a mask in the file's order, as a flat array of the smallest type that holds them.

    Args:
        header: storage format of the voxels.
        data: content of the file.
        non_finite_is_background: whether NaN and infinity become 0.
        tolerance: largest distance of a value from a whole number, see `quantization_tolerance`.
        negative: negative values that the mask may hold.

    Returns:
        The values, and the number of NaN and infinite values that became 0.

    Raises:
        SourceError: see `read_values`; or a value is not an integer up to 2**31 - 1, or negative and not known.
    """
    collected = _Labels(header.value_count, negative)
    ends: list[float] = []
    replaced = 0

    def fill(stored: Block, _: Block) -> None:
        nonlocal replaced
        if non_finite_is_background and stored.dtype.kind == "f":
            bad = ~np.isfinite(stored)
            replaced += int(np.count_nonzero(bad))
            # The stored value that rescales to 0.
            with np.errstate(divide="ignore", invalid="ignore"):
                stored = np.where(bad, stored.dtype.type(-header.inter / header.slope), stored)
        block = _to_labels(stored, header, tolerance)
        if header.rescales or stored.dtype.kind == "f":
            ends.extend(_rescaled(np.array([stored.min(), stored.max()]), *_float_rescale(header)).tolist())
        collected.add(block)

    _read_blocks(header, data, lambda start, stop: collected.values[start:stop], fill, in_place=False)
    if collected.unknown:
        raise SourceError("decode", NEGATIVE_LABELS, _negative_values(sorted(collected.unknown)))
    if ends:
        _check_not_lost(min(ends), max(ends), header)
    return collected.values, replaced


class _Labels:
    """Labels that were read so far, in the smallest type that holds them, and their unknown negative values."""

    def __init__(self, count: int, negative: Collection[int]) -> None:
        self.values: NDArray[Any] = np.empty(count, LABELS[0])
        self.unknown: set[int] = set()
        self._negative, self._at = {*negative}, 0

    def add(self, block: Block) -> None:
        lowest, highest = int(block.min()), int(block.max())
        if lowest < 0 and len(self.unknown) <= MAX_NEGATIVE:
            self.unknown |= set(np.unique(block[block < 0]).tolist()) - self._negative
        if self.unknown:
            return  # the mask is refused, after all unknown values are collected for the message
        if not _holds(self.values.dtype, lowest, highest):
            # Most masks fit in 8 bits, so a wider array is made only when a block needs it.
            wider = np.empty(len(self.values), next(one for one in LABELS if _holds(one, lowest, highest)))
            wider[: self._at] = self.values[: self._at]
            self.values = wider
        self.values[self._at : self._at + len(block)] = block
        self._at += len(block)


def _holds(dtype: np.dtype[Any] | str, lowest: int, highest: int) -> bool:
    info = np.iinfo(dtype)
    return bool(info.min <= lowest and highest <= info.max)


def _float_rescale(header: StoredVoxels) -> tuple[np.float64, np.float64]:
    return np.float64(header.slope), np.float64(header.inter)


def _check_not_lost(lowest: float, highest: float, header: StoredVoxels) -> None:
    """Raise SourceError if several values of a mask became one label, as labels with a slope of 6.1e-5 do."""
    # A mask of one value loses nothing, whatever its fraction within the tolerance.
    if round(lowest) != round(highest) or highest - lowest <= _ROUNDING * max(1.0, abs(highest)):
        return
    detail = f"{lowest:.6g} to {highest:.6g}, which would all become {round(highest)}; "
    if header.rescales and header.dtype.kind != "f":
        first, last = sorted(round((end - header.inter) / header.slope) for end in (lowest, highest))
        detail += (
            f"stored are {first} to {last} with a slope of {header.slope:.3g}: if those are the labels, save them "
            "without the slope"
        )
    else:
        detail += "save labels as integers, the number of each class"
    raise SourceError("decode", "mask values are not whole numbers", detail)


def _negative_values(values: Sequence[int]) -> str:
    """Return the message for negative values: a few mark voxels without a class, many are an image.

    >>> _negative_values([-2, -1]), _negative_values([*range(-9, 0)])
    ('-2,-1', 'down to -9; are image and label swapped?')
    """
    # A few negative values are marks, such as -1 for unlabeled; many are Hounsfield units.
    if len(values) > MAX_NEGATIVE:
        return f"down to {values[0]}; are image and label swapped?"
    return ",".join(map(str, values))


def _are_rounded_to_bytes(values: Block) -> bool:
    """Return whether values are distinct whole numbers that were stored in 8 bits with a slope, and then as floats.

    >>> _are_rounded_to_bytes(np.array([0, 0.99607843, 2])), _are_rounded_to_bytes(np.array([0, 0.996, 1]))
    (True, False)
    """
    if not np.isfinite(values).all():
        return False
    found = np.unique(values)
    step = float(found[-1] - found[0]) / _BYTE_STEPS
    whole = np.rint(found)
    # 256 or more values, or steps of 1, do not come from 8 bits.
    if len(found) > _BYTE_STEPS or not 0 < step < 1 or len(np.unique(whole)) < len(whole):
        return False
    places = (found - found[0]) / step
    is_grid = float(np.abs(places - np.rint(places)).max()) <= LABEL_TOLERANCE
    are_near = float(np.abs(found - whole).max()) <= step / 2 + _ROUNDING * max(1.0, abs(float(found[-1])))
    are_ends_whole = float(np.abs(found - whole)[[0, -1]].max()) <= LABEL_TOLERANCE
    return is_grid and are_near and are_ends_whole


def _read_blocks(
    header: StoredVoxels,
    data: Content,
    part: Callable[[int, int], Block],
    fill: Callable[[Block, Block], None],
    *,
    in_place: bool,
) -> None:
    """Read the stored values block by block, and check that the file ends after them.

    Args:
        header: storage format of the voxels.
        data: content of the file.
        part: function that returns the part of the result from a start to a stop index.
        fill: function that converts a block of stored values into its part of the result.
        in_place: whether stored values are read directly into the result.

    Raises:
        SourceError: the file has too few or too many bytes, or is damaged.
    """
    stream = data.open()
    count = header.value_count
    if skip(stream, header.offset) < header.offset:
        detail = f"the file ends before byte {header.offset}; {COPY_AGAIN}"
        raise SourceError("decode", "voxels are missing", detail)
    scratch = np.empty(min(BLOCK_VALUES, count), header.dtype)
    for start in range(0, count, BLOCK_VALUES):
        stop = min(start + BLOCK_VALUES, count)
        target = part(start, stop)
        stored = target if in_place else scratch[: stop - start]
        got = stream.read_into(stored.view(np.uint8).data)
        if got < stored.nbytes:
            present = start * header.dtype.itemsize + got
            detail = (
                f"{plural(present, 'byte')} of voxels, the header says {header.voxel_bytes}; {COPY_AGAIN}"
            )
            raise SourceError("decode", "voxels are missing", detail)
        fill(stored, target)
    # Reading to the end also makes the decompressor compare its checksum.
    if header.has_trailer:
        while skip(stream, OUTPUT_BYTES):
            pass
        return
    left_over = skip(stream, header.slice_bytes)
    # Less than a slice is padding; a slice shows that the header belongs to another volume.
    if left_over >= header.slice_bytes:
        raise _left_over(header, left_over)


def _convert(stored: Block, values: Block, header: StoredVoxels, conversion: ValueConversion) -> int:
    """Convert stored values into `values`, which may share their memory; return the number of replaced values."""
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
    # The type of the file holds more than 32 bits; only its values tell whether they fit.
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
    """Return `stored * slope + inter` in the type of the slope."""
    if slope == 1:  # saves a pass over the block
        return np.add(stored, inter, dtype=slope.dtype, casting="unsafe")
    values = np.multiply(stored, slope, dtype=slope.dtype, casting="unsafe")
    # Saves a pass over the block.
    if inter != 0:
        values += inter
    return values


def _check_finite(stored: Block, values: Block) -> None:
    """Refuse NaN and infinity; the error tells whether the file holds them or the rescaling made them."""
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
        # Values in the memory of the stored ones were not rescaled, so none became infinite.
        if not np.may_share_memory(stored, values):
            _check_range(stored, values)
        values[bad] = value
    return count


def _to_labels(stored: Block, header: StoredVoxels, tolerance: float) -> Block:
    """Return the class values of a block of stored values as integers.

    Raises:
        SourceError: a value is not an integer from -2**31 to 2**31 - 1.
    """
    labels = stored
    if header.rescales or stored.dtype.kind == "f":
        exact = stored
        with np.errstate(over="ignore", invalid="ignore"):
            if header.rescales:
                exact = _rescaled(stored, np.float64(header.slope), np.float64(header.inter))
            labels = np.rint(exact)
            off = ~(np.abs(exact - labels) <= tolerance)  # NaN and infinity too
        if off.any():
            raise _not_whole(exact, off, header)
    least, most = int(labels.min()), int(labels.max())  # Python integers, because float32 rounds 2**31 - 1 up
    if least < np.iinfo(np.int32).min:
        raise SourceError("decode", "mask values do not fit in 32 bits", f"down to {least}")
    if most > np.iinfo(np.int32).max:
        raise SourceError("decode", "mask values do not fit in 32 bits", f"up to {most}")
    return labels if labels.dtype.kind in "iu" else labels.astype(np.int32)


def _not_whole(exact: Block, off: NDArray[np.bool_], header: StoredVoxels) -> SourceError:
    """Return the error of values of which some, `off`, are no whole numbers, with the likely cause."""
    example = float(exact[int(np.argmax(off))])
    detail = f"{int(np.count_nonzero(off))} in a block of {len(exact)}, the first is {example:.6g}"
    if not np.isfinite(exact[off]).any():
        detail += "; --non-finite-labels background takes them for the background"
    elif _are_rounded_to_bytes(exact):
        detail += (
            ", but all are whole numbers that were rounded to one of 255 steps: save the nearest whole "
            "numbers, np.rint(values), as integers"
        )
    elif is_quantized(header):
        detail += f", stored in steps of {header.step or abs(header.slope):.3g}; {_NOT_QUANTIZED_LABELS}"
    else:
        detail += "; are image and label swapped? Probabilities have to be made classes first"
    return SourceError("decode", "mask values are not whole numbers", detail)
