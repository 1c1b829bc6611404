"""Metrics of segmentation of whole pictures, whose tiles are blended by bands as `predict` does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.batch import join_id
from halofeed.trainer.metrics import (
    SegmentationMetrics,
    confusion_table,
    hausdorff_per_class,
)
from halofeed.trainer.picture_bands import BandBlender, BlendedRows
from halofeed.trainer.record_metadata import SplitMetadata
from halofeed.trainer.task import Host, valid_host
from halofeed.trainer.tasks.segmentation import Segmentation

DISTANCE_PIXELS: Final = 1 << 24
"""Maximum size of a picture whose surface distances are measured: 4096 x 4096. They need both masks at once."""


@dataclass(eq=False)
class _OpenPicture:
    """Counts of a picture until its last tile has come; masks only if distances are measured."""

    blender: BandBlender
    table: NDArray[np.int64]
    masks: list[tuple[NDArray[Any], NDArray[Any]]] = field(default_factory=list)


class WholeSegmentationMetrics:
    """Dice and surface distances of whole pictures, on the grid of the scaled, displayed picture.

    Pixels that no tile shows, and those of the ignore label, do not count. The score of a row is that of its tile.
    Memory: see `BandBlender`.

    Args:
        task: task whose predictions have `probabilities`.
        metadata: metadata of a split of tiles.
    """

    def __init__(self, task: Segmentation, metadata: SplitMetadata) -> None:
        self._task, self._metadata = task, metadata
        self._tiles, self._open = metadata.picture_tiles(), dict[str, _OpenPicture]()
        self._metrics = SegmentationMetrics(
            task.labels, kind="picture", hausdorff=task.hausdorff, regions=task.mask_rule.regions
        )
        self._tile_count = self._unmeasured = 0

    def update(self, predictions: Host, truth: Host) -> NDArray[np.float64]:
        """Add the valid rows of a batch and return the mean Dice of each tile."""
        of_tiles = SegmentationMetrics(
            self._task.labels, kind="picture", hausdorff=False, ignore_label=self._task.ignore_label
        )
        scores = of_tiles.update(predictions, truth)
        for row in np.flatnonzero(valid_host(truth)).tolist():
            self._tile_count += 1
            # A picture without a label has no score.
            if bool(truth["labelled"][row]) if "labelled" in truth else True:
                of_row = {name: values[row] for name, values in predictions.items()}
                predicted = self._task.mask_rule.of_row(of_row)
                self._add(predicted, truth["label"][row], int(join_id(truth["id"][row])))
        return scores

    def _add(self, predicted: NDArray[Any], true: NDArray[Any], record_id: int) -> None:
        record = self._metadata.of_id(record_id)
        key, classes = record.key, len(self._task.labels)
        if key not in self._open:
            size = predicted.shape[0], predicted.shape[1]
            rule = self._task.mask_rule
            outputs = rule.outputs(classes)
            blender = BandBlender(
                self._tiles[key], record.whole_size, size, outputs, weights=rule.window_weights
            )
            self._open[key] = _OpenPicture(blender=blender, table=np.zeros((classes, classes), np.int64))
        state = self._open[key]
        measures = self._task.hausdorff and np.prod(record.whole_size) <= DISTANCE_PIXELS
        for band in state.blender.add(int(record.numbers["tile"]), predicted, true):
            predicted, true, counts = self._masks(band)
            state.table += confusion_table(predicted[counts], true[counts], classes)
            if measures:
                # Background in both, so that pixels that do not count have no surface.
                state.masks.append((np.where(counts, predicted, 0), np.where(counts, true, 0)))
        if not state.blender.missing:
            self._finish(self._open.pop(key), measures=bool(measures))

    def _masks(self, band: BlendedRows) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_]]:
        """Return the predicted and the true classes of a band, and which pixels count."""
        predicted = self._task.mask_rule.labels(band.probabilities)
        predicted = predicted.argmax(-1).astype(np.uint16) if predicted.ndim == 3 else predicted
        true = np.zeros_like(predicted) if band.true is None else band.true
        counts = band.is_shown
        if self._task.ignore_label is not None:
            counts = counts & (true != self._task.ignore_label)
        return predicted, true, counts

    def _finish(self, state: _OpenPicture, *, measures: bool) -> None:
        distances = None
        if measures:
            predicted, true = (np.concatenate(parts) for parts in zip(*state.masks, strict=True))
            distances = hausdorff_per_class(predicted, true, len(self._task.labels), (1.0, 1.0))
        self._unmeasured += self._task.hausdorff and not measures
        self._metrics.add_example(state.table, distances)

    def result(self) -> dict[str, Any]:
        """Return the numbers of segmentation; `examples` counts pictures, `tiles` their tiles.

        `pictures_without_distances` counts pictures of more than `DISTANCE_PIXELS`, if there are any.
        """
        left_out = {"pictures_without_distances": self._unmeasured} if self._unmeasured else {}
        counts = {"tiles": self._tile_count, "tiles_dropped": self._metadata.dropped_tiles}
        return {**self._metrics.result(), **counts, **left_out}
