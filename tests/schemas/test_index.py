"""An index is read as it was written; every damaged or foreign one is refused."""

import dataclasses
import json
import re
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from halofeed.errors import CorruptFileError
from halofeed.schemas.index import MAGIC, ShardIndex
from halofeed.schemas.statistics import Statistics
from halofeed.system.checksum import crc32c, mask_crc
from tests.schemas.test_manifest import STATISTICS

NUMBER = st.integers(0, 2**62)


@st.composite
def indexes(draw: Any) -> ShardIndex:
    count, blocks = draw(st.integers(0, 5)), draw(st.integers(0, 3))
    lengths = draw(hnp.arrays(np.int64, count, elements=st.integers(0, 2**31 - 1)))
    offsets = np.cumsum([0, *(lengths + 16)])
    inside = hnp.arrays(np.float64, count, elements=st.floats(0, 1))
    sums = hnp.arrays(np.uint32, (count, blocks), elements=st.integers(0, 2**32 - 1))
    keys = draw(st.lists(st.text(max_size=8), max_size=3, unique=True))
    return ShardIndex(
        offsets=offsets[:-1],
        lengths=lengths,
        checksums=draw(hnp.arrays(np.uint32, count, elements=st.integers(0, 2**32 - 1))),
        ids=draw(hnp.arrays(np.int64, count, elements=NUMBER)),
        raw_starts={key: offsets[:-1] + 12 + (lengths * draw(inside)).astype(np.int64) for key in keys},
        raw_checksums={key: draw(sums) for key in keys},
        packed_bytes={key: np.zeros(count, np.int64) for key in keys[: draw(st.integers(0, len(keys)))]},
        file_bytes=int(offsets[-1]) + draw(NUMBER),
        file_checksum=draw(st.integers(0, 2**32 - 1)),
        fingerprint=draw(st.text()),
        inputs=draw(st.dictionaries(st.text(), st.text(), max_size=3)),
        statistics=Statistics.from_json(draw(STATISTICS)),
        rejected=tuple(draw(st.lists(st.dictionaries(st.text(), st.text(), max_size=3), max_size=2))),
    )


def sample(**changes: Any) -> ShardIndex:
    records = {"offsets": np.array([0, 100]), "lengths": np.array([84, 50]), "ids": np.array([3, 9])}
    records["checksums"] = np.array([5, 2**32 - 1], np.uint32)
    raw = {"raw_starts": {"image/encoded": np.array([20, 120])}}
    raw["raw_checksums"] = {"image/encoded": np.array([[1, 2], [3, 4]], np.uint32)}
    file: dict[str, Any] = {"file_bytes": 166, "file_checksum": 77, "fingerprint": "abc"}
    file |= {"inputs": {"b/\udcff.jpg": "12", "a.jpg": ""}, "statistics": Statistics(records=2)}
    rejected = ({"source": "c.jpg", "stage": "decode"},)
    index = ShardIndex(**records, **raw, **file, rejected=rejected)
    return dataclasses.replace(index, **changes)


@given(indexes())
def test_what_is_written_is_read_whole_or_its_columns_alone_and_gives_the_same_bytes(index):
    data = index.to_bytes()
    read = ShardIndex.from_bytes(data, "x.index")
    assert {getattr(read, name).dtype for name in ("offsets", "lengths", "ids")} == {np.dtype(np.int64)}
    assert {one.dtype for one in (read.checksums, *read.raw_checksums.values())} == {np.dtype(np.uint32)}
    for name in (field.name for field in dataclasses.fields(ShardIndex)):
        np.testing.assert_equal(getattr(read, name), getattr(index, name))
    assert read.to_bytes() == data and read == index and len(read) == len(index.offsets)
    alone = ShardIndex.from_bytes(data, "x", columns_only=True)
    assert alone == dataclasses.replace(index, inputs={}, statistics=Statistics(), rejected=())


def test_equal_indexes_give_equal_bytes_whatever_their_order_and_integer_type() -> None:
    index = sample()
    other = sample(
        offsets=index.offsets.astype(">i4"),
        ids=index.ids.astype(np.uint16),
        inputs=dict(reversed(index.inputs.items())),
        raw_checksums={key: value.astype(np.int64) for key, value in index.raw_checksums.items()},
    )
    assert other.to_bytes() == index.to_bytes() and other == index
    assert sample(ids=np.array([3, 10])) != index and index != "something else"
    # Bytes that end with their own CRC32C all have the same one: the manifest's checksum of an index said nothing.
    assert len({crc32c(sample(ids=np.array([3, last])).to_bytes()) for last in range(50)}) == 50
    base = 16 + struct.unpack_from("<Q", data := index.to_bytes(), 8)[0]
    places = [entry["at"] for entry in json.loads(data[16:base])["arrays"]]
    assert [(base + at) % 64 for at in places] == [0] * 6, "arrays lie at multiples of 64 bytes"
    with pytest.raises(ValueError, match="not JSON compliant"):
        sample(statistics=Statistics(records=float("nan"))).to_bytes()


