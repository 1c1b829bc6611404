"""Measure a loader that reads from an object store by encoding, beside plain range reads, in one run.

    pip install 'halofeed[test]'
    python benchmarks/object_store.py
    python benchmarks/object_store.py --only pictures --encoding raw,packed --link-mb 0

A real S3 server (moto's) runs in a separate process on loopback and takes 20 ms longer for each answer. It holds
pictures of 640 x 640 x 3, photographs if there are some, and volumes of 128^3 int16 with labels, in each encoding. All
answers share a link of 50 MB/s (--link-mb). Without the link the processor time of this server limits them. That time
depends on the number of requests more than on their bytes, which does not hold for an object store.

"plain" asks for each record of the same batches with one request of boto3's, from as many threads as the loader may
make requests, and drops the bytes; "cat_ranges" is fsspec's own call for a batch's ranges, if s3fs is installed;
"loader" is `batches()`, checked, decoded and put into batches. A figure is the median of the rounds, in MB/s of stored
records; each round takes ways and encodings in turn. "records" are the loader's per second, and "of raw" is the median
of the rounds' ratios to those of raw records. "requests" are the loader's for a batch. The server does most of the work
on these cores; what counts are the ratios. What the loader fetched ahead at a round's end is thrown away, to its own
cost.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gather
import volumes

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))
from halofeed.loader.batch import AHEAD  # noqa: E402 - of this checkout
from tests.support.engines import s3  # noqa: E402

SETS = {"pictures": 64, "blocks": 8}
"""What is converted, and the batch size."""
TARGET = 1.7
"""Records per second of packed ones, as a multiple of raw ones."""


def upload(data: str, encodings: list[str], count: int, folder: Path, photographs: Path) -> None:
    """Make, convert and upload a data set in shards of some ten records: the server reads an object for each range."""
    import boto3

    source = folder / f"{data}-source"
    if data == "blocks":
        # A drawn scan: its noise is like a scanner's, and does not fill all bits.
        gather.draw_scans(source, gather.BLOCK, count, volumes.draw_volume(gather.BLOCK))
    else:
        gather.draw_or_link(source, count, photographs)
    options = "blocks" if data == "blocks" else "photographs"
    for encoding in encodings:
        out = folder / f"{data}-{encoding}"
        gather.convert_one(options, source, out, HERE, encoding=encoding, shards=max(1, count // 8))
        for path in (out / options / "1.0.0").iterdir():
            boto3.client("s3").upload_file(str(path), "bucket", f"{out.name}/1.0.0/{path.name}")


class Measured:
    """One data set, read in each way."""

    def __init__(self, data: str, encoding: str, concurrent: int, steps: int) -> None:
        import boto3
        from botocore.config import Config

        from halofeed.loader import Loader

        self.steps, self.concurrent = steps, concurrent
        self.prefix = f"{data}-{encoding}/1.0.0"
        self.loader = Loader(f"s3://bucket/{self.prefix}", batch_size=SETS[data], concurrent_reads=concurrent)
        self.loader.batch(0)
        self.client = boto3.client("s3", config=Config(max_pool_connections=concurrent))
        self.threads = ThreadPoolExecutor(concurrent)
        self.files = files_of(concurrent)
        self.next = 1
        self.rates: dict[str, list[float]] = {}
        self.records: list[float] = []
        self.requests = 0

    def ranges(self) -> list[list[tuple[str, int, int]]]:
        """Where the records of the next batches are."""
        shards = self.loader._shards
        found = []
        for step in range(self.next, self.next + self.steps):
            rows = self.loader._sampler.rows(step, 0, self.loader.batch_size)
            found.append(shards.spans(rows.records, 1 << 62))
        return found

    def round(self, name: str) -> None:
        """Measure a way once."""
        batches = self.ranges()
        moved = sum(stop - start for batch in batches for _, start, stop in batch)
        started = time.perf_counter()
        WAYS[name](self)
        seconds = time.perf_counter() - started
        self.rates.setdefault(name, []).append(moved / seconds / 1e6)
        if name == "loader":
            self.records.append(self.steps * self.loader.batch_size / seconds)

    def plain(self) -> None:
        """One request a record, so many threads, a batch's end not waited for."""

        def get(one: tuple[str, int, int]) -> int:
            name, start, stop = one
            key, span = f"{self.prefix}/{name}", f"bytes={start}-{stop - 1}"
            return len(self.client.get_object(Bucket="bucket", Key=key, Range=span)["Body"].read())

        wanted = [one for batch in self.ranges() for one in batch]
        assert sum(self.threads.map(get, wanted)) == sum(stop - start for _, start, stop in wanted)

    def cat_ranges(self) -> None:
        """A batch at a time."""
        for batch in self.ranges():
            names, starts, stops = zip(*batch, strict=True)
            self.files.cat_ranges(
                [f"bucket/{self.prefix}/{name}" for name in names], starts, stops, batch_size=self.concurrent
            )

    def drain(self) -> None:
        """Wait for what the loader fetched ahead, which nobody counts."""
        from halofeed.loader.store.remote_store import RemoteStore

        store = self.loader._shards.store
        assert isinstance(store, RemoteStore)
        for window in list(store._here().prefetched.values()):
            for part in (part for parts in window._parts.values() for part in parts):
                part.bytes.result(60)

    def load(self) -> None:
        """The loader's batches."""
        for _ in zip(range(self.steps), self.loader.batches(self.next), strict=False):
            pass


