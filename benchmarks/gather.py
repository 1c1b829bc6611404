"""Measure gathering batches from raw records, beside a copy of as many bytes by one thread, in one run.

    python benchmarks/gather.py
    python benchmarks/gather.py --against ../before          # the same of another checkout, round by round in turn

Three data sets are drawn and converted by each checkout: pictures of 640 x 640 x 3 uint8, volumes of 128^3 int16 with
labels, and of 512 x 512 x 300 int16 with labels. They lie in the page cache. A case's figure is the median of the
rounds, in GB/s of the bytes put out (image and label); `copy` is NumPy's copy of a batch of pictures into memory that
is written again and again. GB per processor second tell more where the machine is shared. "first pass" is the first
time that a loader with verify="first" reads each record, "dataset()" goes through tf.data, all others are `batches()`
with verify="never" unless they say so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

SIDE, BLOCK, SCAN = 640, (128, 128, 128), (300, 512, 512)
SHARED = Path(os.environ.get("HALOFEED_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared/data")
"""Our collection of test data, which is no part of the repository."""
PHOTOGRAPH_FOLDER = SHARED / "detection/coco_ccby"
ENCODINGS = ("raw", "packed", "yuv420", "jpeg", "png")
FOR_PICTURES = ("yuv420", "jpeg", "png")
"""Those that volumes do not have."""


@dataclass(frozen=True)
class Case:
    """What is measured: of which data set, by which loader, how many batches."""

    data: str
    batch_size: int
    steps: int
    augment: str = "[]"
    options: dict[str, Any] = field(default_factory=dict)
    through_tf: bool = False
    fresh: bool = False


NEVER = {"verify": "never"}
CASES = {
    "picture": Case("pictures", 64, 12, options=NEVER),
    "picture, dataset()": Case("pictures", 64, 12, options=NEVER, through_tf=True),
    "picture, first pass": Case("pictures", 64, 8, options={"verify": "first"}, fresh=True),
    "picture, always": Case("pictures", 64, 12, options={"verify": "always"}),
    "picture, crop 512": Case("pictures", 64, 12, "[RandomCrop(512, 512)]", NEVER),
    "picture, flip": Case("pictures", 64, 12, "[FlipLeftRight(1.0)]", NEVER),
    "picture, crop 512 and flip": Case(
        "pictures", 64, 12, "[FlipLeftRight(0.5), RandomCrop(512, 512)]", NEVER
    ),
    "picture, turn": Case("pictures", 64, 6, "[Rotate90(1.0)]", NEVER),
    "picture, crop 512, always": Case("pictures", 64, 8, "[RandomCrop(512, 512)]", {"verify": "always"}),
    "picture, crop 224": Case("pictures", 64, 16, "[RandomCrop(224, 224)]", NEVER),
    "128^3": Case("blocks", 8, 12, options=NEVER),
    "128^3, always": Case("blocks", 8, 12, options={"verify": "always"}),
    "128^3, flips": Case("blocks", 8, 12, "[FlipLeftRight(0.5), FlipUpDown(0.5), FlipDepth(0.5)]", NEVER),
    "128^3, turn": Case("blocks", 8, 8, "[Rotate90(1.0)]", NEVER),
    "128^3, crop 64^3": Case("blocks", 8, 24, "[RandomCrop(64, 64, 64)]", NEVER),
    "300 x 512^2": Case("scans", 1, 4, options=NEVER),
    "300 x 512^2, first pass": Case("scans", 1, 4, options={"verify": "first"}, fresh=True),
    "300 x 512^2, crop 128^3": Case("scans", 4, 8, "[RandomCrop(128, 128, 128)]", NEVER),
    "300 x 512^2, foreground crop": Case("scans", 4, 4, "[RandomCrop(128, 128, 128, foreground=1.0)]", NEVER),
    "300 x 512^2, crop 128^3, always": Case(
        "scans", 4, 4, "[RandomCrop(128, 128, 128)]", {"verify": "always"}
    ),
}


# The data sets ------------------------------------------------------------------------------------------


def draw(folder: Path, pictures: int, blocks: int, scans: int) -> None:
    """The sources of all data sets."""
    draw_pictures(folder / "pictures", pictures)
    draw_scans(folder / "blocks", BLOCK, blocks)
    draw_scans(folder / "scans", SCAN, scans)


def draw_pictures(folder: Path, count: int, different: int = 1, noise: int = 0) -> None:
    """JPEG files of ten classes, so many of them different and linked as often as it takes."""
    import cv2

    rng = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"class_{number % 10}/{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number >= different:
            first = number % different
            os.link(folder / f"class_{first % 10}/{first:05d}.jpg", path)
            continue
        small = rng.integers(0, 256, (40, 40, 3)).astype(np.uint8)
        picture = cv2.resize(small, (SIDE, SIDE)).astype(np.int16)
        if noise:
            picture += rng.integers(-noise, noise + 1, picture.shape, np.int16)
        cv2.imwrite(str(path), picture.clip(0, 255).astype(np.uint8), [cv2.IMWRITE_JPEG_QUALITY, 95])


def jpeg_files(folder: Path) -> list[Path]:
    """JPEG files below a folder, sorted."""
    return sorted(
        path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg") and path.is_file()
    )


def draw_or_link(folder: Path, count: int, photographs: Path) -> str:
    """Link photographs, or draw pictures if there are none; return which, in words."""
    if different := link_photographs(folder, count, photographs):
        return f"{min(different, count)} photographs"
    draw_pictures(folder, count, different=64, noise=12)
    return "64 drawn pictures"


def link_photographs(folder: Path, count: int, photographs: Path) -> int:
    """JPEG files below a folder, linked as often as it takes; how many different ones there are."""
    found = jpeg_files(photographs)
    for number in range(count if found else 0):
        path = folder / f"class_{number % 10}/{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(found[number % len(found)].resolve())
    return len(found)


def draw_scans(folder: Path, shape: tuple[int, ...], count: int, scan: Any = None) -> None:
    """A scan and its label as NIfTI, linked as often as it takes, and their table; noise, if no scan is given."""
    import nibabel

    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    if scan is None:
        scan = rng.integers(-1000, 1000, shape).astype(np.int16)
    label = np.zeros(shape, np.uint8)
    label[tuple(slice(size // 3, size // 2) for size in shape)] = 1
    rows = ["id,image,label"]
    for what, array in (("image", scan), ("label", label)):
        image = nibabel.Nifti1Image(array.transpose(2, 1, 0), np.diag([1.0, 1.0, 1.0, 1.0]))
        image.header.set_xyzt_units("mm")
        nibabel.save(image, folder / f"{what}.nii")
    for number in range(count):
        for what in ("image", "label"):
            os.link(folder / f"{what}.nii", folder / f"{what}_{number}.nii")
        rows.append(f"{number},image_{number}.nii,label_{number}.nii")
    (folder / "table.csv").write_text("\n".join(rows) + "\n")


def segmentation(depth: int, height: int, width: int) -> list[str]:
    """How volumes of that size are converted, of the table below {}."""
    sides = ["--depth", str(depth), "--height", str(height), "--width", str(width)]
    return ["--layout", "csv", "--source", "{}/table.csv", "--task", "segmentation", *sides]


PICTURES = ["--layout", "folders", "--source", "{}", "--resize", "keep-aspect", "--min-dimension", str(SIDE),
               "--max-dimension", str(SIDE), "--pad"]  # fmt: skip
PHOTOGRAPHS = ["--layout", "folders", "--source", "{}", "--resize", "fixed-shape", "--height", str(SIDE),
               "--width", str(SIDE)]  # fmt: skip
TINY = ["--layout", "folders", "--source", "{}", "--resize", "fixed-shape", "--height", "8", "--width", "8"]
DATA_SETS = {
    "pictures": PICTURES,
    "blocks": segmentation(*BLOCK),
    "scans": segmentation(*SCAN),
}


def convert(sources: Path, out: Path, checkout: Path) -> None:
    """The three data sets as that checkout writes them."""
    for name in DATA_SETS:
        convert_one(name, sources / name, out, checkout)


def convert_one(
    name: str,
    source: Path,
    out: Path,
    checkout: Path,
    *,
    encoding: str = "raw",
    shards: int = 4,
    options: list[str] | None = None,
) -> None:
    """One data set as that checkout writes it; with the options of its name, if no others are given."""
    known = {**DATA_SETS, "photographs": PHOTOGRAPHS, "tiny": TINY}
    options = options or [option.format(source) for option in known[name]]
    run = "from halofeed.cli import run_and_exit; run_and_exit()"
    command = [sys.executable, "-c", run, "convert", *options, "--out", str(out), "--name", name,
               "--encoding", encoding, "--shards", str(shards)]  # fmt: skip
    done = subprocess.run(command, cwd=checkout, env=environment(checkout), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def encodings(text: str) -> list[str]:
    """The encodings of an option, such as "raw,packed"."""
    names = text.split(",")
    if unknown := sorted(set(names) - set(ENCODINGS)):
        raise argparse.ArgumentTypeError(f"{unknown[0]}: expected some of {', '.join(ENCODINGS)}")
    return names


def environment(checkout: Path) -> dict[str, str]:
    """Of a process that uses that checkout's halofeed."""
    return {**os.environ, "PYTHONPATH": str(checkout), "TF_CPP_MIN_LOG_LEVEL": "3"}


