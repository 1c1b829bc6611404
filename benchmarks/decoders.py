"""Compare JPEG decoders: speed, release of the interpreter lock, and difference from Pillow.

    python benchmarks/decoders.py --source DIR [--files 60] [--shorter-side 224]

Takes JPEG files evenly from below DIR, and makes larger ones of 12 megapixels from some of them. One table
for each group: processor time per image on one thread; images per second on two threads and how many cores
they kept busy (a decoder that holds the interpreter lock cannot pass 1.0); the largest and the mean
difference, in levels of 255, from Pillow's full decode; and the same after an antialiased resize of both to
the shorter side, which is what a reduced decode is for.
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

from halofeed.prep.formats.picture import ReadOptions, read_image

Decoder = Callable[[bytes], Any]
LARGE_MEGAPIXELS = 12


@dataclass(frozen=True, kw_only=True)
class Needed:
    """What a reduced decode must not be smaller than: `factor` times the size after the resize."""

    shorter_side: int
    factor: int

    def __call__(self, height: int, width: int) -> tuple[int, int]:
        scale = self.shorter_side / min(height, width)
        return round(height * scale) * self.factor, round(width * scale) * self.factor


def pillow_full(data: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def pillow_draft(needed: Needed) -> Decoder:
    def decode(data: bytes) -> Any:
        image = Image.open(io.BytesIO(data))
        height, width = needed(image.height, image.width)
        image.draft("RGB", (width, height))
        return np.asarray(image.convert("RGB"))

    return decode


def simplejpeg_full(data: bytes) -> Any:
    return simplejpeg.decode_jpeg(data)


def simplejpeg_fast(data: bytes) -> Any:
    return simplejpeg.decode_jpeg(data, fastdct=True, fastupsample=True)


def simplejpeg_eighths(needed: Needed) -> Decoder:
    def decode(data: bytes) -> Any:
        least = needed(*simplejpeg.decode_jpeg_header(data)[:2])
        return simplejpeg.decode_jpeg(data, min_height=least[0], min_width=least[1])

    return decode


def ours_full(data: bytes) -> Any:
    return read_image(data, ReadOptions()).pixels


def ours_reduced(needed: Needed) -> Decoder:
    return lambda data: read_image(data, ReadOptions(), needed).pixels


def decoders(shorter_side: int) -> dict[str, Decoder]:
    """The competitors; OpenCV where it is installed."""
    once, twice = (Needed(shorter_side=shorter_side, factor=factor) for factor in (1, 2))
    table: dict[str, Decoder] = {
        "Pillow": pillow_full,
        "simplejpeg": simplejpeg_full,
        "simplejpeg, fast DCT and upsampling": simplejpeg_fast,
        "halofeed (simplejpeg, checked)": ours_full,
        "Pillow draft, at least the target": pillow_draft(once),
        "simplejpeg M/8, at least the target": simplejpeg_eighths(once),
        "halofeed 1/2^k, at least the target": ours_reduced(once),
        "Pillow draft, at least twice the target": pillow_draft(twice),
        "halofeed 1/2^k, at least twice the target": ours_reduced(twice),
    }
    try:
        import cv2
    except ImportError:
        print("OpenCV is not installed, so it is left out", file=sys.stderr)
        return table
    cv2.setNumThreads(1)
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    table["OpenCV"] = lambda data: cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    return table


def resized(pixels: Any, target: tuple[int, int]) -> Any:
    """Antialiased (triangle kernel) resize to (height, width)."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return np.asarray(image.resize((target[1], target[0]), Image.Resampling.BILINEAR))


def processor_ms(decode: Decoder, files: Sequence[bytes], seconds: float) -> float:
    """Processor time per image on one thread: the least of several passes, so that other work matters less."""
    passes: list[float] = []
    started = time.perf_counter()
    while len(passes) < 3 or time.perf_counter() - started < seconds:
        before = time.thread_time()
        for data in files:
            decode(data)
        passes.append((time.thread_time() - before) / len(files))
    return 1000 * min(passes)


