"""Access to the values of a decoded record: numbers, texts, images, geometry and label maps.

Most functions return None for a value that is missing or malformed, because data sets may come from strangers.
"""

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
from halofeed.prep.formats.picture.table import check_encoded_image
from halofeed.schemas import keys
from halofeed.schemas.fields import Field, count_set_members, ids_of_field, top_classes, unknown_bits
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tfexample import Decoded


def integer_of(features: Decoded, key: str) -> int | None:
    """Return the single integer of a key, or None."""
    value = features.get(key)
    return (
        int(value[0])
        if isinstance(value, np.ndarray) and value.dtype == np.int64 and len(value) == 1
        else None
    )


def bytes_of(features: Decoded, key: str) -> memoryview | None:
    """Return the single bytes value of a key, or None."""
    value = features.get(key)
    return value[0] if isinstance(value, list) and len(value) == 1 else None


def text_of(features: Decoded, key: str) -> str | None:
    """Return the single text of a key, or None; bytes that are not UTF-8 become lone surrogates."""
    value = bytes_of(features, key)
    return None if value is None else str(value, "utf-8", "surrogateescape")


def decode_stored(data: memoryview, encoding: str, largest: tuple[int, int]) -> NDArray[Any] | None:
    """Decode a stored JPEG or PNG to [height, width, channel] in OpenCV's channel order.

    Returns:
        the pixels; None if the data cannot be decoded or the image is larger than `largest` (height, width).
    """
    try:
        check_encoded_image(data, encoding, largest)
    except ValueError:
        return None
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    return None if pixels is None else pixels.reshape(*pixels.shape[:2], -1)


VOLUME_AXES = ("depth", "height", "width")
DIRECTIONS = (("left", "right"), ("posterior", "anterior"), ("inferior", "superior"))
"""For the patient's axes x, y, z: the direction at the low end, and the direction at the high end."""
CANONICAL = (2, 1, 0)
"""The patient's axes along which depth, height and width run."""
CHUNK_VALUES = 1 << 22


def array_of(features: Decoded, key: str, kind: str = "f") -> NDArray[Any] | None:
    """Return the numbers of a key, or None if it is missing or has another NumPy kind."""
    value = features.get(key)
    return value if isinstance(value, np.ndarray) and value.dtype.kind == kind else None


def spacing_of(features: Decoded) -> NDArray[np.float32] | None:
    """Return the millimeters between voxels along each axis, or None unless there are three finite numbers."""
    spacing = array_of(features, keys.SPACING_MM)
    return spacing if spacing is not None and spacing.shape == (3,) and np.isfinite(spacing).all() else None


def extent_of(features: Decoded) -> NDArray[np.int64] | None:
    """Return int64 [2, axis], the first index and the one after the last of the part without padding, or None."""
    extent = array_of(features, keys.EXTENT, "i")
    return extent.reshape(2, 3) if extent is not None and extent.shape == (6,) else None


def affine_of(features: Decoded, key: str = keys.AFFINE) -> NDArray[np.float64] | None:
    """Return the affine of a key as float64 [4, 4], or None."""
    value = array_of(features, key)
    return value.reshape(4, 4).astype(np.float64) if value is not None and value.shape == (16,) else None


def orientation_of(affine: NDArray[np.float64]) -> tuple[tuple[str, str], ...]:
    """Return, for each axis, the patient's directions at its low end and at its high end.

    >>> orientation_of(np.array([[0, 0, 2], [0, 2, 0], [-3, 0, 0]]))[0]
    ('superior', 'inferior')
    """
    cosines = direction_cosines(affine[:3, :3])
    return tuple(
        DIRECTIONS[row] if cosines[row, axis] >= 0 else DIRECTIONS[row][::-1]
        for axis, row in enumerate(_nearest_patient_axes(cosines))
    )


