"""What an annotation layout yields: a reference to one source image and what is known about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Box:
    """One annotated object.

    Coordinates are continuous source pixels with the origin at the corner of the first pixel, so that
    a box over a whole image of width 640 runs from 0 to 640. `label` is the class name. `area` is the
    annotated area in source pixels², if the layout gives one. `mask` is COCO's: a list of polygons
    [[x, y, x, y, ...], ...] or a run-length dict {"size": [height, width], "counts": ...}.
    """

    ymin: float
    xmin: float
    ymax: float
    xmax: float
    label: str
    is_crowd: bool = False
    difficult: bool = False
    truncated: bool = False
    occluded: bool = False
    area: float | None = None
    mask: Any = None


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One source image, before a byte of it is read.

    Args:
        source: its path below the images' root, with '/'.
        key: the original id, kept in `image/key/source`: an integer of the annotations, or `source`.
        split: as the source names it; "train" where it names none.
        group: what must not be divided by a split (patient, scene); None: the image itself.
        label: the class name of a classification example.
        boxes: the objects of a detection example (may be empty); None for classification.
        declared_size: (height, width) that the annotations claim, before any EXIF orientation is applied
            or after it: a converter compares both.
        problem: (stage, reason, detail) of a fault found in the annotations; such an input is rejected.
    """

    source: str
    key: str | int
    split: str = "train"
    group: str | None = None
    label: str | None = None
    boxes: tuple[Box, ...] | None = None
    declared_size: tuple[int, int] | None = None
    problem: tuple[str, str, str] | None = None
