"""Reader of the MOT challenge: SEQUENCE/gt/gt.txt with SEQUENCE/img1/000001.jpg and SEQUENCE/seqinfo.ini.

The rules are those of motchallenge.net/instructions and of TrackEval (`trackeval/datasets/mot_challenge_2d_box.py`):

- A line is `frame, id, left, top, width, height, confidence, class, visibility`; in 2015 the last three are a place in
  the world. Frames and pixels count from 1.
- Confidence 0 marks a box that evaluation does not consider. Classes 7 (static person), 8 (distractor) and 12
  (reflection) are distractors: a detection of them is neither right nor wrong. Both are ignored regions here.
- Files of `det/` are detections and no annotations.
- The MOT17 archive has each sequence three times, with the detections of three detectors.

Other tools write `gt/labels.txt` with a class in each line.
"""

from __future__ import annotations

import configparser
import hashlib
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from halofeed.prep.annotations.annotation_tools import DocumentContent, DocumentFormat, Read, list_documents
from halofeed.prep.annotations.contract import LayoutOptions, Listing
from halofeed.prep.annotations.documents import read_limited
from halofeed.prep.annotations.frame_rows import (
    FrameSequence,
    pictures_of_sequence,
    read_rows,
    refuse_single_file,
)
from halofeed.prep.annotations.written_boxes import numbers_of, rectangle_of, region_of
from halofeed.prep.sources.example import Box
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import SourceError

_CLASSES: Final = (
    *("pedestrian", "person_on_vehicle", "car", "bicycle", "motorbike", "non_mot_vehicle", "static_person"),
    *("distractor", "occluder", "occluder_on_ground", "occluder_full", "reflection", "crowd"),
)
"""Classes from 1, by TrackEval's names."""
_DISTRACTORS = (7, 8, 12)
_VALUES = (9, 10)
_WITH_VISIBILITY = 9
_NO_CLASS = -1
"""Class of the files of 2015, whose objects are all pedestrians."""
_DIGITS = 6
_MAX_BYTES = 1 << 20
_MAX_SHARE_BELOW_ONE = 0.01
"""Share of boxes at 0 above which pixels count from 0 (an estimate, as for VOC)."""
_IGNORED = "boxes of confidence 0 and of classes 7, 8 and 12 are ignored regions, left out of training and evaluation"
_FROM_ZERO = "boxes count from 0, as {}; MOT counts pixels from 1; --box-origin 1 shifts them"
_UNREAD = "numbers of tracks are not read"


@dataclass(frozen=True, kw_only=True)
class _Row:
    """Cells of a line, the number of the first pixel, and the names of classes from 1; () for those of MOT."""

    cells: Sequence[str]
    origin: int
    names: Sequence[str]


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Listing:
    """Yield an example for every frame of the sequences; see `list_documents`."""
    refuse_single_file(annotation_file)
    # The rows become boxes from 0 here, so that no later step shifts them.
    form = replace(MOT, read_with=partial(_read_with, images=images, box_origin=options.box_origin))
    return list_documents(form, annotations, images, annotation_file, replace(options, box_origin=None))


def _read_with(
    files: SourceFiles, options: LayoutOptions, images: SourceFiles, box_origin: int | None
) -> Read:
    """Return the function that reads one gt.txt; it knows the sequences before, of which others may be copies."""
    first_of: dict[tuple[str, tuple[int | None, ...]], str] = {}

    def read(path: str, data: bytes) -> DocumentContent | None:
        above, folder = posixpath.split(posixpath.dirname(path))
        # det/det.txt has lines of the same form.
        if folder != "gt" or posixpath.basename(path) != "gt.txt":
            return None
        rows = read_rows(data, _VALUES)
        if rows is None:
            return None
        names = _text(files, posixpath.join(above, "gt", "labels.txt")).split("\n")
        names = [name.strip() for name in names if name.strip()]
        facts = _facts(files, posixpath.join(above, "seqinfo.ini"))
        frames = posixpath.join(above, facts.get("imdir", "img1"))
        origin, why = _origin(rows, box_origin)
        fault = None
        if rows and (found := images.files_in(frames)):
            # Copies have equal frames too, so that their files have equal sizes.
            facts_of_copy = (hashlib.sha256(data).hexdigest(), tuple(map(images.size, found)))
            first = first_of.setdefault(facts_of_copy, above)
            if first != above:
                fault = SourceError(
                    "selection", "sequence is a copy", f"{first} has the same boxes and frames"
                )
        sequence = FrameSequence(
            path=path,
            folder=frames,
            digits=_DIGITS,
            length=int(length) if (length := facts.get("seqlength", "")).isdecimal() else 0,
            size=(facts.get("imheight"), facts.get("imwidth")),
            notes=(_UNREAD, *why, *((_IGNORED,) if any(map(_is_region, _cells(rows))) else ())),
            fault=fault,
        )
        objects = {
            frame: [_Row(cells=cells, origin=origin, names=names) for cells in some]
            for frame, some in rows.items()
        }
        return DocumentContent(
            pictures=pictures_of_sequence(images, sequence, objects, options), classes=names
        )

    return read


