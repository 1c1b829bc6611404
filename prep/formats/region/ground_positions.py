"""Position of TIFF pictures on a map, and the size of their pixels in meters, by the tags of each format.

The tags XResolution and YResolution (TIFF 6.0) are not read: scanners and editors write the density of a print there.
Only Hamamatsu and Leica document them as sizes on the slide.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from halofeed.prep.formats.region.region_reader import Georeference
from halofeed.prep.geometry.map_coordinates import axis_unit_meters
from halofeed.system.errors import UsageError

if TYPE_CHECKING:
    from tifffile import TiffFile, TiffPage

PIXEL_SCALE, TIE_POINTS, TRANSFORMATION = 33550, 33922, 34264
KEY_DIRECTORY, KEY_DOUBLES, KEY_TEXTS = 34735, 34736, 34737
"""GeoTIFF 1.1 (OGC 19-008r4), section 7: tags, and in 7.2 to 7.5 the keys below."""
_MODEL_TYPE, _RASTER_TYPE, _GEOGRAPHIC, _PROJECTED = 1024, 1025, 2048, 3072
_LINEAR_UNITS, _LINEAR_UNIT_SIZE = 3076, 3077
_CITATIONS = (3073, 1026, 2049)
_PIXEL_IS_POINT, _MODEL_PROJECTED, _USER_DEFINED = 2, 1, 32767
_UNIT_METERS = {9001: 1.0, 9002: 0.3048, 9003: 1200 / 3937, 9036: 1000.0}
"""EPSG units: meter, international foot, US survey foot, kilometer."""
_WEB_MERCATOR, _EARTH_RADIUS = 3857, 6378137.0
USER_DEFINED_SYSTEM = (
    "a GeoTIFF defines its coordinate system by parameters, which are not read; gdalwarp -t_srs EPSG:... writes one "
    "with a code"
)
_METERS = {
    "km": 1e3,
    "m": 1.0,
    "dm": 0.1,
    "cm": 1e-2,
    "mm": 1e-3,
    "µm": 1e-6,
    "μm": 1e-6,
    "um": 1e-6,
    "nm": 1e-9,
    "pm": 1e-12,
    "Å": 1e-10,
    "in": 0.0254,
    "ft": 0.3048,
    "thou": 2.54e-5,
    "pt": 0.0254 / 72,
}
"""Units of length in OME-XML (2016-06, UnitsLength); the default is µm."""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Place and size of the pixels as a file states them; None for what it does not state."""

    georeference: Georeference | None = None
    pixel_size_m: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()


def ground_of(file: TiffFile, page: TiffPage) -> Ground:
    """Return position and pixel size of the picture on its full-resolution page."""
    to_map = _to_map(page)
    if to_map is not None:
        return _by_geo_keys(to_map, geo_keys(page), (page.imagelength, page.imagewidth))
    return Ground(pixel_size_m=_slide_pixel_size(file, page))


def _numbers(page: TiffPage, tag: int) -> tuple[float, ...]:
    value = page.tags.valueof(tag)
    if value is None:
        return ()
    try:
        return tuple(float(number) for number in value)
    except TypeError:
        return ()


def _to_map(page: TiffPage) -> tuple[float, float, float, float, float, float] | None:
    """Return the map from continuous pixel coordinates (column, row); None without one.

    Several tie points without a scale are ground control points, which are no affine map.
    """
    matrix, scale, ties = (_numbers(page, tag) for tag in (TRANSFORMATION, PIXEL_SCALE, TIE_POINTS))
    if len(matrix) == 16:
        a, b, _, c, d, e, _, f = matrix[:8]
    elif len(scale) >= 2 and len(ties) >= 6 and scale[0] and scale[1]:
        # GeoTIFF 1.1, B.6: rows run to the south, so the scale of y is positive.
        a, b, d, e = scale[0], 0.0, 0.0, -scale[1]
        c, f = ties[3] - ties[0] * a, ties[4] - ties[1] * e
    else:
        return None
    # The position of a point is that of the pixel's center (GeoTIFF 1.1, 7.2.1 and annex B.2.2.3).
    if geo_keys(page).get(_RASTER_TYPE) == _PIXEL_IS_POINT:
        c, f = c - (a + b) / 2, f - (d + e) / 2
    found = (a, b, c, d, e, f)
    return found if all(map(math.isfinite, found)) and a * e != b * d else None


def geo_keys(page: TiffPage) -> Mapping[int, Any]:
    """Return the GeoTIFF keys of a page: numbers and texts by the number of the key.

    Keys that are damaged are left out.
    """
    directory = page.tags.valueof(KEY_DIRECTORY)
    if directory is None or len(directory) < 4:
        return {}
    doubles, texts = _numbers(page, KEY_DOUBLES), page.tags.valueof(KEY_TEXTS) or ""
    keys: dict[int, Any] = {}
    for at in range(4, min(len(directory), 4 + 4 * int(directory[3])) - 3, 4):
        key, tag, count, value = (int(number) for number in directory[at : at + 4])
        if tag == 0:
            keys[key] = value
        elif tag == KEY_DOUBLES and value < len(doubles):
            keys[key] = doubles[value]
        elif tag == KEY_TEXTS and isinstance(texts, str):
            keys[key] = texts[value : value + count].rstrip("|\0")
    return keys


