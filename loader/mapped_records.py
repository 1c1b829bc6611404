"""Records in memory-mapped shards: their addresses, the verification of all but their arrays, and their numbers.

The kernel works on all records of a batch in one call and without the interpreter's lock. It reads the numbers of a
record only in the form in which the converter writes them; `halofeed.schemas.tfexample` parses all others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.loader.decode import array_dtype
from halofeed.loader.shards import Bytes, Integers, Shards
from halofeed.schemas.fields import Field
from halofeed.schemas.native import kernel, packing
from halofeed.schemas.packed.packed_layout import PackedLayout
from halofeed.schemas.shard_file import OpenFile
from halofeed.schemas.tfrecord import HEADER_BYTES
from halofeed.system.checksum import crc32c, mask_crc

_MAX_KEYS = 63
"""Keys of numbers that the kernel finds in one pass over a record."""


@dataclass(frozen=True, slots=True, eq=False)
class MappedShard:
    """A memory-mapped shard, and its `OpenFile.stamp` from before it was mapped."""

    opened: OpenFile
    stamp: tuple[int, ...]
    mapping: Bytes

    def is_unchanged(self) -> bool:
        """Return whether the file has not changed since the stamp, so that copies of the mapping are right."""
        return not self.opened.is_lost() and self.opened.is_unchanged(self.stamp)


class MappedRecords:
    """Some records in mapped shards.

    Args:
        shards: the split's shards.
        numbers: numbers of the records, int64 [record].
        files: the mapped shards of these records, by shard number.
    """

    def __init__(self, shards: Shards, numbers: Integers, files: Mapping[int, MappedShard]) -> None:
        self._shards, self._numbers, self._files = shards, numbers, files
        self._shard_of = shards.shards_of(numbers).tolist()
        bases = {shard: file.mapping.ctypes.data for shard, file in files.items()}
        # The memory address of each record's shard.
        self._bases = np.array([bases[shard] for shard in self._shard_of], np.int64)

    @classmethod
    def of(cls, shards: Shards, numbers: Integers) -> MappedRecords | None:
        """Return records; None if a shard cannot be mapped.

        Args:
            shards: the split's shards.
            numbers: numbers of the records, int64 [record].

        Raises:
            CorruptFileError, SystemLimitError: as `Shards.open_all`.
        """
        files = {}
        for shard, opened in shards.open_all(numbers).items():
            stamp, mapping = opened.stamp, None if opened.is_transferred else opened.as_array()
            if mapping is None:
                return None
            files[shard] = MappedShard(opened, stamp, mapping)
        # `open_all` returns no file if there are too many to be open at once.
        return cls(shards, numbers, files) if files else None

    # Addresses for the kernel --------------------------------------------------------------------------------

    def addresses(self, key: str) -> Integers:
        """Return the memory addresses of the records' values, int64 [record]."""
        return self._bases + self._shards.value_starts[key][self._numbers]

    def layout(self, key: str) -> PackedLayout:
        """Return the layout of a packed value."""
        return self._shards.layouts[key]

    def sizes(self, key: str) -> Integers:
        """Return the stored bytes of the records' values, int64 [record]."""
        return self._shards.value_bytes[key][self._numbers]

    def flags(self, key: str) -> Integers:
        """Return the column `packing.FLAGS`, by which the kernel verifies bands, int64 [record]."""
        shards = self._shards
        if shards.verify != "first":
            return np.full(len(self._numbers), packing.ALWAYS if shards.verify == "always" else packing.NEVER)
        return row_addresses(shards.verified_parts[key], self._numbers)

    def blocks(self, key: str) -> Integers:
        """Return the blocks of raw values to verify, int64 [record, 5]; `kernel.BLOCKS` has the columns."""
        shards, numbers = self._shards, self._numbers
        if shards.verify != "first" or shards.verified_parts[key][numbers].all():
            return np.zeros((len(numbers), 5), np.int64)
        sums = row_addresses(shards.value_checksums[key], numbers)
        columns = (self.addresses(key), self.sizes(key), shards.block_bytes, sums, self.flags(key))
        return np.stack(np.broadcast_arrays(*columns), axis=1)

    def frames(self) -> Integers:
        """Return where headers and footers are and what they must state, int64 [record, 5]; `FRAME` has the columns."""
        shards, numbers = self._shards, self._numbers
        header, lengths = self._bases + shards.offsets[numbers], shards.lengths[numbers]
        stated = length_checksums(lengths) if shards.verify != "never" else np.full(len(numbers), -1)
        footer = header + HEADER_BYTES + lengths
        return np.stack([header, lengths, stated, footer, shards.checksums[numbers]], axis=1, dtype=np.int64)

    # Verification and parsing --------------------------------------------------------------------------------

    def are_unchanged(self) -> NDArray[np.bool_]:
        """Return whether each record's file has not changed since `of`, bool [record]; call it after the copy."""
        unchanged = {shard: file.is_unchanged() for shard, file in self._files.items()}
        return np.array([unchanged[shard] for shard in self._shard_of], np.bool_)

    def verify_rests(self) -> NDArray[np.bool_]:
        """Verify what is not an array in each record, and return which records are right, bool [record].

        What was verified before, or is never verified, is right.
        """
        shards, numbers = self._shards, self._numbers
        if shards.verify == "never":
            return np.ones(len(numbers), np.bool_)
        left = np.ones(len(numbers), np.bool_) if shards.verify == "always" else ~shards.verified[numbers]
        if not left.any():
            return ~left
        rows, keys = np.arange(len(numbers)), tuple(shards.array_bytes)
        values = np.zeros((len(numbers), len(keys), kernel.VALUE_COLUMNS), np.int64)
        for place, key in enumerate(keys):
            sums, sizes = row_addresses(shards.value_checksums[key], numbers), self.sizes(key)
            block = sizes if key in shards.layouts else shards.block_bytes
            columns = (self.addresses(key), sizes, 0, sums, block)
            values[:, place] = np.stack(np.broadcast_arrays(*columns), axis=1)
        rests = np.zeros((len(numbers), kernel.REST_COLUMNS), np.int64)
        rests[:, :5], rests[:, 5], rests[:, 6] = self.frames(), row_addresses(values, rows), len(keys)
        right = ~left
        right[left] = kernel.verify_rests(np.ascontiguousarray(rests[left]))
        if shards.verify == "first":
            shards.verified[numbers[left & right]] = True
        return right

    def data(self) -> tuple[Integers, Integers]:
        """Return the address and the length of each record's data, both int64 [record]."""
        starts = self._bases + self._shards.offsets[self._numbers] + HEADER_BYTES
        return starts, self._shards.lengths[self._numbers]


