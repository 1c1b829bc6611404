"""Grids of exported pictures: the stored one, or that of the source file where a record proves it.

A picture's record keeps sizes and a transform to the pixels that were annotated: those of the file, or the displayed
ones. Only one EXIF orientation gives that transform, so its exact form is known again:

    stored pixels --resize--> displayed pixels --EXIF orientation--> pixels of the file
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.stored_records import array_of, integer_of, text_of
from halofeed.prep.formats.picture.picture_formats import FORMATS, sniff
from halofeed.prep.geometry.resize import (
    PixelAffine,
    ResizePlan,
    Size,
    apply_affine,
    displayed_size,
    invert_affine,
    stored_to_displayed,
    stored_to_file,
)
from halofeed.prep.sources.file_names import is_image_name
from halofeed.prep.sources.files import LocalFiles
from halofeed.schemas import keys
from halofeed.schemas.tfexample import Decoded
from halofeed.system.errors import SourceError, UsageError

GRIDS = ("stored", "source")
"""Values of `--grid`."""
PICTURE_GRID_KEYS = (*keys.SIDES, *keys.UNPADDED_SIDES, *keys.SOURCE_SIDES, keys.TRANSFORM, keys.TILE)
"""Keys that `picture_grid` reads."""
_UNCHANGED = np.array([1, 0, 0, 0, 1, 0], np.float64)
_ROUNDING = 2.0**-22
"""Largest relative error of a transform that was rounded to float32, with a margin of two bits."""


@dataclass(frozen=True, kw_only=True)
class PictureGrid:
    """Grid of an exported picture.

    Args:
        size: (height, width) of the picture.
        stored_size: (height, width) of the record, with its padding.
        from_stored: affine from stored points to points of this grid, float64 [6].
        orientation: EXIF orientation of the file, if this grid has its pixels before it; 1 for displayed pixels.
    """

    size: Size
    stored_size: Size
    from_stored: PixelAffine
    orientation: int = 1

    @property
    def is_stored(self) -> bool:
        """Return whether this is the grid of the record."""
        return self.from_stored is _UNCHANGED

    def sample(self, mask: NDArray[Any]) -> NDArray[Any]:
        """Return the nearest value of a stored mask [height, width] for each pixel of this grid.

        >>> to_file = stored_to_file(ResizePlan(source_size=(2, 4), resized_size=(1, 2), output_size=(1, 3)), 6)
        >>> grid = PictureGrid(size=(4, 2), stored_size=(1, 3), from_stored=to_file, orientation=6)
        >>> grid.sample(np.array([[5, 7, 0]])).tolist()
        [[7, 7], [7, 7], [5, 5], [5, 5]]
        """
        rows, columns = (np.arange(side) + 0.5 for side in self.size)
        to_stored = invert_affine(self.from_stored)
        # EXIF orientations 5 to 8 exchange rows and columns, so the matrix has zeros on its diagonal.
        if turned := not to_stored[0]:
            rows, columns = columns, rows
        down = to_stored[1 if turned else 0] * rows + to_stored[2]
        across = to_stored[3 if turned else 4] * columns + to_stored[5]
        lines = [
            np.clip(np.floor(line).astype(np.int64), 0, side - 1)
            for line, side in zip((down, across), mask.shape, strict=True)
        ]
        sampled = mask[np.ix_(*lines)]
        return sampled.T if turned else sampled


def picture_grid(features: Decoded, grid: str, *, displayed: bool) -> PictureGrid:
    """Return the grid to which a picture's record is exported.

    Args:
        features: values of `PICTURE_GRID_KEYS`.
        grid: one of `GRIDS`.
        displayed: whether the source's grid is the displayed one, and not the one that was annotated.

    Raises:
        UsageError: the record lacks the size or the transform of its source, or they contradict each other.
    """
    stored_size, unpadded = (_size_of(features, sides) for sides in (keys.SIDES, keys.UNPADDED_SIDES))
    assert stored_size is not None  # `record_problems` has found it
    size = unpadded or stored_size
    if grid == "stored":
        return PictureGrid(size=size, stored_size=stored_size, from_stored=_UNCHANGED)
    file_size, transform = _size_of(features, keys.SOURCE_SIDES), array_of(features, keys.TRANSFORM)
    if file_size is None or transform is None or transform.shape != (6,):
        raise UsageError(
            "it lacks the size of its source or the transform to it, so its source's pixels are not known"
        )
    if keys.TILE in features:
        raise UsageError(
            "it is a tile of a larger picture, and --grid source exports complete pictures; convert the source without "
            "--fit tiles for that"
        )
    for orientation in range(1, 9):
        shown = displayed_size(orientation, file_size)
        plan = ResizePlan(source_size=shown, resized_size=size, output_size=stored_size)
        to_file = stored_to_file(plan, orientation)
        # A transform has no absolute tolerance: an offset of 0 is exact.
        if not np.allclose(transform, to_file, rtol=_ROUNDING, atol=0):
            continue
        if displayed:
            return PictureGrid(size=shown, stored_size=stored_size, from_stored=stored_to_displayed(plan))
        return PictureGrid(
            size=file_size, stored_size=stored_size, from_stored=to_file, orientation=orientation
        )
    raise UsageError(
        f"its transform {transform.tolist()} does not lead from {size[1]}x{size[0]} pixels to the {file_size[1]}x"
        f"{file_size[0]} of its source"
    )


def _size_of(features: Decoded, sides: tuple[str, str]) -> Size | None:
    height, width = (integer_of(features, key) for key in sides)
    return None if height is None or width is None or min(height, width) < 1 else (height, width)


class SourcePictures:
    """Picture files below the folder that `--images` names.

    Raises:
        UsageError: there is no such folder.
    """

    def __init__(self, folder: str) -> None:
        self._files = LocalFiles(folder)

    def read(self, features: Decoded, grid: PictureGrid) -> tuple[str, bytes, int]:
        """Return the extension, the bytes and the EXIF orientation of a record's source.

        Args:
            features: features of the record.
            grid: grid of the source, whose size and orientation the file must have.

        Raises:
            UsageError: the file is missing, is no picture, or has another size or orientation than the record's source.
        """
        name = text_of(features, keys.FILENAME) or ""
        place = f"--images {self._files.root}: {name!r:.300}"
        path = posixpath.normpath(name)
        # A data set may come from a stranger, and must not select other files of this machine.
        if not is_image_name(path) or path.startswith(("../", "/")):
            raise UsageError(
                f"{place}: is no path of a picture below the folder; name the folder that was converted"
            )
        try:
            data = self._files.read(path)
            opened = FORMATS[sniff(data)][1](data)
        except SourceError as error:
            raise UsageError(f"{place}: {error}; name the folder that was converted") from error
        expected = displayed_size(grid.orientation, grid.size), grid.orientation
        shown = displayed_size(opened.orientation, opened.stored_size)
        # The grid is the displayed one (orientation 1), or that of the file's pixels.
        if expected not in ((shown, 1), (shown, opened.orientation)):
            (height, width), orientation = expected
            raise UsageError(
                f"{place}: expected {width}x{height} pixels and the EXIF orientation {orientation}, got "
                f"{shown[1]}x{shown[0]} and {opened.orientation}; name the folder that was converted"
            )
        return posixpath.splitext(path)[1].lower(), data, opened.orientation


def points_on(grid: PictureGrid, shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return points [n, 2], (y, x) as shares of the stored picture, in pixels of a grid.

    >>> grid = PictureGrid(size=(4, 8), stored_size=(2, 4), from_stored=np.array([2.0, 0, 0, 0, 2, 0]))
    >>> points_on(grid, np.array([[0.5, 0.25]])).tolist()
    [[2.0, 2.0]]
    """
    return apply_affine(grid.from_stored, shares * np.array(grid.stored_size))