# The measurement ----------------------------------------------------------------------------------------


class Measured:
    """The cases, their loaders kept from round to round."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.loaders: dict[str, Any] = {}
        self.source = np.ones((64, SIDE, SIDE, 3), np.uint8)
        self.target = np.ones_like(self.source)

    def loader(self, name: str) -> Any:
        """The case's loader, a new one where it is asked for."""
        from halofeed import loader as parts

        case = CASES[name]
        if case.fresh or name not in self.loaders:
            augment = augmentations(case.augment)
            self.loaders[name] = parts.Loader(
                self.data / case.data / "1.0.0", batch_size=case.batch_size, augment=augment, **case.options
            )
        return self.loaders[name]

    def round(self, name: str) -> tuple[float, float]:
        """GB per second and per processor second of one round."""
        if name == "copy":
            started, busy = time.perf_counter(), time.process_time()
            for _ in range(12):
                np.copyto(self.target, self.source)
            return rates_of(12 * self.source.nbytes, started, busy)
        case, loader = CASES[name], self.loader(name)
        steps = min(case.steps, loader.steps_per_epoch) if case.fresh else case.steps
        stream = loader.dataset(repeat=True).as_numpy_iterator() if case.through_tf else loader.batches()
        if not case.fresh:
            next(stream)
        moved, started, busy = 0, time.perf_counter(), time.process_time()
        for _, batch in zip(range(steps), stream, strict=False):
            moved += batch["image"].nbytes + (batch["label"].nbytes if batch["image"].ndim == 5 else 0)
        return rates_of(moved, started, busy)


