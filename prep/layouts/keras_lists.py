"""Reader of keras-yolo3's lists: lines of a path and boxes x1,y1,x2,y2,class.

The rules are those of keras-yolo3 (github.com/qqwweee/keras-yolo3, README and `train.py`), whose lists many programs
for YOLO in Keras, TensorFlow and PyTorch read. The classes are the lines of a file beside it, counted from 0.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from functools import partial

from halofeed.prep.annotations.annotation_tools import DocumentContent, DocumentFormat, FilePicture, Read
from halofeed.prep.annotations.box_lists import is_box, is_list_of_boxes, split_list_line
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.documents import read_limited
from halofeed.prep.annotations.written_boxes import numbers_of, rectangle_of
from halofeed.prep.sources.example import Box
from halofeed.prep.sources.file_names import is_image_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import SourceError

_NUMBERED = "classes are numbers, since no text file with class in its name has a line for each"
_MAX_LIST_BYTES = 1 << 20


def _list_reader(annotations: SourceFiles, options: LayoutOptions) -> Read:
    return partial(_read_list, _class_lists(annotations))


def _class_lists(annotations: SourceFiles) -> list[list[str]]:
    """Return the lines of each text file with class in its name, such as voc_classes.txt."""
    paths = [
        path
        for path in annotations.sizes()
        if path.lower().endswith((".txt", ".names")) and "class" in posixpath.basename(path).lower()
    ]
    texts = (
        read_limited(annotations, path, "list of classes", _MAX_LIST_BYTES).decode("utf-8-sig", "replace")
        for path in paths
    )
    return [
        names for text in texts if (names := [line.strip() for line in text.splitlines() if line.strip()])
    ]


def _read_list(class_lists: Sequence[Sequence[str]], path: str, data: bytes) -> DocumentContent | None:
    text = data.decode("utf-8-sig", "surrogateescape")
    if not is_list_of_boxes(text):
        return None
    lines = [
        (number, *split_list_line(line)) for number, line in enumerate(text.splitlines(), 1) if line.strip()
    ]
    numbers = (int(box.rpartition(",")[2]) for _, _, boxes in lines for box in boxes if is_box(box))
    most = max(numbers, default=0)
    fitting = [names for names in class_lists if len(names) > most]
    # Two lists that differ would name the classes in two ways.
    names = fitting[0] if fitting and all(one == fitting[0] for one in fitting) else ()
    return DocumentContent(pictures=[_list_picture(*line, names) for line in lines], classes=names)


def _list_picture(number: int, name: str, boxes: Sequence[str], names: Sequence[str]) -> FilePicture:
    if not is_image_name(name):
        detail = f"line {number}: {name[:60]!r}; expected a path, and x1,y1,x2,y2,class for each object"
        return FilePicture(
            name=name, fault=SourceError("annotation", "line is no picture with boxes", detail)
        )
    return FilePicture(
        name=name,
        objects=[(box, names) for box in boxes],
        notes=() if names or not boxes else (_NUMBERED,),
    )


def _box_of_list(written: tuple[str, Sequence[str]], what: str, options: LayoutOptions) -> Box:
    box, names = written
    if not is_box(box):
        raise SourceError(
            "annotation", "object has no box", f"{what}: {box!r:.60}; expected x1,y1,x2,y2,class"
        )
    *sides, number = box.split(",")
    label = names[int(number)] if names else number
    return rectangle_of(label, numbers_of(sides, what), f"{what} {label!r}", options)


KERAS_YOLO = DocumentFormat(
    layout="keras-yolo",
    summary="keras-yolo3's lists: a path in each line, and x1,y1,x2,y2,class for each object; classes.txt",
    extensions=(".txt",),
    expected="a text file of keras-yolo3: lines such as images/a.jpg 10,20,50,60,0 55,20,90,60,1",
    read_with=_list_reader,
    box_of=_box_of_list,
    has_masks=False,
)
