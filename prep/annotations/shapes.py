"""Boxes of the shapes that annotation tools draw: rectangles, polygons, ellipses and bitmaps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from halofeed.errors import SourceError
from halofeed.prep.annotations.columns import to_corners
from halofeed.prep.annotations.contract import BOX_IS_INVERTED, LayoutOptions, check_box, parse_number
from halofeed.prep.sources.example import Box

_NO_OUTLINE = "object has no segmentation"
_CORNERS_OF_CIRCLE = 72
"""Corners of the polygon of an ellipse, as VIA exports it."""
_PNG = b"\x89PNG\r\n\x1a\n"
_NO_FLAGS: Mapping[str, Any] = {}


def rectangle_of(
    label: str,
    numbers: Sequence[float],
    what: str,
    options: LayoutOptions,
    *,
    form: str = "corners",
    flags: Mapping[str, Any] = _NO_FLAGS,
) -> Box:
    """Return the box of four numbers in `options.box_form`, or in the tool's own form; SourceError with --masks."""
    if options.masks:
        raise SourceError("annotation", _NO_OUTLINE, f"{what} is no polygon")
    own = form if options.box_form == "auto" else options.box_form
    xmin, ymin, xmax, ymax = to_corners(numbers, own)
    return check_box(Box(ymin=ymin, xmin=xmin, ymax=ymax, xmax=xmax, label=label, **flags), what)


def polygon_of(
    label: str,
    numbers: Sequence[float],
    what: str,
    options: LayoutOptions,
    *,
    flags: Mapping[str, Any] = _NO_FLAGS,
) -> Box:
    """Return the upright box of a polygon x, y, x, y, ..., with the polygon as its mask if the options ask for it.

    >>> polygon_of("hat", [1, 2, 5, 2, 5, 9], "object 1", LayoutOptions(masks=True)).mask
    [[1, 2, 5, 2, 5, 9]]
    """
    if len(numbers) < 6 or len(numbers) % 2:
        raise SourceError("annotation", "polygon has fewer than 3 points", f"{what}: {len(numbers) // 2}")
    x, y = numbers[::2], numbers[1::2]
    mask = [list(numbers)] if options.masks else None
    box = Box(ymin=min(y), xmin=min(x), ymax=max(y), xmax=max(x), label=label, mask=mask, **flags)
    return check_box(box, what)


def ellipse_of(
    label: str,
    numbers: Sequence[float],
    what: str,
    options: LayoutOptions,
    *,
    flags: Mapping[str, Any] = _NO_FLAGS,
) -> Box:
    """Return the upright box of an ellipse: its center x, y, its radii, and its angle in radians.

    >>> box = ellipse_of("hat", [10, 20, 4, 2, math.pi / 2], "object 1", LayoutOptions())
    >>> round(box.xmin), round(box.ymin), round(box.xmax), round(box.ymax)
    (8, 16, 12, 24)
    """
    x, y, first, second, angle = numbers
    if min(first, second) < 0:
        raise SourceError("annotation", BOX_IS_INVERTED, f"{what} {label!r}: radii {first:g} and {second:g}")
    cosine, sine = math.cos(angle), math.sin(angle)
    across, down = math.hypot(first * cosine, second * sine), math.hypot(first * sine, second * cosine)
    mask = None
    if options.masks:
        turns = (2 * math.pi * corner / _CORNERS_OF_CIRCLE for corner in range(_CORNERS_OF_CIRCLE))
        rim = ((first * math.cos(turn), second * math.sin(turn)) for turn in turns)
        mask = [[z for a, b in rim for z in (x + a * cosine - b * sine, y + a * sine + b * cosine)]]
    box = Box(ymin=y - down, xmin=x - across, ymax=y + down, xmax=x + across, label=label, mask=mask, **flags)
    return check_box(box, what)


def bitmap_of(label: str, corner: Sequence[float], head: bytes, what: str, options: LayoutOptions) -> Box:
    """Return the box of a bitmap whose first pixel is at (x, y), by the size in the head of its PNG file."""
    if not head.startswith(_PNG) or len(head) < 24:
        raise SourceError("annotation", "bitmap is no PNG", what)
    sides = int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    return rectangle_of(label, [*corner, *sides], what, replace(options, box_form="corner-size"))


def no_box(kind: object, what: str) -> SourceError:
    """Return the error about a shape that has no box, such as a point or a line, or that is not known."""
    return SourceError("annotation", "shape is no box", f"{what} is of the type {kind!r:.40}")


def unite(boxes: Sequence[Box]) -> Box:
    """Return one object of several parts: the box around them, and all their polygons."""
    masks = [polygon for box in boxes for polygon in box.mask or ()]
    return replace(
        boxes[0],
        ymin=min(box.ymin for box in boxes),
        xmin=min(box.xmin for box in boxes),
        ymax=max(box.ymax for box in boxes),
        xmax=max(box.xmax for box in boxes),
        mask=masks or None,
    )


def class_of(value: object, what: str) -> str:
    """Return the class of an object without surrounding blanks; raise SourceError if there is none."""
    if not isinstance(value, str) or not value.strip():
        raise SourceError("annotation", "box has no class", what)
    return value.strip()


def numbers_of(values: Iterable[object], what: str) -> list[float]:
    """Return written numbers; raise SourceError for anything else."""
    return [parse_number(value, what) for value in values]


def points_of(value: object, what: str) -> list[float]:
    """Return x, y, x, y, ... of a list of [x, y]; raise SourceError for anything else."""
    if not isinstance(value, list) or not all(isinstance(one, list) and len(one) == 2 for one in value):
        raise SourceError("annotation", "points are no list of [x, y]", f"{what}: {value!r:.80}")
    return numbers_of((side for point in value for side in point), what)
