"""What stands in the sidecar index beside each shard, and how it is written and read.

A file is: 8 bytes of magic, uint64 length of the header, the header (JSON), the arrays one after the other
(each at a multiple of 64 bytes, little-endian), uint32 CRC32C of all bytes before it. The header holds
the fingerprint, inputs, statistics and rejects of the shard and each array's name, dtype, shape and place.
"""

from __future__ import annotations

import json
import math
import operator
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halofeed.schemas.checksum import crc32c
from halofeed.schemas.errors import CorruptFileError

MAGIC = b"HALOIDX1"
_ALIGNMENT = 64
_INT64, _UINT32 = "<i8", "<u4"


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardIndex:
    """Where each record of a shard lies, and what the shard was made from.

    Args:
        offsets: int64 [record], where the record's frame begins.
        lengths: int64 [record], bytes of data, without the frame.
        ids: int64 [record].
        raw_starts: per raw key int64 [record], at which byte of the file its value begins.
        raw_checksums: per raw key uint32 [record, block], the CRC32C of each 1 MiB block.
        file_bytes, file_checksum: size and CRC32C of the shard's file.
        fingerprint: what the shard was made from (recipe and inputs).
        inputs: per source path the SHA-256 of its content; "" where it could not be read.
        statistics: see `halofeed.prep.statistics`.
        rejected: one {source, split, stage, reason, detail} per input that was not written.

    Two indexes are equal where their `to_bytes` are.
    """

    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    ids: NDArray[np.int64]
    raw_starts: Mapping[str, NDArray[np.int64]]
    raw_checksums: Mapping[str, NDArray[np.uint32]]
    file_bytes: int
    file_checksum: int
    fingerprint: str
    inputs: Mapping[str, str]
    statistics: Mapping[str, Any]
    rejected: tuple[Mapping[str, str], ...]

    def __len__(self) -> int:
        return len(self.offsets)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardIndex) and self.to_bytes() == other.to_bytes()

    __hash__ = None  # type: ignore[assignment]

    def to_bytes(self) -> bytes:
        """The index file's bytes; equal indexes give equal bytes."""
        arrays: dict[str, tuple[NDArray[Any], str]] = {
            "offsets": (self.offsets, _INT64),
            "lengths": (self.lengths, _INT64),
            "ids": (self.ids, _INT64),
        }
        for key in sorted(self.raw_starts):
            arrays[f"start:{key}"] = (self.raw_starts[key], _INT64)
            arrays[f"crc32c:{key}"] = (self.raw_checksums[key], _UINT32)
        placed, body = [], bytearray()
        for name, (array, dtype) in arrays.items():
            body += bytes(-len(body) % _ALIGNMENT)
            little = np.ascontiguousarray(array, dtype)
            entry = {"name": name, "dtype": little.dtype.str, "shape": list(little.shape), "at": len(body)}
            placed.append(entry)
            body += little.tobytes()
        header = {
            "arrays": placed,
            "file_bytes": self.file_bytes,
            "file_checksum": self.file_checksum,
            "fingerprint": self.fingerprint,
            "inputs": dict(self.inputs),
            "statistics": dict(self.statistics),
            "rejected": [entry if isinstance(entry, dict) else dict(entry) for entry in self.rejected],
        }
        text = json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
        padding = b" " * (-(len(MAGIC) + 8 + len(text)) % _ALIGNMENT)
        pieces = [MAGIC, struct.pack("<Q", len(text) + len(padding)), text, padding, bytes(body)]
        checksum = 0
        for piece in pieces:
            checksum = crc32c(piece, checksum)
        return b"".join([*pieces, struct.pack("<I", checksum)])

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> ShardIndex:
        """Parse an index file.

        Raises:
            CorruptFileError: names `where` and says how to mend it.
        """
        cure = "run the same `halofeed convert` with --overwrite to make it anew"
        if len(data) < len(MAGIC) + 12 or data[: len(MAGIC)] != MAGIC:
            raise CorruptFileError(
                f"{where}: not a halofeed index (no {MAGIC.decode()} at its beginning); {cure}"
            )
        if crc32c(memoryview(data)[:-4]) != struct.unpack("<I", data[-4:])[0]:
            raise CorruptFileError(f"{where}: the index's checksum is wrong; {cure}")
        # What follows a right checksum was written so: by another version, or by another program.
        try:
            return cls._from_checked(data)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise CorruptFileError(
                f"{where}: the checksum is right but the content is no index of this version ({error!r:.200}); {cure}"
            ) from error

    @classmethod
    def _from_checked(cls, data: bytes) -> ShardIndex:
        start = len(MAGIC) + 8
        base = start + int(struct.unpack_from("<Q", data, len(MAGIC))[0])
        header = json.loads(data[start:base])
        arrays = {}
        for entry in header["arrays"]:
            name, shape = entry["name"], tuple(entry["shape"])
            dtype = _UINT32 if name.startswith("crc32c:") else _INT64
            if entry["dtype"] != dtype or any(type(size) is not int or size < 0 for size in shape):
                raise ValueError(f"array {name}: dtype {entry['dtype']!r}, shape {shape}")
            flat = np.frombuffer(memoryview(data)[:-4], dtype, math.prod(shape), base + entry["at"])
            arrays[name] = flat.reshape(shape)
        keys = [name.removeprefix("start:") for name in arrays if name.startswith("start:")]
        index = cls(
            offsets=arrays["offsets"],
            lengths=arrays["lengths"],
            ids=arrays["ids"],
            raw_starts={key: arrays[f"start:{key}"] for key in keys},
            raw_checksums={key: arrays[f"crc32c:{key}"] for key in keys},
            file_bytes=operator.index(header["file_bytes"]),
            file_checksum=operator.index(header["file_checksum"]),
            fingerprint=str(header["fingerprint"]),
            inputs=dict(header["inputs"]),
            statistics=dict(header["statistics"]),
            rejected=tuple(map(dict, header.pop("rejected"))),
        )
        columns = [index.lengths, index.ids, *index.raw_starts.values()]
        if any(column.shape != index.offsets.shape for column in columns) or index.offsets.ndim != 1:
            raise ValueError("the columns differ in length")
        if any(sums.ndim != 2 or len(sums) != len(index) for sums in index.raw_checksums.values()):
            raise ValueError("the block checksums are not [record, block]")
        return index
