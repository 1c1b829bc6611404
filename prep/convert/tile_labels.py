"""Label images of a picture that is cut into tiles: class indices of each tile, and counts of the complete label."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.convert.label_image import OVERLAPPED
from halofeed.prep.convert.label_rows import open_label_rows
from halofeed.prep.convert.loss_measures import add_classes, add_instances, add_structure_sizes
from halofeed.prep.convert.picture_tasks import BadObjects, label_orientation
from halofeed.prep.convert.tallies import PictureFacts, count_labels
from halofeed.prep.convert.tile_tasks import TiledPicture
from halofeed.prep.geometry.picture_tiles import PictureTile, PictureTiles
from halofeed.prep.geometry.resize import displayed_size
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.voxels.encode import LABEL_ENCODERS
from halofeed.prep.voxels.masks import lines_of_file
from halofeed.schemas import keys
from halofeed.schemas.tfexample import Value
from halofeed.system.errors import SourceError
from halofeed.system.memory import ReserveMemory

_SAMPLE_SIDE: Final = 128
"""Longest side of the sample of a label in which values that may number objects are looked at."""


class LabelsOfTiles:
    """Class indices of one picture, of which each tile gets its part, exactly as the resized complete label has it.

    Raises:
        SourceError: a label image cannot be used.
    """

    def __init__(
        self, picture: TiledPicture, files: SourceFiles, reserve: ReserveMemory, threads: int
    ) -> None:
        self._picture = picture
        # Tiles come in the order of the picture's rows, which is that of a label drawn on the stored picture.
        is_turned = picture.image.orientation != 1 and picture.grid == "displayed"
        self._rows = open_label_rows(
            picture.recipe, picture.labels, picture.reference, files, reserve, in_order=not is_turned
        )
        self._orientation, self._warning = 1, None
        if self._rows is not None:
            self._orientation, self._warning = self._checked_orientation(self._rows.size)
            if self._orientation != picture.image.orientation and not is_turned:
                self._rows = open_label_rows(
                    picture.recipe, picture.labels, picture.reference, files, reserve, in_order=False
                )
        self._stored: Counter[int] = Counter()
        self._sizes: Counter[int] = Counter()
        self._sample = _Sample(picture.tiles)
        self._lock = threading.Lock()

    def _checked_orientation(self, size: tuple[int, int]) -> tuple[int, str | None]:
        """Return the orientation from the label to the display, and a warning where it is a guess."""
        image = self._picture.image
        orientation, warning = label_orientation(size, image, self._picture.grid)
        if displayed_size(orientation, size) != self._picture.tiles.source_size:
            height, width = image.stored_size
            detail = f"label {size[1]}x{size[0]}, picture {width}x{height}"
            raise SourceError("annotation", "label image is of another size than the picture", detail)
        return orientation, warning

    @property
    def held_bytes(self) -> int:
        """Memory of the rows that are held."""
        return 0 if self._rows is None else self._rows.held_bytes

    def cut(self, tile: PictureTile) -> NDArray[Any] | None:
        """Return the class indices that a tile shows, without padding; None where the picture has no label."""
        if self._rows is None:
            return None
        (rows, row_of), (columns, column_of) = lines_of_file(tile.plan, self._orientation)
        top = int(rows[0])
        part = self._rows.rows(top, int(rows[-1]) + 1)[rows - top][:, columns]
        shown = part[row_of][:, column_of]
        return shown.T if self._orientation >= 5 else shown

    def add(
        self, tile: PictureTile, part: NDArray[Any] | None, features: dict[str, Value], facts: PictureFacts
    ) -> bool:
        """Add the class of every stored pixel, and return whether the tile shows a class.

        A picture without a label is not known to be empty, so its tiles count as if they showed one.
        """
        labels, recipe = self._picture.labels, self._picture.recipe
        ignored = labels.stored_ignore
        indices = np.full(tile.plan.output_size, 0 if part is None else ignored or 0, labels.dtype)
        if part is not None:
            height, width = tile.plan.resized_size
            indices[:height, :width] = part
            counts = count_labels(indices)
            facts.label_voxels = {value: count for value, count in counts.items() if value != ignored}
            facts.labels.extend(facts.label_voxels)
            self._count(tile, indices, facts)
        facts.labelled = part is not None
        features[keys.LABEL] = LABEL_ENCODERS[recipe.encoding](indices[..., None], 0)
        features[keys.LABELLED] = np.array([int(part is not None)])
        return part is None or any(facts.label_voxels)

    def _count(self, tile: PictureTile, indices: NDArray[Any], facts: PictureFacts) -> None:
        """Count the pixels that no earlier tile shows, so that the sum is that of the complete label."""
        top, left = new_part(self._picture.tiles, tile)
        height, width = tile.plan.resized_size
        counts = count_labels(np.ascontiguousarray(indices[top:height, left:width]))
        with self._lock:
            self._sizes.update(counts)
            self._stored.update(facts.label_voxels.keys())
            self._sample.add(tile, indices)

    def finish(self, facts: PictureFacts) -> BadObjects:
        """Add what was lost of the complete label to the facts of the last tile."""
        if self._rows is None:
            return ()
        labels, source = self._picture.labels, self._picture.reference.source
        self._rows.rows(self._rows.size[0], self._rows.size[0])
        known = [value for value in self._rows.classes if value != labels.stored_ignore]
        sizes = {value: count for value, count in self._sizes.items() if value != labels.stored_ignore}
        add_classes(facts.ledger, known, sizes, source)
        add_structure_sizes(facts.ledger, "after", (count for value, count in sizes.items() if value))
        if labels.is_open:
            add_instances(facts.ledger, self._sample.labels, sizes, source, known)
        overlapped = OVERLAPPED.format(self._picture.recipe.class_overlap)
        facts.warnings += (self._warning,) if self._warning else ()
        facts.warnings += (overlapped,) if self._rows.overlapped else ()
        return ()


def new_part(tiles: PictureTiles, tile: PictureTile) -> tuple[int, int]:
    """Return the first row and the first column of a tile that no earlier row or column of tiles shows."""
    row, column = divmod(tile.number, len(tiles.lefts))
    starts = []
    for at, firsts, side in (
        (row, tiles.tops, tiles.tile_size[0]),
        (column, tiles.lefts, tiles.tile_size[1]),
    ):
        starts.append(firsts[at - 1] + side - firsts[at] if at else 0)
    return starts[0], starts[1]


class _Sample:
    """Evenly spaced pixels of the complete scaled label."""

    def __init__(self, tiles: PictureTiles) -> None:
        height, width = tiles.scaled_size
        self._step = 1
        # `add_instances` takes every second pixel as often.
        while -(-height // self._step) * -(-width // self._step) > _SAMPLE_SIDE**2:
            self._step *= 2
        self.labels = np.zeros((-(-height // self._step), -(-width // self._step)), np.uint16)

    def add(self, tile: PictureTile, indices: NDArray[Any]) -> None:
        """Take the pixels that a tile shows."""
        step, places = self._step, []
        for start, side in zip(tile.plan.origin, tile.plan.resized_size, strict=True):
            first = -(-start // step)
            places.append((slice(first, -(-(start + side) // step)), slice(first * step - start, side, step)))
        (rows, from_rows), (columns, from_columns) = places
        self.labels[rows, columns] = indices[from_rows, from_columns]
