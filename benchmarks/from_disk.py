"""Measure random reads of records from a disk by encoding, beside reading its files in order.

    python benchmarks/from_disk.py --gigabytes 30
    python benchmarks/from_disk.py --gigabytes 10 --encoding raw,packed,jpeg --photographs ~/pictures

Photographs are stretched to 640 x 640 x 3, because the size of packed and JPEG records depends on what they show;
without photographs pictures are drawn, whose noise packs worse (0.66 of raw, and 0.5 of photographs). The
gigabytes are those of the pixels, so raw records need as much space on the disk.

Before each round the kernel is told to drop what it has kept of the shards, and a round reads no byte twice: all comes
from the disk, whether the data are larger than memory or not. "of raw" is the median of the rounds' ratios. "cores" are
those kept busy: near their number, it is they that limit the rate, and not the disk.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gather

CHUNK_BYTES, AHEAD_BYTES = 8 << 20, 64 << 20
PICTURE_BYTES = gather.SIDE * gather.SIDE * 3
TARGET = 1.7
"""Rate of packed records' pixels, as a multiple of that of raw ones."""


@dataclass(frozen=True)
class Rate:
    """GB a second of pixels and of the bytes read for them, and the cores kept busy."""

    pixels: float
    stored: float
    cores: float


def in_order(folder: Path, number: int, seconds: float, ahead: int) -> Rate:
    """Read the shards one after the other, another one first each time.

    The kernel is asked for `ahead` bytes before they are read, or reads ahead as it sees fit.
    """
    paths = sorted(folder.glob("*.tfrecord-*-of-?????"))
    buffer = bytearray(CHUNK_BYTES)
    done, started, busy = 0, time.perf_counter(), time.process_time()
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
    return rate_of(done, 1.0, started, busy)


def at_random(folder: Path, number: int, seconds: float, verify: Literal["first", "always", "never"]) -> Rate:
    """Read a new loader's batches, in another order each time."""
    from halofeed.loader import Loader

    done, started, busy = 0, time.perf_counter(), time.process_time()
    loader = Loader(folder, batch_size=64, seed=number, verify=verify, num_epochs=1)
    for batch in loader.batches():
        done += batch["image"].nbytes
        if time.perf_counter() - started > seconds:
            break
    stored = sum(path.stat().st_size for path in folder.glob("*.tfrecord-*-of-?????"))
    return rate_of(done, stored / (loader.num_records * PICTURE_BYTES), started, busy)


def rate_of(pixels: int, share: float, started: float, busy: float) -> Rate:
    """The rate since then, of which `share` bytes were stored for a byte of pixels."""
    seconds = time.perf_counter() - started
    rate = pixels / seconds / 1e9
    return Rate(rate, rate * share, (time.process_time() - busy) / seconds)


def drop(folder: Path) -> None:
    """Let the kernel forget what it has read of the shards."""
    gc.collect()
    for path in folder.glob("*.tfrecord-*"):
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def report(
    scratch: Path,
    gigabytes: float,
    rounds: int,
    seconds: float,
    encodings: Sequence[str] = ("raw", "packed"),
    photographs: Path = gather.PHOTOGRAPH_FOLDER,
) -> str:
    """The lines of the table."""
    count = int(gigabytes * 1e9 / PICTURE_BYTES)
    source = gather.draw_or_link(scratch / "drawn", count, photographs)
    folders = {}
    for encoding in encodings:
        gather.convert_one(
            "photographs",
            scratch / "drawn",
            scratch / encoding,
            Path(__file__).resolve().parents[1],
            encoding=encoding,
            shards=max(4, count // 2000),
        )
        folders[encoding] = scratch / encoding / "photographs/1.0.0"
    rates = measure(ways_of(folders, seconds), rounds)
    title = f"640x640x3 uint8 from the disk, of {source}; batches of 64, {count:,} records, {gigabytes:g} GB"
    return "\n".join([title, *lines_of(rates)])


Ways = dict[str, tuple[Path, Callable[[int], Rate]]]


def ways_of(folders: dict[str, Path], seconds: float) -> Ways:
    """What is measured: the folder that is read, and how, in a round of that number."""
    first = next(iter(folders.values()))
    ways: Ways = {
        "the disk's own rate, read far ahead": (
            first,
            lambda number: in_order(first, number, seconds, AHEAD_BYTES),
        ),
        "files in order, as the kernel does": (first, lambda number: in_order(first, number, seconds, 0)),
    }
    for encoding, folder in folders.items():
        for verify in ("first", "never"):
            ways[f"{encoding}, batches(), verify={verify}"] = (folder, reader(folder, seconds, verify))
    return ways


def reader(
    folder: Path, seconds: float, verify: Literal["first", "always", "never"]
) -> Callable[[int], Rate]:
    """`at_random` of a folder."""
    return lambda number: at_random(folder, number, seconds, verify)


def measure(ways: Ways, rounds: int) -> dict[str, list[Rate]]:
    """The rates of each way, in turn."""
    rates: dict[str, list[Rate]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways) if number % 2 == 0 else reversed(ways):
            folder, way = ways[name]
            drop(folder)
            rates[name].append(way(number))
    return rates


def lines_of(rates: dict[str, list[Rate]]) -> list[str]:
    """The table, a line for each way."""
    disk = statistics.median(rate.stored for rate in next(iter(rates.values())))
    lines = [f"{'':<38}{'GB/s of pixels':>15}{'GB/s read':>11}{'of the disk':>13}{'cores':>7}{'of raw':>8}"]
    for name, found in rates.items():
        pixels, stored, cores = (
            statistics.median(getattr(rate, key) for rate in found) for key in ("pixels", "stored", "cores")
        )
        shown = f"{pixels:.2f}" if "batches" in name else ""
        line = f"{name:<38}{shown:>15}{stored:>11.2f}{stored / disk:>13.2f}{cores:>7.2f}"
        encoding, _, way = name.partition(", ")
        if "batches" in way and (raw := rates.get(f"raw, {way}")):
            ratio = statistics.median(a.pixels / b.pixels for a, b in zip(found, raw, strict=True))
            line += f"{ratio:>8.2f}"
            if encoding == "packed":
                line += f"  >= {TARGET}: {'yes' if ratio >= TARGET else 'no'}"
        lines.append(line)
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gigabytes", type=float, default=30.0, help="of pixels; the disk needs 1.5 times as much"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of a round")
    parser.add_argument(
        "--encoding",
        type=gather.encodings,
        default=["raw", "packed"],
        help="comma-separated (default raw,packed)",
    )
    parser.add_argument(
        "--photographs", type=Path, default=gather.PHOTOGRAPH_FOLDER, help="folder of JPEG files"
    )
    parser.add_argument("--scratch", type=Path, help="folder for the files")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.scratch) as place:
        print(
            report(
                Path(place), given.gigabytes, given.rounds, given.seconds, given.encoding, given.photographs
            )
        )
