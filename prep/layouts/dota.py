"""Reader of DOTA's text files: images/P0000.png with labelTxt/P0000.txt, the corners of one object in each line.

The rules are those of DOTA's development kit (github.com/CAPTAIN-WHU/DOTA_devkit, `parse_dota_poly` of
`dota_utils.py`) and of the versions 1.0, 1.5 and 2.0:

- A line is `x1 y1 x2 y2 x3 y3 x4 y4 class difficult`, in continuous pixels from 0. A line of nine values is not
  difficult.
- Lines before them are about the picture: `acquisition dates:`, `imagesource:` and `gsd:`, the ground sample distance
  in meters per pixel, which --gsd-m takes.
- difficult is 0 or 1, or 2 for an object of which the kit's `ImgSplit.py` cut off most. 2 is read as difficult and
  truncated.
- Pictures are shown with their EXIF orientation applied: the kit and mmrotate read them with OpenCV.
- The area of an object is that of the polygon of its corners.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Sequence

from halofeed.prep.annotations.annotation_tools import DocumentFormat, FilePicture
from halofeed.prep.annotations.classes_beside import classes_beside, ordered_classes
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.written_boxes import (
    check_corners,
    check_oriented,
    class_of,
    numbers_of,
    polygon_of,
    with_filled_share,
)
from halofeed.prep.sources.example import Box
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import SourceError
from halofeed.system.wording import plural

_FOLDER = re.compile(r"(^|/)labelTxt[^/]*/", re.IGNORECASE)
"""Folder of DOTA's labels: labelTxt, labelTxt-v1.5, or labelTxt-v2.0 above one more folder."""
_ABOUT = re.compile(r"\s*(acquisition dates|imagesource|gsd)\s*:\s*(.*?)\s*", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_SIDES = 8
_CUT = 2
"""Value of `difficult` for an object that a split of its picture cut."""
_LEVELS = {"0": 0, "1": 1, "2": _CUT}


def _read(path: str, data: bytes) -> list[FilePicture] | None:
    is_label_folder = _FOLDER.search(path) is not None
    try:
        lines = [line for line in data.decode("utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        # Other text files need not be UTF-8.
        if not is_label_folder:
            return None
        raise SourceError("annotation", "label file is no text", str(error)) from error
    about = {found[1].lower(): found[2] for line in lines if (found := _ABOUT.fullmatch(line))}
    rows = [line.split() for line in lines if not _ABOUT.fullmatch(line)]
    # DOTA's files have no mark of their format but their folder, the lines about the picture, and the form of rows.
    if not is_label_folder and not about and not any(map(_is_row, rows)):
        return None
    stem = posixpath.splitext(posixpath.basename(path))[0]
    picture = FilePicture(
        name="",
        stem=stem,
        folders=_image_folders(path),
        objects=rows,
        gsd_m=_distance(about.get("gsd", "")),
        # Text that says nothing, such as `gsd:null` or `gsd:None`, is none.
        attributes={name: text for name, text in about.items() if text.lower() not in ("", "null", "none")},
    )
    return [picture]


def _distance(text: str) -> float | None:
    """Return the ground sample distance of a line `gsd:`; None for null, None, 0 and other texts that are none."""
    value = float(text) if _NUMBER.fullmatch(text) else 0.0
    return value if 0 < value < math.inf else None


def list_labels(annotations: SourceFiles, annotation_file: str | None) -> tuple[str, ...]:
    """Return the classes of a class table in the folder itself, such as that of halofeed's export; () without one."""
    return ordered_classes(classes_beside(annotations, [""]))


def _is_row(row: Sequence[str]) -> bool:
    """Return whether the values of a line are eight numbers, a class, and perhaps a level of difficulty."""
    is_long_enough = len(row) in (_SIDES + 1, _SIDES + 2) and all(map(_NUMBER.fullmatch, row[:_SIDES]))
    return (
        is_long_enough
        and not _NUMBER.fullmatch(row[_SIDES])
        and row[_SIDES + 1 :] in ([], *map(list, _LEVELS))
    )


def _image_folders(path: str) -> tuple[str, ...]:
    """Return the folders of images that belong to a label file's, relative to it.

    >>> _image_folders("train/labelTxt-v1.5/DOTA-v1.5_train/P0000.txt")
    ('../images', '../../images', '../../images/DOTA-v1.5_train')
    >>> _image_folders("labels/train_original/P0000.txt")
    ('../images', '../../images', '../../images/train_original', '../../images/train')
    """
    folder = posixpath.basename(posixpath.dirname(path))
    # Ultralytics' DOTAv1.zip has labels/train_original beside images/train.
    splits = dict.fromkeys((folder, folder.removesuffix("_original")))
    # labelTxt is beside images; the labels of later versions are in a folder below one named after the version.
    return ("../images", "../../images", *(f"../../images/{split}" for split in splits))


def _box_of(row: Sequence[str], what: str, options: LayoutOptions) -> Box:
    if len(row) not in (_SIDES + 1, _SIDES + 2):
        detail = (
            f"{what}: {plural(len(row), 'value')}; expected x1 y1 x2 y2 x3 y3 x4 y4 class difficult, and a class "
            "without blanks"
        )
        raise SourceError("annotation", "row is no object", detail)
    label, level = class_of(row[_SIDES], what), (*row, "0")[_SIDES + 1]
    if level not in _LEVELS:
        detail = f"{what} {label!r}: {level!r}; expected 0, 1 or 2"
        raise SourceError("annotation", "level of difficulty is unknown", detail)
    corners = numbers_of(row[:_SIDES], f"{what} {label!r}")
    check_corners(corners, f"{what} {label!r}")
    flags = {"difficult": _LEVELS[level] > 0, "truncated": _LEVELS[level] == _CUT}
    box = polygon_of(label, corners, what, options, **flags)
    # As in `polygon_of`, a mask keeps the orientation.
    if options.masks and options.oriented_boxes != "drop":
        return box
    box = with_filled_share(box)
    check_oriented(box.turned_share, f"{what} {label!r}", options)
    return box


DOTA = DocumentFormat(
    layout="dota",
    summary="DOTA 1.0 to 2.0: labelTxt/P0000.txt with images/P0000.png, the four corners of an object in each line",
    extensions=(".txt",),
    expected="text files with x1 y1 x2 y2 x3 y3 x4 y4 class difficult in each line, such as labelTxt/P0000.txt with "
    "images/P0000.png",
    read=_read,
    box_of=_box_of,
    of_one_picture=True,
    grid="displayed",
    keeps=("corners",),
)
