"""Which three planes of a volume does a report show, and how do they lie: true to millimetres, as radiologists look?

axial               depth fixed     patient's right on the left, anterior up
coronal             height fixed    patient's right on the left, superior up
sagittal            width fixed     anterior on the left, superior up
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.display import Display
from halofeed.inspection.overlay import overlay
from halofeed.inspection.records import integer_of, text_of
from halofeed.inspection.samples import Candidate, picture_uri, read_candidate
from halofeed.inspection.segmentation import (
    AXES,
    ClassCounts,
    affine_of,
    class_counts,
    extent_of,
    image_voxels,
    label_map,
    orientation_of,
    shown_classes,
    triple_of,
)
from halofeed.schemas.errors import CorruptFileError
from halofeed.schemas.manifest import Manifest

PLANES = {"axial": (0, (1, 2)), "coronal": (1, (0, 2)), "sagittal": (2, (0, 1))}
"""Per plane the axis that is fixed, and those that run down and across, both backwards."""


@dataclass(frozen=True, kw_only=True)
class Plane:
    """One plane as pictures.

    Args:
        name: one of `PLANES`.
        uri, mask: the greys, and the classes to lay over them (None where there are none), as data: URIs.
        position: the index along the fixed axis, of so many.
        size_mm: (down, across), padding left out.
        sides: what lies at the left, right, top and bottom, by its first letter.
    """

    name: str
    uri: str
    mask: str | None
    position: tuple[int, int]
    size_mm: tuple[float, float]
    sides: tuple[str, str, str, str]


@dataclass(frozen=True, kw_only=True)
class ScanSample:
    """One record to show: its planes, and what a caption says of it."""

    candidate: Candidate
    reason: str | None
    source: str
    planes: tuple[Plane, ...]
    classes: ClassCounts
    spacing_mm: tuple[float, ...]
    source_shape: tuple[int, ...]
    source_spacing_mm: tuple[float, ...]
    padding: float
    tile: int
    labelled: bool


def load_scan(
    folder: Path,
    manifest: Manifest,
    chosen: tuple[Candidate, str | None],
    display: Display,
    ranks: Mapping[int, int],
    side: int,
) -> ScanSample:
    """Read one record, and draw the planes through its label's centroid (or through its middle).

    Args:
        display: which values are black and white.
        ranks: which colour each class has.
        side: about the length in pixels of the longest side of a plane.

    Raises:
        CorruptFileError: the record is not what was written.
    """
    candidate, reason = chosen
    features = read_candidate(folder, candidate)
    volume, label = image_voxels(features, manifest), label_map(features, manifest)
    affine, extent = affine_of(features), extent_of(features)
    spacing = triple_of(features, "image/spacing_mm")
    source = text_of(features, "image/filename") or ""
    if volume is None or label is None or affine is None or extent is None or spacing is None:
        raise CorruptFileError(
            f"{source}: the record is no volume with a label; run `halofeed verify {folder}`"
        )
    centre = centre_of(label, extent)
    steps_mm = [float(value) if np.isfinite(value) and value > 0 else 1.0 for value in spacing]
    shown = tuple(slice(int(first), int(last)) for first, last in zip(*extent, strict=True))
    lengths = [(part.stop - part.start) * step for part, step in zip(shown, steps_mm, strict=True)]
    if min(lengths) <= 0:
        raise CorruptFileError(f"{source}: image/extent is empty; run `halofeed verify {folder}`")
    scale = side / max(lengths)
    names = orientation_of(affine) if np.isfinite(affine).all() else (("?", "?"),) * 3
    planes = []
    for name, (fixed, (down, across)) in PLANES.items():
        size_mm = (lengths[down], lengths[across])
        size = (max(1, round(size_mm[0] * scale)), max(1, round(size_mm[1] * scale)))
        at = tuple(centre[axis] if axis == fixed else shown[axis] for axis in range(3))
        letters = [names[across][1], names[across][0], names[down][1], names[down][0]]
        planes.append(
            Plane(
                name=name,
                uri=picture_uri(stretched(display.grey(volume[..., 0][at][::-1, ::-1]), size)[..., None]),
                mask=overlay(shown_classes(label[at][::-1, ::-1], manifest), ranks, size),
                position=(centre[fixed], label.shape[fixed]),
                size_mm=size_mm,
                sides=tuple(letter[0].upper() for letter in letters),  # type: ignore[arg-type]
            )
        )
    source_affine = affine_of(features, "image/source/affine")
    shape = triple_of(features, "image/source/shape", "i")
    return ScanSample(
        candidate=candidate,
        reason=reason,
        source=source,
        planes=tuple(planes),
        classes=class_counts(label, manifest),
        spacing_mm=tuple(spacing.tolist()),
        source_shape=() if shape is None else tuple(shape.tolist()),
        source_spacing_mm=()
        if source_affine is None
        else tuple(np.linalg.norm(source_affine[:3, :3], axis=0).tolist()),
        padding=candidate.padding,
        tile=integer_of(features, "image/tile") or 0,
        labelled=candidate.labelled,
    )


def centre_of(label: NDArray[Any], extent: NDArray[np.int64]) -> tuple[int, int, int]:
    """Where the three planes cross: the centroid of all that is labelled, or the nearest plane that meets some of it.

    Of two lungs the centroid's sagittal plane lies between them and would show neither. Without a label it is the
    middle of what shows the scan.
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
    centre = []
    for counts in per_axis:
        used = np.flatnonzero(counts)
        middle = float((np.arange(len(counts)) * counts).sum() / total)
        centre.append(int(used[np.argmin(np.abs(used - middle))]))
    return centre[0], centre[1], centre[2]


def stretched(grey: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Greys [height, width] at another size: shrunk by the area's mean, grown linearly, each axis by itself."""
    smaller = (min(size[0], grey.shape[0]), min(size[1], grey.shape[1]))
    result = np.ascontiguousarray(grey)
    for wanted, kernel in ((smaller, cv2.INTER_AREA), (size, cv2.INTER_LINEAR)):
        if result.shape != wanted:
            result = np.asarray(cv2.resize(result, wanted[::-1], interpolation=kernel), np.uint8)
    return result


def axis_name(plane: Plane) -> str:
    """The axis along which a plane's position is counted."""
    return AXES[PLANES[plane.name][0]]
