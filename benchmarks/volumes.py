"""Measure `halofeed convert` on CT volumes beside the bare limit, on the same files, in one run.

    python benchmarks/volumes.py --volumes 96 --depth 100

bare     gunzip by halofeed's own reader and one pass over the voxels (their sum), in a process pool, one for each core
plain    `halofeed convert` of the same .nii.gz files, int16 HU, the whole command with its start-up
quarter  the same of a quarter of the files: what the start-up takes, and the rate without it, follow
mask     each with a label volume beside it
window   to uint8 between -160 and 240 HU
spacing  resampled to 2 x 1.5 x 1.5 mm
dicom    the same scans as DICOM series, uncompressed, a few of them

One CT-like volume is drawn, with noise that gzip leaves at half its size, and linked as often as it takes. MB/s are of
decompressed image voxels per second on the clock; MB per processor second tell more where the machine is shared. Peak
memory is that of the process and all its children, sampled. The rounds are interleaved, and a system's figure is its
median.
"""

from __future__ import annotations

import argparse
import gzip
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from convert import tree_memory

SIDE = 512
SPACING_MM = (2.5, 0.8, 0.8)
SHARDS = 8
GOAL = 0.8
SPACING = ["--spacing-mm", "2,1.5,1.5", "--height", "273", "--width", "273"]


@dataclass(frozen=True)
class System:
    """What is run: on how many of the volumes, from which table, with which further options."""

    share: float
    table: str
    options: Sequence[str] = ()


SYSTEMS = {
    "bare": System(1, "plain.csv"),
    "plain": System(1, "plain.csv"),
    "quarter": System(1 / 4, "quarter.csv"),
    "mask": System(1, "mask.csv"),
    "window": System(1, "plain.csv", ["--window-hu=-160,240"]),
    "spacing": System(1 / 4, "quarter.csv", SPACING),
    "dicom": System(1 / 8, "dicom.csv"),
}


# The files ----------------------------------------------------------------------------------------------


