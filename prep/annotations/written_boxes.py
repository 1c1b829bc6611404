"""Boxes of annotated objects from what annotations write: numbers, flags, and shapes of drawing tools."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from halofeed.errors import SourceError, UsageError
from halofeed.prep.annotations.columns import to_corners
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.sources.example import Box

T = TypeVar("T")
MIN_BAD_OBJECTS = 10
"""Fewer unusable objects are slips, whatever their share, unless no object is usable."""
_MIN_ALL_BAD = 3
BOX_IS_INVERTED = "box is inverted"
_COMMA = re.compile(r"\s*[-+]?\d+,\d+\s*")
_NO_OUTLINE = "object has no segmentation"
_CORNERS_OF_CIRCLE = 72
"""Corners of the polygon of an ellipse, as VIA exports it."""
_PNG = b"\x89PNG\r\n\x1a\n"


def make_box(label: str, corners: Sequence[float], what: str, **flags: Any) -> Box:
    """Return the box of (xmin, ymin, xmax, ymax), with the further fields of `Box` in `flags`. An empty box is valid.

    Raises:
        SourceError: the box ends before it begins, or its area is negative.

    >>> try:
    ...     make_box("hat", (5, 0, 4, 1), "row 3")
    ... except SourceError as error:
    ...     print(error)
    annotation: box is inverted (row 3 'hat': x from 5 to 4, y from 0 to 1)
    """
    xmin, ymin, xmax, ymax = corners
    if xmax < xmin or ymax < ymin:
        extent = f"x from {xmin:g} to {xmax:g}, y from {ymin:g} to {ymax:g}"
        raise SourceError("annotation", BOX_IS_INVERTED, f"{what} {label!r}: {extent}")
    box = Box(ymin=ymin, xmin=xmin, ymax=ymax, xmax=xmax, label=label, **flags)
    if box.area is not None and box.area < 0:
        raise SourceError("annotation", "area is negative", f"{what} {label!r}: area {box.area:g}")
    return box


def rectangle_of(
    label: str,
    numbers: Sequence[float],
    what: str,
    options: LayoutOptions,
    form: str = "corners",
    **flags: Any,
) -> Box:
    """Return the box of four numbers in `options.box_form`, or in the form of the layout.

    Raises:
        SourceError: the options ask for masks, and `flags` has none.
    """
    if options.masks and "mask" not in flags:
        raise SourceError("annotation", _NO_OUTLINE, f"{what} is no polygon")
    corners = to_corners(numbers, form if options.box_form == "auto" else options.box_form)
    return make_box(label, corners, what, **flags)


def polygon_of(label: str, numbers: Sequence[float], what: str, options: LayoutOptions, **flags: Any) -> Box:
    """Return the upright box of a polygon x, y, x, y, ..., with the polygon as its mask if the options ask for it.

    >>> polygon_of("hat", [1, 2, 5, 2, 5, 9], "object 1", LayoutOptions(masks=True)).mask
    [[1, 2, 5, 2, 5, 9]]
    """
    if len(numbers) < 6 or len(numbers) % 2:
        raise SourceError("annotation", "polygon has fewer than 3 points", f"{what}: {len(numbers) // 2}")
    x, y = numbers[::2], numbers[1::2]
    mask = [list(numbers)] if options.masks else None
    return make_box(label, (min(x), min(y), max(x), max(y)), what, mask=mask, **flags)


def ellipse_of(label: str, numbers: Sequence[float], what: str, options: LayoutOptions, **flags: Any) -> Box:
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
    return make_box(label, (x - across, y - down, x + across, y + down), what, mask=mask, **flags)


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


# Numbers and checks ----------------------------------------------------------------------------------------


def parse_number(text: object, what: str) -> float:
    """Return a written number as a float; raise SourceError if it is not a finite number.

    >>> parse_number(" 12.5 ", "xmin")
    12.5
    """
    try:
        if isinstance(text, bool) or "_" in str(text):
            raise ValueError
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        comma = "; write a point for the comma" if isinstance(text, str) and _COMMA.fullmatch(text) else ""
        raise SourceError("annotation", "not a number", f"{what} is {text!r:.80}{comma}") from None
    if not math.isfinite(value):
        raise SourceError("annotation", "number is not finite", f"{what} is {text!r}")
    return value


def parse_flag(value: object, what: str, known: Mapping[Any, bool]) -> bool:
    """Return the flag that a value means; raise SourceError for a value that is not `known`."""
    if value not in (*known,):  # a list cannot be a key
        raise SourceError("annotation", "flag is neither 0 nor 1", f"{what} is {value!r}")
    return known[value]


def usable_boxes(
    objects: Iterable[T], box_of: Callable[[T], Box | None], options: LayoutOptions, file: str = ""
) -> tuple[tuple[Box, ...], tuple[tuple[str, str], ...]]:
    """Return the boxes of one image, and (reason, detail) of each unusable object.

    Args:
        objects: annotated objects of the image.
        box_of: returns the box of an object, or None if the entry means "no objects"; raises SourceError for an
            unusable one.
        options: `on_bad_object` drops unusable objects or rejects their image.
        file: file to name in the details of dropped objects; "" if these name it.

    Raises:
        SourceError: error of the first unusable object, if `on_bad_object` is "reject".
    """
    boxes: list[Box] = []
    bad: list[tuple[str, str]] = []
    for one in objects:
        try:
            box = box_of(one)
        except SourceError as error:
            if options.on_bad_object == "reject":
                raise
            bad.append((error.reason, f"{file}: {error.detail}" if file else error.detail))
        else:
            boxes += [] if box is None else [box]
    return tuple(boxes), tuple(bad)


def is_mostly_bad(bad: int, objects: int) -> bool:
    """Return whether most or all objects are unusable, so that the annotations as a whole must be wrong.

    >>> is_mostly_bad(9, 10), is_mostly_bad(11, 20), is_mostly_bad(2, 2), is_mostly_bad(3, 3)
    (False, True, False, True)
    """
    return (bad >= MIN_BAD_OBJECTS and 2 * bad > objects) or (bad == objects and bad >= _MIN_ALL_BAD)


def check_rotation(value: object, what: str, options: LayoutOptions) -> None:
    """Raise SourceError if a box is rotated about its center, as CVAT allows, unless the options ignore rotation."""
    if value in (None, "") or "rotation" in (name.lower() for name in options.ignore_columns):
        return
    angle = parse_number(value, f"{what} rotation")
    if angle % 180:
        detail = f"{what}: by {angle:g} degrees; --ignore-columns rotation takes the box as it is before it is turned"
        raise SourceError("annotation", "box is rotated", detail)


def check_ignored_columns(options: LayoutOptions, layout: str) -> None:
    """Raise UsageError if the options ignore anything but the rotation of boxes."""
    if unknown := [name for name in options.ignore_columns if name.lower() != "rotation"]:
        raise UsageError(
            f"--ignore-columns {','.join(unknown)}: of {layout} rotation alone can be ignored; leave it out"
        )


def declared_size(height: object, width: object) -> tuple[int, int] | None:
    """Return (height, width) from the annotations; None if the size is absent or 0.

    >>> declared_size("480", "640"), declared_size("0", "0"), declared_size(None, "")
    ((480, 640), None, None)
    """
    sides = [0.0 if side is None or side == "" else parse_number(side, "size") for side in (height, width)]
    if min(sides) < 0 or any(side != int(side) for side in sides):
        raise SourceError("annotation", "size is not whole pixels", f"height {height}, width {width}")
    return (int(sides[0]), int(sides[1])) if min(sides) > 0 else None
