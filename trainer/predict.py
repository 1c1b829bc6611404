"""Prediction of a split by a trained model, written on the grid of the source files.

OUT/predictions.json    run, data set (or the path of new files) and list of files
OUT/detections.json     detection: COCO results in pixels of the source, with categories.json; of a model with a mask
                        head each has run lengths in `segmentation`
OUT/KEY.nii.gz, .png    segmentation: class indices on the grid of the source scan or picture; of nnU-Net's cases
                        CASE_0000, CASE.nii.gz, as nnU-Net names labels
OUT/KEY.tif             the same for a picture of tiles with more than 89 million pixels
OUT/KEY/0/0000.png      segmentation of clips: a picture per clip and frame of a source
OUT/KEY.geojson         on request, boxes, or outlines of masks or classes, of each picture of tiles, on the map
OUT/classes.csv         classification: the most probable class, and the probability of each; where an image may have
                        several classes, a JSON list of those with at least the task's `threshold`, by default 0.5
OUT/predictions.html    on request, a page of pictures, which are in OUT/drawn too (halofeed.inspection)
OUT/.halofeed           list of the files that halofeed wrote (halofeed.storage.owned_files)
"""

from __future__ import annotations

import csv
import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import jax
import numpy as np
from numpy.typing import NDArray

from halofeed.loader.batch import join_id
from halofeed.prep.formats.volume.nifti import write_nifti
from halofeed.prep.sources.file_names import safe_name, stem_of
from halofeed.storage.atomic_files import atomic_write
from halofeed.storage.paths import open_path
from halofeed.storage.result_folder import ResultFolder
from halofeed.storage.temporary_arrays import temporary_array
from halofeed.system.console import StatusLine
from halofeed.system.errors import JobError, UsageError
from halofeed.system.wording import plural, printable
from halofeed.trainer.detection.merge_tiles import MergeRule
from halofeed.trainer.ensemble import Ensemble, load_runs
from halofeed.trainer.geojson_predictions import PredictedLabels, PredictedObjects, write_geojson
from halofeed.trainer.largest_component import COMPONENT_KINDS, KEPT, keep_largest
from halofeed.trainer.mask_rule import MaskRule
from halofeed.trainer.object_masks import encode_at, placement_in_source, predicted_masks
from halofeed.trainer.picture_bands import BandBlender, BandLabels
from halofeed.trainer.record_metadata import RecordMetadata, SplitMetadata
from halofeed.trainer.run_folder import Run, write_json
from halofeed.trainer.source_grid import (
    PNG_PIXELS,
    boxes_in_source,
    coco_results,
    labels_in_source,
    picture_labels_in_source,
    write_png,
    write_tiff,
)
from halofeed.trainer.task import DataFacts, Host, valid_host
from halofeed.trainer.tasks.classification import Classification
from halofeed.trainer.tasks.multi_label import CLASS_THRESHOLD, MultiLabel
from halofeed.trainer.whole_pictures import (
    BoxCollector,
    ClassCollector,
    TiledSource,
    has_picture_tiles,
    whole_pictures,
)
from halofeed.trainer.windows import ScanBlender

PREDICTIONS = "predictions.json"
PREDICTIONS_FORMAT = 1
SOURCE_NOUNS = {"picture": "picture", "volume": "scan", "clip": "clip"}
"""What is predicted, by the kind of image; a scan may be several records, its tiles."""
DETECTIONS, IMAGES, CATEGORIES = "detections.json", "images.json", "categories.json"
CLASSES = "classes.csv"
_PROBABILITY_DECIMALS = 6
_FIRST_CHANNEL = "_0000"
"""End of the name of a case's first channel in nnU-Net."""
WRITTEN_SCORE = 0.05
"""Smallest score of a box that is written, as Detectron2's `SCORE_THRESH_TEST` and torchvision's `box_score_thresh`.
A detector answers with up to 100 boxes per picture, and most of their scores are near 0.003."""


