"""Checks of one record against the manifest, the index and the statistics; each function yields problems as text."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.record_words import task_words
from halofeed.inspection.scan_objects import object_problems
from halofeed.inspection.stored_records import (
    CANONICAL,
    CHUNK_VALUES,
    DIRECTIONS,
    VOLUME_AXES,
    ClassCounts,
    affine_of,
    alignment,
    array_of,
    bytes_of,
    class_counts,
    direction_cosines,
    extent_of,
    integer_of,
    is_volumetric,
    label_field,
    label_map,
    orientation_of,
    text_of,
)
from halofeed.inspection.stored_values import FORMS, decode_stored, stored_array
from halofeed.inspection.verify_tile import tile_problems
from halofeed.prep.voxels.intensity import as_numbers
from halofeed.schemas import keys
from halofeed.schemas.fields import Field
from halofeed.schemas.identity import example_id
from halofeed.schemas.kinds import STATED_FIELDS
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.statistics import Padding, Statistics
from halofeed.schemas.tasks import OPTIONAL_ATTRIBUTES, REGION_FIELDS
from halofeed.schemas.tfexample import Decoded
from halofeed.system.wording import plural


@dataclass(kw_only=True)
class ShardCounts:
    """Statistics of a shard, counted again from its records."""

    manifest: Manifest
    records: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    boxes_per_image: Counter[str] = field(default_factory=Counter)
    ignored_per_image: Counter[str] = field(default_factory=Counter)
    stated: Counter[str] = field(default_factory=Counter)
    stored_pixels: int = 0
    pixels: int = 0
    largest: tuple[int, int] = (0, 0)
    tiles: int = 0
    labelled: int = 0
    label_voxels: Counter[str] = field(default_factory=Counter)
    foreground: int = 0

    def add(self, features: Decoded, classes: ClassCounts) -> None:
        """Count one record and the `classes` of its label map."""
        stored, unpadded = _sizes_of(features, self.manifest)
        height, width = (integer_of(features, key) or 0 for key in keys.SIDES)
        self.records += 1
        self.stored_pixels += stored
        self.pixels += unpadded
        self.largest = (max(self.largest[0], height), max(self.largest[1], width))
        self.tiles += bool(integer_of(features, keys.TILE))
        objects = features.get(keys.OBJECT_CLASS_LABEL)
        if objects is not None:
            self.boxes_per_image[str(len(objects))] += 1
        if ignored := len(features.get(keys.IGNORED_CORNERS[0], ())):
            self.ignored_per_image[str(ignored)] += 1
        if self.manifest.kind.name == "picture":
            self.stated.update(name for name, one in STATED_FIELDS.items() if one.keys[0] in features)
        # A record counts once for each class that its label map contains, and once for each of its boxes.
        if label_field(self.manifest) is not None and integer_of(features, keys.LABELLED):
            self.labels.update(map(str, classes.voxels))
            self.labelled += 1
            self.label_voxels.update({str(value): count for value, count in classes.voxels.items()})
            self.foreground += classes.foreground
            return
        labels = features.get(keys.CLASS_LABEL) if objects is None else objects
        if isinstance(labels, np.ndarray):
            self.labels.update(map(str, labels.tolist()))

    def found(self) -> Statistics:
        """Return the statistics of the records counted so far."""
        counted = Statistics(
            records=self.records,
            labels=dict(self.labels),
            boxes_per_image=dict(self.boxes_per_image),
            ignored_per_image=dict(self.ignored_per_image) or None,
            stated=dict(self.stated) or None,
            padding=Padding(stored_pixels=self.stored_pixels, padded_pixels=self.stored_pixels - self.pixels),
            largest=self.largest,
            tiles=self.tiles or None,
        )
        if is_volumetric(self.manifest):
            has_boxes = task_words(self.manifest).has_boxes
            per_image = counted.boxes_per_image if has_boxes else None
            counted = replace(counted, boxes_per_image=per_image, tiles=self.tiles)
        # The statistics of a shard without records may omit the labelled ones.
        if label_field(self.manifest) is None or not self.records:
            return counted
        voxels = dict(self.label_voxels)
        return replace(
            counted, labelled=self.labelled, label_voxels=voxels, foreground_voxels=self.foreground
        )

    def problems(self, statistics: Statistics) -> Iterator[str]:
        """Yield each difference between the stored statistics and the records."""
        stored = statistics.to_json()
        for name, value in self.found().to_json().items():
            if stored.get(name) != value:
                yield f"statistics.{name}: the records give {value!r:.300}, stored is {stored.get(name)!r:.300}"


_SPACING_TOLERANCE = 1e-6
"""Relative tolerance; rounding the affine and the spacing to float32 leaves a difference of up to 3e-7."""
_MIN_DETERMINANT = 1e-6
"""Least volume of a voxel, relative to a cuboid with the same sides; below, the affine maps to a plane."""
_ALIGNMENT_TOLERANCE = 1e-3
"""Rounding at 45 degrees may make another order of axes closer to the patient's by up to this much."""


