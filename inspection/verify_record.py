"""Checks of one record against the manifest, the index and the statistics; each function yields problems as text."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.record_words import task_words
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
    decode_stored,
    direction_cosines,
    extent_of,
    integer_of,
    is_volumetric,
    label_field,
    label_map,
    orientation_of,
    text_of,
)
from halofeed.prep.formats.picture.table import check_encoded_image
from halofeed.prep.voxels.intensity import as_numbers
from halofeed.schemas import keys
from halofeed.schemas.fields import Field
from halofeed.schemas.identity import example_id
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.statistics import Padding, Statistics
from halofeed.schemas.tasks import OPTIONAL_ATTRIBUTES
from halofeed.schemas.tfexample import Decoded
from halofeed.system.checksum import block_checksums
from halofeed.system.wording import plural


@dataclass(kw_only=True)
class ShardCounts:
    """Statistics of a shard, counted again from its records."""

    manifest: Manifest
    records: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    boxes_per_image: Counter[str] = field(default_factory=Counter)
    stored_pixels: int = 0
    pixels: int = 0
    largest: tuple[int, int] = (0, 0)
    tiles: int = 0
    labelled: int = 0
    label_voxels: Counter[str] = field(default_factory=Counter)
    foreground: int = 0

    def add(self, features: Decoded, classes: ClassCounts) -> None:
        """Count one record and the `classes` of its label map."""
        height, width, unpadded_height, unpadded_width = (
            integer_of(features, key) or 0 for key in (*keys.SIDES, *keys.UNPADDED_SIDES)
        )
        stored, pixels = height * width, unpadded_height * unpadded_width
        if is_volumetric(self.manifest):
            stored *= integer_of(features, keys.DEPTH) or 0
            extent = extent_of(features)
            pixels = 0 if extent is None else int(np.prod(extent[1] - extent[0]))
        objects = features.get(keys.OBJECT_CLASS_LABEL)
        labels = features.get(keys.CLASS_LABEL) if objects is None else objects
        found = labels.tolist() if isinstance(labels, np.ndarray) else []
        if objects is not None:
            self.boxes_per_image[str(len(objects))] += 1
        if label_field(self.manifest) is not None and integer_of(features, keys.LABELLED):
            found = list(classes.voxels)
            self.labelled += 1
            self.label_voxels.update({str(value): count for value, count in classes.voxels.items()})
            self.foreground += classes.foreground
        self.records += 1
        self.labels.update(map(str, found))
        self.stored_pixels += stored
        self.pixels += pixels
        self.largest = (max(self.largest[0], height), max(self.largest[1], width))
        self.tiles += bool(integer_of(features, keys.TILE))

    def found(self) -> Statistics:
        """Return the statistics of the records counted so far."""
        counted = Statistics(
            records=self.records,
            labels=dict(self.labels),
            boxes_per_image=dict(self.boxes_per_image),
            padding=Padding(stored_pixels=self.stored_pixels, padded_pixels=self.stored_pixels - self.pixels),
            largest=self.largest,
            tiles=self.tiles or None,
        )
        if is_volumetric(self.manifest):
            counted = replace(counted, boxes_per_image=None, tiles=self.tiles)
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


def _segmentation_problems(
    features: Decoded, manifest: Manifest, counts: ClassCounts | None
) -> Iterator[str]:
    """Yield each problem of the label map, the geometry and the values of a record.

    Args:
        counts: result of `class_counts`; None if the label map cannot be read, which another check reports.
    """
    field = label_field(manifest)
    if field is None:
        return
    for what, count in (counts.unknown if counts else {}).items():
        yield f"{keys.LABEL}: {count:,} {what}, which is not in the manifest's labels"
    marked = counts.foreground if counts else 0
    if integer_of(features, keys.LABELLED) == 0 and marked:
        yield f"{keys.LABEL}: expected 0 throughout, as image/labelled is 0; {marked:,} are not"
    if not is_volumetric(manifest):
        return
    yield from _value_problems(bytes_of(features, keys.ENCODED), manifest.field("image").dtype)
    shape, stored = field.stored_shape, tuple(integer_of(features, f"image/{axis}") for axis in VOLUME_AXES)
    if stored != shape:
        yield f"image/depth, image/height, image/width: expected {list(shape)} of a volume, got {list(stored)}"
    yield from _extent_problems(features, shape)
    yield from _affine_problems(features)
    source = array_of(features, keys.SOURCE_SHAPE, "i")
    if source is not None and (source < 1).any():
        yield f"image/source/shape: expected 1 or more along each axis, got {source.tolist()}"
    tile = integer_of(features, keys.TILE)
    if tile is not None and tile < 0:
        yield f"image/tile: expected 0 or more, got {tile}"


def _value_problems(data: memoryview | None, dtype: str) -> Iterator[str]:
    """Yield a problem if a raw image has infinite values or NaN; integers cannot have them."""
    if data is None or dtype not in ("float32", "float64", "bfloat16"):
        return
    kind = np.dtype({"bfloat16": np.uint16}.get(dtype, dtype)).newbyteorder("<")
    if len(data) % kind.itemsize:
        return
    values = np.frombuffer(data, kind)
    parts = (values[start : start + CHUNK_VALUES] for start in range(0, len(values), CHUNK_VALUES))
    if wrong := sum(np.count_nonzero(~np.isfinite(as_numbers(part, dtype))) for part in parts):
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
    if spacing is None or spacing.shape != (3,):
        return
    for axis, stated, length in zip(VOLUME_AXES, spacing.tolist(), lengths.tolist(), strict=True):
        # The negated comparison rejects NaN too.
        if not abs(stated - length) <= _SPACING_TOLERANCE * length:
            yield f"image/spacing_mm: {axis}: {stated:.9g}, but a step of image/affine is {length:.9g} mm"


def _direction_problems(affine: NDArray[np.float64]) -> Iterator[str]:
    cosines = direction_cosines(affine[:3, :3])
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

_KEYPOINT_PARTS = ("x", "y", "visibility", "text")
_KEYPOINT_KINDS = {"x": "float32", "y": "float32", "visibility": "int64", "num": "int64", "text": "bytes"}


def record_problems(
    features: Decoded, manifest: Manifest, counts: ShardCounts | None = None
) -> Iterator[str]:
    """Yield each difference between a record and the manifest.

    Args:
        counts: counts to which the record is added before anything is yielded.
    """
    label = label_map(features, manifest)
    classes = None if label is None else class_counts(label, manifest)
    if counts is not None:
        counts.add(features, classes or ClassCounts())
    for stored_field in manifest.fields:
        for key in stored_field.keys:
            if key not in features:
                yield f"{key} is missing"
                continue
            value = features[key]
            if stored_field.encoding == "png_list":
                found = _masks(value, features, manifest)
            elif stored_field.encoding not in _BYTES_CHECKS:
                found = _LIST_CHECKS[stored_field.encoding](value, stored_field, features)
            elif isinstance(value, list) and len(value) == 1:
                found = _BYTES_CHECKS[stored_field.encoding](value[0], stored_field, features)
            else:
                found = iter([f"expected one bytes value, got {_count_and_dtype(value)}"])
            yield from (f"{key}: {problem}" for problem in found)
    yield from _parallel_problems(features, manifest)
    yield from _image_problems(features, manifest)
    yield from _box_problems(features)
    yield from kept_problems(features, manifest)
    yield from _label_problems(features, manifest)
    yield from _identity_problems(features)
    yield from _segmentation_problems(features, manifest, classes)


def block_problems(data: memoryview, expected: NDArray[np.uint32]) -> Iterator[str]:
    """Yield each 1 MiB block of a raw value that differs from the index's checksums."""
    found = block_checksums(data)
    if len(found) != len(expected):
        yield f"the index holds {len(expected)} block checksums, the value has {len(found)} blocks"
    for block, (ours, theirs) in enumerate(zip(found, expected.tolist(), strict=False)):
        if ours != theirs:
            yield f"the checksum of block {block} is {ours:#010x}, the index says {theirs:#010x}"