@dataclass(frozen=True, kw_only=True)
class PredictionOptions:
    """Options of predictions.

    Args:
        rule: rule by which boxes of different tiles of a picture are merged.
        min_score: smallest score of a box that is written; 0 writes all boxes, as a COCO evaluation needs them.
        geojson: also write `KEY.geojson` for each picture: boxes, or outlines of masks or classes.
        masks: rule by which blended windows become masks.
        with_rules: write only the largest component of the classes for which the run has proved it.
        class_threshold: smallest mean probability of a class over a picture's tiles that counts as predicted, where a
            picture may have several classes. `predict` takes that of the run's task.
        source: path of the new files from which the data set was converted for this prediction only; predictions.json
            then names it in place of the data set, which will be deleted.
    """

    rule: MergeRule = field(default_factory=MergeRule)
    min_score: float = WRITTEN_SCORE
    geojson: bool = False
    masks: MaskRule = field(default_factory=MaskRule)
    with_rules: bool = True
    class_threshold: float = CLASS_THRESHOLD
    source: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.min_score <= 1:
            raise UsageError(f"--min-score {self.min_score}: expected a number from 0 to 1")


PredictionRow = Mapping[str, NDArray[Any]]
"""Predictions of one record by name, without the batch axis."""


def predict(
    run: Run | Sequence[Run],
    data: str | Path,
    split: str,
    folder: str | Path,
    *,
    which: str = "best",
    overwrite: bool = False,
    options: PredictionOptions | None = None,
) -> dict[str, Any]:
    """Predict every record of a split and write the predictions on the grid of the source files.

    The tiles of a scan are blended. In a run of several processes all of them predict and the first one writes.

    Args:
        run: run that trained the model; several predict the mean of their probabilities.
        data: version folder of a data set that was converted like the run's own; labels and image size may differ.
        split: name of the split.
        folder: output folder, written atomically.
        which: checkpoint: "best", "last" or a step.
        overwrite: replace earlier predictions.
        options: which boxes are written, and how those of tiles are merged.

    Returns:
        The content of predictions.json; empty in processes that do not write.

    Raises:
        UsageError: the data set does not fit the model, or the folder holds other files.
    """
    folder = Path(folder).absolute()
    _result_folder(folder, overwrite).check()
    options = options or PredictionOptions()
    runs = [run] if isinstance(run, Run) else list(run)
    loaded = load_runs(runs, data, split, which=which, with_probabilities=True)
    batches = ((batch.predictions, batch.truth) for batch in loaded.predictions())
    # All processes take part in the collectives of each batch, and the first one writes.
    if jax.process_index():
        for _ in batches:
            pass
        return {}
    description: dict[str, Any] = {
        "run": ",".join(str(one.folder) for one in runs),
        "checkpoint": loaded.steps if isinstance(loaded, Ensemble) else loaded.step,
    }
    options = replace(options, masks=loaded.mask_rule, class_threshold=loaded.class_threshold)
    # Rules may be proved on complete pictures and asked for on tiles, whose writer does not know them.
    kept = loaded.kept if options.with_rules and loaded.can_have_rules else frozenset[int]()
    if kept:
        description[KEPT] = [loaded.facts.labels.get(label, f"class {label}") for label in sorted(kept)]
    return predict_batches(
        batches,
        data,
        split,
        folder,
        facts=loaded.facts,
        description=description,
        overwrite=overwrite,
        options=options,
        kept=kept,
    )


