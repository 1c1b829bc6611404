"""Predictions of a folder beside the records that they were made from: each source file is one example to draw.

Tiles are put together again, at most `CANVAS_SIDE` pixels long: pixels are averaged, classes are those at the centers
of the drawn pixels. Predictions are in pixels or voxels of the source, and are brought back to the stored grid.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.dataset_files import open_files, open_manifest
from halofeed.inspection.html.run_gallery import MIN_SCORE, RunExample
from halofeed.inspection.run_facts import ExampleEntry, LabelFacts
from halofeed.inspection.stored_records import (
    StoredShard,
    affine_of,
    array_of,
    extent_of,
    integer_of,
    label_map,
    spacing_of,
    stored_image,
    text_of,
)
from halofeed.prep.formats.region.region_formats import open_regions
from halofeed.prep.formats.volume_formats import open_mask
from halofeed.prep.geometry.orientation import plan_onto
from halofeed.prep.geometry.resize import apply_to_boxes
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.geometry.volume_plan import triple
from halofeed.prep.sources.files import LocalFiles
from halofeed.prep.voxels.intensity import as_numbers
from halofeed.prep.voxels.resample import apply_mask
from halofeed.schemas import keys
from halofeed.schemas.fields import Field
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tfexample import Decoded
from halofeed.storage.atomic_files import read_regular
from halofeed.storage.paths import load_text
from halofeed.system.errors import CorruptFileError, UsageError
from halofeed.system.wording import printable

PREDICTIONS_FILE = "predictions.json"
CANVAS_SIDE = 2048
"""Longest side of a drawn picture of tiles, in pixels."""
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


@dataclass(frozen=True, kw_only=True, eq=False)
class ShownSource:
    """The grid on which a source is drawn, with what its records hold there.

    Args:
        shape: shape of the grid, without channels.
        image: pixels or voxels [*shape, channel]; without them one value for all.
        label: class of each pixel or voxel [*shape]; None without a label.
        ignored: pixels or voxels whose class does not count; None if there are none.
        to_source: [2, 3], from (y, x, 1) on the grid of a picture to pixels of its file.
        grid: grid of a volume.
        spacing_mm: distance of its voxels.
    """

    shape: tuple[int, ...]
    image: NDArray[Any]
    label: NDArray[Any] | None = None
    ignored: NDArray[np.bool_] | None = None
    to_source: NDArray[np.float64] | None = None
    grid: Grid | None = None
    spacing_mm: tuple[float, ...] | None = None


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
        fields = {field.name for field in self.manifest.fields}
        kind = self.manifest.kind.name
        is_whole = kind == "volume" and self.facts.task == "segmentation"
        is_joined = is_whole or (kind == "picture" and "tile" in fields)
        found: dict[Any, PredictedSource] = {}
        for number, shard in enumerate(self._shards):
            for row, record_id in enumerate(shard.index.ids.tolist()):
                features = shard.small_features(row, _NAME_KEYS)
                key, source = (text_of(features, name) or "" for name in (keys.KEY_SOURCE, keys.FILENAME))
                place = (number, row)
                known = found.get(key) if is_joined else None
                if known is not None:
                    found[key] = replace(known, records=(*known.records, place))
                    continue
                tile = integer_of(features, keys.TILE) or 0
                found[key if is_joined else record_id] = PredictedSource(
                    id=record_id, key=key, source=source, tile=tile, records=(place,)
                )
        return sorted(found.values(), key=lambda source: (source.source, source.tile, source.key))

    def example(self, source: PredictedSource, *, with_pixels: bool = True) -> RunExample:
        """Return a source with its truth and its predictions; without pixels its image is one value.

        Raises:
            CorruptFileError: a record is not what was written.
            SourceError: a mask cannot be read.
        """
        needs_all = with_pixels or self.facts.task not in ("detection", "classification")
        features = [self._features(*place, needs_all=needs_all) for place in source.records]
        try:
            shown = _SHOWN[self.manifest.kind.name](features, self.manifest, with_pixels)
        except (TypeError, ValueError, IndexError) as error:
            raise CorruptFileError(
                f"{source.source}: its record does not fit the manifest ({error}); run `halofeed verify {self._place}`"
            ) from error
        arrays = self._predicted(source, shown)
        if self.is_labelled:
            arrays |= _TRUTH.get(self.facts.task, _true_classes)(features, shown, self.manifest)
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


# What records hold --------------------------------------------------------------------------------------


def _pixels(features: Decoded, manifest: Manifest) -> NDArray[Any]:
    """Return the image of a record as numbers."""
    stored = stored_image(features, manifest)
    if stored is None:
        raise ValueError("image/encoded is missing or has another size")
    return as_numbers(stored, manifest.field("image").dtype)


def _label(features: Decoded, manifest: Manifest) -> NDArray[Any] | None:
    return label_map(features, manifest) if integer_of(features, keys.LABELLED) != 0 else None


def _sides(features: Decoded, names: Sequence[str]) -> tuple[int, int]:
    height, width = (integer_of(features, name) for name in names)
    if height is None or width is None:
        raise ValueError(f"{' or '.join(names)} is missing")
    return height, width


def _transform(features: Decoded) -> NDArray[np.float64]:
    values = array_of(features, keys.TRANSFORM)
    if values is None:
        raise ValueError(f"{keys.TRANSFORM} is missing")
    return values.reshape(2, 3).astype(np.float64)


def _blank(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return an image of one value, which takes no memory."""
    return np.broadcast_to(np.zeros((), np.uint8), (*shape, 1))


