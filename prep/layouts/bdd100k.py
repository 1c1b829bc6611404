"""Reader of BDD100K's and Scalabel's JSON: a list of frames, a file with frames and config, or a file for each picture.

The rules are those of Scalabel (github.com/scalabel/scalabel, `label/transforms.py` and `label/to_coco.py`), whose
format BDD100K has since 2020, and of the files of BDD100K's first version, which have objects in place of labels.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from halofeed.prep.annotations.annotation_tools import DocumentFormat, FileContent, FilePicture
from halofeed.prep.annotations.class_names import shorten_list
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.documents import as_mapping, parse_json_document
from halofeed.prep.annotations.written_boxes import (
    class_of,
    no_box,
    numbers_of,
    points_of,
    polygon_of,
    rectangle_of,
    run_lengths_of,
    unite_parts,
)
from halofeed.prep.sources.example import Box
from halofeed.prep.sources.file_names import is_image_name
from halofeed.system.errors import SourceError

_LISTS = ("labels", "objects")
"""Key of the objects of a frame; BDD100K's first version has `objects`."""
_CORNERS = ("x1", "y1", "x2", "y2")
_CROWDS = ("crowd", "ignored")
"""Attributes of objects that Scalabel's conversion to COCO makes crowds."""
_CURVE_POINTS = 3
"""Vertices of a part of a curve: two control points and its end (matplotlib's CURVE4, which draws them)."""
_CURVE_STEPS = 8
"""Straight lines in place of a curve (estimate)."""


@dataclass(frozen=True, kw_only=True)
class _Label:
    """A written label.

    Args:
        written: its content.
        is_pixels: whether the corners of boxes are whole numbers, of pixels that belong to the box.
        is_area: whether its class never has a box, in a file in which others have.
    """

    written: Any
    is_pixels: bool
    is_area: bool


def _read(path: str, data: bytes) -> FileContent | None:
    document = parse_json_document(data)
    frames = as_mapping(document).get("frames") if isinstance(document, dict) else document
    if isinstance(document, dict) and not isinstance(frames, list) and _has_labels(document):
        frames = [document]
    if not isinstance(frames, list) or not any(map(_has_labels, frames)):
        return None
    of_picture = isinstance(document, dict) and "name" in document
    labels = [label for frame in frames for label in _labels_of(frame)]
    areas = _areas(labels)
    config = as_mapping(as_mapping(document).get("config"))
    common, are_pixels = as_mapping(config.get("imageSize")), _are_pixels(labels)
    read = [_picture(place, frame, areas, common, are_pixels) for place, frame in enumerate(frames)]
    pictures = [_of_one_file(document, path, read[0])] if of_picture else read
    return FileContent(pictures=pictures, classes=list(_leaves(config.get("categories"))))


def _has_labels(frame: Any) -> bool:
    """Return whether an entry is a frame, whose labels may be null."""
    return (
        isinstance(frame, dict) and ("name" in frame or "timestamp" in frame) and _list_key(frame) is not None
    )


def _list_key(frame: Mapping[str, Any]) -> str | None:
    return next((key for key in _LISTS if key in frame), None)


def _labels_of(frame: Any) -> list[Any]:
    """Return the labels of a frame; [] for one without the key or with null, which has no objects."""
    frame = as_mapping(frame)
    found = frame.get(_list_key(frame) or "")
    return found if isinstance(found, list) else []


def _leaves(categories: Any) -> Iterator[str]:
    """Yield the names of the categories of a config that have no others below them, as Scalabel's classes are."""
    for one in categories if isinstance(categories, list) else ():
        below = as_mapping(one).get("subcategories")
        if below:
            yield from _leaves(below)
        elif isinstance(name := as_mapping(one).get("name"), str):
            yield name


