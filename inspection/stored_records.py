"""Fields of stored records: numbers, geometry, labels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from halofeed.prep.convert.tallies import count_labels
from halofeed.prep.formats.picture.table import check_stored
from halofeed.schemas import keys
from halofeed.schemas.fields import Field, count_members, ids_of_field, top_classes, unknown_bits
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tfexample import Decoded


def integer_of(features: Decoded, key: str) -> int | None:
    """The single integer of a key, or None where there is none."""
    value = features.get(key)
    return (
        int(value[0])
        if isinstance(value, np.ndarray) and value.dtype == np.int64 and len(value) == 1
        else None
    )


def bytes_of(features: Decoded, key: str) -> memoryview | None:
    """The single bytes value of a key, or None where there is none."""
    value = features.get(key)
    return value[0] if isinstance(value, list) and len(value) == 1 else None


def text_of(features: Decoded, key: str) -> str | None:
    """The single text of a key, or None; bytes that are not UTF-8 become lone surrogates, as in file names."""
    value = bytes_of(features, key)
    return None if value is None else str(value, "utf-8", "surrogateescape")


def decode_stored(data: memoryview, encoding: str, largest: tuple[int, int]) -> NDArray[Any] | None:
    """The pixels [height, width, channel] of a stored JPEG or PNG, channels in OpenCV's order.

    None if it is none, cannot be decoded, or is larger than it may be.
    """
    try:
        check_stored(data, encoding, largest)
    except ValueError:
        return None
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    return None if pixels is None else pixels.reshape(*pixels.shape[:2], -1)


VOLUME_AXES = ("depth", "height", "width")
DIRECTIONS = (("left", "right"), ("posterior", "anterior"), ("inferior", "superior"))
"""Of the patient's axes x, y, z: where they come from, and where they grow to."""
CANONICAL = (2, 1, 0)
"""Which of the patient's axes depth, height and width run along."""


def array_of(features: Decoded, key: str, kind: str = "f") -> NDArray[Any] | None:
    """The numbers of a key, or None where it is not there or of another kind."""
    value = features.get(key)
    return value if isinstance(value, np.ndarray) and value.dtype.kind == kind else None


def spacing_of(features: Decoded) -> NDArray[np.float32] | None:
    """Millimeters between voxels along each axis; None where it is not there, or no three finite numbers."""
    spacing = array_of(features, keys.SPACING_MM)
    return spacing if spacing is not None and spacing.shape == (3,) and np.isfinite(spacing).all() else None


def extent_of(features: Decoded) -> NDArray[np.int64] | None:
    """[first and one after last, axis] of what shows the scan; None where it is not there."""
    extent = array_of(features, keys.EXTENT, "i")
    return extent.reshape(2, 3) if extent is not None and extent.shape == (6,) else None


def affine_of(features: Decoded, key: str = keys.AFFINE) -> NDArray[np.float64] | None:
    """float64 [4, 4], or None where it is not there."""
    value = array_of(features, key)
    return value.reshape(4, 4).astype(np.float64) if value is not None and value.shape == (16,) else None


def orientation_of(affine: NDArray[np.float64]) -> tuple[tuple[str, str], ...]:
    """For each axis, the patient's direction it comes from and the one it grows to.

    >>> orientation_of(np.array([[0, 0, 2], [0, 2, 0], [-3, 0, 0]]))[0]
    ('superior', 'inferior')
    """
    cosines = direction_cosines(affine[:3, :3])
    return tuple(
        DIRECTIONS[row] if cosines[row, axis] >= 0 else DIRECTIONS[row][::-1]
        for axis, row in enumerate(_nearest_patient_axes(cosines))
    )


def oblique_degrees(affine: NDArray[np.float64]) -> float:
    """The largest angle between an axis and the patient's axis that it lies nearest to."""
    cosines = np.abs(direction_cosines(affine[:3, :3]))
    least = min(float(cosines[row, axis]) for axis, row in enumerate(_nearest_patient_axes(cosines)))
    return math.degrees(math.acos(min(1.0, least)))


