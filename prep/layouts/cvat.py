"""Reader of CVAT's XML: "CVAT for images 1.1", and "CVAT for video 1.1" with its frames as picture files.

The rules are those of CVAT (docs.cvat.ai/docs/dataset_management/formats/format-xml, and
`cvat/apps/dataset_manager/formats/cvat.py`):

- Pictures are shown with their EXIF orientation applied. They are in `images/`, or in `images/SUBSET/` for a project.
- Frame 7 of a video is `frame_000007`, a picture file or a frame of the video itself. A track lists its box on each
  frame, or on key frames, and `outside="1"` where it is not visible.
- Tags are classes of pictures.
- Ellipses and masks have the box around them, as in CVAT's export to COCO. Points, lines, cuboids and skeletons have
  none. The run lengths of a mask go along the rows of its rectangle, zeros first (`transformations.py`).
"""

from __future__ import annotations

import math
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any
from xml.etree import ElementTree

from halofeed.prep.annotations.annotation_tools import DocumentFormat, FilePicture, Read
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.documents import parse_xml_document
from halofeed.prep.annotations.frame_rows import fault_of_stride
from halofeed.prep.annotations.written_boxes import (
    angle_of,
    class_of,
    declared_size,
    ellipse_of,
    make_box,
    no_box,
    numbers_of,
    parse_number,
    points_of,
    polygon_of,
    rectangle_of,
)
from halofeed.prep.sources.example import Box
from halofeed.prep.sources.file_names import is_image_name, is_video_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import SourceError

_SIDES = {
    "box": ("xtl", "ytl", "xbr", "ybr"),
    "ellipse": ("cx", "cy", "rx", "ry"),
    "mask": ("left", "top", "width", "height"),
}
_Between = tuple[ElementTree.Element, float]
"""Shape of the next key frame, and the share of the way to it."""
_Written = tuple[str | None, ElementTree.Element, tuple[str | None, str | None], _Between | None]
"""Label of a shape, the shape, the height and width of its picture as written, and what it is interpolated with."""
_Frame = tuple[str, int]
"""Subset and number of a frame."""
_INTERPOLATED_SIDES = {kind: _SIDES[kind] for kind in ("box", "ellipse")} | {"polygon": ()}
"""Shapes that CVAT interpolates, and their sides, each of which moves on a line."""
_INTERPOLATED = "shapes between key frames are interpolated, as CVAT does"
_FRAME_NAME = re.compile(r"frame_(\d{1,7})(?:\.\w+)?")
_FLAGS = ("occluded", "difficult", "truncated", "is_crowd")
_MAX_FRAMES = 1_000_000
_MAX_SHAPES = 5_000_000
"""Shapes of all tracks on all frames."""
_AGAIN = "export the task from CVAT again, which writes a box for every frame"
_GAP = SourceError("annotation", "track has no box on a frame", _AGAIN)


def _read_with(files: SourceFiles, options: LayoutOptions) -> Read:
    """Return the function that reads one file of a source."""

    def read(path: str, data: bytes) -> Iterator[FilePicture] | None:
        root = parse_xml_document(data)
        # The name of the root alone is too common.
        if root.tag != "annotations" or (root.find("image") is None and root.find("track") is None):
            return None
        videos = _Videos.of(files, path)
        tasks = {subset: _Task.of(task, videos) for subset, task in _tasks(root)}
        return chain(_images(root, path, tasks, options), _frames(root, path, tasks, options))

    return read


@dataclass(frozen=True, kw_only=True)
class _Videos:
    """Names of the videos of a source, and that of the only video in the folder of a file; "" without one."""

    names: frozenset[str]
    beside: str

    @classmethod
    def of(cls, files: SourceFiles, path: str) -> _Videos:
        """Return the videos beside an annotation file."""
        folder = posixpath.dirname(path)
        paths = [one for one in files.sizes() if is_video_name(one)]
        near = [posixpath.basename(one) for one in paths if posixpath.dirname(one) == folder]
        names = frozenset(map(posixpath.basename, paths))
        return cls(names=names, beside=near[0] if len(near) == 1 else "")


