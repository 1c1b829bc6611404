"""Reader of labelme: one JSON file for each picture, with rectangles, polygons, circles and bitmaps.

The rules are those of labelme (github.com/wkentaro/labelme, `_label_file.py`, `_utils/shape.py`, and its converters in
`examples/`): pictures are shown with their EXIF orientation applied. Shapes other than rectangles that share a label
and a group_id are parts of one object. Shapes called `__ignore__` are none. Points and lines have no box.
"""

from __future__ import annotations

import base64
import math
import posixpath
from typing import Any

from halofeed.errors import SourceError
from halofeed.prep.annotations import shapes
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.documents import DocumentFormat, FilePicture, parse_json_document
from halofeed.prep.sources.example import Box

_HEAD_OF_PNG = 44
"""Characters of Base64 with the first 33 bytes of a PNG file, which hold its size."""
_GROUPED = "shapes with one label and group_id are one object, as labelme's converters have it"
_IGNORED = "shapes called __ignore__ are left out, as labelme's converters do"


def _read(path: str, data: bytes) -> list[FilePicture] | None:
    document = parse_json_document(data)
    if not isinstance(document, dict) or not {"shapes", "imagePath"} <= document.keys():
        return None
    written, name = document["shapes"], document["imagePath"]
    if not isinstance(written, list) or not isinstance(name, str | None):
        raise SourceError("annotation", "not a labelme annotation", "shapes is no list, or imagePath no text")
    objects: dict[Any, list[Any]] = {}
    ignored = False
    for place, shape in enumerate(written):
        group = shape.get("group_id") if isinstance(shape, dict) else None
        is_part = isinstance(group, int | str) and shape.get("shape_type") != "rectangle"
        objects.setdefault((str(shape.get("label")), group) if is_part else place, []).append(shape)
        ignored |= _is_ignored(shape)
    picture = FilePicture(
        name=name or "",
        stem=posixpath.splitext(path)[0],
        size=(document.get("imageHeight"), document.get("imageWidth")),
        objects=list(objects.values()),
        notes=(_GROUPED,) * (len(objects) < len(written)) + (_IGNORED,) * ignored,
    )
    return [picture]


def _is_ignored(shape: Any) -> bool:
    return isinstance(shape, dict) and shape.get("label") == "__ignore__"


def _box_of(parts: list[Any], what: str, options: LayoutOptions) -> Box | None:
    if _is_ignored(parts[0]):
        return None
    return shapes.unite([_box_of_shape(shape, what, options) for shape in parts])


def _box_of_shape(shape: Any, what: str, options: LayoutOptions) -> Box:
    if not isinstance(shape, dict):
        raise SourceError("annotation", "shape is no object", f"{what} is {shape!r:.80}")
    label = shapes.class_of(shape.get("label"), what)
    kind = shape.get("shape_type") or "polygon"
    if kind not in ("rectangle", "polygon", "oriented_rectangle", "circle", "mask"):
        raise shapes.no_box(kind, f"{what} {label!r}")
    points = shapes.points_of(shape.get("points"), what)
    x, y = points[::2], points[1::2]
    if kind in ("polygon", "oriented_rectangle"):
        return shapes.polygon_of(label, points, what, options)
    # Tools that follow labelme write rectangles with four corners.
    is_upright = len(x) == 4 and len(set(x)) == len(set(y)) == 2
    if len(x) != 2 and not (kind == "rectangle" and is_upright):
        raise SourceError("annotation", "shape has no 2 points", f"{what} {label!r} has {len(x)}")
    if kind == "circle":
        radius = math.dist(points[:2], points[2:])
        return shapes.ellipse_of(label, [*points[:2], radius, radius, 0], what, options)
    if kind == "mask":
        return shapes.bitmap_of(label, [round(x[0]), round(y[0])], _head_of_mask(shape, what), what, options)
    return shapes.rectangle_of(label, [min(x), min(y), max(x), max(y)], what, options)


def _head_of_mask(shape: dict[str, Any], what: str) -> bytes:
    try:
        return base64.b64decode(str(shape.get("mask"))[:_HEAD_OF_PNG], validate=True)
    except ValueError as error:
        raise SourceError("annotation", "bitmap is no PNG", f"{what}: {error}") from error


LABELME = DocumentFormat(
    layout="labelme",
    summary="labelme: a JSON file with shapes for each picture",
    extensions=(".json",),
    expected="a JSON file of labelme for each picture, with imagePath and shapes",
    read=_read,
    box_of=_box_of,
    of_one_picture=True,
    grid="displayed",
)