def test_every_changed_byte_and_every_truncation_is_a_corrupt_file_that_says_how_to_mend_it() -> None:
    data = sample().to_bytes()
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        for broken in (bytes(changed), data[:position]):
            with pytest.raises(CorruptFileError, match=r"x\.index: .*`halofeed convert` with --overwrite"):
                ShardIndex.from_bytes(broken, "x.index")
    huge = MAGIC + struct.pack("<Q", 2**64 - 1) + b"{}"
    for broken in (data + b"\0", huge + struct.pack("<I", mask_crc(crc32c(huge)))):
        with pytest.raises(CorruptFileError):
            ShardIndex.from_bytes(broken, "x.index")
    with pytest.raises(CorruptFileError, match=r"x\.index: an index of an earlier version.* --overwrite"):
        ShardIndex.from_bytes(b"HALOIDX1" + data[len(MAGIC) :], "x.index")


def checked(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    whole = MAGIC + struct.pack("<Q", len(text)) + text + body
    return whole + struct.pack("<I", mask_crc(crc32c(whole)))


def good_header() -> dict[str, Any]:
    data = sample().to_bytes()
    header: dict[str, Any] = json.loads(data[16 : 16 + struct.unpack_from("<Q", data, 8)[0]])
    return header


def with_array(**changes: Any) -> dict[str, Any]:
    header = good_header()
    header["arrays"][0].update(changes)
    return header


WRONG = [{"file_bytes": "many"}, {"inputs": 5}, {"rejected": [3]}, {"rejected": [{"source": 3}]}]
WRONG += [{"inputs": {"a": None}}, {"fingerprint": []}, {"statistics": {"records": "2"}}]
WRONG += [{"statistics": {"surprise": 2}}, {"statistics": {"pixels": {"count": 1, "sum": [1]}}}]
WRONG += [{"file_bytes": 2**63}, {"file_bytes": -1}, {"file_checksum": 2**32}]
WRONG_ARRAYS = [{"shape": shape} for shape in ([2**62], [2**70], [-1], [1], [2.0], [True, 2])]
WRONG_ARRAYS += [{"dtype": "O"}, {"dtype": "<f8"}, *({"at": at} for at in (10**9, 2**70, -(10**6), "x"))]
HEADERS = [b"", b"\xff", b"[" * 100_000, [], {}, {"arrays": 7}, {"arrays": [{"name": 7}]}]
HEADERS += [{**good_header(), **wrong} for wrong in WRONG] + [with_array(**wrong) for wrong in WRONG_ARRAYS]


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: re.sub(r"\W+", "_", str(header)[:30]))
def test_a_right_checksum_around_a_wrong_content_is_a_corrupt_file(header: Any) -> None:
    body = sample().to_bytes()[-300:]
    with pytest.raises(CorruptFileError, match="the content is no index of this version"):
        ShardIndex.from_bytes(checked(header, body), "x.index")


OUTSIDE: list[dict[str, Any]] = [{"offsets": [-100, 0]}, {"offsets": [0, 167]}, {"offsets": [0, 2**62]}]
OUTSIDE += [{"lengths": [84, -1]}, {"lengths": [84, 51]}, {"lengths": [2**63 - 1, 50]}, {"ids": [3, -1]}]
OUTSIDE += [{"raw_starts": {"image/encoded": np.array([at, end])}} for at, end in ((11, 120), (20, 163))]
OUTSIDE += [{"raw_starts": {"image/encoded": np.array([20, -(2**63)])}}, {"file_bytes": 165}]
OUTSIDE += [{"packed_bytes": {"image/encoded": np.array([76, last])}} for last in (43, -1, 2**63 - 1)]


def test_a_packed_value_may_fill_the_rest_of_its_record_and_has_a_start() -> None:
    index = sample(packed_bytes={"image/encoded": np.array([76, 42])})
    assert ShardIndex.from_bytes(index.to_bytes(), "x").packed_bytes["image/encoded"].tolist() == [76, 42]
    lost = sample(packed_bytes={"image/label": np.array([1, 1])})
    with pytest.raises(CorruptFileError, match="a packed value has a size and no start"):
        ShardIndex.from_bytes(lost.to_bytes(), "x.index")


@pytest.mark.parametrize("changes", OUTSIDE, ids=str)
def test_no_record_lies_outside_of_its_shard(changes: dict[str, Any]) -> None:
    columns = {name: np.array(value) if isinstance(value, list) else value for name, value in changes.items()}
    with pytest.raises(CorruptFileError, match=r"x\.index: .*(outside the shard|negative id)"):
        ShardIndex.from_bytes(sample(**columns).to_bytes(), "x.index")
