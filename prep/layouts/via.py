"""Reader of the VGG Image Annotator, version 1 and 2: projects and exports in JSON, and exports in CSV.

The rules are those of VIA (gitlab.com/vgg/via, `via-2.x.y/src/via.js`). Circles and ellipses have the box around them,
as in VIA's export to COCO. Points and polylines have none. The class of a region is its only attribute, or the one with
a name such as class or label. Regions without any attribute are of one class, object.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any

from halofeed.errors import SourceError
from halofeed.prep.annotations import shapes
from halofeed.prep.annotations.columns import SPELLINGS, normalize_name
from halofeed.prep.annotations.contract import LayoutOptions, split_in_file_name
from halofeed.prep.annotations.documents import DocumentFormat, FilePicture, parse_json_document
from halofeed.prep.sources.example import Box

_CLASS_NAMES = frozenset((*(name for rank in SPELLINGS["class"] for name in rank), "name", "type", "object"))
_SIDES = {
    "rect": ("x", "y", "width", "height"),
    "circle": ("cx", "cy", "r", "r"),
    "ellipse": ("cx", "cy", "rx", "ry", "theta"),
}
_ONE_CLASS = "all regions were taken for the class object, as none of their file has an attribute"
_DEFAULTS = {"theta": 0}  # version 1 does not turn ellipses


def _read(path: str, data: bytes) -> Iterator[FilePicture] | None:
    entries = _entries_of_csv(data) if path.lower().endswith(".csv") else _entries_of_json(data)
    if not entries:
        return None
    attribute = _class_attribute(region for _, regions in entries for region in regions or ())
    split = split_in_file_name(path) or ""
    return (
        FilePicture(
            name=name,
            split=split,
            objects=[(region, attribute) for region in regions or ()],
            notes=(_ONE_CLASS,) if attribute is None and regions else (),
            fault=SourceError("annotation", "entry has no regions", "") if regions is None else None,
        )
        for name, regions in entries
    )


def _entries_of_json(data: bytes) -> list[tuple[str, list[Any] | None]]:
    """Return the file name and the regions of each picture; None for the regions of a damaged entry."""
    document = parse_json_document(data)
    document = document.get("_via_img_metadata", document) if isinstance(document, dict) else {}
    listed = [one for one in document.values() if isinstance(one, dict)] if isinstance(document, dict) else []
    if not any({"filename", "regions"} <= one.keys() for one in listed):
        return []
    entries = []
    for entry in listed:
        regions = entry.get("regions")
        regions = list(regions.values()) if isinstance(regions, dict) else regions  # version 1 numbers them
        entries.append((str(entry.get("filename", "")), regions if isinstance(regions, list) else None))
    return entries


def _entries_of_csv(data: bytes) -> list[tuple[str, list[Any] | None]]:
    """Return the same of a CSV export, which has a row for each region, or one for a picture without any."""
    entries: dict[str, list[Any] | None] = {}
    try:
        rows = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        name = next((name for name in rows.fieldnames or () if name.lstrip("#") == "filename"), None)
        if name is None or not {"region_shape_attributes", "region_attributes"} <= {*(rows.fieldnames or ())}:
            return []
        for row in rows:
            shape, attributes = (
                parse_json_document((row[column] or "{}").encode())
                for column in ("region_shape_attributes", "region_attributes")
            )
            regions = entries.setdefault(row[name] or "", [])
            if shape and regions is not None:
                regions.append({"shape_attributes": shape, "region_attributes": attributes})
    except (csv.Error, UnicodeError) as error:
        raise SourceError("annotation", "malformed CSV", str(error)) from error
    return list(entries.items())


def _class_attribute(regions: Iterable[Any]) -> str | None:
    """Return the attribute of a file's regions that holds the class; None if no region has any attribute.

    Raises:
        SourceError: several attributes may hold the class.
    """
    found: dict[str, None] = {}
    for region in regions:
        attributes = region.get("region_attributes") if isinstance(region, dict) else None
        found |= dict.fromkeys(attributes if isinstance(attributes, dict) else ())
    names = (
        [name for name in found if normalize_name(name) in _CLASS_NAMES] if len(found) > 1 else list(found)
    )
    if len(names) > 1 or (found and not names):
        detail = f"regions have the attributes {', '.join(found)}; rename the one of the class to class"
        raise SourceError("annotation", "class of regions is ambiguous", detail)
    return names[0] if names else None


def _box_of(written: tuple[Any, str | None], what: str, options: LayoutOptions) -> Box:
    region, attribute = written
    shape, attributes = (
        region.get(part) if isinstance(region, dict) else None
        for part in ("shape_attributes", "region_attributes")
    )
    if not isinstance(shape, dict) or not isinstance(attributes, dict):
        raise SourceError("annotation", "region has no shape", f"{what}: {region!r:.80}")
    value = "object" if attribute is None else attributes.get(attribute)
    if isinstance(value, dict):  # checkboxes
        marked = [name for name, is_marked in value.items() if is_marked]
        value = marked[0] if len(marked) == 1 else None
    label = shapes.class_of(value, f"{what}: {attribute} is {value!r:.80}")
    kind = str(shape.get("name"))
    if kind == "polygon":
        x, y = (shape.get(f"all_points_{axis}") for axis in "xy")
        if not isinstance(x, list) or not isinstance(y, list) or len(x) != len(y):
            raise SourceError("annotation", "points are no two lists", f"{what}: {shape!r:.80}")
        points = shapes.points_of([list(point) for point in zip(x, y, strict=True)], what)
        return shapes.polygon_of(label, points, what, options)
    if kind not in _SIDES:
        raise shapes.no_box(kind, f"{what} {label!r}")
    sides = shapes.numbers_of((shape.get(side, _DEFAULTS.get(side)) for side in _SIDES[kind]), what)
    if kind == "rect":
        return shapes.rectangle_of(label, sides, what, options, form="corner-size")
    return shapes.ellipse_of(label, [*sides, 0][:5], what, options)


VIA = DocumentFormat(
    layout="via",
    summary="VGG Image Annotator 1 and 2: a project or an export in JSON or CSV",
    extensions=(".json", ".csv"),
    expected="a JSON or CSV file of the VGG Image Annotator, version 1 or 2, with filename and regions",
    read=_read,
    box_of=_box_of,
)
