"""Which raw values of a batch's records lie in memory, with nothing of them left to check but their frames?

Where all do, a row costs its copy and little more: files are looked at once a batch, before its first copy and after
its last one, and not a record at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.checksum import crc32c, mask_crc
from halofeed.schemas.shard_file import OpenFile
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES

Integers = NDArray[np.int64]
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class Looked:
    """A shard of which all bytes lie in memory, and its stamp of before they were looked at."""

    opened: OpenFile
    stamp: tuple[int, ...]
    bytes: NDArray[np.uint8]

    def is_sure(self) -> bool:
        """Whether what was copied since then are the bytes that the file had then."""
        return not self.opened.is_lost() and self.opened.is_unchanged(self.stamp)


class InMemory:
    """The raw values of some records.

    Args:
        shards: int64 [record], which file each is in.
        files: those files.
        offsets, lengths, checksums: int64 [record], where frames begin, bytes of their data, its masked checksum.
        starts: of each key, int64 [record], where the values begin in their files.
        sizes: of each key, bytes of a value.
        sums_length: whether the length's own checksum is compared too.
    """

    def __init__(
        self,
        shards: Integers,
        files: dict[int, Looked],
        offsets: Integers,
        lengths: Integers,
        checksums: Integers,
        starts: dict[str, Integers],
        sizes: dict[str, int],
        *,
        sums_length: bool,
    ) -> None:
        self._shards, self._files = shards, files
        self._offsets, self._lengths, self._checksums = offsets, lengths, checksums
        self._starts, self._sizes, self._sums_length = starts, sizes, sums_length

    def has(self, at: int) -> bool:
        """Whether a record's frame is what the index says; else it is to be read by itself, which tells why not."""
        offset, length = int(self._offsets[at]), int(self._lengths[at])
        view, end = self._files[int(self._shards[at])].bytes.data, offset + HEADER_BYTES + length
        compared = HEADER_BYTES if self._sums_length else _LENGTH_BYTES
        footer = view[end : end + FOOTER_BYTES]
        return view[offset : offset + compared] == _header(length)[:compared] and int.from_bytes(
            footer, "little"
        ) == int(self._checksums[at])

    def value(self, at: int, key: str) -> NDArray[np.uint8]:
        """A record's value as it lies in memory, uint8 [byte]."""
        start = int(self._starts[key][at])
        return self._files[int(self._shards[at])].bytes[start : start + self._sizes[key]]

    def addresses(self, key: str) -> Integers:
        """Where the records' values lie in memory, int64 [record]."""
        return self._bases + self._starts[key]

    def frames(self) -> Integers:
        """What `has` compares, as the kernel takes it, int64 [record, 5]; see `halofeed.loader.native.kernel.FRAME`."""
        header = self._bases + self._offsets
        stated = length_checksums(self._lengths) if self._sums_length else np.full(len(header), -1)
        footer = header + HEADER_BYTES + self._lengths
        return np.stack([header, self._lengths, stated, footer, self._checksums], axis=1)

    @cached_property
    def _bases(self) -> Integers:
        """Where each record's file begins in memory."""
        bases = {shard: file.bytes.ctypes.data for shard, file in self._files.items()}
        return np.array([bases[shard] for shard in self._shards.tolist()], np.int64)

    def sure(self) -> NDArray[np.bool_]:
        """Of which records what was copied is theirs, bool [record], once all was."""
        sure = {shard: file.is_sure() for shard, file in self._files.items()}
        return np.array([sure[shard] for shard in self._shards.tolist()], np.bool_)


def length_checksums(lengths: Integers) -> Integers:
    """What stands masked behind each of those lengths of records' data, int64 [record]."""
    return np.array([_length_checksum(length) for length in lengths.tolist()], np.int64)


@lru_cache(maxsize=1024)
def _length_checksum(length: int) -> int:
    return int.from_bytes(_header(length)[_LENGTH_BYTES:], "little")


@lru_cache(maxsize=1024)
def _header(length: int) -> bytes:
    """What stands before a record's data of so many bytes."""
    stated = length.to_bytes(_LENGTH_BYTES, "little")
    return stated + mask_crc(crc32c(stated)).to_bytes(HEADER_BYTES - _LENGTH_BYTES, "little")