def _without_ignored(shown: ShownSource, manifest: Manifest) -> ShownSource:
    if shown.label is None or manifest.ignore_label is None:
        return shown
    ignored = shown.label == manifest.ignore_label
    return replace(shown, label=np.where(ignored, 0, shown.label), ignored=ignored)


def _flat_source(features: Sequence[Decoded], manifest: Manifest, with_pixels: bool) -> ShownSource:
    """Show a picture or a clip without its padding, or a picture of tiles as a whole."""
    if keys.TILE_WHOLE in features[0]:
        return _picture_of_tiles(features, manifest, with_pixels)
    record = features[0]
    height, width = _sides(record, keys.UNPADDED_SIDES)
    # A clip has frames before the sides.
    shown = np.s_[..., :height, :width]
    shape = (*manifest.field("image").shape[:-3], height, width)
    label = _label(record, manifest)
    pixels = _pixels(record, manifest)[(*shown, slice(None))] if with_pixels else _blank(shape)
    found = ShownSource(
        shape=shape,
        image=pixels,
        label=None if label is None else np.asarray(label[shown]),
        to_source=_transform(record),
    )
    return _without_ignored(found, manifest)


def _picture_of_tiles(features: Sequence[Decoded], manifest: Manifest, with_pixels: bool) -> ShownSource:
    """Put the tiles of a picture together; where no tile was stored, the picture is gray and has no class."""
    whole = array_of(features[0], keys.TILE_WHOLE, "i")
    if whole is None or whole.shape != (2,) or whole.min() < 1:
        raise ValueError(f"{keys.TILE_WHOLE} is missing")
    scale = min(1.0, CANVAS_SIDE / int(whole.max()))
    shape = tuple(max(1, round(int(side) * scale)) for side in whole.tolist())
    steps = whole / np.array(shape)
    labels = [_label(record, manifest) for record in features]
    has_labels = bool(labels) and all(label is not None for label in labels)
    canvas: NDArray[Any] | None = None
    label = np.zeros(shape, np.uint16) if has_labels else None
    shown_anywhere = np.zeros(shape, bool)
    for record, of_tile in zip(features, labels, strict=True):
        origin, size = _tile_place(record)
        (top, left), (bottom, right) = (
            np.clip(np.rint(at / steps), 0, shape).astype(int).tolist() for at in (origin, origin + size)
        )
        part = np.s_[top:bottom, left:right]
        # Tiles smaller than a drawn pixel have no place of their own.
        if bottom <= top or right <= left:
            continue
        shown_anywhere[part] = True
        if with_pixels:
            pixels = _first_bands(_pixels(record, manifest)[: size[0], : size[1]])
            if canvas is None:
                canvas = np.full((*shape, pixels.shape[2]), _gray_of(pixels), pixels.dtype)
            small = cv2.resize(pixels, (right - left, bottom - top), interpolation=cv2.INTER_AREA)
            canvas[part] = small.reshape(bottom - top, right - left, -1)
        if label is not None and of_tile is not None:
            rows, columns = (
                np.clip(((np.arange(first, last) + 0.5) * step - start).astype(int), 0, end - 1)
                for first, last, step, start, end in zip(
                    (top, left), (bottom, right), steps, origin, size, strict=True
                )
            )
            label[part] = of_tile[np.ix_(rows, columns)]
    origin, _ = _tile_place(features[0])
    of_tile_to_source = _transform(features[0])
    turn = of_tile_to_source[:, :2]
    found = ShownSource(
        shape=shape,
        image=_blank(shape) if canvas is None else canvas,
        label=label,
        to_source=np.column_stack([turn * steps, of_tile_to_source[:, 2] - turn @ origin]),
    )
    found = _without_ignored(found, manifest)
    if label is None or shown_anywhere.all():
        return found
    ignored = ~shown_anywhere if found.ignored is None else found.ignored | ~shown_anywhere
    return replace(found, ignored=ignored)


