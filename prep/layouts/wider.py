"""Reader of WIDER FACE: wider_face_split/wider_face_train_bbx_gt.txt with the pictures of WIDER_train/images.

The rules are those of WIDER FACE's readme.txt: the path of a picture, the number of its faces, and a line for each face
with `x y width height blur expression illumination invalid occlusion pose`. All objects are faces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from halofeed.errors import SourceError
from halofeed.prep.annotations import shapes
from halofeed.prep.annotations.contract import LayoutOptions, split_in_file_name
from halofeed.prep.annotations.documents import DocumentFormat, FilePicture
from halofeed.prep.sources.example import Box
from halofeed.prep.sources.file_names import is_image_name

_VALUES = 10
_INVALID, _OCCLUSION = 7, 8
_UNREAD = "blur, expression, illumination and pose of faces are not read; invalid faces are difficult"


def _read(path: str, data: bytes) -> Iterator[FilePicture] | None:
    lines = [line.strip() for line in data.decode("utf-8-sig", "replace").splitlines()]
    if len(lines) < 2 or not is_image_name(lines[0]) or not lines[1].isdecimal():
        return None
    return _pictures(lines, split_in_file_name(path) or "")


def _pictures(lines: Sequence[str], split: str) -> Iterator[FilePicture]:
    place = 0
    while place < len(lines):
        name, count = lines[place], "".join(lines[place + 1 : place + 2])
        if not is_image_name(name) or not count.isdecimal():
            detail = f"line {place + 1}: expected the path of a picture and the number of its faces, got {name[:60]!r}"
            raise SourceError("annotation", "lines are no list of faces", detail)
        place += 2
        rows = [line.split() for line in lines[place : place + int(count)]]
        place += len(rows)
        if len(rows) < int(count) or any(len(row) != _VALUES for row in rows):
            detail = f"line {place}: {name} has {count} faces with {_VALUES} values each"
            raise SourceError("annotation", "lines are no list of faces", detail)
        if not rows and "".join(lines[place : place + 1]).split() == ["0"] * _VALUES:
            place += 1  # a picture without faces has one line of zeros
        folders = tuple(f"{up}WIDER_{split}/images" for up in ("", "../"))
        yield FilePicture(
            name=name, split=split, folders=folders, objects=rows, notes=(_UNREAD,) if rows else ()
        )
        while place < len(lines) and not lines[place]:
            place += 1


def _box_of(row: Sequence[str], what: str, options: LayoutOptions) -> Box:
    numbers = shapes.numbers_of(row, what)
    flags = {"difficult": numbers[_INVALID] > 0, "occluded": numbers[_OCCLUSION] > 0}
    return shapes.rectangle_of("face", numbers[:4], what, options, form="corner-size", flags=flags)


WIDER = DocumentFormat(
    layout="wider",
    summary="WIDER FACE: wider_face_train_bbx_gt.txt with WIDER_train/images",
    extensions=(".txt",),
    expected="a text file of WIDER FACE: the path of a picture, the number of its faces, and a line for each face",
    read=_read,
    box_of=_box_of,
    has_masks=False,
    keeps=("occluded",),
)
