"""Axial slices of a volume as one picture, of which a page shows one slice at a time.

columns x rows of slices, in the order of their depth; unused places at the end are black:

    +---+---+---+
    | 0 | 1 | 2 |
    +---+---+---+
    | 3 | 4 |   |
    +---+---+---+
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.planes import Display, ShownVolume, resize_gray
from halofeed.inspection.thumbnails import classes_at, overlay_exact, picture_uri, thumbnail_size


@dataclass(frozen=True, kw_only=True)
class SliceSheet:
    """Slices of a volume in one picture.

    Args:
        uri: data: URI of the gray slices.
        mask: data: URI of the classes, to lay over them; None without any.
        columns, rows: number of slices side by side, and one below the other.
        depths: index of each slice along depth.
        first: number of the slice in `depths` to show first.
        size: (height, width) of one slice in pixels.
        part: ymin, xmin, ymax, xmax of what a slice shows, as shares of the stored height and width.
    """

    uri: str
    mask: str | None
    columns: int
    rows: int
    depths: tuple[int, ...]
    first: int
    size: tuple[int, int]
    part: tuple[float, float, float, float]

    @property
    def places(self) -> list[tuple[slice, slice]]:
        """Return the rows and columns of pixels of each slice."""
        height, width = self.size
        found = []
        for number in range(len(self.depths)):
            row, column = divmod(number, self.columns)
            found.append(np.s_[row * height : (row + 1) * height, column * width : (column + 1) * width])
        return found

    def shown_box(self, box: Sequence[float]) -> tuple[float, float, float, float]:
        """Return a box of the stored volume's plane as shares of a slice, whose two axes are reversed."""
        top, left, bottom, right = self.part
        ymin, xmin, ymax, xmax = box
        return (
            (bottom - ymax) / (bottom - top),
            (right - xmax) / (right - left),
            (bottom - ymin) / (bottom - top),
            (right - xmin) / (right - left),
        )


def chosen_depths(first: int, stop: int, most: int, wanted: int) -> tuple[int, ...]:
    """Return at most `most` evenly spaced depths of [first, stop), with `wanted` among them.

    >>> chosen_depths(0, 10, 4, 5)
    (0, 3, 5, 9)
    """
    found = np.unique(np.linspace(first, stop - 1, min(most, stop - first)).round().astype(int))
    # The nearest depth makes way, so that the number stays.
    found[int(np.argmin(np.abs(found - wanted)))] = min(max(wanted, first), stop - 1)
    return tuple(found.tolist())


def draw_sheet(
    volume: ShownVolume,
    label: Callable[[Any], NDArray[Any]] | None,
    depths: Sequence[int],
    wanted: int,
    drawing: tuple[Display, Mapping[int, int]],
    side: int,
) -> SliceSheet:
    """Draw slices of a volume in radiological view, as `planes.cut_planes` draws its axial plane.

    Args:
        volume: volume to cut.
        label: function from an index of [depth, height, width] to class indices; None for none.
        depths: index of each slice.
        wanted: the depth to show first, one of `depths`.
        drawing: values shown as black and white, and the color number of each class.
        side: longer side of a slice in pixels.
    """
    display, ranks = drawing
    rows_mm, columns_mm = (
        max(1e-6, (part.stop - part.start) * step)
        for part, step in list(zip(volume.ranges, volume.steps_mm, strict=True))[1:]
    )
    shape = (rows_mm / max(rows_mm, columns_mm) * side, columns_mm / max(rows_mm, columns_mm) * side)
    height, width = thumbnail_size((max(1, round(shape[0])), max(1, round(shape[1]))), side)
    columns = math.ceil(math.sqrt(len(depths) * height / width))
    columns = min(max(1, columns), len(depths))
    rows = math.ceil(len(depths) / columns)
    sheet = SliceSheet(
        uri="",
        mask=None,
        columns=columns,
        rows=rows,
        depths=tuple(depths),
        first=list(depths).index(wanted),
        size=(height, width),
        part=_shown_part(volume),
    )
    gray = np.zeros((rows * height, columns * width, 1), np.uint8)
    for depth, place in zip(depths, sheet.places, strict=True):
        at: Any = (depth, *volume.ranges[1:])
        gray[place] = resize_gray(display.gray(volume.voxels[..., 0][at][::-1, ::-1]), (height, width))[
            ..., None
        ]
    mask = None if label is None else draw_classes(sheet, volume, label, ranks)
    return replace(sheet, uri=picture_uri(gray), mask=mask)


def draw_classes(
    sheet: SliceSheet,
    volume: ShownVolume,
    label: Callable[[Any], NDArray[Any]],
    ranks: Mapping[int, int],
) -> str | None:
    """Draw classes over the slices of a sheet.

    Args:
        sheet: drawn slices.
        volume: the volume that they were cut from.
        label: function from an index of [depth, height, width] to class indices.
        ranks: color number of each class.

    Returns:
        a data: URI; None if all is background.
    """
    height, width = sheet.size
    classes = np.zeros((sheet.rows * height, sheet.columns * width), np.uint16)
    for depth, place in zip(sheet.depths, sheet.places, strict=True):
        at: Any = (depth, *volume.ranges[1:])
        classes[place] = classes_at(label(at)[::-1, ::-1], sheet.size)
    return overlay_exact(classes, ranks)


def _shown_part(volume: ShownVolume) -> tuple[float, float, float, float]:
    (top, bottom), (left, right) = (
        (part.start / length, part.stop / length)
        for part, length in zip(volume.ranges[1:], volume.voxels.shape[1:3], strict=True)
    )
    return top, left, bottom, right
