"""What the numbers of boxes count: pixels or shares of the picture's sides, from 0 or from 1; one answer a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.sources.reference import Box, Keypoint, Reference
from halofeed.schemas.errors import AnnotationsError

NORMALIZED = "boxes taken as shares of the picture's sides, as all of their file lie within 0 to 1"
FROM_ZERO = (
    "a box begins below 1, where VOC counts pixels from 1; --box-origin 0 takes the numbers as they stand"
)
SHARE_FROM_ZERO = 0.01
"""Of boxes that begin below 1: fewer are slips under VOC's rule, more show that the numbers count from 0."""
WITH_FRACTIONS = (
    "boxes have fractions, so they count from 0 and not from 1 as VOC does; --box-origin 1 shifts them"
)
FEW_FRACTIONS = (
    "a box has fractions, and VOC counts whole pixels from 1; --box-origin 0 takes the numbers as they stand"
)
_SHARE_WITH_FRACTIONS = 0.1
"""Of boxes with fractions: more prove that a tool wrote places and no numbers of pixels."""
_REACH = 1.5
"""What no share passes, slips included, and no box in pixels stays within that anybody drew."""
_IN_FIRST_PIXEL = (
    "box lies within the first pixel",
    "its file has boxes in pixels as well; --box-units says what all of them are",
)
_NO_SHARE = ("box is no share of the picture", "--box-units normalized expects 0 to 1")


def settle_units(listed: Sequence[Reference], options: LayoutOptions, file: str) -> list[Reference]:
    """The references of one annotation file, those with shares marked; a box that does not fit the others is faulty.

    Raises:
        AnnotationsError: every box is of 0 and 1 alone, so that either can be meant.
    """
    if options.box_units == "pixels":
        return list(listed)
    if options.box_units == "normalized":
        return [_marked(one, options, "") for one in listed]
    boxes = [box for one in listed if not _is_tiny(one) for box in one.boxes or () if _has_area(box)]
    small = [box for box in boxes if _is_small(box)]
    if not small:
        return list(listed)
    if len(small) < len(boxes):
        return [
            one if _is_tiny(one) else _without(one, options, _is_small, _IN_FIRST_PIXEL) for one in listed
        ]
    if all(float(side).is_integer() for box in small for side in (box.ymin, box.xmin, box.ymax, box.xmax)):
        raise AnnotationsError(
            f"{file}: every box runs from 0 to 1, which is one pixel or the whole picture; say --box-units pixels or "
            "--box-units normalized"
        )
    return [_marked(one, options, NORMALIZED) for one in listed]


def _marked(reference: Reference, options: LayoutOptions, note: str) -> Reference:
    if not reference.boxes:
        return reference
    checked = _without(reference, options, lambda box: not _is_share(box), _NO_SHARE)
    if checked.problem is not None:
        return checked
    return replace(checked, normalized=True, notes=(*checked.notes, note) if note else checked.notes)


def _without(
    reference: Reference, options: LayoutOptions, is_faulty: Callable[[Box], bool], fault: tuple[str, str]
) -> Reference:
    """The reference without its faulty boxes, which are listed; or its rejection, as the options say."""
    faulty = [box for box in reference.boxes or () if is_faulty(box)]
    if not faulty:
        return reference
    reason, why = fault
    bad = [
        (reason, f"{box.label!r} {box.xmin:g},{box.ymin:g},{box.xmax:g},{box.ymax:g}: {why}")
        for box in faulty
    ]
    if options.on_bad_object == "reject":
        return replace(reference, boxes=None, declared_size=None, problem=("annotation", *bad[0]))
    kept = tuple(box for box in reference.boxes or () if not is_faulty(box))
    return replace(reference, boxes=kept, bad_objects=(*reference.bad_objects, *bad))


def _has_area(box: Box) -> bool:
    return box.xmax > box.xmin and box.ymax > box.ymin


def _is_share(box: Box) -> bool:
    return min(box.xmin, box.ymin) >= -(_REACH - 1) and max(box.xmax, box.ymax) <= _REACH


def _is_small(box: Box) -> bool:
    return _has_area(box) and _is_share(box)


def _is_tiny(reference: Reference) -> bool:
    """Whether a picture is so small that its boxes may lie within the first pixel."""
    size = reference.declared_size
    return size is not None and min(size) < 2 * _REACH


