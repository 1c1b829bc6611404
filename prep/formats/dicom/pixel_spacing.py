"""Pixel spacing of a single DICOM picture in millimeters, from whichever of its elements states it.

| element | files | what it is |
|---|---|---|
| Pixel Spacing (0028,0030) | any | in the patient, if it was corrected or calibrated |
| Object Pixel Spacing in Center of Beam (0018,9404) | enhanced XA | in the patient |
| Imager Pixel Spacing (0018,1164) | CR, DX, MG, XA | at the detector; divided by (0018,1114) in the patient |
| Sequence of Ultrasound Regions (0018,6011) | US | centimeters in a part of the picture |
| Nominal Scanned Pixel Spacing (0018,2010) | SC of a film scanner | on the film |

(0018,1114) is the Estimated Radiographic Magnification Factor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from halofeed.prep.formats.dicom import headers
from halofeed.prep.formats.dicom.headers import Elements, finite_number, integer, items
from halofeed.system.errors import SourceError

Sides = tuple[float, float]
"""Distance between rows, and between columns (PS3.3 10.7.1.3)."""
_MAX_SPACING_MM = 1000.0
_MAX_MAGNIFICATION = 20.0
_SAME = 1e-3
"""Largest difference of two spacings, as a share, with which they are one value written with different digits."""
_CENTIMETERS, _MM_PER_CM = 3, 10.0
"""Physical Units of an ultrasound region (PS3.3 C.8.5.5.1.15)."""
_FORMATS_BESIDE = (4, 5)
"""Region Spatial Formats of a waveform, such as the ECG below the picture, and of graphics (PS3.3 C.8.5.5.1.1)."""


@dataclass(frozen=True, kw_only=True)
class PixelSpacing:
    """Spacing of the pixels that a file stores.

    Args:
        sides_mm: distance between rows, and between columns.
        at_detector: whether it is that at the detector, which is larger than in the patient by an unknown factor.
    """

    sides_mm: Sides
    at_detector: bool = False


def pixel_spacing(groups: Sequence[Elements], size: tuple[int, int]) -> PixelSpacing | None:
    """Return the spacing of a picture's pixels; None if the file does not state it.

    Args:
        groups: elements that describe the picture, those of its frame first.
        size: (height, width) of the picture.

    Source: PS3.3 10.7.1 (calibration), C.8.11.4 and C.8.7.2 (detector), C.8.5.5 (ultrasound), C.8.6.2 (scanner).
    """
    stated, imager = _first(groups, headers.PIXEL_SPACING), _first(groups, headers.IMAGER_SPACING)
    # 10.7.1.1: without a correction Pixel Spacing repeats the spacing at the detector. A factor corrects both.
    if stated is not None and (_is_calibrated(groups) or imager is None or not _are_same(stated, imager)):
        return PixelSpacing(sides_mm=stated)
    if (center := _first(groups, headers.OBJECT_SPACING)) is not None:
        return PixelSpacing(sides_mm=center)
    if imager is not None:
        factor = _magnification(groups)
        return PixelSpacing(
            sides_mm=(imager[0] / (factor or 1), imager[1] / (factor or 1)), at_detector=factor is None
        )
    found = _of_regions(groups[-1], size) or _first(groups, headers.NOMINAL_SPACING)
    return None if found is None else PixelSpacing(sides_mm=found)


def _first(groups: Sequence[Elements], tag: int) -> Sides | None:
    """Return the first spacing of a tag that is one."""
    for elements in groups:
        try:
            found = headers.numbers(elements, tag, 2)
        except SourceError:
            continue
        if found is not None and all(0 < side < _MAX_SPACING_MM for side in found):
            return found[0], found[1]
    return None


def _is_calibrated(groups: Sequence[Elements]) -> bool:
    return any(headers.text(elements, headers.CALIBRATION_TYPE) for elements in groups)


def _magnification(groups: Sequence[Elements]) -> float | None:
    """Return by how much the detector shows the patient enlarged; None if the file does not state it."""
    for elements in groups:
        try:
            factor = finite_number(elements, headers.MAGNIFICATION)
        except SourceError:
            continue
        # The detector is behind the patient, so a factor below 1 is a wrong value or a placeholder.
        if factor is not None and 1 <= factor <= _MAX_MAGNIFICATION:
            return factor
    return None


def _of_regions(elements: Elements, size: tuple[int, int]) -> Sides | None:
    """Return the spacing of a region that covers the picture, or that all regions have; None without one."""
    regions = list(_regions(elements))
    covering = [sides for sides, box in regions if _covers(box, size)]
    candidates = covering or [sides for sides, _ in regions]
    if not candidates or any(sides is None or not _are_same(sides, candidates[0]) for sides in candidates):
        return None
    return candidates[0]


def _regions(elements: Elements) -> Iterator[tuple[Sides | None, tuple[int, ...]]]:
    """Yield the spacing of each region of the picture, None for one that is not in cm, and its corners x, y, x, y."""
    for region in items(elements, headers.ULTRASOUND_REGIONS):
        try:
            if integer(region, headers.REGION_FORMAT, 1) in _FORMATS_BESIDE:
                continue
            units = [integer(region, tag, 0) for tag in headers.REGION_UNITS]
            # A delta is negative where values fall from left to right or from top to bottom.
            steps = [abs(finite_number(region, tag) or 0) * _MM_PER_CM for tag in headers.REGION_DELTAS]
            box = tuple(integer(region, tag, 0) for tag in headers.REGION_CORNERS)
        except SourceError:
            yield None, (0, 0, 0, 0)
            continue
        is_spatial = units == [_CENTIMETERS] * 2 and all(0 < step < _MAX_SPACING_MM for step in steps)
        yield ((steps[1], steps[0]) if is_spatial else None), box


def _covers(box: tuple[int, ...], size: tuple[int, int]) -> bool:
    left, top, right, bottom = box
    # C.8.5.5.1.4: the last corner is that of the last pixel; some writers give the number of pixels.
    return left <= 0 and top <= 0 and right >= size[1] - 1 and bottom >= size[0] - 1


def _are_same(one: Sides | None, other: Sides | None) -> bool:
    if one is None or other is None:
        return False
    return all(abs(first - second) <= _SAME * second for first, second in zip(one, other, strict=True))
