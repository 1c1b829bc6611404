"""Reader of VisDrone's videos: annotations/SEQUENCE.txt with sequences/SEQUENCE/0000001.jpg.

The rules are those of VisDrone's toolkit for videos (github.com/VisDrone/VisDrone2018-VID-toolkit, README). A line is
`frame, target, left, top, width, height, score, category, truncation, occlusion`, with frames from 1. Score and
category mean what they do in the files of images, see `halofeed.prep.layouts.visdrone`.
"""

from __future__ import annotations

import posixpath
from dataclasses import replace
from functools import partial

from halofeed.prep.annotations.annotation_tools import DocumentContent, DocumentFormat, Read, list_documents
from halofeed.prep.annotations.contract import LayoutOptions, Listing, split_in_file_name
from halofeed.prep.annotations.frame_rows import (
    FrameSequence,
    pictures_of_sequence,
    read_rows,
    refuse_single_file,
)
from halofeed.prep.layouts.visdrone import IGNORED, box_of, is_region
from halofeed.prep.sources.files import SourceFiles

_VALUES = 10
_OF_OBJECT = slice(2, _VALUES)
"""Values of a line that an image's line has too."""
_DIGITS = 7
_UNREAD = "numbers of targets are not read"


def list_references(
    annotations: SourceFiles, images: SourceFiles, annotation_file: str | None, options: LayoutOptions
) -> Listing:
    """Yield an example for every frame of the sequences; see `list_documents`."""
    refuse_single_file(annotation_file)
    form = replace(VISDRONE_VIDEO, read_with=partial(_read_with, images=images))
    return list_documents(form, annotations, images, annotation_file, options)


def _read_with(files: SourceFiles, options: LayoutOptions, images: SourceFiles) -> Read:
    def read(path: str, data: bytes) -> DocumentContent | None:
        above, folder = posixpath.split(posixpath.dirname(path))
        name = posixpath.splitext(posixpath.basename(path))[0]
        if folder.lower() != "annotations":
            return None
        rows = read_rows(data, (_VALUES,))
        if rows is None:
            return None
        objects = {frame: [cells[_OF_OBJECT] for cells in some] for frame, some in rows.items()}
        has_regions = any(is_region(row) for some in objects.values() for row in some)
        sequence = FrameSequence(
            path=path,
            folder=posixpath.join(above, "sequences", name),
            digits=_DIGITS,
            notes=(_UNREAD, *((IGNORED,) if has_regions else ())),
        )
        pictures = pictures_of_sequence(images, sequence, objects, options)
        # VisDrone2019-VID-val/annotations: the name of the folder above ends with the split.
        split = split_in_file_name(posixpath.basename(above)) or ""
        return DocumentContent(pictures=[replace(one, split=split) for one in pictures])

    return read


VISDRONE_VIDEO = DocumentFormat(
    layout="visdrone-video",
    summary="VisDrone's videos: annotations/SEQUENCE.txt with sequences/SEQUENCE/0000001.jpg",
    extensions=(".txt",),
    expected="text files with frame,target,left,top,width,height,score,category,truncation,occlusion in each line, "
    "such as annotations/uav0000013_00000_v.txt with sequences/uav0000013_00000_v/0000001.jpg",
    box_of=box_of,
    has_masks=False,
    keeps=("occluded",),
)
