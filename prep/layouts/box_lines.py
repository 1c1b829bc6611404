"""Readers of text files with a box in each line: KITTI's objects, and WIDER FACE."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any

from halofeed.prep.annotations.annotation_tools import DocumentFormat, FilePicture
from halofeed.prep.annotations.contract import LayoutOptions, split_in_file_name
from halofeed.prep.annotations.written_boxes import class_of, numbers_of, rectangle_of, region_of
from halofeed.prep.sources.example import Box
from halofeed.prep.sources.file_names import is_image_name
from halofeed.system.errors import SourceError
from halofeed.system.wording import plural

# KITTI: label_2/000001.txt for image_2/000001.png ---------------------------------------------------------
#
# The rules are those of KITTI's development kit for objects (readme.txt). Coordinates count from 0 and are taken as
# they are written, as KITTI's own evaluation does. `DontCare` marks regions without labels, which are ignored regions.

_FOLDER = re.compile(r"(^|/)label(?=(s|_\d+)?/[^/]*$)")
_KITTI_VALUES = 15
_DONT_CARE = "DontCare"
_IGNORED = "DontCare regions are ignored regions: training and evaluation leave them out"


def _read_kitti(path: str, data: bytes) -> list[FilePicture] | None:
    # Folders beside label_2, such as calib, have other text files, so the folder or the rows identify KITTI's files.
    is_label_folder = _FOLDER.search(path) is not None
    try:
        rows = [line.split() for line in data.decode("utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        if not is_label_folder:
            return None
        raise SourceError("annotation", "label file is no text", str(error)) from error
    if not is_label_folder and not any(len(row) in (_KITTI_VALUES, _KITTI_VALUES + 1) for row in rows):
        return None
    stem = _FOLDER.sub(r"\1image", posixpath.splitext(path)[0])
    notes = (_IGNORED,) if any(row[0] == _DONT_CARE for row in rows) else ()
    return [FilePicture(name="", stem=stem, objects=rows, notes=notes)]


def _box_of_kitti(row: Sequence[str], what: str, options: LayoutOptions) -> Box:
    # KITTI's readme: 15 columns; results for its evaluation have a score as the 16th.
    if len(row) != _KITTI_VALUES:
        has_score = len(row) == _KITTI_VALUES + 1
        more = "; a sixteenth is a score: these are predictions, remove it" if has_score else ""
        detail = f"{what}: {plural(len(row), 'value')}, expected {_KITTI_VALUES}{more}"
        raise SourceError("annotation", "row is no object", detail)
    truncated, occluded, _, *sides = numbers_of(row[1:8], what)
    # KITTI's readme: DontCare denotes regions in which objects have not been labeled.
    if row[0] == _DONT_CARE:
        return region_of(sides, what, options)
    # Occlusion: 0 is visible, 1 partly and 2 largely occluded, 3 unknown.
    flags: dict[str, Any] = {"truncated": truncated > 0, "occluded": occluded in (1, 2)}
    return rectangle_of(class_of(row[0], what), sides, what, options, **flags)


KITTI = DocumentFormat(
    layout="kitti",
    summary="KITTI's objects: label_2/000001.txt with image_2/000001.png",
    extensions=(".txt",),
    expected=f"text files with {_KITTI_VALUES} values a line, such as label_2/000001.txt with image_2/000001.png",
    read=_read_kitti,
    box_of=_box_of_kitti,
    of_one_picture=True,
    has_masks=False,
    keeps=("occluded",),
)


# WIDER FACE: wider_face_split/wider_face_train_bbx_gt.txt with the pictures of WIDER_train/images ---------
#
# The rules are those of WIDER FACE's readme.txt: the path of a picture, the number of its faces, and a line for each
# face with `x y width height blur expression illumination invalid occlusion pose`. All objects are faces.

_WIDER_VALUES = 10
_INVALID, _OCCLUSION = 7, 8
_UNREAD = "blur, expression, illumination and pose of faces are not read; invalid faces are difficult"


def _read_wider(path: str, data: bytes) -> Iterator[FilePicture] | None:
    lines = [line.strip() for line in data.decode("utf-8-sig", "replace").splitlines()]
    # Text files have no mark of their format; the first two lines are the form of WIDER's.
    if len(lines) < 2 or not is_image_name(lines[0]) or not lines[1].isdecimal():
        return None
    split = split_in_file_name(path) or ""
    return _wider_pictures(lines, tuple(f"{up}WIDER_{split}/images" for up in ("", "../")))


def _wider_pictures(lines: Sequence[str], folders: tuple[str, ...]) -> Iterator[FilePicture]:
    place = 0
    while place < len(lines):
        name, count = lines[place], "".join(lines[place + 1 : place + 2])
        # A lost line would shift all further pictures, so the file ends here.
        if not is_image_name(name) or not count.isdecimal():
            detail = f"line {place + 1}: expected the path of a picture and the number of its faces, got {name[:60]!r}"
            raise SourceError("annotation", "lines are no list of faces", detail)
        place += 2
        rows = [line.split() for line in lines[place : place + int(count)]]
        place += len(rows)
        # A cut file: the last picture would have fewer faces than it shows.
        if len(rows) < int(count) or any(len(row) != _WIDER_VALUES for row in rows):
            detail = f"line {place}: {name} has {count} faces with {_WIDER_VALUES} values each"
            raise SourceError("annotation", "lines are no list of faces", detail)
        yield FilePicture(name=name, folders=folders, objects=rows, notes=(_UNREAD,) if rows else ())
        place = _next_picture(lines, place, has_faces=bool(rows))


def _next_picture(lines: Sequence[str], place: int, *, has_faces: bool) -> int:
    """Return the line of the next picture. One without faces has a line of zeros; files may end with blank lines."""
    if not has_faces and "".join(lines[place : place + 1]).split() == ["0"] * _WIDER_VALUES:
        place += 1
    while place < len(lines) and not lines[place]:
        place += 1
    return place


def _box_of_face(row: Sequence[str], what: str, options: LayoutOptions) -> Box:
    numbers = numbers_of(row, what)
    flags = {"difficult": numbers[_INVALID] > 0, "occluded": numbers[_OCCLUSION] > 0}
    return rectangle_of("face", numbers[:4], what, options, form="corner-size", **flags)


WIDER = DocumentFormat(
    layout="wider",
    summary="WIDER FACE: wider_face_train_bbx_gt.txt with WIDER_train/images",
    extensions=(".txt",),
    expected="a text file of WIDER FACE: the path of a picture, the number of its faces, and a line for each face",
    read=_read_wider,
    box_of=_box_of_face,
    has_masks=False,
    keeps=("occluded",),
)
