"""Our tf.train.Example equals TensorFlow's, byte for byte and value for value, also in parts; bad bytes are refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from halofeed.errors import CorruptFileError, UsageError
from halofeed.schemas.limits import RECORD_VALUES
from halofeed.schemas.tfexample import decode_example, decode_parts, decode_small, encode_example
from tests.support.allocations import traced

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

FLOATS = hnp.arrays(np.float32, st.integers(0, 20), elements=st.floats(width=32))
INTEGERS = hnp.arrays(np.int64, st.integers(0, 20) | st.just(300), elements=st.integers(-(2**63), 2**63 - 1))
BYTES = st.lists(st.binary(max_size=300), max_size=5)
VALUES = st.one_of(FLOATS, INTEGERS, BYTES)
FEATURES = st.dictionaries(st.text(max_size=10), VALUES, max_size=6)
# Where one key begins another, protobuf's deterministic form has an order of its own (the longer one first).
FEATURES_OF_EQUAL_LENGTH = st.dictionaries(st.text(min_size=3, max_size=3), VALUES, max_size=6)


def tf_example(features: dict[str, Any]) -> Any:
    example = tf.train.Example()
    example.features.SetInParent()
    for key, value in features.items():
        feature = example.features.feature[key]
        if isinstance(value, list):
            feature.bytes_list.SetInParent()
            feature.bytes_list.value.extend(value)
        elif value.dtype == np.float32:
            feature.float_list.SetInParent()
            feature.float_list.value.extend(value.tolist())
        else:
            feature.int64_list.SetInParent()
            feature.int64_list.value.extend(value.tolist())
    return example


def assert_same(decoded: dict[str, Any], features: dict[str, Any]) -> None:
    assert set(decoded) == set(features)
    for key, value in features.items():
        if isinstance(value, list):
            assert [bytes(item) for item in decoded[key]] == value
        else:
            assert decoded[key].dtype == value.dtype
            assert decoded[key].tobytes() == value.tobytes()


@given(FEATURES_OF_EQUAL_LENGTH)
def test_our_bytes_are_those_of_tensorflows_deterministic_form(features: dict[str, Any]) -> None:
    encoded = encode_example(features)
    assert encoded.to_bytes() == tf_example(features).SerializeToString(deterministic=True)
    assert encoded.length == len(encoded.to_bytes())


def varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def tag(number: int, body: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(body)) + body


def quiet(item: bytes) -> bytes:
    """The float32 of these bytes; a NaN is quiet, since Python's float, by which the oracle gives it, has no other."""
    is_nan = np.isnan(np.frombuffer(item, "<f4")[0])
    return item[:2] + bytes([item[2] | 0x40]) + item[3:] if is_nan else item


LISTS = st.one_of(
    st.lists(st.binary(max_size=3).map(lambda item: tag(1, item)), max_size=3).map(lambda found: (1, found)),
    st.lists(
        st.binary(min_size=4, max_size=4).map(lambda item: b"\x0d" + quiet(item))
        | st.integers(0, 20).map(lambda count: tag(1, bytes(range(4 * count)))),
        max_size=3,
    ).map(lambda found: (2, found)),
    st.lists(
        st.integers(0, 2**64 - 1).map(lambda value: b"\x08" + varint(value))
        | st.lists(st.integers(0, 2**64 - 1), max_size=40).map(
            lambda values: tag(1, b"".join(map(varint, values)))
        ),
        max_size=3,
    ).map(lambda found: (3, found)),
)
FEATURE = st.lists(LISTS.map(lambda found: tag(found[0], b"".join(found[1]))), max_size=3).map(b"".join)
ENTRY = st.lists(
    st.sampled_from(["a", "b", "key"]).map(lambda key: tag(1, key.encode()))
    | FEATURE.map(lambda one: tag(2, one)),
    max_size=4,
).map(b"".join)
MESSAGES = st.lists(st.lists(ENTRY.map(lambda one: tag(1, one)), max_size=3).map(b"".join), max_size=3).map(
    lambda found: b"".join(tag(1, one) for one in found)
)


