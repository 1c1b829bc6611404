"""Measure whether the writing of `halofeed convert` overlaps with its converting, on the same photographs, in one run.

    python benchmarks/overlap.py --disk . --ram /dev/shm --images 1290

to RAM           the whole command with its output on a RAM disk: converting alone
to disk          the same command with its output on a disk
writing alone    as many bytes in as many shards, by a process per core, and the fsync of the commit
  as cached      the same without direct writes, as on a file system that does not support them

The ratio is that of a round's conversion to disk to the larger of its first and third row: 1.0 is a full overlap. The
system time is that of the writing processes, without the kernel's own threads. The rounds are interleaved, and each
figure is a median. The first conversion only warms up.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from convert import SHARDS, SIZE, collect, measure

from halofeed.storage import local
from halofeed.storage.atomic_files import fsync_paths
from halofeed.storage.local import DirectFile

PIXELS = bytes(SIZE * SIZE * 3)


def write_file(path: str, records: int, cached: bool) -> float:
    """Write a file of zeros as a shard is written; return the seconds of system time."""
    if cached:
        local.fcntl = None  # type: ignore[assignment, attr-defined]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_stime
    file = DirectFile(path)
    for _ in range(records):
        file.write(PIXELS)
    file.close()
    return resource.getrusage(resource.RUSAGE_SELF).ru_stime - before


def write_alone(folder: Path, images: int, *, cached: bool) -> tuple[float, float]:
    """Return the seconds of writing a data set without converting it, and the seconds of system time."""
    with tempfile.TemporaryDirectory(dir=folder) as out:
        paths = [f"{out}/{number}" for number in range(SHARDS)]
        with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            start = time.perf_counter()
            write = partial(write_file, records=images // SHARDS, cached=cached)
            system = sum(pool.map(write, paths))
            fsync_paths([*paths, out])
            return time.perf_counter() - start, system


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--images", type=int, default=1290)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--disk", type=Path, default=Path(), help="folder on a disk")
    parser.add_argument("--ram", type=Path, default=Path("/dev/shm"), help="folder on a RAM disk")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=given.disk) as disk_folder,
        tempfile.TemporaryDirectory(dir=given.ram) as ram_folder,
    ):
        disk, ram = Path(disk_folder), Path(ram_folder)
        for folder in (disk, ram):
            collect(given.source, given.images, folder / "photographs")

        def convert(folder: Path) -> tuple[float, float]:
            return given.images / measure("convert", folder / "photographs", given.images)[0], 0.0

        cases: dict[str, Callable[[], tuple[float, float]]] = {
            "to RAM": partial(convert, ram),
            "to disk": partial(convert, disk),
            "writing alone": partial(write_alone, disk, given.images, cached=False),
            "  as cached": partial(write_alone, disk, given.images, cached=True),
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
        convert(ram)
        for number in range(given.rounds):
            for name in cases if number % 2 == 0 else reversed(cases):
                found[name].append(cases[name]())
    print(f"{'':<15} {'s':>7} {'system s':>9}  rounds")
    for name, figures in found.items():
        seconds, system = ([figure[column] for figure in figures] for column in (0, 1))
        spent = f"{statistics.median(system):.2f}" if any(system) else ""
        rounds = " ".join(f"{one:.2f}" for one in seconds)
        print(f"{name:<15} {statistics.median(seconds):>7.2f} {spent:>9}  {rounds}")
    rows = zip(*(found[name] for name in ("to RAM", "to disk", "writing alone")), strict=True)
    ratios = [to_disk[0] / max(to_ram[0], alone[0]) for to_ram, to_disk, alone in rows]
    print(f"ratio {statistics.median(ratios):.2f} ({' '.join(f'{one:.2f}' for one in ratios)})")


if __name__ == "__main__":
    main()
