"""Predictions of one picture as GeoJSON: boxes, oriented boxes, outlines of masks and classes, on the map or in pixels.

A georeferenced picture gives longitudes and latitudes, which is all that RFC 7946 allows (section 4), or coordinates in
the picture's own system, named by the older member `crs` (GeoJSON 2008, section 3), which GDAL and QGIS read.
Any other picture gives pixels in the form of QuPath, whose y axis points down too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.formats.region.region_reader import Georeference
from halofeed.prep.geometry.map_coordinates import (
    CHORD_PIXELS,
    WGS84,
    MapPoints,
    Points,
    authority_code,
    crs_name,
    pixels_to_map,
    transform_between,
    transform_lines,
)
from halofeed.storage.atomic_files import create_replacing
from halofeed.storage.paths import StrPath, open_path
from halofeed.system.errors import UsageError
from halofeed.trainer.label_outlines import outlines_of

COORDINATES = ("wgs84", "source")
"""Coordinates of a georeferenced picture: longitude and latitude, or the picture's own system."""
_ROUNDED_PIXELS = 0.001
"""Pixels by which written digits may be off, a tenth of what a round trip may lose."""
_SCORE_DECIMALS = 6
_BATCH_RINGS = 4096
"""Rings that are transformed at a time: pyproj takes 30 µs for a call and 0.26 µs for a point."""
Rings: TypeAlias = "Sequence[Points]"
"""Rings of a polygon in pixels, not closed, the outer one first."""
Shape: TypeAlias = "tuple[Sequence[Rings], Mapping[str, Any]]"
"""Polygons of a feature, and its properties."""
_Written: TypeAlias = "list[list[list[float]]]"
"""Rings of a polygon as GeoJSON has them."""


@dataclass(frozen=True, kw_only=True)
class PredictedObjects:
    """Predicted objects of one picture.

    Args:
        boxes: [object, 4], ymin, xmin, ymax, xmax in continuous pixels of the source file.
        classes: class name of each object.
        scores: [object], 0 to 1.
        corners: [object, 8], y1, x1, y2, x2, ... of oriented boxes in the same pixels; None writes the upright boxes.
        masks: first row, first column and pixels [row, column] of each object's mask; None writes the boxes.
    """

    boxes: NDArray[np.floating]
    classes: Sequence[str]
    scores: NDArray[np.floating]
    corners: NDArray[np.floating] | None = None
    masks: Sequence[tuple[int, int, NDArray[np.bool_]]] | None = None

    def shapes(self) -> Iterator[Shape]:
        """Yield the outline and the properties of each object; boxes without an area are left out."""
        for number, (box, name, score) in enumerate(zip(self.boxes, self.classes, self.scores, strict=True)):
            ymin, xmin, ymax, xmax = map(float, box)
            # Boxes in the padding of a record have no area in the source.
            if not (ymin < ymax and xmin < xmax):
                continue
            ring = np.array([[xmin, ymin], [xmin, ymax], [xmax, ymax], [xmax, ymin]])
            if self.corners is not None:
                ring = np.asarray(self.corners[number], np.float64).reshape(4, 2)[:, ::-1]
            polygons: list[Rings] = [[ring]]
            if self.masks is not None:
                top, left, pixels = self.masks[number]
                corner = np.array([left, top])
                regions = outlines_of(pixels.view(np.uint8), 1)
                # A mask without pixels keeps its box, so that no object is lost.
                polygons = [[ring + corner for ring in one.rings] for one in regions] or polygons
            yield polygons, {"class": name, "score": round(float(score), _SCORE_DECIMALS)}


@dataclass(frozen=True, kw_only=True)
class PredictedLabels:
    """Predicted class of each pixel of one picture.

    Args:
        labels: integers [height, width] on the grid of the source file.
        names: name of each value to write; values without a name, such as the background, are left out.
    """

    labels: NDArray[np.integer]
    names: Mapping[int, str]

    def shapes(self) -> Iterator[Shape]:
        """Yield the outline and the properties of each region of a class, see `outlines_of`."""
        for value, name in self.names.items():
            for region in outlines_of(self.labels, value):
                yield [region.rings], {"class": name, "pixels": region.pixels}


def write_geojson(
    path: StrPath,
    predicted: PredictedObjects | PredictedLabels,
    georeference: Georeference | None = None,
    *,
    source: str = "",
    coordinates: str = "wgs84",
) -> int:
    """Write the predictions of one picture as a GeoJSON file; return the number of features.

    Each feature has the properties `class` and `score` (objects) or `pixels` (regions of labels). Without a
    georeference they are QuPath's: `objectType`, `classification` and `measurements`. Outer rings are counterclockwise
    (RFC 7946, section 3.1.6). Longitudes of a picture across the antimeridian continue beyond 180 degrees: RFC 7946
    recommends to cut such polygons (section 3.1.9), which would make two objects of one.

    Args:
        path: file to write; an existing one is replaced.
        predicted: objects, or labels.
        georeference: position of the source file's pixels on a map; None writes pixels. Without a coordinate system,
            map coordinates are written with `"crs": null`.
        source: path of the picture, for the property `image`; "" leaves it out.
        coordinates: one of COORDINATES.

    Raises:
        UsageError: `coordinates` is not known; or is "source", and the system of the picture has no code.
        MissingExtraError: pyproj is not installed, and the picture is georeferenced.
    """
    head, to_written = _system(georeference, coordinates)
    is_wgs84 = georeference is not None and not head
    common = {"image": source} if source else {}
    as_properties = _qupath_properties if georeference is None else dict
    count = 0
    with open_path(create_replacing(path), "w", encoding="utf-8") as file:
        file.write(f'{{"type": "FeatureCollection",{head} "features": [')
        for polygons, properties in _written_shapes(predicted.shapes(), to_written, is_wgs84=is_wgs84):
            geometry = {"type": "Polygon", "coordinates": polygons[0]}
            # A mask may have several regions, and is one object.
            if len(polygons) > 1:
                geometry = {"type": "MultiPolygon", "coordinates": polygons}
            feature = {
                "type": "Feature",
                "properties": {**as_properties(properties), **common},
                "geometry": geometry,
            }
            file.write(f"{',' * (count > 0)}\n{json.dumps(feature)}")
            count += 1
        file.write("\n]}\n")
    return count


