"""Which raw values of a batch's records lie in memory, with nothing of them left to check but their frames?

Where all do, a row costs its copy and little more: files are looked at once a batch, before its first copy and after
its last one, and not a record at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.checksum import crc32c, mask_crc
from halofeed.schemas.shard_file import OpenFile
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES

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
        shards: of each record, which file it is in.
        files: those files.
        places: of each record, (offset of its frame, bytes of its data, their masked checksum).
        starts: of each key, where each record's value begins.
        sizes: of each key, bytes of a value.
        sums_length: whether the length's own checksum is compared too.
    """

    def __init__(
        self,
        shards: Sequence[int],
        files: dict[int, Looked],
        places: Sequence[tuple[int, int, int]],
        starts: dict[str, list[int]],
        sizes: dict[str, int],
        *,
        sums_length: bool,
    ) -> None:
        self._shards, self._files, self._places = shards, files, places
        self._starts, self._sizes = starts, sizes
        self._header_bytes = HEADER_BYTES if sums_length else _LENGTH_BYTES
        self._views = {shard: file.bytes.data for shard, file in files.items()}

    def has(self, at: int) -> bool:
        """Whether a record's frame is what the index says; else it is to be read by itself, which tells why not."""
        offset, length, checksum = self._places[at]
        view, end = self._views[self._shards[at]], offset + HEADER_BYTES + length
        header = view[offset : offset + self._header_bytes]
        footer = view[end : end + FOOTER_BYTES]
        return (
            header == _header(length)[: self._header_bytes] and int.from_bytes(footer, "little") == checksum
        )

    def value(self, at: int, key: str) -> NDArray[np.uint8]:
        """A record's value as it lies in memory, uint8 [byte]."""
        start = self._starts[key][at]
        return self._files[self._shards[at]].bytes[start : start + self._sizes[key]]

    def sure(self) -> NDArray[np.bool_]:
        """Of which records what was copied is theirs, bool [record], once all was."""
        sure = {shard: file.is_sure() for shard, file in self._files.items()}
        return np.array([sure[shard] for shard in self._shards], np.bool_)


@lru_cache(maxsize=1024)
def _header(length: int) -> bytes:
    """What stands before a record's data of so many bytes."""
    stated = length.to_bytes(_LENGTH_BYTES, "little")
    return stated + mask_crc(crc32c(stated)).to_bytes(HEADER_BYTES - _LENGTH_BYTES, "little")
