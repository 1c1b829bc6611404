"""Reader of Datumaro's JSON, which CVAT exports too: annotations/SUBSET.json with images/SUBSET.

The rules are those of Datumaro (github.com/open-edge-platform/datumaro, `plugins/data_formats/datumaro`). Shapes of one
group and one class are parts of one object. A box of a group with outlines is the box of these. Points of a group are
the keypoints of its object. With --keep keypoints, points without a box are an object whose box is around the labeled
ones, as in Datumaro's export to COCO (`find_solitary_points` of `data_formats/coco/exporter.py`). Videos are in
`videos/SUBSET`.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from halofeed.prep.annotations.annotation_tools import DocumentContent, DocumentFormat, FilePicture, Read
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.documents import as_list, as_mapping, parse_json_document
from halofeed.prep.annotations.frame_rows import fault_of_stride
from halofeed.prep.annotations.named_points import PointNames, named_points, sides_of_points
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
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import SourceError

_DEFAULT = "default"
"""Subset of items that belong to none."""
_CORNERS = 4
_OUTLINES = ("polygon", "mask", "ellipse")
_POINTS = "points"
_MEDIA = ("image", "media")
_WITHOUT_PLACE = ("label", "caption", "hash_key", "feature_vector")
"""Types of annotations of the complete picture."""
_FLAGS = ("occluded", "truncated", "difficult")

_MAX_FRAME = 10**7
_WHOLE_VIDEO = (
    "its annotations are of a complete video; split it into frames in Datumaro (import as video_frames)"
)


@dataclass(frozen=True, kw_only=True)
class _Categories:
    """Names of the classes by their numbers, and of the keypoints of each class."""

    names: Sequence[str]
    points: PointNames


_Object = tuple[list[Mapping[str, Any]], _Categories]
"""Parts of an object as they are written, and the categories of its file."""


def _read_with(files: SourceFiles, options: LayoutOptions) -> Read:
    """Return the function that reads one file of a source."""

    def read(path: str, data: bytes) -> DocumentContent | None:
        document = as_mapping(parse_json_document(data))
        items, categories = document.get("items"), document.get("categories")
        if not isinstance(items, list) or not isinstance(categories, dict):
            return None
        found = _categories(categories, items)
        subset = posixpath.splitext(posixpath.basename(path))[0]
        pictures = [_picture(as_mapping(item), place, found, subset) for place, item in enumerate(items)]
        return DocumentContent(pictures=_with_stride(pictures, options), classes=found.names)

    return read


def _categories(categories: Mapping[str, Any], items: Sequence[Any]) -> _Categories:
    labels = as_list(as_mapping(categories.get("label")).get("labels"))
    names = [str(as_mapping(one).get("name")) for one in labels]
    named = {}
    for one in map(as_mapping, as_list(as_mapping(categories.get("points")).get("items"))):
        label, points = _name_of(one, names), tuple(map(str, as_list(one.get("labels"))))
        # Names that repeat name no single point.
        if label is not None and points and len(set(points)) == len(points):
            named[label] = points
    counts = (
        len(as_list(one.get("points"))) // 2
        for item in items
        for one in map(as_mapping, as_list(as_mapping(item).get("annotations")))
        if one.get("type") == _POINTS and _name_of(one, names) not in named
    )
    return _Categories(names=names, points=PointNames(by_class=named, most=max(counts, default=0)))


def _with_stride(pictures: Sequence[FilePicture], options: LayoutOptions) -> list[FilePicture]:
    """Return the pictures; --frame-stride takes one of several frames of each video."""
    places: Counter[str] = Counter()
    found = []
    for one in pictures:
        if one.frame is None:
            found.append(one)
            continue
        fault = fault_of_stride(places[one.frame[0]], options)
        places[one.frame[0]] += 1
        found.append(replace(one, fault=one.fault or fault))
    return found


def _frame_of(item: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the video and the number from 0 of an item that is a frame; None for another one."""
    frame = as_mapping(item.get("video_frame"))
    video, number = frame.get("video_path"), frame.get("frame_index")
    if not isinstance(video, str) or not isinstance(number, int) or not (video and 0 <= number < _MAX_FRAME):
        return None
    return posixpath.basename(video.replace("\\", "/")), number


