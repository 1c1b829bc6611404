"""Columns that are searched: name, classes and size of every record, which a thread reads once.

The index of a shard has no names or classes, so the small values of each record are read: 60 us a record from a local
disk, 6 s for 100,000 records (2 cores, 2026-11-30). Pages are served meanwhile, and a search covers what is read by
then. The thread waits while a request is answered: each of its reads gives the interpreter's lock away and takes it
back, which made a page three times as slow.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halofeed.inspection.record_cards import SEARCHED_KEYS, SIZE_ENDS, facts_of
from halofeed.inspection.review.reviewed_set import ReviewedSet

_AT_ONCE = 32
"""Records that are read before the thread waits for requests: about 2 ms."""


@dataclass(frozen=True, kw_only=True)
class RecordQuery:
    """Records to find; None and "" fit every record.

    Args:
        text: part of the name of the source, in any case.
        split: number of the split in the order of the manifest.
        label: class id that a box has, or the record.
        finding: number of the kind of suspects that a record is among.
        size: number of the range of `SIZE_ENDS` that the longer side is in.
    """

    text: str = ""
    split: int | None = None
    label: int | None = None
    finding: int | None = None
    size: int | None = None

    @property
    def is_any(self) -> bool:
        """Return whether every record fits."""
        return self == RecordQuery()

    @property
    def needs_columns(self) -> bool:
        """Return whether it compares what must be read from records."""
        return bool(self.text) or self.label is not None or self.size is not None


class RecordColumns:
    """Names, classes and sizes of the records of a data set, in their order.

    Attributes:
        known: number of records that were read; it grows until it is the number of all.
        problem: message of the error that ended the reading; "" without one.
    """

    def __init__(self, reviewed: ReviewedSet) -> None:
        self._reviewed = reviewed
        self.known, self.problem = 0, ""
        self._names: list[str] = []
        self._sizes = np.zeros(len(reviewed), np.uint8)
        self._labels, self._owners = array("q"), array("q")
        self._classes: set[int] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._reviewed)

    def read(self, stop: threading.Event, wait: Callable[[], None]) -> None:
        """Read the small values of every record, until `stop` is set.

        Args:
            stop: set to end it.
            wait: called every few records; returns when no request is being answered.

        Raises:
            CorruptFileError: a record is not what was written.
        """
        for first in range(0, len(self), _AT_ONCE):
            wait()
            if stop.is_set():
                return
            last = min(first + _AT_ONCE, len(self))
            facts = [
                facts_of(self._reviewed.small_features(number, SEARCHED_KEYS))
                for number in range(first, last)
            ]
            with self._lock:
                for number, one in enumerate(facts, first):
                    self._names.append(one.source.lower())
                    self._sizes[number] = one.size_range
                    labels = sorted(set(one.labels))
                    self._labels.extend(labels)
                    self._classes.update(labels)
                    self._owners.extend([number] * len(labels))
                self.known = last

    def labels(self) -> list[int]:
        """Return the classes that were read so far."""
        with self._lock:
            return sorted(self._classes)

    def sizes(self) -> list[int]:
        """Return the numbers of the ranges of sizes that were read so far."""
        return [int(size) for size in np.flatnonzero(np.bincount(self._sizes[: self.known]))]

    def find(self, query: RecordQuery, findings: Mapping[int, tuple[int, ...]]) -> NDArray[np.int64]:
        """Return the numbers of the records that fit, in order; of those read so far if it compares columns.

        Args:
            query: records to find.
            findings: numbers of the kinds of suspects of each record that is a suspect.
        """
        with self._lock:
            known = self.known if query.needs_columns else len(self)
            fits = np.ones(known, bool)
            if query.label is not None:
                labels, owners = np.array(self._labels, np.int64), np.array(self._owners, np.int64)
                fits[:] = False
                fits[owners[labels == query.label]] = True
        if query.split is not None:
            fits &= self._reviewed.split_numbers[:known] == query.split
        if query.size is not None:
            fits &= self._sizes[:known] == min(query.size, len(SIZE_ENDS))
        if query.finding is not None:
            fits &= _marked(findings, query.finding, known)
        found = np.flatnonzero(fits)
        if query.text:
            wanted, names = query.text.lower(), self._names
            found = np.array([number for number in found.tolist() if wanted in names[number]], np.int64)
        return found


def _marked(findings: Mapping[int, tuple[int, ...]], kind: int, count: int) -> NDArray[np.bool_]:
    marked = np.zeros(count, bool)
    marked[[number for number, kinds in findings.items() if kind in kinds and number < count]] = True
    return marked
