"""Comparison of two records of one example: pixels, label map, classes, boxes, masks, geometry and other features.

A value that follows from another one is not reported: the area of a box that moved, or the checksum of the pixels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.stored_records import (
    bytes_of,
    class_channels,
    is_volumetric,
    label_field,
    stored_image,
    text_of,
)
from halofeed.inspection.stored_values import stored_array
from halofeed.prep.voxels.intensity import as_numbers
from halofeed.schemas import keys
from halofeed.schemas.manifest import Manifest
from halofeed.schemas.tfexample import Decoded
from halofeed.system.wording import plural

PIXELS, LABEL, MASK, BOXES, REGIONS, GEOMETRY, OTHER = (
    *("pixels", "label", "mask", "boxes", "ignored regions", "geometry", "features"),
)
_NAMES = {keys.CLASS_TEXT, keys.OBJECT_CLASS_TEXT}
"""Names of classes, which follow from their numbers and the data set's class names."""
_OF_IMAGE = {keys.ENCODED, keys.FORMAT}
_OF_BYTES = {keys.KEY_SHA256}
"""Checksum of the stored image, which follows from it."""
_OF_LABEL = {keys.LABEL, keys.LABELLED}
_GEOMETRY = (
    *(keys.SPACING_MM, keys.AFFINE, keys.SOURCE_AFFINE, keys.SOURCE_SHAPE, keys.EXTENT, keys.TRANSFORM),
    *(keys.CRS, keys.GEOTRANSFORM, keys.TILE, keys.TILE_ORIGIN, keys.TILE_WHOLE, keys.DEPTH, *keys.SIDES),
    *(*keys.UNPADDED_SIDES, *keys.SOURCE_SIDES),
)
_LEAST_OVERLAP = 0.1
"""IoU from which a box that is gone and a new one of the same class are one box that moved."""
_SHOWN = 3
_SHOWN_BEFORE = 20
"""Bytes of a long text before those that differ."""


@dataclass(frozen=True, kw_only=True)
class RecordPair:
    """The two records of an example, with what their data sets say of them.

    Args:
        classes: number of each class of the earlier data set in the later one; classes that are gone are missing.
    """

    before: Decoded
    after: Decoded
    earlier: Manifest
    later: Manifest
    classes: Mapping[int, int]

    def differs(self, key: str) -> bool:
        """Return whether the two values of a key differ."""
        return not _are_equal(self.before.get(key), self.after.get(key))

    def both(self, key: str) -> str:
        """Return both values of a key as text."""
        before, after = _texts(self.before.get(key), self.after.get(key))
        return f"{key}: {before} before, {after} now"

    def number_now(self, label: int) -> int:
        """Return the number of an earlier class in the later data set; a negative one for a class that is gone."""
        return self.classes.get(label, -1 - label)

    def name_of(self, label: int) -> str:
        """Return the name of a class by its `number_now`."""
        return _name(self.later, label) if label >= 0 else _name(self.earlier, -1 - label)

    @property
    def keeps_numbers(self) -> bool:
        """Return whether equal label images of both data sets show the same classes."""
        return keeps_numbers(self.earlier, self.later, self.classes)


def keeps_numbers(earlier: Manifest, later: Manifest, classes: Mapping[int, int]) -> bool:
    """Return whether equal label images of two data sets show the same classes.

    Args:
        classes: see `RecordPair`.
    """
    if label_field(earlier) is None:
        return True
    # Bit by bit, where records hold sets of classes.
    if channels := class_channels(earlier):
        return tuple(map(classes.get, channels)) == class_channels(later)[: len(channels)]
    ignored = earlier.ignore_label in later.labels or later.ignore_label in earlier.labels
    return not ignored and all(classes.get(one) == one for one in earlier.labels if one in later.labels)


