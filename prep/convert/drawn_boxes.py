"""Boxes of objects that are drawn in files, which are read together with their picture."""

from __future__ import annotations

from dataclasses import replace

from halofeed.prep.annotations.drawn_objects import object_of_pixels, read_drawing
from halofeed.prep.annotations.resolve_boxes import note_duplicates
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import Box, SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.system.errors import SourceError
from halofeed.system.memory import ReserveMemory, no_memory_limit


def with_drawn_boxes(
    reference: SourceExample, files: SourceFiles, recipe: Recipe, reserve: ReserveMemory = no_memory_limit
) -> SourceExample:
    """Return the reference with the box of each object whose `Box.drawing` names a file.

    Masks of DSB 2018 are 29,000 files for 664 pictures. Planning only lists them; workers read them.

    Args:
        reserve: called with the number of bytes before a drawing is decoded.

    Raises:
        SourceError: a drawing is unusable, and the recipe rejects pictures with such objects.
    """
    if not reference.drawings:
        return reference
    boxes: list[Box] = []
    bad: list[tuple[str, str]] = []
    size = reference.declared_size
    for box in reference.boxes or ():
        if box.drawing is None:
            boxes.append(box)
            continue
        try:
            drawn, size = _read(box, box.drawing, size, files, recipe, reserve)
        except SourceError as error:
            if recipe.on_bad_object == "reject":
                raise
            bad.append((error.reason, error.detail))
        else:
            boxes.append(drawn)
    bad_objects = (*reference.bad_objects, *bad)
    return note_duplicates(
        replace(reference, boxes=tuple(boxes), bad_objects=bad_objects, declared_size=size)
    )


def _read(
    box: Box,
    path: str,
    expected: tuple[int, int] | None,
    files: SourceFiles,
    recipe: Recipe,
    reserve: ReserveMemory,
) -> tuple[Box, tuple[int, int]]:
    """Return an object with what its drawing shows, and the (height, width) of the drawing.

    Args:
        expected: (height, width) of the other drawings of the picture; None if this is the first one.
    """
    try:
        inside = read_drawing(files, path, reserve) != 0
    except SourceError as error:
        raise error.at(path) from error
    height, width = inside.shape
    # Masks of other sizes are those of another picture, or of a scaled copy.
    if expected is not None and (height, width) != expected:
        detail = f"{path}: {width} x {height}, and others of {expected[1]} x {expected[0]}"
        raise SourceError("annotation", "masks have several sizes", detail)
    if not inside.any():
        raise SourceError("annotation", "mask is empty", f"{path}: no pixel is set; delete it")
    found = object_of_pixels(inside, has_masks=recipe.masks)
    xmin, ymin, xmax, ymax = found.box
    read = replace(
        box,
        ymin=ymin,
        xmin=xmin,
        ymax=ymax,
        xmax=xmax,
        area=float(found.area),
        mask=found.mask,
        drawing=None,
    )
    return read, (height, width)
