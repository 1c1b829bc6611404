"""Reader of Ultralytics NDJSON: a line about the data set, and one for each picture.

The rules are those of Ultralytics (ultralytics/data/converter.py, `convert_ndjson_to_yolo`): annotations are the rows
of YOLO's label files by their kind, and a picture without annotations has no objects.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from halofeed.prep.annotations.annotation_tools import DocumentContent, DocumentFormat, FilePicture
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.documents import as_list, as_mapping, parse_json_lines
from halofeed.prep.annotations.written_boxes import check_oriented, with_filled_share
from halofeed.prep.layouts.yolo import YoloDescription, box_of_row, check_names, parse_keypoints
from halofeed.prep.sources.example import Box
from halofeed.system.errors import SourceError

_ROWS = ("boxes", "segments", "pose", "obb")
_WITHOUT = "picture has no annotations in its line: taken as one without objects, as Ultralytics does"
_SPLITS = {"val": "val", "valid": "val", "validation": "val"}


def _read_ndjson(path: str, data: bytes) -> DocumentContent | None:
    # A file with another first line is a table or a manifest, and other lines may be damaged.
    first = as_mapping(next((one for _, one in parse_json_lines(data.lstrip().split(b"\n", 1)[0])), None))
    if first.get("type") != "dataset" and not (first.get("type") == "image" and "file" in first):
        return None
    records = [(number, as_mapping(one)) for number, one in parse_json_lines(data)]
    header = next((one for _, one in records if one.get("type") == "dataset"), {})
    if header.get("task") == "depth":
        raise SourceError("annotation", "task is depth", "expected detect, segment, pose, obb or classify")
    pictures = [(number, one) for number, one in records if one.get("type") == "image"]
    described = _describe(path, header, [one for _, one in pictures])
    read = [
        _ndjson_picture(number, one, described, str(header.get("path") or "")) for number, one in pictures
    ]
    return DocumentContent(pictures=read, classes=[name for _, name in sorted(described.names.items())])


def _describe(path: str, header: Mapping[str, Any], pictures: Sequence[Mapping[str, Any]]) -> YoloDescription:
    """Return the classes and keypoints of a data set; classes without a name are called as Ultralytics calls them."""
    written = header.get("class_names")
    names = dict(enumerate(written)) if isinstance(written, list) else as_mapping(written)
    named = {int(key): name for key, name in names.items() if str(key).isdecimal()}
    used = {
        int(row[0])
        for picture in pictures
        for rows in as_mapping(picture.get("annotations")).values()
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, list) and row and str(row[0]).isdecimal() and int(row[0]) < _MAX_CLASSES
    }
    if not named:
        named = {number: f"class{number}" for number in range(max(used, default=0) + 1)}
    # `parse_keypoints` takes the texts of a YAML file.
    shape = header.get("kpt_shape")
    texts = {**header, "kpt_shape": list(map(str, shape))} if isinstance(shape, list) else {}
    keypoints, dimensions = parse_keypoints(path, texts)
    return YoloDescription(
        file=path,
        names=check_names(path, named),
        splits={},
        keypoints=keypoints,
        dimensions=dimensions,
    )


_MAX_CLASSES = 100_000
"""Larger class ids are damaged rows."""


def _ndjson_picture(
    number: int, record: Mapping[str, Any], described: YoloDescription, root: str
) -> FilePicture:
    name, written = str(record.get("file") or ""), record.get("annotations")
    split = str(record.get("split") or "")
    fault = None
    if not name or not isinstance(written, dict | None):
        detail = f"line {number}: expected file and annotations"
        fault = SourceError("annotation", "entry is no picture with annotations", detail)
    annotations = as_mapping(written)
    rows = [(kind, row) for kind in _ROWS for row in as_list(annotations.get(kind))]
    numbers = as_list(annotations.get("classification"))
    places = (f"images/{split}", split, "images", posixpath.splitext(posixpath.basename(described.file))[0])
    return FilePicture(
        name=name,
        folders=tuple(posixpath.join(root, place) for place in places if place),
        size=(record.get("height"), record.get("width")),
        split=_SPLITS.get(split, split),
        objects=[(described, kind, row) for kind, row in rows],
        classes=[described.names[one] for one in numbers if isinstance(one, int) and one in described.names],
        fault=fault,
        notes=() if annotations else (_WITHOUT,),
        attributes=record,
    )


def _box_of_ndjson(written: tuple[YoloDescription, str, Any], what: str, options: LayoutOptions) -> Box:
    described, kind, row = written
    if not isinstance(row, list) or not row:
        raise SourceError("annotation", "row is no object", f"{what}: {row!r:.60}")
    box = box_of_row(described, row, what, options)
    if kind != "obb":
        return box
    # Corners that people drew are no exact rectangles.
    box = with_filled_share(box)
    check_oriented(box.turned_share, f"{what} {box.label!r}", options)
    return box


YOLO_NDJSON = DocumentFormat(
    layout="yolo-ndjson",
    summary="Ultralytics NDJSON: a line with class_names, and one for each picture with boxes, segments, pose or obb",
    extensions=(".ndjson", ".jsonl"),
    expected="NDJSON of Ultralytics: lines with file, split and annotations, below one with class_names",
    read=_read_ndjson,
    box_of=_box_of_ndjson,
    grid="displayed",
    is_normalized=True,
    has_classes=True,
    keeps=("corners", "keypoints"),
)
