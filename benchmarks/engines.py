"""Measure what a conversion costs on many machines: driver, shuffle and workers, extrapolated to 100 TB.

    python benchmarks/engines.py
    python benchmarks/engines.py driver --references 100000,1000000,10000000 --layouts folders,csv,jsonl
    python benchmarks/engines.py listing --references 1000000,10000000
    python benchmarks/engines.py workers --pictures 4000 --rounds 5
    python benchmarks/engines.py commit --shards 1000,10000
    python benchmarks/engines.py model --per-second 300 --listing-us 25

`driver` plans drawn listings, of which no file is there, each in a fresh process: its time, its processor time and
its whole memory, Beam's included; what a file system takes to list and to look up files comes on top. `listing` has
such class folders listed in parts by two processes beside it, as a job's workers do, and says what is left to the
driver. `workers` converts drawn pictures on this machine. `commit` sums up what shards say of themselves, 256 at a
time, and puts those sums together. `model` multiplies.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from halofeed.pipelines import listing
from halofeed.pipelines.job import JobOptions
from halofeed.pipelines.opened_sources import Sources
from halofeed.pipelines.output_folder import OutputFolder
from halofeed.pipelines.plan import make_plan
from halofeed.pipelines.references import FileByShard, NumberedFiles, read_file
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import LocalFiles
from halofeed.prep.sources.walk import FileSizes, PartialListing
from halofeed.system.pickles import from_bytes, to_bytes
from halofeed.system.threads import available_cores

HERE = Path(__file__).resolve().parents[1]
CLASSES = 1000
SHARDS = 1024
FILE_BYTES = 110_000


class DrawnFiles(LocalFiles):
    """So many pictures in class folders that are nowhere, and beside them a table of them."""

    def __init__(self, root: str, count: int, table: str | None = None) -> None:
        super().__init__(root)
        self._count = count
        if table is not None:
            line = (
                "{0}/{1},{0}\n" if table.endswith(".csv") else '{{"filename": "{0}/{1}", "class": "{0}"}}\n'
            )
            with open(os.path.join(root, table), "w") as stream:
                stream.write("filename,class\n" if table.endswith(".csv") else "")
                for number in range(count):
                    stream.write(line.format(f"class_{number % CLASSES:03d}", self._name(number)))

    def _name(self, number: int) -> str:
        return f"{number:08d}.jpg"

    def sizes(self) -> FileSizes:
        if self._sizes is None:
            self._sizes = FileSizes()
            for folder in range(CLASSES):
                names = ((self._name(number), FILE_BYTES) for number in range(folder, self._count, CLASSES))
                self._sizes.add_folder(f"class_{folder:03d}", names)
        assert isinstance(self._sizes, FileSizes)
        return self._sizes

    def list_folder(self, folder: str) -> PartialListing:
        return PartialListing(files=(), folders=tuple(f"class_{number:03d}" for number in range(CLASSES)))

    def below(self, folder: str) -> PartialListing:
        return PartialListing(files=((path, FILE_BYTES) for path in self.files_in(folder)))

    def size(self, path: str) -> int | None:
        folder, _, name = path.partition("/")
        there = name[:8].isdecimal() and int(name[:8]) < self._count
        return FILE_BYTES if there and f"class_{int(name[:8]) % CLASSES:03d}" == folder else None

    def files_in(self, folder: str) -> list[str]:
        first = int(folder.removeprefix("class_"))
        return [f"{folder}/{self._name(number)}" for number in range(first, self._count, CLASSES)]


def plan(layout: str, count: int) -> dict[str, float]:
    """Plan a drawn listing in this process."""
    with tempfile.TemporaryDirectory() as scratch:
        options = JobOptions(source=scratch, out=scratch, name="set")
        named = None if layout == "folders" else f"table.{layout}"
        files = DrawnFiles(scratch, count, named)
        sources = Sources(annotations=files, images=files, annotation_file=named)
        written = FileByShard(OutputFolder(scratch), SHARDS)
        recipe = Recipe(layout=layout, height=224, width=224, shards=SHARDS)
        start, processor = time.perf_counter(), time.process_time()
        found = make_plan(options, recipe, sources, written)
        seconds, processor = time.perf_counter() - start, time.process_time() - processor
        assert found.totals.convertible == count
        line_bytes = sum(path.stat().st_size for path in Path(scratch).rglob("references")) / count
    return {
        "seconds": seconds,
        "processor_seconds": processor,
        "mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "line_bytes": line_bytes,
    }


def list_in_parts(count: int) -> dict[str, float]:
    """Plan drawn class folders in this process, whose parts two others list and count."""
    received = 0

    def spread(function: Callable[[Any], Any], arguments: Iterable[Any]) -> Iterator[Any]:
        nonlocal received
        for answer in pool.imap(functools.partial(_answer, function), arguments):
            received += len(answer)
            yield from_bytes(answer, listing.TRANSFERRED_CLASSES)

    with tempfile.TemporaryDirectory() as scratch:
        files, output = DrawnFiles(scratch, count), OutputFolder(scratch)
        output.make()
        options = JobOptions(source=scratch, out=scratch, name="set")
        sources = Sources(annotations=files, images=files, annotation_file=None)
        recipe = Recipe(layout="folders", height=224, width=224, shards=SHARDS)
        written = NumberedFiles(output)
        in_job = listing.ListingInJob(
            recipe=recipe,
            sources=sources,
            output=output,
            run_distributed=spread,
            writer=written,
            is_required=True,
        )
        drawn = mock.patch.object(listing, "source_files", return_value=files)
        with drawn, multiprocessing.get_context("fork").Pool(2) as pool:
            start, processor = time.perf_counter(), time.process_time()
            found = make_plan(options, recipe, sources, written, None, in_job)
            seconds, processor = time.perf_counter() - start, time.process_time() - processor
            pool.close()
            pool.join()
        assert found.totals.convertible == count
    return {
        "seconds": seconds,
        "processor_seconds": processor,
        "workers_seconds": _children_seconds(),
        "mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "worker_mebibytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        "received_bytes": received,
    }


def _answer(function: Callable[[Any], Any], argument: Any) -> bytes:
    return to_bytes(function(argument))


def in_parts(counts: list[int]) -> None:
    """Print what listing in parts takes of the driver and of its workers."""
    print_row(
        *(
            "references",
            "driver's processor s",
            "peak MiB",
            "workers' processor s",
            "us each",
            "peak MiB of one",
        ),
        "MB to the driver",
    )
    print_row(*["---"] * 7)
    for count in counts:
        found = own_process("parts", count)
        print_row(
            f"{count:,}",
            f"{found['processor_seconds']:.1f}",
            f"{found['mebibytes']:.0f}",
            f"{found['workers_seconds']:.0f}",
            f"{found['workers_seconds'] / count * 1e6:.0f}",
            f"{found['worker_mebibytes']:.0f}",
            f"{found['received_bytes'] / 1e6:.1f}",
        )


def own_process(*words: object) -> dict[str, float]:
    """What this program prints for these words, in a fresh process."""
    command = [sys.executable, __file__, *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def print_row(*cells: object) -> None:
    """A row of a table."""
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def driver(layouts: list[str], counts: list[int]) -> None:
    """Print what planning takes."""
    print_row("layout", "references", "seconds", "processor s", "us each", "peak MiB", "bytes a reference")
    print_row(*["---"] * 7)
    for count in counts:
        for layout in layouts:
            found = own_process("plan", layout, count)
            print_row(
                layout,
                f"{count:,}",
                f"{found['seconds']:.1f}",
                f"{found['processor_seconds']:.1f}",
                f"{found['processor_seconds'] / count * 1e6:.0f}",
                f"{found['mebibytes']:.0f}",
                f"{found['line_bytes']:.0f}",
            )


def shuffle_bytes(count: int = 10_000) -> float:
    """Bytes that cross the shuffle for each reference of drawn class folders, as Beam encodes them."""
    from apache_beam.coders import BytesCoder, StrUtf8Coder, TupleCoder

    coder = TupleCoder([StrUtf8Coder(), BytesCoder()])
    with tempfile.TemporaryDirectory() as scratch:
        output, files = OutputFolder(scratch), DrawnFiles(scratch, count)
        output.make()
        written = NumberedFiles(output)
        sources = Sources(annotations=files, images=files, annotation_file=None)
        recipe = Recipe(layout="folders", height=224, width=224, shards=SHARDS)
        make_plan(JobOptions(source=scratch, out=scratch, name="set"), recipe, sources, written)
        lines = [line for number in range(written.count) for _, line in read_file(output, number)]
    assert len(lines) == count
    return sum(len(coder.encode(("train/1000", line))) for line in lines) / count


def draw_pictures(root: Path, count: int) -> None:
    """Noisy JPEGs of 500 x 375 in ten classes; each of a hundred is linked under many names."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(0)
    first: list[Path] = []
    for number in range(count):
        path = root / f"class_{number % 10}" / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number < 100:
            small = generator.integers(0, 256, (96, 128, 3)).astype(np.uint8)
            Image.fromarray(small).resize((500, 375)).save(path, quality=90)
            first.append(path)
        else:
            os.link(first[number % 100], path)


