"""Drawn pictures for TIFF files, and the comparison of their windows."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from halofeed.prep.formats.region.region_reader import RegionFacts
from halofeed.prep.formats.region.tiff_regions import TiffRegions, open_tiff_regions
from halofeed.prep.sources.files import LocalFiles

HEIGHT, WIDTH = 203, 307


def draw(bands: int = 3, dtype: str = "uint8", seed: int = 0) -> np.ndarray:
    """A smooth picture with noise, [height, width, bands], over the full range of the dtype."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    smooth = np.stack([(band + 2) * y + (5 - band) * x for band in range(bands)], -1) / (5 * (HEIGHT + WIDTH))
    noisy = np.clip(smooth + rng.normal(0, 0.03, smooth.shape), 0, 1)
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return (noisy * 1000 - 300).astype(kind)
    limits = np.iinfo(kind)
    return (noisy * (float(limits.max) - limits.min) + limits.min).clip(limits.min, limits.max).astype(kind)


@contextmanager
def opened(path: Path, **options) -> Iterator[TiffRegions]:
    reader = open_tiff_regions(LocalFiles(path.parent), path.name, **options)
    try:
        yield reader
    finally:
        reader.close()


def facts_of(path: Path, **options) -> RegionFacts:
    with opened(path, **options) as reader:
        return reader.facts


def read_whole(path: Path, **options) -> np.ndarray:
    with opened(path, **options) as reader:
        return reader.read(0, 0, 0, *reader.facts.size)


def check_windows(path: Path, expected: np.ndarray, level: int = 0, count: int = 12, **options) -> None:
    """Compare random windows, the first and last pixel, and whole rows from top to bottom with the expected pixels."""
    expected = expected.reshape(*expected.shape[:2], -1)
    with opened(path, **options) as reader:
        _check(reader, expected, level, count)


def _check(reader: TiffRegions, expected: np.ndarray, level: int, count: int) -> None:
    height, width, bands = expected.shape
    rng = np.random.default_rng(1)
    assert reader.facts.levels[level] == (height, width)
    assert (reader.facts.bands, reader.facts.dtype) == (bands, expected.dtype.name)
    windows = [(0, 0, 1, 1), (height - 1, width - 1, 1, 1)]
    for _ in range(count):
        top, left = int(rng.integers(height)), int(rng.integers(width))
        windows.append(
            (top, left, int(rng.integers(1, height - top + 1)), int(rng.integers(1, width - left + 1)))
        )
    step = reader.facts.row_steps[level]
    windows += [(top, 0, min(step, height - top), width) for top in range(0, height, max(step, 40))]
    for top, left, rows, columns in windows:
        found = reader.read(level, top, left, rows, columns)
        assert found.flags.c_contiguous and found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected[top : top + rows, left : left + columns])
