"""Boxes of annotated objects from the numbers, flags and drawing tools' shapes that annotations contain."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from halofeed.prep.annotations.columns import to_corners
from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.sources.example import Box
from halofeed.system.errors import SourceError, UsageError

T = TypeVar("T")
MIN_BAD_OBJECTS = 10
"""Fewer unusable objects are single errors, whatever their share, unless no object is usable (an estimate)."""
_MIN_ALL_BAD = 3
"""Fewer objects, all of them unusable, may be single errors (an estimate)."""
BOX_IS_INVERTED = "box is inverted"
_COMMA = re.compile(r"\s*[-+]?\d+,\d+\s*")
_NO_OUTLINE = "object has no segmentation"
_CORNERS_OF_CIRCLE = 72
"""Corners of the polygon of an ellipse, as VIA exports it."""
_CORNERS = 4  # of a rectangle
_MIN_NUMBERS = 6
"""Numbers of a triangle, the smallest polygon."""
_ROUNDED_CORNER = 0.03
"""Share of the sides of the upright box by which corners with few decimals may be off (an estimate)."""
_MAX_ROUNDED = 2.0
"""Pixels by which a sum of four corners may be off if each is rounded to whole pixels, by half a pixel at most."""
BOX_IS_ORIENTED = "box is oriented"
CORNERS_CROSS = "sides between corners cross"
CORNERS_WITHOUT_AREA = "corners enclose no area"
_FILLED = 0.97
"""Least share of its box that four corners enclose if they are upright; corners drawn by hand are not exact."""
_NO_CORNER_AREA = 1e-9
"""Share of their upright box up to which four corners enclose no area."""
_Point = tuple[float, float]
"""x and y."""
LINE_IS_NO_POLYGON = "polygon has fewer than 3 points"
SHAPE_IS_NO_BOX = "shape is no box"
_NO_AREA = frozenset((LINE_IS_NO_POLYGON, SHAPE_IS_NO_BOX))
"""Reasons for which a part of an object has no area."""
_PNG = b"\x89PNG\r\n\x1a\n"
PNG_HEAD_BYTES = 24


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
    # The corners are exchanged, or x, y, width, height were read as corners. Nothing shows which.
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
    turn: float = 0.0,
    **flags: Any,
) -> Box:
    """Return the box of four numbers in `options.box_form`, or in the form of the layout.

    Args:
        label: class of the object.
        numbers: four numbers.
        what: description of the object, for messages.
        options: options of the layout.
        form: form of the layout, see `to_corners`.
        turn: angle in degrees by which the box is turned about its center, see `angle_of`.
        **flags: further fields of the box.

    Raises:
        SourceError: the options ask for masks, and `flags` has none; or the options drop turned boxes, and this is one.

    >>> box = rectangle_of("hat", [0, 0, 4, 2], "object 1", LayoutOptions(), turn=90)
    >>> box.xmin, box.ymin, box.xmax, box.ymax
    (1.0, -1.0, 3.0, 3.0)
    """
    # A rectangle is not an outline: a model trained on it as a mask would learn boxes.
    if options.masks and "mask" not in flags:
        raise SourceError("annotation", _NO_OUTLINE, f"{what} is no polygon")
    corners = to_corners(numbers, form if options.box_form == "auto" else options.box_form)
    box = make_box(label, corners, what, **flags)
    # No turn or half a turn gives the same box; half a turn begins at another corner.
    if not turn % 180 and not (turn % 360 and keeps_corners(options)):
        return box
    x, y = (box.xmin + box.xmax) / 2, (box.ymin + box.ymax) / 2
    return turned_box(box, (x, y), turn, what, options)


REGION: Final = "ignored region"
"""Label of the boxes that are ignored regions; messages name it."""


def region_of(numbers: Sequence[float], what: str, options: LayoutOptions, form: str = "corners") -> Box:
    """Return an ignored region of four numbers, as `rectangle_of` reads them.

    >>> region_of([1, 2, 10, 20], "object 1", LayoutOptions(), form="corner-size").xmax
    11
    """
    corners = to_corners(numbers, form if options.box_form == "auto" else options.box_form)
    return make_box(REGION, corners, what, is_region=True)


def turned_box(box: Box, center: tuple[float, float], turn: float, what: str, options: LayoutOptions) -> Box:
    """Return the upright box around a box that is turned about a point, by an angle in degrees from x toward y.

    If the options keep corners, it has the turned corners: first the one that was at the top left, then those that
    were at the top right, the bottom right and the bottom left.

    Raises:
        SourceError: the options drop oriented boxes; or they keep corners, and these enclose no area.

    >>> box = turned_box(
    ...     make_box("hat", (0, 0, 4, 2), ""), (0, 0), 90, "", LayoutOptions(keep=("corners",))
    ... )
    >>> box.xmin, box.ymax, box.corners
    (-2.0, 4.0, (0.0, 0.0, 0.0, 4.0, -2.0, 4.0, -2.0, 0.0))
    """
    # Quarter turns, even converted from radians, are computed exactly: with the sine of a rounded angle, a side would
    # not be along its axis.
    quarter = {0.0: (1.0, 0.0), 90.0: (0.0, 1.0), 180.0: (-1.0, 0.0), 270.0: (0.0, -1.0)}.get(
        round(turn, 3) % 360
    )
    cosine, sine = quarter or (math.cos(math.radians(turn)), math.sin(math.radians(turn)))
    written = ((box.xmin, box.ymin), (box.xmax, box.ymin), (box.xmax, box.ymax), (box.xmin, box.ymax))
    points = [(x - center[0], y - center[1]) for x, y in written]
    x = [center[0] + a * cosine - b * sine for a, b in points]
    y = [center[1] + a * sine + b * cosine for a, b in points]
    upright = (max(x) - min(x)) * (max(y) - min(y))
    share = (box.xmax - box.xmin) * (box.ymax - box.ymin) / upright if upright and not quarter else None
    check_oriented(share, what, options)
    upright_box = replace(box, xmin=min(x), ymin=min(y), xmax=max(x), ymax=max(y), turned_share=share)
    return with_corners(
        upright_box, [side for point in zip(x, y, strict=True) for side in point], what, options
    )


def keeps_corners(options: LayoutOptions) -> bool:
    """Return whether the options keep the four corners of each object."""
    return "corners" in options.keep


def with_corners(box: Box, numbers: Sequence[float], what: str, options: LayoutOptions) -> Box:
    """Return a box with its four corners x, y, x, y, ... if the options keep corners and the outline has four.

    An outline that repeats its first point at its end has one point less. The area is that of the corners unless the
    box has one: DOTA's development kit takes that of their polygon too (`parse_dota_poly` of `dota_utils.py`).

    Raises:
        SourceError: the corners enclose no area, or their sides cross.
    """
    if not keeps_corners(options):
        return box
    numbers = _open_outline(numbers)
    if len(numbers) != 2 * _CORNERS:
        return box
    check_corners(numbers, what)
    return replace(
        box,
        corners=tuple(map(float, numbers)),
        area=polygon_area(numbers) if box.area is None else box.area,
    )


def check_corners(numbers: Sequence[float], what: str) -> None:
    """Raise SourceError if four corners x, y, x, y, ... enclose no area, or are not in their order around the object.

    >>> check_corners([0, 0, 4, 0, 4, 2, 0, 2], "object 1")
    >>> try:
    ...     check_corners([0, 0, 4, 0, 0, 2, 4, 2], "object 1")
    ... except SourceError as error:
    ...     print(error.reason)
    sides between corners cross
    """
    points = list(zip(numbers[::2], numbers[1::2], strict=True))
    written = f"{what}: {' '.join(f'{number:g}' for number in numbers)}"
    first, second, third, fourth = points
    if _cross(first, second, third, fourth) or _cross(second, third, fourth, first):
        detail = f"{written}; write the corners in their order around the object"
        raise SourceError("annotation", CORNERS_CROSS, detail)
    width, height = (max(numbers[axis::2]) - min(numbers[axis::2]) for axis in (0, 1))
    # Corners on one line; the tolerance is for the rounding of turned ones.
    if polygon_area(numbers) <= _NO_CORNER_AREA * width * height:
        raise SourceError("annotation", CORNERS_WITHOUT_AREA, f"{written}; correct or delete it")


def with_filled_share(box: Box) -> Box:
    """Return a box of a format of oriented boxes, with the share of it that its four corners enclose, if that is less.

    Corners that people drew, as in DOTA, are no exact rectangles, which `share_of_turned_rectangle` recognizes.
    """
    # A box without an outline has no area.
    if not box.area:
        return box
    share = box.area / ((box.xmax - box.xmin) * (box.ymax - box.ymin))
    return replace(box, turned_share=share) if share < _FILLED else box


def _cross(first: _Point, second: _Point, third: _Point, fourth: _Point) -> bool:
    """Return whether the line from the first to the second point crosses that from the third to the fourth."""

    def side(start: _Point, end: _Point, point: _Point) -> float:
        return (end[0] - start[0]) * (point[1] - start[1]) - (end[1] - start[1]) * (point[0] - start[0])

    return (
        side(first, second, third) * side(first, second, fourth) < 0
        and side(third, fourth, first) * side(third, fourth, second) < 0
    )


def _open_outline(numbers: Sequence[float]) -> Sequence[float]:
    """Return an outline without its last point if that repeats the first one of five."""
    is_closed = len(numbers) == 2 * _CORNERS + 2 and list(numbers[:2]) == list(numbers[-2:])
    return numbers[:-2] if is_closed else numbers


def check_oriented(share: float | None, what: str, options: LayoutOptions) -> None:
    """Raise SourceError for an oriented box if the options drop oriented boxes; `share` is None for an upright one."""
    if share is not None and options.oriented_boxes == "drop":
        detail = f"{what}: it fills {share:.0%} of its upright box, which --oriented-boxes upright takes"
        raise SourceError("annotation", BOX_IS_ORIENTED, detail)


def polygon_of(label: str, numbers: Sequence[float], what: str, options: LayoutOptions, **flags: Any) -> Box:
    """Return the upright box of a polygon x, y, x, y, ..., with the polygon as its mask if the options ask for it.

    Its area is that of the polygon, as in COCO. If the options keep corners, a polygon of four points has them.

    >>> box = polygon_of("hat", [1, 2, 5, 2, 5, 9], "object 1", LayoutOptions(masks=True))
    >>> box.mask, box.area
    ([[1, 2, 5, 2, 5, 9]], 14.0)
    """
    # A line has no area.
    if len(numbers) < _MIN_NUMBERS or len(numbers) % 2:
        raise SourceError("annotation", LINE_IS_NO_POLYGON, f"{what}: {len(numbers) // 2}")
    x, y = numbers[::2], numbers[1::2]
    share = None
    if not options.masks or options.oriented_boxes == "drop":  # a mask keeps the orientation
        share = share_of_turned_rectangle(numbers)
        check_oriented(share, what, options)
    box = make_box(
        label,
        (min(x), min(y), max(x), max(y)),
        what,
        mask=[list(numbers)] if options.masks else None,
        area=polygon_area(numbers),
        turned_share=share,
        **flags,
    )
    return with_corners(box, numbers, what, options)


def usable_parts(polygons: Sequence[Any], what: str, options: LayoutOptions) -> tuple[list[list[float]], int]:
    """Return the polygons of a mask in COCO's form, and the number of those left out for fewer than three points.

    Like Detectron2, the reader leaves out such a polygon, and an object without any other polygon. pycocotools would
    draw a line, or take four numbers for a box.

    Raises:
        SourceError: a polygon is not a list of x, y, x, y, ...; no polygon is left; or one is left out, and the options
            reject the image.

    >>> usable_parts([[1, 1, 5, 1, 5, 5], [7, 7, 8, 8]], "object 1", LayoutOptions())
    ([[1, 1, 5, 1, 5, 5]], 1)
    """
    if not all(isinstance(polygon, list) and len(polygon) % 2 == 0 for polygon in polygons):
        detail = f"{what}: {polygons!r:.60}"
        raise SourceError("annotation", "segmentation is neither polygons nor run lengths", detail)
    for polygon in polygons:
        for value in polygon:
            parse_number(value, f"{what} segmentation")
    usable = [polygon for polygon in polygons if len(polygon) >= _MIN_NUMBERS]
    lost = len(polygons) - len(usable)
    # With --on-bad-object reject, an object that lacks one of its parts counts as unusable.
    if not usable or (lost and options.on_bad_object == "reject"):
        raise SourceError("annotation", LINE_IS_NO_POLYGON, f"{what}: {polygons!r:.60}")
    return usable, lost


def polygon_area(numbers: Sequence[float]) -> float:
    """Return the area of a polygon x, y, x, y, ...

    >>> polygon_area([0, 0, 4, 0, 4, 2, 0, 2])
    8.0
    """
    x, y = numbers[::2], numbers[1::2]
    left, top = x[0], y[0]  # differences from a corner are small numbers, whose products lose fewer digits
    pairs = zip(x, y, [*x[1:], x[0]], [*y[1:], y[0]], strict=True)
    return abs(math.fsum((a - left) * (d - top) - (c - left) * (b - top) for a, b, c, d in pairs)) / 2


def share_of_turned_rectangle(numbers: Sequence[float]) -> float | None:
    """Return the share of its upright box that a turned rectangle fills; None for every other polygon.

    A turned rectangle has sides that are not along the axes. The numbers may be pixels or shares of the sides of the
    picture. Scaling the axes makes a parallelogram of a rectangle, but one property remains: for two neighboring sides,
    the product of their x and the product of their y have opposite signs. Four points that a person clicks rarely have
    it.

    >>> share_of_turned_rectangle([2, 0, 4, 2, 2, 4, 0, 2])
    0.5
    >>> share_of_turned_rectangle([0, 0, 4, 0, 4, 2, 0, 2]), share_of_turned_rectangle([0, 0, 4, 1, 4, 3, 0, 2])
    (None, None)
    """
    numbers = _open_outline(numbers)
    if len(numbers) != 2 * _CORNERS:
        return None
    x, y = numbers[::2], numbers[1::2]
    width, height = max(x) - min(x), max(y) - min(y)
    if not width or not height or not _is_parallelogram(numbers, width, height):
        return None
    first, second = (x[1] - x[0], y[1] - y[0]), (x[2] - x[1], y[2] - y[1])
    across, down = first[0] * second[0] / width**2, first[1] * second[1] / height**2
    # Sides along the axes have a product of 0.
    if across * down >= 0 or min(abs(across), abs(down)) < _ROUNDED_CORNER**2:
        return None
    return polygon_area(numbers) / (width * height)


def _is_parallelogram(numbers: Sequence[float], width: float, height: float) -> bool:
    """Return whether opposite sides of four corners are equal, except for the rounding of the corners."""
    x, y = numbers[::2], numbers[1::2]
    gap_x, gap_y = x[0] + x[2] - x[1] - x[3], y[0] + y[2] - y[1] - y[3]
    rounded = _MAX_ROUNDED if all(float(side).is_integer() for side in numbers) else 0.0
    limit_x, limit_y = max(_ROUNDED_CORNER * width, rounded), max(_ROUNDED_CORNER * height, rounded)
    return abs(gap_x) <= limit_x and abs(gap_y) <= limit_y


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
    # A mask consists of polygons, so the rim of the ellipse becomes one.
    if options.masks:
        turns = (2 * math.pi * corner / _CORNERS_OF_CIRCLE for corner in range(_CORNERS_OF_CIRCLE))
        rim = ((first * math.cos(turn), second * math.sin(turn)) for turn in turns)
        mask = [[z for a, b in rim for z in (x + a * cosine - b * sine, y + a * sine + b * cosine)]]
    area = math.pi * first * second
    return make_box(label, (x - across, y - down, x + across, y + down), what, mask=mask, area=area, **flags)


def bitmap_of(label: str, corner: Sequence[float], head: bytes, what: str, options: LayoutOptions) -> Box:
    """Return the box of a PNG bitmap whose first pixel is at (x, y); the size is in the first bytes of the file."""
    if not head.startswith(_PNG) or len(head) < PNG_HEAD_BYTES:
        raise SourceError("annotation", "bitmap is no PNG", what)
    height, width = size_of_png(head)
    return rectangle_of(label, [*corner, width, height], what, replace(options, box_form="corner-size"))


def size_of_png(head: bytes) -> tuple[int, int]:
    """Return (height, width) from the first `PNG_HEAD_BYTES` of a PNG file, whose first chunk is IHDR."""
    return int.from_bytes(head[20:24], "big"), int.from_bytes(head[16:20], "big")


def run_lengths_of(label: str, mask: Any, what: str, options: LayoutOptions, **flags: Any) -> Box:
    """Return the box of run lengths {"size": [height, width], "counts": ...}, as COCO writes them, with their area.

    >>> run_lengths_of("hat", {"size": [2, 3], "counts": [2, 3, 1]}, "object 1", LayoutOptions()).area
    3.0
    """
    from halofeed.prep.voxels.masks import (
        mask_area,
        run_length_box,
    )  # NumPy, which most annotations do not need

    if not isinstance(mask, Mapping):
        raise SourceError("annotation", "mask is no run lengths", f"{what}: {mask!r:.60}")
    left, top, width, height = run_length_box(mask)
    corners = (left, top, left + width, top + height)
    kept = dict(mask) if options.masks else None
    return make_box(label, corners, what, mask=kept, area=mask_area(mask), **flags)


def no_box(kind: object, what: str) -> SourceError:
    """Return the error about a shape that has no box, such as a point or a line, or that is not known."""
    return SourceError("annotation", SHAPE_IS_NO_BOX, f"{what} is of the type {kind!r:.40}")


def unite_parts(parts: Sequence[T], box_of: Callable[[T], Box], options: LayoutOptions) -> Box:
    """Return one object of several parts: the box around them, and all their polygons.

    Parts without an area, such as a line, are left out and counted, if the object has others.

    Raises:
        SourceError: no part is usable; or one is not, and the options reject the image of an unusable object.
    """
    boxes, faults = list[Box](), list[SourceError]()
    for part in parts:
        try:
            boxes.append(box_of(part))
        except SourceError as error:
            # A line beside an area can be left out; an unreadable number makes the whole object unusable.
            if error.reason not in _NO_AREA or options.on_bad_object == "reject":
                raise
            faults.append(error)
    if not boxes:
        raise faults[0]
    return boxes[0] if len(parts) == 1 else _box_around(boxes, lost_parts=len(faults))


def _box_around(boxes: Sequence[Box], lost_parts: int) -> Box:
    """Return the box around boxes, with the fields of the first one."""
    masks = [polygon for box in boxes for polygon in box.mask or ()]
    areas = [box.area for box in boxes if box.area is not None]
    return replace(
        boxes[0],
        area=math.fsum(areas) if len(areas) == len(boxes) else None,
        turned_share=boxes[0].turned_share if len(boxes) == 1 else None,
        corners=boxes[0].corners if len(boxes) == 1 else (),
        lost_parts=lost_parts,
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
        # float() reads True as 1 and 1_000 as 1000, which no format writes.
        if isinstance(text, bool) or "_" in str(text):
            raise ValueError
        value = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        comma = "; write a point for the comma" if isinstance(text, str) and _COMMA.fullmatch(text) else ""
        raise SourceError("annotation", "not a number", f"{what} is {text!r:.80}{comma}") from None
    # Comparisons with NaN are false, so no later check would find it.
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


def angle_of(value: object, what: str, options: LayoutOptions) -> float:
    """Return the angle by which a box is turned; 0 without one, or if the options ignore the rotation."""
    # With --ignore-columns rotation, the box counts as upright.
    if value in (None, "") or "rotation" in (name.lower() for name in options.ignore_columns):
        return 0.0
    return parse_number(value, f"{what} rotation")


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
    # A picture has no half pixels, so the number means something else.
    if min(sides) < 0 or any(side != int(side) for side in sides):
        raise SourceError("annotation", "size is not whole pixels", f"height {height}, width {width}")
    return (int(sides[0]), int(sides[1])) if min(sides) > 0 else None
