"""Names that do not fit a path or TFDS are refused; file names are those of TFDS."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halofeed.schemas.errors import UsageError
from halofeed.schemas.layout import check_name, check_split, check_version, index_file, shard_file


@pytest.mark.parametrize("name", ["cards", "a", "a_1", "x9"])
def test_good_names_are_returned(name: str) -> None:
    assert check_name(name) == name
    assert check_split(name) == name


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


@given(
    st.from_regex(r"[A-Za-z][A-Za-z0-9_.]{0,10}", fullmatch=True),
    st.integers(0, 99998),
    st.integers(1, 99999),
)
def test_a_shards_file_name_can_be_taken_apart_again(split: str, shard: int, count: int) -> None:
    matched = re.fullmatch(
        r"([a-z0-9_]+)-(.+)\.tfrecord-(\d{5})-of-(\d{5})", shard_file("a_b", split, shard, count)
    )
    assert matched is not None
    assert matched.groups() == ("a_b", split, f"{shard:05d}", f"{count:05d}")
    assert index_file("x") == "x.index"
