"""Reader of VisDrone's text files for detection: annotations/0000001.txt with images/0000001.jpg.

The rules are those of VisDrone's toolkit for detection in images (github.com/VisDrone/VisDrone2018-DET-toolkit, README
and `dropObjectsInIgr.m`):

- A line is `left, top, width, height, score, category, truncation, occlusion`, in pixels from 0. Some lines end with a
  comma.
- Category 0 is an ignored region. A detection with half of its area or more inside is neither right nor wrong.
- Score 0 means that the box is not considered in the evaluation. Categories 1 to 10 with it are crowds: ignored for
  their own class. Category 11, others, is no class of the evaluation; with score 0, as in all published files, it is an
  ignored region too.
- Truncation is 0 or 1, and occlusion 0 to 2.

VisDrone's files of videos have ten numbers in each line, and belong to another layout.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import Final

from halofeed.prep.annotations.annotation_tools import DocumentFormat, FilePicture
from halofeed.prep.annotations.contract import LayoutOptions, split_in_file_name
from halofeed.prep.annotations.written_boxes import numbers_of, rectangle_of, region_of
from halofeed.prep.sources.example import Box
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import SourceError
from halofeed.system.wording import plural

CLASSES: Final = (
    *(
        "pedestrian",
        "people",
        "bicycle",
        "car",
        "van",
        "truck",
        "tricycle",
        "awning-tricycle",
        "bus",
        "motor",
    ),
    "others",
)
"""Classes of the categories from 1."""
_VALUES = 8
_ROW = re.compile(rf"-?\d+(\s*,\s*-?\d+){{{_VALUES - 1}}}\s*,?")
_FOLDER = re.compile(r"(^|/)annotations(?=/)", re.IGNORECASE)
IGNORED: Final = (
    "boxes of category 0, and of 11 with score 0, are ignored regions: training and evaluation leave them out"
)
"""Note on the ignored regions of a file."""


def _read(path: str, data: bytes) -> list[FilePicture] | None:
    is_label_folder = _FOLDER.search(path) is not None
    try:
        lines = [line.strip() for line in data.decode("utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError:
        return None  # other text files need not be UTF-8
    # An empty file of the folder is a picture without objects. Other folders have text files of other kinds.
    if lines and not any(map(_ROW.fullmatch, lines)):
        return None
    if not lines and not is_label_folder:
        return None
    rows = [[cell.strip() for cell in line.removesuffix(",").split(",")] for line in lines]
    # VisDrone2019-DET-val/annotations: the name of the folder above ends with the split.
    above = posixpath.basename(posixpath.dirname(posixpath.dirname(path)))
    picture = FilePicture(
        name="",
        stem=posixpath.splitext(posixpath.basename(path))[0],
        folders=("../images",),
        split=split_in_file_name(above) or "",
        objects=rows,
        optional=not lines,
        notes=(IGNORED,) if any(map(is_region, rows)) else (),
    )
    return [picture]


def is_region(row: Sequence[str]) -> bool:
    """Return whether the cells of a line are an ignored region."""
    return row[5:6] == ["0"] or row[4:6] == ["0", str(len(CLASSES))]


def box_of(row: Sequence[str], what: str, options: LayoutOptions) -> Box:
    """Return the box of the cells of a line, or its ignored region; raise SourceError if it is neither."""
    if len(row) != _VALUES:
        detail = (
            f"{what}: {plural(len(row), 'value')}; expected left, top, width, height, score, category, truncation, "
            "occlusion"
        )
        raise SourceError("annotation", "row is no object", detail)
    *sides, score, category, truncation, occlusion = numbers_of(row, what)
    if is_region(row):
        return region_of(sides, what, options, form="corner-size")
    if category not in range(1, len(CLASSES) + 1):
        detail = f"{what}: category {row[5]}; expected 0 to {len(CLASSES)}"
        raise SourceError("annotation", "category is unknown", detail)
    # Results for VisDrone's server have the confidence of a detection there.
    if score not in (0, 1):
        detail = f"{what}: score {row[4]}; expected 0 or 1; other scores are those of predictions"
        raise SourceError("annotation", "score is not 0 or 1", detail)
    label = CLASSES[int(category) - 1]
    flags = {"is_crowd": score == 0, "truncated": truncation > 0, "occluded": occlusion > 0}
    return rectangle_of(label, sides, what, options, form="corner-size", **flags)


def list_labels(annotations: SourceFiles, annotation_file: str | None) -> tuple[str, ...]:
    """Return the classes of the evaluation in VisDrone's order; so ids do not depend on the objects of a subset."""
    return CLASSES[:-1]


VISDRONE = DocumentFormat(
    layout="visdrone",
    summary="VisDrone's images: annotations/0000001.txt with images/0000001.jpg",
    extensions=(".txt",),
    expected="text files with left,top,width,height,score,category,truncation,occlusion in each line, such as "
    "annotations/0000001.txt with images/0000001.jpg",
    read=_read,
    box_of=box_of,
    of_one_picture=True,
    has_masks=False,
    keeps=("occluded",),
)