def predict_batches(
    batches: Iterable[tuple[Host, Host]],
    data: str | Path,
    split: str,
    folder: str | Path,
    *,
    facts: DataFacts,
    description: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    options: PredictionOptions | None = None,
    kept: frozenset[int] = frozenset(),
) -> dict[str, Any]:
    """Write predictions of any model on the grid of the source files.

    Args:
        batches: predictions and ground truth of each batch; of the ground truth only `id`, uint32 [batch, 2], and
            `valid`, bool [batch], are used. Every record of the split must occur once, in any order. Predictions are

            - detection: `boxes` [batch, n, 4] as shares of the image (ymin, xmin, ymax, xmax), `classes` int [batch, n]
              from 1, `scores` [batch, n] and `num_detections` [batch]; with masks also `masks` uint8 [batch, n, rows,
              columns], 255 times the probability at every `mask_stride`-th pixel, and `mask_stride` int [batch];
            - classification: `probabilities` [batch, class] and `label` [batch], or `labels` [batch, class] of 0 and 1
              where an image may have several classes (`facts.multi_label`);
            - segmentation: `probabilities` [batch, ..., class] or `label` [batch, ...] on the image's grid. Tiles in
              the order of their scans need the least memory.
        data: version folder of the data set.
        split: name of the split.
        folder: output folder, written atomically.
        facts: task and labels of the model.
        description: further members of predictions.json.
        overwrite: replace earlier predictions.
        options: which boxes are written, and how those of tiles are merged.
        kept: segmentation of volumes and pictures: classes of which only the largest component is written.

    Returns:
        The content of predictions.json.

    Raises:
        UsageError: the folder holds other files, or a record is not in the split.
        JobError: a record of the split was not predicted, or predicted twice.
    """
    metadata, options = SplitMetadata(data, split), options or PredictionOptions()
    open_writer = writer_of(facts, metadata, options, kept)
    with (
        _result_folder(Path(folder), overwrite).replaced() as temporary,
        open_writer(temporary, metadata, facts.labels) as writer,
        closing(StatusLine()) as line,
    ):
        predicted_ids: set[int] = set()
        finished, total = 0, plural(writer.total, SOURCE_NOUNS[metadata.manifest.kind.name])
        in_parts = writer.total != len(metadata)
        records = "tiles" if has_picture_tiles(metadata) else "records"
        for predictions, truth in batches:
            for row in np.flatnonzero(valid_host(truth)).tolist():
                record_id = int(join_id(truth["id"][row]))
                if record_id in predicted_ids:
                    raise JobError(f"id {record_id}: was predicted twice")
                predicted_ids.add(record_id)
                rows = {key: value[row] for key, value in predictions.items()}
                finished += writer.add(metadata.of_id(record_id), rows)
                # A whole picture may have thousands of tiles, during which the number of pictures stays the same.
                parts = f"{len(predicted_ids):,} of {len(metadata):,} {records}; " if in_parts else ""
                line.update(f"{parts}{finished:,} of {total} predicted".format)
        if len(predicted_ids) != len(metadata):
            raise JobError(f"split {split!r}: {len(predicted_ids)} of {len(metadata)} records were predicted")
        document = {
            "format": PREDICTIONS_FORMAT,
            **(description or {}),
            **_origin(data, metadata, options),
            "task": facts.task,
            "labels": label_entries(facts.labels),
            "records": len(predicted_ids),
            "kind": metadata.manifest.kind.name,
            "sources": finished,
            **({"tiles_dropped": metadata.dropped_tiles} if has_picture_tiles(metadata) else {}),
            **writer.finish(),
        }
        write_json(temporary / PREDICTIONS, document)
    return document


def _origin(data: str | Path, metadata: SplitMetadata, options: PredictionOptions) -> dict[str, str]:
    """Return the members of predictions.json that say what was predicted."""
    if options.source is not None:
        return {"source": options.source}
    named = {"data_name": metadata.manifest.name, "data_version": metadata.manifest.version}
    return {"data": str(data), **named, "split": metadata.split}


def _result_folder(folder: Path, overwrite: bool) -> ResultFolder:
    return ResultFolder(path=folder, marker=PREDICTIONS, holds="predictions", overwrite=overwrite)


class PredictionWriter(ExitStack):
    """Base class of writers: a context manager that gets one record at a time and closes its files at the end.

    Args:
        folder: output folder.
        metadata: metadata of the split.
        labels: class names by id.
    """

    def __init__(self, folder: Path, metadata: SplitMetadata, labels: Mapping[int, str]) -> None:
        super().__init__()
        self._folder, self._metadata, self._labels = folder, metadata, labels
        self.total = len(metadata)
        """Number of pictures, scans or clips to write."""

    @abstractmethod
    def add(self, record: RecordMetadata, row: PredictionRow) -> bool:
        """Write the predictions of a record and return True, or keep them until its scan is complete."""

    @abstractmethod
    def finish(self) -> dict[str, Any]:
        """Write the rest and return the members of predictions.json that describe the files."""


