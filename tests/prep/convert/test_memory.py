"""Converting a picture or a scan takes at most the memory that its headers announce, and not much less."""

import gzip
from pathlib import Path

import nibabel
import numpy as np
import pytest

from halofeed.errors import SourceError
from halofeed.prep.convert.volume_records import VolumeConverter
from halofeed.prep.geometry.resize import plan_fixed_shape
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.example import SourceExample
from halofeed.prep.sources.files import LocalFiles
from halofeed.prep.voxels.masks import stored_mask
from halofeed.system.memory import TOO_MUCH_MEMORY, MemoryBudget
from tests.support import volume_memory_cases as cases
from tests.support.dicom_mask_writer import saved, structure_set
from tests.support.level_rows import others
from tests.support.memory_cases import PICTURES, RECIPES, measured_picture
from tests.support.memory_probe import Measured, measure
from tests.support.tile_memory_cases import FILES, TILE_RECIPES, measured_tiles

SIDE = 4000
MOST = 2.5
"""How many times what it takes a picture may be expected to take."""

QUICK = (*("PNG RGB", "JPEG", "GIF", "TIFF JPEG"),)
FEW = ("PNG RGBA", "PNG 16 bit RGBA", "PNG palette", "JPEG", "WebP", "BMP", "TIFF 16 bit RGB", "TIFF LZW")


def check(name: str, recipe: str, folder: Path) -> None:
    planned, measured = measured_picture(name, SIDE, RECIPES[recipe], folder)
    assert isinstance(measured.result, int), measured.result
    shares = f"planned {planned / 1e6:.0f} MB, taken {measured.peak_bytes / 1e6:.0f} MB"
    assert measured.peak_bytes <= planned, shares
    # Of a small take the fixed margin is the most.
    assert planned <= max(MOST * measured.peak_bytes, measured.peak_bytes + 60e6), shares


@pytest.mark.parametrize("name", others(PICTURES, QUICK, pytest.mark.exhaustive))
def test_a_picture_takes_what_its_header_lets_expect(name, tmp_path):
    check(name, "small", tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if recipe != "small"])
def test_so_it_does_whatever_is_made_of_it(name, recipe, tmp_path):
    check(name, recipe, tmp_path)


TILED = [(name, recipe) for name in FILES for recipe in TILE_RECIPES]
QUICK_TILED = (("TIFF tiles", "tiles"), ("PNG", "narrow"), ("TIFF nodata", "shrunk"))
MOST_TILED = 5
"""The same of tiles: bands share blocks of 1024 rows, and pictures that are decoded at once, more than is counted."""


@pytest.mark.parametrize(("name", "recipe"), others(TILED, QUICK_TILED, pytest.mark.exhaustive))
def test_tiles_of_a_picture_take_what_its_header_lets_expect(name, recipe, tmp_path):
    measured = measured_tiles(name, TILE_RECIPES[recipe], tmp_path, threads=2)
    planned, taken = measured.result, measured.peak_bytes
    assert isinstance(planned, int), planned
    shares = f"planned {planned / 1e6:.0f} MB, taken {taken / 1e6:.0f} MB"
    # Of a small take the records that are held, and the fixed margin, are the most.
    assert taken <= planned <= max(MOST_TILED * taken, taken + 100e6), shares


@pytest.mark.long
def test_masks_take_no_more_than_expected_however_many(tmp_path):
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
def test_a_polygon_of_two_million_points_takes_megabytes():
    measured = measure(draw, 2_000_000, 1000, warm=(100, 100))
    assert measured.result == pytest.approx(np.pi * 900**2 / 12, rel=0.01)
    assert measured.peak_bytes < 600e6


def run_lengths(side: int) -> int:
    """Run lengths of a picture of 13,000 rows and columns, at so many of them."""
    counts = [13_000 * 5_000, 13_000 * 3_000, 13_000 * 5_000]
    mask = stored_mask({"size": [13_000] * 2, "counts": counts}, plan_fixed_shape((13_000,) * 2, side, side))
    return int(mask.sum())


def test_run_lengths_are_not_written_out_for_a_picture_that_becomes_small():
    measured = measure(run_lengths, 650, warm=(10,))
    assert measured.result == 650 * 150
    assert measured.peak_bytes < 40e6


