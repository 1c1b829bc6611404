"""Objects of a volume's record: boxes in voxels and in millimeters, their check, and their outlines on planes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.stored_records import (
    VOLUME_AXES,
    ClassCounts,
    affine_of,
    array_of,
    integer_of,
    spacing_of,
)
from halofeed.prep.geometry.volume_boxes import map_boxes
from halofeed.schemas import keys
from halofeed.schemas.tfexample import Decoded

MAX_OBJECTS: Final = 1000
_TOLERANCE_VOXELS: Final = 0.01
"""Difference of a box from its box in the source; affines and boxes are float32."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredObjects:
    """Objects of one record; the lists have one length.

    Args:
        ids: class ids.
        boxes: float64 [n, 6], in continuous voxels of the record.
        source_boxes: float64 [n, 6], in continuous voxels of the source, complete.
        visible: float64 [n], share that the record shows.
        ignored: bool [n].
        shape: shape of the record.
    """

    ids: NDArray[np.int64]
    boxes: NDArray[np.float64]
    source_boxes: NDArray[np.float64]
    visible: NDArray[np.float64]
    ignored: NDArray[np.bool_]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, features: Decoded) -> StoredObjects | None:
        """Return the objects of a record; None if a list is missing or has another length."""
        shape = tuple(integer_of(features, f"image/{axis}") or 1 for axis in VOLUME_AXES)
        names = (
            keys.OBJECT_CLASS_LABEL,
            *keys.SOLID_CORNERS,
            *keys.OBJECT_SOURCE_SOLID_CORNERS,
            keys.OBJECT_VISIBLE,
            keys.OBJECT_IS_CROWD,
        )
        # An empty list may be stored without its type.
        lists = [
            value if isinstance(value := features.get(name), np.ndarray) else np.zeros(0)
            for name in names
            if name in features and (isinstance(features[name], np.ndarray) or not len(features[name]))
        ]
        if len(lists) < len(names) or len({len(one) for one in lists}) > 1:
            return None
        cut = [np.nan_to_num(one[:MAX_OBJECTS].astype(np.float64)) for one in lists]
        return cls(
            ids=cut[0].astype(np.int64),
            boxes=np.stack(cut[1:7], axis=-1) * np.tile(np.array(shape), 2),
            source_boxes=np.stack(cut[7:13], axis=-1),
            visible=cut[13],
            ignored=cut[14] != 0,
            shape=shape,
        )

    @property
    def counts(self) -> ClassCounts:
        """Number of objects of each class, in place of voxels."""
        found, numbers = np.unique(self.ids, return_counts=True)
        return ClassCounts(
            voxels=dict(zip(found.tolist(), numbers.tolist(), strict=True)), foreground=len(self.ids)
        )

    def middle(self, extent: NDArray[np.int64]) -> tuple[int, int, int]:
        """Return the index of each plane through the largest object; through the middle of `extent` without any."""
        if len(self.boxes):
            sides = self.boxes[:, 3:] - self.boxes[:, :3]
            largest = self.boxes[int(np.argmax(sides.prod(axis=1)))]
            at = (largest[:3] + largest[3:]) / 2
        else:
            at = extent.sum(axis=0) / 2
        depth, height, width = np.clip(np.floor(at), 0, np.array(self.shape) - 1).astype(int).tolist()
        return depth, height, width

    def outlines(self, at: tuple[Any, ...]) -> NDArray[np.uint16]:
        """Return the class at each voxel of a plane that the outline of an object passes, 0 elsewhere.

        Args:
            at: index of [depth, height, width]: a number for the fixed axis, slices for the others.
        """
        fixed = next(axis for axis in range(3) if not isinstance(at[axis], slice))
        down, across = (axis for axis in range(3) if axis != fixed)
        plane = np.zeros((self.shape[down], self.shape[across]), np.uint16)
        for box, identity in zip(self.boxes, self.ids.tolist(), strict=True):
            if not box[fixed] - 0.5 <= at[fixed] + 0.5 <= box[3 + fixed] + 0.5:
                continue
            (top, bottom), (left, right) = (
                (
                    min(int(np.floor(box[axis] + 1e-3)), self.shape[axis] - 1),
                    max(int(np.ceil(box[3 + axis] - 1e-3)) - 1, 0),
                )
                for axis in (down, across)
            )
            plane[top : bottom + 1, [left, right]] = identity
            plane[[top, bottom], left : right + 1] = identity
        return np.asarray(plane[at[down], at[across]])


