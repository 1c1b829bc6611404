"""Measure random resized crops of JPEG photographs beside full decoding, raw records and other loaders, in one run.

    python benchmarks/crops.py
    python benchmarks/crops.py --pictures 160 --rounds 3 --quality 85

Photographs are stretched to 640 x 640, as JPEG at a quality. Each loader shuffles them, and shows of each a window of
8 to 100 % of the area, stretched to 224 x 224; windows are drawn as by `tf.image.sample_distorted_bounding_box`. Other
loaders read the same coefficients without restart markers, which decode 7 % faster. Each loader runs in a separate
process, on all cores, and waits while the others are measured. A figure is the median of the rounds; "processor" is
user and system time per picture. TensorFlow resizes with 2 x 2 pixels, as `INTER_LINEAR` of OpenCV does, so shrunk
pictures alias; halofeed, `INTER_AREA` and FFCV average all pixels.

FFCV 1.0.2 has no wheels; it is measured where it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import cv2
import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parents[1]
SIDE, SHOWN, BATCH = 640, 224, 32
AREAS, RATIOS = (0.08, 1.0), (3 / 4, 4 / 3)
TARGET = 2.0
PATIENCE_SECONDS = 120


# The data -------------------------------------------------------------------------------------------------


def draw(folder: Path, photographs: Path, count: int, quality: int) -> None:
    """Write JPEG and raw data sets of `count` pictures, and the pictures' files without restart markers."""
    import gather

    if not gather.link_photographs(folder / "drawn", count, photographs):
        gather.draw_pictures(folder / "drawn", count, different=64, noise=12)
    for encoding in ("raw", "jpeg"):
        convert(folder, encoding, quality)
    from halofeed.loader import Loader

    pixels = Loader(folder / "raw/set/1.0.0", batch_size=1)
    (folder / "files").mkdir()
    for number in range(pixels.num_records):
        image = Image.fromarray(pixels.records[number]["image"])
        image.save(folder / f"files/{number:05d}.jpg", quality=quality, subsampling="4:2:0")


def convert(folder: Path, encoding: str, quality: int) -> None:
    """Convert the pictures."""
    import gather

    options = [
        "--layout",
        "folders",
        "--source",
        folder / "drawn",
        "--out",
        folder / encoding,
        "--name",
        "set",
    ]
    options += ["--resize", "fixed-shape", "--height", SIDE, "--width", SIDE, "--encoding", encoding]
    # Another quality than the default one, so that no file is kept as it is.
    options += ["--jpeg-quality", quality] if encoding == "jpeg" else []
    run = "from halofeed.cli import run_and_exit; run_and_exit()"
    command = [sys.executable, "-c", run, "convert", *map(str, options)]
    environment = gather.environment(HERE)
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}")


def files_of(folder: Path) -> list[bytes]:
    """Return the JPEG files without markers."""
    return [path.read_bytes() for path in sorted((folder / "files").iterdir())]


# The loaders ----------------------------------------------------------------------------------------------


def halofeed(folder: Path, encoding: str = "jpeg", decode: Any = "accurate") -> Iterator[Any]:
    """The batches of halofeed."""
    from halofeed.loader import Loader, RandomResizedCrop

    augment = [RandomResizedCrop(SHOWN, SHOWN, AREAS, RATIOS)]
    loader = Loader(folder / f"{encoding}/set/1.0.0", batch_size=BATCH, augment=augment, decode=decode)
    yield from loader.batches()


def complete_files(folder: Path) -> Iterator[Any]:
    """The same, but every file is decoded completely."""
    from halofeed.loader import jpeg_intervals

    jpeg_intervals._MOST_KEPT = 0.0
    yield from halofeed(folder)


def window(rng: np.random.Generator) -> tuple[slice, slice]:
    """Return a random window."""
    from halofeed.loader.augment.crop_and_resize import draw_windows

    (top, left), (height, width) = next(draw_windows((SIDE, SIDE), AREAS, RATIOS, rng.random((100, 4))))
    return slice(top, top + height), slice(left, left + width)


def crop_of(file: bytes, rng: np.random.Generator, interpolation: int) -> Any:
    """Decode a file with simplejpeg, and resize a window of it with OpenCV."""
    import simplejpeg

    pixels = simplejpeg.decode_jpeg(file)
    return cv2.resize(pixels[window(rng)], (SHOWN, SHOWN), interpolation=interpolation)


def bare(folder: Path) -> Iterator[Any]:
    """Decoding, cropping and resizing alone, by a thread for each core."""
    files, rng = files_of(folder), np.random.default_rng(0)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for step in itertools.count():
            chosen = [files[(step * BATCH + place) % len(files)] for place in range(BATCH)]
            generators = rng.spawn(BATCH)
            yield np.stack(list(pool.map(crop_of, chosen, generators, [cv2.INTER_AREA] * BATCH)))


