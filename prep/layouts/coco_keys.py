"""What the keys of COCO annotations mean: which are read, which are not, and how a bbox is written."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from halofeed.prep.annotations.columns import is_geometry, squash
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.schemas.errors import AnnotationsError

READ = frozenset(("id", "image_id", "category_id", "bbox", "area", "iscrowd", "segmentation"))
"""Of an annotation; squashed spellings of iscrowd as well."""
_KEPT = {"occluded": ("occluded", "attributes"), "keypoints": ("keypoints", "num_keypoints")}
_CROWD = ("iscrowd", "crowd")
_NO_OUTLINE = frozenset(("keypoints", "num_keypoints"))
MOST_DIGITS = 4300
"""Python makes no number of a longer text."""
_CORNER_SIZE_MODES = (None, 1, "XYWH_ABS", "XYWH")


def identity_of(value: object) -> int | str | None:
    """An id as it is compared: 1.0 and "1" are 1, any other text is itself, anything else is None.

    >>> identity_of(1.0), identity_of("1"), identity_of("a1"), identity_of("01"), identity_of(True), identity_of(1.5)
    (1, 1, 'a1', '01', None, None)
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and len(value) < MOST_DIGITS and value.isdecimal() and str(int(value)) == value:
        return int(value)
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def unread_keys(
    file: str, annotations: Sequence[Mapping[str, Any]], options: LayoutOptions
) -> tuple[str, ...]:
    """The note of an instances file whose annotations have keys that nothing is made of.

    Raises:
        AnnotationsError: such a key may hold another box or outline, and nobody said that it may be left out.
    """
    read = set(READ).union(*(keys for name, keys in _KEPT.items() if name in options.keep))
    unread = {key for one in annotations for key in one if key not in read and squash(key) not in _CROWD}
    modes = [one["bbox_mode"] for one in annotations if one.get("bbox_mode") not in _CORNER_SIZE_MODES]
    if modes and options.box_form == "auto":
        raise AnnotationsError(
            f"{file}: bbox_mode is {modes[0]!r}, not COCO's x, y, width, height; say with --box-form what bbox has"
        )
    ignored = {squash(key) for key in options.ignore_columns}
    geometry = [
        key for key in sorted(unread - _NO_OUTLINE) if is_geometry(key) and squash(key) not in ignored
    ]
    if geometry:
        raise AnnotationsError(
            f"{file}: annotations have {', '.join(geometry)}, which would not be read and may hold boxes or outlines; "
            f"--ignore-columns {','.join(geometry)} goes on without"
        )
    unread = {key for key in unread if squash(key) not in ignored} - {"bbox_mode"}
    return (
        (f"keys of annotations in {file} that are not read: {', '.join(sorted(unread))}",) if unread else ()
    )


def crowd_of(annotation: Mapping[str, Any]) -> Any:
    """Whether an object is a crowd, as it is written; 0 where nothing is."""
    written = annotation.get("iscrowd")
    if written is None:
        written = next((value for key, value in annotation.items() if squash(key) in _CROWD), None)
    return 0 if written is None else written


def check_form(
    file: str,
    images: Sequence[Mapping[str, Any]],
    annotations: Sequence[Mapping[str, Any]],
    options: LayoutOptions,
) -> None:
    """Refuse bboxes that all fit into their images as two corners and, in large part, not as corner and size."""
    if options.box_form != "auto":
        return
    sizes: dict[Any, tuple[Any, Any]] = {
        identity_of(one.get("id")): (one.get("height"), one.get("width")) for one in images
    }
    boxes = outside = 0
    for one in annotations:
        box, size = one.get("bbox"), sizes.get(identity_of(one.get("image_id")), (None, None))
        if not all(map(_is_length, size)) or not isinstance(box, list) or len(box) != 4:
            continue
        if not all(isinstance(value, int | float) and abs(value) <= sys.float_info.max for value in box):
            continue
        (height, width), (x, y, third, fourth) = size, box
        if not (x < third <= width + 1 and y < fourth <= height + 1):
            return
        boxes += 1
        outside += x + third > width + 1 or y + fourth > height + 1
    if boxes and 3 * outside >= boxes:
        raise AnnotationsError(
            f"{file}: {outside} of {boxes} bboxes leave their image as x, y, width, height, and all fit as corners; "
            "say --box-form corners, or corner-size if that is meant all the same"
        )


def _is_length(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
