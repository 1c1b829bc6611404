"""Reader of PASCAL's annotations of version 1.00, in text: Penn-Fudan, INRIA Person, VOC 2005.

A file states the number of its first pixel, `Top left pixel co-ordinates : (1, 1)`, and boxes include their last
pixels. Penn-Fudan names a label image in which an object has its number as value.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from halofeed.prep.annotations.annotation_tools import DocumentFormat, FilePicture, Read
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.written_boxes import class_of, make_box, rectangle_of
from halofeed.prep.sources.example import Box
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import SourceError

_HEADER = re.compile(r"#.*PASCAL Annotation Version 1\.\d+")
_NUMBER = r"\s*(-?\d+(?:\.\d+)?)\s*"
_POINT = rf"\({_NUMBER},{_NUMBER}\)"
_ORIGIN = re.compile(rf"Top left pixel co-ordinates\s*:\s*{_POINT}")
_NAME = re.compile(r'Image filename\s*:\s*"([^"]+)"')
_SIZE = re.compile(rf"Image size \(X x Y x C\)\s*:{_NUMBER}x{_NUMBER}x")
_OBJECT = re.compile(
    r'(?P<what>[A-Z][\w ]*?) (?:for|on) object (?P<number>\d+) "(?P<label>[^"]*)"(?P<value>.*)'
)
_BOX = re.compile(rf"[^:]*:\s*{_POINT}\s*-\s*{_POINT}\s*")
_MASK = re.compile(r'\s*:\s*"([^"]+)"\s*')


@dataclass(frozen=True, kw_only=True)
class _Object:
    """Lines of one object: its class, the text of its box, and its mask."""

    number: int
    label: str
    box: str = ""
    mask: str = ""
    origin: tuple[float, float] = (1, 1)
    files: SourceFiles | None = field(default=None, repr=False)


def _reader(annotations: SourceFiles, options: LayoutOptions) -> Read:
    return partial(_read, annotations)


def _read(files: SourceFiles, path: str, data: bytes) -> list[FilePicture] | None:
    # INRIA's files are Latin-1, as the name of its institute shows; names of files are ASCII.
    text = data.decode("utf-8", "replace")
    if not _HEADER.search(text[:400]):
        return None
    name, size, origin = _NAME.search(text), _SIZE.search(text), _ORIGIN.search(text)
    first = (float(origin[1]), float(origin[2])) if origin else (1.0, 1.0)
    objects: dict[int, dict[str, Any]] = {}
    for line in text.splitlines():
        match = _OBJECT.match(line.strip())
        if match is None:
            continue
        number = int(match["number"])
        one = objects.setdefault(number, {"number": number, "label": match["label"], "origin": first})
        if match["what"] == "Bounding box":
            one["box"] = match["value"]
        elif match["what"] == "Pixel mask" and (mask := _MASK.fullmatch(match["value"])):
            one["mask"] = _find(files, path, mask[1])
    masks = {str(one["mask"]) for one in objects.values() if one.get("mask")}
    picture = FilePicture(
        name=name[1] if name else "",
        stem=posixpath.splitext(posixpath.basename(path))[0],
        size=(size[2], size[1]) if size else (None, None),
        objects=[_Object(files=files, **one) for _, one in sorted(objects.items())],
        companions=tuple(masks),
    )
    return [picture]


def _find(files: SourceFiles, path: str, written: str) -> str:
    """Return the file that a written path means: the end of it below the root, or beside the folder of the text."""
    parts = [part for part in written.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    above = posixpath.dirname(posixpath.dirname(path))
    for start in range(len(parts)):
        end = "/".join(parts[start:])
        for place in dict.fromkeys((end, posixpath.join(above, end))):
            if files.size(place) is not None:
                return place
    return written


def _box_of(one: _Object, what: str, options: LayoutOptions) -> Box:
    label = class_of(one.label, f"object {one.number}")
    what = f"object {one.number} {label!r}"
    if options.masks:
        return _box_of_mask(one, label, what)
    corners = _BOX.fullmatch(one.box)
    if corners is None:
        detail = f"{what}: {one.box[-60:]!r}; expected (Xmin, Ymin) - (Xmax, Ymax) : (1, 2) - (3, 4)"
        raise SourceError("annotation", "object has no box", detail)
    left, top, right, bottom = map(float, corners.groups())
    x, y = one.origin
    return rectangle_of(label, [left - x, top - y, right - x + 1, bottom - y + 1], what, options)


def _box_of_mask(one: _Object, label: str, what: str) -> Box:
    """Return the box of the pixels that have the number of an object, with its mask."""
    from halofeed.prep.annotations.drawn_objects import object_of_pixels, read_drawing

    if not one.mask or one.files is None:
        raise SourceError("annotation", "object has no segmentation", f"{what} names no pixel mask")
    inside = read_drawing(one.files, one.mask) == one.number
    if not inside.any():
        detail = f"{what}: no pixel of {one.mask} is {one.number}"
        raise SourceError("annotation", "mask is empty", detail)
    drawn = object_of_pixels(inside)
    return make_box(label, drawn.box, what, area=float(drawn.area), mask=drawn.mask)


PASCAL_TEXT = DocumentFormat(
    layout="pascal-text",
    summary="PASCAL's text of version 1.00: Penn-Fudan with PedMasks, INRIA Person, VOC 2005",
    extensions=(".txt",),
    expected="text files of PASCAL Annotation Version 1.00, with an image filename and a bounding box for each object",
    read_with=_reader,
    box_of=_box_of,
    of_one_picture=True,
)
