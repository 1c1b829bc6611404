"""Our TFRecord files are those of TensorFlow, and every damaged byte is found."""

import io
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from halofeed.schemas.checksum import crc32c, mask_crc
from halofeed.schemas.errors import CorruptFileError
from halofeed.schemas.tfrecord import RecordWriter, check_record, read_records
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


def test_every_changed_byte_is_found_and_placed() -> None:
    data = written(RECORDS)
    offsets = [offset for offset, _ in read_records(data, "a.tfrecord")]
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        offset = max(start for start in offsets if start <= position)
        with pytest.raises(CorruptFileError, match=f"a.tfrecord: record at byte {offset:,}: "):
            list(read_records(changed, "a.tfrecord"))


def test_every_truncation_inside_a_record_is_found() -> None:
    data = written(RECORDS)
    whole = {offset for offset, _ in read_records(data, "a")} | {len(data)}
    for length in range(len(data)):
        if length in whole:
            assert len(list(read_records(data[:length], "a"))) == sorted(whole).index(length)
        else:
            with pytest.raises(CorruptFileError, match="the file ends inside the record"):
                list(read_records(data[:length], "a"))


@pytest.mark.parametrize("length", [1, 2**31, 2**63, 2**64 - 1])
def test_a_claimed_length_with_a_right_checksum_allocates_nothing(length: int) -> None:
    head = struct.pack("<Q", length)
    data = head + struct.pack("<I", mask_crc(crc32c(head)))
    said = f"ends inside the record \\({length:,} bytes announced\\)"
    with traced() as memory, pytest.raises(CorruptFileError, match=said):
        list(read_records(data, "a"))
    assert memory.peak < 1 << 20


def test_an_offset_past_the_end_is_a_corrupt_file() -> None:
    with pytest.raises(CorruptFileError, match="inside the record's header"):
        check_record(memoryview(written(RECORDS))[10**9 :], "a")


def test_a_record_of_another_length_than_announced_is_refused() -> None:
    with pytest.raises(ValueError, match="a record of 3 bytes was announced and 4 came"):
        RecordWriter(io.BytesIO()).write([b"ab", b"cd"], 3)


@given(st.binary(max_size=100))
def test_any_bytes_are_records_or_a_corrupt_file(data: bytes) -> None:
    try:
        list(read_records(data, "a"))
    except CorruptFileError:
        return