def tf_data(folder: Path) -> Iterator[Any]:
    """tf.data with decode_and_crop_jpeg, in parallel and in any order, as tuned pipelines for ImageNet do."""
    import tensorflow as tf

    def one(file: Any) -> Any:
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            [SIDE, SIDE, 3], tf.constant([[[0.0, 0.0, 1.0, 1.0]]]), min_object_covered=0.0,
            aspect_ratio_range=RATIOS, area_range=AREAS, max_attempts=100,
        )  # fmt: skip
        box = tf.stack([begin[0], begin[1], size[0], size[1]])
        pixels = tf.io.decode_and_crop_jpeg(file, box, channels=3, dct_method="INTEGER_ACCURATE")
        return tf.cast(tf.image.resize(pixels, (SHOWN, SHOWN)), tf.uint8)

    options = tf.data.Options()
    options.deterministic = False
    files = files_of(folder)
    data = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files)).repeat()
    data = data.map(one, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH, drop_remainder=True)
    yield from data.prefetch(tf.data.AUTOTUNE).with_options(options).as_numpy_iterator()


def grain_simplejpeg(folder: Path, interpolation: int) -> Iterator[Any]:
    """Grain with a random map, by threads."""
    import grain

    data = grain.MapDataset.source(files_of(folder)).shuffle(seed=0).repeat()
    mapped = data.seed(1).random_map(lambda file, rng: crop_of(file, rng, interpolation))
    options = grain.ReadOptions(num_threads=os.cpu_count(), prefetch_buffer_size=2 * BATCH)
    yield from mapped.to_iter_dataset(options).batch(BATCH)


def ffcv(folder: Path) -> Iterator[Any]:
    """FFCV with its own file of JPEG pictures."""
    from ffcv.fields import RGBImageField
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.writer import DatasetWriter

    class Pictures:
        def __init__(self) -> None:
            self.paths = sorted((folder / "files").iterdir())

        def __len__(self) -> int:
            return len(self.paths)

        def __getitem__(self, number: int) -> Any:
            return (np.asarray(Image.open(self.paths[number])),)

    path = folder / "pictures.beton"
    quality = int((folder / "quality").read_text())
    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=quality)}
    DatasetWriter(str(path), fields, num_workers=1).from_indexed_dataset(Pictures())
    decoder = RandomResizedCropRGBImageDecoder((SHOWN, SHOWN), AREAS, RATIOS)
    loader = Loader(
        str(path), BATCH, num_workers=os.cpu_count(), order=OrderOption.RANDOM, pipelines={"image": [decoder]}
    )
    while True:
        yield from loader


FULL, OURS = "halofeed, complete files", "halofeed, batches()"
FAST, RAW = 'halofeed, decode="fast"', "halofeed, raw records"
ALIASED = "Grain + simplejpeg, INTER_LINEAR"
WAYS: dict[str, tuple[Callable[[Path], Iterator[Any]], str]] = {
    "simplejpeg + INTER_AREA alone": (bare, "simplejpeg"),
    FULL: (complete_files, "halofeed"),
    OURS: (halofeed, "halofeed"),
    FAST: (lambda folder: halofeed(folder, decode="fast"), "halofeed"),
    RAW: (lambda folder: halofeed(folder, "raw"), "halofeed"),
    "tf.data, decode_and_crop_jpeg": (tf_data, "tensorflow"),
    "Grain + simplejpeg, INTER_AREA": (lambda folder: grain_simplejpeg(folder, cv2.INTER_AREA), "grain"),
    ALIASED: (lambda folder: grain_simplejpeg(folder, cv2.INTER_LINEAR), "grain"),
    "FFCV": (ffcv, "ffcv"),
}
PEERS = [name for name in WAYS if not name.startswith("halofeed")][1:]


# The processes --------------------------------------------------------------------------------------------


def processor_seconds() -> float:
    """Return the user and system time of this process and its children."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def serve(name: str, folder: Path) -> None:
    """Answer each line, which has seconds, with pictures a second and processor milliseconds per picture."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints
    cv2.setNumThreads(1)
    stream = WAYS[name][0](folder)
    for _ in range(8):
        next(stream)
    answers.write("ready\n")
    for line in sys.stdin:
        next(stream)
        batches, used, began = 0, processor_seconds(), time.perf_counter()
        while time.perf_counter() - began < float(line):
            next(stream)
            batches += 1
        spent = time.perf_counter() - began
        used = processor_seconds() - used
        answers.write(f"{batches * BATCH / spent} {1000 * used / (batches * BATCH)}\n")