class NumberParser:
    """Parser of fields of static shape, for all records of a batch in one call of the kernel.

    Args:
        fields: the fields, each with the encoding "value" and one key.
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        self._fields, self._bytes = fields, 0
        self._keys = [np.frombuffer(field.keys[0].encode(), np.uint8) for field in fields]
        self._wanted = np.zeros((len(fields), kernel.WANTED_COLUMNS), np.int64)
        for field, key, row in zip(fields, self._keys, self._wanted, strict=True):
            count, stored = math.prod(field.shape), _stored_dtype(field)
            kind = kernel.FLOATS if stored.kind == "f" else kernel.INTEGERS
            row[:] = key.ctypes.data, len(key), kind, count, self._bytes
            self._bytes += 8 * count  # the next one is aligned for both kinds

    @classmethod
    def of(cls, fields: Sequence[Field]) -> NumberParser | None:
        """Return the parser of fields; None if the kernel cannot parse them."""
        simple = all(field.encoding == "value" and len(field.keys) == 1 for field in fields)
        return cls(fields) if fields and simple and len(fields) <= _MAX_KEYS else None

    def parse(self, records: MappedRecords) -> tuple[NDArray[np.bool_], dict[str, NDArray[Any]]]:
        """Return which records have their numbers in the converter's form, bool [record], and values by field name.

        Verify the records before; rows that are False have undefined values.
        """
        data, lengths = records.data()
        rows = np.arange(len(data))
        output = np.zeros((len(data), self._bytes), np.uint8)
        columns = (data, lengths, row_addresses(output, rows), 0)
        parsed = kernel.parse_record_numbers(np.stack(np.broadcast_arrays(*columns), axis=1), self._wanted)
        values = {}
        for field, place in zip(self._fields, self._wanted[:, 4].tolist(), strict=True):
            stored = _stored_dtype(field)
            size = math.prod(field.shape) * stored.itemsize
            numbers = np.ascontiguousarray(output[:, place : place + size]).view(stored)
            converted = numbers.astype(array_dtype(field))
            # A record holds int64 and float32 only; smaller integers are stored as int64.
            if stored.kind == "i":
                parsed &= (converted == numbers).all(axis=1)
            values[field.name] = converted.reshape(len(data), *field.shape)
        return parsed, values


def _stored_dtype(field: Field) -> np.dtype[Any]:
    """Return the dtype of a field's numbers in tf.train.Example."""
    return np.dtype("<f4" if field.dtype in ("float32", "float64", "bfloat16") else "<i8")


def length_checksums(lengths: Integers) -> Integers:
    """Return the masked CRC32C of each record length, int64 [record], as a TFRecord header states it."""
    return np.array([_length_checksum(length) for length in lengths.tolist()], np.int64)


@lru_cache(maxsize=1024)
def _length_checksum(length: int) -> int:
    return mask_crc(crc32c(length.to_bytes(8, "little")))


def row_addresses(array: NDArray[Any], rows: Integers) -> Integers:
    """Return the memory addresses of some rows of an array."""
    return array.ctypes.data + rows * array.strides[0]