def _by_geo_keys(
    to_map: tuple[float, float, float, float, float, float], keys: Mapping[int, Any], size: tuple[int, int]
) -> Ground:
    code = next((keys[key] for key in (_PROJECTED, _GEOGRAPHIC) if keys.get(key)), 0)
    crs = f"EPSG:{code}" if 0 < code < _USER_DEFINED else _text_of_system(keys)
    notes = (USER_DEFINED_SYSTEM,) if code == _USER_DEFINED and not crs else ()
    reference = Georeference(to_map=to_map, crs=crs)
    unit = _unit_meters(keys, code)
    if keys.get(_MODEL_TYPE) != _MODEL_PROJECTED or unit is None:
        return Ground(georeference=reference, notes=notes)
    a, b, _, d, e, _ = to_map
    if code == _WEB_MERCATOR:
        # Its unit is a meter at the equator alone: the scale is 1 / cos(latitude) = cosh(y / R) (EPSG guidance 7-2).
        unit /= math.cosh(reference.map_point(size[0] / 2, size[1] / 2)[1] / _EARTH_RADIUS)
    size_m = math.hypot(b, e) * unit, math.hypot(a, d) * unit
    return Ground(georeference=reference, pixel_size_m=size_m, notes=notes)


def _text_of_system(keys: Mapping[int, Any]) -> str:
    """Return the WKT that ESRI's software writes into a citation; "" without one."""
    for key in _CITATIONS:
        found = re.search(r"ESRI PE String = (\w+CS\[.*\])", str(keys.get(key, "")))
        if found:
            return found[1]
    return ""


def _unit_meters(keys: Mapping[int, Any], code: int) -> float | None:
    """Return the length of the unit of a projected system; None if it is unknown."""
    unit = keys.get(_LINEAR_UNITS)
    # A file that names a system by its code need not repeat the unit (GeoTIFF 1.1, 7.3).
    if unit is None and 0 < code < _USER_DEFINED:
        # PROJ does not know the code, or pyproj is not installed.
        with contextlib.suppress(UsageError):
            return axis_unit_meters(f"EPSG:{code}")
    if unit == _USER_DEFINED:
        size = keys.get(_LINEAR_UNIT_SIZE)
        return float(size) if isinstance(size, float) and size > 0 else None
    return _UNIT_METERS.get(unit) if isinstance(unit, int) else None


def _slide_pixel_size(file: TiffFile, page: TiffPage) -> tuple[float, float] | None:
    """Return the (height, width) of a pixel in meters by the metadata of microscopes and slide scanners."""
    if file.is_ome:
        return _ome_pixel_size(file.ome_metadata or "")
    description = page.description
    found = None
    if file.is_svs:
        found = re.search(r"\|\s*MPP\s*=\s*([0-9.eE+-]+)", description)
    elif file.is_qpi:
        found = re.search(r"<PixelSizeMicrons>\s*([0-9.eE+-]+)", description)
    if found:
        size = _positive(found[1])
        return None if size is None else (size * 1e-6, size * 1e-6)
    return _resolution_pixel_size(page) if file.is_ndpi or file.is_scn else None


def _resolution_pixel_size(page: TiffPage) -> tuple[float, float] | None:
    """Return the pixel size by the resolution in pixels per centimeter."""
    if page.tags.valueof(296) != 3:
        return None
    sizes = []
    for tag in (283, 282):
        numerator, denominator = page.tags.valueof(tag, (0, 0))
        if not numerator or not denominator:
            return None
        sizes.append(denominator / numerator / 100)
    return sizes[0], sizes[1]


def _ome_pixel_size(metadata: str) -> tuple[float, float] | None:
    """Return the physical size of a pixel in OME-XML: that of the first image."""
    pixels = re.search(r"<(?:\w+:)?Pixels\b[^>]*>", metadata)
    if pixels is None:
        return None
    sizes = []
    for axis in "YX":
        size = re.search(rf"""\bPhysicalSize{axis}\s*=\s*["']([^"']+)["']""", pixels[0])
        unit = re.search(rf"""\bPhysicalSize{axis}Unit\s*=\s*["']([^"']+)["']""", pixels[0])
        meters = _METERS.get(unit[1] if unit else "µm")
        length = _positive(size[1]) if size else None
        if length is None or meters is None:
            return None
        sizes.append(length * meters)
    return sizes[0], sizes[1]


def _positive(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 < number < math.inf else None