@dataclass(frozen=True, kw_only=True)
class _Task:
    """Description of a task: its frames, the height and width of its frames as written, and the name of its video.

    Only tasks of videos have a size.
    """

    frames: range | None = None
    size: tuple[str | None, str | None] = (None, None)
    video: str = ""

    @classmethod
    def of(cls, task: ElementTree.Element, videos: _Videos) -> _Task:
        """Return the facts of the element <task> or <job>."""
        source = posixpath.basename((task.findtext("source") or "").replace("\\", "/"))
        source = source if is_video_name(source) else ""
        size = task.findtext("original_size/height"), task.findtext("original_size/width")
        # A video that was renamed is the only one beside the file; without any, it may be below --images.
        video = source if source in videos.names else videos.beside or source
        return cls(frames=_range_of(task), size=size, video=video)

    @property
    def is_video(self) -> bool:
        """Return whether the pictures of the task are frames of a video."""
        return None not in self.size

    def frame(self, number: int) -> tuple[str, int] | None:
        """Return the frame as `FilePicture.frame` has it."""
        return (self.video, number) if self.video else None


def _images(
    root: ElementTree.Element, path: str, tasks: Mapping[str, _Task], options: LayoutOptions
) -> Iterator[FilePicture]:
    for place, image in enumerate(root.iterfind("image")):
        name, size = image.get("name", ""), (image.get("height"), image.get("width"))
        subset = image.get("subset", "")
        task, number = tasks.get(subset, _Task()), _FRAME_NAME.fullmatch(name)
        is_frame = task.is_video and number is not None
        yield FilePicture(
            name=name if is_image_name(name) else "",
            stem=name,
            size=size,
            objects=[(one.get("label"), one, size, None) for one in image if one.tag != "tag"],
            classes=[name for tag in image.iterfind("tag") if (name := tag.get("label", "").strip())],
            # Frames of one video are near copies, so that no two of them are in two splits.
            group=f"{path} {subset}".rstrip() if is_frame else None,
            frame=task.frame(int(number[1])) if is_frame and number else None,
            fault=fault_of_stride(place, options) if is_frame else None,
            **_of_subset(subset),
        )


def _frames(
    root: ElementTree.Element, path: str, tasks: Mapping[str, _Task], options: LayoutOptions
) -> Iterator[FilePicture]:
    """Yield the frames of all tracks, and the others of the video if the file says how many it has."""
    _refuse_several_tasks(root)
    frames, gaps = _shapes_of_frames(root, tasks)
    ranges = {subset: task.frames for subset, task in tasks.items() if task.frames is not None}
    empty = ((subset, frame) for subset, numbers in ranges.items() for frame in numbers)
    places: Counter[str] = Counter()
    # Without any track, the file is one of images.
    for key in sorted(gaps.union(frames, empty)) if frames else ():
        stride = fault_of_stride(places[key[0]], options)
        places[key[0]] += 1
        yield FilePicture(
            name="",
            stem=f"frame_{key[1]:06d}",
            objects=frames.get(key, []),
            fault=stride or (_GAP if key in gaps else None),
            # A frame on which a track only ends has no object, and may not be exported.
            optional=key not in gaps and all(_is_outside(shape) for _, shape, *_ in frames.get(key, ())),
            group=f"{path} {key[0]}".rstrip(),
            frame=tasks.get(key[0], _Task()).frame(key[1]),
            notes=(_INTERPOLATED,) if any(between for *_, between in frames.get(key, ())) else (),
            **_of_subset(key[0]),
        )


def _shapes_of_frames(
    root: ElementTree.Element, tasks: Mapping[str, _Task]
) -> tuple[dict[_Frame, list[_Written]], set[_Frame]]:
    """Return the shapes of all tracks on each frame, and the frames on which a track has none that is known."""
    frames: dict[_Frame, list[_Written]] = {}
    gaps: set[_Frame] = set()
    count = 0
    for track in root.iterfind("track"):
        subset, label = track.get("subset", ""), track.get("label")
        task = tasks.get(subset, _Task())
        for frame, shape, between in _shapes_of_track(track, task):
            count += 1
            if count > _MAX_SHAPES:  # numbers in a file cost nothing
                raise _GAP
            if shape is None:
                gaps.add((subset, frame))
            else:
                frames.setdefault((subset, frame), []).append((label, shape, task.size, between))
    return frames, gaps


