"""Weighted sampling of records: by weights, by classes, by foreground."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import CorruptFileError, UsageError
from halofeed.loader.chunks import StoredArray
from halofeed.loader.decode import decode_png, read_numbers, stored_dtype
from halofeed.loader.reading import is_label_map, one_file
from halofeed.loader.record import StoredRecord, stored_record
from halofeed.loader.shards import Integers, Shards
from halofeed.schemas.fields import Field, unpack_sets
from halofeed.schemas.identity import splitmix64
from halofeed.schemas.manifest import Manifest
from halofeed.system.wording import did_you_mean, plural

SLOT_BITS = 32
_SLOT = 1 << SLOT_BITS
_GOLDEN = 0x9E3779B9
"""2**32 over the golden ratio: multiples of it spread evenly over a slot, for any number of epochs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Draws:
    """Weighted choice of an epoch's records, by systematic sampling.

    Args:
        slots: number of draws per epoch.
        records: record of each entry, int64 [entry]; a record may have several.
        ends: end of each entry on a line on which a slot is 2**32 wide, int64 [entry].
    """

    slots: int
    records: Integers
    ends: Integers

    @classmethod
    def weighted(cls, slots: int, records: Integers, weights: NDArray[np.float64]) -> Draws:
        """Return the draws for entries with weights, float64 [entry], at least 0.

        >>> draws = Draws.weighted(6, np.arange(3), np.array([3.0, 1.0, 2.0]))
        >>> draws.at(np.arange(6), np.zeros(6, np.int64), seed=0).tolist()
        [0, 0, 0, 1, 2, 2]
        """
        ends = np.cumsum(weights)
        # Multiplying first keeps the ends of equal or integer weights exact.
        places = np.rint(ends * slots / ends[-1] * _SLOT).astype(np.int64)
        places[-1] = slots * _SLOT
        return cls(slots=slots, records=records, ends=places)

    @property
    def numbers(self) -> Integers:
        """Numbers that identify these draws, int64."""
        return np.concatenate([self.records, self.ends])

    def at(self, slots: Integers, epochs: Integers, seed: int) -> Integers:
        """Return the record that each slot of an epoch draws, int64 [row].

        Args:
            slots: int64 [row], 0 to `slots` - 1.
            epochs: int64 [row].
            seed: determines the offset of the sampling points in epoch 0.
        """
        offset = (splitmix64(seed) % _SLOT + epochs * _GOLDEN) & (_SLOT - 1)
        points = slots * _SLOT + offset
        return self.records[np.searchsorted(self.ends, points, side="right")]


DrawBy = str | Mapping[int | str, float] | Sequence[float] | Callable[[Integers], NDArray[Any]]
"""Type of `Loader(draw_by=)`."""
CLASS, FOREGROUND = "class", "foreground"
_EXPECTED = (
    f"expected {CLASS!r} (each class equally often), {FOREGROUND!r} (as often with it as without), the share of each "
    "class by name, or a weight for each record"
)
_LABEL_VALUES = 1 << 16
_RECORDS_PER_TASK = 256
"""Records whose classes a thread reads in one task."""


def plan_draws(
    draw_by: DrawBy, shards: Shards, numbers: Integers, manifest: Manifest, *, skips: bool
) -> Draws:
    """Return the draws that `draw_by` asks for.

    Args:
        draw_by: as of `Loader`.
        shards: the split's shards.
        numbers: numbers in the split of the records to draw from, int64 [record].
        manifest: the data set's manifest.
        skips: never draw records that cannot be read; otherwise raise.

    Raises:
        UsageError: weights are invalid, or no record has a class.
        CorruptFileError: a record's classes cannot be read.
    """
    count = len(numbers)
    if isinstance(draw_by, str | Mapping):
        records, weights = _by_class(draw_by, shards, numbers, manifest, skips)
    else:
        given = draw_by(shards.all_ids()[numbers]) if callable(draw_by) else draw_by
        records, weights = np.arange(count), _checked(given, count)
    used = weights > 0
    return Draws.weighted(count, records[used], weights[used])


def _checked(given: Any, count: int) -> NDArray[np.float64]:
    try:
        weights = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise UsageError(f"draw_by: {_EXPECTED}, got {given!r:.80}") from None
    if weights.shape != (count,):
        raise UsageError(
            f"draw_by: expected a weight for each of {plural(count, 'record')}, got an array of shape "
            f"{weights.shape}; shares of classes have names, such as {{'car': 3, 'person': 1}}"
        )
    if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        raise UsageError("draw_by: expected weights of 0 and more, one of them above 0")
    return weights