def _sizes_of(features: Decoded, manifest: Manifest) -> tuple[int, int]:
    """Return the number of stored pixels or voxels of a record, and of those that are not padding."""

    def size(*sides: str) -> int:
        return math.prod(integer_of(features, key) or 0 for key in sides)

    if not is_volumetric(manifest):
        return size(*keys.SIDES), size(*keys.UNPADDED_SIDES)
    # Volumes may be padded at both ends of an axis, so their records state an extent.
    extent = extent_of(features)
    unpadded = 0 if extent is None else int(np.prod(extent[1] - extent[0]))
    return size(keys.DEPTH, *keys.SIDES), unpadded


def _label_map_problems(features: Decoded, counts: ClassCounts) -> Iterator[str]:
    """Yield each problem of the values of a label map."""
    for what, count in counts.unknown.items():
        yield f"{keys.LABEL}: {count:,} {what}, which is not in the manifest's labels"
    # A source without a mask is stored as 0 throughout: a loader that ignores `labelled` must not see a class.
    if integer_of(features, keys.LABELLED) == 0 and counts.foreground:
        yield f"{keys.LABEL}: expected 0 throughout, as image/labelled is 0; {counts.foreground:,} are not"


def _volume_problems(features: Decoded, image: Field) -> Iterator[str]:
    """Yield each problem of the values and the geometry of a volume."""
    yield from _value_problems(bytes_of(features, keys.ENCODED), image)
    shape = image.shape[:-1]
    stored = tuple(integer_of(features, f"image/{axis}") for axis in VOLUME_AXES)
    if stored != shape:
        yield f"image/depth, image/height, image/width: expected {list(shape)} of a volume, got {list(stored)}"
    yield from _extent_problems(features, shape)
    yield from _affine_problems(features)
    source = array_of(features, keys.SOURCE_SHAPE, "i")
    if source is not None and (source < 1).any():
        yield f"image/source/shape: expected 1 or more along each axis, got {source.tolist()}"
    yield from _least_problems(features, keys.TILE, 0)


def _value_problems(data: memoryview | None, image: Field) -> Iterator[str]:
    """Yield a problem if an image has infinite values or NaN; integers cannot have them."""
    if data is None or image.dtype not in ("float32", "float64", "bfloat16"):
        return
    array = stored_array(data, image)
    # The check of the field reports a value that is not an array of its shape.
    if array is None:
        return
    values = array.reshape(-1)
    parts = (values[start : start + CHUNK_VALUES] for start in range(0, len(values), CHUNK_VALUES))
    if wrong := sum(np.count_nonzero(~np.isfinite(as_numbers(part, image.dtype))) for part in parts):
        yield f"{keys.ENCODED}: {wrong:,} of {len(values):,} values are infinite or no number"