def _shapes_of_track(
    track: ElementTree.Element, task: _Task
) -> Iterator[tuple[int, ElementTree.Element | None, _Between | None]]:
    """Yield each frame of a track with its shape and, between two key frames, the next shape and the way to it.

    CVAT's export writes the box of every frame, and `outside="1"` where a shape disappears. Where frames are missing,
    the file has key frames, between which CVAT interpolates. A shape that is visible at the last key frame stays until
    the end of the video. The shape is None where CVAT's rule is not known here.

    Source: `TrackManager` of CVAT (cvat/apps/dataset_manager/annotation.py).
    """
    entries = _entries_of_track(track)
    step = 1 if task.frames is None else task.frames.step
    has_key_frames = False
    for (frame, shape), (following, after) in pairwise(entries):
        yield frame, shape, None
        if _stays(shape) and frame + step < following:
            has_key_frames = True
            yield from _between_key_frames((frame, shape), (following, after), step)
    for frame, shape in entries[-1:]:
        yield frame, shape, None
        if has_key_frames and task.frames is not None and _stays(shape):
            for number in range(frame + step, task.frames.stop, step):
                yield number, shape, (shape, 0.0)


def _stays(shape: ElementTree.Element) -> bool:
    """Return whether a shape is visible until the next one of its track."""
    # The points of a skeleton are inside of it, each with its own frames.
    return not _is_outside(shape) and shape.tag != "skeleton"


def _between_key_frames(
    first: tuple[int, ElementTree.Element], second: tuple[int, ElementTree.Element], step: int
) -> Iterator[tuple[int, ElementTree.Element | None, _Between | None]]:
    """Yield the frames between two key frames, as `_shapes_of_track` does."""
    (frame, shape), (following, after) = first, second
    is_known = shape.tag == after.tag and shape.tag in _INTERPOLATED_SIDES and _are_key_frames(shape, after)
    for number in range(frame + step, following, step):
        share = (number - frame) / (following - frame)
        yield number, shape if is_known else None, (after, share) if is_known else None


def _are_key_frames(*shapes: ElementTree.Element) -> bool:
    """Return whether shapes may be those of key frames; CVAT's export marks others with keyframe="0"."""
    return all(shape.get("keyframe", "1") != "0" for shape in shapes)


def _interpolated(shape: ElementTree.Element, between: _Between) -> ElementTree.Element:
    """Return a shape a part of the way to the next one: each side on a line, and the rotation on the shorter way."""
    following, share = between
    found = ElementTree.Element(shape.tag, dict(shape.attrib))
    found.extend(shape)
    for side in _INTERPOLATED_SIDES.get(shape.tag, ()):
        start, end = (parse_number(one.get(side), side) for one in (shape, following))
        found.set(side, repr(start + (end - start) * share))
    start, end = (parse_number(one.get("rotation") or 0, "rotation") for one in (shape, following))
    turn = (end - start + 180) % 360 - 180
    if start or turn:
        found.set("rotation", repr((start + turn * share) % 360))
    return found


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


def _range_of(task: ElementTree.Element) -> range | None:
    """Return the frames of a task, from its first to its last in steps of its frame_filter; None without them."""
    first, last = (task.findtext(name, "") for name in ("start_frame", "stop_frame"))
    step = task.findtext("frame_filter", "").rpartition("step=")[2].strip() or "1"
    # Damaged or absent numbers are ignored; a million frames are more than any task has.
    if not all(one.isdecimal() and int(one[:9]) < _MAX_FRAMES for one in (first, last, step)):
        return None
    return range(int(first), int(last) + 1, int(step)) if int(step) else None


def _box_of(written: _Written, what: str, options: LayoutOptions) -> Box | None:
    name, shape, size, between = written
    shape = shape if between is None else _interpolated(shape, between)
    # A track's shape is not visible on this frame, where CVAT repeats its last box.
    if _is_outside(shape):
        return None
    label, kind, flags = class_of(name, what), str(shape.tag), _flags(shape)
    what = f"{what} ({kind} {label!r})"
    if kind == "polygon":
        return polygon_of(label, _polygon_points(shape, between, what), what, options, **flags)
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


def _polygon_points(shape: ElementTree.Element, between: _Between | None, what: str) -> list[float]:
    """Return x, y, x, y, ... of a polygon, a part of the way to the next one if it is between key frames."""
    points = _written_points(shape, what)
    if between is None or not between[1]:
        return points
    from halofeed.prep.annotations.polygon_tracks import (
        polygon_between,
    )  # NumPy, which most files do not need

    found = polygon_between(points, _written_points(between[0], what), between[1])
    if found is None:
        detail = f"{what}: all points of a key frame are the same, so that none are known between them"
        raise SourceError("annotation", "polygon has no extent", detail)
    return found


def _written_points(shape: ElementTree.Element, what: str) -> list[float]:
    return points_of([pair.split(",") for pair in shape.get("points", "").split(";")], what)


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
    read_with=_read_with,
    box_of=_box_of,
    grid="displayed",
    keeps=("corners", "occluded"),
    has_classes=True,
)