def _count_and_dtype(value: Any) -> str:
    return f"{len(value)} {'bytes' if isinstance(value, list) else value.dtype} values"


def _raw(data: memoryview, field: Field, features: Decoded) -> Iterator[str]:
    dtype, shape, expected = field.stored_dtype, field.stored_shape, field.stored_bytes
    if len(data) != expected:
        yield f"expected {plural(expected, 'byte')} ({dtype} {list(shape)}), got {len(data):,}"


def _compressed(data: memoryview, field: Field, features: Decoded) -> Iterator[str]:
    pixels = decode_stored(data, field.encoding, (field.shape[0], field.shape[1]))
    if pixels is None:
        yield _undecodable(data, field)
        return
    size = (integer_of(features, keys.HEIGHT), integer_of(features, keys.WIDTH))
    if pixels.shape[:2] != size:
        stated = f"image/height and image/width say {size[0]} x {size[1]}"
        yield f"decodes to {pixels.shape[0]} x {pixels.shape[1]}, {stated}"
    channels = field.shape[-1] if "channel" in field.axes else 1
    if pixels.shape[2] != channels or str(pixels.dtype) != field.dtype:
        yield f"expected {plural(channels, 'channel')} of {field.dtype}, got {pixels.shape[2]} of {pixels.dtype}"