def _extent_problems(features: Decoded, shape: tuple[int, ...]) -> Iterator[str]:
    extent = extent_of(features)
    if extent is None:
        return
    for axis, size, first, last in zip(VOLUME_AXES, shape, *extent.tolist(), strict=True):
        if not 0 <= first < last <= size:
            yield f"image/extent: {axis}: expected a part of 0 to {size}, got {first} to {last}"


def _affine_problems(features: Decoded) -> Iterator[str]:
    for key in (keys.AFFINE, keys.SOURCE_AFFINE):
        affine = affine_of(features, key)
        if affine is None or not np.isfinite(affine).all():
            continue  # the check of its values reports this
        lengths = np.linalg.norm(affine[:3, :3], axis=0)
        if affine[3].tolist() != [0, 0, 0, 1]:
            yield f"{key}: expected a last row of 0, 0, 0, 1, got {affine[3].tolist()}"
        if not lengths.all() or abs(np.linalg.det(direction_cosines(affine[:3, :3]))) < _MIN_DETERMINANT:
            yield f"{key}: it cannot be inverted: all voxels of the volume are on one plane of the patient"
        elif key == keys.AFFINE:
            yield from _spacing_problems(features, lengths)
            yield from _direction_problems(affine)


def _spacing_problems(features: Decoded, lengths: NDArray[np.float64]) -> Iterator[str]:
    spacing = array_of(features, keys.SPACING_MM)
    # The check of the field reports a value that is missing or has another length.
    if spacing is None or spacing.shape != (3,):
        return
    for axis, stated, length in zip(VOLUME_AXES, spacing.tolist(), lengths.tolist(), strict=True):
        # The negated comparison rejects NaN too.
        if not abs(stated - length) <= _SPACING_TOLERANCE * length:
            yield f"image/spacing_mm: {axis}: {stated:.9g}, but a step of image/affine is {length:.9g} mm"


def _direction_problems(affine: NDArray[np.float64]) -> Iterator[str]:
    cosines = direction_cosines(affine[:3, :3])
    # At 45 degrees two orders of axes are equally near. The canonical one wins if it is as near as the best one.
    best = max(alignment(cosines, rows) for rows in permutations(range(3)))
    nearest = orientation_of(affine)
    if alignment(cosines, CANONICAL) >= best - _ALIGNMENT_TOLERANCE:
        nearest = tuple(
            DIRECTIONS[row] if cosines[row, axis] > 0 else DIRECTIONS[row][::-1]
            for axis, row in enumerate(CANONICAL)
        )
    for axis, row, (_, towards) in zip(VOLUME_AXES, CANONICAL, nearest, strict=True):
        if towards != DIRECTIONS[row][1]:
            yield f"image/affine: {axis}: expected it to grow to {DIRECTIONS[row][1]}, it grows to {towards}"


_INTEGER_LIMITS = {"bool": (0, 1)} | {
    name: (int(np.iinfo(name).min), int(np.iinfo(name).max))
    for name in ("uint8", "uint16", "int16", "int32", "int64")
}

_KEYPOINT_KINDS = {"x": "float32", "y": "float32", "visibility": "int64", "text": "bytes", "num": "int64"}
"""Type of each list of keypoints: all have a value per point, but `num` has one per box."""


def record_problems(
    features: Decoded, manifest: Manifest, counts: ShardCounts | None = None
) -> Iterator[str]:
    """Yield each difference between a record and the manifest.

    Args:
        counts: counts to which the record is added before anything is yielded.
    """
    label = label_map(features, manifest)
    # Another check reports a label map that cannot be read.
    classes = ClassCounts() if label is None else class_counts(label, manifest)
    if counts is not None:
        counts.add(features, classes)
    for stored_field in manifest.fields:
        # Only records with ignored regions have their keys.
        if stored_field.name in REGION_FIELDS and features.keys().isdisjoint(stored_field.keys):
            continue
        for key in stored_field.keys:
            if key not in features and stored_field.may_be_absent:
                continue
            if key in features:
                found = _stored_problems(features[key], stored_field, features, manifest)
                yield from (f"{key}: {problem}" for problem in found)
            else:
                yield f"{key} is missing"
    yield from _parallel_problems(features, manifest)
    yield from _image_problems(features, manifest)
    yield from _box_problems(features)
    if task_words(manifest).has_boxes and is_volumetric(manifest):
        yield from object_problems(features)
    yield from kept_problems(features, manifest)
    yield from _label_problems(features, manifest)
    yield from _identity_problems(features)
    yield from tile_problems(features, manifest)
    if label_field(manifest) is not None:
        yield from _label_map_problems(features, classes)
        if is_volumetric(manifest):
            yield from _volume_problems(features, manifest.field("image"))


