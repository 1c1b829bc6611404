"""Filler of batches: rows filled in several threads, with or without skipping unreadable records.

The kernel copies planned rows in one call (`_copy_mapped`). The rows that it leaves are filled one by one, from planned
windows if there are any. Where that fails too, `_fill_row` reads and augments the record; only it retries and skips.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.assemble import Assembler
from halofeed.loader.augment.augmented_example import Windows
from halofeed.loader.augment.view import View
from halofeed.loader.batch import Batch, BufferPool, allocate
from halofeed.loader.copy_plan import VerifiedReads
from halofeed.loader.mapped_records import MappedRecords
from halofeed.loader.record import ChosenRecords, StoredRecord, stored_records
from halofeed.loader.sampler import BatchRows
from halofeed.loader.shards import Integers
from halofeed.schemas.identity import splitmix64
from halofeed.system.errors import CorruptFileError
from halofeed.system.threads import InterruptibleThreads, ScriptEndedError, available_cores, is_ending
from halofeed.system.wording import plural

MAX_SKIPPED_SHARE = 0.01
"""Share of a split's records that may be skipped; the loader stops at more, but always permits one."""
_MAX_THREADS = 16


@dataclass(slots=True, eq=False)
class _Row:
    """A row to fill, its epoch, and the (number, record) of each partner of the current attempt."""

    batch: Batch
    row: int
    epoch: int
    partners: list[tuple[int, StoredRecord]] = field(default_factory=list)


