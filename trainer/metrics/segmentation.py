"""How well do predicted classes cover the true ones, and how far apart are their surfaces?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from halofeed.schemas.errors import UsageError

if TYPE_CHECKING:  # the tasks import the metrics
    from halofeed.trainer.shared.task import Host

Mask = NDArray[np.bool_]
PERCENTILE = 95.0


class SegmentationMetrics:
    """Dice and the 95th percentile of surface distances, per class and example.

    The background is no class here. A class that an example neither has nor is predicted to have does not count
    for it. Where only one of both is empty, Dice is 0 and the distance the diagonal of the image. Of an image only
    what shows its source is seen: within `extent` of a volume or a clip, `size` of a picture, all of it where there is
    neither.

    Numbers are averaged over the examples of each class, then over classes.

    Args:
        labels: the classes' names, the background's first.
        kind: of the images. Distances in volumes are in millimeters, by `spacing_mm`, in pictures in pixels; clips,
            whose frames and pixels have no unit in common, have none.
        hausdorff: measure distances.
        ignore_label: the value of the truth where nothing is known: what is predicted there does not count.
    """

    def __init__(
        self, labels: tuple[str, ...], *, kind: str, hausdorff: bool = True, ignore_label: int | None = None
    ) -> None:
        self._ignored = ignore_label
        self.labels, self._distance = labels, _DISTANCES[kind] if hausdorff else None
        self.examples = 0
        self._dice: list[NDArray[np.float64]] = []
        self._distances: list[NDArray[np.float64]] = []

    def update(self, predictions: Host, truth: Host) -> NDArray[np.float64]:
        """Count the valid, labelled rows of a batch; a row is as good as its mean Dice.

        Args:
            predictions: `label`, class indices [batch, (depth,) height, width].
            truth: `label` on the same grid; `labelled` and `valid`, bool [batch]; of volumes `spacing_mm`
                [batch, 3], of these and clips `extent` [batch, 2, 3], of pictures `size` [batch, 2].
        """
        counts = np.ones(len(truth["label"]), bool)
        for key in ("valid", "labelled"):
            counts &= np.asarray(truth.get(key, True), bool)
        scores = np.full(len(counts), np.nan)
        for row in np.flatnonzero(counts).tolist():
            shown = self._shown(truth, row)
            predicted, true = predictions["label"][row][shown], truth["label"][row][shown]
            if self._ignored is not None:
                unknown = true == self._ignored
                predicted, true = np.where(unknown, 0, predicted), np.where(unknown, 0, true)
            dice = dice_per_class(predicted, true, len(self.labels))
            self.examples += 1
            self._dice.append(dice)
            if self._distance is not None:
                spacing = self._distance.spacing(truth, row)
                self._distances.append(hausdorff_per_class(predicted, true, len(self.labels), spacing))
            if not np.isnan(dice).all():
                scores[row] = np.nanmean(dice)
        return scores

    def result(self) -> dict[str, Any]:
        """`dice`, `hausdorff95_mm` (of pictures `hausdorff95_pixels`), each also `..._per_class`, and `examples`.

        A class that no example counts is None and enters no mean; where there is none at all, `dice` is 0.
        """
        per_class = self._per_class(self._dice)
        means: dict[str, Any] = {"dice": _mean(per_class.values()) or 0.0, "dice_per_class": per_class}
        if self._distance is not None:
            name = self._distance.name
            per_class = self._per_class(self._distances)
            means |= {name: _mean(per_class.values()), f"{name}_per_class": per_class}
        return {**means, "examples": self.examples}

    def _per_class(self, rows: Sequence[NDArray[np.float64]]) -> dict[str, float | None]:
        columns = np.array(rows).reshape(-1, len(self.labels) - 1).T
        means = (_mean(None if np.isnan(value) else float(value) for value in column) for column in columns)
        return dict(zip(self.labels[1:], means, strict=True))

    def _shown(self, truth: Host, row: int) -> tuple[slice, ...]:
        if "extent" in truth:
            return tuple(slice(max(0, start), stop) for start, stop in truth["extent"][row].T.tolist())
        if "size" in truth:
            return tuple(slice(stop) for stop in truth["size"][row].tolist())
        return (slice(None),) * (truth["label"].ndim - 1)


def _spacing_mm(truth: Host, row: int) -> tuple[float, ...]:
    spacing = tuple(np.asarray(truth.get("spacing_mm", np.zeros((row + 1, 3)))[row], np.float64).tolist())
    if not min(spacing) > 0:
        name = f"example {truth['id'][row]}" if "id" in truth else f"row {row} of a batch"
        raise UsageError(
            f"{name}: expected a spacing_mm above 0 along each axis, got {spacing}; without it there are no "
            "distances: set task.hausdorff=false"
        )
    return spacing


class _Distance(NamedTuple):
    name: str
    spacing: Callable[[Host, int], tuple[float, ...]]


_DISTANCES = {
    "picture": _Distance("hausdorff95_pixels", lambda truth, row: (1.0, 1.0)),
    "volume": _Distance("hausdorff95_mm", _spacing_mm),
    "clip": None,
}
"""Per kind of image."""


def dice_per_class(predicted: NDArray[Any], true: NDArray[Any], classes: int) -> NDArray[np.float64]:
    """Twice the overlap over the sum of the sizes, of every class but the background; NaN where both are empty.

    Args:
        predicted, true: class indices of one shape.
        classes: with the background.

    Returns:
        float64 [classes - 1].

    >>> dice_per_class(np.array([1, 1, 0, 2]), np.array([1, 0, 0, 0]), 4).round(3).tolist()
    [0.667, 0.0, nan]
    """
    pairs = np.bincount(true.ravel().astype(np.int64) * classes + predicted.ravel(), minlength=classes**2)
    table = pairs.reshape(classes, classes)
    both, sizes = np.diag(table)[1:], (table.sum(0) + table.sum(1))[1:]
    dice = np.full(classes - 1, np.nan)
    np.divide(2.0 * both, sizes, out=dice, where=sizes > 0)
    return dice


def hausdorff_per_class(
    predicted: NDArray[Any], true: NDArray[Any], classes: int, spacing: Sequence[float]
) -> NDArray[np.float64]:
    """`hausdorff95` of every class but the background, float64 [classes - 1]; NaN where both are empty."""
    distances = np.full(classes - 1, np.nan)
    boxes_of = (ndimage.find_objects(labels.astype(np.int32), classes - 1) for labels in (predicted, true))
    for index, boxes in enumerate(zip(*boxes_of, strict=True)):
        found = [box for box in boxes if box is not None]
        if len(found) == 1:
            distances[index] = _diagonal(true.shape, spacing)
        elif found:
            # Surfaces lie within the box of both masks, whose outside is background: nothing beyond it matters.
            box = tuple(
                slice(min(one.start, other.start), max(one.stop, other.stop))
                for one, other in zip(*found, strict=True)
            )
            distances[index] = hausdorff95(predicted[box] == index + 1, true[box] == index + 1, spacing)
    return distances


def hausdorff95(one: Mask, other: Mask, spacing: Sequence[float]) -> float:
    """The 95th percentile of the distances from each surface to the other, the greater of both directions.

    A mask's surface is its voxels with a face towards the outside or the image's edge; a distance is that of centers,
    and percentiles are linear between the two nearest, as in MONAI.

    Args:
        one, other: masks of one shape.
        spacing: of the voxels along each axis; the distance has its unit.

    Returns:
        NaN if both masks are empty, the image's diagonal if one is.

    >>> hausdorff95(np.array([[1, 0, 0, 0]], bool), np.array([[0, 0, 0, 1]], bool), (1.0, 2.5))
    7.5
    """
    if not (one.any() and other.any()):
        return _diagonal(one.shape, spacing) if one.any() or other.any() else float("nan")
    surfaces = [mask & ~ndimage.binary_erosion(mask) for mask in (one, other)]
    return max(
        float(np.percentile(ndimage.distance_transform_edt(~there, sampling=spacing)[here], PERCENTILE))
        for here, there in (surfaces, surfaces[::-1])
    )


def _diagonal(shape: Sequence[int], spacing: Sequence[float]) -> float:
    return float(np.linalg.norm(np.multiply(shape, spacing)))


def _mean(values: Any) -> float | None:
    found = [value for value in values if value is not None]
    return float(np.mean(found)) if found else None