class _JsonList:
    """List in a JSON file, written entry by entry."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.count = 0

    def add(self, entry: Mapping[str, Any]) -> None:
        """Write an entry."""
        self._stream.write(f"{',' if self.count else '['}\n{json.dumps(entry)}")
        self.count += 1

    def end(self) -> None:
        """Write the end of the list."""
        self._stream.write("\n]\n" if self.count else "[]\n")


class DetectionWriter(PredictionWriter):
    """Writer of `detections.json`, a COCO results file, and of the lists that its ids refer to.

    `images.json` has COCO's entry of each picture, with the path of its file, and `categories.json` the class names.
    """

    def __init__(
        self,
        folder: Path,
        metadata: SplitMetadata,
        labels: Mapping[int, str],
        options: PredictionOptions | None = None,
    ) -> None:
        super().__init__(folder, metadata, labels)
        self._options = options or PredictionOptions()
        self._size = metadata.manifest.field("image").shape[:2]
        self._left_out, self._highest_left_out = 0, 0.0
        atomic_write(folder / CATEGORIES, (json.dumps(label_entries(labels), indent=1) + "\n").encode())
        self._boxes, self._images = (
            _JsonList(self.enter_context(open_path(folder / name, "x", encoding="utf-8")))
            for name in (DETECTIONS, IMAGES)
        )

    def add(self, record: RecordMetadata, row: PredictionRow) -> bool:
        """Write the first `num_detections` boxes."""
        count = int(row["num_detections"])
        boxes = boxes_in_source(
            row["boxes"][:count], record.numbers["transform"], self._size, record.source_size
        )
        classes, scores = row["classes"][:count], row["scores"][:count]
        entries = coco_results(record.id, boxes, classes, scores)
        self._write(
            record.id, record.source, record.source_size, self._with_masks(entries, boxes, record, row)
        )
        return True

    def _with_masks(
        self,
        entries: list[dict[str, Any]],
        boxes: NDArray[np.float64],
        record: RecordMetadata,
        row: PredictionRow,
    ) -> Iterator[dict[str, Any]]:
        """Yield the entries of `coco_results`, with run lengths in `segmentation` where the model predicts masks."""
        if "masks" not in row:
            yield from entries
            return
        placement = placement_in_source(record, self._size)
        stride = int(row["mask_stride"])
        # `coco_results` leaves out boxes of no area.
        with_area = np.flatnonzero(np.all(boxes[:, :2] < boxes[:, 2:], axis=1))
        for entry, number in zip(entries, with_area.tolist(), strict=True):
            # A mask takes longer than the rest, and boxes below the score are not written.
            if entry["score"] >= self._options.min_score:
                (mask,) = predicted_masks(row["masks"][number][None], stride, placement)
                entry["segmentation"] = mask
            yield entry

    def _write(
        self, picture_id: int, source: str, size: tuple[int, int], entries: Iterable[dict[str, Any]]
    ) -> None:
        """Write the entry of a picture, and those of its boxes that have the score, each with the picture's file."""
        self._images.add({"id": picture_id, "file_name": source, "height": size[0], "width": size[1]})
        for entry in entries:
            if entry["score"] >= self._options.min_score:
                # COCO's results need the id; readers ignore further members (pycocotools' loadRes).
                self._boxes.add({**entry, "file_name": source})
            else:
                self._left_out += 1
                self._highest_left_out = max(self._highest_left_out, entry["score"])

    def finish(self) -> dict[str, Any]:
        """Close the JSON lists."""
        self._boxes.end()
        self._images.end()
        files = {"detections": DETECTIONS, "images": IMAGES, "categories": CATEGORIES}
        counts: dict[str, Any] = {"boxes": self._boxes.count, "boxes_left_out": self._left_out}
        if self._left_out:
            counts["highest_score_left_out"] = self._highest_left_out
        return {**files, **counts, "min_score": self._options.min_score}


