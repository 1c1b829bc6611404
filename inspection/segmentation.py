"""Do the label map and the geometry of a segmentation record hold what they must? Every fault in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.records import IMAGE_KEY, bytes_of, integer_of
from halofeed.prep.statistics import count_labels
from halofeed.schemas.class_sets import count_members, ids_of_field, top_classes, unknown_bits
from halofeed.schemas.fields import Field
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tfexample import Decoded

LABEL_KEY = "image/label"
AXES = ("depth", "height", "width")
DIRECTIONS = (("left", "right"), ("posterior", "anterior"), ("inferior", "superior"))
"""Of the patient's axes x, y, z: where they come from, and where they grow to."""
CANONICAL = (2, 1, 0)
"""Which of the patient's axes depth, height and width run along."""

_SPACING_TOLERANCE = 1e-6
"""Relative: what rounding the affine and the spacing to float32 leaves between them is within 3e-7."""
_FLATTEST = 1e-6
"""A voxel's volume over that of a brick with the same sides, below which an affine maps to a plane."""
_NOT_NEAREST = 1e-3
"""By so much may another order of axes lie closer to the patient's, which at 45 degrees is rounding."""
_CHUNK = 1 << 22


@dataclass(frozen=True, kw_only=True)
class ClassCounts:
    """How many pixels or voxels of a label each class has.

    Args:
        voxels: by class id, those with none left out; 0 is the background. One of several classes counts for each.
        foreground: those of any class, each once.
        unknown: what occurs that the manifest knows no class for, in words.
    """

    voxels: Mapping[int, int] = field(default_factory=dict)
    foreground: int = 0
    unknown: Mapping[str, int] = field(default_factory=dict)


def label_field(manifest: Manifest) -> Field | None:
    """The field of the class indices, or None where the data set has none."""
    return next((field for field in manifest.fields if LABEL_KEY in field.keys), None)


def is_volumetric(manifest: Manifest) -> bool:
    """Whether records hold volumes."""
    return any("depth" in field.axes for field in manifest.fields)


def label_map(features: Decoded, manifest: Manifest) -> NDArray[Any] | None:
    """What is stored at every pixel or voxel, a view where it is raw; None where it cannot be read.

    That is a class index, or a set of classes where the label's field says so: see `shown_classes`, `class_counts`.
    """
    field, value = label_field(manifest), features.get(LABEL_KEY)
    if field is None or not isinstance(value, list) or len(value) != 1 or not len(value[0]):
        return None
    if field.is_raw:
        dtype = np.dtype(field.stored_dtype).newbyteorder("<")
        if len(value[0]) != math.prod(field.stored_shape) * dtype.itemsize:
            return None
        return np.frombuffer(value[0], dtype).reshape(field.stored_shape)
    pixels = cv2.imdecode(np.frombuffer(value[0], np.uint8), cv2.IMREAD_UNCHANGED)
    return pixels if pixels is not None and pixels.ndim == 2 and pixels.dtype.kind == "u" else None


def class_channels(manifest: Manifest) -> tuple[int, ...]:
    """The class ids by channel where a pixel or voxel may be in several classes; else ()."""
    field = label_field(manifest)
    return () if field is None else ids_of_field(field, manifest.labels)


def shown_classes(label: NDArray[Any], manifest: Manifest) -> NDArray[Any]:
    """One class for each pixel or voxel of a `label_map`, as a drawing shows it; of several that of the highest id."""
    channels = class_channels(manifest)
    return top_classes(label, channels) if channels else label


def class_counts(label: NDArray[Any], manifest: Manifest) -> ClassCounts:
    """What a `label_map` holds."""
    counts, channels = count_classes(label), class_channels(manifest)
    if channels:
        voxels = count_members(counts, channels)
        unknown = {
            f"in bit {bit} of its sets": count for bit, count in unknown_bits(counts, len(channels)).items()
        }
    else:
        voxels = counts
        unknown = {
            f"of value {value}": count for value, count in counts.items() if value not in manifest.labels
        }
    return ClassCounts(voxels=voxels, foreground=sum(counts.values()) - counts.get(0, 0), unknown=unknown)


