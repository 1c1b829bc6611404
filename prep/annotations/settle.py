"""What the boxes of one annotation file mean, settled from all of them together: their units, origin and grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from halofeed.prep.annotations.extent import refuse_other_pixels
from halofeed.prep.annotations.grid import settle_grid
from halofeed.prep.annotations.layout import LayoutOptions
from halofeed.prep.annotations.reference import Reference
from halofeed.prep.annotations.units import settle_origin, settle_units
from halofeed.prep.sources import SourceFiles

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


def _holds_one_twice(reference: Reference) -> bool:
    boxes = reference.boxes or ()
    if reference.problem is not None or len(boxes) < 2:
        return False
    seen = {(box.label, box.ymin, box.xmin, box.ymax, box.xmax, repr(box.mask)) for box in boxes}
    return len(seen) < len(boxes)
