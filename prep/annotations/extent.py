"""Whether the boxes of one annotation file lie on their pictures at all, or speak of other pixels."""

from __future__ import annotations

from collections.abc import Sequence

from halofeed.prep.annotations.contract import LayoutOptions, is_mostly_bad
from halofeed.prep.annotations.grid import Size, stored_sizes
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.names import is_image_name
from halofeed.prep.sources.reference import Box, Reference
from halofeed.schemas.errors import AnnotationsError

_SAMPLE = 200
"""Pictures without a declared size that are opened, spread over the file."""
_SLACK = 0.05
"""Of a side: a box that leaves its picture by less was drawn over the border."""


def refuse_other_pixels(
    listed: Sequence[Reference], images: SourceFiles, options: LayoutOptions, file: str
) -> None:
    """Refuse a file of which most boxes leave their pictures; where the user says what boxes count, that holds.

    Raises:
        AnnotationsError: with the first such box, and whether all fit with x and y exchanged.
    """
    if options.box_units != "auto":
        return
    boxes = leaving = fitting = 0
    first = ""
    for reference, sizes in _sized(listed, images):
        for box in reference.boxes or ():
            boxes += 1
            if all(_leaves(box, size) for size in sizes):
                leaving += 1
                first = first or _said(reference, box, sizes[0])
            fitting += any(_fits_exchanged(box, size) for size in sizes)
    if not is_mostly_bad(leaving, boxes):
        return
    cure = (
        "with x and y exchanged all fit: exchange those columns"
        if fitting == boxes
        else "correct the boxes, say with --box-form how they are written, or name with --images the pictures that "
        "were annotated, if these were scaled since"
    )
    raise AnnotationsError(
        f"{file}: {leaving:,} of {boxes:,} boxes leave their pictures, the first in {first}; {cure}; "
        "--box-units pixels takes them all the same"
    )


def _sized(listed: Sequence[Reference], images: SourceFiles) -> list[tuple[Reference, tuple[Size, ...]]]:
    """The references with boxes in pixels and what size their pictures may have: as declared, else as stored."""
    boxed = [one for one in listed if one.boxes and not one.normalized and one.problem is None]
    declared = [(one, (one.declared_size,)) for one in boxed if one.declared_size is not None]
    others = [one for one in boxed if one.declared_size is None and is_image_name(one.source)]
    chosen = others[:: max(1, -(-len(others) // _SAMPLE))]
    found = stored_sizes([one.source for one in chosen], images)
    return [*declared, *((one, sizes) for one, sizes in zip(chosen, found, strict=True) if sizes)]


def _leaves(box: Box, size: Size) -> bool:
    height, width = size
    across, down = 1 + _SLACK * width, 1 + _SLACK * height
    return box.xmin < -across or box.ymin < -down or box.xmax > width + across or box.ymax > height + down


def _fits_exchanged(box: Box, size: Size) -> bool:
    height, width = size
    return min(box.xmin, box.ymin) >= -1 and box.ymax <= width + 1 and box.xmax <= height + 1


def _said(reference: Reference, box: Box, size: Size) -> str:
    return (
        f"{reference.source} ({box.label!r}: x from {box.xmin:g} to {box.xmax:g}, y from {box.ymin:g} to {box.ymax:g}, "
        f"picture {size[1]} wide and {size[0]} high)"
    )
