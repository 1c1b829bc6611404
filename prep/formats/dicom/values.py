"""Conversion of stored values: rescaling, Hounsfield units, the smallest exact dtype, and padding.

`plan_series_values` decides from the headers of all slices, and `apply_values` converts one slice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.dicom.header_fields import HeaderFields, PixelFormat
from halofeed.prep.formats.dicom.pixels import extract_values
from halofeed.prep.formats.dicom.real_world_values import Rescale, apply_table, check_mapped
from halofeed.prep.formats.dicom.series_splitting import Slice
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.geometry.scan import Finding
from halofeed.schemas.findings import FindingName
from halofeed.system.errors import SourceError

PADDING_AIR_HU = -1000.0
TISSUE_HU = (-900.0, 3000.0)
"""A declared padding value in this range is ignored, because tissue has such values too."""
LOWEST_HU = -1024.0
"""Equal corners below this value are undeclared padding, because no material has such a value."""

NEAR_LOSSLESS = "1.2.840.10008.1.2.4.81"
"""JPEG-LS near-lossless, which states the largest error of its values."""

_ONE_UNIT = "--real-world-values stored takes the values as they are stored"
EXACT_DTYPES = ("uint8", "int16", "uint16", "int32")


@dataclass(frozen=True, kw_only=True)
class ValuePlan:
    """Plan for the conversion of stored values into those of the volume.

    Args:
        dtype: smallest dtype that holds all values exactly; float32 if a slope or intercept is not an integer.
        unit: "HU" or "".
        air: value that replaces padding; None if padding stays unchanged.
        undeclared: stored value that is padding although the header does not declare it.
        real: range of values that are not padding, for lossy files, whose compression changed the padding values; None
            if padding has its declared value.
        findings: findings about rescale, photometric interpretation and padding, in this order.
    """

    dtype: str
    unit: str
    air: float | None
    undeclared: int | None
    real: tuple[float, float] | None
    findings: tuple[Finding, ...]


def stored_range(stored: PixelFormat) -> tuple[int, int]:
    """Return the lowest and the highest value that the used bits can hold.

    >>> stored_range(PixelFormat(size=(1, 1), samples=1, photometric="", bits_allocated=16, bits_stored=12,
    ...     high_bit=11, signed=True, padding=None))
    (-2048, 2047)
    """
    span = 1 << stored.bits_stored
    return (-span // 2, span // 2 - 1) if stored.signed else (0, span - 1)


def _scale_of(rescale: Rescale | None) -> tuple[float, float]:
    """Return the slope and the intercept."""
    return (rescale.slope, rescale.intercept) if rescale else (1.0, 0.0)


def _is_hounsfield(modality: str, slices: Sequence[Slice], findings: list[Finding]) -> bool:
    """Return whether the rescaled values are certainly Hounsfield units; add a finding about a CT whose are not."""
    if modality != "CT":
        return False
    # PS3.3 C.8.2.1 requires slope and intercept of a CT image; without them nothing states the unit.
    if slices[0].frame.rescale is None:
        detail = "a CT without a slope; values as stored, not in Hounsfield units"
        findings.append(Finding.noted(FindingName.NO_RESCALE_SLOPE, detail))
        return False
    # PS3.3 C.8.2.1: the type may be left out only where the values are Hounsfield units.
    kinds = sorted({part.frame.rescale.kind for part in slices if part.frame.rescale} - {"", "HU"})
    if kinds:
        detail = f"rescale type {', '.join(kinds)}"
        findings.append(Finding.noted(FindingName.HOUNSFIELD_UNITS_NOT_CERTAIN, detail))
    return not kinds


@dataclass(frozen=True, kw_only=True)
class _PaddingPlan:
    """Plan for the replacement of padding; see the fields of `ValuePlan` with the same names."""

    air: float | None = None
    undeclared: int | None = None
    real: tuple[float, float] | None = None
    findings: tuple[Finding, ...] = ()


def _keep_padding(detail: str) -> _PaddingPlan:
    return _PaddingPlan(findings=(Finding.noted(FindingName.PADDING_VALUES, detail),))


def _plan_padding(slices: Sequence[Slice], unit: str, policy: SeriesPolicy) -> _PaddingPlan:
    """Plan the replacement of the padding values that the headers declare."""
    declared = [part for part in slices if part.fields.stored.padding]
    if not declared:
        return _PaddingPlan()
    ends = _declared_ends(declared)
    span = f"{min(ends):g}" + (f" to {max(ends):g}" if len(ends) > 1 else "") + (" HU" if unit else "")
    if why := _why_padding_stays(ends, slices[0].fields.modality, unit):
        return _keep_padding(f"{span}{why}")
    air = PADDING_AIR_HU if unit else 0.0
    # The padding already has the value that would replace it.
    if ends == {air}:
        return _PaddingPlan()
    if policy.padding == "refuse":
        raise SourceError("read", "series has padding values", f"{span} declared")
    compressed = [part for part in declared if part.fields.lossy]
    return _replace_padding(compressed, ends, span, air)


def _declared_ends(declared: Sequence[Slice]) -> set[float]:
    """Return the ends of all declared ranges of padding, as values of the volume.

    Padding is a range of stored values (PS3.3 C.7.5.1.1.2), to which the rescale applies as to all others.
    """
    ends: set[float] = set()
    for part in declared:
        slope, intercept = _scale_of(part.frame.rescale)
        ends.update(value * slope + intercept for value in padding_range(part.fields.stored))
    return ends


def _why_padding_stays(ends: set[float], modality: str, unit: str) -> str:
    """Return the reason why declared padding is not replaced, or ""."""
    # The value of air is known in Hounsfield units only.
    if modality == "CT" and not unit:
        return "; left as they are, as the values are not in Hounsfield units"
    # A declared 0, for example, is water in Hounsfield units: its replacement would make holes in the patient.
    if unit and any(TISSUE_HU[0] < end < TISSUE_HU[1] for end in ends):
        return " declared, which real voxels have too; left as they are"
    return ""


def _replace_padding(compressed: Sequence[Slice], ends: set[float], span: str, air: float) -> _PaddingPlan:
    """Plan the replacement of declared padding by `air`.

    Args:
        compressed: slices with padding that were compressed lossily.
        ends: ends of the ranges of padding.
        span: the ranges and their unit, for messages.
        air: value that replaces padding.
    """
    unit = " HU" if air == PADDING_AIR_HU else ""
    # Lossy compression changes padding values too, so that they are recognized by what no real value can be.
    real = _real_range(ends) if unit and compressed else None
    if real is not None:
        return _PaddingPlan(air=air, real=real, findings=(_spread_padding(f"{span} declared", real),))
    # JPEG-LS near-lossless states its largest error, by which `_padding` widens the range.
    if any(part.fields.syntax != NEAR_LOSSLESS for part in compressed):
        why = "lossy compression has changed them, and no real value is far enough from them"
        return _keep_padding(f"{span} declared; left as they are: {why}")
    detail = f"voxels of {span} are set to {air:g}{unit}"
    return _PaddingPlan(air=air, findings=(Finding.corrected(FindingName.PADDING_VALUES, detail),))


def _add_undeclared(
    declared: _PaddingPlan,
    slices: Sequence[Slice],
    corners: Sequence[int],
    scale: tuple[float, float],
    policy: SeriesPolicy,
) -> _PaddingPlan:
    """Add padding that no header declares: a value below that of all materials, at all corners of a slice.

    Args:
        declared: plan of the declared padding.
        slices: all slices of a volume of Hounsfield units.
        corners: stored values at the corners of one slice.
        scale: slope and intercept of all slices.
        policy: flaws that are corrected or refused.
    """
    slope, intercept = scale
    corners_hu = [corner * slope + intercept for corner in corners]
    is_lossy, are_equal = any(part.fields.lossy for part in slices), len(set(corners)) == 1
    # Padding is one value, unless lossy compression has changed it.
    if max(corners_hu) >= LOWEST_HU or not (is_lossy or are_equal):
        return declared
    if _is_declared(corners, [part.fields for part in slices]):
        return declared
    found = f"{corners_hu[0]:g} HU" if are_equal else f"{min(corners_hu):g} HU and more"
    if policy.padding == "refuse":
        raise SourceError("read", "series has padding values", f"{found} at the corners")
    return _replace_undeclared(declared, f"{found} at all corners, not declared", corners[0], is_lossy)


def _replace_undeclared(declared: _PaddingPlan, found: str, corner: int, is_lossy: bool) -> _PaddingPlan:
    """Plan the replacement of undeclared padding, whose stored value is `corner` unless compression is lossy."""
    if is_lossy:
        real = (LOWEST_HU, math.inf)
        return _PaddingPlan(air=PADDING_AIR_HU, real=real, findings=(_spread_padding(found, real),))
    detail = f"{found}; voxels of it are set to {PADDING_AIR_HU:g} HU"
    findings = (*declared.findings, Finding.corrected(FindingName.PADDING_VALUES, detail))
    return replace(declared, air=PADDING_AIR_HU, undeclared=corner, findings=findings)


def _real_range(padding: set[float]) -> tuple[float, float] | None:
    """Return the range of Hounsfield units that cannot be padding changed by lossy compression; None if unknown.

    >>> _real_range({-3024.0}), _real_range({-1024.0}), _real_range({62512.0})
    ((-1024.0, inf), None, (-inf, 32756.0))
    """
    low, high = min(padding), max(padding)
    # No material is below LOWEST_HU, so that all values below it are changed padding, and none above it is.
    if low < LOWEST_HU and high <= TISSUE_HU[0]:
        return max(LOWEST_HU, math.nextafter(high, math.inf)), math.inf
    # High padding is separated from tissue in the middle between both.
    if low >= TISSUE_HU[1]:
        return -math.inf, (TISSUE_HU[1] + low) / 2
    return None


def _spread_padding(what: str, real: tuple[float, float]) -> Finding:
    outside = f"below {real[0]:g}" if real[0] > -math.inf else f"above {real[1]:g}"
    done = f"voxels {outside} HU are set to {PADDING_AIR_HU:g} HU, others may be off"
    detail = f"{what}, spread by lossy compression; {done}"
    return Finding.corrected(FindingName.PADDING_VALUES, detail)


def padding_range(stored: PixelFormat) -> tuple[int, int]:
    """Return the lowest and the highest padding value, interpreted with the sign of the pixels.

    The VR of the padding element is ignored: 63536 is -2000 if the pixels are signed.

    >>> padding_range(PixelFormat(size=(1, 1), samples=1, photometric="", bits_allocated=16, bits_stored=16,
    ...     high_bit=15, signed=True, padding=(63536, 63536)))
    (-2000, -2000)
    """
    assert stored.padding is not None
    ends = [bits - 65536 if stored.signed and bits >= 32768 else bits for bits in stored.padding]
    return min(ends), max(ends)


def plan_series_values(slices: Sequence[Slice], corners: Sequence[int], policy: SeriesPolicy) -> ValuePlan:
    """Plan the values of a series.

    Args:
        slices: all slices of a volume.
        corners: stored values at the corners of one slice; () if they were not read.
        policy: flaws that are corrected or refused.

    Raises:
        SourceError: only some slices have a rescale, a slope is 0, or the policy refuses padding.
    """
    scales = _check_scales(slices)
    findings = _describe_mappings(slices)
    unit = "HU" if _is_hounsfield(slices[0].fields.modality, slices, findings) else ""
    findings += _describe_values(slices, scales)
    padding = _plan_padding(slices, unit, policy)
    # With `real`, values below those of all materials are replaced anyway. Slices with different scales have
    # different stored values for one padding.
    if unit and corners and padding.real is None and len(scales) == 1:
        (scale,) = scales
        padding = _add_undeclared(padding, slices, corners, scale, policy)
    return ValuePlan(
        dtype=_exact_dtype(slices, padding.air),
        unit=unit,
        air=padding.air,
        undeclared=padding.undeclared,
        real=padding.real,
        findings=(*findings, *padding.findings),
    )


def _check_scales(slices: Sequence[Slice]) -> set[tuple[float, float]]:
    """Return the different pairs of slope and intercept of the slices.

    Raises:
        SourceError: only some slices have a rescale, or a slope is 0.
    """
    # A slice without a rescale beside others with one would have another unit.
    without = sum(part.frame.rescale is None for part in slices)
    if 0 < without < len(slices):
        raise SourceError("read", "some slices have no rescale slope", f"{without} of {len(slices)}")
    scales = {_scale_of(part.frame.rescale) for part in slices}
    if any(slope == 0 for slope, _ in scales):
        raise SourceError("read", "rescale slope is 0")
    return scales


def _describe_mappings(slices: Sequence[Slice]) -> list[Finding]:
    """Return the finding about real world value mappings; [] if the slices have none.

    Raises:
        SourceError: the mappings have several units.
    """
    rescales = [part.frame.rescale for part in slices if part.frame.rescale]
    mapped = [rescale for rescale in rescales if rescale.is_mapping]
    if not mapped:
        return []
    units = sorted({one.kind for one in mapped})
    if len(units) > 1:
        raise SourceError("read", "real world values of several units", f"{', '.join(units)}; {_ONE_UNIT}")
    detail = f"in {units[0]}" if units[0] else "without a unit"
    # A mapping that changes no value is no correction.
    note = Finding.noted if all(one.is_identity for one in rescales) else Finding.corrected
    return [note(FindingName.REAL_WORLD_VALUES, detail)]


def _describe_values(slices: Sequence[Slice], scales: set[tuple[float, float]]) -> list[Finding]:
    """Return the findings about slices with different scales, and about the photometric interpretation."""
    findings = []
    # Each slice of a PET may have its own slope, which makes use of all 16 bits (PS3.3 C.8.9.4).
    if len(scales) > 1:
        slopes = sorted({slope for slope, _ in scales})
        detail = f"slopes {slopes[0]:g} to {slopes[-1]:g}; each slice by its own"
        findings.append(Finding.noted(FindingName.SLICES_DIFFER_IN_RESCALE, detail))
    if any(part.fields.stored.photometric == "MONOCHROME1" for part in slices):
        # PS3.3 C.7.6.3.1.2: this is about the display of values and does not change them.
        detail = "low values are for display in white; the values are kept"
        findings.append(Finding.noted(FindingName.MONOCHROME1, detail))
    return findings


def _is_declared(corners: Sequence[int], files: Sequence[HeaderFields]) -> bool:
    """Return whether the headers declare the stored values at the corners as padding."""
    ranges = [padding_range(fields.stored) for fields in files if fields.stored.padding]
    return any(low <= min(corners) and max(corners) <= high for low, high in ranges)


def _exact_dtype(slices: Sequence[Slice], air: float | None) -> str:
    ends = [air or 0.0]
    for stored, rescale in {(part.fields.stored, part.frame.rescale) for part in slices}:
        if not _is_integer_scale(stored, rescale):
            return "float32"
        slope, intercept = _scale_of(rescale)
        ends += [value * slope + intercept for value in stored_range(stored)]
    low, high = min(ends), max(ends)
    exact = (name for name in EXACT_DTYPES if np.iinfo(name).min <= low and high <= np.iinfo(name).max)
    return next(exact, "float32")


def _is_integer_scale(stored: PixelFormat, rescale: Rescale | None) -> bool:
    """Return whether all rescaled values are integers."""
    if stored.is_float or (rescale is not None and rescale.table):
        return False
    slope, intercept = _scale_of(rescale)
    return slope.is_integer() and intercept.is_integer()


def apply_values(words: NDArray[Any], part: Slice, plan: ValuePlan, near: int) -> NDArray[Any]:
    """Convert the stored words of a slice into values [height, width] of the plan's dtype.

    Args:
        words: unsigned [height, width], with unused bits.
        part: the slice.
        plan: plan for all slices of the volume.
        near: largest error of a stored value that lossy compression states.
    """
    stored = part.fields.stored
    values = extract_values(words, stored)
    rescale = part.frame.rescale
    scaled = _rescaled(values, rescale, plan.dtype)
    if plan.air is None:
        check_mapped(values, None, rescale)
        return scaled
    if plan.real is not None:
        padding = np.asarray((scaled < plan.real[0]) | (scaled > plan.real[1]))
    else:
        padding = padding_mask(words, values, stored, near if part.fields.lossy else 0)
        if plan.undeclared is not None:
            padding |= values == plan.undeclared
    check_mapped(values, padding, rescale)
    if padding.any():
        scaled[padding] = plan.air
    return scaled


def _rescaled(values: NDArray[Any], rescale: Rescale | None, dtype: str) -> NDArray[Any]:
    """Return the rescaled stored values in a dtype that holds them exactly, or in float32."""
    slope, intercept = _scale_of(rescale)
    if rescale is not None and rescale.table:
        return apply_table(values, rescale).astype(np.float32)
    if dtype == "float32":
        with np.errstate(over="ignore"):  # the converter refuses a volume with infinite values
            return (values * np.float64(slope) + intercept).astype(np.float32)
    if slope == 1 and values.dtype.itemsize == np.dtype(dtype).itemsize:
        # The sum fits the plan's dtype, so modular arithmetic gives the exact result without a wider copy.
        unsigned = f"u{values.dtype.itemsize}"
        modulus = 1 << (8 * values.dtype.itemsize)
        shift = np.dtype(unsigned).type(int(intercept) % modulus)
        return np.asarray((values.view(unsigned) + shift).view(dtype))
    return (values.astype(np.int64) * int(slope) + int(intercept)).astype(dtype)


def padding_mask(
    words: NDArray[Any], values: NDArray[Any], stored: PixelFormat, near: int
) -> NDArray[np.bool_]:
    """Return which pixels have the padding value that a header declares.

    Args:
        words: unsigned [height, width], with unused bits.
        values: stored values [height, width].
        stored: storage format of the pixels.
        near: largest error of a stored value that lossy compression states.
    """
    if stored.padding is None:
        return np.zeros(values.shape, np.bool_)
    low, high = padding_range(stored)
    lowest, highest = stored_range(stored)
    # JPEG-LS changes stored values by at most `near` (ITU-T T.87), padding included.
    if lowest <= low and high <= highest:
        low, high = max(low - near, lowest), min(high + near, highest)
        return np.asarray((values >= low) & (values <= high))
    # The used bits cannot hold the padding value, such as 63536 of 12 bits, so padding uses all bits of the word.
    signed = words.view(np.dtype(f"i{words.dtype.itemsize}")) if stored.signed else words
    return np.asarray((signed >= low) & (signed <= high))
