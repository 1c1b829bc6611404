"""Model of a slow disk for benchmarks: writes of halofeed's files wait as long as such a disk would take.

    from slow_disk import SlowDisk
    SlowDisk(direct_mb=330, cached_mb=540).install("/dev/shm/clock")

All processes share one disk, whose clock is in a small file. A direct write takes the disk for its bytes at the direct
rate, after the writes before it. A cached write returns at once, and occupies the disk in the background at the cached
rate; it waits only while more than `dirty_mb` are not yet written. A sync waits for all cached writes. What is written
really goes to the folder of the data set, best a RAM disk. The model has no seeks and no reads.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halofeed.storage import atomic_files, local

_FREE_AT = struct.Struct("d")


@dataclass(frozen=True, kw_only=True)
class SlowDisk:
    """Rates of a disk in MB/s, the time of a request in ms, and the MB that the page cache takes without waiting."""

    direct_mb: float
    cached_mb: float
    dirty_mb: float = 1000
    request_ms: float = 1

    @classmethod
    def from_text(cls, text: str) -> SlowDisk:
        """Read `DIRECT,CACHED` in MB/s."""
        direct, cached = map(float, text.split(","))
        return cls(direct_mb=direct, cached_mb=cached)

    def install(self, clock: Path) -> None:
        """Slow down the files that this process, and its later forks, write."""
        if not clock.exists():
            clock.write_bytes(_FREE_AT.pack(0.0))
        disk = self

        class SlowOs:
            """The module `os` with another `write`."""

            def __getattr__(self, name: str) -> Any:
                return getattr(os, name)

            def write(self, descriptor: int, data: Any) -> int:
                """Write, and wait as the disk would."""
                return self._wait(descriptor, os.write(descriptor, data))

            def writev(self, descriptor: int, views: Any) -> int:
                """Write several pieces of memory as one request."""
                return self._wait(descriptor, os.writev(descriptor, views))

            def _wait(self, descriptor: int, written: int) -> int:
                if _is_direct(descriptor):
                    _sleep_until(_occupy(clock, written / disk.direct_mb / 1e6 + disk.request_ms / 1e3))
                else:
                    free_at = _occupy(clock, written / disk.cached_mb / 1e6)
                    _sleep_until(free_at - disk.dirty_mb / disk.cached_mb)
                return written

            def fsync(self, descriptor: int) -> None:
                """Wait until the disk has written everything."""
                os.fsync(descriptor)
                _sleep_until(_occupy(clock, disk.request_ms / 1e3))

            fdatasync = fsync

        local.os = atomic_files.os = SlowOs()  # type: ignore[assignment, attr-defined]


def count_waits(file: Path) -> None:
    """Append to a file the seconds that the writer of each shard waits for its disk, in this process and its forks."""
    close = local.DirectFile.close

    def counting(self: local.DirectFile) -> None:
        began, is_first = time.perf_counter(), not self._closed
        waited = self._timer.waited
        close(self)
        if is_first and self.tell() > local.BUFFER_BYTES:
            with file.open("a") as stream:
                stream.write(f"{waited + time.perf_counter() - began}\n")

    local.DirectFile.close = counting  # type: ignore[method-assign]


def _is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)


def _occupy(clock: Path, seconds: float) -> float:
    """Take the disk for some seconds after all that took it before; return when it is free again."""
    with clock.open("r+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        free_at: float = max(time.monotonic(), *_FREE_AT.unpack(file.read(_FREE_AT.size))) + seconds
        file.seek(0)
        file.write(_FREE_AT.pack(free_at))
    return free_at


def _sleep_until(moment: float) -> None:
    if (seconds := moment - time.monotonic()) > 0:
        time.sleep(seconds)
