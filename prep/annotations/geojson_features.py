"""Features of a GeoJSON file: their rings, their properties, and the coordinate system that the file names.

The rules are those of RFC 7946, of its predecessor (GeoJSON 2008) for the member `crs`, which GDAL, QGIS and SpaceNet
write, and of QuPath, which writes pixels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.annotations.columns import SPELLINGS, normalize_name
from halofeed.prep.annotations.documents import parse_json_document
from halofeed.prep.annotations.written_boxes import no_box
from halofeed.system.errors import AnnotationsError, SourceError

Ring = NDArray[np.float64]
_CLASS_RANKS = (*SPELLINGS["class"], ("typename",), ("typeid",), ("type",))
"""Spellings of the property with the class, in ranks; xView has type_id."""
_MAX_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One feature.

    Args:
        number: place in its file, from 1.
        properties: its properties; {} for null.
        parts: polygons, each of rings float64 [point, 2] that are not closed, the outer one first.
        fault: (reason, detail) of a feature without a usable area.
    """

    number: int
    properties: Mapping[str, Any]
    parts: tuple[tuple[Ring, ...], ...] = ()
    fault: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class FeatureFile:
    """Features of one file.

    Args:
        path: path of the file.
        crs: name of the coordinate system in the member `crs`; "" where that is null; None without the member.
        features: its features.
    """

    path: str
    crs: str | None
    features: tuple[Feature, ...]

    @property
    def is_of_qupath(self) -> bool:
        """Return whether the properties are those of QuPath, which writes pixels and no coordinate system."""
        return self.crs is None and any("objectType" in one.properties for one in self.features)

    @property
    def extent(self) -> tuple[float, float, float, float] | None:
        """Return xmin, ymin, xmax, ymax of all features; None without a usable one."""
        rings = [part[0] for one in self.features for part in one.parts]
        if not rings:
            return None
        points = np.concatenate(rings)
        xmin, ymin = points.min(axis=0).tolist()
        xmax, ymax = points.max(axis=0).tolist()
        return xmin, ymin, xmax, ymax


def read_features(path: str, data: bytes) -> FeatureFile | None:
    """Return the features of a file; None if it is not GeoJSON.

    Raises:
        SourceError: the file is damaged.
    """
    document = parse_json_document(data)
    # QuPath's older scripts write a list of features, or one feature alone.
    listed: Any = document if isinstance(document, list) else [document]
    crs = None
    if isinstance(document, dict) and document.get("type") == "FeatureCollection":
        listed = document.get("features")
        crs = _named_crs(document)
    if not isinstance(listed, list):
        raise SourceError("annotation", "features is no list", f"{listed!r:.80}")
    is_geojson = isinstance(document, dict) and document.get("type") == "FeatureCollection"
    if not is_geojson and not any(isinstance(one, dict) and one.get("type") == "Feature" for one in listed):
        return None
    features = tuple(_feature(number, one) for number, one in enumerate(listed, start=1))
    return FeatureFile(path=path, crs=crs, features=features)


def _named_crs(document: Mapping[str, Any]) -> str | None:
    """Return the name in the member `crs` (GeoJSON 2008, section 3); older files have a code of EPSG alone."""
    if "crs" not in document:
        return None
    member = document["crs"]
    if member is None:
        return ""
    properties = member.get("properties") if isinstance(member, dict) else None
    if isinstance(properties, dict) and isinstance(properties.get("name"), str):
        return str(properties["name"])
    if isinstance(properties, dict) and isinstance(properties.get("code"), int | str):
        return f"EPSG:{properties['code']}"
    raise SourceError("annotation", "crs names no coordinate system", f"{member!r:.80}")


def _feature(number: int, written: Any) -> Feature:
    what = f"feature {number}"
    properties = written.get("properties") if isinstance(written, dict) else None
    properties = properties if isinstance(properties, dict) else {}
    try:
        parts = _parts_of(written.get("geometry") if isinstance(written, dict) else written, what)
    except SourceError as error:
        return Feature(number=number, properties=properties, fault=(error.reason, error.detail))
    return Feature(number=number, properties=properties, parts=parts)


