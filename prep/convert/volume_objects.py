"""Objects of a scan: the rules for them once per source, and the boxes that each of its records shows.

read_objects(...)          boxes in voxels of the source, from coordinates or from a label that numbers objects
  .on_canonical(grid)      the same boxes as they lie in the canonical scan, for --center label
  .show(plans)             what each record shows of them, and which of them no record shows
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.annotations.labels import LabelMap
from halofeed.prep.convert.object_features import box_policy, count_changes
from halofeed.prep.convert.tallies import ObjectFacts
from halofeed.prep.convert.tile_objects import IGNORED
from halofeed.prep.formats.volume.reading_options import ScanOptions
from halofeed.prep.formats.volume_formats import open_mask
from halofeed.prep.geometry.scan import Finding, Grid, MaskScan
from halofeed.prep.geometry.tile_pieces import VISIBLE_ROUNDING
from halofeed.prep.geometry.volume_boxes import (
    RecordBoxes,
    ScanBoxes,
    boxes_in_record,
    boxes_of_instances,
    map_boxes,
    matrix_between,
    place_in_source,
    select_scan_boxes,
)
from halofeed.prep.geometry.volume_plan import VolumePlan, triple
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import Box, SourceExample
from halofeed.prep.sources.files import SourceFiles
from halofeed.prep.voxels.label_volumes import VoxelBox
from halofeed.schemas import keys
from halofeed.schemas.file_layout import IN_NO_RECORD, ZERO_AREA
from halofeed.schemas.findings import FindingName
from halofeed.schemas.tfexample import Value
from halofeed.system.errors import SourceError
from halofeed.system.wording import plural

CUT: Final = "cut by the rim of a record"
UNSEEN: Final = "in no record"
BadObjects = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class ShownObjects:
    """Boxes of the objects of one scan in each of its records.

    Args:
        of_records: boxes of each record.
        unseen: rows of the scan's objects that no record shows.
    """

    of_records: tuple[RecordBoxes, ...]
    unseen: tuple[int, ...]

    def findings(self) -> tuple[Finding, ...]:
        """Return a finding where objects are in no record."""
        if not self.unseen:
            return ()
        return (Finding.noted(FindingName.OBJECTS_CUT_OFF, plural(len(self.unseen), "object")),)


@dataclass(frozen=True, kw_only=True, eq=False)
class ScanObjects:
    """Objects of one scan after the recipe's rules.

    Args:
        recipe, labels: options and classes of the data set.
        selected: boxes in voxels of the source.
        annotated: these objects.
        grid: grid of the source as its file stores it.
        bad_objects: (reason, detail) of each dropped object.
    """

    recipe: Recipe
    labels: LabelMap
    selected: ScanBoxes
    annotated: tuple[Box, ...]
    grid: Grid
    bad_objects: BadObjects

    def on_canonical(self, grid: Grid) -> VoxelBox | None:
        """Return the box around all objects on the canonical grid of the scan; None without an object."""
        if not len(self.annotated):
            return None
        boxes = map_boxes(matrix_between(self.grid, grid), self.selected.boxes)
        low = np.clip(np.floor(boxes[:, :3].min(axis=0) + 1e-6), 0, np.array(grid.shape) - 1)
        high = np.maximum(np.ceil(boxes[:, 3:].max(axis=0) - 1e-6), low + 1)
        return VoxelBox(start=triple(low.tolist()), stop=triple(high.tolist()))

    def show(self, plans: Sequence[VolumePlan]) -> ShownObjects:
        """Return what each record shows of the objects, by the plans of all records of the scan."""
        shown = tuple(
            boxes_in_record(
                self.selected.boxes,
                matrix_between(self.grid, plan.target),
                plan.target.shape,
            )
            for plan in plans
        )
        seen = {row for one in shown for row in one.kept.tolist()}
        return ShownObjects(
            of_records=shown, unseen=tuple(row for row in range(len(self.annotated)) if row not in seen)
        )

    def features(self, shown: RecordBoxes) -> dict[str, Value]:
        """Return the features of the objects that a record shows."""
        kept = [self.annotated[row] for row in shown.kept]
        ids = np.array([self.labels.id_of(box.label) for box in kept], np.int64)
        source = self.selected.boxes[shown.kept].astype(np.float32)
        return {
            **dict(zip(keys.SOLID_CORNERS, shown.boxes.T, strict=True)),
            keys.OBJECT_CLASS_LABEL: ids,
            keys.OBJECT_CLASS_TEXT: [self.labels.names[identity].encode() for identity in ids.tolist()],
            keys.OBJECT_IS_CROWD: self._is_crowd(shown).astype(np.int64),
            keys.OBJECT_INDEX: self.selected.kept[shown.kept],
            keys.OBJECT_VISIBLE: shown.visible,
            **dict(zip(keys.OBJECT_SOURCE_SOLID_CORNERS, source.T, strict=True)),
        }

    def _is_crowd(self, shown: RecordBoxes) -> NDArray[np.bool_]:
        flagged = np.array([self.annotated[row].is_crowd for row in shown.kept], np.bool_)
        return flagged | (shown.visible < self.recipe.min_visible - VISIBLE_ROUNDING)

    def facts(self, shown: RecordBoxes, all_shown: ShownObjects, *, is_first: bool) -> ObjectFacts:
        """Return the facts of a record's objects; the first record of a scan has those of the scan."""
        flagged = np.array([self.annotated[row].is_crowd for row in shown.kept], np.bool_)
        counts = Counter(
            {
                CUT: int(np.count_nonzero(shown.visible < 1 - VISIBLE_ROUNDING)),
                IGNORED: int(np.count_nonzero(self._is_crowd(shown) & ~flagged)),
            }
        )
        sizes: Counter[int] = Counter()
        if is_first:
            counts.update(self.selected.counts)
            counts.update(count_changes(self.bad_objects, self.annotated))
            counts[UNSEEN] += len(all_shown.unseen)
            sides = self.selected.boxes[:, 3:] - self.selected.boxes[:, :3]
            longest = (sides * np.array(self.grid.spacing_mm)).max(axis=1, initial=0)
            sizes.update(np.ceil(longest - 1e-3).astype(np.int64).tolist())
        return ObjectFacts(
            labels=tuple(self.labels.id_of(self.annotated[row].label) for row in shown.kept),
            counts={what: count for what, count in counts.items() if count},
            sizes_mm=dict(sizes),
        )

    def lost(self, all_shown: ShownObjects) -> BadObjects:
        """Return (reason, detail) of each object that has no box in any record."""
        unseen = tuple(
            (IN_NO_RECORD, describe_scan_box(self.annotated[row], self.selected.boxes[row]))
            for row in all_shown.unseen
        )
        return (*self.bad_objects, *unseen)


