"""Are gzip files read bit for bit, and is every damage refused with its own reason?"""

import gzip
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.errors import SourceError
from halofeed.prep.formats.volume import streams
from tests.support.allocations import traced

RANDOM = np.random.default_rng(31)
NOISE = RANDOM.integers(0, 256, 700_000, np.uint8).tobytes()  # so large that its input comes in many pieces
SMOOTH = (RANDOM.integers(0, 4, 3_000_000, np.uint8) // 3).tobytes()


def read_all(data: bytes, piece_bytes: int = 100_000) -> bytes:
    stream, out = streams.open_stream(data), bytearray()
    piece = memoryview(bytearray(piece_bytes))
    while got := stream.read_into(piece):
        out += piece[:got]
    return bytes(out)


@pytest.mark.parametrize("content", [b"", b"a", NOISE, SMOOTH], ids=["empty", "one byte", "noise", "smooth"])
@pytest.mark.parametrize("piece_bytes", [977, 1 << 20])
def test_what_zlib_wrote_is_read_back(content, piece_bytes):
    assert read_all(gzip.compress(content, 6), piece_bytes) == content


def test_plain_files_and_optional_fields_of_the_frame_are_passed_over():
    """A name longer than the pieces of input, extra fields, a comment (RFC 1952, 2.3)."""
    assert read_all(NOISE[1:]) == NOISE[1:]
    assert (
        streams.read_start(b"abc", 2) == b"ab"
        and streams.read_start(b"abc", 9) == b"abc"
        and streams.read_start(b"", 3) == b""
    )
    body = gzip.compress(SMOOTH, 1)[10:]
    fields = b"\x05\0h\0l\0o" + b"n" * (streams.INPUT_BYTES + 10) + b"\0" + b"comment\0"
    data = b"\x1f\x8b\x08\x1e\0\0\0\0\0\xff" + fields + b"hh" + body
    assert read_all(data) == SMOOTH
    for end in (9, 11, 30, streams.INPUT_BYTES + 25, len(data) - len(body)):
        with pytest.raises(SourceError, match="truncated"):
            read_all(data[:end])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 200_000), max_size=5),
    st.integers(0, 9),
    st.integers(0, 40),
    st.integers(1, 300_000),
)
def test_members_in_a_row_are_one_content(lengths, level, zeros, piece_bytes):
    contents = [NOISE[at : at + length] for at, length in enumerate(lengths)]
    data = b"".join(gzip.compress(content, level) for content in contents)
    if data:
        assert read_all(data + bytes(zeros), piece_bytes) == b"".join(contents)


WHOLE = gzip.compress(SMOOTH[:200_000], mtime=0)


def test_each_damage_has_its_reason():
    for data, reason in (
        (WHOLE[:-1], "gzip data is truncated"),
        (WHOLE[:-8], "gzip data is truncated"),
        (WHOLE[: len(WHOLE) // 2], "gzip data is truncated"),
        (WHOLE[:7], "gzip data is truncated"),
        (WHOLE + WHOLE[:100], "gzip data is truncated"),
        (WHOLE[:-6] + b"\x55" + WHOLE[-5:], "gzip checksum is wrong"),
        (WHOLE[:-1] + b"\x55", "gzip checksum is wrong"),
        (WHOLE[:40] + b"\xff" * 40 + WHOLE[80:], "gzip data is damaged"),
        (b"\x1f\x8b\x07" + WHOLE[3:], "gzip data is damaged"),
        (WHOLE + b"more", "gzip data is followed by something else"),
        (WHOLE + bytes(9) + b"x", "gzip data is followed by something else"),
    ):
        with pytest.raises(SourceError) as caught:
            read_all(data)
        assert (caught.value.stage, caught.value.reason) == ("decode", reason)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_changed_bit_gives_the_oracles_bytes_or_an_error(drawn):
    """zlib is the oracle: whatever it accepts whole, and nothing else, is read."""
    data = bytearray(gzip.compress(NOISE[:300] + SMOOTH[:3000]))
    at = drawn.draw(st.integers(2, len(data) - 1))
    data[at] ^= 1 << drawn.draw(st.integers(0, 7))
    try:
        expected = gzip.decompress(bytes(data))
    except (EOFError, zlib.error, gzip.BadGzipFile):
        expected = None
    try:
        assert read_all(bytes(data)) == expected
    except SourceError:
        assert expected is None


def test_nothing_expands_more_than_the_bound_and_skipping_keeps_nothing():
    """Zeros at the best level are what deflate is best at."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
    data = compressor.compress(bytes(50_000_000)) + compressor.flush()
    ratio = 50_000_000 / len(data)
    assert 1000 < ratio <= streams.MAX_DEFLATE_RATIO
    assert streams.GzipStream(data).max_bytes >= 50_000_000
    data = gzip.compress(bytes(40_000_000))
    with traced() as memory:
        passed = streams.skip(streams.open_stream(data), 10**12)
    assert passed == 40_000_000 and memory.peak < 2_000_000
