"""Sampler: which record is in which row of which batch, for shuffled, sequential and weighted streams and for subsets.

    place       0 1 2 3 4 5 6 7 8 9 ...         place = step * batch_size + row
    epoch       0 0 0 0 0 0 0 1 1 1 ...         7 records; a batch may hold the end of one epoch and the next's start
    record      3 0 5 6 2 1 4 5 2 0 ...         each once per epoch

Everything is arithmetic on a place's number: no buffer, no state, and the millionth step costs as much as the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.decode import decode_png, read_numbers, stored_dtype
from halofeed.loader.reading import is_label_map, one_file
from halofeed.loader.record import ChosenRecords, StoredRecord, record_array, stored_record
from halofeed.loader.shards import Integers
from halofeed.schemas.fields import Field, unpack_sets
from halofeed.schemas.identity import example_id, splitmix64
from halofeed.schemas.manifest import Manifest
from halofeed.system.arguments import whole_number
from halofeed.system.errors import CorruptFileError, UsageError
from halofeed.system.wording import did_you_mean, plural

Where = Callable[[Integers], NDArray[np.bool_]] | Sequence[int | str]
"""Record ids or keys of their sources; or a function from all ids to whether each record is used."""


def id_of(key: int | str) -> int:
    """Return the id of a record, given the id itself or the key of its source."""
    return example_id(key) if isinstance(key, str) else whole_number("id", key)


def unknown_key(key: int | str, ids: Integers) -> str:
    """Return advice about a key or an id that no record has; `ids` are those of the records.

    >>> unknown_key("/home/me/photos/cat/1.png", np.array([example_id("cat/1.png")]))
    "did you mean 'cat/1.png'?"
    """
    # The likely mistake with each type: a place for an id, and a path of this machine for a key.
    if not isinstance(key, str):
        return "a number is an id, as halofeed.join_id(batch['id']) gives it, not a place in the split"
    parts = key.replace("\\", "/").split("/")
    for near in ("/".join(parts[at:]) for at in range(len(parts))):
        if example_id(near) in ids:
            return f"did you mean {near!r}?"
    return (
        "a key is a file's path below the source folder, or its number in the annotations; batches have it with "
        "Loader(include=['key'])"
    )


def selected_records(where: Where, ids: Integers, split: str) -> Integers:
    """Return the numbers of the selected records, int64, ascending.

    Raises:
        UsageError: a record is missing or named twice, the function's result is not a mask, or nothing is selected.

    >>> selected_records([12, 10], np.array([10, 11, 12]), "train").tolist()
    [0, 2]
    >>> selected_records(lambda ids: ids % 2 == 1, np.array([10, 11, 12]), "train").tolist()
    [1]
    """
    if isinstance(where, str):
        one = f"a list of one is where=[{where!r}]"
        raise UsageError(f"where: expected a list of ids or keys, or a function, got {where!r}; {one}")
    chosen = _taken_by(where, ids) if callable(where) else _named(where, ids, split)
    if not len(chosen):
        raise UsageError(f"where: no record of split {split!r} is taken")
    return chosen


def _taken_by(where: Callable[[Integers], NDArray[np.bool_]], ids: Integers) -> Integers:
    """Return the numbers of the records that a function selects from all ids."""
    taken = np.asarray(where(ids))
    if taken.dtype != np.bool_ or taken.shape != ids.shape:
        raise UsageError(
            f"where: expected bool {ids.shape} of ids int64 {ids.shape}, got {taken.dtype} {taken.shape}; the "
            "function gets the array of all ids at once; to choose by name, list the keys: where=['cat/1.png', ...]"
        )
    return np.flatnonzero(taken)


def _named(where: Any, ids: Integers, split: str) -> Integers:
    """Return the numbers of the records whose ids or keys are listed."""
    if not isinstance(where, Iterable):
        raise UsageError(
            f"where: expected a list of ids or keys, or a function of all ids, got {where!r:.80}"
        )
    where = list(where)
    # True and False would pass as the ids 1 and 0.
    if where and all(isinstance(one, bool | np.bool_) for one in where):
        raise UsageError(
            "where: expected a list of ids or keys; write a mask as a function: where=lambda ids: mask"
        )
    wanted = np.array([id_of(key) for key in where], np.int64)
    if len(np.unique(wanted)) < len(wanted):
        raise UsageError("where: a record is named twice; name each once")
    if len(missing := np.setdiff1d(wanted, ids)):
        absent = [key for key in where if id_of(key) in missing]
        raise UsageError(
            f"where: split {split!r} has no record {', '.join(map(str, absent[:3]))}"
            f"{f' and {len(absent) - 3} more' if len(absent) > 3 else ''}; " + unknown_key(absent[0], ids)
        )
    return np.flatnonzero(np.isin(ids, wanted))


_ROUNDS = 16
"""Eight rounds leave the orders of five records uneven (chi-squared 923 at 119 degrees of freedom); sixteen do not."""
_GOLDEN = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1
_ROWS_AT_ONCE, _MAX_BLOCKS = 512, 4
"""NumPy takes as long for a few numbers as for some hundred, so rows of several steps are computed at once."""
Words = NDArray[np.uint64]


def mix_words(words: Words) -> Words:
    """Mix 64-bit words by the finalizer of splitmix64, a bijection.

    Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.

    >>> hex(mix_words(np.array([0x9E3779B97F4A7C15], np.uint64))[0])
    '0xe220a8397b1dcdaf'
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def permute(positions: Integers, *, count: int, seed: int, epoch: Integers | int) -> Integers:
    """Return the image of each position under a permutation of 0 .. count-1 that seed and epoch choose.

    A Feistel network on the pairs (l, r) of a grid of a x b cells, a = ceil(sqrt(count)), b = ceil(count / a):
    every round adds a keyed hash of one coordinate to the other. A round can be undone, so the network is a bijection
    of the grid. The grid has fewer than count + a cells. A result outside 0 .. count-1 passes through the network
    again until it is inside ("cycle walking"), which keeps it a bijection for every count.
    Black, Rogaway, "Ciphers with arbitrary finite domains", 2002.

    Args:
        positions: int64 [...], each in 0 .. count-1.
        count: number of positions, at least 1.
        seed: 0 to 2**64 - 1.
        epoch: one epoch, or int64 [...] of the positions' shape.

    Returns:
        int64 of the positions' shape.

    >>> sorted(permute(np.arange(5), count=5, seed=0, epoch=0).tolist())
    [0, 1, 2, 3, 4]
    """
    values = np.asarray(positions, np.int64).astype(np.uint64)
    epochs = np.broadcast_to(np.asarray(epoch, np.int64), values.shape).astype(np.uint64)
    start = mix_words(np.array([(seed + _GOLDEN) & _WORD], np.uint64))
    keys = mix_words(
        mix_words(start ^ mix_words(epochs * np.uint64(_GOLDEN) + np.uint64(1))) + np.uint64(count)
    )
    rows = math.isqrt(count - 1) + 1
    columns = -(-count // rows)
    outside = np.ones(values.shape, bool)
    while outside.any():
        values[outside] = _network(values[outside], keys[outside], rows, columns)
        outside = values >= count
    return values.astype(np.int64)


def _network(values: Words, keys: Words, rows: int, columns: int) -> Words:
    sizes = (np.uint64(rows), np.uint64(columns))
    left, right = values // sizes[1], values % sizes[1]
    for number in range(_ROUNDS):
        keys = mix_words(keys + np.uint64(_GOLDEN))
        if number % 2 == 0:  # a Feistel network changes its halves in turn
            left = (left + mix_words(right ^ keys) % sizes[0]) % sizes[0]
        else:
            right = (right + mix_words(left ^ keys) % sizes[1]) % sizes[1]
    return left * sizes[1] + right


@dataclass(frozen=True, kw_only=True)
class BatchRows:
    """Content of some rows of a global batch, each array [row].

    Args:
        records: int64, the record's number within the split or subset; 0 where not valid.
        epochs: int64; with weighted sampling a different number for each draw, so that repeated records differ.
        valid: bool, False if the stream has ended and the row is padding.
    """

    records: Integers
    epochs: Integers
    valid: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """The stream of one split, cut into batches.

    Training batches straddle epochs; with `drop_remainder` every epoch is cut to complete batches instead, and with
    `pads_epochs` the last batch of every epoch is padded with rows that are not valid. In a finite stream
    (`num_epochs`) the last batch of all is padded, so that every batch has the same shape.

    Args:
        records: number of records.
        batch_size: rows of the global batch.
        seed: 0 to 2**64 - 1.
        shuffle: whether each epoch is permuted; otherwise records come in stored order.
        num_epochs: number of epochs; None is without end.
        drop_remainder: cut each epoch to floor(records / batch_size) batches.
        draws: weighted sampling of the records; None uses each record once per epoch.
        pads_epochs: whether every epoch begins with a new batch, and the last batch of the one before is padded.

    Raises:
        UsageError: a value is out of range.
    """

    records: int
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    num_epochs: int | None = None
    drop_remainder: bool = False
    draws: Draws | None = None
    pads_epochs: bool = False
    _blocks: dict[tuple[int, int, int], BatchRows] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """Cache of rows of several steps, by the block of steps and the rows of each batch."""

    def __post_init__(self) -> None:
        if self.records < 1:
            raise UsageError(f"expected at least one record, got {self.records}")
        if self.batch_size < 1:
            raise UsageError(f"batch_size: expected at least 1, got {self.batch_size}")
        if not 0 <= self.seed <= _WORD:
            raise UsageError(f"seed: expected 0 to 2**64 - 1, got {self.seed}")
        if self.num_epochs is not None and self.num_epochs < 1:
            raise UsageError(f"num_epochs: expected at least 1, or None for no end, got {self.num_epochs}")
        if self.drop_remainder and self.records < self.batch_size:
            raise UsageError(
                f"drop_remainder: {plural(self.records, 'record gives', 'records give')} no whole batch of "
                f"{self.batch_size}; use a batch_size "
                f"of at most {self.records}, or drop_remainder=False"
            )

    @property
    def epoch_places(self) -> int:
        """Places of the stream in one epoch that hold a record."""
        if self.drop_remainder:
            return self.records // self.batch_size * self.batch_size
        return self.records

    @property
    def _epoch_stride(self) -> int:
        """Places from the beginning of one epoch to that of the next."""
        places = self.epoch_places
        return -(-places // self.batch_size) * self.batch_size if self.pads_epochs else places

    @property
    def steps(self) -> int | None:
        """Number of batches of the stream; None if it has no end."""
        if self.num_epochs is None:
            return None
        return -(-self.num_epochs * self._epoch_stride // self.batch_size)

    @property
    def has_padding(self) -> bool:
        """Return whether a batch has rows that are not valid: the last one of the stream, or of an epoch."""
        if self.pads_epochs:
            return self.epoch_places % self.batch_size > 0
        return self.num_epochs is not None and self.num_epochs * self.epoch_places % self.batch_size > 0

    def rows(self, step: int, start: int, stop: int) -> BatchRows:
        """Return rows start .. stop-1 of the global batch `step`.

        Raises:
            UsageError: the step is negative or past the stream's end.
        """
        steps = self.steps
        if step < 0 or (steps is not None and step >= steps):
            limit = f" to {(steps or 0) - 1} (epochs: {self.num_epochs}, of {plural(self.records, 'record')})"
            raise UsageError(f"step {step}: expected 0{' and more' if steps is None else limit}")
        many = max(1, _ROWS_AT_ONCE // max(1, stop - start))
        block, number = divmod(step, many)
        found = self._blocks.get((block, start, stop))
        if found is None:
            last = min((block + 1) * many, steps or (block + 1) * many)
            firsts = np.arange(block * many, last, dtype=np.int64) * self.batch_size
            found = self.at((firsts[:, None] + np.arange(start, stop)).reshape(-1))
            if len(self._blocks) >= _MAX_BLOCKS:  # callers read on; an old block is rarely asked for again
                self._blocks.clear()
            self._blocks[block, start, stop] = found
        own = slice(number * (stop - start), (number + 1) * (stop - start))
        return BatchRows(records=found.records[own], epochs=found.epochs[own], valid=found.valid[own])

    def at(self, places: Integers) -> BatchRows:
        """Return the rows at places of the stream, int64 [row], each 0 or more."""
        epochs, positions = np.divmod(places, self._epoch_stride)
        valid = positions < self.epoch_places
        if self.num_epochs is not None:
            valid &= epochs < self.num_epochs
        epochs, positions = np.where(valid, epochs, 0), np.where(valid, positions, 0)
        if self.shuffle:
            positions = permute(positions, count=self.records, seed=self.seed, epoch=epochs)
        # A record drawn twice in one epoch gets two numbers of epochs, so that it is augmented in two ways.
        if self.draws is not None:
            slots = positions
            positions = self.draws.at(slots, epochs, self.seed)
            epochs = epochs + (slots << SLOT_BITS)
        return BatchRows(records=np.where(valid, positions, 0), epochs=epochs, valid=valid)


SLOT_BITS = 32
_SLOT = 1 << SLOT_BITS
_STRIDE = _GOLDEN >> SLOT_BITS
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
        offset = (splitmix64(seed) % _SLOT + epochs * _STRIDE) & (_SLOT - 1)
        points = slots * _SLOT + offset
        return self.records[np.searchsorted(self.ends, points, side="right")]


@dataclass(frozen=True, kw_only=True)
class RepeatFactor:
    """Weights that repeat records of rare classes: repeat-factor sampling.

    A class that a share f of the records holds has the factor max(1, sqrt(threshold / f)); a record has the largest
    factor of its classes as its weight, and 1 without classes. So only classes below the threshold are drawn more
    often, and less than "class" would.

    Args:
        threshold: share of the records below which a class is repeated, more than 0 up to 1; LVIS uses 0.001.

    Source: Gupta, Dollár, Girshick, "LVIS: A dataset for large vocabulary instance segmentation" (arXiv 1908.03195),
    section 4.

    >>> RepeatFactor(threshold=1.0).weights(np.array([0, 1, 2, 3, 3]), np.array([0, 0, 0, 0, 1]), count=4).tolist()
    [1.0, 1.0, 1.0, 2.0]
    """

    threshold: float = 0.001

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise UsageError(
                f"RepeatFactor: threshold: expected a share of the records, above 0 up to 1, got {self.threshold}"
            )

    def weights(self, records: Integers, classes: Integers, count: int) -> NDArray[np.float64]:
        """Return the weight of each record, float64 [count].

        Args:
            records: number of the record of each pair of a record and a class that it holds, int64 [pair].
            classes: class of each pair, int64 [pair]; no pair occurs twice.
            count: number of records.
        """
        weights = np.ones(count)
        _, place, held = np.unique(classes, return_inverse=True, return_counts=True)
        factors = np.maximum(1, np.sqrt(self.threshold * count / held))
        np.maximum.at(weights, records, factors[place])
        return weights


DrawBy = str | RepeatFactor | Mapping[int | str, float] | Sequence[float] | Callable[[Integers], NDArray[Any]]
"""Type of `Loader(draw_by=)`."""
CLASS, FOREGROUND = "class", "foreground"
_EXPECTED = (
    f"expected {CLASS!r} (each class equally often), {FOREGROUND!r} (as often with it as without), RepeatFactor() "
    "(rare classes more often), the share of each class by name, or a weight for each record"
)
_LABEL_VALUES = 1 << 16
_RECORDS_PER_TASK = 256
"""Records whose classes a thread reads in one task."""


def plan_draws(draw_by: DrawBy, records: ChosenRecords, manifest: Manifest, *, skips: bool) -> Draws:
    """Return the draws that `draw_by` asks for.

    Args:
        draw_by: as in `Loader`.
        records: the records to draw from.
        manifest: the data set's manifest.
        skips: never draw records that cannot be read; otherwise raise.

    Raises:
        UsageError: weights are invalid, or no record has a class.
        CorruptFileError: a record's classes cannot be read.
    """
    count = len(records)
    if isinstance(draw_by, RepeatFactor):
        reader = _ClassReader(records, manifest, skips)
        pairs = _pairs_to_draw(CLASS, *reader.pairs(), has_background=reader.has_background)
        numbers, weights = np.arange(count), draw_by.weights(*pairs, count=count)
        weights[reader.unread] = 0
    elif isinstance(draw_by, str | Mapping):
        numbers, weights = _by_class(draw_by, _ClassReader(records, manifest, skips), manifest)
    else:
        given = draw_by(records.ids()) if callable(draw_by) else draw_by
        numbers, weights = np.arange(count), _checked(given, count)
    used = weights > 0
    return Draws.weighted(count, numbers[used], weights[used])


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
    draw_by: str | Mapping[int | str, float], reader: _ClassReader, manifest: Manifest
) -> tuple[Integers, NDArray[np.float64]]:
    """Return (record, class) pairs, sorted by class, and the weight of each."""
    _check_word(draw_by, reader)
    shares = _shares(draw_by, manifest) if isinstance(draw_by, Mapping) else {}
    records, classes = _pairs_to_draw(draw_by, *reader.pairs(), has_background=reader.has_background)
    order = np.lexsort([records, classes])
    records, classes = records[order], classes[order]
    held, counts = np.unique(classes, return_counts=True)
    weights = _weights_of(held, shares)
    # A class's weight is divided among the records that hold it.
    return records, np.repeat(weights / counts, counts)


def _check_word(draw_by: str | Mapping[int | str, float], reader: _ClassReader) -> None:
    if isinstance(draw_by, str) and draw_by not in (CLASS, FOREGROUND):
        raise UsageError(f"draw_by: {_EXPECTED}, got {draw_by!r}")
    if draw_by == FOREGROUND and not reader.has_background:
        raise UsageError(
            f"draw_by={FOREGROUND!r}: only objects and labels on the image's grid have a foreground; take {CLASS!r}"
        )


def _pairs_to_draw(
    draw_by: str | Mapping[int | str, float], records: Integers, classes: Integers, *, has_background: bool
) -> tuple[Integers, Integers]:
    """Return the pairs among which `draw_by` divides the draws."""
    if draw_by == FOREGROUND:
        # All classes above 0 are one, so that a record with several is not drawn more often.
        records, classes = np.unique(np.stack([records, np.minimum(classes, 1)]), axis=1)
    elif draw_by == CLASS and has_background:
        # The background is not a class; shares by name may give it a share.
        records, classes = records[classes > 0], classes[classes > 0]
    return records, classes


def _weights_of(held: Integers, shares: Mapping[int, float]) -> NDArray[np.float64]:
    """Return the weight of each class that records hold: its share, or 1 without shares."""
    if missing := [label for label, share in shares.items() if share and label not in held]:
        raise UsageError(f"draw_by: no record holds class {missing[0]}; leave it out")
    weights = np.array([shares.get(label, 0.0) if shares else 1.0 for label in held.tolist()])
    if not weights.any():
        raise UsageError("draw_by: no record holds any class; leave it out")
    return weights


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

    def __init__(self, records: ChosenRecords, manifest: Manifest, skips: bool) -> None:
        self._records, self._shards, self._skips = records, records.shards, skips
        self.unread: list[int] = []
        """Numbers of the records that `pairs` could not read."""
        fields = {field.name: field for field in manifest.fields}
        self._field: Field = next(fields[name] for name in ("classes", "labels", "label") if name in fields)
        self._ignored = manifest.ignore_label
        self._image, self._axes = fields["image"], len(manifest.kind.axes)
        self._grid = is_label_map(self._field)
        self._labels = np.array(sorted(label for label in manifest.labels if label > 0), np.int64)
        self.has_background = self._grid or self._field.encoding == "list"

    def pairs(self) -> tuple[Integers, Integers]:
        """Return (number of the record, class) of every class in every record, int64 [pair] each."""
        from concurrent.futures import ThreadPoolExecutor

        numbers = self._records.in_split(np.arange(len(self._records)))
        parts = np.array_split(numbers, -(-len(numbers) // _RECORDS_PER_TASK))
        with ThreadPoolExecutor(thread_name_prefix="halofeed-classes") as threads:
            read = [classes for part in threads.map(self._of_all, parts) for classes in part]
        self.unread = [number for number, classes in enumerate(read) if classes is None]
        found = [np.zeros(0, np.int64) if classes is None else classes for classes in read]
        records = np.repeat(np.arange(len(numbers)), [len(classes) for classes in found])
        return records, np.concatenate([np.zeros(0, np.int64), *found])

    def _of_all(self, numbers: Integers) -> list[Integers | None]:
        with self._shards.fetch_window(numbers, 0):
            return [self._of(number) for number in numbers.tolist()]

    def _of(self, number: int) -> Integers | None:
        try:
            record = stored_record(self._shards, number)
            classes = self._read(record)
            if not record.is_unchanged():
                raise record.changed_error()
        except CorruptFileError:
            if self._skips:
                return None
            raise
        # A record without an object or foreground is drawn as background, class 0.
        if self.has_background:
            classes = classes[classes > 0] if (classes > 0).any() else np.zeros(1, np.int64)
        return classes

    def _read(self, record: StoredRecord) -> Integers:
        field = self._field
        features = record.features(frozenset(() if field.is_array else field.keys))
        if not self._grid:
            return np.unique(read_numbers(field, features, record)).astype(np.int64)
        held = np.zeros(_LABEL_VALUES, np.bool_)
        if field.is_array:
            label = record_array(record, field, stored_dtype(field), self._axes)
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