def _areas(labels: Iterable[Any]) -> frozenset[str]:
    """Return the classes that never have a box in a file in which others have: lanes and areas to drive on."""
    boxed: dict[str, bool] = {}
    for label in map(as_mapping, labels):
        name = str(label.get("category"))
        boxed[name] = boxed.get(name, False) or label.get("box2d") is not None
    return frozenset(name for name, has_box in boxed.items() if not has_box and any(boxed.values()))


def _are_pixels(labels: Iterable[Any]) -> bool:
    """Return whether the corners of all boxes are whole numbers.

    Scalabel's boxes include the pixels of both corners, which numbers with fractions cannot be.
    """
    boxes = [as_mapping(as_mapping(label).get("box2d")) for label in labels]
    sides = [box.get(key) for box in boxes for key in _CORNERS if box]
    return all(isinstance(side, int) or (isinstance(side, float) and side.is_integer()) for side in sides)


def _picture(
    place: int, frame: Any, areas: frozenset[str], common: Mapping[str, Any], is_pixels: bool
) -> FilePicture:
    """Return the picture of a frame; `common` is the size of all frames."""
    if not isinstance(frame, dict):
        detail = f"entry {place}: expected name and labels"
        return FilePicture(name="", fault=SourceError("annotation", "entry is no frame", detail))
    name, video = str(frame.get("name") or ""), frame.get("videoName") or None
    labels, key = _labels_of(frame), _list_key(frame)
    fault = None
    if key and not isinstance(frame[key], list | None):
        fault = SourceError("annotation", "entry is no frame", f"{name}: {key} is no list")
    left_out = sorted({str(as_mapping(one).get("category")) for one in labels} & areas)
    note = f"classes without boxes, such as lanes and areas, left out: {shorten_list(left_out)}; --classes takes them"
    size = as_mapping(frame.get("size")) or common
    return FilePicture(
        # BDD100K's videos are folders of frames.
        name=posixpath.join(str(video), name) if video and "/" not in name else name,
        size=(size.get("height"), size.get("width")),
        group=None if video is None else str(video),
        objects=[
            _Label(written=one, is_pixels=is_pixels, is_area=str(as_mapping(one).get("category")) in areas)
            for one in labels
        ],
        fault=fault,
        notes=(note,) * bool(left_out),
        attributes={**as_mapping(frame.get("attributes")), "videoName": video},
    )


def _of_one_file(document: Mapping[str, Any], path: str, picture: FilePicture) -> FilePicture:
    """Return the picture of a file of one picture, whose name is that of the document, without an extension."""
    name = str(document.get("name") or "")
    if len(document.get("frames") or [0]) > 1:
        detail = f"{name} has {len(document['frames'])} frames, and no picture of each"
        return replace(picture, fault=SourceError("annotation", "file has several frames", detail))
    return replace(
        picture,
        name=name if is_image_name(name) else "",
        stem=posixpath.splitext(path)[0] if not name or is_image_name(name) else name,
        attributes={**picture.attributes, **as_mapping(document.get("attributes"))},
    )


def _box_of(label: _Label, what: str, options: LayoutOptions) -> Box | None:
    written = as_mapping(label.written)
    name = class_of(written.get("category"), what)
    # A note tells which classes these are.
    if label.is_area and name not in options.classes:
        return None
    what = f"{what} {name!r}"
    attributes = as_mapping(written.get("attributes"))
    flags: dict[str, Any] = {key: attributes.get(key) is True for key in ("occluded", "truncated")}
    flags["is_crowd"] = any(attributes.get(key) is True for key in _CROWDS)
    corners = written.get("box2d")
    outline = None
    if corners is None or options.masks:
        outline = _outline_of(name, written, what, options, flags)
    if corners is None or outline is not None:
        if outline is None:
            kinds = [
                key for key, value in written.items() if key.endswith(("2d", "3d", "rle", "graph")) and value
            ]
            raise no_box(", ".join(kinds) or "no geometry", what)
        return outline
    if not isinstance(corners, dict):
        raise SourceError("annotation", "object has no box", f"{what}: {corners!r:.80}")
    left, top, right, bottom = numbers_of(map(corners.get, _CORNERS), what)
    more = int(label.is_pixels)
    return rectangle_of(name, [left, top, right + more, bottom + more], what, options, **flags)


