"""Reads by the kernel that also verify checksums, before a record is parsed.

They apply to local shards if all raw values go into the batch as they are stored and checksums must be computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.copy_plan import length_checksums
from halofeed.loader.native import kernel
from halofeed.loader.record import StoredRecord
from halofeed.loader.shards import Integers, Shards
from halofeed.schemas.shard_file import OpenFile
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES
from halofeed.system.checksum import block_shifts

MAX_FRAME_BYTES = 1 << 24
"""Bound for the frames of a batch's records, without raw values; they are held until each is parsed."""


class VerifiedReads:
    """The records of a batch that the kernel may read; safe to use from several threads.

    Args:
        shards: the split's shards.
        files: the open files, by shard number.
        numbers: numbers of the records.
        into: for each raw value's key, the target address of each record, int64 [record].
    """

    def __init__(
        self, shards: Shards, files: Mapping[int, OpenFile], numbers: Integers, into: Mapping[str, Integers]
    ) -> None:
        self._shards, self._files, self._numbers = shards, files, numbers
        self._stamps = {shard: opened.stamp for shard, opened in files.items()}
        lengths = shards.lengths[numbers]
        self._frame_bytes = lengths + HEADER_BYTES + FOOTER_BYTES - shards.all_raw_bytes
        self._ends = np.cumsum(self._frame_bytes)
        self._frames = np.empty(int(self._frame_bytes.sum()), np.uint8)
        self._checksums = {key: shards.raw_checksums[key][numbers] for key in into}
        self._values = np.empty((len(numbers), len(into), kernel.VALUE_COLUMNS), np.int64)
        for place, (key, size) in enumerate(shards.raw_bytes.items()):
            self._values[:, place] = np.stack(
                np.broadcast_arrays(
                    shards.raw_starts[key][numbers],
                    size,
                    into[key],
                    _row_addresses(self._checksums[key]),
                    block_shifts(size).ctypes.data,
                ),
                axis=1,
            )
        self._reads = np.stack(
            np.broadcast_arrays(
                [files[shard].descriptor for shard in shards.shards_of(numbers).tolist()],
                shards.offsets[numbers],
                lengths,
                length_checksums(lengths),
                shards.checksums[numbers].astype(np.int64),
                self._frames.ctypes.data + self._ends - self._frame_bytes,
                _row_addresses(self._values),
                len(into),
            ),
            axis=1,
        )

    @classmethod
    def of(cls, shards: Shards, numbers: Integers, into: Mapping[str, Integers]) -> VerifiedReads | None:
        """Return the reads of some records; None if the kernel cannot read or need not verify them.

        Raises:
            CorruptFileError, SystemLimitError: as `Shards.open`.
        """
        if not kernel.reads() or into.keys() != shards.raw_bytes.keys() or not into:
            return None
        if shards.is_verified(numbers, tuple(into)):
            return None
        frame_bytes = int(shards.lengths[numbers].sum()) - len(numbers) * shards.all_raw_bytes
        files = shards.open_all(numbers)
        if not files or any(file.is_transferred for file in files.values()) or frame_bytes > MAX_FRAME_BYTES:
            return None
        return cls(shards, files, numbers, into)

    def read(self, row: int, record: StoredRecord) -> None:
        """Read one record and hand it over if it is intact; otherwise the record reads itself and finds the error."""
        if kernel.read(self._reads[row]):
            self._shards.mark_verified(int(self._numbers[row]))
            end, shard = int(self._ends[row]), record.shard
            frame = self._frames.data[end - int(self._frame_bytes[row]) : end]
            record.accept_verified(self._files[shard], self._stamps[shard], frame)


def _row_addresses(array: NDArray[Any]) -> Integers:
    """Return the memory addresses of an array's rows."""
    return array.ctypes.data + np.arange(len(array)) * array.strides[0]
