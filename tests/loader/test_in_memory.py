"""Are rows that are copied from memory, all of a batch at once, right whatever becomes of their files meanwhile?"""

from __future__ import annotations

import os

import numpy as np
import pytest

from halofeed.loader import FlipLeftRight, Loader, RandomCrop, gather
from halofeed.loader.assemble import Assembler
from halofeed.loader.native import kernel
from halofeed.schemas.errors import CorruptFileError
from halofeed.schemas.mapping import is_guarded
from tests.loader.kernels import kernel_if

CHAINS = {"whole": [], "windows": [FlipLeftRight(), RandomCrop(10, 12)]}
pytestmark = pytest.mark.skipif(not is_guarded(), reason="files are not mapped here")


@pytest.fixture
def folder(draw, write):
    return write(draw(20, task="classification"))


@pytest.fixture(params=[True, False], ids=["kernel", "NumPy"])
def is_used(request):
    """Whether the kernel is used."""
    if request.param and not kernel.is_built():
        pytest.skip("loader/native/kernel.c is not built")
    with kernel_if(request.param):
        yield request.param


@pytest.fixture(params=CHAINS)
def loader(request, folder, is_used):
    """A loader that has read all records once."""
    loader = Loader(folder, batch_size=5, seed=3, augment=CHAINS[request.param])
    for step in range(8):
        loader.batch(step)
    return loader


def copied_rows(monkeypatch, then=lambda batch, row: None):
    """The rows that are copied from memory from now on, and what becomes of each then."""
    rows, copy, move = [], Assembler.copy_planned, Assembler.move_planned

    def copied(batch, row):
        rows.append(row)
        then(batch, row)

    def copied_one(self, batch, row, *more):
        copy(self, batch, row, *more)
        copied(batch, row)

    def moved(self, batch, places, *more):
        made = move(self, batch, places, *more)
        for row in [] if made is None else places[made].tolist():
            copied(batch, row)
        return made

    monkeypatch.setattr(Assembler, "copy_planned", copied_one)
    monkeypatch.setattr(Assembler, "move_planned", moved)
    return rows


def is_same(one, other):
    return all(np.array_equal(one[name], other[name]) for name in other)


def test_rows_of_files_that_are_touched_meanwhile_are_read_again(loader, folder, monkeypatch):
    expected = [loader.batch(step) for step in range(8, 11)]
    shards = sorted(folder.glob("*train*.tfrecord-*[0-9]"))
    assert shards

    def tear(batch, row):
        batch["image"][row] = 0
        for shard in shards:
            os.utime(shard)

    rows = copied_rows(monkeypatch, tear)
    assert is_same(loader.batch(8), expected[0])
    assert sorted(rows) == list(range(5))
    monkeypatch.undo()
    assert is_same(loader.batch(9), expected[1])


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
    assert is_same(loader.batch(8), expected) and not rows
