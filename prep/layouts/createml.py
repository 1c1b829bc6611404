"""Reader of Create ML's JSON: a list of pictures with boxes, each by its center and its size in pixels.

The rules are those of Apple ("Building an object detector data source"). Roboflow writes one such file for each split.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from halofeed.errors import SourceError
from halofeed.prep.annotations import shapes
from halofeed.prep.annotations.contract import LayoutOptions, split_in_file_name
from halofeed.prep.annotations.documents import DocumentFormat, FilePicture, parse_json_document
from halofeed.prep.sources.example import Box

_NAMES = ("image", "imagefilename")
_LISTS = ("annotations", "annotation")
_SIDES = ("x", "y", "width", "height")


def _read(path: str, data: bytes) -> Iterator[FilePicture] | None:
    document = parse_json_document(data)
    entries = [one if isinstance(one, dict) else {} for one in document] if isinstance(document, list) else []
    if not any({*_NAMES} & one.keys() and {*_LISTS} & one.keys() for one in entries):
        return None
    return (_picture(place, one, split_in_file_name(path) or "") for place, one in enumerate(entries))


def _picture(place: int, entry: dict[str, Any], split: str) -> FilePicture:
    name = next((entry[key] for key in _NAMES if isinstance(entry.get(key), str)), "")
    objects = next((entry[key] for key in _LISTS if isinstance(entry.get(key), list)), None)
    fault = None
    if not name or objects is None:
        detail = f"entry {place}: expected image and annotations"
        fault = SourceError("annotation", "entry is no picture with annotations", detail)
    return FilePicture(name=name, split=split, objects=objects or (), fault=fault)


def _box_of(written: Any, what: str, options: LayoutOptions) -> Box:
    sides = written.get("coordinates") if isinstance(written, dict) else None
    if not isinstance(sides, dict):
        raise SourceError("annotation", "object has no box", f"{what}: {written!r:.80}")
    numbers = shapes.numbers_of((sides.get(side) for side in _SIDES), what)
    return shapes.rectangle_of(
        shapes.class_of(written.get("label"), what), numbers, what, options, form="center-size"
    )


CREATEML = DocumentFormat(
    layout="createml",
    summary="Create ML's JSON: a list of pictures with boxes by their centers",
    extensions=(".json",),
    expected="a JSON file of Create ML: a list with image and annotations for each picture",
    read=_read,
    box_of=_box_of,
    has_masks=False,
)
