"""Example ids, shards, the refusal of ids that come twice, and the names of sets, splits and files."""

import hashlib
import re
from array import array
from fnmatch import fnmatch
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halofeed.errors import AnnotationsError, UsageError
from halofeed.schemas.file_layout import check_name, check_split, check_version, index_file, shard_file
from halofeed.schemas.identity import example_id, refuse_repeated, shard_of, shards_of, splitmix64
from tests.support.allocations import traced


@given(st.integers(0, 2**63 - 1))
def test_an_integer_and_its_plain_decimal_string_are_one_id(number: int) -> None:
    assert example_id(number) == example_id(str(number)) == number


@given(
    st.text(
        st.characters(codec="utf-8").filter(lambda character: not character.isdigit())
        | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF)  # bytes of file names that are not UTF-8
    )
)
def test_any_other_string_is_the_first_63_bits_of_its_sha256(text: str) -> None:
    bits = "".join(f"{byte:08b}" for byte in hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest())
    assert example_id(text) == int(bits[:63], 2)


def test_mix_gives_the_published_splitmix64_sequence() -> None:
    # The generator's first outputs for seed 1234567, as its authors' reference code prints them.
    state, outputs = 1234567, []
    for _ in range(3):
        outputs.append(splitmix64(state))
        state += 0x9E3779B97F4A7C15
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_consecutive_ids_fill_the_shards_evenly_and_what_is_no_plain_decimal_is_hashed() -> None:
    for stride in (1, 7, 4096):
        counts = np.bincount(shards_of(np.arange(100_000) * stride, 16), minlength=16)
        assert np.abs(counts - 100_000 / 16).max() < 5 * np.sqrt(100_000 / 16)
    for key in ("007", "+7", "-7", " 7", "7\n", "1_0", "٧", "7.0", "", str(2**63), -7, 2**63):
        assert example_id(key) == int.from_bytes(hashlib.sha256(str(key).encode()).digest()[:8], "big") >> 1


@given(st.lists(st.integers(0, 2**63 - 1), max_size=20), st.integers(1, 2**32 - 1))
def test_many_ids_at_once_go_where_each_one_goes(identities: list[int], shard_count: int) -> None:
    shards = shards_of(np.array(identities, np.int64), shard_count)
    assert shards.tolist() == [shard_of(identity, shard_count) for identity in identities]
    assert all(0 <= shard < shard_count for shard in shards.tolist())
    with pytest.raises(UsageError, match="got 0"):
        shard_of(1, 0)


def refuse(pairs: list[tuple[str | int, str]]) -> None:
    refuse_repeated(array("q", (example_id(key) for key, _ in pairs)), lambda: pairs)


@given(st.lists(st.one_of(st.integers(0, 5), st.sampled_from(["a", "b", "3", "03"]))))
def test_a_repeated_id_is_found_exactly_when_there_is_one(keys: list[str | int]) -> None:
    pairs = [(key, f"source {number}") for number, key in enumerate(keys)]
    repeated = len({example_id(key) for key in keys}) < len(keys)
    if repeated:
        with pytest.raises(AnnotationsError):
            refuse(pairs)
    else:
        refuse(pairs)


def test_many_ids_are_checked_in_a_few_bytes_each() -> None:
    collected = array("q", (example_id(number * 977) for number in range(200_000)))
    with traced() as memory:
        refuse_repeated(collected, list)
    assert memory.peak / len(collected) < 20


@pytest.mark.parametrize(
    ("check", "option", "wrong"),
    [
        (check_name, "--name", ["", "Cards", "1a", "a-b", "a/b", "..", "a\n", "ä", "a b", "_a"]),
        (check_version, "--version", ["1.0", "1.0.0.0", "01.0.0", "1.0.0\n", "1.0.x", "", "1.٣.0", "v1.0.0"]),
        (check_split, "split", ["", "a-b", "a/b", "../a", "a b", "1st", "all", "a\n", "é"]),
    ],
)
def test_bad_names_versions_and_splits_are_wrong_usage(check: Any, option: str, wrong: list[str]) -> None:
    assert check_version("10.0.3") == "10.0.3"
    for text in wrong:
        with pytest.raises(UsageError, match=option):
            check(text)


NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_.]{0,10}", fullmatch=True)


@given(NAMES, st.integers(0, 99998), st.integers(1, 99999))
def test_a_shards_file_name_can_be_taken_apart_again(split: str, shard: int, count: int) -> None:
    name = shard_file("a_b", split, shard, count)
    matched = re.fullmatch(r"([a-z0-9_]+)-(.+)\.tfrecord-(\d{5})-of-(\d{5})", name)
    assert matched is not None
    assert matched.groups() == ("a_b", split, f"{shard:05d}", f"{count:05d}")
    name = index_file(shard_file("a", "b", 3, 16))
    assert not any(fnmatch(name, one) for one in ("a*", "*b*", "*.tfrecord*", "*-of-*"))
    assert index_file(shard_file("a", "b", 3, 15)) != name != index_file(shard_file("a", "c", 3, 16))