def _system(georeference: Georeference | None, coordinates: str) -> tuple[str, MapPoints]:
    """Return the member `crs` of a file, or "", and the function from pixels to its coordinates."""
    if coordinates not in COORDINATES:
        raise UsageError(f"coordinates {coordinates!r}: expected {' or '.join(COORDINATES)}")
    if georeference is None:
        return "", np.asarray
    to_map = partial(pixels_to_map, georeference)
    # GeoJSON 2008, section 3: null says that no system can be assumed.
    if not georeference.crs:
        return ' "crs": null,', to_map
    if coordinates == "source":
        code = authority_code(georeference.crs)
        if code is None:
            raise UsageError(
                f"coordinates 'source': {crs_name(georeference.crs)} has no code, and GeoJSON names systems by their "
                "code; take 'wgs84'"
            )
        authority, _, number = code.partition(":")
        # The URN has the version of the register between two colons, which GDAL leaves empty.
        member = {"type": "name", "properties": {"name": f"urn:ogc:def:crs:{authority}::{number}"}}
        return f' "crs": {json.dumps(member)},', to_map
    transform = transform_between(georeference.crs, WGS84)
    return "", lambda points: transform(to_map(points))


def _qupath_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties in the form in which QuPath reads and writes objects.

    Source: QuPath's documentation, "Exporting annotations", section GeoJSON; `QuPathTypeAdapters.java`.
    """
    measurements = {name: value for name, value in properties.items() if name != "class"}
    return {
        "objectType": "annotation",
        "classification": {"name": properties["class"]},
        "measurements": measurements,
    }


def _written_shapes(
    shapes: Iterable[Shape], to_written: MapPoints, *, is_wgs84: bool
) -> Iterator[tuple[list[_Written], Mapping[str, Any]]]:
    """Yield the polygons of each shape as GeoJSON has them, and its properties."""
    batch: list[Shape] = []
    rings = 0
    for shape in shapes:
        batch.append(shape)
        rings += sum(map(len, shape[0]))
        if rings >= _BATCH_RINGS:
            yield from _written_batch(batch, to_written, is_wgs84=is_wgs84)
            batch, rings = [], 0
    if batch:
        yield from _written_batch(batch, to_written, is_wgs84=is_wgs84)


def _written_batch(
    batch: Sequence[Shape], to_written: MapPoints, *, is_wgs84: bool
) -> Iterator[tuple[list[_Written], Mapping[str, Any]]]:
    closed = [
        np.concatenate([ring, ring[:1]]) for polygons, _ in batch for rings in polygons for ring in rings
    ]
    starts = np.cumsum([0, *map(len, closed)])[:-1].tolist()
    points = np.concatenate(closed)
    length = _written_length_of_pixel(points[0], to_written)
    written, begins = transform_lines(points, starts, to_written, CHORD_PIXELS * length)
    if not np.isfinite(written).all():
        lost = points[0].tolist()
        raise UsageError(
            f"pixels near {lost} have no longitude and latitude; correct the georeference, or take coordinates='source'"
        )
    if is_wgs84:
        written = _continued(written)
    decimals = math.ceil(-math.log10(_ROUNDED_PIXELS * length))
    lines = iter(np.split(written.round(decimals), begins[1:]))
    for polygons, properties in batch:
        found = [
            [_oriented(next(lines), outer=not place) for place in range(len(rings))] for rings in polygons
        ]
        yield found, properties


def _written_length_of_pixel(point: Points, to_written: MapPoints) -> float:
    """Return the shorter side of the pixel at a point, in written units."""
    column, row = point
    corner, right, below = to_written(np.array([[column, row], [column + 1, row], [column, row + 1]]))
    return float(min(np.hypot(*(right - corner)), np.hypot(*(below - corner))))


def _continued(degrees: Points) -> Points:
    """Return longitudes that do not jump by 360 degrees, counted from the first point."""
    x = degrees[:, 0]
    turns = np.round((x - x[0]) / 360) * 360
    return degrees - np.stack([turns, np.zeros_like(turns)], axis=1) if turns.any() else degrees


def _oriented(ring: Points, *, outer: bool) -> list[list[float]]:
    """Return a closed ring as GeoJSON has it: the outer one counterclockwise, a hole clockwise."""
    x, y = (ring - ring[0]).T
    area = float((x[:-1] * y[1:] - x[1:] * y[:-1]).sum())
    points: list[list[float]] = (ring if (area > 0) == outer else ring[::-1]).tolist()
    return points