def settle_origin(
    listed: Sequence[Reference], options: LayoutOptions, default: int, file: str
) -> list[Reference]:
    """The references with boxes in continuous pixels from 0.

    `options.box_origin` is what the user says: 0 takes the numbers as they stand, 1 is VOC's rule; None: not said.

    Args:
        default: what the layout says.

    Raises:
        AnnotationsError: the user did not say it, and neither most boxes nor hardly any have fractions, or too many
            begin below the first pixel for slips.
    """
    origin = options.box_origin
    if (default if origin is None else origin) == 0:
        return list(listed)
    counted = [one for one in listed if one.boxes and not one.normalized]
    boxes = sum(len(one.boxes or ()) for one in counted)
    fractions = [one.source for one in counted for box in one.boxes or () if _has_fractions(box)]
    if origin is None and len(fractions) > _SHARE_WITH_FRACTIONS * boxes:
        return [
            replace(one, notes=(*one.notes, WITH_FRACTIONS)) if one.boxes and not one.normalized else one
            for one in listed
        ]
    if origin is None and len(fractions) > SHARE_FROM_ZERO * boxes:
        raise AnnotationsError(
            f"{file}: {len(fractions):,} of {boxes:,} boxes have fractions, the first in {fractions[0]}: VOC counts "
            "whole pixels from 1, and fractions count from 0; say --box-origin 0 to take all numbers as they stand, or "
            "--box-origin 1 to shift them all"
        )
    below = [one.source for one in counted for box in one.boxes or () if _begins_below_one(box)]
    if origin is None and len(below) > SHARE_FROM_ZERO * boxes:
        raise AnnotationsError(
            f"{file}: {len(below):,} of {boxes:,} boxes begin below 1, the first in {below[0]}: VOC counts pixels "
            "from 1, these numbers count from 0; say --box-origin 0, or --box-origin 1 to shift them all the same"
        )
    shift = _from_one if options.box_form in ("auto", "corners") else _size_from_one
    few = FEW_FRACTIONS if origin is None else ""
    return [_shifted(one, shift, few) if one.boxes and not one.normalized else one for one in listed]


def _begins_below_one(box: Box) -> bool:
    return 0 <= box.xmin < 1 or 0 <= box.ymin < 1


def _has_fractions(box: Box) -> bool:
    return not all(float(side).is_integer() for side in (box.ymin, box.xmin, box.ymax, box.xmax))


def _shifted(reference: Reference, shift: Callable[[Box], Box], few_fractions: str) -> Reference:
    boxes, notes = reference.boxes or (), reference.notes
    if any(map(_begins_below_one, boxes)):
        notes = (*notes, FROM_ZERO)
    if few_fractions and any(map(_has_fractions, boxes)):
        notes = (*notes, few_fractions)
    return replace(reference, boxes=tuple(map(shift, boxes)), notes=notes)


def _size_from_one(box: Box) -> Box:
    """A box that was written with its width and height: both ends move with its corner."""
    return replace(box, ymin=box.ymin - 1, xmin=box.xmin - 1, ymax=box.ymax - 1, xmax=box.xmax - 1)


def _from_one(box: Box) -> Box:
    (ymin, ymax), (xmin, xmax) = continuous(box.ymin, box.ymax), continuous(box.xmin, box.xmax)
    return replace(box, ymin=ymin, xmin=xmin, ymax=ymax, xmax=xmax)


def continuous(first: float, last: float) -> tuple[float, float]:
    """The extent in continuous pixels of one side of a box that is written as pixels counted from 1.

    Pixels 3 to 5 run from 2.0 to 5.0. A side written without extent keeps none, and lies in the middle of its pixel.

    >>> continuous(3, 5), continuous(3, 3)
    ((2, 5), (2.5, 2.5))
    """
    return (first - 1, last) if first != last else (first - 0.5, last - 0.5)


def in_pixels(box: Box, size: tuple[int, int]) -> Box:
    """A box of shares, its area, polygons and keypoints in pixels of a picture of this (height, width).

    >>> box = in_pixels(Box(ymin=0.25, xmin=0.5, ymax=1, xmax=1, label="hat", area=0.25), (40, 60))
    >>> (box.ymin, box.xmin, box.ymax, box.xmax, box.area)
    (10.0, 30.0, 40, 60, 600.0)
    """
    height, width = size
    return replace(
        box,
        ymin=box.ymin * height,
        xmin=box.xmin * width,
        ymax=box.ymax * height,
        xmax=box.xmax * width,
        area=None if box.area is None else box.area * (height * width if box.area <= _REACH else 1),
        mask=_polygons_in_pixels(box.mask, size),
        keypoints=_keypoints_in_pixels(box.keypoints, size),
    )


def _keypoints_in_pixels(points: tuple[Keypoint, ...], size: tuple[int, int]) -> tuple[Keypoint, ...]:
    if any(max(point.y, point.x) > _REACH for point in points):
        return points
    height, width = size
    return tuple(replace(point, y=point.y * height, x=point.x * width) for point in points)


def _polygons_in_pixels(mask: Any, size: tuple[int, int]) -> Any:
    if not isinstance(mask, list) or any(value > _REACH for polygon in mask for value in polygon):
        return mask
    height, width = size
    return [
        [value * (height if place % 2 else width) for place, value in enumerate(polygon)] for polygon in mask
    ]