def _outline_of(
    name: str, written: Mapping[str, Any], what: str, options: LayoutOptions, flags: Mapping[str, Any]
) -> Box | None:
    """Return the object of run lengths or of polygons; None if it has neither."""
    if written.get("rle") is not None:
        return run_lengths_of(name, written["rle"], what, options, **flags)
    parts = written.get("poly2d")
    if not isinstance(parts, list) or not parts:
        return None
    # The first version has one polygon of points [x, y, "L"] in place of a list of polygons.
    parts = parts if isinstance(parts[0], dict) else [_of_first_version(parts, written)]
    return unite_parts(parts, lambda part: _box_of_part(name, part, what, options, flags), options)


def _of_first_version(points: Sequence[Any], written: Mapping[str, Any]) -> dict[str, Any]:
    if not all(isinstance(point, list) and len(point) == _CURVE_POINTS for point in points):
        return {"vertices": points}
    closed = as_mapping(written.get("attributes")).get("closed", written.get("closed", True))
    return {
        "vertices": [point[:2] for point in points],
        "types": "".join(str(point[2]) for point in points),
        "closed": closed,
    }


def _box_of_part(name: str, part: Any, what: str, options: LayoutOptions, flags: Mapping[str, Any]) -> Box:
    part = as_mapping(part)
    if part.get("closed") is False:
        raise no_box("poly2d that is not closed", what)
    points = points_of(part.get("vertices"), what)
    types = part.get("types")
    if isinstance(types, str) and "C" in types[1:]:
        points = _straightened(points, types, what)
    return polygon_of(name, points, what, options, **flags)


def _straightened(points: Sequence[float], types: str, what: str) -> list[float]:
    """Return the points of an outline whose curves are replaced by lines.

    A vertex of the type C is followed by two others: two control points of a cubic Bezier curve, and its end.

    >>> _straightened([0, 0, 0, 4, 4, 4, 4, 0], "LCCC", "object 1")[6:10]
    [1.265625, 2.8125, 2.0, 3.0]
    """
    pairs = list(zip(points[::2], points[1::2], strict=True))
    # The end of the outline is its beginning.
    pairs, kinds = [*pairs, pairs[0]], [*types, "L"]
    if len(kinds) != len(pairs):
        raise SourceError("annotation", "types of vertices are damaged", f"{what}: {types!r:.40}")
    found, at = [pairs[0]], 1
    while at < len(pairs):
        if kinds[at] != "C":
            found.append(pairs[at])
            at += 1
            continue
        curve = [found[-1], *pairs[at : at + _CURVE_POINTS]]
        if len(curve) <= _CURVE_POINTS:
            raise SourceError("annotation", "types of vertices are damaged", f"{what}: {types!r:.40}")
        found += [_on_curve(curve, step / _CURVE_STEPS) for step in range(1, _CURVE_STEPS + 1)]
        at += _CURVE_POINTS
    return [side for point in found[:-1] for side in point]


def _on_curve(points: Sequence[tuple[float, float]], share: float) -> tuple[float, float]:
    """Return the point of a Bezier curve at a share of its parameter, by de Casteljau's algorithm."""
    while len(points) > 1:
        points = [
            (x + share * (right - x), y + share * (bottom - y))
            for (x, y), (right, bottom) in pairwise(points)
        ]
    return points[0]


BDD100K = DocumentFormat(
    layout="bdd100k",
    summary="BDD100K and Scalabel: JSON lists of frames with labels, or a JSON file for each picture",
    extensions=(".json",),
    expected="JSON of BDD100K or Scalabel: frames with name and labels, which have category and box2d, poly2d or rle",
    read=_read,
    box_of=_box_of,
    keeps=("occluded", "corners"),
)
