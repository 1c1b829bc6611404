"""Mixture: several data sets as one stream, each with its share of the rows."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.augment.view import Ranges
from halofeed.loader.batch import Batch, BufferPool, allocate, check_memory
from halofeed.loader.dataset import Loader
from halofeed.loader.sampler import permute
from halofeed.loader.stream import Stream, check_hosts
from halofeed.system.arguments import explains_calls, whole_number
from halofeed.system.errors import UsageError
from halofeed.system.wording import plural

LONGEST_CYCLE = 10_000
"""Largest number of rows after which every data set has exactly its share."""


class Mixture(Stream):
    """Batches of several data sets, each with its share; a batch is a pure function of (data sets, seed, step).

    Shares are exact. The weights are scaled to the smallest integers. Then every cycle of rows, as long as their sum,
    has as many rows of each data set as its weight, in a different order each time. Each data set is a separate
    `Loader` stream, with every record once per epoch. A mixture saves, restores, places batches on meshes and feeds
    TensorFlow as a `Loader` does.

    Memory: one `Loader` per data set, and one batch in place of their batches.

    Args:
        weights: weight of each data set by its folder, integers or fractions: {"data/a/1.0.0": 3, "data/b/1.0.0": 1}.
        batch_size: rows of the global batch, over all hosts.
        seed: 0 to 2**64 - 1; determines the order of the data sets, and the order within each.
        shard_index, shard_count: as in `Loader`.
        options: options of every `Loader`: split, augment, include, verify, on_corrupt, shuffle, where, draw_by.

    Raises:
        UsageError: weights are invalid, batches or classes of the data sets differ, and as `Loader`.

    >>> mixture = halofeed.Mixture({"data/photos/1.0.0": 3, "data/more/1.0.0": 1}, batch_size=8)
    >>> mixture.batch(0)["label"].shape
    (8,)
    """

    @explains_calls
    def __init__(
        self,
        weights: Mapping[str | os.PathLike[str], float],
        *,
        batch_size: int,
        seed: int = 0,
        shard_index: int = 0,
        shard_count: int = 1,
        **options: Any,
    ) -> None:
        if refused := {"training", "num_epochs", "drop_remainder"} & set(options):
            raise UsageError(f"{', '.join(sorted(refused))}: a mixture has no end; leave it out")
        batch_size = whole_number("batch_size", batch_size)
        check_hosts(batch_size, shard_index, shard_count)
        self.batch_size, self.seed = batch_size, seed
        self.shard_index, self.shard_count = shard_index, shard_count
        self.parts = _scale_to_integers(weights)
        self.loaders = {
            folder: Loader(folder, batch_size=batch_size, seed=seed, **options) for folder in self.parts
        }
        self.kind, self.steps, self.may_pad = self._first.kind, None, False
        self.row_spec, self.on_grid = self._first.row_spec, self._first.on_grid
        first, *others = self.loaders.items()
        for other in others:
            _check_compatible(first, other)
        check_memory(self.spec, batch_size)
        self._ends = np.cumsum(list(self.parts.values()))
        self._pool = BufferPool()

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the labels, which are the same in every data set."""
        return self._first.class_names

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches that have as many rows as the data sets have records together.

        Shares decide how often a record comes meanwhile: each data set has its own epochs.
        """
        return -(-sum(loader.num_records for loader in self.loaders.values()) // self.batch_size)

    @property
    def _first(self) -> Loader:
        return next(iter(self.loaders.values()))

    def sources(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the data set's number for rows start .. stop-1, and the row in that data set's stream, int64 [row]."""
        # Each cycle permutes the slots 0 .. cycle-1, and each data set owns as many slots as its weight. A data set
        # therefore has `share` rows in every cycle, and its first row in cycle c is row c * share of its own stream.
        cycle = int(self._ends[-1])
        first, last = start // cycle, -(-stop // cycle)
        cycles = np.repeat(np.arange(first, last), cycle)
        slots = permute(np.tile(np.arange(cycle), last - first), count=cycle, seed=self.seed, epoch=cycles)
        which = np.searchsorted(self._ends, slots, side="right")
        places = np.empty(len(which), np.int64)
        for number, share in enumerate(self.parts.values()):
            places[which == number] = first * share + np.arange((last - first) * share)
        rows = slice(start - first * cycle, stop - first * cycle)
        return which[rows], places[rows]

    def of_slab(self, slab: Ranges) -> Mixture:
        """Return the same stream with a part of each image and label; see `Stream.of_slab`."""
        part = copy.copy(self)
        part.loaders = {name: loader.of_slab(slab) for name, loader in self.loaders.items()}
        part.row_spec = part._first.row_spec
        return part

    def _prefetch(self, step: int, start: int, stop: int) -> None:
        # Computing the rows takes time, and local stores have nothing to fetch ahead.
        if not any(loader.is_prefetching for loader in self.loaders.values()):
            return
        first = step * self.batch_size
        which, places = self.sources(first + start, first + stop)
        for number, loader in enumerate(self.loaders.values()):
            loader.prefetch(places[which == number])

    def _rows(self, step: int, start: int, stop: int) -> Batch:
        if step < 0:
            raise UsageError(f"step {step}: expected 0 and more")
        first = step * self.batch_size
        which, places = self.sources(first + start, first + stop)
        batch = allocate(self.row_spec, stop - start, self._pool)
        for number, loader in enumerate(self.loaders.values()):
            rows = np.flatnonzero(which == number)
            loader.fill(batch, rows, places[rows])
        return batch

    def _stream(self) -> dict[str, Any]:
        own = ("name", "version", "split", "fingerprint", "shuffle", "augment", "where", "draw_by")
        streams = [loader.state(0) for loader in self.loaders.values()]
        return {
            "mixture": [{key: stream[key] for key in own} for stream in streams],
            "weights": list(self.parts.values()),
            "seed": self.seed,
            "batch_size": self.batch_size,
        }