def sizes_mm(boxes: NDArray[np.float64], affine: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sides of boxes [n, 6] of voxels in millimeters, [n, 3]."""
    return np.asarray((boxes[:, 3:] - boxes[:, :3]) * np.linalg.norm(affine[:3, :3], axis=0))


def centers_mm(boxes: NDArray[np.float64], affine: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the centers of boxes [n, 6] of voxels, [n, 3] in millimeters to the right, anterior and superior."""
    return np.asarray(((boxes[:, :3] + boxes[:, 3:]) / 2 - 0.5) @ affine[:3, :3].T + affine[:3, 3])


def object_problems(features: Decoded) -> Iterator[str]:
    """Yield each problem of the objects of a volume's record beside their range and order."""
    objects, affine = StoredObjects.of(features), affine_of(features)
    source, shape = affine_of(features, keys.SOURCE_AFFINE), array_of(features, keys.SOURCE_SHAPE, "i")
    # Other checks report lists and values that are missing.
    if objects is None or affine is None or source is None or shape is None or shape.shape != (3,):
        return
    wrong = ~((objects.visible > 0) & (objects.visible <= 1 + 1e-6))
    for number in np.flatnonzero(wrong):
        yield f"{keys.OBJECT_VISIBLE}: box {number}: expected above 0, at most 1, got {objects.visible[number]}"
    beyond = ((objects.source_boxes < -1e-3) | (objects.source_boxes > np.tile(shape, 2) + 1e-3)).any(axis=1)
    for number in np.flatnonzero(beyond):
        yield f"image/object/source/bbox: box {number}: it lies outside of the source, which is {shape.tolist()}"
    yield from _place_problems(objects, affine, source)


def _place_problems(
    objects: StoredObjects, affine: NDArray[np.float64], source: NDArray[np.float64]
) -> Iterator[str]:
    """Yield each box that is elsewhere than the affines put its box in the source."""
    # The check of the affines reports those.
    if not (np.isfinite(affine).all() and np.isfinite(source).all()) or not np.linalg.det(affine[:3, :3]):
        return
    moved = map_boxes(np.linalg.solve(affine, source), objects.source_boxes)
    moved = np.clip(moved, 0, np.tile(objects.shape, 2))
    # Positions far from the first voxel round with the size of the affine.
    scale = max(1.0, float(np.abs(affine[:3, 3]).max()) / 1000)
    off = np.abs(moved - objects.boxes).max(axis=1, initial=0)
    for number in np.flatnonzero(off > _TOLERANCE_VOXELS * scale):
        yield (
            f"image/object/bbox: box {number}: it is {off[number]:.3g} voxels from where image/affine puts its box in "
            "the source"
        )


def table_rows(features: Decoded) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each object: its box along depth, height and width, its size, its center, and flags."""
    objects, affine, spacing = StoredObjects.of(features), affine_of(features), spacing_of(features)
    if objects is None or affine is None or spacing is None:
        return
    sides, centers = sizes_mm(objects.boxes, affine), centers_mm(objects.boxes, affine)
    for row, box in enumerate(objects.boxes):
        spans = [f"{box[axis]:.1f} to {box[axis + 3]:.1f}" for axis in range(3)]
        flags = ["ignored"] if objects.ignored[row] else []
        if objects.visible[row] < 1 - 1e-6:
            flags.append(f"{100 * objects.visible[row]:.0f} % of it")
        yield (
            *spans,
            " x ".join(f"{side:.4g}" for side in sides[row]),
            ", ".join(f"{place:.4g}" for place in centers[row]),
            ", ".join(flags),
        )


TABLE_HEADER: Final = ("depth", "height", "width", "size in mm", "center in mm (RAS)", "flags")
