"""The next batch is read ahead only as long as the disk is needed."""

import pytest

from halofeed.loader.store import local
from halofeed.loader.store.local import LocalStore


@pytest.fixture
def reads(monkeypatch):
    """What the system says to have read for this process, in a list of one number."""
    count = [0]
    monkeypatch.setattr(local, "_disk_reads", lambda: count[0])
    return count


def make(store, batches):
    for _ in range(batches):
        with store.window(b"", list):
            pass


def test_what_lies_in_memory_is_not_read_ahead(tmp_path, reads):
    store = LocalStore(tmp_path)
    assert store.is_prefetching
    make(store, 10)
    assert not store.is_prefetching


def test_a_disk_that_is_read_ahead_all_the_time_goes_on_being(tmp_path, reads):
    store = LocalStore(tmp_path)
    for _ in range(100):
        reads[0] += 1  # between the batches: none of them waits
        make(store, 1)
        assert store.is_prefetching
    make(store, 10)
    assert not store.is_prefetching
    with store.window(b"", list):
        reads[0] += 1
    assert store.is_prefetching