@dataclass(frozen=True)
class Taken:
    """What a conversion took: seconds, its processors' seconds, and those that other programs took meanwhile."""

    seconds: float
    processor: float
    others: float

    @property
    def share_of_others(self) -> float:
        """Of what the cores could do meanwhile."""
        return self.others / self.seconds / available_cores()


def convert(source: Path, out: Path, workers: int) -> Taken:
    """Convert by the command line, each worker with one thread."""
    words = ["convert", "--layout", "folders", "--source", source, "--out", out, "--name", "set"]
    words += ["--height", 224, "--width", 224, "--encoding", "jpeg", "--shards", 16]
    start, before, all_before = time.perf_counter(), _children_seconds(), _machine_seconds()
    subprocess.run(
        [sys.executable, "-m", "halofeed", *map(str, words), "--workers", str(workers), "--threads", "1"],
        env={**os.environ, "PYTHONPATH": str(HERE)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    seconds, all_ = time.perf_counter() - start, _machine_seconds() - all_before
    with contextlib.suppress(ChildProcessError):  # the workers, which the command ended and did not wait for
        while True:
            os.wait()
    processor = _children_seconds() - before
    return Taken(seconds, processor, max(0.0, all_ - processor))


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _machine_seconds() -> float:
    """Processor seconds of all programs since this machine started."""
    user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def workers(numbers: list[int], pictures: int, rounds: int) -> None:
    """Print how many pictures a second so many processes convert; a conversion of a tenth is taken off.

    The numbers of workers take turns. Believe those rounds in which other programs had little.
    """
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: else nobody knows what orphans took
    print_row("workers", "pictures/s", "times the first", "processor ms a picture", "others had of the cores")
    print_row(*["---"] * 5)
    with tempfile.TemporaryDirectory() as scratch:
        few, many = (Path(scratch) / name for name in ("few", "many"))
        draw_pictures(few, pictures // 10)
        draw_pictures(many, pictures)
        counted = pictures - pictures // 10
        for _ in range(rounds):
            first = 0.0
            for number in numbers:
                taken = []
                for folder in (few, many):
                    taken.append(convert(folder, Path(scratch) / "out", number))
                    shutil.rmtree(Path(scratch) / "out")
                less, more = taken
                rate = counted / (more.seconds - less.seconds)
                first = first or rate
                each = (more.processor - less.processor) / counted * 1e3
                print_row(
                    number,
                    f"{rate:,.0f}",
                    f"{rate / first:.2f}",
                    f"{each:.2f}",
                    f"{more.share_of_others:.0%}",
                )


def commit(shard_counts: list[int]) -> None:
    """Print what it takes to sum up a group of shards, which workers do side by side, and to put all sums together."""
    from halofeed.pipelines.commit import SHARDS_PER_SUM, merged, sum_up
    from halofeed.pipelines.job import ShardJob
    from halofeed.prep.annotations.labels import LabelMap
    from halofeed.schemas.file_layout import index_file

    print_row("shards", "index kB", "groups", "s a group", "all groups put together s", "sums MB")
    print_row(*["---"] * 6)
    for count in shard_counts:
        with tempfile.TemporaryDirectory() as scratch:
            draw_pictures(Path(scratch) / "in", 1000)
            convert(Path(scratch) / "in", Path(scratch) / "out", 1)
            index = next(Path(scratch).rglob("_index*"))
            job = ShardJob(
                recipe=Recipe(layout="folders", height=224, width=224, shards=count),
                task="classification",
                labels=LabelMap(entries=((0, "object"),), first_id=0, where=""),
                name="set",
                version="1.0.0",
                images=scratch,
                folder=scratch,
                replaces=None,
                splits=("train",),
                inputs={},
                max_rejected=None,
                threads=1,
                memory_bytes=None,
                progress_folder=None,
            )
            for key in job.shard_keys():
                os.link(index, Path(scratch) / index_file(job.shard_file(key)))
            numbers = range(-(-count // SHARDS_PER_SUM))
            start = time.perf_counter()
            sums = [sum_up(job, number) for number in numbers]
            each = (time.perf_counter() - start) / len(numbers)
            start = time.perf_counter()
            merged(job, map(json.loads, sums))
            print_row(
                f"{count:,}",
                f"{index.stat().st_size / 1e3:.1f}",
                len(numbers),
                f"{each:.1f}",
                f"{time.perf_counter() - start:.1f}",
                f"{sum(map(len, sums)) / 1e6:.1f}",
            )


def model(terabytes: float, per_second: float, listing_us: float, machines: list[int], price: float) -> None:
    """Print hours and cost of a source, with everything that is assumed."""
    pictures = terabytes * 1e12 / FILE_BYTES
    shuffled = pictures * shuffle_bytes() / 1e9
    print(f"{terabytes:g} TB are {pictures:,.0f} pictures of {FILE_BYTES:,} bytes; assumed:")
    print(f"- one core converts {per_second:g} pictures a second (measure: workers), and machines have four;")
    print("- storage keeps up with all of them, and no worker waits or is lost;")
    print(
        f"- a reference takes {listing_us:g} us before the first picture, of the workers' cores (class folders; "
        "measure: listing) or of the driver's one (tables; measure: driver);"
    )
    print(f"- {shuffled:,.1f} GB cross the shuffle, {shuffle_bytes():.0f} bytes a reference;")
    print(f"- a core with its memory costs {price:g} an hour; shuffle, requests and traffic come on top.")
    print_row(
        "machines of 4 cores", "conversion hours", "listing in the job, hours", "by the driver, hours", "cost"
    )
    print_row(*["---"] * 5)
    listing_hours = pictures * listing_us / 1e6 / 3600
    for count in machines:
        hours = pictures / (per_second * 4 * count) / 3600
        in_job = listing_hours / (4 * count)
        cost = (hours * count * 4 + listing_hours) * price
        print_row(count, f"{hours:.1f}", f"{in_job:.2f}", f"{listing_hours:.1f}", f"{cost:,.0f}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what",
        nargs="?",
        choices=("driver", "listing", "workers", "shuffle", "commit", "model", "plan", "parts"),
    )
    parser.add_argument("drawn", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--references", default="100000,1000000")
    parser.add_argument("--layouts", default="folders,csv,jsonl")
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--pictures", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shards", default="1000,10000")
    parser.add_argument("--terabytes", type=float, default=100)
    parser.add_argument("--per-second", type=float, default=300)
    parser.add_argument("--listing-us", type=float, default=25)
    parser.add_argument("--machines", default="10,100,1000")
    parser.add_argument("--price", type=float, default=0.06, help="of a core with its memory for an hour")
    given = parser.parse_args()
    if given.what == "plan":
        print(json.dumps(plan(given.drawn[0], int(given.drawn[1]))))
        return
    if given.what == "parts":
        print(json.dumps(list_in_parts(int(given.drawn[0]))))
        return
    if given.what in (None, "listing"):
        in_parts([int(count) for count in given.references.split(",")])
    if given.what in (None, "driver"):
        driver(given.layouts.split(","), [int(count) for count in given.references.split(",")])
    if given.what in (None, "shuffle"):
        print(f"{shuffle_bytes():.0f} bytes cross the shuffle for each reference of class folders")
    if given.what in (None, "workers"):
        workers([int(number) for number in given.workers.split(",")], given.pictures, given.rounds)
    if given.what in (None, "commit"):
        commit([int(count) for count in given.shards.split(",")])
    if given.what in (None, "model"):
        machines = [int(count) for count in given.machines.split(",")]
        model(given.terabytes, given.per_second, given.listing_us, machines, given.price)


if __name__ == "__main__":
    main()
