"""Measure `halofeed convert` beside a plain Beam pipeline and the bare limit, on the same files, in one run.

    python benchmarks/convert.py --source ../shared/data --images 8000

naive   decode in a beam.Map with Pillow, beam.io.WriteToTFRecord: what tutorials write
naive+  the same with halofeed's own decoder and kernel in the Map
bare    the same decode, resize and TFRecord write as halofeed's, in a process pool, without Beam, index,
        checksums per block, content hashes or statistics
convert `halofeed convert`, the whole command with its start-up

Peak memory is that of the process and all its children, sampled. The rounds are interleaved, and a system's figure is
its median.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

SIZE = 640
SHARDS = 16
SOURCE = Path(os.environ.get("HALOFEED_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
"""Folder of real data: that of the tests, by default beside this checkout."""
_DRAWN = 40
_EXTENSIONS = (".jpg", ".jpeg")
_JPEG_MAGIC = b"\xff\xd8\xff"
_NOT_PHOTOGRAPHS = {"odd", "cases"}
"""Folders of damaged files and of drawn ones."""


def collect(source: Path, count: int, folder: Path) -> list[Path]:
    """Link `count` JPEG files below `source` into class folders; each file as often as it takes.

    Pictures are drawn if the real data are missing.
    """
    if source == SOURCE and not source.is_dir():
        print(
            f"{source}: not there, so {_DRAWN} drawn pictures take the place of photographs; --source names some"
        )
        source = draw_pictures(folder.parent / "drawn")
    originals = sorted(path for path in source.rglob("*") if is_photograph(path))
    if not originals:
        raise SystemExit(f"{source}: no JPEG files there; name a folder of photographs with --source")
    linked = []
    for number in range(count):
        path = folder / f"class_{number % 10}" / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(originals[number % len(originals)].resolve())
        linked.append(path)
    return linked


def draw_pictures(folder: Path) -> Path:
    """Draw pictures of the size and the detail of photographs, if they are not there yet."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    for number in range(_DRAWN):
        coarse = random.integers(0, 256, (30, 40, 3), np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize((640, 480), Image.Resampling.BICUBIC))
        noisy = np.clip(smooth + random.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{number:02d}.jpg", quality=90)
    return folder


def is_photograph(path: Path) -> bool:
    """Whether a path is that of a JPEG file; folders and notes of other systems may have such names too."""
    if path.suffix.lower() not in _EXTENSIONS or not _NOT_PHOTOGRAPHS.isdisjoint(path.parts):
        return False
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(_JPEG_MAGIC)) == _JPEG_MAGIC


def run_convert(files: Path, out: Path) -> None:
    """The real command."""
    from halofeed.cli import run_and_exit

    sys.argv = [
        "halofeed", "convert", "--layout", "folders", "--source", str(files), "--out", str(out), "--name", "bench",
        "--resize", "keep-aspect", "--min-dimension", str(SIZE), "--max-dimension", str(SIZE), "--pad",
        "--encoding", "raw", "--shards", str(SHARDS),
    ]  # fmt: skip
    run_and_exit()


def needed_size(height: int, width: int) -> tuple[int, int]:
    """As halofeed's: a JPEG is decoded at a scale that leaves twice the target or more."""
    from halofeed.prep.geometry.resize import plan_keep_aspect

    size = plan_keep_aspect((height, width), SIZE, SIZE, pad=True).resized_size
    return 2 * size[0], 2 * size[1]


def bare_shard(arguments: tuple[list[str], str]) -> int:
    """Write one shard with halofeed's decoder, kernel and record writer, and nothing else."""
    from halofeed.prep.formats.picture import ReadOptions, read_image
    from halofeed.prep.geometry.resize import plan_keep_aspect
    from halofeed.prep.voxels.kernels import resize_image
    from halofeed.schemas.tfexample import encode_example
    from halofeed.schemas.tfrecord import RecordWriter

    paths, target = arguments
    options = ReadOptions()
    with open(target, "wb") as stream:
        writer = RecordWriter(stream)
        for path in paths:
            data = Path(path).read_bytes()
            image = read_image(data, options, needed_size)
            size = image.stored_size if image.orientation < 5 else image.stored_size[::-1]
            pixels = resize_image(image.pixels, plan_keep_aspect(size, SIZE, SIZE, pad=True), "antialias", 0)
            example = encode_example(
                {"image/encoded": pixels.data.cast("B"), "image/class/label": pixels[0, 0, :1]}
            )
            writer.write(example.chunks, example.length)
    return len(paths)


def run_bare(files: Path, out: Path) -> None:
    """A process per core, a shard per task."""
    paths = sorted(map(str, files.rglob("*.jpg")))
    tasks = [(paths[shard::SHARDS], str(out / f"bare-{shard:05d}")) for shard in range(SHARDS)]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        assert sum(pool.map(bare_shard, tasks)) == len(paths)


def _naive_record(path: str) -> bytes:
    import numpy as np
    from PIL import Image

    from halofeed.schemas.tfexample import encode_example

    image = Image.open(path).convert("RGB")
    scale = SIZE / max(image.size)
    size = [max(1, round(side * scale)) for side in image.size]
    canvas = np.zeros((SIZE, SIZE, 3), np.uint8)
    canvas[: size[1], : size[0]] = np.asarray(image.resize(size, Image.Resampling.BILINEAR))
    return encode_example({"image/encoded": canvas.tobytes(), "image/class/label": np.array([0])}).to_bytes()