class Filler:
    """Filler of rows for one loader; safe to use from several threads and after a fork.

    Args:
        assembler: writes one record into one row.
        records: the records of the stream.
        seed: the loader's seed.
        skips: skip records that cannot be read; otherwise raise.
        replaces: put another record into the row of a skipped one; otherwise the row becomes padding.
        split_bytes: see `Shards.fetch_window`.
        skipped: the skipped records of another filler, to share them.

    Attributes:
        pool: recycled memory for batches.
        skipped: the error of each skipped record, by the record's number in the stream.
    """

    def __init__(
        self,
        assembler: Assembler,
        records: ChosenRecords,
        seed: int,
        *,
        skips: bool,
        replaces: bool,
        split_bytes: int,
        skipped: dict[int, CorruptFileError] | None = None,
    ) -> None:
        self.pool = BufferPool()
        self.skipped: dict[int, CorruptFileError] = {} if skipped is None else skipped
        self._assembler, self._records, self._seed = assembler, records, seed
        self._shards = shards = records.shards
        self._skips, self._replaces, self._split_bytes = skips, replaces, split_bytes
        # A thread that waits for a part of a record uses no core, so their number follows the store's connections.
        self._min_threads = shards.store.threads if shards.fetches_parts(split_bytes) else 1
        self._workers: InterruptibleThreads | None = None

    def batch(self, content: BatchRows) -> Batch:
        """Return a new batch with this content.

        Raises:
            CorruptFileError: a record cannot be read, or too many records are skipped.
        """
        batch = allocate(self._assembler.spec, len(content.valid), self.pool)
        self.fill(batch, np.arange(len(content.valid)), content)
        return batch

    def fill(self, batch: Batch, rows: Integers, content: BatchRows) -> None:
        """Fill rows of a batch, int64 [row]; raise as `batch`."""
        with self._shards.fetch_window(self._split_numbers(content), self._split_bytes):
            self._fill_rows(batch, rows, content)

    def prefetch(self, content: BatchRows) -> None:
        """Begin to fetch the bytes that `fill` with this content will read, if the store fetches ahead."""
        self._shards.prefetch(self._split_numbers(content), self._split_bytes)

    def _fill_rows(self, batch: Batch, rows: Integers, content: BatchRows) -> None:
        valid = content.valid
        for row in rows[~valid].tolist():
            self._assembler.write_padding(batch, row)
        rows, epochs, numbers = rows[valid], content.epochs[valid], self._split_numbers(content)
        uniforms = self._assembler.draw(self._seed, epochs, self._shards.ids_of(numbers))
        self._assembler.write_epochs(batch, rows, epochs.tolist())
        with contextlib.suppress(CorruptFileError):  # `_fill_row` finds the error again
            self._assembler.cache_values(numbers, self._shards)
        windows = self._assembler.plan(batch, rows, numbers, self._shards, uniforms)
        left = np.arange(len(rows)) if windows is None else self._copy_mapped(batch, rows, numbers, windows)
        if len(left):
            self._fill_one_by_one(batch, rows, content, left, uniforms, windows)

    def _fill_one_by_one(
        self,
        batch: Batch,
        rows: Integers,
        content: BatchRows,
        left: Integers,
        uniforms: NDArray[np.float64],
        windows: Windows | None,
    ) -> None:
        """Fill the valid rows `rows[left]`, each from a separate read of its record."""
        numbers, valid = self._split_numbers(content)[left], content.valid
        reads = None
        # An error is ignored here: `_fill_row` reads the record again, and raises or skips.
        with contextlib.suppress(CorruptFileError):
            reads = VerifiedReads.of(self._shards, numbers, self._assembler.addresses(batch, rows[left]))
        # A record keeps its file open after its first read. There is no other reference to it than this, so that the
        # file is closed once the row is filled.
        todo = deque(
            zip(
                range(len(left)),
                rows[left].tolist(),
                content.records[valid][left].tolist(),
                stored_records(self._shards, numbers),
                content.epochs[valid][left].tolist(),
                uniforms[left],
                [None] * len(left) if windows is None else windows.views(left),
                strict=True,
            )
        )

        def fill(
            position: int,
            row: int,
            number: int,
            record: StoredRecord,
            epoch: int,
            uniforms: NDArray[np.float64],
            view: View | None,
        ) -> None:
            if reads is not None:  # the kernel reads and verifies the record without the interpreter's lock
                reads.read(position, record)
            # If this fails, `_fill_row` reads the record again and handles the error.
            with contextlib.suppress(CorruptFileError):
                if view is not None and self._assembler.write_planned(batch, row, record, view):
                    return
            self._fill_row(batch, row, number, record, epoch, uniforms)

        self._for_each(todo, fill)

    def _copy_mapped(self, batch: Batch, rows: Integers, numbers: Integers, windows: Windows) -> Integers:
        """Copy the pixels of planned rows from mapped shards, and return the positions in `rows` of the rows left."""
        # An error is ignored here: `_fill_row` reads the record again, and raises or skips.
        with contextlib.suppress(CorruptFileError):
            records = self._mapped_records(numbers) if self._assembler.moves_rows else None
            if records is not None:
                right = records.verify_rests()
                copied = self._assembler.move_planned(batch, rows, records, windows, self._run_in_threads)
                return np.flatnonzero(~(right & copied & records.are_unchanged()))
        return np.arange(len(rows))

    def _mapped_records(self, numbers: Integers) -> MappedRecords | None:
        """Return the records if the kernel can copy them; raise as `MappedRecords.of`."""
        shards, keys = self._shards, self._assembler.array_keys
        verifies = self._assembler.verifies_windows and shards.verify == "first"
        if not (verifies or shards.is_verified(numbers, keys)):
            return None
        records = MappedRecords.of(shards, numbers)
        # If a shard was replaced, opening it has discarded what was verified.
        return records if verifies or shards.is_verified(numbers, keys) else None

    def _for_each(self, todo: deque[tuple[Any, ...]], act: Callable[..., None]) -> None:
        """Call `act` with each item of the deque, whose first element is its position, in several threads.

        Raises:
            Exception: the exception of the first item that failed.
        """
        failed: list[tuple[int, Exception]] = []

        def work() -> None:
            while todo and not failed:
                if is_ending():
                    raise ScriptEndedError("the script has ended, so the loader stops in this batch")
                try:
                    item = todo.popleft()
                except IndexError:
                    return  # another thread took the last item
                try:
                    act(*item)
                except Exception as error:
                    failed.append((item[0], error))
                del item

        try:
            self._run_in_threads(work, len(todo))
        except BaseException:
            todo.clear()  # no thread begins another item
            raise
        if failed:
            # Items begin in order, so the error is the same with any number of threads.
            raise min(failed, key=operator.itemgetter(0))[1]

    def _run_in_threads(self, work: Callable[[], None], most: int = _MAX_THREADS) -> None:
        """Call `work` in several threads at the same time, including this one, and wait for all."""
        workers = self._workers
        if workers is None or workers.process != os.getpid():  # a fork lacks its parent's threads
            count = max(min(available_cores(), _MAX_THREADS), self._min_threads)
            self._workers = workers = InterruptibleThreads(count)
        workers.together(work, most)

    def _fill_row(
        self,
        batch: Batch,
        row: int,
        number: int,
        record: StoredRecord,
        epoch: int,
        uniforms: NDArray[np.float64],
    ) -> None:
        """Fill one row from the record `number` of the stream; retry, skip or replace it if it cannot be read."""
        target = _Row(batch, row, epoch)
        if not self._skips:
            self._write(target, record, uniforms)
            return
        if self._write_or_skip(target, number, record, uniforms):
            return
        if self._replaces:
            self._write_replacement(target, number)
        else:
            self._assembler.write_padding(batch, row)

    def _write(self, target: _Row, record: StoredRecord, uniforms: NDArray[np.float64]) -> None:
        """Write a record into a row; after an error discard the bytes and read them again, as often as the store says.

        A transfer may have damaged them; a local file gives the same bytes again.
        """
        find = functools.partial(self._find_partner, target)
        for attempts_left in reversed(range(self._shards.store.attempts)):
            target.partners.clear()
            try:
                self._assembler.write(
                    target.batch, target.row, record, uniforms, find, seed=self._seed, epoch=target.epoch
                )
                return
            except CorruptFileError:
                if not attempts_left:
                    raise
            for one in (record, *(partner for _, partner in target.partners)):
                one.invalidate()

    def _find_partner(self, target: _Row, sampled: float) -> StoredRecord:
        """Return the record at a sampled place of the stream, or one that replaces it if it was skipped."""
        first = int(sampled * len(self._records))
        candidates = itertools.chain([first], self._replacements(first, 0))
        chosen = next(other for other in candidates if other not in self.skipped)
        target.partners.append((chosen, self._records.record(chosen)))
        return target.partners[-1][1]

    def _write_or_skip(
        self, target: _Row, number: int, record: StoredRecord, uniforms: NDArray[np.float64]
    ) -> bool:
        """Write the record and return True; on an error skip a corrupt partner and retry, or skip the record."""
        while number not in self.skipped:
            try:
                self._write(target, record, uniforms)
                return True
            except CorruptFileError as error:
                # The message names the record's id; a partner may be the corrupt one.
                corrupt = (other for other, one in target.partners if f"(id {one.id})" in str(error))
                self._skip(next(corrupt, number), error)
        return False

    def _write_replacement(self, target: _Row, number: int) -> None:
        """Write the first readable record that replaces a skipped one."""
        for other in self._replacements(number, target.epoch):
            replacement = self._records.record(other)
            (redrawn,) = self._assembler.draw(
                self._seed, np.array([target.epoch]), np.array([replacement.id])
            )
            if self._write_or_skip(target, other, replacement, redrawn):
                return

    def _skip(self, number: int, error: CorruptFileError) -> None:
        """Add a record to `skipped`; CorruptFileError if these become too many."""
        self.skipped[number] = error
        count = len(self.skipped)
        records = len(self._records)
        most = max(1, int(MAX_SKIPPED_SHARE * records))
        # One unreadable record may be chance; all of a tiny split leave nothing to replace them.
        if count > most or count == records:
            raise CorruptFileError(
                f"{plural(count, 'record')} of {records:,} cannot be read, and on_corrupt='skip' skips at "
                f"most {most}; the last one: {error}"
            ) from error

    def _replacements(self, number: int, epoch: int) -> Iterator[int]:
        """Yield the numbers of records that may replace one, drawn from seed, epoch and that record, without end."""
        key = splitmix64(self._seed ^ splitmix64(epoch ^ splitmix64(number)))
        for attempt in itertools.count(1):
            yield splitmix64(key + attempt) % len(self._records)

    def _split_numbers(self, content: BatchRows) -> Integers:
        """Return the numbers in the split of the valid rows' records, int64 [row]."""
        return self._records.in_split(content.records[content.valid])
