"""Reader of CVAT's XML: "CVAT for images 1.1", and "CVAT for video 1.1" with its frames as picture files.

The rules are those of CVAT (docs.cvat.ai/docs/dataset_management/formats/format-xml, and
`cvat/apps/dataset_manager/formats/cvat.py`):

- Pictures are shown with their EXIF orientation applied. They lie in `images/`, or in `images/SUBSET/` for a project.
- Frame 7 of a video is `frame_000007`. A track lists its box on each frame, and `outside="1"` where it is not visible.
- Ellipses and masks have the box around them, as in CVAT's export to COCO. Points, lines, cuboids and skeletons have
  none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree import ElementTree

from halofeed.errors import SourceError
from halofeed.prep.annotations import shapes
from halofeed.prep.annotations.contract import LayoutOptions, check_rotation, split_in_file_name
from halofeed.prep.annotations.documents import DocumentFormat, FilePicture, parse_xml_document
from halofeed.prep.sources.example import Box
from halofeed.prep.sources.file_names import is_image_name

_SIDES = {
    "box": ("xtl", "ytl", "xbr", "ybr"),
    "ellipse": ("cx", "cy", "rx", "ry"),
    "mask": ("left", "top", "width", "height"),
}
_FLAGS = ("occluded", "difficult", "truncated", "is_crowd")
_TAGS = "tags of pictures are not read; objects are"
_MAX_FRAMES = 1_000_000
_GAP = SourceError(
    "annotation",
    "track has no box on a frame",
    "export the task from CVAT again, which writes a box for every frame",
)
_Frames = dict[tuple[str, int], list[Any]]


def _read(path: str, data: bytes) -> Iterator[FilePicture] | None:
    root = parse_xml_document(data)
    if root.tag != "annotations" or (root.find("image") is None and root.find("track") is None):
        return None
    return _pictures(root, split_in_file_name(path) or "")


def _pictures(root: ElementTree.Element, split: str) -> Iterator[FilePicture]:
    for image in root.iterfind("image"):
        name, subset = image.get("name", ""), image.get("subset", "")
        yield FilePicture(
            name=name if is_image_name(name) else "",
            stem=name,
            folders=_folders(subset),
            size=(image.get("height"), image.get("width")),
            split=_split(subset) or split,
            objects=[(one.get("label"), one) for one in image if one.tag != "tag"],
            notes=(_TAGS,) if image.find("tag") is not None else (),
        )
    frames: _Frames = {}
    gaps: set[tuple[str, int]] = set()
    tasks: dict[str, set[str | None]] = {}
    ranges, missing = dict(_ranges(root)), 0
    for track in root.iterfind("track"):
        subset = track.get("subset", "")
        tasks.setdefault(subset, set()).add(track.get("task_id"))
        step = ranges.get(subset, range(1)).step
        entries = sorted((_frame(one), place, one) for place, one in enumerate(track))
        for (frame, _, shape), (following, *_) in zip(entries, [*entries[1:], (-1, 0, None)], strict=True):
            frames.setdefault((subset, frame), []).append((track.get("label"), shape))
            between = range(frame + step, following, step)
            if between and shape.get("outside") != "1" and shape.tag != "skeleton":
                missing += len(between)
                if missing > _MAX_FRAMES:
                    raise _GAP
                gaps.update((subset, one) for one in between)
    if any(len(one) > 1 for one in tasks.values()):
        detail = "several tasks of the project number their frames alike; export them one by one"
        raise SourceError("annotation", "frames of several tasks have one name", detail)
    empty = {(subset, frame) for subset, numbers in ranges.items() for frame in numbers} if frames else set()
    for subset, frame in sorted(empty | gaps | frames.keys()):
        yield FilePicture(
            name="",
            stem=f"frame_{frame:06d}",
            folders=_folders(subset),
            split=_split(subset) or split,
            objects=frames.get((subset, frame), []),
            fault=_GAP if (subset, frame) in gaps else None,
            optional=(subset, frame) not in frames,
        )


def _folders(subset: str) -> tuple[str, ...]:
    return (f"images/{subset}", subset) if subset else ()


def _split(subset: str) -> str:
    return "" if subset == "default" else subset


def _frame(shape: ElementTree.Element) -> int:
    text = shape.get("frame", "")
    if not text.isdecimal() or len(text) > len(str(_MAX_FRAMES)):
        raise SourceError("annotation", "frame is no number", f"a shape of a track has frame {text!r:.40}")
    return int(text)


def _ranges(root: ElementTree.Element) -> Iterator[tuple[str, range]]:
    """Yield the subset and the frames of each video task in the file's description."""
    for task in [
        *root.iterfind("meta/task"),
        *root.iterfind("meta/job"),
        *root.iterfind("meta/project/tasks/task"),
    ]:
        ends = [task.findtext(name, "") for name in ("start_frame", "stop_frame")]
        step = task.findtext("frame_filter", "").rpartition("step=")[2].strip() or "1"
        if all(one.isdecimal() and int(one[:9]) < _MAX_FRAMES for one in (*ends, step)) and int(step):
            subset = "" if root.find("meta/project") is None else task.findtext("subset") or "default"
            yield subset, range(int(ends[0]), int(ends[1]) + 1, int(step))


def _box_of(written: tuple[str | None, ElementTree.Element], what: str, options: LayoutOptions) -> Box | None:
    name, shape = written
    if shape.get("outside") == "1":
        return None
    label, kind = shapes.class_of(name, what), str(shape.tag)
    what = f"{what} ({kind} {label!r})"
    flags = _flags(shape)
    if kind == "polygon":
        pairs = [pair.split(",") for pair in shape.get("points", "").split(";")]
        if any(len(pair) != 2 for pair in pairs):
            raise SourceError(
                "annotation", "points are no list of x,y", f"{what}: {shape.get('points')!r:.80}"
            )
        return shapes.polygon_of(
            label,
            shapes.numbers_of((side for pair in pairs for side in pair), what),
            what,
            options,
            flags=flags,
        )
    if kind not in _SIDES:
        raise shapes.no_box(kind, what)
    numbers = shapes.numbers_of((shape.get(side) for side in _SIDES[kind]), what)
    if kind == "ellipse":
        (angle,) = shapes.numbers_of([shape.get("rotation") or 0], what)
        return shapes.ellipse_of(label, [*numbers, math.radians(angle)], what, options, flags=flags)
    if kind == "box":
        check_rotation(shape.get("rotation"), what, options)
    return shapes.rectangle_of(
        label, numbers, what, options, form="corners" if kind == "box" else "corner-size", flags=flags
    )


def _flags(shape: ElementTree.Element) -> Mapping[str, bool]:
    """Return the flags of a shape: its own, and its attributes of these names, as in CVAT's export to VOC and COCO."""
    written = {
        one.get("name", "").lower(): (one.text or "").strip().lower() for one in shape.iterfind("attribute")
    }
    written["occluded"] = shape.get("occluded") or written.get("occluded", "")
    return {name: written.get(name) in ("1", "true") for name in _FLAGS}


CVAT = DocumentFormat(
    layout="cvat",
    summary="CVAT for images 1.1 and CVAT for video 1.1: XML and images/",
    extensions=(".xml",),
    expected="an XML file of CVAT with <annotations> and <image> or <track>",
    read=_read,
    box_of=_box_of,
    grid="displayed",
    keeps=("occluded",),
)