def _are_equal(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(a == b for a, b in zip(one, other, strict=True))
    return False


def compare_records(pair: RecordPair) -> list[tuple[str, str]]:
    """Return (kind, what changed) of each change between two records; [] for records that say the same."""
    changed = {key for key in {*pair.before, *pair.after} if pair.differs(key)} - _NAMES
    found = [*_pixel_changes(pair, changed), *_label_changes(pair, changed), *_class_changes(pair, changed)]
    found += _box_changes(pair, changed)
    if any(key.startswith(keys.OF_IGNORED) for key in changed):
        counts = [len(one.get(keys.IGNORED_CORNERS[0], ())) for one in (pair.before, pair.after)]
        found.append((REGIONS, f"{counts[0]} before, {counts[1]} now"))
    found += [(GEOMETRY, pair.both(key)) for key in _GEOMETRY if key in changed]
    known = {*_OF_IMAGE, *_OF_LABEL, *_GEOMETRY, *_OF_BYTES, keys.CLASS_LABEL}
    others = sorted(key for key in changed - known if not key.startswith((keys.OF_OBJECTS, keys.OF_IGNORED)))
    found += [(OTHER, pair.both(key)) for key in others]
    return found


def _pixel_changes(pair: RecordPair, changed: set[str]) -> Iterator[tuple[str, str]]:
    if not changed & _OF_IMAGE:
        return
    before, after = stored_image(pair.before, pair.earlier), stored_image(pair.after, pair.later)
    if before is None or after is None:
        yield PIXELS, "the stored image changed"
    elif before.shape != after.shape:
        yield PIXELS, f"{_sides(before.shape)} before, {_sides(after.shape)} now"
    elif before.dtype != after.dtype:
        yield PIXELS, f"{before.dtype} before, {after.dtype} now"
    else:
        differing = before != after
        count = int(differing.any(axis=-1).sum())
        unit = "voxel" if is_volumetric(pair.later) else "pixel"
        # Compressed bytes may differ where the picture does not.
        if not count:
            yield PIXELS, "the stored bytes changed, and no decoded value"
            return
        field = pair.later.field("image")
        numbers = (as_numbers(one[differing], field.dtype).astype(np.float64) for one in (before, after))
        largest = np.abs(np.subtract(*numbers)).max()
        yield PIXELS, f"{plural(count, unit)} of {differing[..., 0].size:,}, by at most {largest:g}"


def _sides(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def _label_changes(pair: RecordPair, changed: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the changes of the label map."""
    if not changed & _OF_LABEL and pair.keeps_numbers:
        return
    had, has = (bool(one.get(keys.LABELLED, [1])[0]) for one in (pair.before, pair.after))
    if had != has:
        yield MASK, "had a label, and has none" if had else "had no label, and has one"
        return
    before, after = (_label_of(*one) for one in ((pair.before, pair.earlier), (pair.after, pair.later)))
    if before is None and after is None:
        return
    if before is None or after is None or before.shape != after.shape:
        yield MASK, "the label map changed"
        return
    yield from _pixels_of_other_classes(pair, before, after)


def _pixels_of_other_classes(
    pair: RecordPair, before: NDArray[Any], after: NDArray[Any]
) -> Iterator[tuple[str, str]]:
    """Yield the number of pixels whose class changed, with the most frequent changes; nothing without any."""
    before = _with_later_classes(before, pair)
    differing = before != after
    if differing.any():
        unit = "voxel" if is_volumetric(pair.later) else "pixel"
        words = _class_pairs(before[differing], after[differing], pair)
        yield MASK, f"{plural(int(differing.sum()), unit)} of {differing.size:,} ({words})"


def _with_later_classes(label: NDArray[Any], pair: RecordPair) -> NDArray[Any]:
    """Return an earlier label map with the numbers that its classes have in the later data set, see `number_now`."""
    if channels := class_channels(pair.earlier):
        return label if pair.keeps_numbers else _with_later_bits(label, channels, pair)
    numbers = {one: pair.number_now(one) for one in pair.earlier.labels if one}
    if (ignored := pair.earlier.ignore_label) is not None:
        later = pair.later.ignore_label
        numbers[ignored] = pair.number_now(ignored) if later is None else later
    largest = int(label.max(initial=0))
    numbers = {old: new for old, new in numbers.items() if old != new and old <= largest}
    if not numbers:
        return label
    table = np.arange(largest + 1, dtype=np.int32)
    for old, new in numbers.items():
        table[old] = new
    return np.asarray(table[label])


def _with_later_bits(label: NDArray[Any], channels: Sequence[int], pair: RecordPair) -> NDArray[np.uint32]:
    """Return earlier sets of classes with the later bits of their classes; those of classes that are gone follow."""
    bits = _bits_of_classes(pair)
    found = np.zeros(label.shape, np.uint32)
    for bit, one in enumerate(channels):
        found |= ((label.astype(np.uint32) >> bit) & 1) << bits.index(pair.number_now(one))
    return found


def _bits_of_classes(pair: RecordPair) -> list[int]:
    """Return the class of each bit: of the later data set, then those that are gone, as `number_now`."""
    later = class_channels(pair.later)
    earlier = map(pair.number_now, class_channels(pair.earlier))
    return [*later, *(one for one in earlier if one not in later)]


def _class_pairs(before: NDArray[Any], after: NDArray[Any], pair: RecordPair) -> str:
    """Return the most frequent pairs of classes of pixels that changed."""
    counts = Counter(zip(before.tolist(), after.tolist(), strict=True))
    names = [
        f"{_value_name(pair, old)} to {_value_name(pair, new)} {number:,}"
        for (old, new), number in counts.most_common(_SHOWN)
    ]
    return ", ".join(names) + (", ..." if len(counts) > _SHOWN else "")


def _value_name(pair: RecordPair, value: int) -> str:
    """Return the name of a value of a label map: a class, or the classes of a set."""
    if not class_channels(pair.earlier):
        return pair.name_of(value)
    names = [pair.name_of(one) for bit, one in enumerate(_bits_of_classes(pair)) if value >> bit & 1]
    return " + ".join(names) or "background"


def _label_of(features: Decoded, manifest: Manifest) -> NDArray[Any] | None:
    field, data = label_field(manifest), bytes_of(features, keys.LABEL)
    return None if field is None or data is None else stored_array(data, field)


def _name(manifest: Manifest, label: int) -> str:
    other = "ignored" if label == manifest.ignore_label else str(label)
    return manifest.labels.get(label, "background" if label == 0 else other)


def _class_changes(pair: RecordPair, changed: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the change of the classes of a picture."""
    if keys.CLASS_LABEL not in changed:
        return
    before, after = (
        [int(one) for one in features.get(keys.CLASS_LABEL, ())] for features in (pair.before, pair.after)
    )
    if list(map(pair.number_now, before)) == after:
        return
    yield LABEL, f"{_listed(pair.earlier, before)} before, {_listed(pair.later, after)} now"


def _listed(manifest: Manifest, labels: Iterable[int]) -> str:
    return ", ".join(_name(manifest, label) for label in labels) or "no class"


@dataclass(frozen=True, kw_only=True)
class _Objects:
    """Objects of a record: corners float [object, side], classes by number, and the bytes of their masks."""

    corners: NDArray[np.float64]
    classes: list[int]
    masks: list[bytes]

    @classmethod
    def of(cls, features: Decoded, number_of: Callable[[int], int], *, solid: bool) -> _Objects:
        names = keys.SOLID_CORNERS if solid else keys.BOX_CORNERS
        columns = [np.asarray(features.get(key, ()), np.float64) for key in names]
        count = min(map(len, columns))
        labels = [int(one) for one in features.get(keys.OBJECT_CLASS_LABEL, ())][:count]
        masks = features.get(keys.OBJECT_MASK, ())
        return cls(
            corners=np.stack([one[:count] for one in columns], axis=1)
            if count
            else np.zeros((0, len(names))),
            classes=list(map(number_of, labels)),
            masks=[bytes(one) for one in masks] if isinstance(masks, list) else [],
        )

    def place(self, row: int) -> tuple[float, ...]:
        """Return the corners of an object."""
        return tuple(self.corners[row].tolist())

    def mask(self, row: int) -> bytes:
        """Return the stored mask of an object; b"" without one."""
        return self.masks[row] if row < len(self.masks) else b""


def _box_changes(pair: RecordPair, changed: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the changes of objects: other classes, moved, added and removed boxes, masks, and other features."""
    of_objects = {key for key in changed if key.startswith(keys.OF_OBJECTS)}
    if not of_objects:
        return
    solid = is_volumetric(pair.later)
    before = _Objects.of(pair.before, pair.number_now, solid=solid)
    after = _Objects.of(pair.after, int, solid=solid)
    matched, gone, new = _match(before, after)
    texts: list[tuple[str, str]] = []
    for old, now in matched:
        texts += _object_changes(pair, (before, old), (after, now), sorted(of_objects))
    texts += [(BOXES, f"box removed ({pair.name_of(before.classes[row])})") for row in gone]
    texts += [(BOXES, f"box {row} added ({pair.name_of(after.classes[row])})") for row in new]
    if not texts and of_objects - _NAMES - {keys.OBJECT_CLASS_LABEL}:
        texts = [(BOXES, "their order changed")]
    yield from texts


_FOLLOWS_PLACE = (
    *(keys.OBJECT_AREA, keys.OBJECT_VISIBLE, keys.OBJECT_SOURCE_AREA, *keys.OBJECT_SOURCE_CORNERS),
    *(*keys.OBJECT_SOURCE_SOLID_CORNERS, *keys.CORNER_POINTS),
)
"""Features of an object that change with its box or its mask."""
_COMPARED_APART = {
    *(
        *keys.BOX_CORNERS,
        *keys.SOLID_CORNERS,
        keys.OBJECT_CLASS_LABEL,
        keys.OBJECT_CLASS_TEXT,
        keys.OBJECT_MASK,
    ),
    *(keys.OBJECT_INDEX,),
}


def _object_changes(
    pair: RecordPair, first: tuple[_Objects, int], second: tuple[_Objects, int], changed: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield the changes of one object, of which both records have a row."""
    (before, old), (after, now) = first, second
    name = f"box {now} ({pair.name_of(after.classes[now])})"
    same_class = before.classes[old] == after.classes[now]
    if not same_class:
        yield BOXES, f"{name}: was {pair.name_of(before.classes[old])}"
    is_moved = before.place(old) != after.place(now)
    if is_moved:
        yield (
            BOXES,
            f"{name}: moved by up to {np.abs(before.corners[old] - after.corners[now]).max():.4g} of a side",
        )
    other_mask = before.mask(old) != after.mask(now)
    if other_mask:
        yield MASK, f"mask of {name}"
    skipped = {*_COMPARED_APART, *(_FOLLOWS_PLACE if is_moved or other_mask else ())}
    if not same_class:
        skipped.add(keys.OBJECT_CLASS_SOURCE_LABEL)
    for key in changed:
        if key in skipped:
            continue
        values = _value_of_object(pair.before, key, old), _value_of_object(pair.after, key, now)
        if not _are_equal(*values):
            texts = _texts(*values)
            yield BOXES, f"{name}: {key.removeprefix(keys.OF_OBJECTS)} was {texts[0]}, now {texts[1]}"


def _value_of_object(features: Decoded, key: str, row: int) -> Any:
    """Return an object's values of a feature; all values of a feature that has not as many for each object."""
    value, count = features.get(key), len(features.get(keys.OBJECT_CLASS_LABEL, ()))
    if value is None or not count or len(value) % count:
        return value
    # Keypoints are flat: several values for each object.
    each = len(value) // count
    return value[row * each : (row + 1) * each]


class _Matching:
    """Pairs of the same object in two records, and the rows of those that are gone and new."""

    def __init__(self, before: _Objects, after: _Objects) -> None:
        self._before, self._after = before, after
        self.gone, self.new = list(range(len(before.classes))), list(range(len(after.classes)))
        self.pairs: list[tuple[int, int]] = []

    def take(self, old: int, now: int) -> None:
        """Make a pair of two rows."""
        self.pairs.append((old, now))
        self.gone.remove(old)
        self.new.remove(now)

    def take_equal(self, key_of: Callable[[_Objects, int], Any]) -> None:
        """Make pairs of the rows of equal keys, in order."""
        rows: dict[Any, list[int]] = {}
        for row in self.new:
            rows.setdefault(key_of(self._after, row), []).append(row)
        for old in list(self.gone):
            if found := rows.get(key_of(self._before, old)):
                self.take(old, found.pop(0))

    def take_overlapping(self) -> None:
        """Make pairs of the rows of one class that overlap most."""
        before, after = self._before, self._after
        overlaps = [
            (-_overlap(before.corners[old], after.corners[now]), old, now)
            for old in self.gone
            for now in self.new
            if before.classes[old] == after.classes[now]
        ]
        for negative, old, now in sorted(overlaps):
            if -negative >= _LEAST_OVERLAP and old in self.gone and now in self.new:
                self.take(old, now)


def _match(before: _Objects, after: _Objects) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Return pairs of the same object, and the rows of those that are gone and new.

    Equal boxes of one class come first, then those at one place, then those of one class that overlap most.
    """
    found = _Matching(before, after)
    found.take_equal(lambda one, row: (one.classes[row], one.place(row), one.mask(row)))
    found.take_equal(lambda one, row: (one.classes[row], one.place(row)))
    found.take_equal(lambda one, row: one.place(row))
    found.take_overlapping()
    return sorted(found.pairs, key=lambda one: one[1]), found.gone, found.new


def _overlap(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the intersection over union of two boxes of any number of axes: first all starts, then all ends."""
    axes = len(one) // 2
    shared = np.clip(
        np.minimum(one[axes:], other[axes:]) - np.maximum(one[:axes], other[:axes]), 0, None
    ).prod()
    total = (
        np.clip(one[axes:] - one[:axes], 0, None).prod()
        + np.clip(other[axes:] - other[:axes], 0, None).prod()
    )
    return float(shared / (total - shared)) if total > shared else 0.0


def _texts(before: Any, after: Any) -> tuple[str, str]:
    """Return two different values as short texts, which differ too."""
    texts = _short(before), _short(after)
    if texts[0] != texts[1]:
        return texts
    if isinstance(before, np.ndarray) and before.dtype != after.dtype:
        return f"{texts[0]} ({before.dtype})", f"{texts[1]} ({after.dtype})"
    at = _first_difference(before, after)
    if at == min(len(before), len(after)):
        return f"{len(before)} values", f"{len(after)} values"
    if isinstance(before, np.ndarray):
        return f"{before[at]} (value {at + 1})", f"{after[at]} (value {at + 1})"
    one, other = bytes(before[at]), bytes(after[at])
    start = max(0, _first_difference(one, other) - _SHOWN_BEFORE)
    return _part(one, start), _part(other, start)


def _first_difference(one: Any, other: Any) -> int:
    """Return the place of the first values that differ, or else the length of the shorter one."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _part(text: bytes, start: int) -> str:
    return f"{'...' if start else ''}{str(text[start : start + 60], 'utf-8', 'replace')}"


def _short(value: Any) -> str:
    """Return a value as a short text."""
    if value is None:
        return "nothing"
    if isinstance(value, list):
        text = ", ".join(str(bytes(one[:60]), "utf-8", "replace") for one in value[:_SHOWN])
    else:
        text = ", ".join(f"{one:.6g}" if value.dtype.kind == "f" else str(one) for one in value[:16].tolist())
    more = ", ..." if len(value) > (_SHOWN if isinstance(value, list) else 16) else ""
    return (text[:120] + more) or "an empty list"


def source_of(features: Decoded) -> str:
    """Return the name of the source of a record: its file, and the key where that is another name."""
    file, key = text_of(features, keys.FILENAME), text_of(features, keys.KEY_SOURCE)
    return file or key or ""
