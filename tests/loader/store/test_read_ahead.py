"""The next batch is read ahead only as long as the disk is needed."""

from halofeed.loader.store import local_store as local
from halofeed.loader.store.local_store import LocalStore


def test_batches_are_read_ahead_while_the_system_reads_from_the_disk(tmp_path, monkeypatch):
    reads = [0]
    monkeypatch.setattr(local, "_disk_reads", lambda: reads[0])
    store = LocalStore(tmp_path)

    def make(batches, read_within=0):
        for _ in range(batches):
            with store.window(b"", list):
                reads[0] += read_within
        return store.is_prefetching

    assert store.is_prefetching and not make(10)
    for _ in range(100):
        reads[0] += 1  # between the batches: none of them waits
        assert make(1)
    assert not make(10)
    assert make(1, read_within=1)