@given(MESSAGES, st.sets(st.sampled_from(["a", "b", "key"])))
@settings(max_examples=300)
def test_repeated_messages_of_one_field_are_merged_as_protobuf_does(data: bytes, wanted: set[str]) -> None:
    expected = {}
    for key, found in tf.train.Example.FromString(data).features.feature.items():
        if (kind := found.WhichOneof("kind")) is not None:
            values = getattr(found, kind).value
            dtype = {"float_list": np.float32, "int64_list": np.int64}.get(kind)
            expected[key] = list(values) if dtype is None else np.array(values, dtype)
    assert_same(decode_example(data), expected)
    expected = {key: value for key, value in expected.items() if key in wanted}
    assert_same(decode_example(data, wanted), expected)
    view = memoryview(data)
    assert_same(decode_parts([(0, view)], len(data), frozenset(wanted)), expected)
    assert_same(decode_small(lambda at, size: view[at : at + size], len(data), wanted), expected)


@given(FEATURES)
def test_what_we_or_tensorflow_write_is_read_again_whatever_the_order_of_keys(features) -> None:
    data = encode_example(features).to_bytes()
    for written in (data, tf_example(features).SerializeToString()):
        assert_same(decode_example(written), features)
    assert encode_example(dict(reversed(features.items()))).to_bytes() == data


def test_unpacked_numbers_are_read_as_packed_ones_and_cut_to_64_bits_as_protobuf_does() -> None:
    # Feature {int64_list {value: 5, value: -1}} and {float_list {value: 1.0}} with one tag per value.
    minus_one = b"\xff" * 9 + b"\x01"
    integers = b"\x1a" + bytes([4 + len(minus_one) - 1]) + b"\x08\x05\x08" + minus_one
    floats = b"\x12\x05\x0d\x00\x00\x80\x3f"
    data = b""
    for key, feature in ((b"f", floats), (b"i", integers)):
        entry = b"\x0a\x01" + key + b"\x12" + bytes([len(feature)]) + feature
        data += b"\x0a" + bytes([len(entry)]) + entry
    data = b"\x0a" + bytes([len(data)]) + data
    theirs = tf.train.Example.FromString(data).features.feature
    assert theirs["i"].int64_list.value == [5, -1] and theirs["f"].float_list.value == [1.0]
    ours = decode_example(data)
    assert ours["i"].tolist() == [5, -1] and ours["f"].tolist() == [1.0]
    data = b"\x0a\x15\x0a\x13\x0a\x01k\x12\x0e\x1a\x0c" + b"\x0a\x0a" + b"\xff" * 9 + b"\x7f"
    assert tf.train.Example.FromString(data).features.feature["k"].int64_list.value == [-1]
    assert decode_example(data)["k"].tolist() == [-1]


def test_starts_say_where_each_single_bytes_value_begins() -> None:
    features = {"z": b"last", "a": b"first" * 100, "many": [b"x", b"y"], "n": np.arange(300), "empty": b""}
    encoded = encode_example(features)
    data = encoded.to_bytes()
    assert set(encoded.starts) == {"a", "z", "empty"}
    for key, start in encoded.starts.items():
        assert data[start : start + len(features[key])] == features[key]


def test_large_values_are_referred_to_and_not_copied() -> None:
    image = memoryview(np.arange(50_000, dtype="<u2")).cast("B")
    encoded = encode_example({"image": image})
    assert any(getattr(chunk, "obj", None) is image.obj for chunk in encoded.chunks)
    read = decode_example(encoded.to_bytes())["image"][0]
    assert isinstance(read, memoryview) and read == image


FEATURES_OF_SAMPLE = {"a": np.array([1, -1, 300]), "b": b"bytes" * 30, "c": np.array([1.5, 2.5], np.float32)}
FEATURES_OF_SAMPLE |= {"d": [b"x", b""], "é": np.array([], np.float32)}
SAMPLE = encode_example(FEATURES_OF_SAMPLE).to_bytes()