def count_classes(label: NDArray[Any]) -> dict[int, int]:
    """How many pixels or voxels each stored value has, those with none left out; a part at a time: little memory."""
    flat = label.reshape(-1)
    counts: Counter[int] = Counter()
    for start in range(0, len(flat), _CHUNK):
        counts.update(count_labels(flat[start : start + _CHUNK]))
    return dict(sorted(counts.items()))


def shape_of(features: Decoded, field: Field) -> tuple[int | None, ...]:
    """The stored size (image/depth, image/height, image/width) along the field's axes, without channels."""
    return tuple(
        integer_of(features, f"image/{axis}") for axis in field.axes if axis not in ("channel", "class")
    )


def triple_of(features: Decoded, key: str, kind: str = "f") -> NDArray[Any] | None:
    """The numbers of a key, or None where it is not there or of another kind."""
    value = features.get(key)
    return value if isinstance(value, np.ndarray) and value.dtype.kind == kind else None


def extent_of(features: Decoded) -> NDArray[np.int64] | None:
    """[first and one after last, axis] of what shows the scan; None where it is not there."""
    extent = triple_of(features, "image/extent", "i")
    return extent.reshape(2, 3) if extent is not None and extent.shape == (6,) else None


def affine_of(features: Decoded, key: str = "image/affine") -> NDArray[np.float64] | None:
    """float64 [4, 4], or None where it is not there."""
    value = triple_of(features, key)
    return value.reshape(4, 4).astype(np.float64) if value is not None and value.shape == (16,) else None


def orientation_of(affine: NDArray[np.float64]) -> tuple[tuple[str, str], ...]:
    """For each axis, the patient's direction it comes from and the one it grows to.

    >>> orientation_of(np.array([[0, 0, 2], [0, 2, 0], [-3, 0, 0]]))[0]
    ('superior', 'inferior')
    """
    cosines = _cosines(affine[:3, :3])
    order = max(permutations(range(3)), key=lambda rows: _fit(cosines, rows))
    return tuple(
        DIRECTIONS[row] if cosines[row, axis] >= 0 else DIRECTIONS[row][::-1]
        for axis, row in enumerate(order)
    )


def oblique_degrees(affine: NDArray[np.float64]) -> float:
    """The largest angle between an axis and the patient's axis that it lies nearest to."""
    cosines = np.abs(_cosines(affine[:3, :3]))
    order = max(permutations(range(3)), key=lambda rows: _fit(cosines, rows))
    least = min(float(cosines[row, axis]) for axis, row in enumerate(order))
    return math.degrees(math.acos(min(1.0, least)))


def segmentation_problems(features: Decoded, manifest: Manifest, counts: ClassCounts | None) -> Iterator[str]:
    """What is wrong with the label map, the geometry and the values of a record.

    Args:
        counts: of `class_counts`; None where the label map cannot be read, which is told elsewhere.
    """
    field = label_field(manifest)
    if field is None:
        return
    for what, count in (counts.unknown if counts else {}).items():
        yield f"{LABEL_KEY}: {count:,} {what}, which is not in the manifest's labels"
    marked = counts.foreground if counts else 0
    if integer_of(features, "image/labelled") == 0 and marked:
        yield f"{LABEL_KEY}: expected 0 throughout, as image/labelled is 0; {marked:,} are not"
    if "depth" not in field.axes:
        return
    image = next(item for item in manifest.fields if IMAGE_KEY in item.keys)
    yield from _value_problems(bytes_of(features, IMAGE_KEY), image.dtype)
    shape, stored = field.stored_shape, shape_of(features, field)
    if stored != shape:
        yield f"image/depth, image/height, image/width: expected {list(shape)} of a volume, got {list(stored)}"
    yield from _extent_problems(features, shape)
    yield from _affine_problems(features)
    source = triple_of(features, "image/source/shape", "i")
    if source is not None and (source < 1).any():
        yield f"image/source/shape: expected 1 or more along each axis, got {source.tolist()}"
    tile = integer_of(features, "image/tile")
    if tile is not None and tile < 0:
        yield f"image/tile: expected 0 or more, got {tile}"