def _undecodable(data: memoryview, field: Field) -> str:
    try:
        check_encoded_image(data, field.encoding, (field.shape[0], field.shape[1]))
    except ValueError as error:
        return f"not a {field.encoding} image that can be decoded: {error}"
    return f"not a {field.encoding} image that can be decoded"


def _numbers(value: Any, field: Field, features: Decoded) -> Iterator[str]:
    limits = _INTEGER_LIMITS.get(field.dtype)
    wanted = "float32" if limits is None else "int64"
    if not isinstance(value, np.ndarray) or value.dtype != wanted:
        # Some writers store an empty list without its type; another check covers its length.
        if len(value):
            yield f"expected {wanted} values, got {_count_and_dtype(value)}"
        return
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
    elif (np.diff(value) <= 0).any():
        yield f"expected labels in ascending order, each once, got {value.tolist()}"


_BYTES_CHECKS: dict[str, Callable[[memoryview, Field, Decoded], Iterator[str]]] = {
    "raw": _raw,
    "sets": _raw,
    "jpeg": _compressed,
    "png": _compressed,
    "text": lambda data, field, features: iter(()),
}
_LIST_CHECKS: dict[str, Callable[[Any, Field, Decoded], Iterator[str]]] = {
    "classes": _classes,
    "value": _value,
    "list": _numbers,
}
"""Checks of a value, by the encoding of its field: of one bytes value, and of a list of values."""


def _parallel_problems(features: Decoded, manifest: Manifest) -> Iterator[str]:
    lists = [key for field in manifest.fields if field.encoding in ("list", "png_list") for key in field.keys]
    if keys.OBJECT_CLASS_LABEL in lists:
        lists.append(keys.OBJECT_CLASS_TEXT)
    lengths = {key: len(features[key]) for key in lists if key in features}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{key} {length}" for key, length in lengths.items())
        yield f"expected lists of one length, got {counts}"


def _image_problems(features: Decoded, manifest: Manifest) -> Iterator[str]:
    image, data = manifest.field("image"), bytes_of(features, keys.ENCODED)
    if data is None:
        return
    if (stored := text_of(features, keys.FORMAT)) != image.encoding:
        yield f"image/format: expected {image.encoding!r} as the manifest says, got {stored!r}"
    stored = text_of(features, keys.KEY_SHA256)
    # A raw image may have block checksums in the index instead.
    if (stored is not None or image.encoding != "raw") and (
        digest := hashlib.sha256(data).hexdigest()
    ) != stored:
        yield f"image/key/sha256: image/encoded has {digest}, the record says {stored!r:.80}"
    if is_volumetric(manifest):
        return  # a volume's sizes are checked with its geometry
    height, width = (integer_of(features, key) for key in keys.SIDES)
    if height is None or width is None:
        yield "image/height, image/width: expected one integer each"
        return
    if image.encoding == "raw" and (height, width) != image.shape[-3:-1]:
        yield f"image/height, image/width: expected {list(image.shape[-3:-1])} of a raw image, got {[height, width]}"
    for key, outer in zip(keys.UNPADDED_SIDES, (height, width), strict=True):
        if (inner := integer_of(features, key)) is not None and not 1 <= inner <= outer:
            yield f"{key}: expected 1 to {outer}, got {inner}"
    for key in keys.SOURCE_SIDES:
        if (side := integer_of(features, key)) is not None and side < 1:
            yield f"{key}: expected 1 or more, got {side}"


