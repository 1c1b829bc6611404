"""What the boxes of one annotation file mean, settled from all of them together: units, origin, grid, and whether they
lie on their pictures at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from halofeed.prep.annotations.contract import LayoutOptions, is_mostly_bad
from halofeed.prep.annotations.grid import Size, settle_grid, stored_sizes
from halofeed.prep.annotations.units import settle_origin, settle_units
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.names import is_image_name
from halofeed.prep.sources.reference import Box, Reference
from halofeed.prep.tasks.lookalikes import alike_names, shown_apart
from halofeed.schemas.errors import AnnotationsError

TWICE = "an object stands there twice, with one class and one box; both are kept"
_SAMPLE = 200
"""Pictures without a declared size that are opened, spread over the file."""
_SLACK = 0.05
"""Of a side: a box that leaves its picture by less was drawn over the border."""


def settle_boxes(
    listed: Sequence[Reference], images: SourceFiles, options: LayoutOptions, file: str, origin: int = 0
) -> list[Reference]:
    """The references of one annotation file with boxes in continuous pixels, or in shares where they are marked.

    Args:
        file: the annotation file, or the folder of all, for messages.
        origin: the number of the first pixel by the layout's own rule.

    Raises:
        AnnotationsError: what the numbers mean has to be said.
    """
    known = settle_units(listed, options, file)
    settled = settle_grid(settle_origin(known, options, origin, file), images, options)
    _refuse_other_pixels(settled, images, options, file)
    return [replace(one, notes=(*one.notes, TWICE)) if _holds_one_twice(one) else one for one in settled]


def _refuse_other_pixels(
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


def note_alike_classes(listed: Sequence[Reference]) -> list[Reference]:
    """The references, noted where they have a class that looks like another: mostly a slip."""
    return list(with_notes(listed, alike_classes(label for one in listed for label in labels_of(one))))


def alike_classes(found: Iterable[str]) -> dict[str, str]:
    """Of classes those that look like another, with what is to be said of them."""
    said = {}
    for labels in alike_names(found):
        plain = len({" ".join(label.casefold().split()) for label in labels}) == 1
        differ = "differ in case or blanks alone" if plain and all(map(str.isascii, labels)) else "look alike"
        said.update(dict.fromkeys(labels, f"classes of their own that {differ}: {shown_apart(labels)}"))
    return said


def with_notes(references: Iterable[Reference], notes: Mapping[str, str]) -> Iterator[Reference]:
    """The references, those with classes of which something is to be said with that among their notes."""
    for one in references:
        said = dict.fromkeys(notes[label] for label in labels_of(one) if label in notes) if notes else {}
        yield replace(one, notes=(*one.notes, *said)) if said else one


def labels_of(reference: Reference) -> list[str]:
    """The classes that a reference without a problem has."""
    if reference.problem is not None:
        return []
    of_boxes = {box.label for box in reference.boxes or ()}
    return sorted(of_boxes) if reference.boxes is not None else list(reference.classes)


def _holds_one_twice(reference: Reference) -> bool:
    boxes = reference.boxes or ()
    if reference.problem is not None or len(boxes) < 2:
        return False
    seen = {(box.label, box.ymin, box.xmin, box.ymax, box.xmax, repr(box.mask)) for box in boxes}
    return len(seen) < len(boxes)
