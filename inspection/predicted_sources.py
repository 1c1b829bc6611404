"""Predictions of a folder beside the records that they were made from: each source file is one example to draw.

Predictions are in pixels or voxels of the source, and are brought back to the grid on which `shown_sources` draws.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, overload

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.dataset_files import open_files, open_manifest
from halofeed.inspection.html.run_gallery import MIN_SCORE, RunExample
from halofeed.inspection.run_facts import ExampleEntry, LabelFacts
from halofeed.inspection.shown_sources import SHOWN, TRUTH, ExampleArrays, ShownSource, boxes_on, true_classes
from halofeed.inspection.stored_records import (
    StoredShard,
    integer_of,
    text_of,
)
from halofeed.prep.formats.region.region_formats import open_regions
from halofeed.prep.formats.volume_formats import open_mask
from halofeed.prep.geometry.orientation import plan_onto
from halofeed.prep.sources.files import LocalFiles
from halofeed.prep.voxels.masks import draw_mask
from halofeed.prep.voxels.resample import apply_mask
from halofeed.schemas import keys
from halofeed.schemas.fields import Field
from halofeed.schemas.tfexample import Decoded
from halofeed.storage.atomic_files import read_regular
from halofeed.storage.paths import load_text
from halofeed.system.errors import CorruptFileError, UsageError
from halofeed.system.wording import printable

PREDICTIONS_FILE = "predictions.json"
_MASK_BYTES = 1 << 31
_MASK_ROWS = 512
"""Rows of a TIFF of classes that are in memory at once."""
_NAME_KEYS = frozenset({keys.KEY_SOURCE, keys.FILENAME, keys.TILE})
_LARGE_KEYS = frozenset({keys.ENCODED, keys.LABEL})


@dataclass(frozen=True, kw_only=True)
class PredictionFacts(LabelFacts):
    """Facts of a folder of predictions.

    Args:
        folder: the folder that `halofeed predict --out` made.
        document: content of predictions.json.
    """

    folder: Path
    document: Mapping[str, Any]

    @property
    def task(self) -> str:
        """Return the task of the model."""
        return str(self.document["task"])

    @property
    def kind(self) -> str:
        """Return the kind of the images."""
        return str(self.document["kind"])

    @property
    def labels(self) -> dict[int, str]:
        """Return the class names by id."""
        return {int(entry["id"]): str(entry["name"]) for entry in self.document["labels"]}


def read_prediction_facts(folder: str | Path) -> PredictionFacts:
    """Read predictions.json; UsageError if the folder has none."""
    file = Path(folder) / PREDICTIONS_FILE
    if not file.is_file():
        raise UsageError(
            f"{folder}: holds no {PREDICTIONS_FILE}; name the folder of `halofeed predict --out`"
        )
    return PredictionFacts(folder=Path(folder), document=json.loads(load_text(file, "utf-8")))


@dataclass(frozen=True, kw_only=True)
class PredictedSource:
    """A source file with its records.

    Args:
        id: id of its first record, which stands for it in files of predictions.
        key: name in the source data.
        source: path of the file, relative to the folder of images.
        tile: number of its first record in the file.
        records: (number of the shard, row) of each record.
    """

    id: int
    key: str
    source: str
    tile: int
    records: tuple[tuple[int, int], ...]


class _Records(Sequence[Decoded]):
    """Records of a source, each read when it is used: all tiles of a large picture do not fit into memory."""

    def __init__(self, read: Callable[[int, int], Decoded], places: Sequence[tuple[int, int]]) -> None:
        self._read, self._places = read, places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, at: int) -> Decoded: ...
    @overload
    def __getitem__(self, at: slice) -> _Records: ...
    def __getitem__(self, at: int | slice) -> Decoded | _Records:
        if isinstance(at, slice):
            return _Records(self._read, self._places[at])
        return self._read(*self._places[at])


class PredictedSplit:
    """Sources of a split with their predictions.

    Args:
        facts: facts of the folder of predictions.
        data: version folder or address of the data set that was predicted.
        split: name of the split.
        min_score: boxes with a lower score are not drawn.

    Raises:
        UsageError, ManifestError, CorruptFileError: as for a data set's report.
    """

    def __init__(
        self, facts: PredictionFacts, data: str | Path, split: str, *, min_score: float = MIN_SCORE
    ) -> None:
        self.facts, self.manifest = facts, open_manifest(data)
        self._min_score = min_score
        self._place = str(data)
        files = open_files(data)
        self._shards = [StoredShard(files, shard) for shard in self.manifest.split(split).shards]
        self._predicted = _PREDICTED.get(facts.task, _predicted_classes)(facts)
        # New files are converted without their labels, classification even for another task.
        self.is_labelled = (
            facts.document.get("source") is None
            and self.manifest.task == facts.task
            and not self.manifest.is_for_prediction(split)
        )

    @cached_property
    def sources(self) -> list[PredictedSource]:
        """Sources in the order of their names; tiles that are predicted as a whole are one source."""
        found: dict[Any, PredictedSource] = {}
        for number, shard in enumerate(self._shards):
            for row, record_id in enumerate(shard.index.ids.tolist()):
                features = shard.small_features(row, _NAME_KEYS)
                key, source = (text_of(features, name) or "" for name in (keys.KEY_SOURCE, keys.FILENAME))
                one = PredictedSource(
                    id=record_id,
                    key=key,
                    source=source,
                    tile=integer_of(features, keys.TILE) or 0,
                    records=((number, row),),
                )
                name = key if self._is_joined else record_id
                known = found.get(name)
                found[name] = one if known is None else replace(known, records=(*known.records, *one.records))
        return sorted(found.values(), key=lambda source: (source.source, source.tile, source.key))

    @property
    def _is_joined(self) -> bool:
        """Return whether the tiles of a source are predicted as a whole."""
        if self.manifest.kind.name == "volume":
            return self.facts.task == "segmentation"
        is_tiled = any(field.name == "tile" for field in self.manifest.fields)
        return self.manifest.kind.name == "picture" and is_tiled

    def example(self, source: PredictedSource, *, with_pixels: bool = True) -> RunExample:
        """Return a source with its truth and its predictions; without pixels its image is one value.

        Raises:
            CorruptFileError: a record is not what was written.
            SourceError: a mask cannot be read.
        """
        needs_all = with_pixels or self.facts.task not in ("detection", "classification")
        features = _Records(partial(self._features, needs_all=needs_all), source.records)
        try:
            shown = SHOWN[self.manifest.kind.name](features, self.manifest, with_pixels)
        except (TypeError, ValueError, IndexError) as error:
            raise CorruptFileError(
                f"{source.source}: its record does not fit the manifest ({error}); run `halofeed verify {self._place}`"
            ) from error
        arrays = self._predicted(source, shown)
        if self.is_labelled:
            arrays |= TRUTH.get(self.facts.task, true_classes)(features, shown, self.manifest)
        entry = ExampleEntry(
            file=self.facts.folder, id=source.id, score=None, reason="", source=printable(source.source)
        )
        return RunExample(
            entry=entry,
            image=shown.image,
            arrays=arrays,
            spacing_mm=shown.spacing_mm,
            recipe=self.manifest.recipe,
            is_labelled=self.is_labelled,
            min_score=self._min_score,
        )

    def _features(self, shard: int, row: int, *, needs_all: bool) -> Decoded:
        if needs_all:
            return self._shards[shard].features(row)
        return self._shards[shard].small_features(row, self._small_keys)

    @cached_property
    def _small_keys(self) -> frozenset[str]:
        fields: Iterable[Field] = self.manifest.fields
        return frozenset(key for field in fields for key in field.keys) - _LARGE_KEYS


# What was predicted --------------------------------------------------------------------------------------

ReadPrediction = Callable[[PredictedSource, ShownSource], ExampleArrays]
"""Function that returns the predictions of a source on the grid on which it is shown."""


def _predicted_boxes(facts: PredictionFacts) -> ReadPrediction:
    found: dict[int, list[tuple[float, ...]]] = {}
    masks: dict[int, list[dict[str, Any]]] = {}
    for entry in json.loads(load_text(facts.folder / str(facts.document["detections"]), "utf-8")):
        left, top, width, height = entry["bbox"]
        box = (top, left, top + height, left + width)
        found.setdefault(entry["image_id"], []).append((*box, entry["category_id"], entry["score"]))
        if "segmentation" in entry:
            masks.setdefault(entry["image_id"], []).append(entry["segmentation"])

    def predicted(source: PredictedSource, shown: ShownSource) -> ExampleArrays:
        rows = np.array(found.get(source.id, []), np.float64).reshape(-1, 6)
        return {
            "predicted_boxes": boxes_on(shown, rows[:, :4]),
            "predicted_classes": rows[:, 4].astype(np.int64),
            "predicted_scores": rows[:, 5],
            **_predicted_objects(masks.get(source.id, []), rows[:, 5], shown),
        }

    return predicted


def _predicted_objects(
    masks: Sequence[Mapping[str, Any]], scores: NDArray[np.float64], shown: ShownSource
) -> ExampleArrays:
    """Return the number of the object, from 1, with the highest score at each pixel; nothing for a model of boxes."""
    if not masks or len(masks) != len(scores):
        return {}
    height, width = masks[0]["size"]
    numbers = np.zeros((height, width), np.uint16)
    for place in np.argsort(scores, kind="stable").tolist():
        numbers[draw_mask(masks[place], (height, width)) > 0] = place + 1

    def at(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[Any]:
        return np.asarray(numbers[np.ix_(rows.clip(0, height - 1), columns.clip(0, width - 1))])

    return {"predicted_objects": _classes_on(shown, at)}


_LAST_CHOSEN = ("classes", "probability")
"""Last column of `classes.csv` before the probabilities: with several classes per image, and with one."""


def _predicted_class(facts: PredictionFacts) -> ReadPrediction:
    text = load_text(facts.folder / str(facts.document["classes"]), "utf-8", "surrogateescape")
    head, *lines = csv.reader(io.StringIO(text, newline=""))
    first = next(head.index(name) for name in _LAST_CHOSEN if name in head) + 1
    names = [name.removeprefix("p(").removesuffix(")") for name in head[first:]]
    if "classes" in head[:first]:
        return _several_classes(lines, names, first)
    of_id = {
        int(line[0]): (names.index(line[head.index("class")]), np.array(line[first:], np.float64))
        for line in lines
    }

    def predicted(source: PredictedSource, shown: ShownSource) -> ExampleArrays:
        label, probabilities = of_id[source.id]
        return {"predicted_label": np.array(label), "predicted_probabilities": probabilities}

    return predicted


def _several_classes(lines: Sequence[Sequence[str]], names: Sequence[str], first: int) -> ReadPrediction:
    """Return the function that gives the chosen classes and all probabilities of a source.

    Args:
        lines: lines of `classes.csv`.
        names: names of the classes.
        first: number of the column of the first probability, after the list of the chosen classes.
    """
    of_id = {
        int(line[0]): (json.loads(line[first - 1]), np.array(line[first:], np.float64)) for line in lines
    }

    def predicted(source: PredictedSource, shown: ShownSource) -> ExampleArrays:
        chosen, probabilities = of_id[source.id]
        labels = np.array([name in chosen for name in names], np.uint8)
        return {"predicted_labels": labels, "predicted_probabilities": probabilities}

    return predicted


def _predicted_classes(facts: PredictionFacts) -> ReadPrediction:
    entries = {entry["key"]: entry for entry in facts.document["masks"] if "file" in entry}
    clips = {entry["folder"]: entry for entry in facts.document["masks"] if "folder" in entry}
    folders = {(entry["key"], int(name.rpartition("/")[2])): name for name, entry in clips.items()}

    def predicted(source: PredictedSource, shown: ShownSource) -> ExampleArrays:
        key = printable(source.key)
        if shown.grid is not None:
            mask = open_mask(LocalFiles(facts.folder), entries[key]["file"], shown.grid)
            label = apply_mask(plan_onto(mask.grid, shown.grid), mask.read())
        elif clips:
            folder = facts.folder / folders[key, source.tile]
            frames = [_mask_file(folder / f"{number:04d}.png") for number in range(shown.shape[0])]
            label = np.stack([_classes_on(shown, frame) for frame in frames])
        else:
            label = _classes_on(shown, _mask_file(facts.folder / entries[key]["file"]))
        if shown.ignored is not None:
            label = np.where(shown.ignored, 0, label)
        return {"predicted_label": label}

    return predicted


_PREDICTED: Mapping[str, Callable[[PredictionFacts], ReadPrediction]] = {
    "detection": _predicted_boxes,
    "classification": _predicted_class,
    "segmentation": _predicted_classes,
}

RowsAndColumns = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[Any]]
"""Function that returns the classes [row, column] of a mask at rows and columns of its file."""


def _mask_file(file: Path) -> RowsAndColumns:
    """Open a mask of a picture: a PNG, or a TIFF of which a few rows are read at a time."""
    if file.suffix == ".tif":
        return _large_mask(file)
    pixels = cv2.imdecode(np.frombuffer(read_regular(file, _MASK_BYTES), np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None or pixels.ndim != 2:
        raise CorruptFileError(f"{file}: expected a PNG of one channel; predict again")
    height, width = pixels.shape
    return lambda rows, columns: np.asarray(
        pixels[np.ix_(rows.clip(0, height - 1), columns.clip(0, width - 1))]
    )


def _large_mask(file: Path) -> RowsAndColumns:
    def read(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[Any]:
        with closing(open_regions(LocalFiles(file.parent), file.name)) as reader:
            height, width = reader.facts.size
            rows, columns = rows.clip(0, height - 1), columns.clip(0, width - 1)
            found = np.zeros((len(rows), len(columns)), np.uint16)
            strips = rows // _MASK_ROWS
            for strip in np.unique(strips).tolist():
                wanted = np.flatnonzero(strips == strip)
                top, bottom = int(rows[wanted].min()), int(rows[wanted].max()) + 1
                pixels = reader.read(0, top, 0, bottom - top, width)[..., 0]
                found[wanted] = pixels[np.ix_(rows[wanted] - top, columns)]
        return found

    return read


def _classes_on(shown: ShownSource, mask: RowsAndColumns) -> NDArray[Any]:
    """Return the class at the center of each drawn pixel; the picture may be turned by quarters against its file."""
    assert shown.to_source is not None
    matrix, offset = shown.to_source[:, :2], shown.to_source[:, 2]
    centers = [np.arange(side) + 0.5 for side in shown.shape[-2:]]
    is_turned = abs(matrix[0, 1]) > abs(matrix[0, 0])
    axes = (1, 0) if is_turned else (0, 1)
    rows, columns = (
        np.floor(matrix[at, axis] * centers[axis] + offset[at]).astype(np.int64)
        for at, axis in enumerate(axes)
    )
    return mask(rows, columns).T if is_turned else mask(rows, columns)
