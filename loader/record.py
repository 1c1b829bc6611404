"""How one record is read from its shard, as far as it is asked for, and how its bytes are checked."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from halofeed.errors import CorruptFileError
from halofeed.loader.field_cache import KeptLists
from halofeed.loader.native import kernel
from halofeed.schemas.shard_file import CURE, OpenFile
from halofeed.schemas.tfexample import Decoded, decode_parts
from halofeed.schemas.tfrecord import FOOTER_BYTES, HEADER_BYTES
from halofeed.system.checksum import BLOCK_BYTES, combine, combine_blocks, crc32c, mask_crc

if TYPE_CHECKING:
    from halofeed.loader.gather import Shards

Bytes = NDArray[np.uint8]
CHANGED = (
    "the shard was replaced or changed since it was indexed; if the data set was converted or copied again, make a new "
    f"Loader, else {CURE}"
)
WHOLE, WHOLE_FOR_CROPS, WHOLE_FOR_SLABS = 1 << 62, 2 << 20, BLOCK_BYTES
"""Up to which size raw values are fetched whole, whatever is seen of them: another request may cost more."""
_KEPT_SCRATCH_BYTES = 1 << 24
_NOWHERE: Mapping[str, Bytes] = {}
_HEADER, _FOOTER = struct.Struct("<QI"), struct.Struct("<I")


class Scratch(threading.local):
    """Memory that a thread reads into, kept from record to record."""

    def __init__(self) -> None:
        self._memory: dict[str, Bytes] = {}
        self.block: tuple[object, str, int] | None = None
        """Of which reading, key and block the scratch "block" holds the bytes, found to be right."""

    def bytes(self, use: str, size: int) -> Bytes:
        """So many bytes for a use, the same again each time."""
        memory = self._memory.get(use)
        if memory is None or len(memory) < size:
            memory = np.empty(1 << max(12, (size - 1).bit_length()), np.uint8)
            if size <= _KEPT_SCRATCH_BYTES:
                self._memory[use] = memory
        return memory[:size]


def _touched(starts: Sequence[int], length: int) -> list[int]:
    """The blocks of a raw value in which parts of it lie, in order."""
    begin = np.array(starts)
    first, last = begin // BLOCK_BYTES, (begin + length - 1) // BLOCK_BYTES
    touched = np.zeros(int(last.max()) + 2, np.int64)
    np.add.at(touched, first, 1)
    np.add.at(touched, last + 1, -1)
    return list(np.flatnonzero(np.cumsum(touched) > 0).tolist())


def _address(part: memoryview) -> int:
    return int(np.frombuffer(part, np.uint8).ctypes.data)


class StoredRecord:
    """One record, read from its shard as far as it is asked for; each of its methods reads.

    Attributes:
        id: of the example.
        shard: which one holds it.
        end: the byte of the file after its frame.
    """

    __slots__ = (
        "_frame",
        "_length",
        "_looked",
        "_mode",
        "_number",
        "_offset",
        "_opened",
        "_pass",
        "_rest",
        "_shards",
        "_stamp",
        "_whole",
        "end",
        "id",
        "shard",
    )
    _opened: OpenFile
    """Once `features` was called."""

    def __init__(
        self, shards: Shards, shard: int, number: int, offset: int, length: int, identity: int
    ) -> None:
        self._shards, self.shard, self._number = shards, shard, number
        self._offset, self._length, self.id = offset, length, identity
        self.end = offset + HEADER_BYTES + length + FOOTER_BYTES
        self._mode = shards.verify
        self._stamp: tuple[int, ...] = ()
        self._whole: Bytes | None = None
        self._looked = False
        self._pass = object()
        self._rest: memoryview | None = None
        self._frame = memoryview(b"")

    def was_read(self, opened: OpenFile, stamp: tuple[int, ...], rest: memoryview) -> None:
        """What `features` finds the next time: all raw values lie where they go, and every checksum is right.

        Args:
            opened, stamp: the shard's file, and its stamp of before.
            rest: the frame without the raw values.
        """
        self._opened, self._stamp, self._rest = opened, stamp, rest

    @property
    def place(self) -> str:
        """ "file: record at byte offset (id ...)", for messages."""
        return f"{self._shards.file_name(self.shard)}: record at byte {self._offset:,} (id {self.id})"

    def features(
        self, keys: frozenset[str], into: Mapping[str, Bytes] = _NOWHERE, *, outlives: bool = False
    ) -> Decoded:
        """The values of those keys but raw ones, which stay where they are; those of `into` are read into it.

        Bytes values are views of the thread's scratch and hold until it reads another record's; with `outlives` they
        are memory of their own.

        Raises:
            CorruptFileError: names file, offset, id and the cure.
        """
        shards, number = self._shards, self._number
        if self._rest is not None:
            self._frame, self._rest = self._rest, None
            return self._decode(self._around_values(self._frame), keys)
        self._opened = opened = shards.open(self.shard)
        self._stamp, self._looked = opened.stamp, False
        self._pass = object()  # what was found in the scratch before counts for nothing
        if opened.is_transferred:
            if self._mode == "first":
                self._mode = "always"  # what was found of one transfer says nothing of another
            opened.begin(self._offset, lambda: shards.spans(np.array([number]), WHOLE_FOR_CROPS))
        size = self.end - self._offset - shards.all_raw_bytes
        rest = np.empty(size, np.uint8).data if outlives else shards.scratch.bytes("rest", size).data
        self._frame = rest
        around = self._around_values(rest)
        if not self._is_copied_from_memory(opened, into, around):
            for at, part in around:
                opened.read_into((part,), at, len(part))
            self.check_frame(rest[:HEADER_BYTES], rest[-FOOTER_BYTES:])
            if self._mode == "always" or (self._mode == "first" and not shards.verified[number]):
                self._verify([part for _, part in self._without_frame(around)])
            for key, out in into.items():
                self.fetch(key, [0], len(out), out)
        return self._decode(around, keys)

    def _around_values(self, rest: memoryview) -> list[tuple[int, memoryview]]:
        """What lies before, between and after the raw values, each with its place in the file, from all of it."""
        around, at, used = [], self._offset, 0
        for key, value_bytes in self._shards.raw_bytes.items():
            begin = self.raw_start(key)
            stop = used + begin - at
            around.append((at, rest[used:stop]))
            at, used = begin + value_bytes, stop
        return [*around, (at, rest[used:])]

    def _without_frame(self, around: list[tuple[int, memoryview]]) -> list[tuple[int, memoryview]]:
        """The same of the data, with places in these."""
        first = self._offset + HEADER_BYTES
        parts = [(max(0, at - first), part) for at, part in around]
        parts[0] = (0, parts[0][1][HEADER_BYTES:])
        parts[-1] = (parts[-1][0], parts[-1][1][:-FOOTER_BYTES])
        return parts

    def _decode(self, around: list[tuple[int, memoryview]], keys: frozenset[str]) -> Decoded:
        if not keys:
            return {}
        try:
            return decode_parts(self._without_frame(around), self._length, keys)
        except CorruptFileError as error:
            raise CorruptFileError(f"{self.place}: {error}") from error

    def _is_verified(self, key: str) -> bool:
        """Whether no checksum of its raw value is to be computed, now or any more."""
        if self._mode == "first":
            return bool(self._shards.verified_blocks[key][self._number].all())
        return self._mode == "never"

    def _is_copied_from_memory(
        self, opened: OpenFile, into: Mapping[str, Bytes], around: list[tuple[int, memoryview]]
    ) -> bool:
        """Whether the shard is mapped and nothing is to be checked but the frame, so that copies did it."""
        shards = self._shards
        if not shards.raw_bytes or not shards.is_verified(self._number, into):
            return False
        whole = self._in_memory()
        if whole is None:
            return False
        for at, part in around:
            part[:] = whole.data[at : at + len(part)]
        for key, out in into.items():
            begin = self.raw_start(key)
            value = whole[begin : begin + len(out)]
            if not kernel.copy(value, out, 1):
                np.copyto(out, value)
        if opened.is_lost():
            return False
        self.check_frame(around[0][1][:HEADER_BYTES], around[-1][1][-FOOTER_BYTES:])
        return True

    def known(self, names: Sequence[str]) -> dict[str, NDArray[Any]] | None:
        """The values of fields by name, where all were kept; with `verify="always"` none counts as kept."""
        return self._shards.known(self._number, names)

    def known_lists(self) -> KeptLists | None:
        """The lists of its objects, as `known`."""
        found = self._shards.known_lists(np.array([self._number]))
        return None if found is None else found[0]

    def keep(self, values: Mapping[str, NDArray[Any]], lists: Mapping[str, NDArray[Any]]) -> None:
        """Keep values of static shape, and lists of objects, as far as there is room; once the record is confirmed."""
        for name, value in values.items():
            self._shards.columns.keep(name, self._number, value)
        if lists:
            self._shards.lists.keep(self._number, lists)

    def part(self, start: int, stop: int) -> memoryview:
        """Bytes of its frame without raw values, once `features` was called; they hold as long as what that gave."""
        return self._frame[start:stop]

    def place_of(self, part: memoryview) -> tuple[int, int]:
        """What `part` takes for bytes that `features` gave."""
        start = _address(part) - _address(self._frame)
        return start, start + len(part)

    def raw_start(self, key: str) -> int:
        """At which byte of the file a raw value begins."""
        return int(self._shards.raw_starts[key][self._number])

    def fetch(self, key: str, starts: Sequence[int], length: int, out: Bytes) -> None:
        """Read parts of a raw value, one after the other, once `features` was called.

        Checksums are computed of whole blocks, straight in `out` where it takes all of one, so that no byte is looked
        at long after it was read.

        Args:
            key: of the value.
            starts: at which of its bytes each part begins.
            length: of each part, in bytes.
            out: memory for all of them.

        Raises:
            CorruptFileError: as `features`.
        """
        opened, begin, target = self._opened, self.raw_start(key), out.data
        checked = not self._is_verified(key)
        for at, start in enumerate(starts):
            part = target[at * length : (at + 1) * length]
            if checked:
                self._fetch_checked(key, start, part)
            else:
                opened.read_into((part,), begin + start, length)

    def look(self, key: str, runs: Callable[[], tuple[list[int], int]]) -> Bytes | None:
        """A raw value as it lies in memory, once `features` was called; None where it is to be fetched.

        Args:
            key: of the value.
            runs: gives at which of its bytes each part begins, and the length of each in bytes.

        Returns:
            uint8 [byte]: all of the value. Whoever looked at it asks `is_lost` afterwards.
        """
        whole = self._in_memory()
        if whole is None:
            return None
        shards, begin = self._shards, self.raw_start(key)
        value = whole[begin : begin + shards.raw_bytes[key]]
        if not self._is_verified(key):
            for block in _touched(*runs()):
                if self._is_right(key, block):
                    continue
                data = value[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]
                if crc32c(data) != shards.raw_checksums[key][self._number, block]:
                    return None  # read by place it is found wrong again, or said why it cannot be read
                self._found_right(key, block)
        return value

    def _in_memory(self) -> Bytes | None:
        """All of the shard's bytes, looked at once a reading: asking takes as long as a tenth of a picture's copy."""
        if not self._looked:
            self._whole, self._looked = self._opened.look(), True
        return self._whole

    def _is_right(self, key: str, block: int) -> bool:
        """Whether a block's checksum was computed before, and need not be again."""
        return self._mode == "first" and bool(self._shards.verified_blocks[key][self._number, block])

    def is_lost(self) -> bool:
        """Whether some of what was looked at was not the file's; it is to be fetched then."""
        if self._opened.is_lost():
            self._whole = None
        return self._whole is None

    def expect(self, key: str, runs: Callable[[], tuple[list[int], int]]) -> None:
        """Have parts of a raw value, as of `look`, on their way in whole blocks, where they are far away."""
        if self._opened.is_transferred:
            begin, size = self.raw_start(key), self._shards.raw_bytes[key]
            places = [block * BLOCK_BYTES for block in _touched(*runs())]
            self._opened.expect([(begin + at, begin + min(at + BLOCK_BYTES, size)) for at in places])

    def _fetch_checked(self, key: str, start: int, out: memoryview) -> None:
        shards, stop = self._shards, start + len(out)
        for block in range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)):
            low, high = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, shards.raw_bytes[key])
            first, last = max(start, low), min(stop, high)
            target = out[first - start : last - start]
            if self._is_right(key, block):
                self._opened.read_into((target,), self.raw_start(key) + first, last - first)
                continue
            if (first, last) == (low, high):
                self._read_block(key, block, target)
                continue
            scratch = shards.scratch
            whole = scratch.bytes("block", BLOCK_BYTES).data[: high - low]
            if scratch.block != (self._pass, key, block):
                scratch.block = None
                self._read_block(key, block, whole)
                scratch.block = (self._pass, key, block)
            target[:] = whole[first - low : last - low]

    def scratch(self, size: int) -> Bytes:
        """So much memory of this thread to `fetch` into, the same again each time."""
        return self._shards.scratch.bytes("piece", size)

    def remembered(self, what: Hashable, count: Callable[[], NDArray[np.int64]]) -> NDArray[np.int64]:
        """What was counted in this record; counted again where it was forgotten."""
        return self._shards.remembered((self._number, what), count)

    def is_confirmed(self) -> bool:
        """Whether nobody wrote to the shard since `features` began; else what was read is to be read again."""
        return self._opened.is_unchanged(self._stamp)

    def changing(self) -> CorruptFileError:
        """What to raise where reading again does not help."""
        return CorruptFileError(
            f"{self.place}: the shard is being written to while it is read; wait until that is done, and make a new "
            "Loader then"
        )

    def check_frame(self, header: memoryview, footer: memoryview) -> None:
        """Compare the bytes around a record's data with the index; CorruptFileError where they differ."""
        length, length_checksum = _HEADER.unpack(header)
        if length != self._length:
            raise CorruptFileError(
                f"{self.place}: its length is not the {self._length:,} bytes of the index: {CHANGED}"
            )
        if self._mode != "never" and mask_crc(crc32c(header[:8])) != length_checksum:
            raise self._wrong("the length's checksum is wrong")
        self._check_footer(footer)

    def _check_footer(self, footer: memoryview) -> None:
        if _FOOTER.unpack(footer)[0] != self._shards.checksums[self._number]:
            raise CorruptFileError(f"{self.place}: the checksum that it states is not the index's: {CHANGED}")

    def _verify(self, parts: list[memoryview]) -> None:
        """The data's checksum, of raw values by what the index states of their blocks: those are compared when read."""
        shards, number = self._shards, self._number
        checksum = crc32c(parts[0])
        for (key, value_bytes), part in zip(shards.raw_bytes.items(), parts[1:], strict=True):
            value = combine_blocks(shards.raw_checksums[key][number].tolist(), value_bytes)
            checksum = crc32c(part, combine(checksum, value, value_bytes))
        if mask_crc(checksum) != shards.checksums[number]:
            raise self._wrong("the data's checksum is wrong")
        if self._mode == "first":
            shards.verified[number] = True

    def _read_block(self, key: str, block: int, out: memoryview) -> None:
        self._opened.read_into((out,), self.raw_start(key) + block * BLOCK_BYTES, len(out))
        if crc32c(out) != self._shards.raw_checksums[key][self._number, block]:
            raise self._wrong(f"the checksum is wrong of block {block} of {key}")
        self._found_right(key, block)

    def _found_right(self, key: str, block: int) -> None:
        if self._mode == "first":
            self._shards.verified_blocks[key][self._number, block] = True

    def _wrong(self, what: str) -> CorruptFileError:
        name = self._shards.file_name(self.shard)
        return CorruptFileError(f"{name}: record at byte {self._offset:,}: {what} (id {self.id}); {CURE}")
