"""Choice between direct writes and the page cache, by what a disk shows in the first large files of this process.

Direct writes take less processor time: 28 ms of system time per GB, and 1.7 s through the page cache (Linux 6.18, ext4,
2026-11-29). But the kernel writes cached pages with more requests at once, and on some disks they take 0.6 of the time:
one virtual disk wrote 330 MB/s directly and 540 MB/s from the page cache.

So the first file is written directly. If its writer must wait for a disk that writes all the time, the next 24 MB go
through the page cache and are synced, and then the way is taken that took less of the time in which a conversion
computes. On a loaded machine a writer waits for a processor too, but the disk does not write all the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

_MEASURED_BYTES: Final = 24 << 20
"""Least size of a file that shows something about a disk; the buffers take much of a smaller one."""
_WAITED_SHARE: Final = 0.05
_WRITING_SHARE: Final = 0.8
"""Shares of the time of a file that its writer waits, and that the disk writes, on a disk that is too slow for direct
writes. A writer waits for the last buffer on every disk: 2 % of the time of 100 MB."""


@dataclass(frozen=True, kw_only=True)
class WritingCost:
    """Time that the writes of one file, or of a part of it, took from the conversion.

    Args:
        waited_seconds: time that the writer waited for the disk.
        writing_seconds: time within the calls that write.
        processor_seconds: processor time of the writes, which the conversion cannot use.
        all_seconds: time from the first write to the end of the last one.
        byte_count: bytes written.
    """

    waited_seconds: float
    writing_seconds: float
    processor_seconds: float
    all_seconds: float
    byte_count: int

    @property
    def is_large(self) -> bool:
        """True if the bytes are enough to show something about a disk."""
        return self.byte_count >= _MEASURED_BYTES

    @property
    def is_slow(self) -> bool:
        """True if the disk did not write as fast as the data came; False for too few bytes to tell."""
        waited, writing = _WAITED_SHARE * self.all_seconds, _WRITING_SHARE * self.all_seconds
        return self.is_large and self.waited_seconds > waited and self.writing_seconds > writing

    @property
    def seconds_per_byte(self) -> float:
        """Time that each byte took from the conversion."""
        return (self.waited_seconds + self.processor_seconds) / self.byte_count


@dataclass(kw_only=True)
class WritingWays:
    """Measurements of one disk, and the way of writing that follows from them."""

    _direct: WritingCost | None = None
    _cached: WritingCost | None = None

    @property
    def is_direct(self) -> bool:
        """True if the next file is written past the page cache.

        >>> ways = WritingWays()
        >>> slow = {"waited_seconds": 3, "writing_seconds": 9, "processor_seconds": 0, "all_seconds": 9}
        >>> ways.add(WritingCost(**slow, byte_count=1 << 30), direct=True)
        >>> ways.is_direct, ways.is_trial
        (False, True)
        """
        if self._direct is None or not self._direct.is_slow:
            return True
        return self._cached is not None and self._direct.seconds_per_byte <= self._cached.seconds_per_byte

    @property
    def is_trial(self) -> bool:
        """True if the page cache is to be tried next, by a file that is synced."""
        return not self.is_direct and self._cached is None

    def add(self, cost: WritingCost, *, direct: bool) -> None:
        """Add what one file, or a part of it, took; a cached one must have been synced."""
        if not cost.is_large:
            return
        if direct:
            self._direct = cost
        else:
            self._cached = cost


@dataclass(kw_only=True)
class WaysByDisk:
    """The measurements of each disk, by the device number of its files."""

    _ways: dict[int, WritingWays] = field(default_factory=dict)

    def of(self, device: int) -> WritingWays:
        """Return the measurements of a disk."""
        return self._ways.setdefault(device, WritingWays())


WAYS: Final = WaysByDisk()
"""Measurements of this process. A worker writes one shard after another, so the files of a disk do not compete."""
