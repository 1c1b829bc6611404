"""Are rows that are copied from memory, all of a batch at once, right whatever becomes of their files meanwhile?"""

from __future__ import annotations

import os

import pytest

from halofeed.loader import FlipLeftRight, Loader, RandomCrop, gather
from halofeed.loader.assemble import Assembler
from halofeed.schemas.errors import CorruptFileError
from halofeed.schemas.mapping import is_guarded
from tests.loader.batches import same
from tests.loader.kernels import needs_kernel

CHAINS = {"whole": [], "windows": [FlipLeftRight(), RandomCrop(10, 12)]}
pytestmark = [pytest.mark.skipif(not is_guarded(), reason="files are not mapped here"), needs_kernel]


@pytest.fixture
def folder(draw, write):
    return write(draw(20, task="classification"))


@pytest.fixture(params=CHAINS)
def loader(request, folder):
    """A loader that has read all records once."""
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


def test_no_more_files_are_held_open_than_the_process_may(loader, monkeypatch):
    expected = loader.batch(8)
    rows = copied_rows(monkeypatch)
    monkeypatch.setattr(gather, "most_open", lambda: 2)
    same(loader.batch(8), expected)
    assert not rows
