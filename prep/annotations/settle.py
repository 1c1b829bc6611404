"""What the boxes of one annotation file mean, settled from all of them together: their units, origin and grid."""

from __future__ import annotations

from collections.abc import Sequence

from halofeed.prep.annotations.grid import settle_grid
from halofeed.prep.annotations.layout import LayoutOptions
from halofeed.prep.annotations.reference import Reference
from halofeed.prep.annotations.units import settle_origin, settle_units
from halofeed.prep.sources import SourceFiles


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
    return settle_grid(settle_origin(known, options.box_origin, origin, file), images, options)
