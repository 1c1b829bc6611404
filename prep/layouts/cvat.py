"""Reader of CVAT's XML: "CVAT for images 1.1", and "CVAT for video 1.1" with its frames as picture files.

The rules are those of CVAT (docs.cvat.ai/docs/dataset_management/formats/format-xml, and
`cvat/apps/dataset_manager/formats/cvat.py`):

- Pictures are shown with their EXIF orientation applied. They are in `images/`, or in `images/SUBSET/` for a project.
- Frame 7 of a video is `frame_000007`. A track lists its box on each frame, and `outside="1"` where it is not visible.
- Tags are classes of pictures.
- Ellipses and masks have the box around them, as in CVAT's export to COCO. Points, lines, cuboids and skeletons have
  none. The run lengths of a mask go along the rows of its rectangle, zeros first (`transformations.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any
from xml.etree import ElementTree

from halofeed.prep.annotations.annotation_tools import DocumentFormat, FilePicture
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.documents import parse_xml_document
from halofeed.prep.annotations.written_boxes import (
    angle_of,
    class_of,
    declared_size,
    ellipse_of,
    make_box,
    no_box,
    numbers_of,
    points_of,
    polygon_of,
    rectangle_of,
)
from halofeed.prep.sources.example import Box
from halofeed.prep.sources.file_names import is_image_name
from halofeed.system.errors import SourceError

_SIDES = {
    "box": ("xtl", "ytl", "xbr", "ybr"),
    "ellipse": ("cx", "cy", "rx", "ry"),
    "mask": ("left", "top", "width", "height"),
}
_FLAGS = ("occluded", "difficult", "truncated", "is_crowd")
_MAX_FRAMES = 1_000_000
_AGAIN = "export the task from CVAT again, which writes a box for every frame"
_GAP = SourceError("annotation", "track has no box on a frame", _AGAIN)


def _read(path: str, data: bytes) -> Iterator[FilePicture] | None:
    root = parse_xml_document(data)
    # The name of the root alone is too common.
    if root.tag != "annotations" or (root.find("image") is None and root.find("track") is None):
        return None
    return chain(_images(root), _frames(root, path))


def _images(root: ElementTree.Element) -> Iterator[FilePicture]:
    for image in root.iterfind("image"):
        name, size = image.get("name", ""), (image.get("height"), image.get("width"))
        yield FilePicture(
            name=name if is_image_name(name) else "",
            stem=name,
            size=size,
            objects=[(one.get("label"), one, size) for one in image if one.tag != "tag"],
            classes=[name for tag in image.iterfind("tag") if (name := tag.get("label", "").strip())],
            **_of_subset(image.get("subset", "")),
        )


def _frames(root: ElementTree.Element, path: str) -> Iterator[FilePicture]:
    """Yield the frames of all tracks, and the others of the video if the file says how many it has."""
    _refuse_several_tasks(root)
    tasks = list(_tasks(root))
    sizes = {subset: _original_size(task) for subset, task in tasks}
    ranges = {subset: found for subset, task in tasks if (found := _range_of(task)) is not None}
    missing = 0
    frames: dict[tuple[str, int], list[Any]] = {}
    gaps: set[tuple[str, int]] = set()
    for track in root.iterfind("track"):
        subset = track.get("subset", "")
        entries = _entries_of_track(track)
        size = sizes.get(subset, (None, None))
        for frame, shape in entries:
            frames.setdefault((subset, frame), []).append((track.get("label"), shape, size))
        for between in _gaps_of_track(entries, ranges.get(subset, range(1)).step):
            missing += len(between)
            if missing > _MAX_FRAMES:  # before the frames are listed: numbers in a file cost nothing
                raise _GAP
            gaps.update((subset, one) for one in between)
    empty = ((subset, frame) for subset, numbers in ranges.items() for frame in numbers)
    # Without any track, the file is one of images.
    for key in sorted(gaps.union(frames, empty)) if frames else ():
        yield FilePicture(
            name="",
            stem=f"frame_{key[1]:06d}",
            objects=frames.get(key, []),
            fault=_GAP if key in gaps else None,
            # A frame on which a track only ends has no object, and may not be exported.
            optional=key not in gaps and all(_is_outside(shape) for _, shape, _ in frames.get(key, ())),
            group=f"{path} {key[0]}".rstrip(),
            **_of_subset(key[0]),
        )


def _is_outside(shape: ElementTree.Element) -> bool:
    """Return whether the shape of a track is not visible on its frame."""
    return shape.get("outside") == "1"


def _refuse_several_tasks(root: ElementTree.Element) -> None:
    """Raise SourceError if a project has several video tasks in one subset, each of which counts its frames from 0."""
    tasks: dict[str, str | None] = {}
    for track in root.iterfind("track"):
        # Frame 7 of two videos would be one picture's name.
        if tasks.setdefault(track.get("subset", ""), track.get("task_id")) != track.get("task_id"):
            detail = "several tasks of the project number their frames alike; export them one by one"
            raise SourceError("annotation", "frames of several tasks have one name", detail)


def _entries_of_track(track: ElementTree.Element) -> list[tuple[int, ElementTree.Element]]:
    """Return the frame and the shape of each entry of a track, in the order of the frames."""
    own = (one for one in track if one.tag != "track")  # those of a skeleton's points are inside
    return sorted(((_frame(one), one) for one in own), key=itemgetter(0))


def _gaps_of_track(entries: Sequence[tuple[int, ElementTree.Element]], step: int) -> Iterator[range]:
    """Yield the frames between two entries of a track whose shape is visible at the first one.

    CVAT's export writes the box of every frame, and `outside="1"` where a shape disappears. A gap means that only key
    frames were written, which do not tell the boxes between them.
    """
    for (frame, shape), (following, _) in pairwise(entries):
        if not _is_outside(shape) and shape.tag != "skeleton":
            yield range(frame + step, following, step)


def _of_subset(subset: str) -> dict[str, Any]:
    # `default` has the images of a project for which no subset was chosen.
    folders = (f"images/{subset}", subset) if subset else ()
    return {"folders": folders, "split": "" if subset == "default" else subset}


def _frame(shape: ElementTree.Element) -> int:
    text = shape.get("frame", "")
    # int() raises ValueError above 4,300 digits, and no task has so many frames.
    if not text.isdecimal() or len(text) > len(str(_MAX_FRAMES)):
        raise SourceError("annotation", "frame is no number", f"a shape of a track has frame {text!r:.40}")
    return int(text)


def _tasks(root: ElementTree.Element) -> Iterator[tuple[str, ElementTree.Element]]:
    """Yield the subset and the description of each video task."""
    for place in ("task", "job", "project/tasks/task"):
        for task in root.iterfind(f"meta/{place}"):
            yield (task.findtext("subset") or "default") if place.startswith("project") else "", task


def _original_size(task: ElementTree.Element) -> tuple[str | None, str | None]:
    """Return the height and width of the frames of a task, as written."""
    return task.findtext("original_size/height"), task.findtext("original_size/width")


def _range_of(task: ElementTree.Element) -> range | None:
    """Return the frames of a task, from its first to its last in steps of its frame_filter; None without them."""
    first, last = (task.findtext(name, "") for name in ("start_frame", "stop_frame"))
    step = task.findtext("frame_filter", "").rpartition("step=")[2].strip() or "1"
    # Damaged or absent numbers are ignored; a million frames are more than any task has.
    if not all(one.isdecimal() and int(one[:9]) < _MAX_FRAMES for one in (first, last, step)):
        return None
    return range(int(first), int(last) + 1, int(step)) if int(step) else None


_Written = tuple[str | None, ElementTree.Element, tuple[str | None, str | None]]
"""Label of a shape, the shape, and the height and width of its picture as written."""


def _box_of(written: _Written, what: str, options: LayoutOptions) -> Box | None:
    name, shape, size = written
    # A track's shape is not visible on this frame, where CVAT repeats its last box.
    if _is_outside(shape):
        return None
    label, kind, flags = class_of(name, what), str(shape.tag), _flags(shape)
    what = f"{what} ({kind} {label!r})"
    if kind == "polygon":
        points = points_of([pair.split(",") for pair in shape.get("points", "").split(";")], what)
        return polygon_of(label, points, what, options, **flags)
    # See the docstring: points, lines, cuboids and skeletons have no box.
    if kind not in _SIDES:
        raise no_box(kind, what)
    numbers = numbers_of((shape.get(side) for side in _SIDES[kind]), what)
    if kind == "mask" and options.masks:
        return _box_of_mask(label, shape, numbers, size, what)
    # CVAT turns ellipses about their center.
    if kind == "ellipse":
        (angle,) = numbers_of([shape.get("rotation") or 0], what)
        return ellipse_of(label, [*numbers, math.radians(angle)], what, options, **flags)
    turn = angle_of(shape.get("rotation"), what, options)
    form = "corners" if kind == "box" else "corner-size"
    return rectangle_of(label, numbers, what, options, form=form, turn=turn, **flags)


def _box_of_mask(
    label: str,
    shape: ElementTree.Element,
    rectangle: Sequence[float],
    size: tuple[str | None, str | None],
    what: str,
) -> Box:
    """Return the box and the mask of a brush, whose run lengths are those of the pixels of a rectangle."""
    from halofeed.prep.voxels.run_lengths import mask_in_rectangle

    picture = declared_size(*size)
    if picture is None:
        detail = (
            f"{what}: a mask needs the width and the height of its picture; export the task from CVAT again"
        )
        raise SourceError("annotation", "size of the picture is missing", detail)
    counts = numbers_of(shape.get("rle", "").split(","), f"{what} rle")
    if not all(one.is_integer() for one in (*counts, *rectangle)):
        raise SourceError("annotation", "run lengths are no whole numbers", what)
    left, top, width, height = map(int, rectangle)
    try:
        mask = mask_in_rectangle([*map(int, counts)], (left, top, width, height), picture)
    except SourceError as error:
        raise error.at(what) from error
    if mask is None:
        raise SourceError("annotation", "mask is empty", f"{what}: it has no pixel; delete it")
    ymin, xmin, ymax, xmax = mask.box
    return make_box(label, (xmin, ymin, xmax, ymax), what, area=mask.area, mask=mask.code, **_flags(shape))


def _flags(shape: ElementTree.Element) -> Mapping[str, bool]:
    """Return the flags of a shape: its own, and its attributes of these names, as in CVAT's export to VOC and COCO."""
    written = {one.get("name", "").lower(): one.text or "" for one in shape.iterfind("attribute")}
    written |= {"occluded": shape.get("occluded", "0")}
    return {name: written.get(name, "").strip().lower() in ("1", "true") for name in _FLAGS}


CVAT = DocumentFormat(
    layout="cvat",
    summary="CVAT for images 1.1 and CVAT for video 1.1: XML and images/",
    extensions=(".xml",),
    expected="an XML file of CVAT with <annotations> and <image> or <track>",
    read=_read,
    box_of=_box_of,
    grid="displayed",
    keeps=("corners", "occluded"),
    has_classes=True,
)