def _same_decoder_record(path: str) -> bytes:
    from halofeed.prep.formats.picture import ReadOptions, read_image
    from halofeed.prep.geometry.resize import plan_keep_aspect
    from halofeed.prep.voxels.kernels import resize_image
    from halofeed.schemas.tfexample import encode_example

    image = read_image(
        Path(path).read_bytes(),
        ReadOptions(),
        needed_size,
    )
    size = image.stored_size if image.orientation < 5 else image.stored_size[::-1]
    pixels = resize_image(image.pixels, plan_keep_aspect(size, SIZE, SIZE, pad=True), "antialias", 0)
    return encode_example(
        {"image/encoded": pixels.tobytes(), "image/class/label": pixels[0, 0, :1]}
    ).to_bytes()


def _run_naive(files: Path, out: Path, record: object) -> None:
    import apache_beam as beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    paths = sorted(map(str, files.rglob("*.jpg")))
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        (
            pipeline
            | beam.Create(paths)
            | beam.Map(record)
            | beam.io.WriteToTFRecord(str(out / "naive"), num_shards=SHARDS)
        )


def run_naive(files: Path, out: Path) -> None:
    """What tutorials write."""
    _run_naive(files, out, _naive_record)


def run_naive_same_decoder(files: Path, out: Path) -> None:
    """The same pipeline with halofeed's decoder."""
    _run_naive(files, out, _same_decoder_record)


SYSTEMS = {"bare": run_bare, "convert": run_convert, "naive": run_naive, "naive+": run_naive_same_decoder}


def tree_memory(process: int) -> int:
    """Resident bytes of a process and its descendants; of pages that several share, each has its part."""
    total, waiting = 0, [process]
    while waiting:
        current = waiting.pop()
        try:
            lines = Path(f"/proc/{current}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
            for task in Path(f"/proc/{current}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:
            continue
    return total


def measure(
    system: str, files: Path, count: int, checkout: Path | None = None, more: Sequence[str] = ()
) -> tuple[float, int]:
    """Images per second of the whole process, and its peak memory in bytes; of the halofeed in `checkout`."""
    with tempfile.TemporaryDirectory(dir=files.parent) as out:
        command = [sys.executable, __file__, "--system", system, "--files", str(files), "--out", out, *more]
        environment = dict(os.environ) if checkout is None else {**os.environ, "PYTHONPATH": str(checkout)}
        start = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
        )
        peak, ended = [0], threading.Event()

        def watch() -> None:
            while not ended.wait(0.05):
                peak[0] = max(peak[0], tree_memory(process.pid))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        errors = process.communicate()[1].decode()
        elapsed = time.perf_counter() - start
        ended.set()
        watcher.join()
        if process.returncode:
            raise SystemExit(f"{system} failed:\n{errors[-2000:]}")
    return count / elapsed, peak[0]


def watch_disk(waits: Path, slow: str | None) -> None:
    """Put down how long shards wait for the disk, which may be the model of a slow one."""
    # OpenBLAS would start threads, and a process with threads starts its workers as new interpreters.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    from slow_disk import SlowDisk, count_waits

    count_waits(waits)
    if slow:
        SlowDisk.from_text(slow).install(waits.with_suffix(".clock"))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=SOURCE, help="folder of photographs")
    parser.add_argument("--images", type=int, default=8000)
    parser.add_argument(
        "--naive-images", type=int, default=400, help="the naive pipelines keep all in memory"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=None, help="folder for the output, some GB")
    parser.add_argument("--system", choices=SYSTEMS, help=argparse.SUPPRESS)
    parser.add_argument("--files", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--waits", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--slow", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.system:
        if given.waits:
            watch_disk(given.waits, given.slow)
        SYSTEMS[given.system](given.files, given.out)
        return
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        root = Path(scratch)
        counts = {"all": given.images, "quarter": given.images // 4, "few": given.naive_images}
        for name, count in counts.items():
            collect(given.source, count, root / name)
        cases = [
            ("bare", "all"),
            ("convert", "all"),
            ("convert", "quarter"),
            ("naive", "few"),
            ("naive+", "few"),
        ]
        rates: dict[tuple[str, str], list[float]] = {case: [] for case in cases}
        peaks: dict[tuple[str, str], list[int]] = {case: [] for case in cases}
        measure("bare", root / "quarter", counts["quarter"])
        for number in range(given.rounds):
            for case in cases if number % 2 == 0 else reversed(cases):
                if case[0].startswith("naive") and number:
                    continue
                rate, peak = measure(case[0], root / case[1], counts[case[1]])
                rates[case].append(rate)
                peaks[case].append(peak)
        middle = {case: statistics.median(values) for case, values in rates.items()}
        ours, bare = middle["convert", "all"], middle["bare", "all"]
        print(f"{'system':<9} {'images':>7} {'images/s':>9} {'(rounds)':<24} {'peak MiB':>9}  convert is")
        for case in cases:
            spread = " ".join(f"{rate:.1f}" for rate in rates[case])
            memory = max(peaks[case]) / 2**20
            times = f"{ours / middle[case]:.2f}x" if case[0] != "convert" else ""
            print(
                f"{case[0]:<9} {counts[case[1]]:>7} {middle[case]:>9.1f} {spread:<24} {memory:>9.0f}  {times}"
            )
        pairs = [a / b for a, b in zip(rates["convert", "all"], rates["bare", "all"], strict=True)]
        print(
            f"convert / bare by round: {' '.join(f'{pair:.2f}' for pair in pairs)}; of the medians {ours / bare:.2f}"
        )


if __name__ == "__main__":
    main()
