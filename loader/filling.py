"""How the rows of a batch are filled, several at a time, and what becomes of a row whose record cannot be read."""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import CorruptFileError
from halofeed.loader.assemble import Assembler
from halofeed.loader.augment.view import View
from halofeed.loader.augment.windows import Windows
from halofeed.loader.batch import Batch, BufferPool, allocate
from halofeed.loader.copy_plan import InMemory
from halofeed.loader.gather import Shards
from halofeed.loader.record import StoredRecord
from halofeed.loader.sampler import Rows
from halofeed.loader.verified_reads import Reads
from halofeed.schemas.identity import mix
from halofeed.system.threads import InterruptibleThreads

ON_CORRUPT = {
    "fail": "an error that names file, offset and id",
    "skip": "another record takes its place, the same one each time; in evaluation the row is not valid",
}
MOST_SKIPPED = 0.01
"""Of a split's records; where more cannot be read, or more than one of a small split, the loader stops."""
_MAX_THREADS = 16
_WORD = (1 << 64) - 1


class Filler:
    """Fills rows for one loader; safe to use from several threads and after a fork.

    Records have numbers among those that are `chosen`, by theirs in the split; None is all.

    Attributes:
        skipped: why each record that was skipped so far could not be read, by its number.
    """

    def __init__(
        self,
        assembler: Assembler,
        shards: Shards,
        seed: int,
        *,
        chosen: NDArray[np.int64] | None,
        skips: bool,
        replaces: bool,
        whole_bytes: int,
        skipped: dict[int, CorruptFileError] | None = None,
    ) -> None:
        self.pool = BufferPool()
        self.skipped: dict[int, CorruptFileError] = {} if skipped is None else skipped
        self._assembler, self._shards, self._seed = assembler, shards, seed
        self._chosen, self._count = chosen, len(shards) if chosen is None else len(chosen)
        self._skips, self._replaces, self._whole_bytes = skips, replaces, whole_bytes
        self._least_threads = shards.store.threads if shards.comes_in_views(whole_bytes) else 1
        self._workers: InterruptibleThreads | None = None

    def batch(self, rows: Rows) -> Batch:
        """The batch of those rows.

        Raises:
            CorruptFileError: a record cannot be read, or, of skipped ones, too many.
        """
        batch = allocate(self._assembler.spec, len(rows.valid), self.pool)
        self.fill(batch, np.arange(len(rows.valid)), rows)
        return batch

    def fill(self, batch: Batch, places: NDArray[np.int64], rows: Rows) -> None:
        """Fill the rows of a batch that stand at `places`; errors as of `batch`."""
        with self._shards.at_hand(self._numbers(rows), self._whole_bytes):
            self._fill_rows(batch, places, rows)

    def expect(self, rows: Rows) -> None:
        """Begin to fetch what `fill` of those rows reads, where that takes long."""
        self._shards.expect(self._numbers(rows), self._whole_bytes)

    def _fill_rows(self, batch: Batch, places: NDArray[np.int64], rows: Rows) -> None:
        valid = np.flatnonzero(rows.valid)
        places, padding, epochs = places[valid], places[~rows.valid], rows.epochs[valid]
        numbers = self._numbers(rows)
        drawn = self._assembler.draw(self._seed, epochs, self._shards.ids_of(numbers))
        self._assembler.write_epochs(batch, places, epochs.tolist())
        windows = self._assembler.plan(batch, places, numbers, self._shards, drawn)
        left = (
            np.arange(len(places)) if windows is None else self._not_copied(batch, places, numbers, windows)
        )
        if len(left):
            self._fill_one_by_one(batch, places, rows, left, drawn, windows)
        for row in padding.tolist():
            self._assembler.fill(batch, row)

    def _fill_one_by_one(
        self,
        batch: Batch,
        places: NDArray[np.int64],
        rows: Rows,
        left: NDArray[np.int64],
        drawn: NDArray[np.float64],
        windows: Windows | None,
    ) -> None:
        """Fill those of the valid rows that are left, each from a record of its own."""
        numbers, valid = self._numbers(rows), np.flatnonzero(rows.valid)
        records = self._shards.records(numbers[left])
        reads = None
        # What is wrong with a file is said where its row is written.
        with contextlib.suppress(CorruptFileError):
            reads = Reads.of(self._shards, numbers[left], self._assembler.addresses(batch, places[left]))
        columns = (
            *(range(len(left)), places[left].tolist(), rows.records[valid][left].tolist(), records),
            *(rows.epochs[valid][left].tolist(), drawn[left]),
            [None] * len(left) if windows is None else windows.views(left),
        )
        todo = deque(zip(*columns, strict=True))
        # Each record holds its file open from its first read on: nothing but the deque may hold on to it.
        del columns, records

        def write(
            at: int,
            row: int,
            number: int,
            record: StoredRecord,
            epoch: int,
            drawn: NDArray[np.float64],
            view: View | None,
        ) -> None:
            if reads is not None:
                reads.read(at, record)
            # Where it cannot be read it fails again by itself, and what becomes of that is seen to.
            with contextlib.suppress(CorruptFileError):
                if view is not None and self._assembler.write_planned(batch, row, record, view):
                    return
            self._fill(batch, row, number, record, epoch, drawn)

        self._each(todo, write)

    def _not_copied(
        self, batch: Batch, places: NDArray[np.int64], numbers: NDArray[np.int64], windows: Windows
    ) -> NDArray[np.int64]:
        """Copy the pixels of planned rows that lie in memory, and say which rows are left."""
        if self._assembler.decodes:
            return np.arange(len(places))
        # What is wrong with a file is said where its row is written.
        with contextlib.suppress(CorruptFileError):
            memory = self._shards.in_memory(numbers, self._assembler.raw_keys)
            if memory is not None:
                return np.flatnonzero(~(self._copied(batch, places, memory, windows) & memory.sure()))
        return np.arange(len(places))

    def _copied(
        self, batch: Batch, places: NDArray[np.int64], memory: InMemory, windows: Windows
    ) -> NDArray[np.bool_]:
        """Copy the pixels of planned rows from memory, bool [row], where their frames are as they should be."""
        if self._assembler.moves_rows:
            return self._assembler.move_planned(batch, places, memory, windows, self._together)
        copied, every = np.zeros(len(places), np.bool_), np.arange(len(places))

        def copy(at: int, row: int, view: View) -> None:
            copied[at] = self._assembler.copy_planned(batch, row, memory, at, view)

        self._each(deque(zip(every.tolist(), places.tolist(), windows.views(every), strict=True)), copy)
        return copied

    def _each(self, todo: deque[tuple[Any, ...]], act: Callable[..., None]) -> None:
        """Call `act` with each of the deque's items, numbers first, in several threads, of which this is one.

        Raises:
            Exception: what `act` raised for the first of them.
        """
        failed: list[tuple[int, Exception]] = []

        def work() -> None:
            while todo and not failed:
                try:
                    item = todo.popleft()
                except IndexError:
                    return  # another thread was faster
                try:
                    act(*item)
                except Exception as error:
                    failed.append((item[0], error))
                del item

        try:
            self._together(work, len(todo))
        except BaseException:
            todo.clear()
            raise
        if failed:
            # They are begun in order, so that this is the first that fails, however many threads there are.
            raise min(failed, key=operator.itemgetter(0))[1]

    def _together(self, work: Callable[[], None], most: int = _MAX_THREADS) -> None:
        """Call `work` in several threads at once, of which this is one, and wait for all."""
        workers = self._workers
        if workers is None or workers.process != os.getpid():
            count = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4, _MAX_THREADS)
            self._workers = workers = InterruptibleThreads(max(count, self._least_threads))
        workers.together(work, most)

    def _fill(
        self,
        batch: Batch,
        row: int,
        number: int,
        record: StoredRecord,
        epoch: int,
        drawn: NDArray[np.float64],
    ) -> None:
        shown: list[tuple[int, StoredRecord]] = []

        def find(where: float) -> StoredRecord:
            first = int(where * self._count)
            chosen = next(
                other
                for other in itertools.chain([first], self._others(first, 0))
                if other not in self.skipped
            )
            shown.append((chosen, self._stored(np.array([chosen]))[0]))
            return shown[-1][1]

        def write(record: StoredRecord, drawn: NDArray[np.float64]) -> None:
            for left in reversed(range(self._shards.store.attempts)):
                shown.clear()
                try:
                    self._assembler.write(batch, row, record, drawn, find, seed=self._seed, epoch=epoch)
                    return
                except CorruptFileError:
                    if not left:
                        raise
                for one in (record, *(other for _, other in shown)):
                    self._shards.forget(one)

        def is_written(number: int, record: StoredRecord, drawn: NDArray[np.float64]) -> bool:
            """Whether a record could be read; the reason is kept where not, or where one shown with it could not."""
            while number not in self.skipped:
                try:
                    write(record, drawn)
                    return True
                except CorruptFileError as error:
                    faulty = (other for other, one in shown if f"(id {one.id})" in str(error))
                    self._skip(next(faulty, number), error)
            return False

        if not self._skips:
            write(record, drawn)
        elif is_written(number, record, drawn):
            pass
        elif self._replaces:
            for other in self._others(number, epoch):
                (instead,) = self._stored(np.array([other]))
                (own,) = self._assembler.draw(self._seed, np.array([epoch]), np.array([instead.id]))
                if is_written(other, instead, own):
                    break
        else:
            self._assembler.fill(batch, row)

    def _skip(self, number: int, error: CorruptFileError) -> None:
        """Keep why a record cannot be read; CorruptFileError where there are too many."""
        self.skipped[number] = error
        count = len(self.skipped)
        most = max(1, int(MOST_SKIPPED * self._count))
        if count > most or count == self._count:
            raise CorruptFileError(
                f"{count} records of {self._count:,} cannot be read, and on_corrupt='skip' passes over at "
                f"most {most}; the last one: {error}"
            ) from error

    def _numbers(self, rows: Rows) -> NDArray[np.int64]:
        """In the split, of the rows that are valid."""
        numbers = rows.records[rows.valid]
        return numbers if self._chosen is None else self._chosen[numbers]

    def _stored(self, numbers: NDArray[np.int64]) -> list[StoredRecord]:
        return self._shards.records(numbers if self._chosen is None else self._chosen[numbers])

    def _others(self, number: int, epoch: int) -> Iterator[int]:
        """Which records may take the place of one, in order: drawn from the seed, the epoch and that record."""
        drawn = mix((self._seed ^ mix(epoch ^ mix(number))) & _WORD)
        for attempt in itertools.count(1):
            yield mix((drawn + attempt) & _WORD) % self._count