def _stored_problems(value: Any, field: Field, features: Decoded, manifest: Manifest) -> Iterator[str]:
    """Return each problem of the value of one key of a field."""
    if field.encoding == "png_list":
        return _masks(value, features, manifest)
    if field.encoding in _LIST_CHECKS:
        return _LIST_CHECKS[field.encoding](value, field, features)
    if isinstance(value, list) and len(value) == 1:
        form = FORMS.get(field.encoding)  # texts are not checked
        size = (integer_of(features, keys.HEIGHT), integer_of(features, keys.WIDTH))
        return form.problems(value[0], field, size) if form else iter(())
    return iter([f"expected one bytes value, got {_count_and_dtype(value)}"])


def _count_and_dtype(value: Any) -> str:
    return f"{len(value)} {'bytes' if isinstance(value, list) else value.dtype} values"


def _numbers(value: Any, field: Field, features: Decoded) -> Iterator[str]:
    limits = _INTEGER_LIMITS.get(field.dtype)
    wanted = "float32" if limits is None else "int64"
    if not isinstance(value, np.ndarray) or value.dtype != wanted:
        # An empty list may be stored without its type; another check covers its length.
        if len(value):
            yield f"expected {wanted} values, got {_count_and_dtype(value)}"
        return
    # TensorFlow's Example stores all integers as int64, so the range of the field's dtype is checked here.
    wrong = ~np.isfinite(value) if limits is None else (value < limits[0]) | (value > limits[1])
    if wrong.any():
        at = int(np.argmax(wrong))
        allowed = " (0 or 1)" if field.dtype == "bool" else ""
        yield f"value {at} is {value[at]}, which is not a valid {field.dtype}{allowed}"


def _value(value: Any, field: Field, features: Decoded) -> Iterator[str]:
    yield from _numbers(value, field, features)
    if len(value) != math.prod(field.shape):
        yield f"expected {plural(math.prod(field.shape), 'value')} (shape {list(field.shape)}), got {len(value)}"


def _masks(value: Any, features: Decoded, manifest: Manifest) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"expected PNG files, got {_count_and_dtype(value)}"
        return
    image = manifest.field("image")
    size = (integer_of(features, keys.HEIGHT), integer_of(features, keys.WIDTH), 1)
    for number, data in enumerate(value):
        pixels = decode_stored(data, "png", (image.shape[0], image.shape[1]))
        if pixels is None:
            yield f"mask {number} is not a PNG that can be decoded"
        elif pixels.shape != size or pixels.dtype != np.uint8:
            yield f"mask {number} is {pixels.dtype} {list(pixels.shape)}, expected uint8 {list(size)}"
        # The loader returns masks as they are stored, 0 and 1.
        elif pixels.max() > 1:
            yield f"mask {number} holds {int(pixels.max())}, expected 0 and 1"


def _classes(value: Any, field: Field, features: Decoded) -> Iterator[str]:
    texts = features.get(keys.CLASS_TEXT, ())
    if len(texts) != len(value):
        yield f"{plural(len(value), 'label')}, but {plural(len(texts), 'text')}"
    if not len(value):
        return
    if not isinstance(value, np.ndarray) or value.dtype != np.int64:
        yield f"expected int64 values, got {_count_and_dtype(value)}"
    # One order for equal sets of classes, so that equal records have equal bytes.
    elif (np.diff(value) <= 0).any():
        yield f"expected labels in ascending order, each once, got {value.tolist()}"