def augmentations(text: str) -> Any:
    """The augmentations of a case's text, such as "[RandomCrop(224, 224)]"."""
    from halofeed import loader

    # The package imports a name when it is first used, so its own dictionary has few of them.
    return eval(text, {name: getattr(loader, name) for name in loader.__all__})


def rates_of(moved: int, started: float, busy: float) -> tuple[float, float]:
    """GB per second and per processor second since then."""
    return moved / (time.perf_counter() - started) / 1e9, moved / (time.process_time() - busy) / 1e9


def serve(data: Path) -> None:
    """Measure each case that standard input names, one per line, and answer with GB/s."""
    for path in data.rglob("*.tfrecord-*"):
        path.read_bytes()
    measured = Measured(data)
    for line in sys.stdin:
        print(json.dumps(measured.round(line.strip())), flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pictures", type=int, default=640)
    parser.add_argument("--blocks", type=int, default=32)
    parser.add_argument("--scans", type=int, default=4)
    parser.add_argument("--against", type=Path, help="another checkout, measured in turn with this one")
    parser.add_argument("--only", default="", help="cases that hold this text")
    parser.add_argument("--scratch", type=Path, help="folder for the files, some 4 GB and 2 GB a checkout")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return
    checkouts = {"here": Path(__file__).resolve().parents[1]}
    if given.against:
        checkouts["there"] = given.against.resolve()
    names = ["copy", *(name for name in CASES if given.only in name)]
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        sources = Path(scratch) / "sources"
        sources.mkdir()
        draw(sources, given.pictures, given.blocks, given.scans)
        workers = {}
        for label, checkout in checkouts.items():
            convert(sources, Path(scratch) / label, checkout)
            workers[label] = subprocess.Popen(
                [sys.executable, __file__, "--serve", f"{scratch}/{label}"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(checkout),
            )  # fmt: skip
        rates = rounds(workers, names, given.rounds)
    print_table(rates, names)


def rounds(
    workers: dict[str, Any], names: list[str], count: int
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """The rates of each checkout's cases, of each round; the checkouts take turns."""
    rates: dict[str, dict[str, list[tuple[float, float]]]] = {
        label: {name: [] for name in names} for label in workers
    }
    for number in range(count + 1):
        for name in names:
            for label, worker in list(workers.items())[:: 1 if number % 2 else -1]:
                worker.stdin.write(name + "\n")
                worker.stdin.flush()
                rate = json.loads(worker.stdout.readline())
                if number:  # the first round makes the loaders
                    rates[label][name].append(rate)
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()
    return rates


def print_table(rates: dict[str, dict[str, list[tuple[float, float]]]], names: list[str]) -> None:
    """The medians, and each as a share of the copy's."""
    medians = {
        label: {name: [statistics.median(rate) for rate in zip(*each[name], strict=True)] for name in names}
        for label, each in rates.items()
    }
    heads = "".join(f" | {label + ' GB/s':>10} {'of copy':>7} {'GB/CPU s':>8}" for label in medians)
    print(f"{'case':<31}{heads}" + (" | here/there: clock, CPU" if len(medians) > 1 else ""))
    for name in names:
        line = f"{name:<31}"
        for each in medians.values():
            line += f" | {each[name][0]:>10.2f} {each[name][0] / each['copy'][0]:>7.2f} {each[name][1]:>8.2f}"
        if len(rates) > 1:
            pairs = list(zip(*(each[name] for each in rates.values()), strict=True))
            clock, busy = (statistics.median(a[which] / b[which] for a, b in pairs) for which in (0, 1))
            line += f" | {clock:>17.2f}, {busy:.2f}"
        print(line)


if __name__ == "__main__":
    main()
