"""What the boxes of one annotation file mean, settled from all of them together: their units, origin and grid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from halofeed.prep.annotations.contract import LayoutOptions
from halofeed.prep.annotations.extent import refuse_other_pixels
from halofeed.prep.annotations.grid import settle_grid
from halofeed.prep.annotations.units import settle_origin, settle_units
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.sources.reference import Reference

TWICE = "an object stands there twice, with one class and one box; both are kept"


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
    settled = settle_grid(settle_origin(known, options.box_origin, origin, file), images, options)
    refuse_other_pixels(settled, images, options, file)
    return [replace(one, notes=(*one.notes, TWICE)) if _holds_one_twice(one) else one for one in settled]


def note_alike_classes(listed: Sequence[Reference]) -> list[Reference]:
    """The references, noted where they have a class that only case or blanks part from another: mostly a slip."""
    return list(with_notes(listed, alike_classes(label for one in listed for label in labels_of(one))))


def alike_classes(found: Iterable[str]) -> dict[str, str]:
    """Of classes those that only case or blanks part from another, with what is to be said of them."""
    alike: dict[str, list[str]] = {}
    for label in sorted(set(found)):
        alike.setdefault(" ".join(label.casefold().split()), []).append(label)
    return {
        label: f"classes of their own that differ in case or blanks alone: {', '.join(map(repr, labels))}"
        for labels in alike.values()
        if len(labels) > 1
        for label in labels
    }


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
