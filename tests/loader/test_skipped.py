"""Does a loader that skips records that cannot be read give all others as ever, and say what it skipped?"""

import shutil

import numpy as np
import pytest

from halofeed.loader import FlipLeftRight, Loader, RandomCrop
from halofeed.schemas.errors import CorruptFileError
from tests.support.batches import flip, rows_of

RECORDS, ROWS = 120, 8
AUGMENT = [FlipLeftRight(), RandomCrop(8, 8)]


@pytest.fixture(scope="module", params=["raw", "png"])
def whole(request, draw, write):
    return write(draw(RECORDS, frame=(12, 16)), frame=(12, 16), encoding=request.param)


def damaged(whole, folder, numbers):
    """A copy of a data set in which a byte of the values of some records is another."""
    shutil.copytree(whole, folder)
    shards = Loader(whole, batch_size=1)._shards
    for number in numbers:
        record = shards.record(number)
        path = folder / shards.file_name(record.shard).rpartition("/")[2]
        flip(path, record.end - 200, 64)
    return folder


def loader_of(folder, **options):
    given = {"batch_size": ROWS, "seed": 4, "augment": AUGMENT, "on_corrupt": "skip"} | options
    return Loader(folder, **given)


def test_another_record_takes_the_place_the_same_one_each_time_and_on_any_number_of_hosts(whole, tmp_path):
    bad = Loader(whole, batch_size=1)[17]["id"]
    folder = damaged(whole, tmp_path / "set", [17])
    plain, skips = loader_of(whole), loader_of(folder)
    hosts = [loader_of(folder, shard_index=host, shard_count=4) for host in range(4)]
    taken = set()
    for step in range(2 * RECORDS // ROWS):
        expected, found = rows_of(plain.batch(step)), rows_of(skips.batch(step))
        assert found == rows_of(loader_of(folder).batch(step))
        assert found == [row for host in hosts for row in rows_of(host.batch(step))]
        for row, identity in enumerate(plain.batch(step)["id"]):
            if identity != bad:
                assert found[row] == expected[row]
            else:
                other = skips.batch(step)["id"][row]
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
                assert found["id"][row] == -1


def test_more_than_one_in_a_hundred_stop_the_loader(whole, tmp_path):
    folder = damaged(whole, tmp_path / "set", [5, 60])
    with pytest.raises(CorruptFileError, match="2 records of 120 cannot be read, and on_corrupt='skip'"):
        list(loader_of(folder, num_epochs=1))


def test_a_split_of_one_record_has_no_other(draw, write, tmp_path):
    whole = write(draw(1, frame=(12, 16)), frame=(12, 16), shards=1)
    folder = damaged(whole, tmp_path / "set", [0])
    with pytest.raises(CorruptFileError, match="1 records of 1 cannot be read"):
        loader_of(folder, batch_size=1).batch(0)


def test_the_order_in_which_batches_are_made_changes_none(whole, tmp_path):
    folder = damaged(whole, tmp_path / "set", [40])
    steps = np.random.default_rng(0).permutation(30).tolist()
    forward, mixed = loader_of(folder), loader_of(folder)
    made = {step: rows_of(mixed.batch(step)) for step in steps}
    for step in range(30):
        assert made[step] == rows_of(forward.batch(step))
