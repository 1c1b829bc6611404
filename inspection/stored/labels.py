"""What do the label map and the voxels of a record hold: class indices, or sets of classes?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.stored.features import bytes_of, decode_stored
from halofeed.prep.statistics.pictures import count_labels
from halofeed.schemas import keys
from halofeed.schemas.class_sets import count_members, ids_of_field, top_classes, unknown_bits
from halofeed.schemas.fields import Field
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tfexample import Decoded

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
