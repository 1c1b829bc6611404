"""Resolution of the units, origin and grid of boxes from all boxes of an annotation file together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.written_boxes import (
    PNG_HEAD_BYTES,
    is_mostly_bad,
    keeps_corners,
    size_of_png,
)
from halofeed.prep.sources.example import Box, IgnoredRegion, Keypoint, SourceExample
from halofeed.prep.sources.file_names import is_dicom_name, is_image_name
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import AnnotationsError, SourceError
from halofeed.system.wording import plural

_HEADER_BYTES = (1 << 12, 1 << 16)
"""Bytes to read from an image to find its orientation; the first few hundred suffice for most files."""
_THREADS = 16
"""Files to open at once: a store answers many requests in the time of one."""

NEITHER = "neither"
Size = tuple[int, int]
_NORMALIZED = "boxes taken as shares of the picture's sides, as all of their file lie within 0 to 1"
_FROM_ZERO = (
    "a box begins below 1, where VOC counts pixels from 1; --box-origin 0 takes the numbers as they stand"
)
_MAX_SHARE_BELOW_ONE = 0.01
"""Share of boxes that begin below 1. Fewer are single errors under VOC's rule; more prove that numbers count from 0.

An estimate, as are the other shares here: VOC itself has no such box, and a file that counts from 0 has them at the
borders of its pictures."""
_WITH_FRACTIONS = (
    "boxes have fractions, so they count from 0 and not from 1 as VOC does; --box-origin 1 shifts them"
)
_FEW_FRACTIONS = (
    "a box has fractions, and VOC counts whole pixels from 1; --box-origin 0 takes the numbers as they stand"
)
_SHARE_WITH_FRACTIONS = 0.1
"""Share of boxes with fractions above which the numbers are positions and not pixel numbers (an estimate)."""
_MAX_FRACTION = 1.5
"""Limit for normalized coordinates, including small errors. A file with boxes in pixels has larger ones, unless its
pictures are tiny, see `_is_tiny`."""
_IN_FIRST_PIXEL = (
    "box lies within the first pixel",
    "its file has boxes in pixels as well; --box-units says what all of them are",
)
# YOLO has no option for units, so that the way out is one of the numbers.
_NOT_NORMALIZED = (
    "box is no share of the picture",
    "expected numbers from 0 to 1; divide x and width by the picture's width, y and height by its height",
)
_EXCHANGED = "with x and y exchanged all fit: exchange those columns"
_OTHER_BOXES = (
    "correct the boxes, state with --box-form how they are written, or name with --images the pictures that were "
    "annotated, if these were scaled since"
)
_DUPLICATE_OBJECT = "an object stands there twice, with one class and one box; both are kept"
_SAMPLE = 200
"""Number of images without a declared size to open, evenly spaced over the file (an estimate): most of the boxes of a
wrong file exceed their images, so that a sample shows it."""
_TOLERANCE = 0.05
"""Share of a side: a box that exceeds its image by less was drawn over the border (an estimate)."""


def resolve_boxes(
    listed: Sequence[SourceExample], images: SourceFiles, options: LayoutOptions, file: str, origin: int = 0
) -> list[SourceExample]:
    """Return the examples of one annotation file with boxes in continuous pixels, or marked as normalized.

    Args:
        file: annotation file, or the folder of all annotation files, for messages.
        origin: number of the first pixel by the rule of the layout.

    Raises:
        AnnotationsError: the meaning of the numbers is ambiguous, so the user must choose an option.
    """
    known = _resolve_units(listed, options, file)
    resolved = resolve_grid(_resolve_origin(known, options, origin, file), images, options)
    _check_boxes_fit(resolved, images, options, file)
    apart = [with_regions_apart(one) for one in resolved]
    return [note_duplicates(one) for one in note_changed_objects(apart, with_corners=keeps_corners(options))]


def with_regions_apart(example: SourceExample) -> SourceExample:
    """Return the example with its boxes that are ignored regions in `ignored_regions`.

    >>> box = Box(ymin=1, xmin=2, ymax=3, xmax=4, label="sky", is_region=True)
    >>> example = with_regions_apart(SourceExample(source="a.png", key="a.png", boxes=(box,)))
    >>> example.boxes, example.ignored_regions
    ((), ((1, 2, 3, 4),))
    """
    regions = tuple(sides_of(box) for box in example.boxes or () if box.is_region)
    if not regions:
        return example
    objects = tuple(box for box in example.boxes or () if not box.is_region)
    return replace(example, boxes=objects, ignored_regions=(*example.ignored_regions, *regions))


def sides_of(box: Box) -> IgnoredRegion:
    """Return ymin, xmin, ymax and xmax of a box."""
    return box.ymin, box.xmin, box.ymax, box.xmax


def note_changed_objects(
    listed: Sequence[SourceExample], *, with_corners: bool = False
) -> list[SourceExample]:
    """Return the examples of one annotation file with notes about oriented boxes and about parts that are left out.

    A note has the counts of the file, so that all its examples share one.
    """
    boxes = [box for one in listed if one.problem is None for box in one.boxes or ()]
    shares = [box.turned_share for box in boxes if box.turned_share]
    lost = [box.lost_parts for box in boxes if box.lost_parts]
    # Most files have neither.
    if not shares and not lost:
        return list(listed)
    growth = sum(1 / share for share in shares) / max(1, len(shares))
    became = "keep their corners beside" if with_corners else "became"
    cure = "" if with_corners else "--keep corners stores their corners too, "
    turned = (
        f"oriented boxes ({len(shares):,} of {plural(len(boxes), 'object')}) {became} upright boxes of {growth:.1f} "
        f"times their area; {cure}--oriented-boxes drop leaves them out"
    )
    parts = (
        f"{plural(sum(lost), 'part')} without an area, such as lines, left out of {plural(len(lost), 'object')}, whose "
        "other parts stay"
    )
    return [replace(one, notes=(*one.notes, *_notes_of_changes(one, turned, parts))) for one in listed]


def _notes_of_changes(example: SourceExample, turned: str, parts: str) -> tuple[str, ...]:
    boxes = example.boxes or ()
    has_turned, has_lost = any(box.turned_share for box in boxes), any(box.lost_parts for box in boxes)
    return (turned,) * has_turned + (parts,) * has_lost


def _check_boxes_fit(
    listed: Sequence[SourceExample], images: SourceFiles, options: LayoutOptions, file: str
) -> None:
    """Raise AnnotationsError if most boxes exceed their images, unless the user chose the units.

    The message contains the first such box, and whether all boxes fit with x and y exchanged.
    """
    # The user states that the numbers are right.
    if options.box_units != "auto":
        return
    boxes = leaving = fitting = 0
    first = ""
    for example, sizes in _with_possible_sizes(listed, images):
        for box in example.boxes or ():
            boxes += 1
            # EXIF may swap the sides, so that a box has to leave both sizes.
            if all(_leaves(box, size) for size in sizes):
                leaving += 1
                first = first or _describe_box(example, box, sizes[0])
            fitting += any(_fits_exchanged(box, size) for size in sizes)
    if not is_mostly_bad(leaving, boxes):
        return
    fix = _EXCHANGED if fitting == boxes else _OTHER_BOXES
    raise AnnotationsError(
        f"{file}: {leaving:,} of {boxes:,} boxes leave their pictures, the first in {first}; {fix}; "
        "--box-units pixels takes them all the same"
    )


def _with_possible_sizes(
    listed: Sequence[SourceExample], images: SourceFiles
) -> list[tuple[SourceExample, tuple[Size, ...]]]:
    """Return the examples with boxes in pixels and the sizes of their images: declared, otherwise stored."""
    boxed = [one for one in listed if one.boxes and not one.normalized and one.problem is None]
    declared = [(one, (one.declared_size,)) for one in boxed if one.declared_size is not None]
    others = [one for one in boxed if one.declared_size is None and is_image_name(one.source)]
    chosen = others[:: max(1, -(-len(others) // _SAMPLE))]
    found = possible_sizes([one.source for one in chosen], images)
    return [*declared, *((one, sizes) for one, sizes in zip(chosen, found, strict=True) if sizes)]


def _leaves(box: Box, size: Size) -> bool:
    height, width = size
    across, down = 1 + _TOLERANCE * width, 1 + _TOLERANCE * height
    return box.xmin < -across or box.ymin < -down or box.xmax > width + across or box.ymax > height + down


def _fits_exchanged(box: Box, size: Size) -> bool:
    height, width = size
    return min(box.xmin, box.ymin) >= -1 and box.ymax <= width + 1 and box.xmax <= height + 1


def _describe_box(example: SourceExample, box: Box, size: Size) -> str:
    return (
        f"{example.source} ({box.label!r}: x from {box.xmin:g} to {box.xmax:g}, y from {box.ymin:g} to {box.ymax:g}, "
        f"picture {size[1]} wide and {size[0]} high)"
    )


def note_duplicates(example: SourceExample) -> SourceExample:
    """Return the example with a note if two of its objects are the same."""
    return replace(example, notes=(*example.notes, _DUPLICATE_OBJECT)) if _has_duplicate(example) else example


def _has_duplicate(example: SourceExample) -> bool:
    boxes = example.boxes or ()
    # Annotators draw an object twice; merging tools write it twice. Either may be intended, so both stay.
    if example.problem is not None or len(boxes) < 2:
        return False
    seen = {(box.label, box.ymin, box.xmin, box.ymax, box.xmax, repr(box.mask)) for box in boxes}
    return len(seen) < len(boxes)


def _resolve_units(listed: Sequence[SourceExample], options: LayoutOptions, file: str) -> list[SourceExample]:
    """Return the examples of one annotation file, marked if their boxes are normalized; a deviating box is faulty."""
    if options.box_units == "pixels":
        return list(listed)
    if options.box_units == "normalized":
        return [_mark_normalized(one, options, "") for one in listed]
    boxes = _telling_boxes(listed)
    small = [box for box in boxes if _is_small(box)]
    # No box is within 0 to 1.5, so all boxes are in pixels.
    if not small:
        return list(listed)
    # Some boxes exceed 1, so the file is in pixels, and a box within the first pixel is an error of annotation.
    if len(small) < len(boxes):
        return [_without_first_pixel(one, options) for one in listed]
    if not any(map(_has_fractions, small)):
        raise AnnotationsError(
            f"{file}: every box runs from 0 to 1, which is one pixel or the whole picture; use --box-units pixels or "
            "--box-units normalized"
        )
    return [_mark_normalized(one, options, _NORMALIZED) for one in listed]


def _telling_boxes(listed: Sequence[SourceExample]) -> list[Box]:
    """Return the boxes that may show the units: with an area, in images larger than the limit for shares."""
    return [box for one in listed if not _is_tiny(one) for box in one.boxes or () if _has_area(box)]


def _without_first_pixel(example: SourceExample, options: LayoutOptions) -> SourceExample:
    """Return the example of a file in pixels without its boxes within the first pixel, unless its image is tiny."""
    return example if _is_tiny(example) else _drop_faulty_boxes(example, options, _is_small, _IN_FIRST_PIXEL)


def _mark_normalized(example: SourceExample, options: LayoutOptions, note: str) -> SourceExample:
    if not example.boxes:
        return example
    checked = _drop_faulty_boxes(example, options, lambda box: not _is_normalized(box), _NOT_NORMALIZED)
    # A rejected image has no boxes to mark.
    if checked.problem is not None:
        return checked
    return replace(checked, normalized=True, notes=(*checked.notes, note) if note else checked.notes)


def _drop_faulty_boxes(
    example: SourceExample, options: LayoutOptions, is_faulty: Callable[[Box], bool], fault: tuple[str, str]
) -> SourceExample:
    """Return the example without its faulty boxes, which it lists; or with a problem if `on_bad_object` is "reject"."""
    faulty = [box for box in example.boxes or () if is_faulty(box)]
    if not faulty:
        return example
    reason, why = fault
    bad = [
        (reason, f"{box.label!r} {box.xmin:g},{box.ymin:g},{box.xmax:g},{box.ymax:g}: {why}")
        for box in faulty
    ]
    # Without the object, its record would train the place as background.
    if options.on_bad_object == "reject":
        return replace(example, boxes=None, declared_size=None, problem=("annotation", *bad[0]))
    kept = tuple(box for box in example.boxes or () if not is_faulty(box))
    return replace(example, boxes=kept, bad_objects=(*example.bad_objects, *bad))


def _has_area(box: Box) -> bool:
    return box.xmax > box.xmin and box.ymax > box.ymin


def _is_normalized(box: Box) -> bool:
    return min(box.xmin, box.ymin) >= -(_MAX_FRACTION - 1) and max(box.xmax, box.ymax) <= _MAX_FRACTION


def _is_small(box: Box) -> bool:
    return _has_area(box) and _is_normalized(box)


def _is_tiny(example: SourceExample) -> bool:
    """Return whether an image is so small that its boxes may be within the first pixel."""
    size = example.declared_size
    return size is not None and min(size) < 2 * _MAX_FRACTION


def _resolve_origin(
    listed: Sequence[SourceExample], options: LayoutOptions, default: int, file: str
) -> list[SourceExample]:
    """Return the examples with boxes in continuous pixels from 0.

    `options.box_origin` is the user's choice: 0 keeps the numbers, 1 is VOC's rule, None leaves the choice to the
    data.

    Args:
        default: origin by the rule of the layout.
        file: annotation file, for messages.

    Raises:
        AnnotationsError: the user chose no origin and the share of boxes with fractions is inconclusive, or too many
            boxes begin below the first pixel.
    """
    is_open = options.box_origin is None
    if (default if is_open else options.box_origin) == 0:
        return list(listed)
    # Numbers from 0 are continuous positions already.
    if is_open and _count_from_zero(listed, file):
        return [
            replace(one, notes=(*one.notes, _WITH_FRACTIONS)) if _is_in_pixels(one) else one for one in listed
        ]
    # Of two corners in pixel numbers, both pixels belong to the box; a width already counts both of them.
    shift = _from_one if options.box_form in ("auto", "corners") else _size_from_one
    few = _FEW_FRACTIONS if is_open else ""
    return [_shift_example(one, shift, few) if _is_in_pixels(one) else one for one in listed]


def _count_from_zero(listed: Sequence[SourceExample], file: str) -> bool:
    """Return whether fractions prove that the numbers of a file are positions from 0, against the rule of its layout.

    Raises:
        AnnotationsError: the numbers fit neither rule.
    """
    proving = _proving_boxes(listed)
    boxes = len(proving)
    fractions = [source for source, box in proving if _has_fractions(box)]
    if len(fractions) > _SHARE_WITH_FRACTIONS * boxes:
        return True
    # Too many for single errors and too few for another way of counting.
    if len(fractions) > _MAX_SHARE_BELOW_ONE * boxes:
        raise AnnotationsError(
            f"{file}: {len(fractions):,} of {boxes:,} boxes have fractions, the first in {fractions[0]}: VOC counts "
            "whole pixels from 1, and fractions count from 0; use --box-origin 0 to take all numbers as they stand, or "
            "--box-origin 1 to shift them all"
        )
    below = [source for source, box in proving if _begins_below_one(box)]
    # More than single errors, see docs/decisions.md, "VOC is 1-based and inclusive".
    if len(below) > _MAX_SHARE_BELOW_ONE * boxes:
        raise AnnotationsError(
            f"{file}: {len(below):,} of {plural(boxes, 'box', 'boxes')} begin below 1, the first in "
            f"{below[0]}: VOC counts pixels "
            "from 1, these numbers count from 0; use --box-origin 0, or --box-origin 1 to shift them all the same"
        )
    return False


def _proving_boxes(listed: Sequence[SourceExample]) -> list[tuple[str, Box]]:
    """Return the boxes whose numbers are those of the file, with the paths of their images.

    The upright box around a turned one has fractions even if the numbers of the file are whole.
    """
    boxes = [(one.source, box) for one in listed if _is_in_pixels(one) for box in one.boxes or ()]
    return [(source, box) for source, box in boxes if box.turned_share is None] or boxes


def _is_in_pixels(example: SourceExample) -> bool:
    return bool(example.boxes) and not example.normalized


def _begins_below_one(box: Box) -> bool:
    return 0 <= box.xmin < 1 or 0 <= box.ymin < 1


def _has_fractions(box: Box) -> bool:
    return not all(float(side).is_integer() for side in (box.ymin, box.xmin, box.ymax, box.xmax))


def _shift_example(example: SourceExample, shift: Callable[[Box], Box], few_fractions: str) -> SourceExample:
    boxes, notes = example.boxes or (), example.notes
    # So few are single errors; after the shift they begin outside the picture.
    if any(map(_begins_below_one, boxes)):
        notes = (*notes, _FROM_ZERO)
    if few_fractions and any(map(_has_fractions, boxes)):
        notes = (*notes, few_fractions)
    return replace(example, boxes=tuple(map(shift, boxes)), notes=notes)


def _size_from_one(box: Box) -> Box:
    """Return a box written with its width and height, shifted to origin 0: both ends move with its corner."""
    shifted = replace(box, ymin=box.ymin - 1, xmin=box.xmin - 1, ymax=box.ymax - 1, xmax=box.xmax - 1)
    return replace(shifted, corners=tuple(side - 1 for side in box.corners))


def _from_one(box: Box) -> Box:
    (ymin, ymax), (xmin, xmax) = continuous(box.ymin, box.ymax), continuous(box.xmin, box.xmax)
    return replace(box, ymin=ymin, xmin=xmin, ymax=ymax, xmax=xmax, corners=_corners_from_one(box.corners))


def _corners_from_one(corners: Sequence[float]) -> tuple[float, ...]:
    """Return the continuous corners of a turned rectangle whose corners are the middles of pixels that count from 1.

    Each side moves outward by half a pixel, as those of an upright box do in `continuous`.

    >>> _corners_from_one([3, 1, 5, 1, 5, 2, 3, 2])
    (2.0, 0.0, 5.0, 0.0, 5.0, 2.0, 2.0, 2.0)
    """
    moved: list[float] = []
    for at in range(0, len(corners), 2):
        x, y = corners[at : at + 2]
        neighbors = (corners[at - 2 :][:2], corners[(at + 2) % len(corners) :][:2])
        away = [(x - other_x, y - other_y) for other_x, other_y in neighbors]
        for written, axis in ((x, 0), (y, 1)):
            moved.append(written - 0.5 + sum(one[axis] / math.hypot(*one) for one in away if any(one)) / 2)
    return tuple(moved)


def continuous(first: float, last: float) -> tuple[float, float]:
    """Return the continuous extent of one side of a box that is written as pixel numbers from 1.

    Pixels 3 to 5 extend from 2.0 to 5.0. A side without extent keeps none and is at the center of its pixel.

    >>> continuous(3, 5), continuous(3, 3)
    ((2, 5), (2.5, 2.5))
    """
    return (first - 1, last) if first != last else (first - 0.5, last - 0.5)


def resolve_grid(
    listed: Sequence[SourceExample], images: SourceFiles, options: LayoutOptions
) -> list[SourceExample]:
    """Return the examples of one annotation file with the pixel grid that the declared sizes prove.

    A tool draws either on the stored pixels or on the upright image, the same for all images. If an EXIF orientation
    swaps the sides, the declared size (or the size of the label image) shows which. Images without such proof get the
    grid of the other images in their file. If the proofs disagree or there are none, the grid stays open: see
    `prep.picture`.
    """
    if options.annotation_grid != "auto":
        return list(listed)
    sized = [example for example in listed if _may_prove_grid(example)]
    with ThreadPoolExecutor(_THREADS) as threads:
        proofs = list(threads.map(lambda example: _proven_grid(example, images), sized))
    # A picture without a declared size may be the right one, so that nothing is certain.
    if len(sized) == sum(example.problem is None for example in listed):
        _check_declared_sizes(sized, proofs)
    proven = {proof for proof in proofs if proof not in (None, NEITHER)}
    # Two tools, or pictures that were turned after the annotation: each picture is asked for its own grid later.
    if len(proven) != 1:
        return list(listed)
    (grid,) = proven
    return [replace(example, grid=grid) if example.problem is None else example for example in listed]


def _check_declared_sizes(sized: Sequence[SourceExample], proofs: Sequence[str | None]) -> None:
    """Raise AnnotationsError if no declared size matches its image: sides are swapped, or the images are others."""
    if sized and all(proof == NEITHER for proof in proofs):
        height, width = sized[0].declared_size or (0, 0)
        raise AnnotationsError(
            f"{sized[0].source}: annotations say {width} wide and {height} high, and the picture has other sides, as "
            f"have all {plural(len(sized), 'picture')}: exchange width and height if they are swapped, or "
            "name the folder of the pictures that were annotated with --images"
        )


def _may_prove_grid(example: SourceExample) -> bool:
    if example.problem is not None or not is_image_name(example.source):
        return False
    # A label image has the sides of the grid on which it was drawn, and a PNG states them in its first bytes.
    if example.mask is not None:
        return example.mask.lower().endswith(".png")
    size = example.declared_size
    return example.boxes is not None and size is not None and size[0] != size[1]


def _proven_grid(example: SourceExample, images: SourceFiles) -> str | None:
    """Return the grid that the declared size proves: "stored", "displayed" or NEITHER; None if both are possible."""
    try:
        sizes, declared = _possible_sizes(example.source, images), example.declared_size
        # The sides are those of another picture, or of one that was scaled since.
        if sizes and example.mask is None and declared not in sizes:
            return NEITHER
        # No orientation swaps the sides, or they are equal.
        if len(set(sizes)) < 2:
            return None
        if example.mask is not None:
            declared = size_of_png(images.head(example.mask, PNG_HEAD_BYTES))
    except SourceError:
        return None
    return dict(zip(sizes, ("stored", "displayed"), strict=True)).get(declared or (0, 0))


def possible_sizes(paths: Sequence[str], images: SourceFiles) -> list[tuple[Size, ...]]:
    """Return for each image the sizes that annotations may refer to; () if the file header does not contain one."""

    def sizes(path: str) -> tuple[Size, ...]:
        try:
            return _possible_sizes(path, images)
        except SourceError:
            return ()

    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(sizes, paths))


def _possible_sizes(path: str, images: SourceFiles) -> tuple[Size, ...]:
    """Return the stored size of an image, followed by the displayed size if EXIF swaps the sides; () if unknown."""
    # Imported here because the command line's help imports the layouts and must not load the decoders.
    from halofeed.prep.formats.picture import size_and_orientation

    if is_dicom_name(path):
        from halofeed.prep.formats.region.slide_headers import slide_size

        slide = slide_size(images, path)
        if slide is not None:
            return (slide,)
    for size in _HEADER_BYTES:  # as few bytes as possible
        head = images.head(path, size)
        found = size_and_orientation(head)
        if found is not None or len(head) < size:
            break
    else:
        found = size_and_orientation(images.read(path))
    # JPEG may state a height of 0 and give it later (DNL, ITU-T T.81 B.2.5).
    if found is None or not all(found[0]):
        return ()
    (height, width), orientation = found
    return ((height, width), (width, height)) if orientation >= 5 else ((height, width),)


def scale_to_pixels(box: Box, size: tuple[int, int]) -> Box:
    """Scale a normalized box with its area, polygons and keypoints to pixels of an image of size (height, width).

    >>> box = scale_to_pixels(Box(ymin=0.25, xmin=0.5, ymax=1, xmax=1, label="hat", area=0.25), (40, 60))
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
        area=None if box.area is None else box.area * (height * width if box.area <= _MAX_FRACTION else 1),
        mask=_polygons_in_pixels(box.mask, size),
        corners=tuple(_polygons_in_pixels([box.corners], size)[0]),
        keypoints=_keypoints_in_pixels(box.keypoints, size),
    )


def _keypoints_in_pixels(points: tuple[Keypoint, ...], size: tuple[int, int]) -> tuple[Keypoint, ...]:
    # The box may be normalized and the keypoints in pixels.
    if any(max(point.y, point.x) > _MAX_FRACTION for point in points):
        return points
    height, width = size
    return tuple(replace(point, y=point.y * height, x=point.x * width) for point in points)


def _polygons_in_pixels(mask: Any, size: tuple[int, int]) -> Any:
    # Run lengths are pixels always; polygons may be in pixels beside a normalized box.
    if not isinstance(mask, list) or any(value > _MAX_FRACTION for polygon in mask for value in polygon):
        return mask
    height, width = size
    return [
        [value * (height if place % 2 else width) for place, value in enumerate(polygon)] for polygon in mask
    ]