_LIST_CHECKS: dict[str, Callable[[Any, Field, Decoded], Iterator[str]]] = {
    "classes": _classes,
    "value": _value,
    "list": _numbers,
}
"""Checks of a list of values, by the encoding of its field; `stored_values.FORMS` has those of one bytes value."""


def _parallel_problems(features: Decoded, manifest: Manifest) -> Iterator[str]:
    fields = [field for field in manifest.fields if field.encoding in ("list", "png_list")]
    lists = [key for field in fields if field.name not in REGION_FIELDS for key in field.keys]
    # The texts of boxes are for TensorFlow's readers, so no field names them.
    if keys.OBJECT_CLASS_LABEL in lists:
        lists.append(keys.OBJECT_CLASS_TEXT)
    regions = [key for field in fields if field.name in REGION_FIELDS for key in field.keys]
    for parallel in (lists, regions):
        yield from _length_problems({key: len(features[key]) for key in parallel if key in features})


def _length_problems(lengths: Mapping[str, int]) -> Iterator[str]:
    """Yield a problem if lists, named with their lengths, differ in length."""
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {length}" for name, length in lengths.items())
        yield f"expected lists of one length, got {counts}"


def _image_problems(features: Decoded, manifest: Manifest) -> Iterator[str]:
    image, data = manifest.field("image"), bytes_of(features, keys.ENCODED)
    if data is None:
        return
    if (stored := text_of(features, keys.FORMAT)) != image.encoding:
        yield f"image/format: expected {image.encoding!r} as the manifest says, got {stored!r}"
    yield from _digest_problems(features, data, is_file=image.is_file)
    # The sizes of a volume are checked with its geometry.
    if not is_volumetric(manifest):
        yield from _side_problems(features, image)


def _digest_problems(features: Decoded, data: memoryview, *, is_file: bool) -> Iterator[str]:
    """Yield a problem if the SHA-256 that a record states is not that of its image."""
    stored = text_of(features, keys.KEY_SHA256)
    # An array has checksums in the index instead.
    if stored is None and not is_file:
        return
    if (digest := hashlib.sha256(data).hexdigest()) != stored:
        yield f"image/key/sha256: image/encoded has {digest}, the record says {stored!r:.80}"


def _side_problems(features: Decoded, image: Field) -> Iterator[str]:
    """Yield each problem of the sides of a picture or clip: stored, without padding, and of the source."""
    height, width = (integer_of(features, key) for key in keys.SIDES)
    if height is None or width is None:
        yield "image/height, image/width: expected one integer each"
        return
    # A JPEG or PNG has its own size, to which its check compares these.
    if image.form.has_one_shape and (height, width) != image.shape[-3:-1]:
        expected = f"expected {list(image.shape[-3:-1])} of a {image.encoding} image"
        yield f"image/height, image/width: {expected}, got {[height, width]}"
    for key, outer in zip(keys.UNPADDED_SIDES, (height, width), strict=True):
        if (inner := integer_of(features, key)) is not None and not 1 <= inner <= outer:
            yield f"{key}: expected 1 to {outer}, got {inner}"
    for key in keys.SOURCE_SIDES:
        yield from _least_problems(features, key, 1)
    spacing = array_of(features, keys.SPACING_MM)
    # The negated comparison rejects NaN too, which stands for a missing key.
    if spacing is not None and not (spacing > 0).all():
        yield f"{keys.SPACING_MM}: expected millimeters above 0 or no such key, got {spacing.tolist()}"


def _least_problems(features: Decoded, key: str, least: int) -> Iterator[str]:
    """Yield a problem if an integer is below its least value."""
    if (value := integer_of(features, key)) is not None and value < least:
        yield f"{key}: expected {least} or more, got {value}"


