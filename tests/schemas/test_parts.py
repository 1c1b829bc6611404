"""An Example read in parts, or without its large values, equals the whole; damage is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.schemas.errors import CorruptFileError
from halofeed.schemas.tfexample import decode_example, decode_parts, decode_small, encode_example

KEYS = ("image/a", "image/b", "image/c" * 30, "image/d")
VALUES = (
    st.binary(max_size=300)
    | st.lists(st.binary(max_size=20), max_size=4)
    | st.integers(0, 20_000)  # so many bytes
    | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5).map(lambda values: np.array(values, np.int64))
    | st.lists(st.floats(width=32, allow_nan=False), max_size=5).map(
        lambda values: np.array(values, np.float32)
    )
)


def plain(features):
    return {
        key: value.tolist() if isinstance(value, np.ndarray) else [bytes(item) for item in value]
        for key, value in features.items()
    }


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES), st.sets(st.sampled_from(KEYS)))
def test_small_values_are_those_of_the_whole(features, wanted):
    values = {key: bytes(value) if isinstance(value, int) else value for key, value in features.items()}
    data = memoryview(encode_example(values).to_bytes())

    def read(at, size):
        assert at >= 0 and at + size <= len(data)
        return data[at : at + size]

    assert plain(decode_small(read, len(data), wanted)) == plain(decode_example(data, wanted))


def test_large_values_are_passed_over_unread():
    features = {
        "image/a": b"x",
        "image/b": bytes(10_000_000),
        "image/c": bytes(50_000),
        "image/d": np.array([7]),
    }
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
    st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1),
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


@pytest.mark.parametrize("shift", [-1, 1, 5])
def test_a_raw_value_that_is_not_where_it_should_be_is_refused(shift):
    example = encode_example({"image/a": np.array([1]), "image/b": bytes(400), "image/c": [b"u", b"v"]})
    data, begin = memoryview(example.to_bytes()), example.starts["image/b"] + shift
    with pytest.raises(CorruptFileError, match="not a tf"):
        decode_parts(
            [(0, data[:begin]), (begin + 400, data[begin + 400 :])], len(data), frozenset(["image/c"])
        )