def _picture(item: Mapping[str, Any], place: int, categories: _Categories, subset: str) -> FilePicture:
    media = next((as_mapping(item[key]) for key in _MEDIA if key in item), {})
    identity, path, written = str(item.get("id") or ""), str(media.get("path") or ""), item.get("annotations")
    fault, frame, names = None, _frame_of(item), categories.names
    if not isinstance(written, list) or not (identity or path):
        detail = f"item {place}: expected id, image and annotations"
        fault = SourceError("annotation", "entry is no picture with annotations", detail)
    elif "video" in item and not media:
        fault = SourceError("annotation", "entry is a video", f"item {identity}: {_WHOLE_VIDEO}")
    annotations = [as_mapping(one) for one in written] if isinstance(written, list) else []
    of_picture = (_name_of(one, names) for one in annotations if one.get("type") == "label")
    return FilePicture(
        name=path,
        stem=identity,
        folders=(
            *(f"../images/{subset}", "../images", subset),
            *((f"../videos/{subset}", "../videos") if frame else ()),
        ),
        frame=frame,
        # Frames of one video are near copies, so that no two of them are in two splits.
        group=None if frame is None else frame[0],
        size=_size_of(media),
        split="" if subset == _DEFAULT else subset,
        objects=[(parts, categories) for parts in _objects(annotations)],
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
    objects = []
    for parts in found.values():
        points = [one for one in parts if one.get("type") == _POINTS]
        shapes = [one for one in parts if one.get("type") != _POINTS]
        has_outline = any(one.get("type") in _OUTLINES for one in shapes)
        # Boxes of one group are objects that belong together, such as a person and a bag, and no parts of one.
        bodies = [shapes] if has_outline else [[one] for one in shapes]
        # Points belong to the only object of their group.
        if len(points) == len(bodies) == 1:
            bodies, points = [[*bodies[0], *points]], []
        objects += [*bodies, *([one] for one in points)]
    return objects


def _name_of(one: Mapping[str, Any], names: Sequence[str]) -> str | None:
    number = one.get("label_id")
    if not isinstance(number, int) or isinstance(number, bool):
        return None
    return names[number] if 0 <= number < len(names) else None


def _box_of(entry: _Object, what: str, options: LayoutOptions) -> Box:
    parts, categories = entry
    name = _name_of(parts[0], categories.names)
    label = class_of(name, f"{what}: label_id is {parts[0].get('label_id')!r:.20}")
    what = f"{what} {label!r}"
    flags: dict[str, Any] = _flags_of(parts)
    points = next((one for one in parts if one.get("type") == _POINTS), None)
    shapes = [one for one in parts if one is not points]
    if "keypoints" in options.keep:
        flags["keypoints"] = named_points(label, _triples_of(points, what), categories.points, what)
        # Of points alone, as in the docstring.
        if not shapes and (sides := sides_of_points(flags["keypoints"])) is not None:
            return rectangle_of(label, sides, what, options, **flags)
    if not shapes:
        raise no_box(_POINTS, what)
    outlines = [one for one in parts if one.get("type") in _OUTLINES]
    masks = [one for one in outlines if one.get("type") == "mask"]
    # Run lengths and polygons have no common form.
    if masks and len(outlines) > 1 and options.masks:
        detail = (
            f"{what} has {len(outlines)} outlines, of which {len(masks)} are masks; merge them in the tool"
        )
        raise SourceError("annotation", "object has several masks", detail)
    return unite_parts(
        outlines or shapes, lambda one: _box_of_part(label, one, what, options, flags), options
    )


def _flags_of(parts: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    attributes = [as_mapping(one.get("attributes")) for one in parts]
    flags = {name: any(one.get(name) is True for one in attributes) for name in _FLAGS}
    return {**flags, "is_crowd": any(one.get("is_crowd") is True for one in attributes)}


def _triples_of(points: Mapping[str, Any] | None, what: str) -> list[tuple[Any, Any, Any]]:
    """Return x, y and visibility of each point; those without a visibility are visible, as Datumaro takes them."""
    if points is None:
        return []
    sides = _numbers(points, "points", what)
    seen = points.get("visibility")
    seen = seen if isinstance(seen, list) else [2] * (len(sides) // 2)
    if len(sides) != 2 * len(seen):
        detail = f"{what}: {len(sides)} numbers and {len(seen)} visibilities"
        raise SourceError("annotation", "keypoints are not two numbers and a visibility each", detail)
    return list(zip(sides[::2], sides[1::2], seen, strict=True))


def _box_of_part(
    label: str, part: Mapping[str, Any], what: str, options: LayoutOptions, flags: Mapping[str, Any]
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
    summary="Datumaro's JSON: annotations/SUBSET.json with images/SUBSET; boxes, polygons, masks, points, classes",
    extensions=(".json",),
    expected="JSON of Datumaro, as annotations/train.json with images/train: categories, and items with annotations",
    read_with=_read_with,
    box_of=_box_of,
    has_classes=True,
    keeps=("occluded", "corners", "keypoints"),
)