def describe_scan_box(box: Box, in_source: NDArray[np.float64]) -> str:
    """Return the class and the sides of a box in voxels of its scan as text."""
    low, high = in_source[:3], in_source[3:]
    sides = ", ".join(f"{axis} {a:.5g} to {b:.5g}" for axis, a, b in zip("zyx", low, high, strict=True))
    return f"{box.label!r}: {sides} in voxels of the file"


@dataclass(frozen=True, kw_only=True)
class ScanObjectReader:
    """Reader of the objects of one scan.

    Args:
        reference: source example of the scan.
        grid: grid of the scan as stored.
        reserve_mask: called with a label before it is read; it may raise to stop the reading.
    """

    recipe: Recipe
    labels: LabelMap
    reference: SourceExample
    files: SourceFiles
    grid: Grid
    options: ScanOptions
    reserve_mask: Callable[[MaskScan], None]

    def read(self) -> ScanObjects:
        """Return the objects of the scan in its voxels.

        Raises:
            SourceError: an annotation cannot be used, and the options do not drop it.
        """
        boxes = self._unflagged(self.reference.boxes or ())
        bad = list(self.reference.bad_objects)
        if self.reference.mask is not None:
            boxes, places = self._places_of_instances(boxes, bad)
        else:
            places = place_in_source(boxes, self.grid)
        selected = select_scan_boxes(places, self.grid.shape, box_policy(self.recipe))
        bad += [(ZERO_AREA, describe_scan_box(boxes[index], places[index])) for index in selected.zero_size]
        return ScanObjects(
            recipe=self.recipe,
            labels=self.labels,
            selected=selected,
            annotated=tuple(boxes[index] for index in selected.kept),
            grid=self.grid,
            bad_objects=tuple(bad),
        )

    def _unflagged(self, boxes: Sequence[Box]) -> tuple[Box, ...]:
        if self.recipe.boxes_crowd == "keep":
            return tuple(boxes)
        if self.recipe.boxes_crowd == "drop":
            return tuple(box for box in boxes if not box.is_crowd)
        return tuple(dataclasses.replace(box, is_crowd=False) for box in boxes)

    def _places_of_instances(
        self, boxes: Sequence[Box], bad: list[tuple[str, str]]
    ) -> tuple[tuple[Box, ...], NDArray[np.float64]]:
        """Return the objects that have voxels in the label, and their boxes in voxels of the scan.

        Raises:
            SourceError: the label holds a number that has no class.
        """
        found, matrix = self._read_label()
        known: Mapping[int, Any] = {box.instance: box for box in boxes if box.instance is not None}
        # The user's choice of classes may have left some of them out.
        listed_numbers = [number for number, _ in self.reference.segments]
        if unknown := sorted(set(found) - set(listed_numbers)):
            listed = ", ".join(map(str, unknown[:10]))
            detail = f"{listed}; its document gives the classes of {', '.join(map(str, listed_numbers[:10])) or 'none'}"
            raise SourceError(
                "annotation", "object of the label has no class", f"{detail}; correct one of them"
            )
        for number, box in known.items():
            if number not in found:
                bad.append(("object has no voxel in the label", f"{box.label!r}: number {number}"))
        shown = tuple(box for number, box in known.items() if number in found)
        rows = np.array([found[box.instance] for box in shown if box.instance], np.float64).reshape(-1, 6)
        return shown, map_boxes(matrix, rows)

    def _read_label(self) -> tuple[dict[int, NDArray[np.float64]], NDArray[np.float64]]:
        """Return the box of each number in the label, and the matrix from its voxels to those of the scan."""
        path = self.reference.mask
        assert path is not None
        mask = open_mask(self.files, path, self.grid, self.options)
        self.reserve_mask(mask)
        try:
            found = boxes_of_instances(mask.read())
        except SourceError as error:
            raise error.at(f"label {path}") from error
        return found, matrix_between(mask.grid, self.grid)
