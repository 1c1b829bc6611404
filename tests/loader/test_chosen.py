"""Is a loader of some records the loader of a data set that holds just these?"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from halofeed.loader import FlipLeftRight, Loader, Mixture, RandomCrop
from halofeed.schemas.errors import UsageError
from tests.support.batches import rows_of

OPTIONS = {"batch_size": 4, "seed": 2, "augment": [FlipLeftRight(), RandomCrop(8, 8)]}


@pytest.fixture(scope="module")
def examples(draw):
    return draw(20, frame=(12, 16))


@pytest.fixture(scope="module")
def folder(examples, write):
    return write(examples, frame=(12, 16))


def odd(ids):
    return ids % 2 == 1


def test_it_is_the_loader_of_a_data_set_that_holds_just_these(examples, folder, write):
    kept = [example for example in examples if odd(example["id"])]
    alone = Loader(write(kept, frame=(12, 16)), **OPTIONS)
    for where in (odd, [example["id"] for example in kept][::-1]):
        some = Loader(folder, **OPTIONS, where=where)
        assert some.num_records == alone.num_records == len(kept)
        for step in range(3 * len(kept) // 4):
            assert rows_of(some.batch(step)) == rows_of(alone.batch(step))
        for number in range(len(kept)):
            np.testing.assert_array_equal(some[number]["image"], alone[number]["image"])
            assert some.find(int(some[number]["id"])) == number
    with pytest.raises(UsageError, match="has no such record"):
        some.find(next(example["id"] for example in examples if not odd(example["id"])))


def test_evaluation_gives_each_of_them_once(folder):
    seen = Counter()
    for batch in Loader(folder, batch_size=3, training=False, where=odd):
        seen.update(batch["id"][batch["valid"]].tolist())
    assert set(seen.values()) == {1} and all(identity % 2 for identity in seen)


def test_a_state_is_of_the_same_records(folder):
    state = Loader(folder, **OPTIONS, where=odd).state(5)
    ids = [int(record["id"]) for record in (Loader(folder, **OPTIONS)[number] for number in range(20))]
    assert Loader(folder, **OPTIONS, where=[one for one in ids if one % 2]).restore(state) == 5
    for other in ({}, {"where": ids[:3]}):
        with pytest.raises(UsageError, match="where: the state has"):
            Loader(folder, **OPTIONS, **other).restore(state)
    whole = Loader(folder, **OPTIONS)
    early = {key: value for key, value in whole.state(7).items() if key not in ("where", "crc32c")}
    assert whole.restore(early) == 7, "of a version without `where`"


def test_a_mixture_takes_the_chosen_ones(folder):
    mixed = Mixture({folder: 1}, **OPTIONS, where=odd)
    assert all((mixed.batch(step)["id"] % 2 == 1).all() for step in range(10))


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ([1, 2], "split 'train' has no record 1, 2"),
        (["no/such.jpg"], "has no record no/such.jpg"),
        ([1000 + 7, 1000 + 7], "a record stands there twice"),
        ("all", "expected a list of ids or keys, or a function, got 'all'"),
        ([], "no record of split 'train' is taken"),
        (lambda ids: ids < 0, "no record of split 'train' is taken"),
        (lambda ids: ids, r"expected bool \(20,\) of ids int64 \(20,\), got int64"),
        (lambda ids: odd(ids)[:3], r"got bool \(3,\)"),
    ],
)
def test_what_cannot_be_chosen_is_refused(folder, where, words):
    with pytest.raises(UsageError, match=words):
        Loader(folder, **OPTIONS, where=where)
