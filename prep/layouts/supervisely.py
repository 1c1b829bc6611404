"""Reader of Supervisely's projects: meta.json, DATASET/ann/NAME.json and DATASET/img/NAME.

The rules are those of Supervisely's SDK (github.com/supervisely/supervisely, `geometry/`) and of its page on the
coordinate system: whole numbers are pixels, so that a rectangle includes its last row and column, and points are in
the middle of their pixels. Numbers with fractions are positions. Points, lines, graphs and cuboids have no box.
"""

from __future__ import annotations

import base64
import posixpath
import zlib
from typing import Any

from halofeed.errors import SourceError
from halofeed.prep.annotations import shapes
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.documents import DocumentFormat, FilePicture, parse_json_document
from halofeed.prep.sources.example import Box
from halofeed.prep.sources.file_names import is_image_name

_HEAD_OF_PNG = 33


def _read(path: str, data: bytes) -> list[FilePicture] | None:
    document = parse_json_document(data)
    objects, size = (document.get(key) if isinstance(document, dict) else None for key in ("objects", "size"))
    if not isinstance(objects, list) or not isinstance(size, dict):
        return None
    above, mark, below = f"/{posixpath.splitext(path)[0]}".rpartition("/ann/")
    image = f"{above}/img/{below}".lstrip("/") if mark else posixpath.splitext(path)[0]
    is_named = is_image_name(image)
    is_whole = not any(_has_fractions(one.get("points")) for one in objects if isinstance(one, dict))
    picture = FilePicture(
        name=image if is_named else "",
        stem=posixpath.splitext(image)[0] if is_named else image,
        size=(size.get("height"), size.get("width")),
        objects=[(one, is_whole) for one in objects],
    )
    return [picture]


def _has_fractions(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_has_fractions, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and not value.is_integer()


def _box_of(written: tuple[Any, bool], what: str, options: LayoutOptions) -> Box:
    entry, is_whole = written
    entry = entry if isinstance(entry, dict) else {}
    label, kind = shapes.class_of(entry.get("classTitle"), what), entry.get("geometryType")
    what = f"{what} {label!r}"
    if kind == "bitmap":
        return _box_of_bitmap(label, entry.get("bitmap"), what, options)
    points = entry.get("points")
    points = points if isinstance(points, dict) else {}
    if kind not in ("rectangle", "polygon"):
        raise shapes.no_box(kind, what)
    corners = shapes.points_of(points.get("exterior"), what)
    if kind == "rectangle":
        x, y = sorted(corners[::2]), sorted(corners[1::2])
        if len(x) != 2:
            raise SourceError("annotation", "shape has no 2 points", f"{what} has {len(x)}")
        return shapes.rectangle_of(label, [x[0], y[0], x[1] + is_whole, y[1] + is_whole], what, options)
    if options.masks and points.get("interior"):
        raise SourceError("annotation", "polygon has a hole", f"{what}: masks of polygons have none")
    return shapes.polygon_of(label, [side + is_whole / 2 for side in corners], what, options)


def _box_of_bitmap(label: str, bitmap: Any, what: str, options: LayoutOptions) -> Box:
    bitmap = bitmap if isinstance(bitmap, dict) else {}
    corner = shapes.points_of([bitmap.get("origin")], what)
    try:
        packed = base64.b64decode(str(bitmap.get("data")), validate=True)
        head = zlib.decompressobj().decompress(packed, _HEAD_OF_PNG)
    except (ValueError, zlib.error) as error:
        raise SourceError("annotation", "bitmap is no PNG", f"{what}: {error}") from error
    return shapes.bitmap_of(label, corner, head, what, options)


SUPERVISELY = DocumentFormat(
    layout="supervisely",
    summary="Supervisely: meta.json, DATASET/ann/a.jpg.json with DATASET/img/a.jpg",
    extensions=(".json",),
    expected="a project of Supervisely: DATASET/ann/a.jpg.json with size and objects, and DATASET/img/a.jpg",
    read=_read,
    box_of=_box_of,
    of_one_picture=True,
)
