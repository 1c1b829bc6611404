"""Measure random reads of raw records from a disk, beside reading its files in order.

    python benchmarks/from_disk.py --gigabytes 30

Before each round the kernel is told to drop what it has kept of the shards, and a round reads no byte twice: all comes
from the disk, whether the data are larger than memory or not.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import gather

CHUNK_BYTES, AHEAD_BYTES = 8 << 20, 64 << 20
PICTURE_BYTES = gather.SIDE * gather.SIDE * 3


def in_order(folder: Path, number: int, seconds: float, ahead: int) -> float:
    """Bytes a second of reading the shards one after the other, another one first each time.

    The kernel is asked for `ahead` bytes before they are read, or reads ahead as it sees fit.
    """
    paths = sorted(folder.glob("*.tfrecord-*-of-?????"))
    buffer = bytearray(CHUNK_BYTES)
    done, started = 0, time.perf_counter()
    for path in paths[number % len(paths) :] + paths[: number % len(paths)]:
        with path.open("rb", buffering=0) as stream:
            advised = 0
            while time.perf_counter() - started < seconds:
                if ahead:
                    stop = stream.tell() + CHUNK_BYTES + ahead
                    os.posix_fadvise(stream.fileno(), advised, stop - advised, os.POSIX_FADV_WILLNEED)
                    advised = stop
                if not (size := stream.readinto(buffer)):
                    break
                done += size
    return done / (time.perf_counter() - started)


def at_random(
    folder: Path, number: int, seconds: float, verify: Literal["first", "always", "never"]
) -> float:
    """Bytes a second of a new loader's batches, in another order each time."""
    from halofeed.loader import Loader

    done, started = 0, time.perf_counter()
    for batch in Loader(folder, batch_size=64, seed=number, verify=verify, num_epochs=1).batches():
        done += batch["image"].nbytes
        if time.perf_counter() - started > seconds:
            break
    return done / (time.perf_counter() - started)


def drop(folder: Path) -> None:
    """Let the kernel forget what it has read of the shards."""
    gc.collect()
    for path in folder.glob("*.tfrecord-*"):
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def report(scratch: Path, gigabytes: float, rounds: int, seconds: float) -> str:
    """The lines of the table."""
    count = int(gigabytes * 1e9 / PICTURE_BYTES)
    gather.draw_pictures(scratch / "drawn", count, different=64, noise=12)
    shards = max(4, count // 2000)
    gather.convert_one(
        "pictures", scratch / "drawn", scratch, Path(__file__).resolve().parents[1], shards=shards
    )
    folder = scratch / "pictures/1.0.0"
    ways: dict[str, Callable[[int], float]] = {
        "the disk's own rate, read far ahead": lambda number: in_order(folder, number, seconds, AHEAD_BYTES),
        "files in order, as the kernel does": lambda number: in_order(folder, number, seconds, 0),
        "halofeed, batches()": lambda number: at_random(folder, number, seconds, "first"),
        'halofeed, batches(), verify="never"': lambda number: at_random(folder, number, seconds, "never"),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            drop(folder)
            rates[name].append(way(number) / 1e9)
    middle = {name: statistics.median(found) for name, found in rates.items()}
    best = middle[next(iter(ways))]
    lines = [f"raw 640x640x3 uint8 from the disk; batches of 64, {count:,} records, {gigabytes:g} GB"]
    lines.append(f"{'':<36}{'GB/s':>9} {'of the disk':>12}")
    return "\n".join(
        lines + [f"{name:<36}{rate:>9.2f} {rate / best:>12.2f}" for name, rate in middle.items()]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a round")
    parser.add_argument("--scratch", type=Path, help="folder for the files")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.scratch) as place:
        print(report(Path(place), given.gigabytes, given.rounds, given.seconds))