def _tile_place(features: Decoded) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first pixel of a tile in its scaled, displayed picture, and its size without padding, int [2]."""
    origin = array_of(features, keys.TILE_ORIGIN, "i")
    if origin is None or origin.shape != (2,):
        raise ValueError(f"{keys.TILE_ORIGIN} is missing")
    return origin, np.array(_sides(features, keys.UNPADDED_SIDES))


def _first_bands(pixels: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(pixels[..., :3] if pixels.shape[2] >= 3 else pixels[..., :1])


def _gray_of(pixels: NDArray[Any]) -> int:
    return 128 if pixels.dtype == np.uint8 else 0


def _scan(features: Sequence[Decoded], manifest: Manifest, with_pixels: bool) -> ShownSource:
    """Put the tiles of a scan together, without padding."""
    field = manifest.field("image")
    places = []
    for record in features:
        extent, affine = extent_of(record), affine_of(record)
        if extent is None or affine is None:
            raise ValueError(f"{keys.EXTENT} or {keys.AFFINE} is missing")
        origin = array_of(record, keys.TILE_ORIGIN, "i")
        places.append((extent, affine, np.zeros(3, np.int64) if origin is None else origin))
    low = np.min([extent[0] + origin for extent, _, origin in places], axis=0)
    high = np.max([extent[1] + origin for extent, _, origin in places], axis=0)
    shape = triple(np.maximum(high - low, 1).tolist())
    image: NDArray[Any] | None = None
    labels = [_label(record, manifest) for record in features]
    label = np.zeros(shape, np.uint16) if all(one is not None for one in labels) else None
    for record, (extent, _, origin), of_tile in zip(features, places, labels, strict=True):
        inside = tuple(slice(*ends) for ends in extent.T.tolist())
        target = tuple(slice(*ends) for ends in (extent + origin - low).T.tolist())
        if with_pixels:
            voxels = _pixels(record, manifest)[inside]
            if image is None:
                image = np.zeros((*shape, field.shape[-1]), voxels.dtype)
            image[target] = voxels
        if label is not None and of_tile is not None:
            label[target] = of_tile[inside]
    extent, affine, origin = places[0]
    placed = affine.copy()
    placed[:3, 3] += affine[:3, :3] @ (low - origin)
    spacing = spacing_of(features[0])
    has_spacing = spacing is not None and bool((spacing > 0).all())
    found = ShownSource(
        shape=shape,
        image=_blank(shape) if image is None else image,
        label=label,
        grid=Grid(shape=shape, affine=placed),
        spacing_mm=tuple(map(float, spacing)) if spacing is not None and has_spacing else None,
    )
    return _without_ignored(found, manifest)


_SHOWN: Mapping[str, Callable[[Sequence[Decoded], Manifest, bool], ShownSource]] = {
    "picture": _flat_source,
    "clip": _flat_source,
    "volume": _scan,
}
"""Function that puts the records of a source together, by kind of image."""

Arrays = dict[str, NDArray[Any]]


def _true_boxes(features: Sequence[Decoded], shown: ShownSource, manifest: Manifest) -> Arrays:
    """Return the objects of a picture; those of tiles are complete, each once."""
    is_tiled = keys.OBJECT_SOURCE_CORNERS[0] in features[0] and keys.TILE_WHOLE in features[0]
    corner_keys = keys.OBJECT_SOURCE_CORNERS if is_tiled else keys.BOX_CORNERS
    crowd_key = keys.OBJECT_SOURCE_IS_CROWD if is_tiled else keys.OBJECT_IS_CROWD
    rows: dict[Any, tuple[float, ...]] = {}
    for number, record in enumerate(features):
        columns = [_numbers(record, key) for key in (*corner_keys, keys.OBJECT_CLASS_LABEL)]
        count = len(columns[-1])
        crowd = _numbers(record, crowd_key)
        columns.append(crowd if len(crowd) == count else np.zeros(count))
        index = _numbers(record, keys.OBJECT_INDEX)
        for row, values in enumerate(np.column_stack(columns).tolist()):
            rows.setdefault(int(index[row]) if is_tiled else (number, row), tuple(values))
    found = np.array(list(rows.values()), np.float64).reshape(-1, 6)
    if is_tiled:
        corners = _boxes_on(shown, found[:, :4])
    else:
        sides = np.array(manifest.field("image").shape[-3:-1], np.float64)
        corners = found[:, :4] * np.tile(sides / np.array(shown.shape[-2:]), 2)
    return {
        "truth_boxes": corners,
        "truth_classes": found[:, 4].astype(np.int64),
        "truth_is_crowd": found[:, 5] > 0,
        "truth_num_boxes": np.array(len(found)),
    }


def _numbers(features: Decoded, key: str) -> NDArray[np.float64]:
    value = features.get(key)
    return value.astype(np.float64) if isinstance(value, np.ndarray) else np.zeros(0)


def _boxes_on(shown: ShownSource, boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return boxes [box, 4] in pixels of the file as shares of the drawn picture."""
    assert shown.to_source is not None
    if not len(boxes):
        return np.zeros((0, 4))
    turn = np.linalg.inv(shown.to_source[:, :2])
    # The inverse of a quarter turn has no more zeros than the inverse of its numbers has digits.
    turn[np.abs(turn) < 1e-12 * np.abs(turn).max()] = 0
    from_source = np.column_stack([turn, -turn @ shown.to_source[:, 2]]).reshape(6)
    return apply_to_boxes(from_source, boxes) / np.tile(np.array(shown.shape, np.float64), 2)


