"""Measure whether the writing of `halofeed convert` overlaps with its converting, on the same photographs, in one run.

    python benchmarks/overlap.py --disk . --ram /dev/shm --images 1290
    python benchmarks/overlap.py --slow 1.6,2.5          # the model of a disk, 1.6 times as fast as the conversion
    python benchmarks/overlap.py --slow 0.8,1.3          # a disk that is too slow for direct writes

to RAM           the whole command with its output on a RAM disk: converting alone
to disk          the same command with its output on a disk
writing alone    as many bytes in as many shards, by a process per core, and the fsync of the commit
  as cached      the same without direct writes, as on a file system that does not support them

The ratio is that of a round's conversion to disk to the largest of its first row and of the faster way of writing: 1.0
is a full overlap. "waited" is the time that each worker waited for the disk in the middle and at the end of its shards,
which tells more than the ratio where the machine is shared. The system time is that of the writing processes, without
the kernel's own threads. The rounds are interleaved, and each figure is a median. The first conversion only warms up.

`--slow DIRECT,CACHED` puts the model of `slow_disk.py` in front of the RAM disk, with rates in multiples of the rate at
which the conversion to RAM makes bytes. A disk on which writing did not overlap had 1.6 and 2.5.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from convert import SHARDS, SIZE, SOURCE, collect, measure
from slow_disk import SlowDisk

from halofeed.storage import atomic_files, local
from halofeed.storage.local import DirectFile
from halofeed.storage.writing_ways import WaysByDisk

PIXELS = bytes(SIZE * SIZE * 3)


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder on a disk, or on a RAM disk behind the model of a disk; `slow` are its rates in MB/s."""

    path: Path
    slow: str = ""

    @property
    def clock(self) -> Path:
        """The clock of the modeled disk."""
        return self.path / "waits.clock"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one run took, in seconds; 0 where it is not measured."""

    seconds: float
    system_seconds: float = 0
    waited_seconds: float = 0


def write_file(path: str, folder: Folder, records: int, *, cached: bool) -> float:
    """Write a file of zeros as a shard is written; return the seconds of system time."""
    # As the first file of a process, which is written directly.
    local.WAYS = WaysByDisk()  # type: ignore[attr-defined]
    if folder.slow:
        SlowDisk.from_text(folder.slow).install(folder.clock)
    if cached:
        local.fcntl = None  # type: ignore[assignment, attr-defined]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_stime
    file = DirectFile(path)
    for _ in range(records):
        file.write(PIXELS)
    file.close()
    return resource.getrusage(resource.RUSAGE_SELF).ru_stime - before


def sync_files(paths: Sequence[str], folder: Folder) -> None:
    """Sync the files as a commit does."""
    if folder.slow:
        SlowDisk.from_text(folder.slow).install(folder.clock)
    atomic_files.fsync_paths(paths)


def write_alone(folder: Folder, images: int, *, cached: bool) -> Measured:
    """Write a data set without converting it, in separate processes."""
    with tempfile.TemporaryDirectory(dir=folder.path) as out:
        paths = [f"{out}/{number}" for number in range(SHARDS)]
        with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            write = partial(write_file, folder=folder, records=images // SHARDS, cached=cached)
            list(pool.map(abs, range(2 * SHARDS)))  # starts the processes
            start = time.perf_counter()
            system = sum(pool.map(write, paths))
            pool.submit(sync_files, [*paths, out], folder).result()
            return Measured(seconds=time.perf_counter() - start, system_seconds=system)


def convert(folder: Folder, images: int) -> Measured:
    """Run the command with its output in a folder."""
    waits = folder.path / "waits"
    more = ["--waits", str(waits), *(["--slow", folder.slow] if folder.slow else [])]
    seconds = images / measure("convert", folder.path / "photographs", images, more=more)[0]
    waited = sum(map(float, waits.read_text().split())) / len(os.sched_getaffinity(0))
    waits.unlink()
    return Measured(seconds=seconds, waited_seconds=waited)


def in_megabytes(multiples: str, seconds: float, images: int) -> str:
    """Rates in MB/s from multiples of the rate of a conversion that took some seconds."""
    rate = images * len(PIXELS) / seconds / 1e6
    return ",".join(f"{float(one) * rate:.0f}" for one in multiples.split(","))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=SOURCE, help="folder of photographs")
    parser.add_argument("--images", type=int, default=1290)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--disk", type=Path, default=Path(), help="folder on a disk")
    parser.add_argument("--ram", type=Path, default=Path("/dev/shm"), help="folder on a RAM disk")
    parser.add_argument("--slow", metavar="DIRECT,CACHED", help="rates of a modeled disk in place of --disk")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=given.ram if given.slow else given.disk) as disk_folder,
        tempfile.TemporaryDirectory(dir=given.ram) as ram_folder,
    ):
        ram, disk = Folder(path=Path(ram_folder)), Folder(path=Path(disk_folder))
        for folder in (ram, disk):
            collect(given.source, given.images, folder.path / "photographs")
        warm_up = convert(ram, given.images)
        if given.slow:
            disk = replace(disk, slow=in_megabytes(given.slow, warm_up.seconds, given.images))
            print(f"modeled disk: {disk.slow} MB/s directly and through the page cache")
        cases: dict[str, Callable[[], Measured]] = {
            "to RAM": partial(convert, ram, given.images),
            "to disk": partial(convert, disk, given.images),
            "writing alone": partial(write_alone, disk, given.images, cached=False),
            "  as cached": partial(write_alone, disk, given.images, cached=True),
        }
        found: dict[str, list[Measured]] = {name: [] for name in cases}
        for number in range(given.rounds):
            for name in cases if number % 2 == 0 else reversed(cases):
                found[name].append(cases[name]())
    print_table(found)


def print_table(found: dict[str, list[Measured]]) -> None:
    """Print the median of each case, and the ratio."""
    print(f"{'':<15} {'s':>7} {'system s':>9} {'waited s':>9}  rounds")
    for name, runs in found.items():
        figures = [
            statistics.median(one)
            for one in zip(
                *((run.seconds, run.system_seconds, run.waited_seconds) for run in runs), strict=True
            )
        ]
        system, waited = (f"{figure:.2f}" if figure else "" for figure in figures[1:])
        rounds = " ".join(f"{run.seconds:.2f}" for run in runs)
        print(f"{name:<15} {figures[0]:>7.2f} {system:>9} {waited:>9}  {rounds}")
    ratios = [
        to_disk.seconds / max(to_ram.seconds, min(direct.seconds, cached.seconds))
        for to_ram, to_disk, direct, cached in zip(*found.values(), strict=True)
    ]
    print(f"ratio {statistics.median(ratios):.2f} ({' '.join(f'{one:.2f}' for one in ratios)})")


if __name__ == "__main__":
    main()
