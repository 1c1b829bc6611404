"""Converting a scan takes at most the memory that its headers announce, and not much less."""

from __future__ import annotations

import gzip
from pathlib import Path

import nibabel
import numpy as np
import pytest

from halofeed.prep.convert.volume import VolumeConverter
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import LocalFiles
from halofeed.prep.sources.memory import TOO_MUCH, MemoryBudget
from halofeed.prep.sources.reference import Reference
from halofeed.schemas.errors import SourceError
from tests.support.dicom_mask_writer import saved, structure_set
from tests.support.level_rows import others
from tests.support.memory_probe import Measured, measure
from tests.support.volume_memory_cases import (
    CONVERSIONS,
    LABELS,
    MASKS,
    SMALL,
    convert_scan,
    draw,
    measured_mask,
    measured_scan,
    read_mask,
)

MOST = 2.5
FIXED = 90e6
"""Fixed part of the expectation: tables, and free memory of the allocator that the call reuses."""
QUICK = ("its own grid", "not compressed", "tiles", "DICOM")


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scans")


def check(measured: Measured, besides: int) -> None:
    planned, taken = measured.result, measured.peak_bytes
    assert isinstance(planned, int), planned
    shares = f"planned {planned / 1e6:.0f} MB, taken {taken / 1e6:.0f} MB"
    assert taken <= planned <= max(MOST * taken, besides + FIXED), shares


@pytest.mark.parametrize("conversion", others(CONVERSIONS, QUICK, pytest.mark.exhaustive))
def test_a_scan_takes_what_its_headers_let_expect(scans: Path, conversion: str) -> None:
    check(measured_scan(conversion, scans), 0)


@pytest.mark.parametrize("name", others(MASKS, ["fractions by run lengths"], pytest.mark.exhaustive))
def test_a_mask_takes_what_its_headers_let_expect(name: str, tmp_path: Path) -> None:
    measured = measured_mask(name, tmp_path)
    check(measured, 2 * measured.peak_bytes)  # the call reuses free memory of its parent process


# What is refused ------------------------------------------------------------------------------------------


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
        VolumeConverter(recipe=recipe, labels=LABELS).records(
            Reference(source="a.nii.gz", key="a"), LocalFiles(folder)
        )
    except SourceError as error:
        return f"{error.stage}: {error.reason} ({error.detail})"
    return "converted"


def test_a_bomb_is_rejected_by_its_header_before_anything_of_its_size_is_made(tmp_path: Path) -> None:
    (tmp_path / "a.nii.gz").write_bytes(bomb((2048, 1024, 1024)))
    assert (tmp_path / "a.nii.gz").stat().st_size < 5e6
    draw(tmp_path / "small", SMALL, "ct.nii.gz")
    measured = measure(convert_bomb, str(tmp_path), 4096)
    assert measured.result.startswith(f"decode: {TOO_MUCH} (about "), measured.result
    assert measured.peak_bytes < 60e6


def test_the_same_header_is_accepted_where_the_bound_is_higher(tmp_path: Path) -> None:
    (tmp_path / "a.nii.gz").write_bytes(bomb((256, 512, 512)))
    assert measure(convert_bomb, str(tmp_path), 400).result == "converted"
    assert TOO_MUCH in measure(convert_bomb, str(tmp_path), 150).result


def test_a_scan_waits_until_there_is_room(tmp_path: Path) -> None:
    draw(tmp_path, SMALL, "ct.nii.gz", "mask.nii.gz")
    share = MemoryBudget(1 << 40).share()
    convert_scan(str(tmp_path), "cropped", share.need)
    assert share.held == share.needed > 0


@pytest.mark.long
def test_one_long_number_among_a_million_takes_no_terabyte(tmp_path: Path) -> None:
    points = np.column_stack([np.random.default_rng(0).random((40_000, 2)) * 90 + 9, np.full(40_000, 1.5)])
    data = saved(structure_set({1: ("organ", [("CLOSED_PLANAR", points)])}))
    at = data.index(b"\\", len(data) // 2) + 1
    end = data.index(b"\\", at + 200_000)
    (tmp_path / "mask.dcm").write_bytes(data[:at] + b"1".rjust(end - at, b"0") + data[end:])
    measured = measure(read_mask, str(tmp_path / "mask.dcm"))
    assert (
        measured.result
        == "SourceError: read: DICOM file is damaged (element (3006,0050) holds what is not a number)"
    )
    assert measured.peak_bytes < 300e6
