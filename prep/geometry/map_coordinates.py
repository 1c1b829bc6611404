"""Coordinates of georeferenced pictures: pixels of the source file, the picture's own map, and longitudes.

Points are float64 [point, 2] in the order x, y: column and row of a picture in continuous pixels, easting and northing,
or longitude and latitude. A coordinate system is written as in `Georeference.crs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.region.region_reader import Georeference
from halofeed.system.errors import UsageError, require_extra

Points: TypeAlias = NDArray[np.float64]
MapPoints: TypeAlias = Callable[[Points], Points]
"""Function from points to as many points."""
WGS84 = "OGC:CRS84"
"""Longitude and latitude in degrees on WGS84, the only system of RFC 7946 (section 4)."""
CHORD_PIXELS = 0.005
"""Pixels by which the chord between two transformed points may miss the transformed line.

Measured from longitude and latitude to UTM at 48 degrees north: 0.25 mm for a line of 100 m, 25 mm for 1 km, 2.5 m for
10 km, so that only long lines get points."""
_MAX_HALVINGS = 12
"""Halvings of a line: each quarters the error, so that 12 suffice from 80,000 pixels."""


def pixels_to_map(georeference: Georeference, points: Points) -> Points:
    """Return the positions of pixels on the picture's own map.

    >>> place = Georeference(to_map=(10.0, 0.0, 500000.0, 0.0, -10.0, 5200000.0), crs="EPSG:32633")
    >>> pixels_to_map(place, np.array([[1.0, 2.0]])).tolist()
    [[500010.0, 5199980.0]]
    """
    a, b, c, d, e, f = georeference.to_map
    columns, rows = points[:, 0], points[:, 1]
    return np.stack([a * columns + b * rows + c, d * columns + e * rows + f], axis=1)


def map_to_pixels(georeference: Georeference, points: Points) -> Points:
    """Return the continuous pixel positions (column, row) of points on the picture's own map.

    Raises:
        UsageError: the transform maps all pixels to one line.

    >>> place = Georeference(to_map=(10.0, 0.0, 500000.0, 0.0, -10.0, 5200000.0), crs="EPSG:32633")
    >>> map_to_pixels(place, np.array([[500010.0, 5199980.0]])).tolist()
    [[1.0, 2.0]]
    """
    a, b, c, d, e, f = georeference.to_map
    determinant = a * e - b * d
    if not determinant or not math.isfinite(determinant):
        raise UsageError(f"geotransform {georeference.to_map}: expected pixels with an area on the map")
    # Eastings have 7 digits before the point: only differences from the corner keep the digits of a pixel.
    x, y = points[:, 0] - c, points[:, 1] - f
    # Points without a position on this map stay infinite or become NaN.
    with np.errstate(invalid="ignore"):
        return np.stack([(e * x - b * y) / determinant, (a * y - d * x) / determinant], axis=1)


def pixel_length(georeference: Georeference) -> float:
    """Return the shorter side of a pixel in units of the picture's map.

    >>> pixel_length(Georeference(to_map=(0.5, 0.0, 0.0, 0.0, -0.25, 0.0), crs="EPSG:32633"))
    0.25
    """
    a, b, _, d, e, _ = georeference.to_map
    return min(math.hypot(a, d), math.hypot(b, e))


def crs_name(crs: str) -> str:
    """Return the code and the name of a coordinate system for messages; "an unknown system" for "".

    >>> crs_name("EPSG:32633"), crs_name("")
    ('EPSG:32633 (WGS 84 / UTM zone 33N)', 'an unknown system')
    """
    if not crs:
        return "an unknown system"
    found = parsed_crs(crs)
    code = authority_code(crs)
    return f"{code} ({found.name})" if code else str(found.name)


def authority_code(crs: str) -> str | None:
    """Return the code of a coordinate system, such as "EPSG:32633"; None if it has none.

    >>> authority_code("urn:ogc:def:crs:EPSG::32633")
    'EPSG:32633'
    """
    # PROJ's default of 70 accepts systems of another name; at 100 a system is the one of the code.
    found = parsed_crs(crs).to_authority(min_confidence=100)
    return None if found is None else ":".join(found)


@lru_cache(maxsize=256)
def parsed_crs(crs: str) -> Any:
    """Return the `pyproj.CRS` of a code, a URN or WKT.

    Raises:
        UsageError: PROJ does not know it.
        MissingExtraError: pyproj is not installed.
    """
    with require_extra("large", "pyproj"):
        import pyproj
    try:
        return pyproj.CRS.from_user_input(crs)
    except pyproj.exceptions.CRSError as error:
        raise UsageError(
            f"coordinate system {crs!r:.80} is not known; write a code, such as EPSG:32633"
        ) from error


def is_geographic(crs: str) -> bool:
    """Return whether the coordinates of a system are degrees.

    >>> is_geographic(WGS84), is_geographic("EPSG:32633")
    (True, False)
    """
    return bool(parsed_crs(crs).is_geographic)


def axis_unit_meters(crs: str) -> float | None:
    """Return the length of the unit of a projected system's first axis in meters; None for other systems.

    Raises:
        UsageError, MissingExtraError: as `parsed_crs`.

    >>> axis_unit_meters("EPSG:32633"), round(axis_unit_meters("EPSG:2263"), 6), axis_unit_meters(WGS84)
    (1.0, 0.304801, None)
    """
    found = parsed_crs(crs)
    return float(found.axis_info[0].unit_conversion_factor) if found.is_projected else None


@lru_cache(maxsize=256)
def transform_between(source: str, target: str) -> MapPoints:
    """Return the function from points in one system to points in another; not finite where there is no such point.

    The order is always x, y, whatever the authority defines: EPSG:4326 is latitude, longitude in EPSG's register, and
    GeoJSON and GeoTIFF have longitude first (RFC 7946, section 3.1.1; OGC GeoTIFF 1.1, 7.5).

    >>> to_map = transform_between(WGS84, "EPSG:32633")
    >>> to_map(np.array([[15.0, 0.0]])).round(6).tolist()
    [[500000.0, 0.0]]
    """
    one, other = parsed_crs(source), parsed_crs(target)
    # Equal systems of two spellings need no arithmetic, so that coordinates stay as they are, to the last bit.
    if one.equals(other, ignore_axis_order=True):
        return lambda points: points
    import pyproj

    transformer = pyproj.Transformer.from_crs(one, other, always_xy=True)

    def transform(points: Points) -> Points:
        x, y = transformer.transform(points[:, 0], points[:, 1])
        return np.stack([x, y], axis=1)

    return transform


def transform_lines(
    points: Points, starts: Sequence[int], transform: MapPoints, tolerance: float
) -> tuple[Points, NDArray[np.int64]]:
    """Transform lines, with further points where a straight line becomes a curve.

    Args:
        points: float64 [point, 2], the points of all lines, one line after the other.
        starts: place of the first point of each line.
        transform: see `transform_between`.
        tolerance: distance, after the transform, by which the result may miss the transformed line.

    Returns:
        The transformed points, and the place of the first point of each line.

    >>> bent = lambda points: np.stack([points[:, 0], points[:, 0] ** 2], axis=1)
    >>> transform_lines(np.array([[0.0, 0.0], [1.0, 0.0]]), [0], bent, 0.1)[0].tolist()
    [[0.0, 0.0], [0.5, 0.25], [1.0, 1.0]]
    """
    places = np.asarray(starts, np.int64)
    # 1 at the first point of each line, so that no line is joined to the next one.
    begins = np.zeros(len(points), np.bool_)
    begins[places] = True
    moved = transform(points)
    open_ends = np.flatnonzero(~begins[1:]) if len(points) else np.zeros(0, np.int64)
    for _ in range(_MAX_HALVINGS):
        middles = (points[open_ends] + points[open_ends + 1]) / 2
        targets = transform(middles) if len(middles) else middles
        with np.errstate(invalid="ignore"):
            gaps = np.hypot(*(targets - (moved[open_ends] + moved[open_ends + 1]) / 2).T)
        bent = np.flatnonzero(gaps > tolerance)  # a comparison with a NaN is False
        if not len(bent):
            break
        before = open_ends[bent] + 1
        points = np.insert(points, before, middles[bent], axis=0)
        moved = np.insert(moved, before, targets[bent], axis=0)
        begins = np.insert(begins, before, False)
        # Only the halves of a bent line can be bent.
        first = open_ends[bent] + np.arange(len(bent))
        open_ends = np.stack([first, first + 1], axis=1).reshape(-1)
    return moved, np.flatnonzero(begins)
