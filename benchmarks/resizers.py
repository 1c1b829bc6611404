"""Compare the candidates for the default resize kernel: speed, rounding and aliasing.

    python benchmarks/resizers.py [--seconds 1.0]

Columns: millions of source pixels a second with 1 and with 2 threads of the caller's (each candidate's own
threads are off); the largest and mean distance in levels to the same filter in float64, for those
that have one; and on a chirp, what is left of waves that the small grid cannot hold (aliasing; 0 is best)
and how far the waves it holds easily (up to half its limit) are off (blur; 0 is best), both as root mean
square in levels of an amplitude of 100.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from halofeed.prep.geometry.resize import plan_fixed_shape
from halofeed.prep.voxels.kernels import resize_image

Pixels = npt.NDArray[np.uint8]
Resize = Callable[[Pixels, tuple[int, int]], Pixels]
SIZES = [  # a small photograph; one after a JPEG decode at a quarter; a whole camera picture; enlarging
    ((533, 400), (427, 320)),
    ((960, 1280), (640, 853)),
    ((3000, 4000), (600, 800)),
    ((480, 640), (768, 1024)),
]


def ours(pixels: Pixels, size: tuple[int, int], kernel: str) -> Pixels:
    return np.asarray(resize_image(pixels, plan_fixed_shape(pixels.shape[:2], *size), kernel))


def pillow(pixels: Pixels, size: tuple[int, int], filter_name: str, gap: float | None = None) -> Pixels:
    resample = Image.Resampling[filter_name]
    return np.asarray(Image.fromarray(pixels).resize(size[::-1], resample, reducing_gap=gap))


def opencv(pixels: Pixels, size: tuple[int, int], interpolation: str) -> Pixels:
    import cv2

    return np.asarray(cv2.resize(pixels, size[::-1], interpolation=getattr(cv2, interpolation)))


def candidates() -> dict[str, Resize]:
    found: dict[str, Resize] = {
        "antialias (ours: Pillow triangle)": partial(ours, kernel="antialias"),
        "NumPy triangle (tf2-bilinear-antialias)": partial(ours, kernel="tf2-bilinear-antialias"),
        "Pillow triangle after reduce, gap 2": partial(pillow, filter_name="BILINEAR", gap=2.0),
        "Pillow box": partial(pillow, filter_name="BOX"),
        "Pillow bicubic": partial(pillow, filter_name="BICUBIC"),
        "Pillow Lanczos": partial(pillow, filter_name="LANCZOS"),
    }
    if importlib.util.find_spec("cv2"):
        import cv2

        cv2.setNumThreads(1)  # this program is ours alone; a library must not set it for its importer
        found["OpenCV area"] = partial(opencv, interpolation="INTER_AREA")
        found["OpenCV linear exact (no antialias)"] = partial(opencv, interpolation="INTER_LINEAR_EXACT")
        found["OpenCV linear (no antialias)"] = partial(opencv, interpolation="INTER_LINEAR")
    return found


def megapixels_per_second(
    resize: Resize, pixels: Pixels, size: tuple[int, int], threads: int, seconds: float
) -> float:
    def work(_: int) -> int:
        count, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            resize(pixels, size)
            count += 1
        return count

    resize(pixels, size)
    with ThreadPoolExecutor(threads) as pool:
        start = time.perf_counter()
        images = sum(pool.map(work, range(threads)))
        return float(images * pixels.shape[0] * pixels.shape[1] / 1e6 / (time.perf_counter() - start))


def filter_matrix(source: int, out: int, shape: Callable[[Any], Any], radius: float) -> npt.NDArray[Any]:
    scale = source / out
    widening = max(scale, 1.0)
    distance = (np.arange(source)[None] + 0.5 - (np.arange(out)[:, None] + 0.5) * scale) / widening
    weights = np.where(np.abs(distance) <= radius, shape(distance), 0.0)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def triangle_float64(pixels: Pixels, size: tuple[int, int]) -> npt.NDArray[np.float64]:
    """The slow oracle: dense float64 matrices of the antialiased triangle, unrounded."""
    down, across = (
        filter_matrix(source, out, lambda x: np.maximum(1 - np.abs(x), 0), 1)
        for source, out in zip(pixels.shape[:2], size, strict=True)
    )
    rows = np.einsum("hwc,xw->hxc", pixels.astype(np.float64), across, optimize=True)
    return np.asarray(np.einsum("yh,hxc->yxc", down, rows, optimize=True))


def chirp(width: int, out: int) -> tuple[Pixels, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """A wave that rises to the source's limit, its frequency at each output column, and its ideal there."""

    def phase(x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        return np.asarray(np.pi * x * x / (2 * width))  # 0 to 0.5 cycles a source pixel

    at = (np.arange(out) + 0.5) * width / out
    row = 128 + 100 * np.cos(phase(np.arange(width) + 0.5))
    pixels = np.rint(np.broadcast_to(row[None, :, None], (64, width, 3))).astype(np.uint8)
    frequency = at / (2 * width) * (width / out)  # cycles per output pixel
    return pixels, frequency, 128 + 100 * np.cos(phase(at))


def aliasing_and_blur(resize: Resize, ratio: float) -> tuple[float, float]:
    width = 2400
    out = round(width / ratio)
    pixels, frequency, ideal = chirp(width, out)
    row = resize(pixels, (64, out))[32, :, 0].astype(float)
    gone, held = frequency > 0.55, frequency < 0.25
    left = np.sqrt(np.mean((row[gone] - 128) ** 2)) if gone.any() else 0.0
    return float(left), float(np.sqrt(np.mean((row[held] - ideal[held]) ** 2)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="how long to time each cell")
    seconds = parser.parse_args().seconds
    random = np.random.default_rng(0)
    found = candidates()
    print("Speed, millions of source pixels a second (1 thread / 2 threads)")
    print(f"{'':42}" + "".join(f"{f'{s[0]}×{s[1]} → {o[0]}×{o[1]}':>26}" for s, o in SIZES))
    images = [random.integers(0, 256, (*source, 3), dtype=np.uint8) for source, _ in SIZES]
    for name, resize in found.items():
        cells = []
        for pixels, (_, size) in zip(images, SIZES, strict=True):
            speeds = (megapixels_per_second(resize, pixels, size, threads, seconds) for threads in (1, 2))
            cells.append("{:>15.0f} / {:>8.0f}".format(*speeds))
        print(f"{name:42}" + "".join(cells))
    print("\nDistance to the float64 triangle filter, on noise, in levels; aliasing and blur on a chirp")
    ratios = (1.3, 2.0, 3.7)
    print(f"{'':42}{'largest':>10}{'mean':>8}" + "".join(f"{f'alias / blur, 1/{r}':>24}" for r in ratios))
    pixels, size = images[1], SIZES[1][1]
    oracle = triangle_float64(pixels, size)
    for name, resize in found.items():
        distance = np.abs(resize(pixels, size) - oracle)
        chirps = ("{:>15.1f} / {:>6.1f}".format(*aliasing_and_blur(resize, ratio)) for ratio in ratios)
        print(f"{name:42}{distance.max():>10.2f}{distance.mean():>8.2f}" + "".join(chirps))


if __name__ == "__main__":
    main()
