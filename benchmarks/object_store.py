"""Measure a loader that reads from an object store, beside as many plain range reads, in one run.

    pip install 'halofeed[test]' s3fs
    python benchmarks/object_store.py

A real S3 server (moto's) runs in a process of its own on loopback and takes 20 ms longer for each answer. On it lie
pictures of 640 x 640 x 3, raw and as JPEG, and volumes of 128^3 int16 with labels. "plain" asks for each record of the
same batches with one request of boto3's, from as many threads as the loader may make requests, and drops the bytes;
"cat_ranges" is fsspec's own call for a batch's ranges; "loader" is `batches()`, checked and put into batches. A figure
is the median of the rounds, in MB/s of stored records; each round takes them in turn. "requests" are the loader's for
a batch. The server does most of the work on these cores; what counts is the ratio to "plain". What the
loader fetched ahead at a round's end is thrown away, to its own cost.
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

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))
from tests.support.engines import s3  # noqa: E402 - of this checkout

SETS = {
    "pictures": ("pictures", "raw", 64),
    "photographs": ("pictures", "jpeg", 64),
    "blocks": ("blocks", "raw", 8),
}
"""What is converted, how it is stored, and the batch size."""


def upload(name: str, counts: dict[str, int], folder: Path) -> None:
    """Draw, convert and upload a data set in shards of some ten records: the server reads an object for each range."""
    import boto3

    data, encoding, _ = SETS[name]
    count, source = counts[data], folder / f"{name}-drawn"
    if data == "blocks":
        gather.draw_scans(source, gather.BLOCK, count)
    else:
        gather.draw_pictures(source, count, different=64, noise=12)
    gather.convert_one(data, source, folder / name, HERE, encoding=encoding, shards=max(1, count // 8))
    for path in (folder / name / data / "1.0.0").iterdir():
        boto3.client("s3").upload_file(str(path), "bucket", f"{name}/1.0.0/{path.name}")


class Measured:
    """One data set, read in each way."""

    def __init__(self, name: str, concurrent: int, steps: int) -> None:
        import boto3
        import fsspec
        from botocore.config import Config

        from halofeed.loader import Loader

        self.steps, self.concurrent = steps, concurrent
        self.prefix = f"{name}/1.0.0"
        self.loader = Loader(
            f"s3://bucket/{self.prefix}", batch_size=SETS[name][2], concurrent_reads=concurrent
        )
        self.loader.batch(0)
        self.client = boto3.client("s3", config=Config(max_pool_connections=concurrent))
        self.threads = ThreadPoolExecutor(concurrent)
        self.files = fsspec.filesystem("s3", config_kwargs={"max_pool_connections": concurrent})
        self.next = 1

    def ranges(self) -> list[list[tuple[str, int, int]]]:
        """Where the records of the next batches are."""
        shards = self.loader._shards
        found = []
        for step in range(self.next, self.next + self.steps):
            rows = self.loader._sampler.rows(step, 0, self.loader.batch_size)
            found.append(shards.spans(rows.records, 1 << 62))
        return found

    def round(self, way: Callable[[Measured], None]) -> float:
        """MB per second of stored records."""
        moved = sum(stop - start for batch in self.ranges() for _, start, stop in batch)
        started = time.perf_counter()
        way(self)
        return moved / (time.perf_counter() - started) / 1e6

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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--pictures", type=int, default=512)
    parser.add_argument("--blocks", type=int, default=64)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrent", type=int, nargs="*", default=[32])
    parser.add_argument("--latency-ms", type=float, default=20)
    options = parser.parse_args()
    ways: dict[str, Any] = {
        "plain": Measured.plain,
        "cat_ranges": Measured.cat_ranges,
        "loader": Measured.load,
    }
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "server"
        os.environ.update(s3.start(home, options.latency_ms / 1000))
        log = home / "server.log"
        try:
            print("data set     reads    plain cat_ranges   loader of plain requests", flush=True)
            for name in options.only:
                upload(name, {"pictures": options.pictures, "blocks": options.blocks}, Path(folder))
                for concurrent in options.concurrent:
                    measured = Measured(name, concurrent, options.steps)
                    rates: dict[str, list[float]] = {way: [] for way in ways}
                    asked = 0
                    for _ in range(options.rounds):
                        for way, act in ways.items():
                            before = log.read_bytes().count(b"GET")
                            rates[way].append(measured.round(act))
                            measured.drain()
                            if way == "loader":
                                asked += log.read_bytes().count(b"GET") - before
                        measured.next += options.steps + 1  # so that what was fetched ahead helps nobody
                    median = {way: statistics.median(values) for way, values in rates.items()}
                    ratio = statistics.median(
                        ours / theirs for ours, theirs in zip(rates["loader"], rates["plain"], strict=True)
                    )
                    each = asked / options.rounds / (options.steps + 1)
                    print(
                        f"{name:12} {concurrent:5} {median['plain']:8.1f} {median['cat_ranges']:10.1f} "
                        f"{median['loader']:8.1f} {ratio:8.2f} {each:8.1f}",
                        flush=True,
                    )
        finally:
            s3.stop(home)


if __name__ == "__main__":
    main()
