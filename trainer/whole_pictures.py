"""Whole pictures from the predictions of their tiles: boxes are merged, classes are averaged.

Tiles may come in any order. What is kept of a picture until its last tile has come is its boxes or its sum of
probabilities.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.batch import join_id
from halofeed.trainer.detection.box_pairs import Boxes, RowNumbers
from halofeed.trainer.detection.merge_tiles import MergeRule, TileDetections, merge_with_pieces
from halofeed.trainer.mask_metrics import WholeMaskMetrics
from halofeed.trainer.metrics import AREA_DECIMALS, CocoMetrics, WholeCocoMetrics
from halofeed.trainer.object_masks import PlacedMask, placement_in_source, union
from halofeed.trainer.record_metadata import RecordMetadata, SplitMetadata
from halofeed.trainer.source_grid import BOX_DECIMALS, SCORE_DECIMALS, boxes_in_source
from halofeed.trainer.task import Host, Metrics, valid_host
from halofeed.trainer.tasks.classification import Classification
from halofeed.trainer.tasks.detection import Detection
from halofeed.trainer.tasks.multi_label import MultiLabel
from halofeed.trainer.tasks.segmentation import Segmentation
from halofeed.trainer.whole_masks import WholeSegmentationMetrics


@dataclass(frozen=True, kw_only=True)
class TiledSource:
    """A source picture whose tiles are records.

    Args:
        id: id of its first tile, which stands for the picture.
        key: name of the picture in the source data.
        source: path of its file.
        size: (height, width) of the file's own pixels.
        tiles: number of tiles in the split; empty ones may have been dropped.
    """

    id: int
    key: str
    source: str
    size: tuple[int, int]
    tiles: int


def whole_pictures(metadata: SplitMetadata) -> dict[str, TiledSource]:
    """Return the source pictures of a split of tiles by their keys, in stored order."""
    first: dict[str, RecordMetadata] = {}
    counts: dict[str, int] = {}
    for record in metadata:
        first.setdefault(record.key, record)
        counts[record.key] = counts.get(record.key, 0) + 1
    return {
        key: TiledSource(
            id=record.id, key=key, source=record.source, size=record.source_size, tiles=counts[key]
        )
        for key, record in first.items()
    }


def has_picture_tiles(metadata: SplitMetadata) -> bool:
    """Return True if records are tiles of pictures."""
    fields = {field.name for field in metadata.manifest.fields}
    return metadata.manifest.kind.name == "picture" and "tile" in fields


@dataclass(eq=False)
class _OpenPicture:
    """Detections of a picture until its last tile has come."""

    missing: int
    frames: list[Boxes] = field(default_factory=list)
    parts: list[TileDetections] = field(default_factory=list)
    masks: list[PlacedMask] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeDetections:
    """Detections of a picture from all its tiles.

    Args:
        picture: picture.
        found: merged detections in pixels of the file.
        masks: mask of each detection, the union of its pieces; None if the model predicts none.
    """

    picture: TiledSource
    found: TileDetections
    masks: Sequence[PlacedMask] | None


class BoxCollector:
    """Detections of pictures from those of their tiles.

    Memory: 56 bytes per detection of pictures with missing tiles, and one byte per pixel of its mask.

    Args:
        metadata: metadata of a split of tiles.
        rule: rule by which boxes of different tiles are merged.
        min_score: smallest score of a detection that is kept.
        pictures: pictures of the split by key.

    Attributes:
        left_out: number of detections of tiles with a lower score, so far.
        highest_left_out: highest score of these.
    """

    def __init__(
        self,
        metadata: SplitMetadata,
        rule: MergeRule,
        pictures: Mapping[str, TiledSource],
        min_score: float = 0.0,
    ) -> None:
        self.pictures, self._rule, self._min_score = pictures, rule, min_score
        self._size = metadata.manifest.field("image").shape[:2]
        self._open: dict[str, _OpenPicture] = {}
        self.left_out, self.highest_left_out = 0, 0.0

    def add(self, record: RecordMetadata, row: Mapping[str, NDArray[Any]]) -> WholeDetections | None:
        """Add the detections of a tile.

        Args:
            record: metadata of the tile.
            row: predictions of the tile, as `predict_batches` takes them.

        Returns:
            After the last tile the detections of the picture; else None.
        """
        picture = self.pictures[record.key]
        if record.key not in self._open:
            self._open[record.key] = _OpenPicture(missing=picture.tiles)
        state = self._open[record.key]
        shown = np.array([[0, 0, *record.picture_size]]) / np.tile(self._size, 2)
        transform = record.numbers["transform"]
        state.frames.append(boxes_in_source(shown, transform, self._size, record.source_size)[0])
        kept, detections = self._detections(record, row, len(state.frames) - 1)
        state.parts.append(detections)
        if "masks" in row:
            placement, stride = placement_in_source(record, self._size), int(row["mask_stride"])
            state.masks += [placement.mask(row["masks"][number], stride) for number in kept.tolist()]
        state.missing -= 1
        if state.missing:
            return None
        del self._open[record.key]
        found = TileDetections(
            **{
                name: np.concatenate([getattr(part, name) for part in state.parts])
                for name in ("boxes", "scores", "classes", "tiles")
            }
        )
        merged, pieces = merge_with_pieces(found, np.array(state.frames), picture.size, self._rule)
        masks = None
        if "masks" in row:
            masks = [union([state.masks[number] for number in rows.tolist()]) for rows in pieces]
        return WholeDetections(picture=picture, found=merged, masks=masks)

    def _detections(
        self, record: RecordMetadata, row: Mapping[str, NDArray[Any]], tile: int
    ) -> tuple[RowNumbers, TileDetections]:
        """Return the numbers of the detections of a tile that are kept, and these in pixels of the source."""
        count = int(row["num_detections"])
        boxes = boxes_in_source(
            row["boxes"][:count], record.numbers["transform"], self._size, record.source_size
        )
        found = TileDetections(
            boxes=boxes,
            scores=np.asarray(row["scores"][:count], np.float64).round(SCORE_DECIMALS),
            classes=row["classes"][:count].astype(np.int64),
            tiles=np.full(count, tile),
        )
        # Boxes in the padding have no area on the source.
        has_area = np.all(boxes[:, :2] < boxes[:, 2:], axis=1)
        kept = has_area & (found.scores >= self._min_score)
        left_out = found.scores[has_area & ~kept]
        self.left_out += len(left_out)
        self.highest_left_out = max(self.highest_left_out, float(left_out.max(initial=0)))
        return np.flatnonzero(kept), found.take(kept)


@dataclass(eq=False)
class _TrueObjects:
    """Complete objects and ignored regions of a picture, until its last tile has come.

    Args:
        rows: class, ymin, xmin, ymax, xmax, area, crowd of each object by its number in the picture.
        regions: ymin, xmin, ymax, xmax of ignored regions; several tiles show parts of one region.
        masks: what tiles show of each object, by its number.
    """

    rows: dict[int, Sequence[float]] = field(default_factory=dict)
    regions: set[tuple[float, ...]] = field(default_factory=set)
    masks: defaultdict[int, list[PlacedMask]] = field(default_factory=lambda: defaultdict(list))


class WholeDetectionMetrics:
    """COCO metrics of whole pictures, whose tiles are merged as `predict` does.

    The ground truth is the complete objects of the source, each once. The score of a row is that of its tile.

    Args:
        task: task of the predictions.
        metadata: metadata of a split of tiles.
        rule: rule by which boxes are merged.
    """

    def __init__(self, task: Detection, metadata: SplitMetadata, rule: MergeRule) -> None:
        self._metadata = metadata
        # Tiles have a score by their boxes alone.
        self._tile_metrics_of = partial(CocoMetrics, task.labels, task.region_rule)
        self._metrics = (WholeMaskMetrics if task.masks else WholeCocoMetrics)(task.labels, task.region_rule)
        self._collector = BoxCollector(metadata, rule, whole_pictures(metadata))
        self._dropped = metadata.dropped_tiles
        self._tiles = 0
        self._true: defaultdict[str, _TrueObjects] = defaultdict(_TrueObjects)

    def update(self, predictions: Host, truth: Host) -> NDArray[np.float64]:
        """Add the valid rows of a batch and return the score of each tile."""
        scores = self._tile_metrics_of().update(predictions, truth)
        has_masks = "masks" in predictions and "masks" in truth
        for row in np.flatnonzero(valid_host(truth)).tolist():
            self._tiles += 1
            record_id = int(join_id(truth["id"][row]))
            record = self._metadata.of_id(record_id)
            self._add_truth(record, with_masks=has_masks)
            done = self._collector.add(record, {key: value[row] for key, value in predictions.items()})
            if done is not None:
                self._add_picture(done, self._true.pop(record.key), with_masks=has_masks)
        return scores

    def _add_truth(self, record: RecordMetadata, *, with_masks: bool) -> None:
        """Add all objects of a tile, of which a batch has as many as there is room for."""
        true = self._true[record.key]
        true.regions |= self._metadata.complete_regions(record.id)
        numbers, rows = _objects(self._metadata, record.id)
        true.rows |= zip(numbers, rows, strict=True)
        if with_masks:
            for number, mask in zip(numbers, self._metadata.object_masks(record.id), strict=True):
                true.masks[number].append(placement_in_source(record, mask.shape).nearest(mask))

    def _add_picture(self, whole: WholeDetections, true: _TrueObjects, *, with_masks: bool) -> None:
        found, numbers = whole.found, sorted(true.rows)
        detections = np.column_stack([found.classes, found.boxes, found.scores])
        boxes = np.array([true.rows[number] for number in numbers], np.float64).reshape(-1, 7)
        regions = np.array(sorted(true.regions), np.float64).reshape(-1, 4).round(BOX_DECIMALS)
        if with_masks and isinstance(self._metrics, WholeMaskMetrics):
            self._metrics.add_masked_picture(
                whole.picture.id,
                detections,
                boxes,
                regions,
                masks=whole.masks or [],
                true=[union(true.masks[number]) for number in numbers],
                size=whole.picture.size,
            )
        else:
            self._metrics.add_picture(whole.picture.id, detections, boxes, regions)

    def result(self) -> dict[str, Any]:
        """Return the numbers of `WholeCocoMetrics`; `examples` counts pictures, `tiles` their tiles."""
        return {**self._metrics.result(), "tiles": self._tiles, "tiles_dropped": self._dropped}


def _objects(metadata: SplitMetadata, record_id: int) -> tuple[list[int], list[list[float]]]:
    """Return number and class, ymin, xmin, ymax, xmax, area, crowd of each object of which a tile shows a part."""
    values = metadata.objects(record_id)
    boxes = values["source_boxes"].astype(np.float64).round(BOX_DECIMALS)
    area = values["source_area"].astype(np.float64).round(AREA_DECIMALS)
    rows = np.column_stack([values["classes"], boxes, area, values["source_is_crowd"]]).tolist()
    return values["index"].tolist(), rows


class ClassCollector:
    """Mean probabilities of pictures over their tiles."""

    def __init__(self, pictures: Mapping[str, TiledSource]) -> None:
        self.pictures = pictures
        self._open: dict[str, tuple[int, NDArray[np.float64]]] = {}

    def add(self, key: str, probabilities: NDArray[Any]) -> tuple[TiledSource, NDArray[np.float64]] | None:
        """Add the probabilities [class] of a tile; return the picture and its mean after the last tile, else None."""
        picture = self.pictures[key]
        count, total = self._open.pop(key, (0, np.zeros(len(probabilities))))
        count, total = count + 1, total + probabilities.astype(np.float64)
        if count == picture.tiles:
            return picture, total / count
        self._open[key] = count, total
        return None


class WholeClassMetrics:
    """Metrics of classification of whole pictures by the mean probabilities of their tiles."""

    def __init__(self, task: Classification | MultiLabel, metadata: SplitMetadata) -> None:
        self._task, self._metadata, self._metrics = task, metadata, task.metrics()
        self._collector = ClassCollector(whole_pictures(metadata))
        self._dropped = metadata.dropped_tiles
        self._tiles = 0

    def update(self, predictions: Host, truth: Host) -> NDArray[np.float64]:
        """Add the valid rows of a batch and return the score of each tile."""
        scores = self._task.metrics().update(predictions, truth)
        for row in np.flatnonzero(valid_host(truth)).tolist():
            self._tiles += 1
            record = self._metadata.of_id(int(join_id(truth["id"][row])))
            done = self._collector.add(record.key, predictions["probabilities"][row])
            if done is not None:
                # All tiles have the classes of their picture.
                of_row = {key: truth[key][row : row + 1] for key in self._task.truth}
                self._metrics.update(self._task.decide(done[1][None]), of_row)
        return scores

    def result(self) -> dict[str, Any]:
        """Return the numbers of classification; `examples` counts pictures, `tiles` their tiles."""
        return {**self._metrics.result(), "tiles": self._tiles, "tiles_dropped": self._dropped}


def whole_picture_metrics(
    task: Any, metadata: SplitMetadata, rule: MergeRule | None = None
) -> Metrics | None:
    """Return metrics of whole pictures for a split of tiles; None for other data and tasks."""
    if not has_picture_tiles(metadata):
        return None
    if isinstance(task, Detection):
        return WholeDetectionMetrics(task, metadata, rule or MergeRule())
    if isinstance(task, Classification | MultiLabel):
        return WholeClassMetrics(task, metadata)
    # Metrics of masks need probabilities to blend.
    if isinstance(task, Segmentation) and task.with_probabilities:
        return WholeSegmentationMetrics(task, metadata)
    return None
