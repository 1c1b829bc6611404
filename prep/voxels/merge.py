"""How masks of one class each become one label volume."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.prep.geometry.scan import Overlap
from halofeed.schemas.errors import SourceError, UsageError

OVERLAP_CURE = "--class-overlap last or first decides, channels keeps both"
LARGEST_CLASS = 65535


def merge_class_masks(
    masks: Iterable[tuple[int, NDArray[Any]]], overlap: Overlap = "refuse", *, may_repeat: bool = False
) -> tuple[NDArray[Any], int]:
    """Merges masks of one class each; one mask is held at a time, so that `masks` may read them as it goes.

    Args:
        masks: (class value from 1 to 65535, bool or integer [depth, height, width] of 0 and one other value).
        overlap: what becomes of a voxel in several masks: "refuse", or the value of the "last" or "first" mask, or the
            union of them all ("channels": each value is a set of classes).
        may_repeat: several masks may have one value, which is then all of them.

    Returns:
        The labels, uint8 [depth, height, width], uint16 where a class value is above 255; 0 is the background. And
        how often a voxel that was claimed before was claimed by another class.

    Raises:
        SourceError: of stage `annotation`, where masks overlap, are of different shapes or hold several values.

    >>> merge_class_masks([(1, np.array([[[1, 1, 0]]])), (2, np.array([[[0, 9, 9]]]))], "last")
    (array([[[1, 2, 2]]], dtype=uint8), 1)
    """
    if overlap not in ("refuse", "last", "first", "channels"):
        raise UsageError(f"overlap={overlap!r}: expected 'refuse', 'last', 'first' or 'channels'")
    labels: NDArray[Any] | None = None
    seen: set[int] = set()
    overlapped = 0
    for value, mask in masks:
        if not 1 <= value <= LARGEST_CLASS or (value in seen and not may_repeat):
            raise UsageError(
                f"class value {value}: expected each value from 1 to {LARGEST_CLASS} at most once"
            )
        seen.add(value)
        inside = _inside(mask, value)
        del mask  # else it lives while the next one is read
        if labels is None:
            labels = np.zeros(inside.shape, np.uint8)
        if inside.shape != labels.shape:
            detail = f"class {value}: expected {_sides(labels.shape)} voxels, got {_sides(inside.shape)}"
            raise SourceError("annotation", "masks of one scan differ in shape", detail)
        if value > 255 and labels.dtype == np.uint8:
            labels = labels.astype(np.uint16)
        if overlap == "channels":
            np.bitwise_or(labels, labels.dtype.type(value), out=labels, where=inside)
            continue
        earlier = labels[inside]
        claimed = earlier[(earlier != 0) & (earlier != value)]
        if claimed.size and overlap == "refuse":
            others = ", ".join(map(str, np.unique(claimed).tolist()))
            detail = f"{claimed.size} voxels of class {value} are in class {others} too; {OVERLAP_CURE}"
            raise SourceError("annotation", "masks of one scan overlap", detail)
        overlapped += claimed.size
        if overlap == "first":
            inside = inside & (labels == 0)
        labels[inside] = value
        del inside, earlier, claimed
    if labels is None:
        raise UsageError("masks: expected at least one, got none")
    return labels, overlapped


def merge_labels(labels: NDArray[Any], more: NDArray[Any], overlap: Overlap) -> tuple[NDArray[Any], int]:
    """Two label volumes on one grid as one, and the number of voxels that are of different classes in them.

    Args:
        overlap: what becomes of those voxels: "refuse", or the class of the second ("last") or the "first", or of both
            ("channels": the labels are sets of classes).

    Raises:
        SourceError: of stage `annotation`, where there are such voxels and they are to be refused.

    >>> merge_labels(np.array([[[1, 1, 0]]]), np.array([[[0, 2, 2]]]), "first")
    (array([[[1, 1, 2]]]), 1)
    """
    if labels.shape != more.shape:
        detail = f"{_sides(labels.shape)} and {_sides(more.shape)} voxels"
        raise SourceError("annotation", "masks of one scan differ in shape", detail)
    if overlap == "channels":
        return labels | more, 0
    differ = (labels != 0) & (more != 0) & (labels != more)
    voxels = int(np.count_nonzero(differ))
    if voxels and overlap == "refuse":
        pairs = sorted({*zip(labels[differ].tolist(), more[differ].tolist(), strict=True)})
        listed = ", ".join(f"{first} and {second}" for first, second in pairs[:5])
        detail = f"{voxels} voxels are of classes {listed}; {OVERLAP_CURE}"
        raise SourceError("annotation", "masks of one scan overlap", detail)
    taken = (more != 0) if overlap == "last" else (more != 0) & (labels == 0)
    return np.where(taken, more, labels), voxels


def _inside(mask: NDArray[Any], value: int) -> NDArray[np.bool_]:
    if mask.ndim != 3 or mask.dtype.kind not in "bui":
        raise UsageError(
            f"mask of class {value}: expected bool or integer [d, h, w], got {mask.dtype} {mask.shape}"
        )
    if mask.dtype == np.bool_ or not mask.size:
        return mask.astype(np.bool_, copy=False)
    lowest, highest = int(mask.min()), int(mask.max())
    inside: NDArray[np.bool_] = mask != 0
    if lowest < 0 or np.count_nonzero(inside) != (np.count_nonzero(mask == highest) if highest else 0):
        detail = f"class {value}: expected 0 and one other, got values from {lowest} to {highest}"
        raise SourceError("annotation", "mask of one class holds several values", detail)
    return inside


def _sides(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
