"""Files are written past the page cache unless the disk makes a conversion wait and the page cache does not."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import numpy as np
import pytest

from halofeed.storage import local, writing_ways
from halofeed.storage.local import DirectFile
from halofeed.storage.writing_ways import WaysByDisk, WritingCost, WritingWays

BUFFER = 1 << 16
DATA = np.random.default_rng(0).integers(0, 256, 60 * BUFFER + 777, np.uint8).tobytes()


class Disk:
    """A disk on which the writer waits for a share of the time, and the count of bytes that were written directly.

    Args:
        direct, cached: share of the time that a writer waits for direct writes, and for those through the page cache.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, direct: float, cached: float) -> None:
        self.direct_bytes, self.synced = 0, 0
        write, writev, fsync = os.write, os.writev, os.fsync
        monkeypatch.setattr(os, "write", lambda file, data: self._count(file, write(file, data)))
        monkeypatch.setattr(os, "writev", lambda file, views: self._count(file, writev(file, views)))

        def sync(file: int) -> None:
            self.synced += 1
            fsync(file)

        def cost(timer: local._Timer, position: int) -> WritingCost:
            size = position - timer.start
            # The first part of a file is written directly, and a later one in the way that was chosen.
            share = direct if timer.start == 0 else cached
            return WritingCost(
                waited_seconds=share * size,
                writing_seconds=size,
                processor_seconds=0,
                all_seconds=size,
                byte_count=size,
            )

        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(local._Timer, "cost", cost)

    def _count(self, file: int, written: int) -> int:
        self.direct_bytes += written * bool(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT)
        return written


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure small files, without what was measured before."""
    monkeypatch.setattr(local, "BUFFER_BYTES", BUFFER)
    monkeypatch.setattr(local, "WAYS", WaysByDisk())
    monkeypatch.setattr(writing_ways, "_MEASURED_BYTES", 20 * BUFFER)


def write_file(path: Path) -> bytes:
    """Write the data in pieces, and return what the file has."""
    file = DirectFile(str(path), 4)
    for start in range(0, len(DATA), BUFFER):
        file.write(DATA[start : start + BUFFER])
    file.close()
    return path.read_bytes()


def test_a_fast_disk_is_written_directly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, direct=0.01, cached=0.0)
    for number in range(2):
        assert write_file(tmp_path / str(number)) == DATA
    assert disk.direct_bytes == 2 * (len(DATA) - len(DATA) % 4096)
    assert not disk.synced


def test_a_slow_disk_is_written_through_the_page_cache_within_its_first_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, direct=0.5, cached=0.0)
    assert write_file(tmp_path / "first") == DATA
    assert 19 * BUFFER <= disk.direct_bytes < 40 * BUFFER
    assert disk.synced == 1, "the page cache is measured with its sync"
    before = disk.direct_bytes
    assert write_file(tmp_path / "second") == DATA
    assert (disk.direct_bytes, disk.synced) == (before, 1)


def test_direct_writes_return_where_the_page_cache_is_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, direct=0.3, cached=0.6)
    assert write_file(tmp_path / "first") == DATA
    assert 20 * BUFFER <= len(DATA) - disk.direct_bytes < 30 * BUFFER, (
        "the page cache was tried within this file"
    )
    before = disk.direct_bytes
    assert write_file(tmp_path / "second") == DATA
    assert disk.direct_bytes - before == len(DATA) - len(DATA) % 4096


def cost_of(
    waited: float, *, writing: float = 9, processor: float = 0, size: int = 20 * BUFFER
) -> WritingCost:
    """Return the cost of a file that took 9 seconds."""
    return WritingCost(
        waited_seconds=waited,
        writing_seconds=writing,
        processor_seconds=processor,
        all_seconds=9,
        byte_count=size,
    )


def test_disks_are_measured_separately() -> None:
    ways = WaysByDisk()
    ways.of(1).add(cost_of(8), direct=True)
    assert (ways.of(1).is_direct, ways.of(2).is_direct) == (False, True)


def test_a_writer_that_waits_for_a_processor_does_not_show_a_slow_disk() -> None:
    ways = WritingWays()
    ways.add(cost_of(8, writing=4), direct=True)
    assert ways.is_direct


def test_small_files_show_nothing_about_a_disk() -> None:
    ways = WritingWays()
    ways.add(cost_of(8, size=20 * BUFFER - 1), direct=True)
    assert ways.is_direct


def test_processor_time_of_writes_counts_as_much_as_waiting() -> None:
    ways = WritingWays()
    ways.add(cost_of(5, processor=0.1), direct=True)
    ways.add(cost_of(0, processor=6), direct=False)
    assert ways.is_direct