class WholeDetectionWriter(DetectionWriter):
    """Writer of the same files for pictures that are stored as tiles: boxes are merged, and each picture occurs once.

    Memory: see `BoxCollector`.
    """

    def __init__(
        self,
        folder: Path,
        metadata: SplitMetadata,
        labels: Mapping[int, str],
        options: PredictionOptions | None = None,
    ) -> None:
        super().__init__(folder, metadata, labels, options)
        self._pictures = whole_pictures(metadata)
        self._collector = BoxCollector(metadata, self._options.rule, self._pictures, self._options.min_score)
        self.total = len(self._pictures)
        self._geojson = _geojson_of(self._options, folder, self._pictures)

    def add(self, record: RecordMetadata, row: PredictionRow) -> bool:
        """Add a tile; write its picture after the last one."""
        done = self._collector.add(record, row)
        if done is None:
            return False
        picture, found, masks = done.picture, done.found, done.masks
        if self._geojson is not None:
            names = [self._labels.get(label, f"class {label}") for label in found.classes.tolist()]
            objects = PredictedObjects(boxes=found.boxes, classes=names, scores=found.scores, masks=masks)
            self._geojson.write(record, objects)
        entries = coco_results(picture.id, found.boxes, found.classes, found.scores)
        for entry, mask in zip(entries, masks or (), strict=masks is not None):
            entry["segmentation"] = encode_at(*mask, picture.size)
        self._write(picture.id, picture.source, picture.size, entries)
        return True

    def finish(self) -> dict[str, Any]:
        """Close the JSON lists, and state how boxes were merged; `boxes_left_out` counts boxes of tiles."""
        self._left_out += self._collector.left_out
        self._highest_left_out = max(self._highest_left_out, self._collector.highest_left_out)
        rule = self._options.rule
        merge = {"method": rule.method, "overlap": rule.overlap, "threshold": rule.limit}
        return {**super().finish(), "merge": merge, **_listed(self._geojson)}


class _GeojsonFiles:
    """Files `KEY.geojson` of pictures, on the map where the records state their place."""

    def __init__(self, folder: Path, pictures: Mapping[str, TiledSource]) -> None:
        self._folder = folder
        self._names = file_names({key: picture.id for key, picture in pictures.items()}, ".geojson")
        self.files: list[dict[str, Any]] = []

    def write(self, record: RecordMetadata, predicted: PredictedObjects | PredictedLabels) -> None:
        """Write the file of a picture, of which the record is a tile."""
        name, source = self._names[record.key], printable(record.source)
        count = write_geojson(self._folder / name, predicted, record.georeference, source=source)
        self.files.append({"file": name, **_source_names(record), "features": count})


def _geojson_of(
    options: PredictionOptions, folder: Path, pictures: Mapping[str, TiledSource]
) -> _GeojsonFiles | None:
    return _GeojsonFiles(folder, pictures) if options.geojson else None


def _listed(files: _GeojsonFiles | None) -> dict[str, Any]:
    return {} if files is None else {"geojson": files.files}


_CLASSES_COLUMN = "classes"
_CHOSEN_COLUMNS = {False: ("class", "probability"), True: (_CLASSES_COLUMN,)}
"""Columns of what was chosen, by whether an image may have several classes."""


class ClassificationWriter(PredictionWriter):
    """Writer of `classes.csv`: id, key, file, most probable class, its probability, and that of every class.

    Where an image may have several classes, `classes` is a JSON list of the chosen ones, which `halofeed convert`
    reads as the classes of a table.

    Args:
        multi_label: whether an image may have several classes.
    """

    def __init__(
        self, folder: Path, metadata: SplitMetadata, labels: Mapping[int, str], multi_label: bool = False
    ) -> None:
        super().__init__(folder, metadata, labels)
        self._multi_label = multi_label
        self._names = [labels.get(label, f"class {label}") for label in range(max(labels) + 1)]
        file = folder / CLASSES
        stream = self.enter_context(
            open_path(file, "x", newline="", encoding="utf-8", errors="surrogateescape")
        )
        self._writer = csv.writer(stream)
        chosen = _CHOSEN_COLUMNS[multi_label]
        self._writer.writerow(["id", "key", "source", *chosen, *(f"p({name})" for name in self._names)])

    def add(self, record: RecordMetadata, row: PredictionRow) -> bool:
        """Write one line."""
        self._write(record, row["labels"] if self._multi_label else row["label"], row["probabilities"])
        return True

    def _write(
        self, source: RecordMetadata | TiledSource, chosen: NDArray[Any], probabilities: NDArray[Any]
    ) -> None:
        """Write the line of an image, of which the label, or 0 or 1 for each class, was chosen."""
        rounded = [round(value, _PROBABILITY_DECIMALS) for value in probabilities.astype(float).tolist()]
        names = source.id, source.key, source.source
        if self._multi_label:
            found = [self._names[label] for label in np.flatnonzero(chosen).tolist()]
            self._writer.writerow([*names, json.dumps(found, ensure_ascii=False), *rounded])
        else:
            self._writer.writerow([*names, self._names[int(chosen)], rounded[int(chosen)], *rounded])

    def finish(self) -> dict[str, Any]:
        """Return the name of the file."""
        return {"classes": CLASSES}


