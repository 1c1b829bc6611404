"""Compare the encodings of records: converting, size and loading, on the same photographs and scans, in one run.

    python benchmarks/compare_encodings.py
    python benchmarks/compare_encodings.py --only convert --encoding raw,packed --images 2000
    python benchmarks/compare_encodings.py --only load --photographs ~/pictures

convert   the whole command with its start-up, in turn for each encoding; "of raw" is the median of the rounds' ratios,
          of seconds on the clock and of processor seconds (sampled). The data sets are written to --scratch;
          name a RAM disk there to leave the disk out
load      `batches()` of what was converted, from the page cache, in GB/s of the pixels and labels put out, on the
          clock and per processor second; with verify="never", as once every record is verified. "first pass" is a
          new loader's whole first epoch with verify="first", with its first batch, without the opening of the files

Photographs are stretched to 640 x 640 x 3. Scans have 512 x 512 x 100 voxels of int16 with labels: the slices of a CT
scan of our collection of test data, repeated, or a drawn scan if that is not there. JPEG and yuv420 are not exact, and
are for pictures only. An encoding that this version does not offer is listed with the command's message.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gather
import numpy as np
import packed
import volumes

HERE = Path(__file__).resolve().parents[1]
DEPTH = 100
CONVERSION_TARGET, LOADING_TARGET = 1.1, 0.4


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is loaded: of which data, in which batches, cut by which augmentations of `halofeed.loader`."""

    data: str
    batch_size: int
    augment: str = ""
    is_first_pass: bool = False
    has_target: bool = False


CASES = {
    "photographs": Case(data="photographs", batch_size=64, has_target=True),
    "photographs, crop 512": Case(
        data="photographs", batch_size=64, augment="RandomCrop(512, 512)"
    ),
    "photographs, crop 224": Case(
        data="photographs", batch_size=64, augment="RandomCrop(224, 224)"
    ),
    "photographs, crop 224 and flip": Case(
        data="photographs", batch_size=64, augment="FlipLeftRight(0.5), RandomCrop(224, 224)"
    ),
    "photographs, first pass": Case(data="photographs", batch_size=64, is_first_pass=True),
    "photographs, crop 224, first pass": Case(
        data="photographs", batch_size=64, augment="RandomCrop(224, 224)", is_first_pass=True
    ),
    "scans": Case(data="scans", batch_size=1, has_target=True),
    "scans, crop 128^3": Case(
        data="scans", batch_size=4, augment="RandomCrop(96, 128, 128)"
    ),
    "scans, crop 64^3": Case(data="scans", batch_size=8, augment="RandomCrop(64, 64, 64)"),
    "scans, first pass": Case(data="scans", batch_size=1, is_first_pass=True),
    "scans, crop 64^3, first pass": Case(
        data="scans", batch_size=2, augment="RandomCrop(64, 64, 64)", is_first_pass=True
    ),
}  # fmt: skip


# The sources ----------------------------------------------------------------------------------------------


def make_photographs(folder: Path, count: int, photographs: Path) -> list[str]:
    """Link so many photographs, or draw pictures; return the options that convert them."""
    gather.draw_or_link(folder, count, photographs)
    return [option.format(folder) for option in gather.PHOTOGRAPHS]


def make_scans(folder: Path, count: int) -> list[str]:
    """Write a scan and its label as .nii.gz and link them; return the options that convert them."""
    import nibabel

    folder.mkdir()
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        voxels, label = real_scan(Path(scratch)) or drawn_scan()
    for name, array in (("image", voxels), ("label", label)):
        image = nibabel.Nifti1Image(array.transpose(2, 1, 0), np.diag([0.8, 0.8, 2.5, 1.0]))
        image.header.set_xyzt_units("mm")
        (folder / f"{name}.nii.gz").write_bytes(gzip.compress(image.to_bytes(), 1))
    rows = ["id,image,label"]
    for number in range(count):
        for name in ("image", "label"):
            os.link(folder / f"{name}.nii.gz", folder / f"{name}_{number:04d}.nii.gz")
        rows.append(f"{number},image_{number:04d}.nii.gz,label_{number:04d}.nii.gz")
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
    return [option.format(folder) for option in gather.segmentation(DEPTH, volumes.SIDE, volumes.SIDE)]


def real_scan(scratch: Path) -> tuple[Any, Any] | None:
    """Voxels and label of the first scan of our collection of 512 x 512 pixels, its slices repeated."""
    table = packed.shared_scans(scratch / "scans")
    lines = table.read_text().splitlines()[:2]
    if ",512,512," not in lines[1]:
        return None
    table.write_text("\n".join(lines) + "\n")
    _, voxels, label = packed.scans(table, scratch)[0]
    # To and fro, so that neighbors are similar.
    order = [*range(len(voxels)), *reversed(range(len(voxels)))] * DEPTH
    return voxels[order[:DEPTH], ..., 0], np.asarray(label)[order[:DEPTH]]