def _box_problems(features: Decoded) -> Iterator[str]:
    corners = {key: features.get(key) for key in keys.BOX_CORNERS}
    floats = {key: value for key, value in corners.items() if isinstance(value, np.ndarray)}
    for key, values in floats.items():
        # The negated comparison rejects NaN too.
        for box in np.flatnonzero(~((values >= 0) & (values <= 1))):
            yield f"{key}: box {box}: expected 0 to 1, got {values[box]}"
    for low, high in zip(keys.BOX_CORNERS[:2], keys.BOX_CORNERS[2:], strict=True):
        if low in floats and high in floats and len(floats[low]) == len(floats[high]):
            for box in np.flatnonzero(floats[low] > floats[high]):
                what, _, side = low.rpartition("/")
                yield (
                    f"{what}: box {box}: {side} {floats[low][box]} is more than "
                    f"{high.rpartition('/')[2]} {floats[high][box]}"
                )
    area = features.get(keys.OBJECT_AREA)
    if isinstance(area, np.ndarray):
        for box in np.flatnonzero(area < 0):
            yield f"image/object/area: box {box}: expected 0 or more, got {area[box]}"


def kept_problems(features: Decoded, manifest: Manifest) -> Iterator[str]:
    """Yield each problem of the features outside of the manifest's fields: the view and the keypoints."""
    kept = manifest.recipe.get("keep", ())
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
    key = OPTIONAL_ATTRIBUTES["keypoints"]
    names = [f"{key}/{part}" for part in (*_KEYPOINT_PARTS, "num")]
    if missing := [name for name in names if name not in features]:
        yield from (f"{name} is missing" for name in missing)
        return
    x, y, visibility, text, labeled = (features[name] for name in names)
    # Some writers store an empty list without its type.
    wrong = [
        f"{key}/{part}: expected {kind} values"
        for part, kind in _KEYPOINT_KINDS.items()
        if len(value := features[f"{key}/{part}"]) and getattr(value, "dtype", "bytes") != kind
    ]
    if wrong:
        yield from wrong
        return
    lengths = {part: len(features[f"{key}/{part}"]) for part in _KEYPOINT_PARTS}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{part} {length}" for part, length in lengths.items())
        yield f"{key}: expected lists of one length, got {counts}"
        return
    if len(labeled) != boxes:
        yield f"{key}/num: expected one for each of {plural(boxes, 'box', 'boxes')}, got {len(labeled)}"
        return
    if len(x) % boxes if boxes else len(x):
        yield f"{key}: expected as many points for each of {plural(boxes, 'box', 'boxes')}, got {len(x)} in all"
        return
    for part, values in (("x", x), ("y", y)):
        for point in np.flatnonzero(~np.isfinite(np.asarray(values, np.float32))):
            yield f"{key}/{part}: point {point} is {values[point]}"
    flags = np.asarray(visibility, np.int64)
    for point in np.flatnonzero((flags < 0) | (flags > 2)):
        yield f"{key}/visibility: point {point}: expected 0, 1 or 2, got {flags[point]}"
    each = len(x) // boxes if boxes else 0
    found = (flags.reshape(boxes, each) > 0).sum(axis=1) if boxes else flags
    for box, (stated, counted) in enumerate(zip(labeled, found, strict=True)):
        if stated != counted:
            yield f"{key}/num: box {box}: {stated}, but {counted} of its points are labeled"
    spelled = [bytes(name) for name in text]
    for box in range(1, boxes):
        if spelled[box * each : (box + 1) * each] != spelled[:each]:
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
    if not re.fullmatch("0|[1-9][0-9]{0,18}", stored):
        yield f"image/source_id: expected a decimal number, got {stored!r:.80}"
        return
    tile = integer_of(features, keys.TILE) or 0
    earlier = example_id(f"{key}#{tile}" if tile else key)
    if int(stored) not in (expected := example_id(key, tile), earlier):
        yield f"image/source_id: {stored}, but image/key/source {key!r:.80} gives {expected}"