WAYS: dict[str, Callable[[Measured], None]] = {
    "plain": Measured.plain,
    "cat_ranges": Measured.cat_ranges,
    "loader": Measured.load,
}


def files_of(concurrent: int) -> Any:
    """fsspec's file system of S3; None without s3fs."""
    import fsspec

    try:
        return fsspec.filesystem("s3", config_kwargs={"max_pool_connections": concurrent})
    except ImportError:
        return None


def measure(measured: list[Measured], rounds: int, log: Path) -> None:
    """Measure all ways of all encodings, in turn."""
    for number in range(rounds):
        for one in measured if number % 2 == 0 else reversed(measured):
            for way in WAYS:
                if way == "cat_ranges" and one.files is None:
                    continue
                before = log.read_bytes().count(b"GET")
                one.round(way)
                one.drain()
                if way == "loader":
                    one.requests += log.read_bytes().count(b"GET") - before
            # What was fetched ahead helps nobody: the batches that are made ahead, and one that is announced.
            one.next += one.steps + AHEAD + 2


def line_of(data: str, encoding: str, one: Measured, raw: Measured | None) -> str:
    """The table's line of an encoding."""
    middle = {way: f"{statistics.median(rates):.1f}" for way, rates in one.rates.items()}
    pairs = zip(one.rates["loader"], one.rates["plain"], strict=True)
    of_plain = statistics.median(ours / theirs for ours, theirs in pairs)
    each = one.requests / len(one.records) / (one.steps + AHEAD)
    line = (
        f"{data:<9} {encoding:<7} {one.concurrent:>5} {middle['plain']:>7} {middle.get('cat_ranges', '-'):>10} "
        f"{middle['loader']:>7} {of_plain:>9.2f} {each:>8.1f} {statistics.median(one.records):>9.1f}"
    )
    if raw is None:
        return line
    of_raw = statistics.median(ours / theirs for ours, theirs in zip(one.records, raw.records, strict=True))
    reached = f"  >= {TARGET}: {'yes' if of_raw >= TARGET else 'no'}" if encoding == "packed" else ""
    return f"{line} {of_raw:>6.2f}{reached}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument(
        "--encoding", type=gather.encodings, default=["raw", "packed", "jpeg"], help="comma-separated"
    )
    parser.add_argument("--pictures", type=int, default=512)
    parser.add_argument("--blocks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrent", type=int, nargs="*", default=[32])
    parser.add_argument("--latency-ms", type=float, default=20)
    parser.add_argument(
        "--link-mb", type=float, default=50, help="MB/s of all answers together; 0 for no limit"
    )
    parser.add_argument(
        "--photographs", type=Path, default=gather.PHOTOGRAPH_FOLDER, help="folder of JPEG files"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "server"
        os.environ.update(s3.start(home, options.latency_ms / 1000, options.link_mb * 1e6))
        try:
            print(
                f"{'data':<9} {'':<7} {'reads':>5} {'plain':>7} {'cat_ranges':>10} {'loader':>7} {'of plain':>9} "
                f"{'requests':>8} {'records/s':>9} {'of raw':>6}",
                flush=True,
            )
            for data in options.only:
                wanted = [
                    name for name in options.encoding if data == "pictures" or name not in gather.FOR_PICTURES
                ]
                upload(data, wanted, getattr(options, data), Path(folder), options.photographs)
                for concurrent in options.concurrent:
                    each = {name: Measured(data, name, concurrent, options.steps) for name in wanted}
                    measure(list(each.values()), options.rounds, home / "server.log")
                    for name, one in each.items():
                        print(line_of(data, name, one, each.get("raw")), flush=True)
        finally:
            s3.stop(home)
    if files_of(1) is None:
        print("s3fs is not installed, so cat_ranges was not measured")


if __name__ == "__main__":
    main()
