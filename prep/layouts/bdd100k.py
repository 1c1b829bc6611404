"""Reader of BDD100K's and Scalabel's JSON: a list of frames, a file with frames and config, or a file for each picture.

The rules are those of Scalabel (github.com/scalabel/scalabel, `label/transforms.py` and `label/to_coco.py`), whose
format BDD100K has since 2020, and of the files of BDD100K's first version, which have objects in place of labels.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

from halofeed.prep.annotations.annotation_tools import DocumentContent, DocumentFormat, FilePicture, Read
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
from halofeed.prep.sources.files import SourceFiles
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


@dataclass(kw_only=True)
class _Evidence:
    """Facts that the labels of all files of a source share, complete once all files are read.

    Args:
        boxed: for each class, whether any label of it has a box.
        has_fractions: whether a corner of a box is no whole number. Scalabel's boxes include the pixels of both
            corners, which numbers with fractions cannot be.
    """

    boxed: dict[str, bool] = field(default_factory=dict)
    has_fractions: bool = False

    def add(self, label: Any) -> None:
        box = as_mapping(label).get("box2d")
        name = _category(label)
        self.boxed[name] = self.boxed.get(name, False) or box is not None
        sides = map(as_mapping(box).get, _CORNERS)
        self.has_fractions |= any(isinstance(side, float) and not side.is_integer() for side in sides)

    def is_area(self, name: str) -> bool:
        """Return whether a class never has a box, where others have: lanes, and areas to drive on."""
        return not self.boxed.get(name) and any(self.boxed.values())

    def notes_on(self, labels: Sequence[Any]) -> tuple[str, ...]:
        names = sorted(filter(self.is_area, set(map(_category, labels))))
        note = f"classes without boxes, such as lanes and areas, left out: {shorten_list(names)}; --classes takes them"
        return (note,) if names else ()


_Label = tuple[Any, _Evidence]
"""A written label, and what is known of all labels."""


def _category(label: Any) -> str:
    return str(as_mapping(label).get("category"))


def _reader(annotations: SourceFiles, options: LayoutOptions) -> Read:
    return partial(_read, _Evidence())


def _read(evidence: _Evidence, path: str, data: bytes) -> DocumentContent | None:
    document = parse_json_document(data)
    frames = _frames_of(document)
    if not any(map(_has_labels, frames)):
        return None
    config = as_mapping(as_mapping(document).get("config"))
    read = [_picture(place, frame, evidence) for place, frame in enumerate(frames)]
    if common := as_mapping(config.get("imageSize")):
        size = (common.get("height"), common.get("width"))
        read = [one if any(one.size) else replace(one, size=size) for one in read]
    # A file with a name is one of a picture; the others list pictures.
    if isinstance(document, dict) and "name" in document:
        read = [_of_one_file(document, path, read[0])]
    return DocumentContent(pictures=read, classes=list(_leaves(config.get("categories"))))


def _frames_of(document: Any) -> list[Any]:
    """Return the frames of a document, which may be a frame itself; [] for another document."""
    if isinstance(document, list):
        return document
    frames = as_mapping(document).get("frames")
    if isinstance(frames, list):
        return frames
    return [document] if _has_labels(document) else []


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


def _picture(place: int, frame: Any, evidence: _Evidence) -> FilePicture:
    if not isinstance(frame, dict):
        detail = f"entry {place}: expected name and labels"
        return FilePicture(name="", fault=SourceError("annotation", "entry is no frame", detail))
    name, video = str(frame.get("name") or ""), frame.get("videoName") or None
    labels, key = _labels_of(frame), _list_key(frame)
    fault = None
    if key and not isinstance(frame[key], list | None):
        fault = SourceError("annotation", "entry is no frame", f"{name}: {key} is no list")
    for one in labels:
        evidence.add(one)
    size = as_mapping(frame.get("size"))
    # BDD100K's videos are folders of frames.
    path = posixpath.join(str(video), name) if video and "/" not in name else name
    return FilePicture(
        name=path if is_image_name(path) else "",
        stem="" if is_image_name(path) else path,
        size=(size.get("height"), size.get("width")),
        group=None if video is None else str(video),
        objects=[(one, evidence) for one in labels],
        fault=fault,
        late_notes=partial(evidence.notes_on, labels),
        attributes={**as_mapping(frame.get("attributes")), "videoName": video},
    )


def _of_one_file(document: Mapping[str, Any], path: str, picture: FilePicture) -> FilePicture:
    """Return the picture of a file of one picture, whose name is that of the document, without an extension."""
    name = str(document.get("name") or "")
    fault = picture.fault
    if len(document.get("frames") or [0]) > 1:
        detail = f"{name} has {len(document['frames'])} frames, and one name"
        fault = SourceError("annotation", "file has several frames", detail)
    return replace(
        picture,
        fault=fault,
        name=name if is_image_name(name) else "",
        stem=posixpath.splitext(path)[0] if not name or is_image_name(name) else name,
        attributes={**picture.attributes, **as_mapping(document.get("attributes"))},
    )


def _box_of(label: _Label, what: str, options: LayoutOptions) -> Box | None:
    written, evidence = as_mapping(label[0]), label[1]
    name = class_of(written.get("category"), what)
    # A note tells which classes these are.
    if evidence.is_area(name) and name not in options.classes:
        return None
    what = f"{what} {name!r}"
    attributes = as_mapping(written.get("attributes"))
    flags: dict[str, Any] = {key: attributes.get(key) is True for key in ("occluded", "truncated")}
    flags["is_crowd"] = any(attributes.get(key) is True for key in _CROWDS)
    corners = written.get("box2d")
    # Outlines are read where they are needed; a box without one is an object all the same.
    if corners is None or options.masks:
        outline = _outline_of(name, written, what, options, flags)
        if outline is not None:
            return outline
    if corners is None:
        raise no_box("box3d" if written.get("box3d") else "no geometry", what)
    if not isinstance(corners, dict):
        raise SourceError("annotation", "object has no box", f"{what}: {corners!r:.80}")
    left, top, right, bottom = numbers_of(map(corners.get, _CORNERS), what)
    more = int(not evidence.has_fractions)
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
    read_with=_reader,
    box_of=_box_of,
    keeps=("occluded", "corners"),
)
