"""Our TFRecord files are those of TensorFlow, every damaged byte is found, and checksums are CRC32C, in pieces too."""

import io
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from halofeed.errors import CorruptFileError
from halofeed.schemas.tfrecord import RecordWriter, check_record, read_records
from halofeed.system import checksum
from halofeed.system.checksum import BLOCK_BYTES, block_checksums, crc32c, mask_crc
from tests.support.allocations import traced

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

RECORDS = [b"first", b"", b"x" * 1000, bytes(range(256))]


def written(records: list[bytes]) -> bytes:
    stream = io.BytesIO()
    writer = RecordWriter(stream)
    for record in records:
        footer = writer.write([record[:3], record[3:]], len(record))
        assert stream.getvalue()[-4:] == struct.pack("<I", footer)
    assert writer.offset == len(stream.getvalue())
    assert writer.checksum == crc32c(stream.getvalue())
    return stream.getvalue()


@settings(deadline=None, max_examples=30)
@given(st.lists(st.binary(max_size=200), max_size=5))
@example(RECORDS)
def test_our_file_is_tensorflows_byte_for_byte_and_we_read_tensorflows(records: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        theirs = Path(folder, "theirs")
        with tf.io.TFRecordWriter(str(theirs)) as writer:
            for record in records:
                writer.write(record)
        data = theirs.read_bytes()
    assert data == written(records)
    read = list(read_records(data, "theirs"))
    assert [bytes(record) for _, record in read] == records
    offsets = [sum(len(record) + 16 for record in records[:number]) for number in range(len(records))]
    assert [offset for offset, _ in read] == offsets


def test_every_changed_byte_and_every_truncation_inside_a_record_is_found_and_placed() -> None:
    data = written(RECORDS)
    offsets = [offset for offset, _ in read_records(data, "a.tfrecord")]
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        offset = max(start for start in offsets if start <= position)
        with pytest.raises(CorruptFileError, match=f"a.tfrecord: record at byte {offset:,}: "):
            list(read_records(changed, "a.tfrecord"))
        if position in offsets:
            assert len(list(read_records(data[:position], "a"))) == offsets.index(position)
        else:
            with pytest.raises(CorruptFileError, match="the file ends inside the record"):
                list(read_records(data[:position], "a"))
    with pytest.raises(CorruptFileError, match="inside the record's header"):
        check_record(memoryview(data)[10**9 :], "a")
    with pytest.raises(ValueError, match="expected a record of 3 bytes, got 4"):
        RecordWriter(io.BytesIO()).write([b"ab", b"cd"], 3)


@pytest.mark.parametrize("length", [1, 2**31, 2**63, 2**64 - 1])
def test_a_claimed_length_with_a_right_checksum_allocates_nothing(length: int) -> None:
    head = struct.pack("<Q", length)
    data = head + struct.pack("<I", mask_crc(crc32c(head)))
    said = f"ends inside the record \\({length:,} bytes? announced\\)"
    with traced() as memory, pytest.raises(CorruptFileError, match=said):
        list(read_records(data, "a"))
    assert memory.peak < 1 << 20


def slow_crc32c(data: bytes) -> int:
    """Bit by bit, from the polynomial 0x1EDC6F41 (reflected)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@given(st.binary(max_size=64), st.integers(0, 64))
def test_it_is_the_polynomials_and_continues_over_pieces(data: bytes, cut: int) -> None:
    assert crc32c(data) == slow_crc32c(data)
    assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)
    assert crc32c(bytearray(data)) == crc32c(memoryview(data)) == crc32c(data)


@pytest.mark.parametrize("size", [(1 << 15) - 1, 1 << 15, (1 << 15) + 1, 300_001])
def test_large_pieces_are_summed_alike_by_either_way(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    extend, unlocked = checksum._functions()
    assert unlocked is not None, "the wheel of google-crc32c has its library in another place"
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    found = [crc32c(data), crc32c(data.tobytes()), crc32c(data[77:], crc32c(data[:77])), crc32c(data[1:])]
    monkeypatch.setattr(checksum, "_functions", lambda: (extend, None))
    assert found == [crc32c(data)] * 3 + [crc32c(data[1:])]


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES])
def test_blocks_are_a_mebibyte_each_and_the_last_one_shorter(size: int) -> None:
    data = np.random.default_rng(0).bytes(size)
    parts = [data[start : start + BLOCK_BYTES] for start in range(0, size, BLOCK_BYTES)]
    assert block_checksums(data) == [crc32c(part) for part in parts]
    array = np.arange(24, dtype="<u2").reshape(2, 3, 4)
    assert crc32c(array) == crc32c(memoryview(array)) == crc32c(array.tobytes())
    assert block_checksums(array) == [crc32c(array.tobytes())]
    assert block_checksums(np.zeros((0, 3), np.uint8)) == []
    with pytest.raises(ValueError, match="contiguous"):
        crc32c(np.zeros((4, 4))[:, ::2])


@given(st.integers(0, 2**32 - 1))
def test_masking_is_a_bijection_that_can_be_undone(crc: int) -> None:
    rotated = (mask_crc(crc) - 0xA282EAD8) & 0xFFFFFFFF
    assert ((rotated << 15) | (rotated >> 17)) & 0xFFFFFFFF == crc
