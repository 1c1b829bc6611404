"""Index file of a shard: the offset, checksum and id of each record, and what the shard was made from.

    8 bytes    magic
    uint64     length of the header
    JSON       header: fingerprint, inputs, statistics, rejected inputs; name, dtype, shape and offset of each array
    arrays     little-endian, each at a multiple of 64 bytes
    uint32     CRC32C of all bytes before it, masked as in a TFRecord

The last checksum is masked because the plain CRC32C of bytes that end with their own CRC32C is the same for all files.
The manifest's checksum of this file could not distinguish two indexes then.
"""

from __future__ import annotations

import json
import math
import operator
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.bounded_json import parse_json
from halofeed.schemas.limits import INDEX_BYTES, INDEX_VALUES
from halofeed.schemas.statistics import Statistics, statistics_problems
from halofeed.schemas.tfexample import MAX_EXAMPLE_BYTES
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES
from halofeed.system.checksum import BLOCK_BYTES, crc32c, mask_crc
from halofeed.system.errors import CorruptFileError, UsageError
from halofeed.system.wording import plural

MAGIC = b"HALOIDX2"
_EARLIER_MAGIC = b"HALOIDX1"
"""Magic of indexes without the checksums of records, which nothing ties to their shard."""
EARLIER_BLOCK_BYTES = 1 << 20
"""Block size of indexes that state none."""
_ALIGNMENT = 64
_INT64, _UINT32 = "<i8", "<u4"


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardIndex:
    """Offset of each record of a shard, and what the shard was made from.

    Args:
        offsets: byte offset of each record's frame, int64 [record].
        lengths: bytes of each record's data without the frame, int64 [record].
        checksums: masked CRC32C of each record's data, uint32 [record], equal to the record's last four bytes. They tie
            each record to its index, and the manifest's checksum of the index ties the index to the data set.
        ids: id of each example, int64 [record].
        raw_starts: per key of an array, the byte of the file at which its value begins, int64 [record].
        raw_checksums: per key of an array, the CRC32C of each block, uint32 [record, block]. A packed value has one
            checksum here, and one for each of its bands inside it.
        packed_bytes: per key of a packed array, the bytes of its value, int64 [record].
        signatures: what `halofeed review` compares to find copies of each record, int64 [record, word]; None in an
            index of an earlier version, or where no record has one. A record without a signature has zeros.
        measures: by name, a figure of each record that `halofeed review` looks for outliers in, float64 [record];
            NaN where a record has none.
        block_bytes: bytes of a block of raw values. It is stored only beside raw values; an index without it has blocks
            of 1 MiB.
        file_bytes: size of the shard's file.
        file_checksum: CRC32C of the shard's file.
        fingerprint: hash of the recipe and the inputs.
        inputs: per source path, the SHA-256 of its content; "" for a source that could not be read.
        statistics: statistics of its records.
        rejected: {source, split, stage, reason, detail} of each input that was not converted.

    Two indexes are equal if their `to_bytes` are equal.
    """

    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    checksums: NDArray[np.uint32]
    ids: NDArray[np.int64]
    raw_starts: Mapping[str, NDArray[np.int64]]
    raw_checksums: Mapping[str, NDArray[np.uint32]]
    packed_bytes: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    signatures: NDArray[np.int64] | None = None
    measures: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    block_bytes: int = BLOCK_BYTES
    file_bytes: int
    file_checksum: int
    fingerprint: str
    inputs: Mapping[str, str]
    statistics: Statistics
    rejected: tuple[Mapping[str, str], ...]

    def __len__(self) -> int:
        return len(self.offsets)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardIndex) and self.to_bytes() == other.to_bytes()

    __hash__ = None  # type: ignore[assignment]

    def to_bytes(self) -> bytes:
        """Return the bytes of the index file; equal indexes give equal bytes.

        Raises:
            UsageError: the file would be larger than a reader accepts.
        """
        arrays: dict[str, tuple[NDArray[Any], str]] = {
            "offsets": (self.offsets, _INT64),
            "lengths": (self.lengths, _INT64),
            "crc32c": (self.checksums, _UINT32),
            "ids": (self.ids, _INT64),
        }
        for key in sorted(self.raw_starts):
            arrays[f"start:{key}"] = (self.raw_starts[key], _INT64)
            arrays[f"crc32c:{key}"] = (self.raw_checksums[key], _UINT32)
        for key in sorted(self.packed_bytes):
            arrays[f"bytes:{key}"] = (self.packed_bytes[key], _INT64)
        if self.signatures is not None:
            arrays["signatures"] = (self.signatures, _INT64)
        # As integers of the same bits: earlier versions read the index too, and refuse arrays of another dtype.
        for name in sorted(self.measures):
            arrays[f"measure:{name}"] = (self.measures[name].astype(np.float64).view(np.int64), _INT64)
        placed, body = [], bytearray()
        for name, (array, dtype) in arrays.items():
            body += bytes(-len(body) % _ALIGNMENT)
            little = np.ascontiguousarray(array, dtype)
            entry = {"name": name, "dtype": little.dtype.str, "shape": list(little.shape), "at": len(body)}
            placed.append(entry)
            body += little.tobytes()
        stated = {}
        if self.block_bytes != EARLIER_BLOCK_BYTES and self.raw_starts.keys() - self.packed_bytes.keys():
            stated["block_bytes"] = self.block_bytes
        header = {
            **stated,
            "arrays": placed,
            "file_bytes": self.file_bytes,
            "file_checksum": self.file_checksum,
            "fingerprint": self.fingerprint,
            "inputs": dict(self.inputs),
            "statistics": self.statistics.to_json(),
            "rejected": [entry if isinstance(entry, dict) else dict(entry) for entry in self.rejected],
        }
        text = json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
        padding = b" " * (-(len(MAGIC) + 8 + len(text)) % _ALIGNMENT)
        pieces = [MAGIC, struct.pack("<Q", len(text) + len(padding)), text, padding, bytes(body)]
        if (size := sum(map(len, pieces)) + 4) > INDEX_BYTES:
            raise UsageError(
                f"an index of {size:,} bytes is over the limit of {INDEX_BYTES:,}; take more --shards"
            )
        checksum = 0
        for piece in pieces:
            checksum = crc32c(piece, checksum)
        return b"".join([*pieces, struct.pack("<I", mask_crc(checksum))])

    @classmethod
    def from_bytes(cls, data: bytes, where: str, *, columns_only: bool = False) -> ShardIndex:
        """Parse an index file.

        Args:
            data: bytes of the file.
            where: name of the file, for messages.
            columns_only: leave inputs, statistics and rejected inputs empty. They are most of the header; parsing
                them takes 50 ms for 10,000 records.

        Raises:
            CorruptFileError: the message names `where` and a fix.
        """
        cure = "run the same `halofeed convert` with --overwrite to rebuild it"
        if len(data) > INDEX_BYTES:
            raise CorruptFileError(
                f"{where}: {plural(len(data), 'byte')}, and at most {INDEX_BYTES:,} are read"
            )
        # Without checksums of records, an index of another shard of the same sizes would not be noticed.
        if data[: len(MAGIC)] == _EARLIER_MAGIC:
            raise CorruptFileError(
                f"{where}: an index of an earlier version, without its records' checksums; {cure}"
            )
        if len(data) < len(MAGIC) + 12 or data[: len(MAGIC)] != MAGIC:
            raise CorruptFileError(
                f"{where}: not a halofeed index (no {MAGIC.decode()} at its beginning); {cure}"
            )
        if mask_crc(crc32c(memoryview(data)[:-4])) != struct.unpack("<I", data[-4:])[0]:
            raise CorruptFileError(f"{where}: the index's checksum is wrong; {cure}")
        # Wrong content with a right checksum comes from another version or another program.
        try:
            return cls._from_checked(data, columns_only)
        except (ValueError, KeyError, TypeError, OverflowError, AttributeError) as error:
            raise CorruptFileError(
                f"{where}: the checksum is right but the content is no index of this version ({error!r:.200}); {cure}"
            ) from error

    @classmethod
    def _from_checked(cls, data: bytes, columns_only: bool) -> ShardIndex:
        start = len(MAGIC) + 8
        base = start + int(struct.unpack_from("<Q", data, len(MAGIC))[0])
        header = _read_header(data[start:base], columns_only)
        arrays = {entry["name"]: _read_array(data, entry, base) for entry in header["arrays"]}
        for path, problem in statistics_problems(header["statistics"], "statistics"):
            raise ValueError(f"{path}: {problem}")
        keys = [name.removeprefix("start:") for name in arrays if name.startswith("start:")]
        has_blocks = any(f"bytes:{key}" not in arrays for key in keys)
        block_bytes = header.get("block_bytes", EARLIER_BLOCK_BYTES if has_blocks else BLOCK_BYTES)
        index = cls(
            offsets=arrays["offsets"],
            lengths=arrays["lengths"],
            checksums=arrays["crc32c"],
            ids=arrays["ids"],
            raw_starts={key: arrays[f"start:{key}"] for key in keys},
            raw_checksums={key: arrays[f"crc32c:{key}"] for key in keys},
            packed_bytes={
                name.removeprefix("bytes:"): array
                for name, array in arrays.items()
                if name.startswith("bytes:")
            },
            signatures=arrays.get("signatures"),
            measures={
                name.removeprefix("measure:"): array.view("<f8")
                for name, array in arrays.items()
                if name.startswith("measure:")
            },
            block_bytes=operator.index(block_bytes),
            file_bytes=operator.index(header["file_bytes"]),
            file_checksum=operator.index(header["file_checksum"]),
            fingerprint=header["fingerprint"],
            inputs=header["inputs"],
            statistics=Statistics.from_json(header["statistics"]),
            rejected=tuple(header.pop("rejected")),
        )
        index._check_shapes()
        index._check_bounds()
        index._check_texts()
        return index

    def _check_shapes(self) -> None:
        """Raise ValueError if the columns are not those of the same records."""
        columns: list[NDArray[Any]] = [self.lengths, self.checksums, self.ids, *self.raw_starts.values()]
        columns += [*self.packed_bytes.values(), *self.measures.values()]
        if any(column.shape != self.offsets.shape for column in columns) or self.offsets.ndim != 1:
            raise ValueError("the columns differ in length")
        if not self.packed_bytes.keys() <= self.raw_starts.keys():
            raise ValueError("a packed value has a size and no start")
        if any(sums.ndim != 2 or len(sums) != len(self) for sums in self.raw_checksums.values()):
            raise ValueError("the block checksums are not [record, block]")
        if self.signatures is not None and (self.signatures.ndim != 2 or len(self.signatures) != len(self)):
            raise ValueError("the signatures are not [record, word]")

    def _check_bounds(self) -> None:
        """Raise ValueError if a record is outside its shard, or a raw value outside its record."""
        if not 0 <= self.file_bytes < 1 << 63 or not 0 <= self.file_checksum < 1 << 32:
            raise ValueError(
                f"a shard of {plural(self.file_bytes, 'byte')} with the checksum {self.file_checksum}"
            )
        if not 0 < self.block_bytes <= MAX_EXAMPLE_BYTES:
            raise ValueError(f"blocks of {plural(self.block_bytes, 'byte')}")
        first = self.offsets + HEADER_BYTES
        # These comparisons keep every sum below 2**63.
        inside = (self.offsets >= 0) & (self.offsets <= self.file_bytes) & (self.lengths >= 0)
        inside &= self.lengths <= np.minimum(self.file_bytes - FOOTER_BYTES - first, MAX_EXAMPLE_BYTES)
        for starts in self.raw_starts.values():
            inside &= (starts >= first) & (starts - first <= self.lengths)
        for key, sizes in self.packed_bytes.items():
            inside &= (sizes >= 0) & (sizes <= self.lengths - (self.raw_starts[key] - first))
        if not inside.all():
            raise ValueError(
                f"record {np.argmin(inside)} is outside the shard's {plural(self.file_bytes, 'byte')}"
            )
        if (self.ids < 0).any():
            raise ValueError(f"record {np.argmax(self.ids < 0)} has a negative id")

    def _check_texts(self) -> None:
        """Raise ValueError if other members of the header have wrong types."""
        texts: list[Any] = [self.fingerprint, *self.inputs.values()]
        for entry in self.rejected:
            texts += entry.values()
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("fingerprint, inputs and rejected: expected texts")


