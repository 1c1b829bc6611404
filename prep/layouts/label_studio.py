"""Reader of Label Studio's JSON export: tasks with rectangles and polygons in percent of the picture's sides.

The rules are those of Label Studio (labelstud.io/guide/export, labelstud.io/tags) and of label-studio-converter. The
browser shows pictures with their EXIF orientation applied. Predictions and cancelled annotations are ignored. Shapes
that its converter does not export as boxes (ellipses, brushes, keypoints) have none.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from halofeed.errors import SourceError
from halofeed.prep.annotations import shapes
from halofeed.prep.annotations.contract import LayoutOptions, check_rotation, split_in_file_name
from halofeed.prep.annotations.documents import DocumentFormat, FilePicture, parse_json_document
from halofeed.prep.sources.example import Box
from halofeed.prep.sources.file_names import is_image_name

_UPLOAD = re.compile(r"^/data/upload/(\d+/)?")
_MARK = re.compile(r"^[0-9a-f]{8}-")
"""Mark that Label Studio puts before the names of uploaded files."""
_RESULTS = ("annotations", "completions")
_GEOMETRY = frozenset(("x", "points", "rle"))
_NOT_READ = "results that are no regions, such as choices and texts, are not read"


def _read(path: str, data: bytes) -> Iterator[FilePicture] | None:
    document = parse_json_document(data)
    tasks = document if isinstance(document, list) else [document]
    if not any(isinstance(one, dict) and "data" in one and {*_RESULTS} & one.keys() for one in tasks):
        return None
    return (_picture(place, one, split_in_file_name(path) or "") for place, one in enumerate(tasks))


def _picture(place: int, task: Any, split: str) -> FilePicture:
    name = stem = ""
    try:
        if not isinstance(task, dict) or not isinstance(task.get("data"), dict):
            raise SourceError("annotation", "task has no data", f"task {place}: {task!r:.80}")
        name = _image_of(task["data"], f"task {place}")
        base = posixpath.basename(name)
        stem = posixpath.splitext(_MARK.sub("", base))[0] if _MARK.match(base) else ""
        results = _results_of(task, name)
    except SourceError as error:
        return FilePicture(name=name, stem=stem, split=split, fault=error)
    regions: dict[Any, dict[str, Any]] = {}
    drawn = [one for one in results if isinstance(one, dict) and isinstance(one.get("value"), dict)]
    drawn = [one for one in drawn if _GEOMETRY & one["value"].keys()]
    for number, result in enumerate(drawn):
        # With Labels beside Rectangle, one region has several results of one id.
        key = result["id"] if isinstance(result.get("id"), str) else number
        regions.setdefault(key, dict(result)).update(result["value"])
    first = next(iter(regions.values()), {})
    return FilePicture(
        name=name,
        stem=stem,
        size=(first.get("original_height"), first.get("original_width")),
        split=split,
        objects=list(regions.values()),
        notes=(_NOT_READ,) if len(drawn) < len(results) else (),
    )


def _image_of(data: dict[str, Any], what: str) -> str:
    """Return the path of a task's picture, which is an upload, a local file or an address."""
    found = {}
    for key, value in data.items():
        if isinstance(value, str):
            parts = urlsplit(value)
            is_local = parts.path.endswith("/data/local-files/")
            path = parse_qs(parts.query).get("d", [""])[0] if is_local else unquote(parts.path)
            if is_image_name(path):
                found[key] = _UPLOAD.sub("", path).lstrip("/")
    if len(found) != 1 and "image" not in found:
        raise SourceError("annotation", "task has no single picture", f"{what}: {data!r:.80}")
    return found["image"] if "image" in found else next(iter(found.values()))


def _results_of(task: dict[str, Any], name: str) -> list[Any]:
    """Return the results of a task's only annotation, or of its ground truth."""
    listed: list[Any] = next((task[key] for key in _RESULTS if isinstance(task.get(key), list)), [])
    used = [one for one in listed if isinstance(one, dict) and not one.get("was_cancelled")]
    if not used:
        raise SourceError("selection", "image has no annotation", f"{name}: none that is not cancelled")
    truth = [one for one in used if one.get("ground_truth") is True]
    used = truth if len(used) > 1 and truth else used
    if len(used) > 1:
        detail = f"{name}: {len(used)}; keep one of them, or mark one as ground truth"
        raise SourceError("annotation", "task has several annotations", detail)
    results = used[0].get("result")
    if not isinstance(results, list):
        raise SourceError("annotation", "annotation has no result", name)
    return results


def _box_of(region: dict[str, Any], what: str, options: LayoutOptions) -> Box:
    lists = (value for key, value in region.items() if key.endswith("labels") and isinstance(value, list))
    labels = [*dict.fromkeys(str(label) for labels in lists for label in labels)]
    if len(labels) > 1:
        raise SourceError("annotation", "object has several classes", f"{what}: {labels!r:.80}")
    label = shapes.class_of(labels[0] if labels else None, what)
    what = f"{what} {label!r}"
    if shapes.numbers_of([region.get("image_rotation") or 0], what) != [0]:
        raise SourceError("annotation", "picture was turned in Label Studio", f"{what}: turn it back there")
    if isinstance(region.get("points"), list):
        return shapes.polygon_of(
            label, [side / 100 for side in shapes.points_of(region["points"], what)], what, options
        )
    if not {"width", "height"} <= region.keys() or "rle" in region:
        raise shapes.no_box(region.get("type"), what)
    check_rotation(region.get("rotation"), what, options)
    sides = shapes.numbers_of((region.get(side) for side in ("x", "y", "width", "height")), what)
    return shapes.rectangle_of(label, [side / 100 for side in sides], what, options, form="corner-size")


LABEL_STUDIO = DocumentFormat(
    layout="label-studio",
    summary="Label Studio's JSON export: rectangles and polygons",
    extensions=(".json",),
    expected="a JSON export of Label Studio (not JSON-MIN), a list with data and annotations for each task",
    read=_read,
    box_of=_box_of,
    grid="displayed",
    is_normalized=True,
)