def _value_problems(data: memoryview | None, dtype: str) -> Iterator[str]:
    """Values of a raw image that are no numbers; integers always are."""
    if data is None or dtype not in ("float32", "float64", "bfloat16"):
        return
    kind = np.dtype({"bfloat16": np.uint16}.get(dtype, dtype)).newbyteorder("<")
    if len(data) % kind.itemsize:
        return
    values = np.frombuffer(data, kind)
    wrong = 0
    for start in range(0, len(values), _CHUNK):
        part = values[start : start + _CHUNK]
        finite = (part & 0x7F80) != 0x7F80 if dtype == "bfloat16" else np.isfinite(part)
        wrong += int(part.size - np.count_nonzero(finite))
    if wrong:
        yield f"{IMAGE_KEY}: {wrong:,} of {len(values):,} values are infinite or no number"


def _extent_problems(features: Decoded, shape: tuple[int, ...]) -> Iterator[str]:
    extent = extent_of(features)
    if extent is None:
        return
    for axis, size, first, last in zip(AXES, shape, *extent.tolist(), strict=True):
        if not 0 <= first < last <= size:
            yield f"image/extent: {axis}: expected a part of 0 to {size}, got {first} to {last}"


def _affine_problems(features: Decoded) -> Iterator[str]:
    for key in ("image/affine", "image/source/affine"):
        affine = affine_of(features, key)
        if affine is None or not np.isfinite(affine).all():
            continue  # told by the check of its values
        lengths = np.linalg.norm(affine[:3, :3], axis=0)
        if affine[3].tolist() != [0, 0, 0, 1]:
            yield f"{key}: expected a last row of 0, 0, 0, 1, got {affine[3].tolist()}"
        if (
            not lengths.all()
            or abs(np.linalg.det(affine[:3, :3] / np.where(lengths, lengths, 1))) < _FLATTEST
        ):
            yield f"{key}: it cannot be inverted: voxels of a volume lie on one plane of the patient"
        elif key == "image/affine":
            yield from _spacing_problems(features, lengths)
            yield from _direction_problems(affine)


def _spacing_problems(features: Decoded, lengths: NDArray[np.float64]) -> Iterator[str]:
    spacing = triple_of(features, "image/spacing_mm")
    if spacing is None or spacing.shape != (3,):
        return
    for axis, stated, length in zip(AXES, spacing.tolist(), lengths.tolist(), strict=True):
        # Written so that NaN is wrong too.
        if not abs(stated - length) <= _SPACING_TOLERANCE * length:
            yield f"image/spacing_mm: {axis}: {stated:.9g}, but a step of image/affine is {length:.9g} mm"


def _direction_problems(affine: NDArray[np.float64]) -> Iterator[str]:
    cosines = _cosines(affine[:3, :3])
    best = max(_fit(cosines, rows) for rows in permutations(range(3)))
    nearest = orientation_of(affine)
    if _fit(cosines, CANONICAL) >= best - _NOT_NEAREST:
        nearest = tuple(
            DIRECTIONS[row] if cosines[row, axis] > 0 else DIRECTIONS[row][::-1]
            for axis, row in enumerate(CANONICAL)
        )
    for axis, row, (_, towards) in zip(AXES, CANONICAL, nearest, strict=True):
        if towards != DIRECTIONS[row][1]:
            yield f"image/affine: {axis}: expected it to grow to {DIRECTIONS[row][1]}, it grows to {towards}"


def _cosines(linear: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(linear, axis=0)
    return np.asarray(linear / np.where(lengths, lengths, 1))


def _fit(cosines: NDArray[np.float64], rows: tuple[int, ...]) -> float:
    return sum(abs(float(cosines[row, axis])) for axis, row in enumerate(rows))


def image_voxels(features: Decoded, manifest: Manifest) -> NDArray[Any] | None:
    """A volume [depth, height, width, channel] as stored, a view; None where it cannot be read.

    bfloat16 comes as its bits in uint16, see `halofeed.prep.volume.intensity.as_numbers`.
    """
    field = next(field for field in manifest.fields if IMAGE_KEY in field.keys)
    data = bytes_of(features, IMAGE_KEY)
    if data is None or field.encoding != "raw":
        return None
    dtype = np.dtype({"bfloat16": "uint16"}.get(field.dtype, field.dtype)).newbyteorder("<")
    if len(data) != math.prod(field.shape) * dtype.itemsize:
        return None
    return np.frombuffer(data, dtype).reshape(field.shape)