def _box_problems(features: Decoded) -> Iterator[str]:
    for sides, what in ((keys.SOLID_CORNERS, "box"), (keys.IGNORED_CORNERS, "ignored region")):
        corners = {key: value for key in sides if isinstance(value := features.get(key), np.ndarray)}
        for key, values in corners.items():
            # The negated comparison rejects NaN too.
            yield from _listed(key, values, ~((values >= 0) & (values <= 1)), what, "0 to 1")
        yield from _reversed_box_problems(corners, sides)
    area = features.get(keys.OBJECT_AREA)
    if isinstance(area, np.ndarray):
        yield from _listed(keys.OBJECT_AREA, area, area < 0, "box", "0 or more")


def _listed(
    key: str, values: NDArray[Any], wrong: NDArray[np.bool_], what: str, expected: str
) -> Iterator[str]:
    """Yield a problem for each value of a list that is `wrong`."""
    for number in np.flatnonzero(wrong):
        yield f"{key}: {what} {number}: expected {expected}, got {values[number]}"


def _reversed_box_problems(corners: Mapping[str, NDArray[Any]], sides: Sequence[str]) -> Iterator[str]:
    """Yield a problem for each box whose low side is beyond its high side; `sides` are keys of low, then high sides."""
    axes = len(sides) // 2
    # Pictures have no zmin and zmax.
    for low, high in zip(sides[:axes], sides[axes:], strict=True):
        # Another check reports lists that are missing or of different lengths.
        if low not in corners or high not in corners or len(corners[low]) != len(corners[high]):
            continue
        for box in np.flatnonzero(corners[low] > corners[high]):
            what, _, side = low.rpartition("/")
            yield (
                f"{what}: box {box}: {side} {corners[low][box]} is more than "
                f"{high.rpartition('/')[2]} {corners[high][box]}"
            )


def kept_problems(features: Decoded, manifest: Manifest) -> Iterator[str]:
    """Yield each problem of the features outside of the manifest's fields: the view and the keypoints."""
    kept = manifest.recipe.get("keep", ())
    # Keypoints and views belong to boxes.
    if not task_words(manifest).has_boxes:
        return
    boxes = len(features.get(keys.OBJECT_CLASS_LABEL, ()))
    if "view" in kept:
        key = OPTIONAL_ATTRIBUTES["view"]
        if key not in features:
            yield f"{key} is missing"
        elif len(features[key]) != boxes:
            yield f"{key}: expected one for each of {plural(boxes, 'box', 'boxes')}, got {len(features[key])}"
    if "keypoints" in kept:
        yield from _keypoint_problems(features, boxes)


def _keypoint_problems(features: Decoded, boxes: int) -> Iterator[str]:
    found = [*_keypoint_type_problems(features)] or [*_keypoint_count_problems(features, boxes)]
    # The points of lists that do not fit together belong to no box, so their values are not checked.
    yield from found or _point_problems(features, boxes)


def _keypoint_lists(features: Decoded) -> dict[str, Any]:
    """Return the lists of a record's keypoints by the last part of their keys; None for a missing one."""
    return {part: features.get(f"{keys.OBJECT_KEYPOINT}/{part}") for part in _KEYPOINT_KINDS}


def _keypoint_type_problems(features: Decoded) -> Iterator[str]:
    """Yield each list of keypoints that is missing, or if none is, each that has another type."""
    key, lists = keys.OBJECT_KEYPOINT, _keypoint_lists(features)
    if missing := [part for part, values in lists.items() if values is None]:
        yield from (f"{key}/{part} is missing" for part in missing)
        return
    for part, values in lists.items():
        # An empty list may be stored without its type.
        if len(values) and getattr(values, "dtype", "bytes") != _KEYPOINT_KINDS[part]:
            yield f"{key}/{part}: expected {_KEYPOINT_KINDS[part]} values"


