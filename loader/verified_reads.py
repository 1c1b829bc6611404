"""How are records read and summed by the kernel, before anything of them is parsed?

Those on local disk whose raw values all go into the batch as they are stored, and whose checksums are to be computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.copy_plan import length_checksums
from halofeed.loader.native import kernel
from halofeed.schemas.shard_file import OpenFile
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES
from halofeed.system.checksum import block_shifts

if TYPE_CHECKING:
    from halofeed.loader.gather import Shards
    from halofeed.loader.record import StoredRecord

Integers = NDArray[np.int64]
MOST_REST_BYTES = 1 << 24
"""Of a batch's records without their raw values, which are held until each is parsed."""


class Reads:
    """The records of a batch that the kernel may read; safe to use from several threads.

    Args:
        shards: that hold them.
        files: the open files, by shard.
        numbers: of the records.
        into: of each raw value's key, where in memory each record's goes, int64 [record].
    """

    def __init__(
        self, shards: Shards, files: Mapping[int, OpenFile], numbers: Integers, into: Mapping[str, Integers]
    ) -> None:
        self._shards, self._files, self._numbers = shards, files, numbers
        self._stamps = {shard: opened.stamp for shard, opened in files.items()}
        lengths = shards.lengths[numbers]
        self._rest_bytes = lengths + HEADER_BYTES + FOOTER_BYTES - shards.all_raw_bytes
        self._ends = np.cumsum(self._rest_bytes)
        self._rest = np.empty(int(self._rest_bytes.sum()), np.uint8)
        self._checksums = {key: shards.raw_checksums[key][numbers] for key in into}
        self._values = np.empty((len(numbers), len(into), kernel.VALUE_COLUMNS), np.int64)
        for place, (key, size) in enumerate(shards.raw_bytes.items()):
            self._values[:, place] = np.stack(
                np.broadcast_arrays(
                    shards.raw_starts[key][numbers],
                    size,
                    into[key],
                    _rows(self._checksums[key]),
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
                self._rest.ctypes.data + self._ends - self._rest_bytes,
                _rows(self._values),
                len(into),
            ),
            axis=1,
        )

    @classmethod
    def of(cls, shards: Shards, numbers: Integers, into: Mapping[str, Integers]) -> Reads | None:
        """Those of some records; None where they are to be read by themselves.

        Raises:
            CorruptFileError, SystemLimitError: as `Shards.open`.
        """
        if not kernel.reads() or into.keys() != shards.raw_bytes.keys() or not into:
            return None
        if shards.is_verified(numbers, tuple(into)):
            return None
        rest_bytes = int(shards.lengths[numbers].sum()) - len(numbers) * shards.all_raw_bytes
        files = shards.files(numbers)
        if not files or any(file.is_transferred for file in files.values()) or rest_bytes > MOST_REST_BYTES:
            return None
        return cls(shards, files, numbers, into)

    def read(self, row: int, record: StoredRecord) -> None:
        """Read one, and tell it so if all of it is as it should be; else it reads itself, and says what is wrong."""
        if kernel.read(self._reads[row]):
            self._shards.found_right(int(self._numbers[row]))
            end, shard = int(self._ends[row]), record.shard
            rest = self._rest.data[end - int(self._rest_bytes[row]) : end]
            record.was_read(self._files[shard], self._stamps[shard], rest)


def _rows(array: NDArray[Any]) -> Integers:
    """Where the rows of an array lie in memory."""
    return array.ctypes.data + np.arange(len(array)) * array.strides[0]
