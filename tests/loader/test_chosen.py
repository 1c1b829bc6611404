"""A loader of chosen records equals that of a data set of these records; others replace unreadable ones."""

import shutil

import numpy as np
import pytest

from halofeed.errors import CorruptFileError, UsageError
from halofeed.loader import FlipLeftRight, Loader, Mixture, RandomCrop
from halofeed.loader.batch import join_id
from halofeed.loader.record import stored_record
from tests.support.batches import flip, rows_of

AUGMENT = [FlipLeftRight(), RandomCrop(8, 8)]
OPTIONS = {"batch_size": 4, "seed": 2, "augment": AUGMENT}


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
            np.testing.assert_array_equal(some.records[number]["image"], alone.records[number]["image"])
            assert some.find(int(join_id(some.records[number]["id"]))) == number
    with pytest.raises(UsageError, match="has no such record"):
        some.find(next(example["id"] for example in examples if not odd(example["id"])))


def test_a_state_is_of_the_same_records(folder):
    state = Loader(folder, **OPTIONS, where=odd).state(5)
    ids = [
        int(join_id(record["id"])) for record in map(Loader(folder, **OPTIONS).records.__getitem__, range(20))
    ]
    assert Loader(folder, **OPTIONS, where=[one for one in ids if one % 2]).restore(state) == 5
    for other in ({}, {"where": ids[:3]}):
        with pytest.raises(UsageError, match="where: the state has"):
            Loader(folder, **OPTIONS, **other).restore(state)
    whole = Loader(folder, **OPTIONS)
    early = {key: value for key, value in whole.state(7).items() if key not in ("where", "crc32c")}
    assert whole.restore(early) == 7, "of a version without `where`"


def test_a_mixture_takes_the_chosen_ones(folder):
    mixed = Mixture({folder: 1}, **OPTIONS, where=odd)
    assert all((join_id(mixed.batch(step)["id"]) % 2 == 1).all() for step in range(10))


def test_what_cannot_be_chosen_is_refused(folder):
    for where, words in (
        ([1, 2], "split 'train' has no record 1, 2"),
        (["no/such.jpg"], "has no record no/such.jpg"),
        ([1000 + 7, 1000 + 7], "a record is named twice"),
        ("all", "expected a list of ids or keys, or a function, got 'all'"),
        ([], "no record of split 'train' is taken"),
        (lambda ids: ids < 0, "no record of split 'train' is taken"),
        (lambda ids: ids, r"expected bool \(20,\) of ids int64 \(20,\), got int64"),
        (lambda ids: odd(ids)[:3], r"got bool \(3,\)"),
    ):
        with pytest.raises(UsageError, match=words):
            Loader(folder, **OPTIONS, where=where)


RECORDS, ROWS = 120, 8


@pytest.fixture(scope="module", params=["raw", "png"])
def whole(request, draw, write):
    return write(draw(RECORDS, frame=(12, 16)), frame=(12, 16), encoding=request.param)


def damaged(whole, folder, numbers):
    """A copy of a data set in which a byte of the values of some records is another."""
    shutil.copytree(whole, folder)
    shards = Loader(whole, batch_size=1)._shards
    for number in numbers:
        record = stored_record(shards, number)
        path = folder / shards.file_name(record.shard).rpartition("/")[2]
        flip(path, record.end - 200, 64)
    return folder


def loader_of(folder, **options):
    given = {"batch_size": ROWS, "seed": 4, "augment": AUGMENT, "on_corrupt": "skip"} | options
    return Loader(folder, **given)


def test_another_record_takes_the_place_the_same_one_each_time_and_on_any_number_of_hosts(whole, tmp_path):
    bad = join_id(Loader(whole, batch_size=1).records[17]["id"])
    folder = damaged(whole, tmp_path / "set", [17])
    plain, skips = loader_of(whole), loader_of(folder)
    hosts = [loader_of(folder, shard_index=host, shard_count=4) for host in range(4)]
    taken = set()
    for step in range(2 * RECORDS // ROWS):
        expected, found = rows_of(plain.batch(step)), rows_of(skips.batch(step))
        assert found == rows_of(loader_of(folder).batch(step))
        assert found == [row for host in hosts for row in rows_of(host.batch(step))]
        for row, identity in enumerate(join_id(plain.batch(step)["id"])):
            if identity != bad:
                assert found[row] == expected[row]
            else:
                other = join_id(skips.batch(step)["id"][row])
                assert other != bad and skips.batch(step)["valid"][row]
                taken.add(int(other))
    assert len(taken) == 2, "another one in each epoch"
    assert list(skips.skipped) == [17]
    assert f"(id {bad})" in skips.skipped[17] and ".tfrecord-" in skips.skipped[17]
    with pytest.raises(CorruptFileError, match=rf"id {bad}"):
        list(loader_of(folder, on_corrupt="fail", num_epochs=1))


def test_in_evaluation_the_row_is_not_valid_and_counts_nothing(whole, tmp_path):
    folder = damaged(whole, tmp_path / "set", [3])
    loaders = [loader_of(given, training=False, augment=[]) for given in (folder, whole)]
    for step, (found, expected) in enumerate(zip(*loaders, strict=True)):
        assert found["valid"].tolist() == [ROWS * step + row != 3 for row in range(ROWS)]
        for row, valid in enumerate(found["valid"].tolist()):
            if valid:
                assert rows_of(found)[row] == rows_of(expected)[row]
            else:
                assert join_id(found["id"][row]) == -1


def test_more_than_one_in_a_hundred_stop_the_loader(whole, tmp_path):
    folder = damaged(whole, tmp_path / "set", [5, 60])
    with pytest.raises(CorruptFileError, match="2 records of 120 cannot be read, and on_corrupt='skip'"):
        list(loader_of(folder, num_epochs=1))


def test_a_split_of_one_record_has_no_other(draw, write, tmp_path):
    whole = write(draw(1, frame=(12, 16)), frame=(12, 16), shards=1)
    folder = damaged(whole, tmp_path / "set", [0])
    with pytest.raises(CorruptFileError, match="1 record of 1 cannot be read"):
        loader_of(folder, batch_size=1).batch(0)