def _read_header(text: bytes, columns_only: bool) -> dict[str, Any]:
    """Parse the header; for `columns_only` without inputs, statistics and rejected inputs."""
    header: dict[str, Any] = {}
    if columns_only:
        # Members are sorted by name, so the arrays and the file's size come before the inputs.
        before, found, _ = text.partition(b',"inputs":')
        text = before + b"}" if found else text
        header = {"inputs": {}, "statistics": {}, "rejected": []}
    header |= parse_json(text, INDEX_VALUES)
    return header


def _read_array(data: bytes, entry: Mapping[str, Any], base: int) -> NDArray[Any]:
    """Return an array of the file as a view; raise ValueError if its dtype or shape is wrong."""
    name, shape = entry["name"], tuple(entry["shape"])
    dtype = _UINT32 if name == "crc32c" or name.startswith("crc32c:") else _INT64
    # JSON's true is an int in Python, and a negative offset would count from the end.
    if entry["dtype"] != dtype or any(type(size) is not int or size < 0 for size in (*shape, entry["at"])):
        raise ValueError(f"array {name!r:.60}: dtype {entry['dtype']!r:.60}, shape {shape!s:.60}")
    flat = np.frombuffer(memoryview(data)[:-4], dtype, math.prod(shape), base + entry["at"])
    return flat.reshape(shape)