def _keypoint_count_problems(features: Decoded, boxes: int) -> Iterator[str]:
    """Yield the first problem of the lengths of a record's keypoint lists."""
    key, lists = keys.OBJECT_KEYPOINT, _keypoint_lists(features)
    lengths = {part: len(values) for part, values in lists.items()}
    counted, points = lengths.pop("num"), lengths["x"]
    if different := [*_length_problems(lengths)]:
        yield f"{key}: {different[0]}"
    elif counted != boxes:
        yield f"{key}/num: expected one for each of {plural(boxes, 'box', 'boxes')}, got {counted}"
    elif points != points // max(1, boxes) * boxes:
        yield f"{key}: expected as many points for each of {plural(boxes, 'box', 'boxes')}, got {points} in all"


def _point_problems(features: Decoded, boxes: int) -> Iterator[str]:
    """Yield each problem of the values of keypoints; every box must have the same number and names of points."""
    key, lists = keys.OBJECT_KEYPOINT, _keypoint_lists(features)
    for part in ("x", "y"):
        for point in np.flatnonzero(~np.isfinite(np.asarray(lists[part], np.float32))):
            yield f"{key}/{part}: point {point} is {lists[part][point]}"
    flags = np.asarray(lists["visibility"], np.int64)
    # COCO: 0 is not labeled, 1 labeled and hidden, 2 labeled and visible (cocodataset.org/#format-data, keypoints).
    yield from _listed(f"{key}/visibility", flags, (flags < 0) | (flags > 2), "point", "0, 1 or 2")
    of_boxes = flags.reshape(boxes, len(flags) // max(1, boxes))
    for box, (stated, counted) in enumerate(zip(lists["num"], (of_boxes > 0).sum(axis=1), strict=True)):
        if stated != counted:
            yield f"{key}/num: box {box}: {stated}, but {counted} of its points are labeled"
    # Readers take the names of the first box for all boxes: a category of COCO has one list of them.
    names, each = [bytes(name) for name in lists["text"]], of_boxes.shape[1]
    for box in range(1, boxes):
        if names[box * each : (box + 1) * each] != names[:each]:
            yield f"{key}/text: box {box} has other names than box 0"


def _label_problems(features: Decoded, manifest: Manifest) -> Iterator[str]:
    for label_key, text_key, what in (
        (keys.CLASS_LABEL, keys.CLASS_TEXT, "label"),
        (keys.OBJECT_CLASS_LABEL, keys.OBJECT_CLASS_TEXT, "box"),
    ):
        labels, texts = features.get(label_key), features.get(text_key)
        if labels is None:
            continue
        if not isinstance(texts, list):
            wrong = " is missing" if texts is None else f": expected texts, got {_count_and_dtype(texts)}"
            yield f"{text_key}{wrong}"
            texts = []
        # The check of the field's type reports labels that are no numbers.
        if isinstance(labels, list):
            continue
        for number, label in enumerate(labels.tolist()):
            if label not in manifest.labels:
                yield f"{label_key}: {what} {number}: {label} is not in the manifest's labels"
            elif number < len(texts) and bytes(texts[number]) != manifest.labels[label].encode():
                text = str(texts[number], "utf-8", "replace")
                yield f"{text_key}: {what} {number}: {text!r}, but label {label} is {manifest.labels[label]!r}"


def _identity_problems(features: Decoded) -> Iterator[str]:
    stored, key = text_of(features, keys.SOURCE_ID), text_of(features, keys.KEY_SOURCE)
    if stored is None or key is None:
        return
    # An id has 63 bits, and no leading zeros, so that two texts are never the same id.
    if not re.fullmatch("0|[1-9][0-9]{0,18}", stored):
        yield f"image/source_id: expected a decimal number, got {stored!r:.80}"
        return
    # Versions before 2026-11-25 hashed the text "key#tile", which can be the key of another source.
    tile = integer_of(features, keys.TILE) or 0
    earlier = example_id(f"{key}#{tile}" if tile else key)
    if int(stored) not in (expected := example_id(key, tile), earlier):
        yield f"image/source_id: {stored}, but image/key/source {key!r:.80} gives {expected}"
