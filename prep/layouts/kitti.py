"""Reader of KITTI's objects: label_2/000001.txt for image_2/000001.png, with a box in pixels in each line.

The rules are those of KITTI's development kit for objects (readme.txt). Coordinates count from 0 and are taken as they
are written, as KITTI's own evaluation does. `DontCare` marks regions without labels and is no object.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from halofeed.errors import SourceError
from halofeed.prep.annotations import shapes
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.documents import DocumentFormat, FilePicture
from halofeed.prep.sources.example import Box
from halofeed.system.wording import plural

_FOLDER = re.compile(r"(^|/)label(?=(s|_\d+)?/[^/]*$)")
_VALUES = 15
_DONT_CARE = "DontCare"
_LEFT_OUT = "DontCare regions are left out; objects in them have no label"


def _read(path: str, data: bytes) -> list[FilePicture] | None:
    try:
        rows = [line.split() for line in data.decode("utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        if not _FOLDER.search(path):
            return None
        raise SourceError("annotation", "label file is no text", str(error)) from error
    if not _FOLDER.search(path) and not any(len(row) in (_VALUES, _VALUES + 1) for row in rows):
        return None
    stem = _FOLDER.sub(r"\1image", posixpath.splitext(path)[0])
    notes = (_LEFT_OUT,) if any(row[0] == _DONT_CARE for row in rows) else ()
    return [FilePicture(name="", stem=stem, objects=rows, notes=notes)]


def _box_of(row: Sequence[str], what: str, options: LayoutOptions) -> Box | None:
    if len(row) != _VALUES:
        more = "; a sixteenth is a score: these are predictions, remove it" if len(row) == _VALUES + 1 else ""
        raise SourceError(
            "annotation", "row is no object", f"{what}: {plural(len(row), 'value')}, expected {_VALUES}{more}"
        )
    truncated, occluded, _, *sides = shapes.numbers_of(row[1:8], what)
    if row[0] == _DONT_CARE:
        return None
    # Occlusion: 0 is visible, 1 partly and 2 largely occluded, 3 unknown.
    flags = {"truncated": truncated > 0, "occluded": occluded in (1, 2)}
    return shapes.rectangle_of(shapes.class_of(row[0], what), sides, what, options, flags=flags)


KITTI = DocumentFormat(
    layout="kitti",
    summary="KITTI's objects: label_2/000001.txt with image_2/000001.png",
    extensions=(".txt",),
    expected=f"text files with {_VALUES} values a line, such as label_2/000001.txt with image_2/000001.png",
    read=_read,
    box_of=_box_of,
    of_one_picture=True,
    has_masks=False,
    keeps=("occluded",),
)