def draw(root: Path, volumes: int, depth: int, level: int) -> float:
    """Write the scans, masks, series and tables; how many times smaller gzip makes a scan."""
    import nibabel

    scan = draw_volume((depth, SIDE, SIDE))
    mask = np.zeros(scan.shape, np.uint8)
    mask[depth // 5 : depth // 2, 150:300, 150:350] = 1
    mask[depth // 4 : depth // 3, 200:250, 200:300] = 2
    affine = np.diag([-SPACING_MM[2], -SPACING_MM[1], SPACING_MM[0], 1.0])  # stored as scanners do
    for name, array in (("ct", scan), ("mask", mask)):
        image = nibabel.Nifti1Image(array.transpose(2, 1, 0), affine)
        image.header.set_xyzt_units("mm")
        (root / f"{name}.nii.gz").write_bytes(gzip.compress(image.to_bytes(), level))
        for number in range(volumes):
            os.link(root / f"{name}.nii.gz", root / f"{name}_{number:04d}.nii.gz")
    write_series(scan, root / "series")
    for number in range(part_of(volumes, SYSTEMS["dicom"].share)):
        (root / f"series_{number:04d}").mkdir()
        for path in (root / "series").iterdir():
            os.link(path, root / f"series_{number:04d}" / path.name)
    images = {"dicom": "series_{:04d}"}
    for name, system in SYSTEMS.items():
        image = images.get(name, "ct_{:04d}.nii.gz")
        label = "mask_{:04d}.nii.gz" if name == "mask" else ""
        rows = [f"{n},{image},{label}".format(n, n) for n in range(part_of(volumes, system.share))]
        (root / system.table).write_text("\n".join(["id,image,label", *rows]) + "\n")
    return float(scan.nbytes / (root / "ct.nii.gz").stat().st_size)


def draw_volume(shape: tuple[int, int, int]) -> Any:
    """A CT-like int16 volume [depth, height, width] in HU."""
    random = np.random.default_rng(1)
    volume = np.empty(shape, np.int16)
    height, width = np.ogrid[-1 : 1 : shape[1] * 1j, -1 : 1 : shape[2] * 1j]
    body = (height / 0.7) ** 2 + (width / 0.9) ** 2 < 1
    for depth in range(shape[0]):
        organs = (
            40 + 60 * np.sin(7 * width + depth / 20) * np.cos(5 * height) + random.normal(0, 12, body.shape)
        )
        air = -1000 + random.normal(0, 4, body.shape)
        volume[depth] = np.clip(np.where(body, organs, air), -1024, 3071)
    return volume


def part_of(volumes: int, share: float) -> int:
    """A share of the volumes, one at least."""
    return max(1, round(volumes * share))


def write_series(scan: Any, folder: Path) -> None:
    """An uncompressed CT series."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian

    folder.mkdir()
    for number, pixels in enumerate(scan):
        slice_ = Dataset()
        slice_.SOPClassUID, slice_.SOPInstanceUID = CTImageStorage, f"1.2.3.{number + 1}"
        slice_.ImageType, slice_.Modality = ["ORIGINAL", "PRIMARY", "AXIAL"], "CT"
        slice_.StudyInstanceUID, slice_.SeriesInstanceUID, slice_.FrameOfReferenceUID = (
            "1.2",
            "1.2.3",
            "1.2.9",
        )
        slice_.ImagePositionPatient = [0.0, 0.0, number * SPACING_MM[0]]
        slice_.ImageOrientationPatient = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
        slice_.PixelSpacing, slice_.SliceThickness = list(SPACING_MM[1:]), SPACING_MM[0]
        slice_.SamplesPerPixel, slice_.PhotometricInterpretation = 1, "MONOCHROME2"
        slice_.Rows, slice_.Columns = pixels.shape
        slice_.BitsAllocated, slice_.BitsStored, slice_.HighBit, slice_.PixelRepresentation = 16, 16, 15, 1
        slice_.RescaleSlope, slice_.RescaleIntercept, slice_.PixelData = 1, 0, pixels.tobytes()
        slice_["PixelData"].VR = "OW"
        slice_.file_meta = FileMetaDataset()
        slice_.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        slice_.save_as(folder / f"{number:04d}.dcm", enforce_file_format=True)


# The systems --------------------------------------------------------------------------------------------


def bare_volume(path: str) -> int:
    """Decompress the voxels of one file and look at each once."""
    from halofeed.prep.formats.volume.streams import GzipStream, skip

    stream, total = GzipStream(Path(path).read_bytes()), 0
    skip(stream, 352)
    block = np.empty(1 << 18, np.int16)
    while got := stream.read_into(block.view(np.uint8).data):
        total += int(block[: got // 2].sum(dtype=np.int64))
    return total


def run_bare(table: Path) -> None:
    """A process per core, a file per task."""
    rows = table.read_text().splitlines()[1:]
    paths = [str(table.parent / row.split(",")[1]) for row in rows]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        assert len(set(pool.map(bare_volume, paths))) == 1


def convert_command(table: Path, out: Path, depth: int, options: Sequence[str]) -> list[str]:
    """The words of the real command, its workers and threads as they are by default."""
    return [
        sys.executable, "-m", "halofeed",
        "convert", "--layout", "csv", "--task", "segmentation", "--source", str(table), "--out", str(out),
        "--name", "bench", "--depth", str(depth), "--height", str(SIDE), "--width", str(SIDE), "--encoding", "raw",
        "--shards", str(SHARDS), "--missing-masks", "prediction", *options,
    ]  # fmt: skip


# The measurement ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """What one run took."""

    seconds: float
    processor_seconds: float
    peak_bytes: int


def tree_processor_seconds(process: int, seen: dict[int, float]) -> None:
    """Put down the processor time of a process and its descendants, each by its number."""
    waiting = [process]
    while waiting:
        current = waiting.pop()
        try:
            fields = Path(f"/proc/{current}/stat").read_text().rpartition(")")[2].split()
            seen[current] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            for task in Path(f"/proc/{current}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:
            continue


def measure(name: str, files: Path, depth: int, checkout: Path | None = None) -> Result:
    """Run one system in a separate process, with the halofeed in `checkout`."""
    with tempfile.TemporaryDirectory(dir=files.parent) as out:
        system = SYSTEMS[name]
        command = convert_command(files / system.table, Path(out), depth, system.options)
        if name == "bare":
            command = [sys.executable, __file__, "--bare", str(files / system.table)]
        environment = dict(os.environ) if checkout is None else {**os.environ, "PYTHONPATH": str(checkout)}
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
        )
        peak, ended = [0], threading.Event()
        seen: dict[int, float] = {}

        def watch() -> None:
            while not ended.wait(0.05):
                tree_processor_seconds(process.pid, seen)
                peak[0] = max(peak[0], tree_memory(process.pid))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        errors = process.communicate()[1].decode()
        elapsed = time.perf_counter() - start
        ended.set()
        watcher.join()
        if process.returncode:
            raise SystemExit(f"{name} failed:\n{errors[-2000:]}")
    return Result(elapsed, sum(seen.values()), peak[0])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--volumes", type=int, default=96, help="default 96")
    parser.add_argument("--depth", type=int, default=100, help="slices of 512 x 512 (default 100)")
    parser.add_argument("--level", type=int, default=1, help="of gzip; nibabel's default is 1")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(SYSTEMS), help="some of the systems, comma-separated")
    parser.add_argument("--scratch", type=Path, default=None, help="folder for the files, some 10 GB")
    parser.add_argument("--bare", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bare:
        run_bare(given.bare)
        return
    names = [name for name in SYSTEMS if name in given.only.split(",")]
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        files = Path(scratch) / "files"
        files.mkdir()
        ratio = draw(files, given.volumes, given.depth, given.level)
        megabytes = 2 * SIDE * SIDE * given.depth / 1e6
        print(f"volumes of 512 x 512 x {given.depth} int16, {megabytes:.0f} MB, gzip ratio {ratio:.1f}")
        results: dict[str, list[Result]] = {name: [] for name in names}
        measure(names[0], files, given.depth)
        for number in range(given.rounds):
            for name in names if number % 2 == 0 else reversed(names):
                results[name].append(measure(name, files, given.depth))
    sizes = {name: megabytes * part_of(given.volumes, SYSTEMS[name].share) for name in names}
    print_table(sizes, results)


def print_table(sizes: dict[str, float], results: dict[str, list[Result]]) -> None:
    """Print the medians of each system, and their ratio to the bare limit."""
    seconds = {name: statistics.median(run.seconds for run in runs) for name, runs in results.items()}
    busy = {name: statistics.median(run.processor_seconds for run in runs) for name, runs in results.items()}
    rate = {name: sizes[name] / seconds[name] for name in results}
    per_busy = {name: sizes[name] / busy[name] for name in results}
    print(
        f"{'system':<8} {'MB':>6} {'MB/s':>6} {'of bare':>7} {'(rounds)':<18} {'MB/CPU s':>8} {'of bare':>7} "
        f"{'peak MiB':>8}"
    )
    for name, runs in results.items():
        shares = [f"{rate[name] / rate['bare']:.2f}", f"{per_busy[name] / per_busy['bare']:.2f}"]
        spread = " ".join(f"{sizes[name] / run.seconds:.0f}" for run in runs)
        peak = max(run.peak_bytes for run in runs) / 2**20
        print(
            f"{name:<8} {sizes[name]:>6.0f} {rate[name]:>6.0f} {shares[0]:>7} {spread:<18} {per_busy[name]:>8.0f} "
            f"{shares[1]:>7} {peak:>8.0f}"
        )
    if {"plain", "quarter"} <= set(results):
        more = sizes["plain"] - sizes["quarter"]
        marginal, busier = (more / (each["plain"] - each["quarter"]) for each in (seconds, busy))
        print(
            f"without the start-up of {seconds['plain'] - sizes['plain'] / marginal:.1f} s: {marginal:.0f} MB/s, "
            f"{marginal / rate['bare']:.2f} of bare; by processor time {busier / per_busy['bare']:.2f}; goal {GOAL}"
        )


if __name__ == "__main__":
    main()