class WholeClassWriter(ClassificationWriter):
    """Writer of the same file for pictures that are stored as tiles: a line has the mean probabilities of the tiles."""

    def __init__(
        self,
        folder: Path,
        metadata: SplitMetadata,
        labels: Mapping[int, str],
        multi_label: bool = False,
        threshold: float = CLASS_THRESHOLD,
    ) -> None:
        super().__init__(folder, metadata, labels, multi_label)
        names = tuple(self._names)
        self._task = (
            MultiLabel(labels=names, threshold=threshold) if multi_label else Classification(labels=names)
        )
        self._collector = ClassCollector(whole_pictures(metadata))
        self.total = len(self._collector.pictures)

    def add(self, record: RecordMetadata, row: PredictionRow) -> bool:
        """Add a tile; write the line of its picture after the last one."""
        done = self._collector.add(record.key, row["probabilities"])
        if done is None:
            return False
        picture, mean = done
        decided = self._task.decide(mean[None])
        self._write(picture, decided["labels" if self._multi_label else "label"][0], mean)
        return True


class SegmentationWriter(PredictionWriter):
    """Writer of class indices on the source's own grid: `KEY.nii.gz` for a scan, `KEY.png` for a picture.

    The probabilities of a scan's tiles are blended. Memory: one scan at a time if tiles come scan by scan, else all
    incomplete scans; see `ScanBlender` and `labels_in_source`.

    Args:
        kept: classes of which only the largest component on the source's grid is written.

    Raises:
        UsageError: two sources would have the same file name.
    """

    def __init__(
        self,
        folder: Path,
        metadata: SplitMetadata,
        labels: Mapping[int, str],
        options: PredictionOptions | None = None,
        kept: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(folder, metadata, labels)
        self._rule, self._kept = (options or PredictionOptions()).masks, kept
        keys: dict[str, int] = {}
        for record in metadata:
            keys.setdefault(record.key, record.id)
        self._scans: ScanBlender | None = None
        if metadata.manifest.kind.name == "volume":
            self._scans = ScanBlender(
                metadata.tiles(), self._rule.outputs(max(labels) + 1), self._rule.window_weights
            )
        extension = ".png" if self._scans is None else ".nii.gz"
        layout = str(metadata.manifest.recipe.get("layout", ""))
        cases = case_names(keys, layout, are_scans=self._scans is not None)
        self._names = file_names(keys, extension, cases)
        self.total = len(keys)
        self._files: list[dict[str, Any]] = []

    def add(self, record: RecordMetadata, row: PredictionRow) -> bool:
        """Write the file of a picture, or of a scan after its last tile."""
        predicted = self._rule.of_row(row)
        if self._scans is None:
            label = _picture_labels(record, self._rule.labels(predicted))
            write_png(self._file(record), keep_largest(label, self._kept))
            return True
        scan = self._scans.add(record.key, int(record.numbers["tile"]), predicted)
        if scan is None:
            return False
        predicted, stored, extent = scan
        label = labels_in_source(self._rule.labels(predicted), stored, record.source_grid, extent)
        label = keep_largest(label, self._kept)
        write_nifti(self._file(record), label, record.numbers["source_affine"])
        return True

    def finish(self) -> dict[str, Any]:
        """Return the list of files; raise JobError if a tile of a scan was not predicted."""
        if self._scans is not None and self._scans.incomplete:
            key, blender = next(iter(self._scans.incomplete.items()))
            raise JobError(f"{key}: tiles {blender.missing} were not predicted; its mask cannot be made")
        return {"masks": self._files}

    def _file(self, record: RecordMetadata) -> Path:
        name = self._names[record.key]
        self._files.append({"file": name, **_source_names(record)})
        return self._folder / name


class WholeMaskWriter(PredictionWriter):
    """Writer of class indices in pixels of the source file for pictures that are stored as tiles: `KEY.png`.

    Pictures of more than `PNG_PIXELS` become `KEY.tif`. Pixels that no tile shows are background. Memory: see
    `BandBlender`; the labels are in a temporary file until their picture is complete.

    Raises:
        UsageError: two sources would have the same file name.
    """

    def __init__(
        self,
        folder: Path,
        metadata: SplitMetadata,
        labels: Mapping[int, str],
        options: PredictionOptions | None = None,
    ) -> None:
        super().__init__(folder, metadata, labels)
        self._pictures, self._tiles = whole_pictures(metadata), metadata.picture_tiles()
        self._geojson = _geojson_of(options or PredictionOptions(), folder, self._pictures)
        self._names = file_names({key: picture.id for key, picture in self._pictures.items()}, "")
        self._classes, self._rule = max(labels) + 1, (options or PredictionOptions()).masks
        self._open: dict[str, tuple[BandBlender, BandLabels, NDArray[Any]]] = {}
        self._files: list[dict[str, Any]] = []
        self.total = len(self._pictures)

    def add(self, record: RecordMetadata, row: PredictionRow) -> bool:
        """Add a tile; write the file of its picture after the last one."""
        predicted = self._rule.of_row(row)
        if record.key not in self._open:
            self._open[record.key] = self._opened(record, predicted)
        blender, rows, label = self._open[record.key]
        for band in blender.add(int(record.numbers["tile"]), predicted):
            rows.add(band)
        if blender.missing:
            return False
        del self._open[record.key]
        is_small = label.size <= PNG_PIXELS
        name = f"{self._names[record.key]}{'.png' if is_small else '.tif'}"
        (write_png if is_small else write_tiff)(self._folder / name, label)
        if self._geojson is not None:
            names = {number: name for number, name in self._labels.items() if number}
            self._geojson.write(record, PredictedLabels(labels=label, names=names))
        self._files.append({"file": name, **_source_names(record)})
        return True

    def _opened(
        self, record: RecordMetadata, predicted: NDArray[Any]
    ) -> tuple[BandBlender, BandLabels, NDArray[Any]]:
        size = predicted.shape[0], predicted.shape[1]
        outputs = self._rule.outputs(self._classes)
        blender = BandBlender(
            self._tiles[record.key], record.whole_size, size, outputs, weights=self._rule.window_weights
        )
        label = temporary_array(record.source_size, np.uint8 if self._classes <= 256 else np.uint16)
        return blender, BandLabels(label, record.whole_size, record.numbers["transform"], self._rule), label

    def finish(self) -> dict[str, Any]:
        """Return the list of files."""
        return {"masks": self._files, **_listed(self._geojson)}


class ClipMaskWriter(PredictionWriter):
    """Writer of a PNG of class indices for each frame of a clip, in the source's size: `KEY/CLIP/FRAME.png`.

    CLIP counts the clips of a source from 0, FRAME the frames of a clip. predictions.json has the time of each frame
    (`times_s`), -1 if unknown.

    Raises:
        UsageError: two sources would have the same file name.
    """

    def __init__(
        self,
        folder: Path,
        metadata: SplitMetadata,
        labels: Mapping[int, str],
        options: PredictionOptions | None = None,
    ) -> None:
        super().__init__(folder, metadata, labels)
        self._rule = (options or PredictionOptions()).masks
        self._names = file_names({record.key: record.id for record in metadata}, "")
        self._files: list[dict[str, Any]] = []

    def add(self, record: RecordMetadata, row: PredictionRow) -> bool:
        """Write the frames of a clip."""
        name = f"{self._names[record.key]}/{int(record.numbers['tile'])}"
        (self._folder / name).mkdir(parents=True)
        for number, frame in enumerate(self._rule.labels(self._rule.of_row(row))):
            write_png(self._folder / name / f"{number:04d}.png", _picture_labels(record, frame))
        times = record.numbers["times_s"].tolist()
        self._files.append({"folder": name, **_source_names(record), "times_s": times})
        return True

    def finish(self) -> dict[str, Any]:
        """Return the list of folders."""
        return {"masks": self._files}


def _picture_labels(record: RecordMetadata, predicted: NDArray[Any]) -> NDArray[Any]:
    transform = record.numbers["transform"]
    return picture_labels_in_source(predicted, transform, record.source_size, record.picture_size)


def _source_names(record: RecordMetadata) -> dict[str, str]:
    return {"key": printable(record.key), "source": printable(record.source)}


MASK_WRITERS: dict[str, type[SegmentationWriter] | type[ClipMaskWriter]] = {
    "picture": SegmentationWriter,
    "volume": SegmentationWriter,
    "clip": ClipMaskWriter,
}
"""Writers of masks by kind of image."""

OpenWriter = Callable[[Path, SplitMetadata, Mapping[int, str]], PredictionWriter]


def writer_of(
    facts: DataFacts,
    metadata: SplitMetadata,
    options: PredictionOptions,
    kept: frozenset[int] = frozenset(),
) -> OpenWriter:
    """Return the writer of a model's predictions for the kind of image of a split, and for its tiles."""
    is_tiled, task = has_picture_tiles(metadata), facts.task
    if options.geojson and (not is_tiled or task == "classification"):
        raise UsageError(
            "--geojson: is for boxes and masks of pictures that are stored as tiles (--fit tiles)"
        )
    if task == "detection":
        return partial(WholeDetectionWriter if is_tiled else DetectionWriter, options=options)
    if task == "classification":
        if is_tiled:
            return partial(WholeClassWriter, multi_label=facts.multi_label, threshold=options.class_threshold)
        return partial(ClassificationWriter, multi_label=facts.multi_label)
    if is_tiled:
        return partial(WholeMaskWriter, options=options)
    kind = metadata.manifest.kind.name
    # Components are proved for pictures and scans alone.
    if kept and kind in COMPONENT_KINDS:
        return partial(SegmentationWriter, options=options, kept=kept)
    return partial(MASK_WRITERS[kind], options=options)


def case_names(keys: Iterable[str], layout: str, *, are_scans: bool) -> dict[str, str]:
    """Return the case of each key if all are first channels of nnU-Net, CASE_0000, of different cases; else {}.

    nnU-Net looks for the label and the prediction of CASE_0000.nii.gz in CASE.nii.gz, without the image's folder.

    Args:
        keys: names of the sources.
        layout: layout of the data set. New scans are predicted without a dataset.json, so that names alone show cases.
        are_scans: whether the sources are scans; the name of a picture, such as a frame, may end so by chance.

    Source: nnU-Net, documentation/dataset_format.md and documentation/how_to_use_nnunet.md (inference format).

    >>> case_names(["imagesTs/ph_020_0000.nii.gz"], "pairs", are_scans=True)
    {'imagesTs/ph_020_0000.nii.gz': 'ph_020'}
    >>> case_names(["a_0000.nii.gz", "b.nii.gz"], "pairs", are_scans=True)
    {}
    """
    stems = {key: stem_of(key) for key in keys}
    # A case of nnU-Net may have no number where its data set has one channel.
    is_numbered = are_scans and all(stem.endswith(_FIRST_CHANNEL) for stem in stems.values())
    if not is_numbered and layout != "nnunet":
        return {}
    cases = {key: stem.removesuffix(_FIRST_CHANNEL) for key, stem in stems.items()}
    names = {safe_name(case).casefold() for case in cases.values()}
    return cases if len(names) == len(cases) and all(cases.values()) else {}


def file_names(
    keys: Mapping[str, int], extension: str, named: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return a safe file name for each key: no name contains a path separator.

    The key's extension is removed, and characters except letters, digits, dots, dashes and underscores become an
    underscore. The record's id is appended to names that would be equal, ignoring case.

    Args:
        keys: record id by key.
        extension: extension of the files.
        named: names to take in place of some keys.

    Raises:
        UsageError: two names are equal even with their ids.

    >>> file_names({"a/b.nii.gz": 1, "../B": 2, "a_b": 3}, ".png")
    {'a/b.nii.gz': 'a_b-1.png', '../B': 'B.png', 'a_b': 'a_b-3.png'}
    """
    named = named or {}
    plain = {key: safe_name(named.get(key, key)) for key in keys}
    # Names that differ in case are one file on macOS and Windows.
    counts = Counter(name.casefold() for name in plain.values())
    names = {
        key: name if counts[name.casefold()] == 1 else f"{name}-{keys[key]}" for key, name in plain.items()
    }
    owners: dict[str, str] = {}
    for key, name in names.items():
        other = owners.setdefault(name.casefold(), key)
        # Two sources in one file would lose one of them.
        if other != key:
            raise UsageError(f"{other} and {key}: would both become {name}{extension}; give one another id")
    return {key: f"{name}{extension}" for key, name in names.items()}


def label_entries(labels: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return class ids and names as a JSON list."""
    return [{"id": label, "name": name} for label, name in sorted(labels.items())]
