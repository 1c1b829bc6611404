"""Reader of Datumaro's JSON, which CVAT exports too: annotations/SUBSET.json with images/SUBSET.

The rules are those of Datumaro (github.com/open-edge-platform/datumaro, `plugins/data_formats/datumaro`). Shapes of one
group and one class are parts of one object. A box of a group with outlines is the box of these.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from halofeed.prep.annotations.annotation_tools import DocumentContent, DocumentFormat, FilePicture
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.documents import as_mapping, parse_json_document
from halofeed.prep.annotations.written_boxes import (
    class_of,
    ellipse_of,
    no_box,
    numbers_of,
    polygon_of,
    rectangle_of,
    run_lengths_of,
    turned_box,
    unite_parts,
)
from halofeed.prep.sources.example import Box
from halofeed.system.errors import SourceError

_DEFAULT = "default"
"""Subset of items that belong to none."""
_CORNERS = 4
_OUTLINES = ("polygon", "mask", "ellipse")
_MEDIA = ("image", "media")
_WITHOUT_PLACE = ("label", "caption", "hash_key", "feature_vector")
"""Types of annotations of the complete picture."""
_FLAGS = ("occluded", "truncated", "difficult")

_Object = tuple[list[Mapping[str, Any]], Sequence[str]]
"""Parts of an object as they are written, and the names of all classes."""


def _read(path: str, data: bytes) -> DocumentContent | None:
    document = as_mapping(parse_json_document(data))
    items, categories = document.get("items"), document.get("categories")
    if not isinstance(items, list) or not isinstance(categories, dict):
        return None
    labels = as_mapping(categories.get("label")).get("labels")
    names = [str(as_mapping(one).get("name")) for one in labels] if isinstance(labels, list) else []
    subset = posixpath.splitext(posixpath.basename(path))[0]
    pictures = [_picture(as_mapping(item), place, names, subset) for place, item in enumerate(items)]
    return DocumentContent(pictures=pictures, classes=names)


def _picture(item: Mapping[str, Any], place: int, names: Sequence[str], subset: str) -> FilePicture:
    media = next((as_mapping(item[key]) for key in _MEDIA if key in item), {})
    identity, path, written = str(item.get("id") or ""), str(media.get("path") or ""), item.get("annotations")
    fault = None
    if not isinstance(written, list) or not (identity or path):
        detail = f"item {place}: expected id, image and annotations"
        fault = SourceError("annotation", "entry is no picture with annotations", detail)
    annotations = [as_mapping(one) for one in written] if isinstance(written, list) else []
    of_picture = (_name_of(one, names) for one in annotations if one.get("type") == "label")
    return FilePicture(
        name=path,
        stem=identity,
        folders=(f"../images/{subset}", "../images", subset),
        size=_size_of(media),
        split="" if subset == _DEFAULT else subset,
        objects=[(parts, names) for parts in _objects(annotations)],
        classes=[name for name in of_picture if name is not None],
        fault=fault,
        attributes=as_mapping(item.get("attr")),
    )


def _size_of(media: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the height and width, which Datumaro writes in this order."""
    size = media.get("size")
    return (size[0], size[1]) if isinstance(size, list) and len(size) == 2 else (None, None)


def _objects(annotations: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the parts of each object: shapes of one class and one group, which is a number other than 0."""
    found: dict[Any, list[Mapping[str, Any]]] = {}
    for place, one in enumerate(annotations):
        if one.get("type") not in _WITHOUT_PLACE:
            group = one.get("group") or 0
            key = ("group", group, str(one.get("label_id"))) if group else place
            found.setdefault(key, []).append(one)
    # Boxes of one group are objects that belong together, such as a person and a bag, and no parts of one.
    objects = []
    for parts in found.values():
        outlines = [one for one in parts if one.get("type") in _OUTLINES]
        objects += [parts] if outlines else [[one] for one in parts]
    return objects


def _name_of(one: Mapping[str, Any], names: Sequence[str]) -> str | None:
    number = one.get("label_id")
    if not isinstance(number, int) or isinstance(number, bool):
        return None
    return names[number] if 0 <= number < len(names) else None


def _box_of(entry: _Object, what: str, options: LayoutOptions) -> Box:
    parts, names = entry
    name = _name_of(parts[0], names)
    label = class_of(name, f"{what}: label_id is {parts[0].get('label_id')!r:.20}")
    what = f"{what} {label!r}"
    flags = _flags_of(parts)
    outlines = [one for one in parts if one.get("type") in _OUTLINES]
    masks = [one for one in outlines if one.get("type") == "mask"]
    # Run lengths and polygons have no common form.
    if masks and len(outlines) > 1 and options.masks:
        detail = (
            f"{what} has {len(outlines)} outlines, of which {len(masks)} are masks; merge them in the tool"
        )
        raise SourceError("annotation", "object has several masks", detail)
    return unite_parts(outlines or parts, lambda one: _box_of_part(label, one, what, options, flags), options)


def _flags_of(parts: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    attributes = [as_mapping(one.get("attributes")) for one in parts]
    flags = {name: any(one.get(name) is True for one in attributes) for name in _FLAGS}
    return {**flags, "is_crowd": any(one.get("is_crowd") is True for one in attributes)}


def _box_of_part(
    label: str, part: Mapping[str, Any], what: str, options: LayoutOptions, flags: Mapping[str, bool]
) -> Box:
    kind = part.get("type")
    if kind == "bbox":
        sides = _numbers(part, "bbox", what)
        box = rectangle_of(label, sides, what, options, form="corner-size", **flags)
        # CVAT keeps the turn of a box, in degrees about its center, as an attribute.
        turn = as_mapping(part.get("attributes")).get("rotation") or 0
        center = ((box.xmin + box.xmax) / 2, (box.ymin + box.ymax) / 2)
        return turned_box(box, center, numbers_of([turn], what)[0], what, options) if turn else box
    if kind == "polygon":
        return polygon_of(label, _numbers(part, "points", what), what, options, **flags)
    if kind == "mask":
        return run_lengths_of(label, part.get("rle"), what, options, **flags)
    # Its points are the corners of the box around it.
    if kind == "ellipse" and len(_numbers(part, "points", what)) == _CORNERS:
        left, top, right, bottom = _numbers(part, "points", what)
        around = [(left + right) / 2, (top + bottom) / 2, (right - left) / 2, (bottom - top) / 2, 0]
        return ellipse_of(label, around, what, options, **flags)
    raise no_box(kind, what)


def _numbers(part: Mapping[str, Any], key: str, what: str) -> list[float]:
    values = part.get(key)
    if not isinstance(values, list) or (key == "bbox" and len(values) != _CORNERS):
        raise SourceError("annotation", "object has no box", f"{what}: {key} is {values!r:.60}")
    return numbers_of(values, what)


DATUMARO = DocumentFormat(
    layout="datumaro",
    summary="Datumaro's JSON: annotations/SUBSET.json with images/SUBSET; boxes, polygons, masks, classes",
    extensions=(".json",),
    expected="JSON of Datumaro, as annotations/train.json with images/train: categories, and items with annotations",
    read=_read,
    box_of=_box_of,
    has_classes=True,
    keeps=("occluded", "corners"),
)