def direction_cosines(linear: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths = np.linalg.norm(linear, axis=0)
    return np.asarray(linear / np.where(lengths, lengths, 1))


def _nearest_patient_axes(cosines: NDArray[np.float64]) -> tuple[int, ...]:
    """Which of the patient's axes each axis lies nearest to, all three together."""
    return max(permutations(range(3)), key=lambda rows: alignment(cosines, rows))


def alignment(cosines: NDArray[np.float64], rows: tuple[int, ...]) -> float:
    return sum(abs(float(cosines[row, axis])) for axis, row in enumerate(rows))


CHUNK_VALUES = 1 << 22


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
    return next((field for field in manifest.fields if keys.LABEL in field.keys), None)


def is_volumetric(manifest: Manifest) -> bool:
    """Whether records hold volumes."""
    return "depth" in manifest.kind.axes


def label_map(features: Decoded, manifest: Manifest) -> NDArray[Any] | None:
    """What is stored at every pixel or voxel, a view where it is raw; None where it cannot be read.

    That is a class index, or a set of classes where the label's field says so: see `shown_classes`, `class_counts`.
    """
    field, data = label_field(manifest), bytes_of(features, keys.LABEL)
    if field is None or data is None:
        return None
    if field.is_raw:
        return _raw_array(data, field)
    pixels = decode_stored(data, "png", (field.shape[0], field.shape[1]))
    return pixels[..., 0] if pixels is not None and pixels.shape[2] == 1 else None


def class_channels(manifest: Manifest) -> tuple[int, ...]:
    """The class ids by channel where a pixel or voxel may be in several classes; else ()."""
    field = label_field(manifest)
    return () if field is None else ids_of_field(field, manifest.labels)


def shown_classes(label: NDArray[Any], manifest: Manifest) -> NDArray[Any]:
    """One class for each pixel or voxel of a `label_map`, as a drawing shows it; of several that of the highest id.

    What is to be ignored is drawn as the background.
    """
    channels = class_channels(manifest)
    if manifest.ignore_label is not None:
        return np.where(label == manifest.ignore_label, 0, label)
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
        counts.pop(-1 if manifest.ignore_label is None else manifest.ignore_label, None)
        voxels = counts
        unknown = {
            f"of value {value}": count for value, count in counts.items() if value not in manifest.labels
        }
    return ClassCounts(voxels=voxels, foreground=sum(counts.values()) - counts.get(0, 0), unknown=unknown)


def count_classes(label: NDArray[Any]) -> dict[int, int]:
    """How many pixels or voxels each stored value has, those with none left out; a part at a time: little memory."""
    flat = label.reshape(-1)
    counts: Counter[int] = Counter()
    for start in range(0, len(flat), CHUNK_VALUES):
        counts.update(count_labels(flat[start : start + CHUNK_VALUES]))
    return dict(sorted(counts.items()))


def stored_image(features: Decoded, manifest: Manifest) -> NDArray[Any] | None:
    """The image of a record as stored, [(depth,) height, width, channel], a view where it is raw; None if unreadable.

    bfloat16 comes as its bits in uint16, see `halofeed.prep.voxels.intensity.as_numbers`.
    """
    field, data = manifest.field("image"), bytes_of(features, keys.ENCODED)
    if data is None:
        return None
    if field.is_raw:
        return _raw_array(data, field)
    pixels = decode_stored(data, field.encoding, (field.shape[0], field.shape[1]))
    order = {3: [2, 1, 0], 4: [2, 1, 0, 3]}.get(0 if pixels is None else pixels.shape[2])
    return pixels if pixels is None or order is None else pixels[..., order]


def _raw_array(data: memoryview, field: Field) -> NDArray[Any] | None:
    if len(data) != field.stored_bytes:
        return None
    dtype = "uint16" if field.stored_dtype == "bfloat16" else field.stored_dtype
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).reshape(field.stored_shape)
