"""Measure reading a large TIFF by bands of whole rows, beside tifffile and rasterio, each in a fresh process.

    python benchmarks/regions.py --side 10000 --threads 1

halofeed         all bands from top to bottom by `open_regions`
tifffile         `page.asarray`, which returns the picture as one array
rasterio         `read` of the same bands
open             `open_regions` alone, of a BigTIFF of 60,000 x 60,000 pixels with 55,225 tiles

Seconds are those of the wall and of the processor; the peak is that above the imported libraries, with the bands. On a
machine with other work, only the processor's seconds can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from halofeed.prep.formats.region.region_formats import open_regions
from halofeed.prep.sources.files import LocalFiles

BAND = 256
FORMS: dict[str, dict[str, object]] = {
    "JPEG tiles 256": {
        "compress": "jpeg",
        "photometric": "ycbcr",
        "tiled": True,
        "blockxsize": 256,
        "blockysize": 256,
    },
    "LZW strips of 8 rows": {"compress": "lzw", "blockysize": 8},
    "Deflate tiles 512": {
        "compress": "deflate",
        "predictor": 2,
        "tiled": True,
        "blockxsize": 512,
        "blockysize": 512,
    },
    "no compression": {"blockysize": 64},
}


def draw(path: Path, side: int, options: dict[str, object]) -> None:
    """Write a picture of noisy gradients, band by band."""
    import rasterio
    from rasterio.windows import Window

    rng = np.random.default_rng(0)
    noise = rng.integers(0, 30, (3, 2 * BAND, side), dtype=np.uint8)
    form = {
        "driver": "GTiff",
        "height": side,
        "width": side,
        "count": 3,
        "dtype": "uint8",
        "interleave": "pixel",
    }
    with rasterio.open(path, "w", BIGTIFF="YES", **form, **options) as raster:
        for top in range(0, side, 2 * BAND):
            rows = min(2 * BAND, side - top)
            y, x = np.mgrid[top : top + rows, :side]
            smooth = np.stack([x // 16 % 200, y // 8 % 200, (x + y) // 32 % 200]).astype(np.uint8)
            raster.write(smooth + np.roll(noise[:, :rows], top, 2), window=Window(0, top, side, rows))


def read(path: Path, reader: str, threads: int) -> Iterator[int]:
    """Read a file once; yield the rows of each part."""
    if reader == "tifffile":
        import tifffile

        with tifffile.TiffFile(path) as file:
            yield len(file.pages[0].asarray(maxworkers=threads))
    elif reader == "rasterio":
        import rasterio
        from rasterio.windows import Window

        with rasterio.open(path, num_threads=threads) as raster:
            for top in range(0, raster.height, BAND):
                rows = min(BAND, raster.height - top)
                yield raster.read(window=Window(0, top, raster.width, rows)).shape[1]
    else:
        regions = open_regions(LocalFiles(path.parent), path.name, threads)
        (height, width), step = regions.facts.size, max(BAND, regions.facts.row_steps[0])
        for top in range(0, height, step):
            yield len(regions.read(0, top, 0, min(step, height - top), width))
        regions.close()


def measure(path: Path, reader: str, threads: int) -> dict[str, float]:
    """Return seconds and MiB of one reader in this process."""
    import imagecodecs  # noqa: F401
    import rasterio  # noqa: F401
    import tifffile  # noqa: F401

    def peak() -> float:
        # `ru_maxrss` would begin with the memory of the process that started this one.
        text = Path("/proc/self/status").read_text()
        return int(text.partition("VmHWM:")[2].split()[0]) / 1024

    before, start, used = peak(), time.perf_counter(), time.process_time()
    rows = sum(read(path, reader, threads))
    assert rows
    return {
        "wall": time.perf_counter() - start,
        "cpu": time.process_time() - used,
        "peak": peak() - before,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.one:
        print(json.dumps(measure(Path(arguments.one[0]), arguments.one[1], arguments.threads)))
        return
    with tempfile.TemporaryDirectory() as folder:
        print(f"{arguments.side} x {arguments.side} RGB, {arguments.threads} threads, {os.cpu_count()} cores")
        print(f"{'':24}{'reader':12}{'seconds':>9}{'CPU s':>9}{'peak MiB':>10}")
        for name, options in FORMS.items():
            path = Path(folder, "picture.tif")
            draw(path, arguments.side, options)
            for reader in ("halofeed", "tifffile", "rasterio"):
                words = [
                    sys.executable,
                    __file__,
                    "--threads",
                    str(arguments.threads),
                    "--one",
                    str(path),
                    reader,
                ]
                found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
                print(f"{name:24}{reader:12}{found['wall']:9.2f}{found['cpu']:9.2f}{found['peak']:10.0f}")
            path.unlink()
        print(f"open: {1000 * seconds_to_open(Path(folder)):.1f} ms")


def seconds_to_open(folder: Path) -> float:
    """Return the seconds to open a file of 55,225 tiles, after a first one."""
    import rasterio

    form = {"driver": "GTiff", "height": 60_000, "width": 60_000, "count": 3, "dtype": "uint8"}
    tiles = {"tiled": True, "blockxsize": 256, "blockysize": 256}
    with rasterio.open(folder / "sparse.tif", "w", BIGTIFF="YES", SPARSE_OK="TRUE", **form, **tiles):
        pass
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        open_regions(LocalFiles(folder), "sparse.tif").close()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


if __name__ == "__main__":
    main()