def _cells(rows: Mapping[int, Sequence[Sequence[str]]]) -> Iterator[Sequence[str]]:
    return (cells for some in rows.values() for cells in some)


def _text(files: SourceFiles, path: str) -> str:
    """Return the text of a file; "" if there is none."""
    if files.size(path) is None:
        return ""
    return read_limited(files, path, "file of a sequence", _MAX_BYTES).decode("utf-8-sig", "replace")


def _facts(files: SourceFiles, path: str) -> Mapping[str, str]:
    """Return the values of seqinfo.ini, such as imWidth, by their names in lower case; {} without the file."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(_text(files, path))
    except configparser.Error as error:
        raise SourceError("annotation", "seqinfo.ini is damaged", f"{path}: {error}") from error
    return {name: value for section in parser.sections() for name, value in parser.items(section)}


def _origin(rows: Mapping[int, Sequence[Sequence[str]]], stated: int | None) -> tuple[int, tuple[str, ...]]:
    """Return the number of the first pixel, and a remark where the boxes contradict MOT's rule."""
    if stated is not None:
        return stated, ()
    corners = [numbers_of(cells[2:4], "box") for cells in _cells(rows)]
    # A box may leave the picture, so a corner below 0 says nothing, and one at 0 only where none is below.
    if any(not side.is_integer() for corner in corners for side in corner):
        return 0, (_FROM_ZERO.format("they have fractions"),)
    at_zero = sum(0 in corner for corner in corners)
    if at_zero > _MAX_SHARE_BELOW_ONE * len(corners) and min(map(min, corners), default=1) == 0:
        return 0, (_FROM_ZERO.format(f"{at_zero:,} of {len(corners):,} begin at 0"),)
    return 1, ()


def _is_region(cells: Sequence[str], names: Sequence[str] = ()) -> bool:
    """Return whether a line is an ignored region: of confidence 0, or a distractor of MOT's own classes."""
    confidence, number = numbers_of(cells[6:8], "confidence and class")
    return confidence == 0 or (not names and number in _DISTRACTORS)


def _box_of(row: _Row, what: str, options: LayoutOptions) -> Box:
    _, _, left, top, width, height, confidence, number, visibility = numbers_of(row.cells[:9], what)
    sides = [left - row.origin, top - row.origin, width, height]
    if _is_region(row.cells, row.names):
        return region_of(sides, what, options, form="corner-size")
    # Files of results have the confidence of a detection there.
    if confidence not in (1, -1):
        detail = f"{what}: confidence {row.cells[6]}; expected 0 or 1; others are those of detections"
        raise SourceError("annotation", "confidence is not 0 or 1", detail)
    has_visibility = len(row.cells) == _WITH_VISIBILITY and 0 <= visibility < 1
    return rectangle_of(
        _class_of(int(number), row), sides, what, options, form="corner-size", occluded=has_visibility
    )


def _class_of(number: int, row: _Row) -> str:
    if number == _NO_CLASS:
        return _CLASSES[0]
    names = row.names or _CLASSES
    # Other data sets of this form number their own classes.
    return names[number - 1] if 1 <= number <= len(names) else str(number)


MOT = DocumentFormat(
    layout="mot",
    summary="MOT challenge: SEQUENCE/gt/gt.txt with SEQUENCE/img1/000001.jpg and seqinfo.ini",
    extensions=(".txt",),
    expected="SEQUENCE/gt/gt.txt with frame,id,left,top,width,height,confidence,class,visibility in each line, and "
    "SEQUENCE/img1/000001.jpg",
    box_of=_box_of,
    has_masks=False,
    keeps=("occluded",),
)
