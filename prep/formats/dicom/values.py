"""Conversion of stored values: rescaling, Hounsfield units, the smallest exact dtype, and padding.

`plan_series_values` decides from the headers of all slices, and `apply_values` converts one slice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import SourceError
from halofeed.prep.formats.dicom.header_fields import HeaderFields, PixelFormat
from halofeed.prep.formats.dicom.pixels import extract_values
from halofeed.prep.formats.dicom.real_world_values import Rescale, apply_table, check_mapped
from halofeed.prep.formats.dicom.series_splitting import Slice
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.geometry.scan import Finding
from halofeed.schemas.findings import FindingName

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


_PaddingPlan = tuple[float | None, tuple[float, float] | None, list[Finding]]
"""`air`, `real` and the findings about padding, see `ValuePlan`."""


def _keep_padding(detail: str) -> _PaddingPlan:
    return None, None, [Finding.noted(FindingName.PADDING_VALUES, detail)]


def _plan_padding(slices: Sequence[Slice], unit: str, policy: SeriesPolicy) -> _PaddingPlan:
    """Plan the replacement of the padding values that the headers declare."""
    declared = [part for part in slices if part.fields.stored.padding]
    if not declared:
        return None, None, []
    ends: set[float] = set()
    for part in declared:
        slope, intercept = _scale_of(part.frame.rescale)
        ends.update(value * slope + intercept for value in padding_range(part.fields.stored))
    span = f"{min(ends):g}" + (f" to {max(ends):g}" if len(ends) > 1 else "") + (" HU" if unit else "")
    if slices[0].fields.modality == "CT" and not unit:
        return _keep_padding(f"{span}; left as they are, as the values are not in Hounsfield units")
    if unit and any(TISSUE_HU[0] < end < TISSUE_HU[1] for end in ends):
        return _keep_padding(f"{span} declared, which real voxels have too; left as they are")
    air = PADDING_AIR_HU if unit else 0.0
    if ends == {air}:
        return None, None, []
    if policy.padding == "refuse":
        raise SourceError("read", "series has padding values", f"{span} declared")
    spread = [part for part in declared if part.fields.lossy]
    real = _real_range(ends) if unit and spread else None
    if real is not None:
        return air, real, [_spread_padding(f"{span} declared", real)]
    if any(part.fields.syntax != NEAR_LOSSLESS for part in spread):
        why = "lossy compression has changed them, and no real value is far enough from them"
        return _keep_padding(f"{span} declared; left as they are: {why}")
    detail = f"voxels of {span} are set to {air:g}" + (" HU" if unit else "")
    return air, None, [Finding.corrected(FindingName.PADDING_VALUES, detail)]


def _real_range(padding: set[float]) -> tuple[float, float] | None:
    """Return the range of Hounsfield units that cannot be padding changed by lossy compression; None if unknown.

    >>> _real_range({-3024.0}), _real_range({-1024.0}), _real_range({62512.0})
    ((-1024.0, inf), None, (-inf, 32756.0))
    """
    low, high = min(padding), max(padding)
    if low < LOWEST_HU and high <= TISSUE_HU[0]:
        return max(LOWEST_HU, math.nextafter(high, math.inf)), math.inf
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
    findings: list[Finding] = []
    files = [part.fields for part in slices]
    known = {_scale_of(part.frame.rescale) for part in slices}
    without = sum(part.frame.rescale is None for part in slices)
    if 0 < without < len(slices):
        raise SourceError("read", "some slices have no rescale slope", f"{without} of {len(slices)}")
    if any(slope == 0 for slope, _ in known):
        raise SourceError("read", "rescale slope is 0")
    mapped = [part.frame.rescale for part in slices if part.frame.rescale and part.frame.rescale.is_mapping]
    if mapped:
        units = sorted({one.kind for one in mapped})
        if len(units) > 1:
            raise SourceError(
                "read", "real world values of several units", f"{', '.join(units)}; {_ONE_UNIT}"
            )
        detail = f"in {units[0]}" if units[0] else "without a unit"
        is_identity = known == {(1.0, 0.0)} and not any(one.table for one in mapped)
        note = Finding.noted if is_identity else Finding.corrected
        findings.append(note(FindingName.REAL_WORLD_VALUES, detail))
    unit = "HU" if _is_hounsfield(files[0].modality, slices, findings) else ""
    if len(known) > 1:
        slopes = sorted({slope for slope, _ in known})
        detail = f"slopes {slopes[0]:g} to {slopes[-1]:g}; each slice by its own"
        findings.append(Finding.noted(FindingName.SLICES_DIFFER_IN_RESCALE, detail))
    if any(fields.stored.photometric == "MONOCHROME1" for fields in files):
        # PS3.3 C.7.6.3.1.2: this is about the display of values and does not change them.
        detail = "low values are for display in white; the values are kept"
        findings.append(Finding.noted(FindingName.MONOCHROME1, detail))
    air, real, padding_findings = _plan_padding(slices, unit, policy)
    undeclared = None
    if real is None and unit and len(known) == 1 and corners:
        ((slope, intercept),) = known
        at_corners = [corner * slope + intercept for corner in corners]
        is_lossy = any(fields.lossy for fields in files)
        are_equal = is_lossy or len(set(corners)) == 1
        if are_equal and max(at_corners) < LOWEST_HU and not _is_declared(corners, files):
            said = f"{at_corners[0]:g} HU" if len(set(corners)) == 1 else f"{min(at_corners):g} HU and more"
            if policy.padding == "refuse":
                raise SourceError("read", "series has padding values", f"{said} at the corners")
            air = PADDING_AIR_HU
            if is_lossy:
                real = (LOWEST_HU, math.inf)
                padding_findings = [_spread_padding(f"{said} at all corners, not declared", real)]
            else:
                undeclared = corners[0]
                detail = f"{said} at all corners, not declared; voxels of it are set to {air:g} HU"
                padding_findings.append(Finding.corrected(FindingName.PADDING_VALUES, detail))
    return ValuePlan(
        dtype=_exact_dtype(slices, air),
        unit=unit,
        air=air,
        undeclared=undeclared,
        real=real,
        findings=(*findings, *padding_findings),
    )


def _is_declared(corners: Sequence[int], files: Sequence[HeaderFields]) -> bool:
    """Return whether the headers declare the stored values at the corners as padding."""
    ranges = [padding_range(fields.stored) for fields in files if fields.stored.padding]
    return any(low <= min(corners) and max(corners) <= high for low, high in ranges)


def _exact_dtype(slices: Sequence[Slice], air: float | None) -> str:
    low = high = air or 0.0
    for stored, rescale in {(part.fields.stored, part.frame.rescale) for part in slices}:
        slope, intercept = _scale_of(rescale)
        if (
            stored.is_float
            or (rescale and rescale.table)
            or not (slope.is_integer() and intercept.is_integer())
        ):
            return "float32"
        ends = [value * slope + intercept for value in stored_range(stored)]
        low, high = min(low, *ends), max(high, *ends)
    for dtype in EXACT_DTYPES:
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return dtype
    return "float32"


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
    slope, intercept = _scale_of(rescale)
    if rescale is not None and rescale.table:
        scaled = apply_table(values, rescale).astype(np.float32)
    elif plan.dtype == "float32":
        with np.errstate(over="ignore"):  # the converter refuses a volume with infinite values
            scaled = (values * np.float64(slope) + intercept).astype(np.float32)
    elif slope == 1 and values.dtype.itemsize == np.dtype(plan.dtype).itemsize:
        # The sum fits the plan's dtype, so modular arithmetic gives the exact result.
        unsigned = f"u{values.dtype.itemsize}"
        modulus = 1 << (8 * values.dtype.itemsize)
        scaled = (values.view(unsigned) + np.dtype(unsigned).type(int(intercept) % modulus)).view(plan.dtype)
    else:
        scaled = (values.astype(np.int64) * int(slope) + int(intercept)).astype(plan.dtype)
    if plan.air is None:
        check_mapped(values, None, rescale)
        return scaled
    if plan.real is not None:
        padding = np.asarray((scaled < plan.real[0]) | (scaled > plan.real[1]))
    else:
        padding = _padding(words, values, stored, near if part.fields.lossy else 0)
        if plan.undeclared is not None:
            padding |= values == plan.undeclared
    check_mapped(values, padding, rescale)
    if padding.any():
        scaled[padding] = plan.air
    return scaled


def _padding(words: NDArray[Any], values: NDArray[Any], stored: PixelFormat, near: int) -> NDArray[np.bool_]:
    if stored.padding is None:
        return np.zeros(values.shape, np.bool_)
    low, high = padding_range(stored)
    lowest, highest = stored_range(stored)
    if lowest <= low and high <= highest:
        low, high = max(low - near, lowest), min(high + near, highest)
        return np.asarray((values >= low) & (values <= high))
    # The used bits cannot hold the padding value, so padding uses all bits of the word.
    signed = words.view(np.dtype(f"i{words.dtype.itemsize}")) if stored.signed else words
    return np.asarray((signed >= low) & (signed <= high))