def on_two_threads(decode: Decoder, files: Sequence[bytes], seconds: float) -> tuple[float, float]:
    """Images per second and cores kept busy: the best pass over the files."""
    passes: list[tuple[float, float]] = []
    started = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        while len(passes) < 3 or time.perf_counter() - started < seconds:
            before, processor_before = time.perf_counter(), time.process_time()
            for _ in pool.map(decode, files):
                pass
            wall = time.perf_counter() - before
            passes.append((len(files) / wall, (time.process_time() - processor_before) / wall))
    return max(passes)


def difference(ours: Any, full: Any) -> str:
    """Largest and mean absolute difference; a dash where the sizes differ."""
    if ours.shape != full.shape:
        return "-"
    levels = np.abs(ours.astype(np.int16) - full.astype(np.int16))
    return f"{levels.max()} / {levels.mean():.2f}"


def differences(decode: Decoder, files: Sequence[bytes], shorter_side: int) -> tuple[str, str]:
    """The differences over all files, laid end to end: of the pixels, and after the same resize."""
    target_of = Needed(shorter_side=shorter_side, factor=1)
    pixels, small = [], []
    for data in files:
        full, ours = pillow_full(data), decode(data)
        target = target_of(*full.shape[:2])
        pixels.append((ours.reshape(-1), full.reshape(-1)))
        small.append((resized(ours, target).reshape(-1), resized(full, target).reshape(-1)))
    return (
        difference(*(np.concatenate(side) for side in zip(*pixels, strict=True))),
        difference(*(np.concatenate(side) for side in zip(*small, strict=True))),
    )


def enlarged(data: bytes) -> bytes:
    """The same picture at LARGE_MEGAPIXELS, quality 90, 4:2:0."""
    with Image.open(io.BytesIO(data)) as image:
        scale = (LARGE_MEGAPIXELS * 1e6 / (image.width * image.height)) ** 0.5
        size = round(image.width * scale), round(image.height * scale)
        out = io.BytesIO()
        image.convert("RGB").resize(size, Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
    return out.getvalue()


def upright(path: Path) -> bool:
    """Whether the file is plain YCbCr without an orientation, so that all decoders mean the same picture."""
    with Image.open(path) as image:
        return image.mode == "RGB" and image.getexif().get(274, 1) == 1


def print_table(title: str, files: Sequence[bytes], shorter_side: int, seconds: float) -> None:
    """Measure every decoder on one group of files."""
    print(f"\n{title}: {len(files)} files of {sum(map(len, files)) / len(files) / 1000:.0f} kB on average")
    print(
        f"{'decoder':41} {'CPU ms':>7} {'2 threads/s':>11} {'cores':>5} {'max/mean diff':>13} {'resized':>11}"
    )
    for name, decode in decoders(shorter_side).items():
        cost = processor_ms(decode, files, seconds)
        rate, cores = on_two_threads(decode, files, seconds)
        full, small = differences(decode, files[:16], shorter_side)
        print(f"{name:41} {cost:7.2f} {rate:11.1f} {cores:5.2f} {full:>13} {small:>11}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, required=True, help="a folder with JPEG files, at any depth")
    parser.add_argument("--files", type=int, default=60, help="how many of them (default 60)")
    parser.add_argument("--shorter-side", type=int, default=224, help="what is resized to (default 224)")
    parser.add_argument("--seconds", type=float, default=2.0, help="per measurement (default 2)")
    options = parser.parse_args()
    paths = [path for path in sorted(options.source.rglob("*")) if path.suffix.lower() in (".jpg", ".jpeg")]
    chosen = [path for path in paths[:: max(1, len(paths) // options.files)] if upright(path)][
        : options.files
    ]
    if not chosen:
        parser.error(f"{options.source}: no color JPEG files below it")
    files = [path.read_bytes() for path in chosen]
    large = [enlarged(data) for data in files[:: max(1, len(files) // 6)]]
    for title, group in (("as they are", files), (f"{LARGE_MEGAPIXELS} megapixels", large)):
        print_table(title, group, options.shorter_side, options.seconds)


if __name__ == "__main__":
    main()