FIXED = 90e6
"""Fixed part of the expectation: tables, and free memory of the allocator that the call reuses."""
QUICK_SCANS = ("its own grid", "not compressed", "tiles", "DICOM")


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scans")


def check_scan(measured: Measured, besides: int) -> None:
    planned, taken = measured.result, measured.peak_bytes
    assert isinstance(planned, int), planned
    shares = f"planned {planned / 1e6:.0f} MB, taken {taken / 1e6:.0f} MB"
    assert taken <= planned <= max(MOST * taken, besides + FIXED), shares


@pytest.mark.parametrize("conversion", others(cases.CONVERSIONS, QUICK_SCANS, pytest.mark.exhaustive))
def test_a_scan_takes_what_its_headers_let_expect(scans, conversion):
    check_scan(cases.measured_scan(conversion, scans), 0)


@pytest.mark.parametrize("name", others(cases.MASKS, ["fractions by run lengths"], pytest.mark.exhaustive))
def test_a_mask_takes_what_its_headers_let_expect(name, tmp_path):
    measured = cases.measured_mask(name, tmp_path)
    check_scan(measured, 2 * measured.peak_bytes)  # the call reuses free memory of its parent process


def bomb(shape: tuple[int, int, int]) -> bytes:
    """A .nii.gz of zeros, a thousandth of its voxels: members of 64 MiB each."""
    header = nibabel.Nifti1Image(np.zeros((1, 1, 1), np.int16), np.eye(4)).header
    header.set_data_shape(shape)
    header["vox_offset"] = 352
    member = gzip.compress(bytes(64 << 20))
    return gzip.compress(header.binaryblock + bytes(4)) + member * (2 * int(np.prod(shape)) // (64 << 20))


def convert_bomb(folder: str, mebibytes: int) -> str:
    recipe = Recipe(layout="csv", depth=8, height=8, width=8, max_memory=mebibytes)
    try:
        VolumeConverter(recipe=recipe, labels=cases.LABELS).records(
            SourceExample(source="a.nii.gz", key="a"), LocalFiles(folder)
        )
    except SourceError as error:
        return f"{error.stage}: {error.reason} ({error.detail})"
    return "converted"


def test_a_bomb_is_rejected_by_its_header_unless_the_bound_is_higher_and_a_scan_waits_for_room(tmp_path):
    (tmp_path / "a.nii.gz").write_bytes(bomb((2048, 1024, 1024)))
    assert (tmp_path / "a.nii.gz").stat().st_size < 5e6
    cases.draw(tmp_path / "small", cases.SMALL, "ct.nii.gz")
    measured = measure(convert_bomb, str(tmp_path), 4096)
    assert measured.result.startswith(f"decode: {TOO_MUCH_MEMORY} (about "), measured.result
    assert measured.peak_bytes < 60e6
    (tmp_path / "a.nii.gz").write_bytes(bomb((256, 512, 512)))
    assert measure(convert_bomb, str(tmp_path), 400).result == "converted"
    assert TOO_MUCH_MEMORY in measure(convert_bomb, str(tmp_path), 150).result
    cases.draw(tmp_path / "b", cases.SMALL, "ct.nii.gz", "mask.nii.gz")
    share = MemoryBudget(1 << 40).share()
    cases.convert_scan(str(tmp_path / "b"), "cropped", share.reserve)
    assert share.held == share.needed > 0


@pytest.mark.long
def test_one_long_number_among_a_million_takes_no_terabyte(tmp_path):
    points = np.column_stack([np.random.default_rng(0).random((40_000, 2)) * 90 + 9, np.full(40_000, 1.5)])
    data = saved(structure_set({1: ("organ", [("CLOSED_PLANAR", points)])}))
    at = data.index(b"\\", len(data) // 2) + 1
    end = data.index(b"\\", at + 200_000)
    (tmp_path / "mask.dcm").write_bytes(data[:at] + b"1".rjust(end - at, b"0") + data[end:])
    measured = measure(cases.read_mask, str(tmp_path / "mask.dcm"))
    assert (
        measured.result
        == "SourceError: read: DICOM file is damaged (element (3006,0050) is not finite numbers)"
    )
    assert measured.peak_bytes < 300e6