def _parts_of(geometry: Any, what: str) -> tuple[tuple[Ring, ...], ...]:
    # RFC 7946, section 3.2: the geometry of an unlocated feature is null.
    if geometry is None:
        raise SourceError("annotation", "feature has no geometry", what)
    kind = geometry.get("type") if isinstance(geometry, dict) else geometry
    if kind not in ("Polygon", "MultiPolygon"):
        raise no_box(kind, what)
    written = geometry.get("coordinates")
    polygons = [written] if kind == "Polygon" else written
    if not isinstance(polygons, list) or not polygons:
        raise SourceError("annotation", "polygon has no rings", f"{what}: {written!r:.60}")
    return tuple(_rings_of(polygon, what) for polygon in polygons)


def _rings_of(polygon: Any, what: str) -> tuple[Ring, ...]:
    if not isinstance(polygon, list) or not polygon:
        raise SourceError("annotation", "polygon has no rings", f"{what}: {polygon!r:.60}")
    rings = []
    for written in polygon:
        try:
            # A third number is a height (RFC 7946, section 3.1.1).
            ring = np.array([(float(point[0]), float(point[1])) for point in written], np.float64)
        except (TypeError, ValueError, IndexError, KeyError, OverflowError) as error:
            raise SourceError(
                "annotation", "ring is no list of positions", f"{what}: {written!r:.60}"
            ) from error
        if not np.isfinite(ring).all():
            raise SourceError("annotation", "number is not finite", what)
        if len(ring) > 1 and (ring[0] == ring[-1]).all():
            ring = ring[:-1]
        if len(ring) < 3:
            raise SourceError("annotation", "polygon has fewer than 3 points", f"{what}: {len(ring)}")
        rings.append(ring)
    return tuple(rings)


# Classes and names of pictures ----------------------------------------------------------------------------


def class_property(files: Sequence[FeatureFile], named: str | None) -> str | None:
    """Return the property that holds the classes; None for QuPath's `classification`.

    Args:
        files: all files of a source.
        named: property that the user names, if any.

    Raises:
        AnnotationsError: no property, or several, may be the class.
    """
    where = files[0].path
    found = Counter(name for one in _features(files) for name in one.properties)
    if named is not None:
        if named not in found:
            raise AnnotationsError(
                f"{where}: --class-property {named}: no feature has it; it is one of {_shown(found)}"
            )
        return named
    if any("classification" in one.properties for one in _features(files)):
        return None
    for rank in _CLASS_RANKS:
        names = [name for name in found if normalize_name(name) in rank]
        if len(names) == 1:
            return names[0]
        if names:
            raise AnnotationsError(
                f"{where}: {' and '.join(names)} may be the class; choose with --class-property {names[0]}"
            )
    repeated = [name for name in found if _repeats(files, name)]
    if len(repeated) == 1:
        return repeated[0]
    may_be = f"any of {_shown(repeated)} may be" if repeated else f"none of {_shown(found)} is"
    raise AnnotationsError(
        f"{where}: {may_be} the class of the features; name it with --class-property, or make all features objects of "
        "one class with --one-class NAME"
    )


def _features(files: Sequence[FeatureFile]) -> Iterator[Feature]:
    return (one for file in files for one in file.features)


def _repeats(files: Sequence[FeatureFile], name: str) -> bool:
    """Return whether a property has texts that repeat, as classes do and names and numbers of objects do not."""
    values = [one.properties.get(name) for one in _features(files)]
    texts = [value for value in values if isinstance(value, str) and value.strip()]
    # Half: with two features of each class on average, an accident is unlikely.
    return len(texts) == len(values) and len(set(texts)) >= 2 and 2 * len(set(texts)) <= len(texts)


def _shown(names: Any) -> str:
    listed = list(names)
    return ", ".join(listed[:_MAX_SHOWN]) + ", ..." * (len(listed) > _MAX_SHOWN) if listed else "no property"


def class_of_feature(feature: Feature, name: str | None) -> str:
    """Return the class of a feature by `class_property`.

    Raises:
        SourceError: it has none.

    >>> class_of_feature(Feature(number=1, properties={"classification": {"name": "Tumor"}}), None)
    'Tumor'
    >>> class_of_feature(Feature(number=1, properties={"type_id": 18.0}), "type_id")
    '18'
    """
    value = feature.properties.get(name or "classification")
    if name is None and isinstance(value, dict):
        value = value.get("name")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise SourceError("annotation", "box has no class", f"feature {feature.number}")
    return value.strip()