def test_every_changed_byte_gives_another_example_or_an_error_and_every_truncation_is_refused() -> None:
    for position in range(len(SAMPLE)):
        for change in range(1, 256):
            data = bytearray(SAMPLE)
            data[position] ^= change
            try:
                decode_example(data)
            except CorruptFileError:
                continue
    assert decode_example(b"") == {}
    for length in range(1, len(SAMPLE)):
        with pytest.raises(CorruptFileError):
            decode_example(SAMPLE[:length])


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a" + b"\xff" * 9 + b"\x01",  # 2**64 - 1 bytes of Features
        b"\x0a" + b"\xff" * 9 + b"\x7f",  # more than 64 bits of length
        b"\x0a" + b"\xff\xff\xff\xff\x0f" + b"x",
        b"\x0a\x08\x0a\x06\x12\x04\x12\x02\x0a\x7f",  # a float list past its Feature
        b"\x0a\x09\x0a\x07\x12\x05\x12\x03\x0a\x01\x00",  # one byte of float32
        b"\x0a\x0a\x0a\x08\x12\x06\x12\x04\x0d\x00\x00\x00",  # three bytes of an unpacked float32
        b"\x0a" * 5000,
        b"\x00\x01",  # field number 0
        b"\x0b",  # a group
    ],
)
def test_claimed_lengths_are_checked_before_anything_is_allocated(data: bytes) -> None:
    with traced() as memory, pytest.raises(CorruptFileError, match=r"not a tf\.train\.Example"):
        decode_example(data)
    assert memory.peak < 1 << 20


def test_values_without_a_form_are_wrong_usage_that_names_the_key():
    for value, message in (
        (np.zeros((2, 2)), "expected a one-dimensional array"),
        (np.array(["a"]), "has no form in tf.train.Example"),
        (np.array([2**63], np.uint64), "which int64 cannot hold"),
        ("text", "expected bytes, a list of bytes or an array, got 'text'"),
        (7, "expected bytes, a list of bytes or an array, got 7"),
        ([b"a", "b"], "expected a list of bytes, got 'b' in it"),
    ):
        with pytest.raises(UsageError, match=f"key: .*{message}"):
            encode_example({"key": value})


def test_an_example_of_two_gibibytes_is_refused_with_the_advice_to_tile() -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 2**31

    with pytest.raises(UsageError, match="over protobuf's limit of 2,147,483,647; cut it into tiles"):
        encode_example({"image": Huge()})


def feature(number: int, body: bytes) -> bytes:
    """An Example with one feature, `a`, whose list of kind `number` has this body."""
    inner = bytes([number << 3 | 2]) + varint(len(body)) + body
    entry = b"\x0a\x01a\x12" + varint(len(inner)) + inner
    features = b"\x0a" + varint(len(entry)) + entry
    return b"\x0a" + varint(len(features)) + features


MANY = 3000


