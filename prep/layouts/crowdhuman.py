"""Reader of CrowdHuman's lists: annotation_train.odgt with Images/273271,c9db000d5146c15.jpg.

The rules are those of CrowdHuman (crowdhuman.org, and `load_gt` in `misc_utils.py` of CrowdDet, its reference code):

- Each line is the JSON object of one picture: `ID` is the name of its file without .jpg, and `gtboxes` its persons.
- A person has three boxes of x, y, width and height in pixels from 0: `fbox` (full body, which may extend beyond the
  picture), `vbox` (visible body) and `hbox` (head). --person-box chooses.
- Another tag than person is `mask`, a region that may show persons. It is an ignored region, as are persons whose
  `extra` has ignore, and, where heads are the objects, those whose `head_attr` has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from halofeed.prep.annotations.annotation_tools import DocumentFormat, FilePicture
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.written_boxes import class_of, rectangle_of, region_of
from halofeed.prep.sources.example import Box
from halofeed.system.errors import SourceError

_KEYS: Final = {"full": "fbox", "visible": "vbox", "head": "hbox"}
"""Key of each choice of --person-box."""
_IGNORED = "masks and persons with ignore are ignored regions: training and evaluation leave them out"


def _read(path: str, data: bytes) -> Iterator[FilePicture] | None:
    lines = [line for line in data.decode("utf-8-sig", "replace").splitlines() if line.strip()]
    if not lines or '"gtboxes"' not in lines[0]:
        return None
    return _pictures(lines)


def _pictures(lines: list[str]) -> Iterator[FilePicture]:
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SourceError("annotation", "line is no JSON", f"line {number}: {error}") from error
        name = _mapping(entry).get("ID")
        objects = _mapping(entry).get("gtboxes")
        if not isinstance(name, str) or not isinstance(objects, list):
            detail = f"line {number}: expected an object with ID and a list gtboxes"
            raise SourceError("annotation", "line is no picture of CrowdHuman", detail)
        folders = tuple(f"{up}{folder}" for up in ("", "../") for folder in ("Images", "images"))
        notes = (_IGNORED,) if any(map(_is_region, objects)) else ()
        yield FilePicture(name=f"{name}.jpg", stem=name, folders=folders, objects=objects, notes=notes)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_region(one: object, *, of_heads: bool = False) -> bool:
    """Return whether a box is an ignored region, where the objects are bodies or heads."""
    entry = _mapping(one)
    attributes = [entry.get("extra"), *([entry.get("head_attr")] if of_heads else [])]
    return entry.get("tag") != "person" or any(_mapping(one).get("ignore") for one in attributes)


def _box_of(one: object, what: str, options: LayoutOptions) -> Box:
    entry, key = _mapping(one), _KEYS[options.person_box]
    is_region = _is_region(one, of_heads=options.person_box == "head")
    # Files made from CrowdHuman's may have only one box of a mask.
    tag, numbers = class_of(entry.get("tag"), what), entry.get(key, entry.get("fbox") if is_region else None)
    if not isinstance(numbers, list) or len(numbers) != 4 or not all(map(_is_number, numbers)):
        detail = f"{what} {tag!r}: {key} is {numbers!r:.80}; expected x, y, width, height"
        raise SourceError("annotation", "box is not four numbers", detail)
    if is_region:
        return region_of(numbers, what, options, form="corner-size")
    label = "head" if options.person_box == "head" else tag
    occluded = bool(_mapping(entry.get("extra")).get("occ"))
    return rectangle_of(label, numbers, what, options, form="corner-size", occluded=occluded)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


CROWDHUMAN = DocumentFormat(
    layout="crowdhuman",
    summary="CrowdHuman: annotation_train.odgt with Images, the full body, visible body or head of each person",
    extensions=(".odgt",),
    expected="a file of CrowdHuman: a JSON object with ID and gtboxes in each line, such as annotation_train.odgt",
    read=_read,
    box_of=_box_of,
    has_masks=False,
    keeps=("occluded",),
)
