"""Rows that the kernel copies from mapped shards are right, even if the files change during the copy."""

import os

import pytest

from halofeed.errors import CorruptFileError
from halofeed.loader import FlipLeftRight, Loader, RandomCrop, shards
from halofeed.loader.assemble import Assembler
from halofeed.loader.mapped_records import MappedRecords
from halofeed.schemas.tfrecord import read_records
from halofeed.storage.mapped_files import is_guarded
from tests.support.batches import flip, same
from tests.support.kernels import needs_kernel

CHAINS = {"whole": [], "windows": [FlipLeftRight(), RandomCrop(10, 12)]}
pytestmark = [pytest.mark.skipif(not is_guarded(), reason="files are not mapped here"), needs_kernel]


@pytest.fixture(params=["raw", "packed", "yuv420"])
def folder(draw, write, request):
    return write(draw(20, task="classification"), encoding=request.param)


@pytest.fixture(params=CHAINS)
def loader(request, folder):
    loader = Loader(folder, batch_size=5, seed=3, augment=CHAINS[request.param])
    for step in range(8):
        loader.batch(step)
    return loader


def copied_rows(monkeypatch, then=lambda batch, row: None):
    """The rows that are copied from memory from now on, and what becomes of each then."""
    rows, move = [], Assembler.move_planned

    def moved(self, batch, places, *more):
        made = move(self, batch, places, *more)
        for row in places[made].tolist():
            rows.append(row)
            then(batch, row)
        return made

    monkeypatch.setattr(Assembler, "move_planned", moved)
    return rows


def test_rows_of_files_that_are_touched_meanwhile_are_read_again(loader, folder, monkeypatch):
    expected = [loader.batch(step) for step in range(8, 11)]
    shards = sorted(folder.glob("*train*.tfrecord-*[0-9]"))
    assert shards

    def tear(batch, row):
        batch["image"][row] = 0
        for shard in shards:
            os.utime(shard)

    rows = copied_rows(monkeypatch, tear)
    same(loader.batch(8), expected[0])
    assert sorted(rows) == list(range(5))
    monkeypatch.undo()
    same(loader.batch(9), expected[1])


def test_rows_of_a_shard_that_is_cut_meanwhile_are_an_error_that_names_it(loader, folder, monkeypatch):
    shards = sorted(folder.glob("*train*.tfrecord-*[0-9]"))

    def cut(batch, row):
        for shard in shards:
            os.truncate(shard, 100)

    copied_rows(monkeypatch, cut)
    with pytest.raises(CorruptFileError, match=r"shortened|expected"):
        loader.batch(8)


@pytest.mark.parametrize("part", ["length", "its checksum", "footer"])
def test_rows_whose_frames_change_meanwhile_are_not_copied(loader, folder, monkeypatch, part):
    records_of = MappedRecords.of

    def damaged(*which):
        found = records_of(*which)
        for shard in folder.glob("*train*.tfrecord-*[0-9]"):
            for offset, record in read_records(shard.read_bytes(), ""):
                flip(shard, offset + {"length": 0, "its checksum": 8, "footer": 12 + len(record)}[part])
        return found

    monkeypatch.setattr(MappedRecords, "of", damaged)
    rows = copied_rows(monkeypatch)
    with pytest.raises(CorruptFileError, match="at byte"):
        loader.batch(8)
    assert not rows


def test_no_more_files_are_held_open_than_the_process_may(loader, monkeypatch):
    expected = loader.batch(8)
    rows = copied_rows(monkeypatch)
    monkeypatch.setattr(shards, "max_open", lambda: 2)
    same(loader.batch(8), expected)
    assert not rows