def _true_class(features: Sequence[Decoded], shown: ShownSource, manifest: Manifest) -> Arrays:
    label = integer_of(features[0], keys.CLASS_LABEL)
    if label is None:
        raise CorruptFileError(f"{keys.CLASS_LABEL}: expected one class")
    return {"truth_label": np.array(label)}


def _true_classes(features: Sequence[Decoded], shown: ShownSource, manifest: Manifest) -> Arrays:
    if shown.label is None:
        return {"truth_labelled": np.array(False)}
    return {"truth_label": shown.label, "truth_labelled": np.array(True)}


_TRUTH: Mapping[str, Callable[[Sequence[Decoded], ShownSource, Manifest], Arrays]] = {
    "detection": _true_boxes,
    "classification": _true_class,
    "segmentation": _true_classes,
}

# What was predicted --------------------------------------------------------------------------------------

Predicted = Callable[[PredictedSource, ShownSource], Arrays]
"""Function that returns the predictions of a source on the grid on which it is shown."""


def _predicted_boxes(facts: PredictionFacts) -> Predicted:
    found: dict[int, list[tuple[float, ...]]] = {}
    for entry in json.loads(load_text(facts.folder / str(facts.document["detections"]), "utf-8")):
        left, top, width, height = entry["bbox"]
        box = (top, left, top + height, left + width)
        found.setdefault(entry["image_id"], []).append((*box, entry["category_id"], entry["score"]))

    def predicted(source: PredictedSource, shown: ShownSource) -> Arrays:
        rows = np.array(found.get(source.id, []), np.float64).reshape(-1, 6)
        return {
            "predicted_boxes": _boxes_on(shown, rows[:, :4]),
            "predicted_classes": rows[:, 4].astype(np.int64),
            "predicted_scores": rows[:, 5],
        }

    return predicted


_FIRST_PROBABILITY = "probability"


def _predicted_class(facts: PredictionFacts) -> Predicted:
    text = load_text(facts.folder / str(facts.document["classes"]), "utf-8", "surrogateescape")
    head, *lines = csv.reader(io.StringIO(text, newline=""))
    first = head.index(_FIRST_PROBABILITY) + 1
    names = [name.removeprefix("p(").removesuffix(")") for name in head[first:]]
    of_id = {
        int(line[0]): (names.index(line[head.index("class")]), np.array(line[first:], np.float64))
        for line in lines
    }

    def predicted(source: PredictedSource, shown: ShownSource) -> Arrays:
        label, probabilities = of_id[source.id]
        return {"predicted_label": np.array(label), "predicted_probabilities": probabilities}

    return predicted


def _predicted_classes(facts: PredictionFacts) -> Predicted:
    entries = {entry["key"]: entry for entry in facts.document["masks"] if "file" in entry}
    clips = {entry["folder"]: entry for entry in facts.document["masks"] if "folder" in entry}
    folders = {(entry["key"], int(name.rpartition("/")[2])): name for name, entry in clips.items()}

    def predicted(source: PredictedSource, shown: ShownSource) -> Arrays:
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


_PREDICTED: Mapping[str, Callable[[PredictionFacts], Predicted]] = {
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
    reader = open_regions(LocalFiles(file.parent), file.name)
    height, width = reader.facts.size

    def read(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[Any]:
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