@pytest.mark.parametrize(
    "data",
    [
        feature(1, b"\x0a\x00" * MANY),
        feature(2, b"\x0d\x00\x00\x00\x00" * MANY),
        feature(2, b"\x0a" + varint(4 * MANY) + bytes(4 * MANY)),
        feature(3, b"\x08\x00" * MANY),
        feature(3, b"\x0a" + varint(MANY) + bytes(MANY)),
        feature(3, b"\x0a" + varint(200 << 10) + bytes(200 << 10)),
        b"\x0a" + varint(2 * MANY) + b"\x0a\x00" * MANY,
        b"\x0a\x00" * MANY,
    ],
    ids=["texts", "floats", "packed floats", "integers", "packed", "200 kB", "entries", "features"],
)
def test_more_values_than_a_record_may_have_are_refused(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    decode_example(data)
    monkeypatch.setattr("halofeed.schemas.tfexample.RECORD_VALUES", MANY - 1)
    with pytest.raises(CorruptFileError, match="more than 2,999 values"):
        decode_example(data)


def test_a_long_key_is_refused_and_more_values_than_are_read_are_not_written() -> None:
    with pytest.raises(CorruptFileError, match="a key of 5,000 bytes"):
        decode_example(encode_example({"a" * 5000: b""}).to_bytes())
    with pytest.raises(UsageError, match="an example of 4,194,305 values is over the limit"):
        encode_example({"a": np.zeros(RECORD_VALUES, np.float32), "b": b""})


KEYS = ("image/a", "image/b", "image/c" * 30, "image/d")
SMALL_AND_LARGE = (
    st.binary(max_size=300)
    | st.lists(st.binary(max_size=20), max_size=4)
    | st.integers(0, 20_000)  # so many bytes
    | hnp.arrays(np.int64, st.integers(0, 5), elements=st.integers(-(2**63), 2**63 - 1))
    | hnp.arrays(np.float32, st.integers(0, 5), elements=st.floats(width=32, allow_nan=False))
)


def plain(features):
    return {
        key: value.tolist() if isinstance(value, np.ndarray) else [bytes(item) for item in value]
        for key, value in features.items()
    }


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(st.sampled_from(KEYS), SMALL_AND_LARGE), st.sets(st.sampled_from(KEYS)))
def test_small_values_are_those_of_the_whole(features, wanted):
    values = {key: bytes(value) if isinstance(value, int) else value for key, value in features.items()}
    data = memoryview(encode_example(values).to_bytes())

    def read(at, size):
        assert at >= 0 and at + size <= len(data)
        return data[at : at + size]

    assert plain(decode_small(read, len(data), wanted)) == plain(decode_example(data, wanted))


def test_large_values_are_passed_over_unread():
    large = {"image/b": bytes(10_000_000), "image/c": bytes(50_000)}
    features = {"image/a": b"x", "image/d": np.array([7]), **large}
    data = memoryview(encode_example(features).to_bytes())
    reads = []

    def read(at, size):
        reads.append(size)
        return data[at : at + size]

    found = decode_small(read, len(data), ["image/a", "image/d"])
    assert found["image/d"].tolist() == [7] and bytes(found["image/a"][0]) == b"x"
    assert sum(reads) < 40_000


@settings(deadline=None, max_examples=300)
@given(
    st.dictionaries(st.sampled_from(KEYS), SMALL_AND_LARGE, min_size=1),
    st.dictionaries(st.sampled_from(["raw/1", "image/aa", "zzz"]), st.binary(max_size=500), min_size=1),
)
def test_an_example_without_its_raw_values_gives_the_others(features, raw):
    values = {key: bytes(value) if isinstance(value, int) else value for key, value in features.items()}
    example = encode_example({**values, **raw})
    data = memoryview(example.to_bytes())
    parts, at = [], 0
    for key in sorted(raw):
        begin = example.starts[key]
        parts.append((at, data[at:begin]))
        at = begin + len(raw[key])
    parts.append((at, data[at:]))
    keys = frozenset(features)
    assert plain(decode_parts(parts, len(data), keys)) == plain(decode_example(data, keys))


def test_damage_is_a_corrupt_file_or_other_values_and_nothing_else():
    example = encode_example({"image/a": np.array([1, 300]), "image/b": bytes(400), "image/c": [b"u", b"v"]})
    data, begin = example.to_bytes(), example.starts["image/b"]
    refused = 0
    for position in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            view = memoryview(changed)
            parts = [(0, view[:begin]), (begin + 400, view[begin + 400 :])]
            for decode in (
                lambda parts=parts: decode_parts(parts, len(data), frozenset(["image/a", "image/c"])),
                lambda view=view: decode_small(lambda at, size: view[at : at + size], len(view), ["image/a"]),
            ):
                try:
                    decode()
                except CorruptFileError:
                    refused += 1
    assert refused > 200
    for moved in (begin - 1, begin + 1, begin + 5):
        parts = [(0, memoryview(data)[:moved]), (moved + 400, memoryview(data)[moved + 400 :])]
        with pytest.raises(CorruptFileError, match="not a tf"):
            decode_parts(parts, len(data), frozenset(["image/c"]))
