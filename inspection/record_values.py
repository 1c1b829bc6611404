"""FoundValues of a record for conditions: its split, id, source, classes, sizes, boxes, attributes and findings.

Only what a condition names is read: a label map is decoded for `class`, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from halofeed.inspection.compare_records import source_of
from halofeed.inspection.stored_records import (
    StoredShard,
    class_counts,
    integer_of,
    is_volumetric,
    label_field,
    label_map,
)
from halofeed.inspection.where import FoundValues
from halofeed.schemas import keys
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tasks import OPTIONAL_ATTRIBUTES
from halofeed.schemas.tfexample import Decoded

ATTRIBUTES: Mapping[str, str] = {
    **keys.OBJECT_FLAGS,
    **{name: OPTIONAL_ATTRIBUTES[name] for name in ("category_id", "group_of", "occluded", "view")},
}
"""Key of each attribute of objects by its name."""
NAMES: Mapping[str, str] = {
    "class": "names of the classes that the record shows: of the picture, its boxes or its label map",
    "split": "split of the record",
    "source": "file of the source",
    "id": "id of the record",
    "width": "width of the source in pixels or voxels",
    "height": "height of the source",
    "depth": "slices of the source, of volumes",
    "size": "the longest of these sides",
    "boxes": "number of boxes",
    "finding": "kinds of suspects of `halofeed review`, or the caller's own findings",
    **dict.fromkeys(ATTRIBUTES, "the flag or attribute of each box; flags are 0 or 1"),
}
"""Meaning of each name that a condition may test."""
Findings = Mapping[int, Collection[str]]
"""Names of findings by the id of the record."""


def values_of_class(manifest: Manifest) -> tuple[str, ...]:
    """Return all values that `class` may have; the background of label maps may have no name."""
    unnamed = () if label_field(manifest) is None or 0 in manifest.labels else ("0",)
    return (*unnamed, *manifest.labels.values())


@dataclass(frozen=True, kw_only=True)
class RecordValues:
    """FoundValues of one record, each read when it is asked for.

    Args:
        stored: shard of the record.
        row: number of the record in the shard.
        split: split of the shard.
        findings: names of findings by id; None if none are known.
    """

    stored: StoredShard
    row: int
    split: str
    manifest: Manifest
    findings: Findings | None = None
    _read: dict[str, Any] = field(default_factory=dict)

    def values(self, name: str) -> FoundValues:
        """Return the values of a name; () where the record has none."""
        if name not in self._read:
            self._read[name] = self._values(name)
        found: FoundValues = self._read[name]
        return found

    def _values(self, name: str) -> FoundValues:
        if name == "split":
            return (self.split,)
        if name == "id":
            return (int(self.stored.index.ids[self.row]),)
        if name == "finding":
            return (self.findings or {}).get(int(self.stored.index.ids[self.row]), ())
        if name == "class":
            return [self.manifest.labels.get(one, str(one)) for one in self._classes()]
        if name in ("width", "height", "depth", "size"):
            return self._sides(name)
        features = self._features(_KEYS.get(name, (ATTRIBUTES.get(name, name),)))
        if name == "source":
            return (source_of(features),)
        if name == "boxes":
            return (len(features.get(keys.OBJECT_CLASS_LABEL, ())),)
        return _plain(features.get(ATTRIBUTES.get(name, name)))

    def _features(self, wanted: Collection[str]) -> Decoded:
        """Return the values of small features."""
        return self.stored.small_features(self.row, wanted)

    def _classes(self) -> Iterable[int]:
        """Return the ids of the classes that the record shows."""
        if label_field(self.manifest) is not None:
            features = self.stored.features(self.row)
            label = label_map(features, self.manifest)
            if label is None or not integer_of(features, keys.LABELLED):
                return ()
            return class_counts(label, self.manifest).voxels
        features = self._features((keys.CLASS_LABEL, keys.OBJECT_CLASS_LABEL))
        found = features.get(keys.OBJECT_CLASS_LABEL, features.get(keys.CLASS_LABEL))
        return sorted(set(found.tolist())) if isinstance(found, np.ndarray) else ()

    def _sides(self, name: str) -> FoundValues:
        features = self._features((*keys.SOURCE_SIDES, keys.SOURCE_SHAPE))
        axes = ("depth", "height", "width") if is_volumetric(self.manifest) else ("height", "width")
        if is_volumetric(self.manifest):
            found = features.get(keys.SOURCE_SHAPE)
            sides = found.tolist() if isinstance(found, np.ndarray) and len(found) == len(axes) else []
        else:
            sides = [one for key in keys.SOURCE_SIDES if (one := integer_of(features, key)) is not None]
        by_axis = dict(zip(axes, sides, strict=False))
        if name == "size":
            return (max(sides),) if sides else ()
        return (by_axis[name],) if name in by_axis else ()


_KEYS: Mapping[str, tuple[str, ...]] = {
    "source": (keys.FILENAME, keys.KEY_SOURCE),
    "boxes": (keys.OBJECT_CLASS_LABEL,),
}


def _plain(value: Any) -> FoundValues:
    """Return the values of a feature, each once."""
    if value is None:
        return ()
    if isinstance(value, np.ndarray):
        return list(dict.fromkeys(value.tolist()))
    return list(dict.fromkeys(str(one, "utf-8", "replace") for one in map(bytes, value)))