def _by_class(
    draw_by: str | Mapping[int | str, float],
    shards: Shards,
    numbers: Integers,
    manifest: Manifest,
    skips: bool,
) -> tuple[Integers, NDArray[np.float64]]:
    """Return (record, class) pairs, sorted by class, and the weight of each."""
    if isinstance(draw_by, str) and draw_by not in (CLASS, FOREGROUND):
        raise UsageError(f"draw_by: {_EXPECTED}, got {draw_by!r}")
    reader = _ClassReader(shards, manifest, skips)
    if draw_by == FOREGROUND and not reader.has_background:
        raise UsageError(
            f"draw_by={FOREGROUND!r}: only objects and labels on the image's grid have a foreground; take {CLASS!r}"
        )
    shares = _shares(draw_by, manifest) if isinstance(draw_by, Mapping) else {}
    records, classes = reader.pairs(numbers)
    if draw_by == FOREGROUND:
        records, classes = np.unique(np.stack([records, np.minimum(classes, 1)]), axis=1)
    elif draw_by == CLASS and reader.has_background:
        records, classes = records[classes > 0], classes[classes > 0]
    order = np.lexsort([records, classes])
    records, classes = records[order], classes[order]
    held, counts = np.unique(classes, return_counts=True)
    if missing := [label for label, share in shares.items() if share and label not in held]:
        raise UsageError(f"draw_by: no record holds class {missing[0]}; leave it out")
    weights = {label: shares.get(label, 0.0) if shares else 1.0 for label in held.tolist()}
    if not any(weights.values()):
        raise UsageError("draw_by: no record holds any class; leave it out")
    each = np.array([weights[label] for label in held.tolist()]) / counts
    return records, np.repeat(each, counts)


def _shares(shares: Mapping[int | str, float], manifest: Manifest) -> dict[int, float]:
    """Return the shares by label id."""
    names = {name: label for label, name in manifest.labels.items()}
    names.setdefault("background", 0)
    found = {}
    for key, share in shares.items():
        label = names.get(key, -1) if isinstance(key, str) else int(key)
        if label < 0:
            near = did_you_mean(str(key), names)
            raise UsageError(f"draw_by: class {key!r}: not known; {near}known: {', '.join(names)}")
        try:
            found[label] = float(share)
        except (TypeError, ValueError):
            raise UsageError(
                f"draw_by: class {key!r}: expected a number, such as 3, got {share!r:.80}"
            ) from None
    _checked(list(found.values()), len(found))
    return found


class _ClassReader:
    """Reader of the classes in records; 0 is a record without objects or foreground."""

    def __init__(self, shards: Shards, manifest: Manifest, skips: bool) -> None:
        self._shards, self._skips = shards, skips
        fields = {field.name: field for field in manifest.fields}
        self._field: Field = next(fields[name] for name in ("classes", "labels", "label") if name in fields)
        self._ignored = manifest.ignore_label
        self._image, self._axes = fields["image"], len(manifest.kind.axes)
        self._grid = is_label_map(self._field)
        self._labels = np.array(sorted(label for label in manifest.labels if label > 0), np.int64)
        self.has_background = self._grid or self._field.encoding == "list"

    def pairs(self, numbers: Integers) -> tuple[Integers, Integers]:
        """Return (position in `numbers`, class) of every class in every record, int64 [pair] each."""
        parts = np.array_split(numbers, -(-len(numbers) // _RECORDS_PER_TASK))
        with ThreadPoolExecutor(thread_name_prefix="halofeed-classes") as threads:
            found = [classes for part in threads.map(self._of_all, parts) for classes in part]
        records = np.repeat(np.arange(len(numbers)), [len(classes) for classes in found])
        return records, np.concatenate([np.zeros(0, np.int64), *found])

    def _of_all(self, numbers: Integers) -> list[Integers]:
        with self._shards.fetch_window(numbers, 0):
            return [self._of(number) for number in numbers.tolist()]

    def _of(self, number: int) -> Integers:
        try:
            record = stored_record(self._shards, number)
            classes = self._read(record)
            if not record.is_unchanged():
                raise record.changed_error()
        except CorruptFileError:
            if self._skips:
                return np.zeros(0, np.int64)
            raise
        if self.has_background:
            classes = classes[classes > 0] if (classes > 0).any() else np.zeros(1, np.int64)
        return classes

    def _read(self, record: StoredRecord) -> Integers:
        field = self._field
        features = record.features(frozenset(() if field.is_raw else field.keys))
        if not self._grid:
            return np.unique(read_numbers(field, features, record)).astype(np.int64)
        held = np.zeros(_LABEL_VALUES, np.bool_)
        if field.is_raw:
            label = StoredArray(record, field.keys[0], field.stored_shape, stored_dtype(field), self._axes)
            for _, chunk in label.chunks(tuple((0, size) for size in label.shape[: self._axes])):
                held[chunk] = True
        else:
            try:
                held[decode_png(one_file(field, features, record), (field.shape[0], field.shape[1]))] = True
            except ValueError as error:
                raise CorruptFileError(f"{record.place}: the label cannot be decoded: {error}") from error
        if self._ignored is not None:
            held[self._ignored] = False
        found = np.flatnonzero(held)
        if not field.holds_sets:
            return found
        flags = np.zeros((len(found), field.shape[-1]), np.uint8)
        unpack_sets(found.astype(field.stored_dtype), flags)
        return self._labels[flags.any(axis=0)]