class Worker:
    """The process of one loader, stopped between rounds."""

    def __init__(self, name: str, folder: Path, log: IO[str]) -> None:
        import gather

        environment = {**gather.environment(HERE), "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", name, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1, env=environment,
        )  # fmt: skip
        self.rates: list[tuple[float, float]] = []
        self.answer()
        self.process.send_signal(signal.SIGSTOP)

    def answer(self) -> str:
        assert self.process.stdout is not None
        line: str = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args!r}: it ended with {self.process.wait()}")
        return line

    def round(self, seconds: float) -> None:
        self.process.send_signal(signal.SIGCONT)
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        rate, milliseconds = map(float, self.answer().split())
        self.rates.append((rate, milliseconds))
        self.process.send_signal(signal.SIGSTOP)

    @property
    def medians(self) -> tuple[float, float]:
        rates, milliseconds = zip(*self.rates, strict=True)
        return statistics.median(rates), statistics.median(milliseconds)


def measure(folder: Path, names: list[str], rounds: int, seconds: float) -> dict[str, tuple[float, float]]:
    """Return each loader's pictures a second and processor milliseconds per picture."""
    workers: dict[str, Worker] = {}
    try:
        with (folder / "log").open("w") as log:
            for name in names:
                workers[name] = Worker(name, folder, log)
            for number in range(rounds):
                for name in names[:: 1 if number % 2 else -1]:
                    workers[name].round(seconds)
        return {name: worker.medians for name, worker in workers.items()}
    finally:
        for worker in workers.values():
            worker.process.kill()
            worker.process.wait()


def largest_difference(folder: Path) -> tuple[float, float]:
    """Return the mean and the largest difference in levels of decode="fast" to "accurate"."""
    batches = [next(halofeed(folder, decode=decode))["image"].astype(int) for decode in ("accurate", "fast")]
    apart = np.abs(batches[0] - batches[1])
    return float(apart.mean()), float(apart.max())


def report(folder: Path, found: dict[str, tuple[float, float]]) -> None:
    """Print the table and the targets."""
    sizes = [
        sum(path.stat().st_size for path in (folder / encoding).rglob("*.tfrecord-*"))
        for encoding in ("jpeg", "raw")
    ]
    plain = sum(path.stat().st_size for path in (folder / "files").iterdir())
    mean, most = largest_difference(folder)
    ours = found[OURS]
    print(f"{'':<34}{'images/s':>9} {'processor, ms':>14} {'ours is':>9} {'processor':>10}")
    for name, (rate, milliseconds) in found.items():
        ratios = f"{ours[0] / rate:>8.2f}x {milliseconds / ours[1]:>9.2f}x" if name != OURS else ""
        print(f"{name:<34}{rate:>9,.0f} {milliseconds:>14.2f} {ratios}".rstrip())
    for name in (name for name in WAYS if name not in found):
        print(f"{name:<34}{'-':>9}  not installed")
    print(f'\ndecode="fast" differs by {mean:.2f} levels on average and {most:.0f} at most')
    print(
        f"JPEG records take {sizes[0] / plain:.4f} of files without markers, and {sizes[0] / sizes[1]:.3f} of raw"
    )
    print_targets(found)


def print_targets(found: dict[str, tuple[float, float]]) -> None:
    """Print whether the loader reaches its targets beside full decoding and the best peer."""
    best = max((name for name in PEERS if name in found), key=lambda name: found[name][0])
    for what, other in (("full decoding with the same decoder", FULL), (f"the best peer ({best})", best)):
        for name in (OURS, FAST):
            ratio, of_processor = found[name][0] / found[other][0], found[other][1] / found[name][1]
            met = "met" if ratio >= TARGET else "not met"
            print(
                f"target: {name} at {TARGET:g} of {what}: {ratio:.2f} ({of_processor:.2f} by processor time), {met}"
            )


def main() -> None:
    """Draw, measure and print."""
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], Path(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photographs", type=Path, default=HERE.parent / "shared/data/detection/coco_ccby")
    parser.add_argument("--pictures", type=int, default=320)
    parser.add_argument("--quality", type=int, default=95, help="of the JPEG records")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.5, help="of a round")
    parser.add_argument("--scratch", type=Path, help="folder for the files, 0.6 GB")
    given = parser.parse_args()
    installed = [name for name, (_, package) in WAYS.items() if importlib.util.find_spec(package)]
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        folder = Path(scratch)
        (folder / "quality").write_text(str(given.quality))
        draw(folder, given.photographs, given.pictures, given.quality)
        found = measure(folder, installed, given.rounds, given.seconds)
        print(
            f"{SIDE} x {SIDE} JPEG photographs at quality {given.quality}, random resized crop to {SHOWN} x {SHOWN};"
        )
        print(f"batches of {BATCH}, {given.pictures:,} records, {os.cpu_count()} cores")
        report(folder, found)


if __name__ == "__main__":
    main()
