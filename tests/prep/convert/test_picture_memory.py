"""Converting a picture takes at most the memory that its header announces, and not much less."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from halofeed.prep.geometry.resize import plan_fixed_shape
from halofeed.prep.voxels.masks import stored_mask
from tests.support.level_rows import others
from tests.support.memory_cases import PICTURES, RECIPES, measured_picture
from tests.support.memory_probe import measure

SIDE = 4000
MOST = 2.5
"""How many times what it takes a picture may be expected to take."""

QUICK = (*("PNG RGB", "JPEG", "GIF", "TIFF JPEG"),)
FEW = [
    (name, recipe)
    for name in (
        *("PNG RGBA", "PNG 16 bit RGBA", "PNG palette", "JPEG"),
        *("WebP", "BMP", "TIFF 16 bit RGB", "TIFF LZW"),
    )
    for recipe in RECIPES
    if recipe != "small"
]


def check(name: str, recipe: str, folder: Path) -> None:
    planned, measured = measured_picture(name, SIDE, RECIPES[recipe], folder)
    assert isinstance(measured.result, int), measured.result
    shares = f"planned {planned / 1e6:.0f} MB, taken {measured.peak_bytes / 1e6:.0f} MB"
    assert measured.peak_bytes <= planned, shares
    # Of a small take the fixed margin is the most.
    assert planned <= max(MOST * measured.peak_bytes, measured.peak_bytes + 60e6), shares


@pytest.mark.parametrize("name", others(PICTURES, QUICK, pytest.mark.exhaustive))
def test_a_picture_takes_what_its_header_lets_expect(name: str, tmp_path: Path) -> None:
    check(name, "small", tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "recipe"), FEW)
def test_so_it_does_whatever_is_made_of_it(name: str, recipe: str, tmp_path: Path) -> None:
    check(name, recipe, tmp_path)


@pytest.mark.long
def test_masks_take_no_more_than_expected_however_many(tmp_path: Path) -> None:
    options = {"height": 900, "width": 900, "masks": True}
    planned, measured = measured_picture("PNG RGB", 3200, options, tmp_path, polygons=200)
    assert isinstance(measured.result, int), measured.result
    assert measured.peak_bytes <= planned <= MOST * measured.peak_bytes


def draw(points: int, rows: int) -> int:
    """A polygon of so many points about a circle, on a picture of 3000 x 4000, at so many rows."""
    angles = np.linspace(0, 2 * np.pi, points)
    noise = np.random.default_rng(0).random((2, points))
    flat = np.stack([2000 + 900 * np.cos(angles), 1500 + 900 * np.sin(angles)]) + noise
    mask = stored_mask([flat.T.ravel().tolist()], plan_fixed_shape((3000, 4000), rows, rows))
    return int(mask.sum())


@pytest.mark.long
def test_a_polygon_of_two_million_points_takes_megabytes() -> None:
    measured = measure(draw, 2_000_000, 1000, warm=(100, 100))
    assert measured.result == pytest.approx(np.pi * 900**2 / 12, rel=0.01)
    assert measured.peak_bytes < 600e6


def run_lengths(side: int) -> int:
    """Run lengths of a picture of 13,000 rows and columns, at so many of them."""
    counts = [13_000 * 5_000, 13_000 * 3_000, 13_000 * 5_000]
    mask = stored_mask(
        {"size": [13_000, 13_000], "counts": counts}, plan_fixed_shape((13_000, 13_000), side, side)
    )
    return int(mask.sum())


def test_run_lengths_are_not_written_out_for_a_picture_that_becomes_small() -> None:
    measured = measure(run_lengths, 650, warm=(10,))
    assert measured.result == 650 * 150
    assert measured.peak_bytes < 40e6