def oblique_degrees(affine: NDArray[np.float64]) -> float:
    """Return the largest angle between an axis and its nearest patient axis."""
    cosines = np.abs(direction_cosines(affine[:3, :3]))
    least = min(float(cosines[row, axis]) for axis, row in enumerate(_nearest_patient_axes(cosines)))
    return math.degrees(math.acos(min(1.0, least)))


def direction_cosines(linear: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale each column of a matrix [3, 3] to length 1; columns of zeros stay."""
    lengths = np.linalg.norm(linear, axis=0)
    return np.asarray(linear / np.where(lengths, lengths, 1))


def _nearest_patient_axes(cosines: NDArray[np.float64]) -> tuple[int, ...]:
    """Return the patient's axis nearest to each axis, by the best match of all three together."""
    return max(permutations(range(3)), key=lambda rows: alignment(cosines, rows))


def alignment(cosines: NDArray[np.float64], rows: tuple[int, ...]) -> float:
    """Return the sum of the absolute cosines between each axis and the patient's axis assigned to it."""
    return sum(abs(float(cosines[row, axis])) for axis, row in enumerate(rows))


@dataclass(frozen=True, kw_only=True)
class ClassCounts:
    """Pixel or voxel counts of a label map.

    Args:
        voxels: count by class id, without zeros; 0 is the background. A voxel of several classes counts for each.
        foreground: number of voxels of any class, each counted once.
        unknown: count by description of each value that the manifest has no class for.
    """

    voxels: Mapping[int, int] = field(default_factory=dict)
    foreground: int = 0
    unknown: Mapping[str, int] = field(default_factory=dict)


def label_field(manifest: Manifest) -> Field | None:
    """Return the field of the class indices, or None if the data set has none."""
    return next((field for field in manifest.fields if keys.LABEL in field.keys), None)


def is_volumetric(manifest: Manifest) -> bool:
    """Return whether records hold volumes."""
    return "depth" in manifest.kind.axes


def label_map(features: Decoded, manifest: Manifest) -> NDArray[Any] | None:
    """Return the stored label of each pixel or voxel, or None; a view if the field is raw.

    A label is a class index, or a set of classes if classes overlap: see `shown_classes` and `class_counts`.
    """
    field, data = label_field(manifest), bytes_of(features, keys.LABEL)
    if field is None or data is None:
        return None
    if field.is_raw:
        return _raw_array(data, field)
    pixels = decode_stored(data, "png", (field.shape[0], field.shape[1]))
    return pixels[..., 0] if pixels is not None and pixels.shape[2] == 1 else None


def class_channels(manifest: Manifest) -> tuple[int, ...]:
    """Return the class id of each channel if classes overlap, else ()."""
    field = label_field(manifest)
    return () if field is None else ids_of_field(field, manifest.labels)


def shown_classes(label: NDArray[Any], manifest: Manifest) -> NDArray[Any]:
    """Return the class to draw for each pixel or voxel of a `label_map`: that of the highest id.

    Ignored pixels are drawn as background.
    """
    channels = class_channels(manifest)
    if manifest.ignore_label is not None:
        return np.where(label == manifest.ignore_label, 0, label)
    return top_classes(label, channels) if channels else label


def class_counts(label: NDArray[Any], manifest: Manifest) -> ClassCounts:
    """Count the classes of a `label_map`."""
    counts, channels = count_classes(label), class_channels(manifest)
    if channels:
        voxels = count_set_members(counts, channels)
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
    """Count each stored value of a label map, in chunks to bound the memory."""
    flat = label.reshape(-1)
    counts: Counter[int] = Counter()
    for start in range(0, len(flat), CHUNK_VALUES):
        counts.update(count_labels(flat[start : start + CHUNK_VALUES]))
    return dict(sorted(counts.items()))


def stored_image(features: Decoded, manifest: Manifest) -> NDArray[Any] | None:
    """Return the image of a record as stored, [(depth,) height, width, channel], or None; a view if it is raw.

    bfloat16 is returned as its bits in uint16, see `halofeed.prep.voxels.intensity.as_numbers`.
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