def drawn_scan() -> tuple[Any, Any]:
    """A drawn scan and its label."""
    voxels = volumes.draw_volume((DEPTH, volumes.SIDE, volumes.SIDE))
    label = np.zeros(voxels.shape, np.uint8)
    label[DEPTH // 5 : DEPTH // 2, 150:300, 150:350] = 1
    label[DEPTH // 4 : DEPTH // 3, 200:250, 200:300] = 2
    return voxels, label


# Converting -----------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Conversion:
    """The rounds of one encoding's conversions, or why there are none."""

    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    stored_bytes: int = 0
    error: str = ""


def convert(options: list[str], encoding: str, out: Path, conversion: Conversion) -> None:
    """Run `halofeed convert` once, and add what it took; its output replaces that of the round before."""
    shutil.rmtree(out, ignore_errors=True)
    command = [
        sys.executable, "-m", "halofeed", "convert", *options, "--out", str(out), "--name", "set",
        "--encoding", encoding, "--shards", "8",
    ]  # fmt: skip
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, cwd=HERE, env=gather.environment(HERE), stdout=subprocess.DEVNULL, stderr=said
        )
        # Workers are no children that this process waits for, so their time is sampled.
        seen: dict[int, float] = {}
        while process.poll() is None:
            volumes.tree_processor_seconds(process.pid, seen)
            time.sleep(0.02)
        seconds = time.perf_counter() - started
        said.seek(0)
        messages = said.read().strip().splitlines()
    if process.returncode:
        conversion.error = messages[-1] if messages else f"exit status {process.returncode}"
        return
    conversion.seconds.append(seconds)
    conversion.processor_seconds.append(sum(seen.values()))
    conversion.stored_bytes = sum(path.stat().st_size for path in (out / "set/1.0.0").glob("*.tfrecord-*"))


def convert_all(
    sources: dict[str, list[str]], encodings: list[str], rounds: int, out: Path
) -> dict[str, dict[str, Conversion]]:
    """The conversions of each data set to each encoding, in turn."""
    found = {data: {encoding: Conversion() for encoding in encodings} for data in sources}
    for data, options in sources.items():
        wanted = [name for name in encodings if data == "photographs" or name not in gather.FOR_PICTURES]
        for number in range(rounds):
            for encoding in wanted if number % 2 == 0 else reversed(wanted):
                print(f"  convert {data} to {encoding}", file=sys.stderr, flush=True)
                if not found[data][encoding].error:
                    convert(options, encoding, out / f"{data}-{encoding}", found[data][encoding])
        for encoding in set(encodings) - set(wanted):
            found[data][encoding].error = "for pictures only"
    return found


def print_conversions(data: str, conversions: dict[str, Conversion], count: int) -> None:
    """The table of a data set's conversions."""
    raw = conversions.get("raw", Conversion())
    print(f"\nconverting {count} {data}")
    print(f"{'':<10}{'s':>8}{'CPU s':>8}{'s of raw':>10}{'CPU of raw':>12}{'size of raw':>13}")
    for encoding, one in conversions.items():
        if one.error or not one.seconds:
            print(f"{encoding:<10}{'-':>8}  {one.error[:140]}")
            continue
        line = f"{encoding:<10}{statistics.median(one.seconds):>8.2f}{statistics.median(one.processor_seconds):>8.2f}"
        if raw.seconds:
            clock, busy = (
                statistics.median(a / b for a, b in zip(getattr(one, key), getattr(raw, key), strict=True))
                for key in ("seconds", "processor_seconds")
            )
            line += f"{clock:>10.2f}{busy:>12.2f}{one.stored_bytes / raw.stored_bytes:>13.3f}"
            if encoding == "packed":
                line += f"  CPU of raw <= {CONVERSION_TARGET}: {'yes' if busy <= CONVERSION_TARGET else 'no'}"
        print(line)


# Loading --------------------------------------------------------------------------------------------------


class Loaders:
    """The loaders of all cases and encodings, kept from round to round."""

    def __init__(self, out: Path, seconds: float) -> None:
        self.out, self.seconds = out, seconds
        self.kept: dict[tuple[str, str], Any] = {}
        self.warm = np.ones((64, gather.SIDE, gather.SIDE, 3), np.uint8)
        self.source = np.ones_like(self.warm)

    def stream(self, case_name: str, encoding: str) -> Iterator[dict[str, Any]]:
        """Batches of a case: of a new loader for a first pass, else of one that is kept."""
        from halofeed.loader import Loader

        case, key = CASES[case_name], (case_name, encoding)
        if key not in self.kept or case.is_first_pass:
            self.kept[key] = Loader(
                self.out / f"{case.data}-{encoding}/set/1.0.0",
                batch_size=case.batch_size,
                augment=gather.augmentations(f"[{case.augment}]"),
                num_epochs=1 if case.is_first_pass else None,
                verify="first" if case.is_first_pass else "never",
            )
        stream: Iterator[dict[str, Any]] = self.kept[key].batches()
        return stream

    def round(self, case_name: str, encoding: str) -> tuple[float, float]:
        """GB per second and per processor second."""
        if encoding == "memcpy":
            started, busy = time.perf_counter(), time.process_time()
            for _ in range(8):
                np.copyto(self.warm, self.source)
            return gather.rates_of(8 * self.warm.nbytes, started, busy)
        stream, is_first_pass = self.stream(case_name, encoding), CASES[case_name].is_first_pass
        # As many batches are made ahead when the clock starts as when it stops; a first pass is measured to its end.
        for _ in zip(range(0 if is_first_pass else 2), stream, strict=False):
            pass
        moved, started, busy = 0, time.perf_counter(), time.process_time()
        for batch in stream:
            moved += batch["image"].nbytes + (batch["label"].nbytes if batch["image"].ndim == 5 else 0)
            if not is_first_pass and time.perf_counter() - started > self.seconds:
                break
        return gather.rates_of(moved, started, busy)


def load_all(out: Path, given: argparse.Namespace) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """The rates of each case's encodings, in turn, beside memcpy's."""
    loaders = Loaders(out, given.seconds)
    rates: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for name, case in CASES.items():
        ready = [
            encoding
            for encoding in ("memcpy", *gather.ENCODINGS)
            if encoding == "memcpy" or (out / f"{case.data}-{encoding}/set/1.0.0/manifest.json").exists()
        ]
        if ready == ["memcpy"] or given.cases not in name:
            continue
        print(f"  load {name}", file=sys.stderr, flush=True)
        rates[name] = {encoding: [] for encoding in ready}
        for number in range(given.rounds + 1):
            for encoding in ready if number % 2 else reversed(ready):
                rate = loaders.round(name, encoding)
                if number:  # the first round makes the loaders, and fills the page cache
                    rates[name][encoding].append(rate)
        loaders.kept.clear()
    return rates


def print_loading(rates: dict[str, dict[str, list[tuple[float, float]]]]) -> None:
    """The table of loading."""
    print(f"\n{'batches()':<36}{'':<9}{'GB/s':>7}{'of memcpy':>11}{'of raw':>8}{'GB/CPU s':>10}{'of raw':>8}")
    for name, each in rates.items():
        for encoding, found in each.items():
            if encoding == "memcpy":
                continue
            line = f"{name:<36}{encoding:<9}{median(found, 0):>7.2f}{ratio(found, each['memcpy'], 0):>11.2f}"
            if "raw" in each:
                of_raw = ratio(found, each["raw"], 0)
                line += f"{of_raw:>8.2f}{median(found, 1):>10.2f}{ratio(found, each['raw'], 1):>8.2f}"
                if encoding == "packed" and CASES[name].has_target:
                    line += f"  of raw >= {LOADING_TARGET}: {'yes' if of_raw >= LOADING_TARGET else 'no'}"
            print(line)


def median(rates: list[tuple[float, float]], which: int) -> float:
    """Median of the rates: 0 of the clock, 1 of processor time."""
    return statistics.median(rate[which] for rate in rates)


def ratio(rates: list[tuple[float, float]], others: list[tuple[float, float]], which: int) -> float:
    """Median of the ratios of one round."""
    return statistics.median(one[which] / other[which] for one, other in zip(rates, others, strict=True))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("convert", "load"), help="one of the parts")
    parser.add_argument(
        "--data", nargs="+", choices=("photographs", "scans"), default=["photographs", "scans"]
    )
    parser.add_argument(
        "--encoding",
        type=gather.encodings,
        default=["raw", "packed", "yuv420", "jpeg"],
        help="comma-separated",
    )
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--scans", type=int, default=12)
    parser.add_argument("--cases", default="", help="load: cases whose names hold this text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a round of loading (default 0.5)")
    parser.add_argument(
        "--photographs", type=Path, default=gather.PHOTOGRAPH_FOLDER, help="folder of JPEG files"
    )
    parser.add_argument("--scratch", type=Path, help="folder for the files, some 5 GB")
    given = parser.parse_args()
    if given.images < 3 * 64 or given.scans < 6:
        parser.error(
            "a first pass is measured from its third batch on: take 192 --images and 6 --scans or more"
        )
    makers: dict[str, tuple[int, Callable[[Path], list[str]]]] = {
        "photographs": (given.images, lambda path: make_photographs(path, given.images, given.photographs)),
        "scans": (given.scans, lambda path: make_scans(path, given.scans)),
    }
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        root = Path(scratch)
        sources = {data: makers[data][1](root / data) for data in given.data}
        rounds = 1 if given.only == "load" else given.rounds
        converted = convert_all(sources, given.encoding, rounds, root / "out")
        for data, conversions in converted.items():
            print_conversions(data, conversions, makers[data][0])
        sys.stdout.flush()
        if given.only != "convert":
            print_loading(load_all(root / "out", given))


if __name__ == "__main__":
    main()