def _scale_to_integers(weights: Mapping[str | os.PathLike[str], float]) -> dict[str, int]:
    """Return weights as the smallest integers of the same proportions, by folder.

    >>> _scale_to_integers({"a": 0.5, "b": 0.3, "c": 0.2})
    {'a': 5, 'b': 3, 'c': 2}
    """
    if not isinstance(weights, Mapping) or not all(isinstance(one, str | os.PathLike) for one in weights):
        raise UsageError(
            "weights: expected the weight of each data set by its folder, such as {'data/a/1.0.0': 3, 'data/b/1.0.0': "
            f"1}}, got {weights!r:.80}"
        )
    exact = {os.fspath(folder): _exact_weight(folder, weight) for folder, weight in weights.items()}
    if not exact:
        raise UsageError("weights: expected one data set or more")
    scale = math.lcm(*(weight.denominator for weight in exact.values()))
    whole = [int(weight * scale) for weight in exact.values()]
    parts = [weight // math.gcd(*whole) for weight in whole]
    if sum(parts) > LONGEST_CYCLE:
        raise UsageError(
            f"weights: shares would be exact only after {plural(sum(parts), 'row')}; round them, such as to 0.01, so "
            f"that it is {LONGEST_CYCLE:,} or less"
        )
    return dict(zip(exact, parts, strict=True))


def _exact_weight(folder: str | os.PathLike[str], weight: object) -> Fraction:
    """Return a weight as it is written: 0.1 is 1/10, and not the nearest binary fraction."""
    try:
        exact = Fraction(str(weight))
    except (ValueError, ZeroDivisionError):
        exact = Fraction(0)
    if exact <= 0:
        raise UsageError(f"weight of {folder}: expected a number above 0, got {weight!r}")
    return exact


def _check_compatible(first: tuple[str, Loader], other: tuple[str, Loader]) -> None:
    """Refuse two data sets with different arrays, or whose labels mean different classes."""
    (name, loader), (other_name, other_loader) = first, other
    ours, theirs = (
        {key: (array.shape, str(array.dtype)) for key, array in each.row_spec.items()}
        for each in (loader, other_loader)
    )
    different = [
        f"{key}: {name} has {ours.get(key, 'none')}, {other_name} has {theirs.get(key, 'none')}"
        for key in dict.fromkeys([*ours, *theirs])
        if ours.get(key) != theirs.get(key)
    ]
    # Equal shapes may mean different things: a clip of 3 frames and a volume of 3 slices.
    if loader.kind != other_loader.kind:
        different.append(f"images: {loader.kind.name}s and {other_loader.kind.name}s")
    if loader.class_names != other_loader.class_names:
        different.append(
            f"classes: {', '.join(loader.class_names)} and {', '.join(other_loader.class_names)}; convert with one "
            "--label-map"
        )
    if different:
        lines = "\n  ".join(different)
        raise UsageError(f"data sets of a mixture must give the same arrays and classes:\n  {lines}")
