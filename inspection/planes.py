"""Three planes through a volume in radiological view, with the true proportions in millimeters.

axial               depth fixed     patient's right on the left, anterior up
coronal             height fixed    patient's right on the left, superior up
sagittal            width fixed     anterior on the left, superior up
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.errors import CorruptFileError
from halofeed.inspection.candidates import Candidate
from halofeed.inspection.dataset_files import DatasetFiles
from halofeed.inspection.display import Display
from halofeed.inspection.overlay import overlay
from halofeed.inspection.samples import picture_uri
from halofeed.inspection.stored_records import (
    VOLUME_AXES,
    ClassCounts,
    affine_of,
    array_of,
    class_counts,
    extent_of,
    integer_of,
    label_map,
    orientation_of,
    shown_classes,
    spacing_of,
    stored_image,
    text_of,
)
from halofeed.inspection.stored_shard import StoredShard
from halofeed.schemas import keys
from halofeed.schemas.manifest import Manifest

PLANES = {"axial": (0, (1, 2)), "coronal": (1, (0, 2)), "sagittal": (2, (0, 1))}
"""For each plane the fixed axis, and the axes that run down and across, both reversed."""
_FLAT_RATIO = 4


@dataclass(frozen=True, kw_only=True)
class Plane:
    """One plane as pictures.

    Args:
        name: key of `PLANES`.
        caption: name, and the index along the fixed axis with the axis' length.
        uri: data: URI of the gray picture.
        masks: data: URI of the classes of each label, to lay over the picture; None if it has no class here.
        size_mm: (down, across), without padding.
        sides: first letters of the patient's directions at the left, right, top and bottom; "" if unknown.
    """

    name: str
    caption: str
    uri: str
    masks: tuple[str | None, ...]
    size_mm: tuple[float, float]
    sides: str

    @property
    def ratio(self) -> float:
        """Return width over height."""
        return self.size_mm[1] / self.size_mm[0]

    @property
    def shown_sides(self) -> list[tuple[str, str]]:
        """Return each side ("l", "r", "t" or "b") to label, with its letter."""
        # A flat picture has no room for letters at the top and bottom, a narrow one none at the left and right.
        room = "lr" if self.ratio > _FLAT_RATIO else "tb" if self.ratio < 1 / _FLAT_RATIO else "lrtb"
        return [(side, letter) for side, letter in zip("lrtb", self.sides, strict=False) if side in room]


@dataclass(frozen=True, kw_only=True)
class ScanSample:
    """One record to show: its planes, and the facts for its caption."""

    candidate: Candidate
    reason: str | None
    source: str
    planes: list[Plane]
    classes: ClassCounts
    spacing_mm: tuple[float, ...]
    source_shape: tuple[int, ...]
    source_spacing_mm: tuple[float, ...]
    tile: int


def cut_planes(
    volume: NDArray[Any],
    labels: Sequence[Callable[[Any], NDArray[Any]] | None],
    positions: tuple[int, int, int],
    shown: tuple[slice, ...],
    steps_mm: Sequence[float],
    directions: Sequence[tuple[str, str]],
    display: Display,
    ranks: Mapping[int, int],
    side: int,
) -> list[Plane]:
    """Cut three planes out of a volume, drawn to one scale in millimeters.

    Args:
        volume: [depth, height, width, channel]; the first channel is shown.
        labels: functions from an index of [depth, height, width] to class indices, to lay over it; None for none.
        positions: index of each plane along its fixed axis.
        shown: range of each axis to show.
        steps_mm: distance between voxels along each axis.
        directions: for each axis, the patient's directions at its low and high end; () if unknown.
        display: values shown as black and white.
        ranks: color number of each class.
        side: approximate length in pixels of the longest side of a plane.
    """
    lengths = [(part.stop - part.start) * step for part, step in zip(shown, steps_mm, strict=True)]
    scale = side / max(lengths)
    planes = []
    for name, (fixed, (down, across)) in PLANES.items():
        size_mm = (lengths[down], lengths[across])
        size = (max(1, round(size_mm[0] * scale)), max(1, round(size_mm[1] * scale)))
        at = tuple(positions[axis] if axis == fixed else shown[axis] for axis in range(3))
        gray = resize_gray(display.gray(volume[..., 0][at][::-1, ::-1]), size)
        masks = [None if label is None else overlay(label(at)[::-1, ::-1], ranks, size) for label in labels]
        ends = [*directions[across][::-1], *directions[down][::-1]] if directions else []
        planes.append(
            Plane(
                name=name,
                caption=f"{name}, {VOLUME_AXES[fixed]} {positions[fixed]} of {volume.shape[fixed]}",
                uri=picture_uri(gray[..., None]),
                masks=tuple(masks),
                size_mm=size_mm,
                sides="".join(end[0].upper() for end in ends),
            )
        )
    return planes


def load_scan(
    folder: Path | DatasetFiles,
    manifest: Manifest,
    chosen: tuple[Candidate, str | None],
    display: Display,
    ranks: Mapping[int, int],
    side: int,
) -> ScanSample:
    """Read one record and cut planes through the centroid of its label, or through its middle; see `cut_planes`.

    Raises:
        CorruptFileError: the record is not what was written.
    """
    candidate, reason = chosen
    features = StoredShard(folder, candidate.shard).features(candidate.row)
    volume, label = stored_image(features, manifest), label_map(features, manifest)
    affine, extent = affine_of(features), extent_of(features)
    spacing = spacing_of(features)
    source = text_of(features, keys.FILENAME) or ""
    if volume is None or label is None or affine is None or extent is None or spacing is None:
        raise CorruptFileError(
            f"{source}: the record is not a volume with a label; run `halofeed verify {folder}`"
        )
    if (extent[1] <= extent[0]).any():
        raise CorruptFileError(f"{source}: image/extent is empty; run `halofeed verify {folder}`")
    planes = cut_planes(
        volume,
        [lambda at: shown_classes(label[at], manifest)],
        center_of(label, extent),
        tuple(slice(int(first), int(last)) for first, last in zip(*extent, strict=True)),
        [float(value) if np.isfinite(value) and value > 0 else 1.0 for value in spacing],
        orientation_of(affine) if np.isfinite(affine).all() else (("?", "?"),) * 3,
        display,
        ranks,
        side,
    )
    source_affine = affine_of(features, keys.SOURCE_AFFINE)
    shape = array_of(features, keys.SOURCE_SHAPE, "i")
    lengths = np.zeros(0) if source_affine is None else np.linalg.norm(source_affine[:3, :3], axis=0)
    return ScanSample(
        candidate=candidate,
        reason=reason,
        source=source,
        planes=planes,
        classes=class_counts(label, manifest),
        spacing_mm=tuple(spacing.tolist()),
        source_shape=() if shape is None else tuple(shape.tolist()),
        source_spacing_mm=tuple(lengths.tolist()),
        tile=integer_of(features, keys.TILE) or 0,
    )


def center_of(label: NDArray[Any], extent: NDArray[np.int64]) -> tuple[int, int, int]:
    """Return the index of each plane: the centroid of all labelled voxels, moved to the nearest labelled plane.

    The centroid of two lungs is between them, and its sagittal plane would show neither. Without labelled voxels
    the result is the middle of `extent`, the part without padding.
    """
    per_axis = [np.zeros(size, np.int64) for size in label.shape]
    for depth in range(len(label)):
        inside = label[depth] != 0
        per_axis[1] += inside.sum(axis=1)
        per_axis[2] += inside.sum(axis=0)
        per_axis[0][depth] = np.count_nonzero(inside)
    total = int(per_axis[0].sum())
    if not total:
        depth, height, width = (
            min(max(0, (first + last) // 2), size - 1)
            for first, last, size in zip(*extent.tolist(), label.shape, strict=True)
        )
        return depth, height, width
    center = []
    for counts in per_axis:
        used = np.flatnonzero(counts)
        middle = float((np.arange(len(counts)) * counts).sum() / total)
        center.append(int(used[np.argmin(np.abs(used - middle))]))
    return center[0], center[1], center[2]


def resize_gray(gray: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Resize a gray picture [height, width]: average areas to shrink an axis, interpolate linearly to enlarge one."""
    smaller = (min(size[0], gray.shape[0]), min(size[1], gray.shape[1]))
    result = np.ascontiguousarray(gray)
    for wanted, kernel in ((smaller, cv2.INTER_AREA), (size, cv2.INTER_LINEAR)):
        if result.shape != wanted:
            result = np.asarray(cv2.resize(result, wanted[::-1], interpolation=kernel), np.uint8)
    return result


def find_worst_planes(
    shape: tuple[int, ...], truth: NDArray[Any] | None, predicted: NDArray[Any] | None
) -> tuple[int, int, int]:
    """Return the plane along each axis with the most wrong voxels; without any, those of `center_of`.

    >>> truth = np.zeros((3, 4, 5), int)
    >>> predicted = truth.copy()
    >>> predicted[2, 1, :3] = 1
    >>> find_worst_planes(truth.shape, truth, predicted)
    (2, 1, 0)
    """
    if truth is not None and predicted is not None:
        wrong = truth != predicted
        if wrong.any():
            depth, height, width = (
                int(np.argmax(wrong.sum(axis=others))) for others in ((1, 2), (0, 2), (0, 1))
            )
            return depth, height, width
    label = truth if truth is not None else predicted if predicted is not None else np.zeros(shape, np.uint8)
    return center_of(label, np.array([[0] * len(shape), shape]))
