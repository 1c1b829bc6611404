"""Padding in files that were compressed with loss: its values are spread, and no exact value finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydicom.uid import JPEG2000, ExplicitVRLittleEndian, JPEGLSNearLossless

from halofeed.prep.geometry.scan import Scan
from tests.support.dicom_folders import open_folder, refusal
from tests.support.dicom_writer import image_dataset, save

SIDE = 64


def drawn(padding: int, least: int, most: int, dtype: type) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """A slice of a smooth body in noise with padding outside a circle, and where that is."""
    rows, columns = np.indices((SIDE, SIDE)) - (SIDE - 1) / 2
    radius = np.hypot(rows, columns)
    body = np.interp(radius, [0, 20, 24, 32], [most, most, least, least])
    body = body + np.random.default_rng(2).normal(0, 8, radius.shape)
    body = np.clip(body, least, most)
    outside = radius > SIDE / 2 - 2
    return np.where(outside, padding, np.rint(body)).astype(dtype), outside


def lossy(
    folder: Path, pixels: NDArray[Any], syntax: str, more: dict[str, Any], **options: Any
) -> NDArray[Any]:
    """Write three slices in a lossy transfer syntax; gives the stored values that the decoder makes of one."""
    for index in range(3):
        dataset = image_dataset(pixels, position=(0, 0, index), more=more, **options)
        path = save(dataset, folder / f"{index}.dcm")
        if syntax == JPEGLSNearLossless:
            dataset.compress(syntax, jls_error=6, encoding_plugin="pyjpegls", generate_instance_uid=False)
        elif syntax == JPEG2000:
            dataset.compress(syntax, j2k_cr=[12], encoding_plugin="pylibjpeg", generate_instance_uid=False)
        dataset.save_as(path, enforce_file_format=True)
        decoded = dataset.pixel_array
    return decoded


def padding_of(scan: Scan) -> tuple[str, str]:
    (finding,) = [one for one in scan.findings if one.name == "padding values"]
    return finding.treatment, finding.detail


TAGS: list[dict[str, Any]] = [
    {"PixelPaddingValue": -2000},
    {"PixelPaddingValue": -2000, "PixelPaddingRangeLimit": -2010},
    {},
]


@pytest.mark.parametrize("syntax", [JPEG2000, JPEGLSNearLossless])
@pytest.mark.parametrize("tags", TAGS, ids=["value", "range", "not declared"])
def test_no_value_below_air_is_left_of_spread_padding(
    tmp_path: Path, syntax: str, tags: dict[str, Any]
) -> None:
    pixels, outside = drawn(-2000, 24, 1100, np.int16)
    stored = lossy(tmp_path, pixels, syntax, tags)
    assert len(np.unique(stored[outside])) > 1, "the rim is not of one value"
    scan = open_folder(tmp_path)
    voxels = scan.read()[1, ..., 0]
    assert voxels.min() >= -1024
    deep = np.hypot(*(np.indices((SIDE, SIDE)) - (SIDE - 1) / 2)) > SIDE / 2 + 4
    assert (voxels[deep] == -1000).all()
    kept = stored.astype(int) - 1024 >= -1024
    np.testing.assert_array_equal(voxels[kept], (stored.astype(int) - 1024)[kept])
    treatment, detail = padding_of(scan)
    assert treatment == "corrected" and "below -1024 HU are set to -1000 HU" in detail
    assert refusal(tmp_path, padding="refuse").reason == "series has padding values"


def test_padding_spread_before_the_file_was_unpacked_is_known_by_the_lossy_mark(
    tmp_path: Path,
) -> None:
    pixels, outside = drawn(-2000, 24, 1100, np.int16)
    pixels[outside] += np.random.default_rng(1).integers(-900, 900, outside.sum()).astype(np.int16)
    more = {"PixelPaddingValue": -2000, "LossyImageCompression": "01"}
    lossy(tmp_path, pixels, ExplicitVRLittleEndian, more)
    voxels = open_folder(tmp_path).read()[0, ..., 0]
    assert (voxels[outside] == -1000).mean() > 0.95 and voxels.min() >= -1024


def test_high_padding_is_cut_halfway_to_the_densest_real_value(tmp_path: Path) -> None:
    pixels, _ = drawn(63536, 24, 1100, np.uint16)
    lossy(tmp_path, pixels, JPEG2000, {"PixelPaddingValue": 63536})
    scan = open_folder(tmp_path)
    assert scan.read().max() <= 32756 and "above 32756 HU" in padding_of(scan)[1]


def test_padding_that_lies_beside_air_is_left_and_the_finding_says_so(tmp_path: Path) -> None:
    pixels, _ = drawn(0, 24, 1100, np.uint16)
    stored = lossy(tmp_path, pixels, JPEG2000, {"PixelPaddingValue": 0})
    scan = open_folder(tmp_path)
    np.testing.assert_array_equal(scan.read()[0, ..., 0], stored.astype(int) - 1024)
    treatment, detail = padding_of(scan)
    assert treatment == "noted" and "left as they are: lossy compression has changed them" in detail


def test_padding_of_an_mr_is_found_by_the_tolerance_that_its_jpeg_ls_states(tmp_path: Path) -> None:
    pixels, outside = drawn(4000, 100, 900, np.uint16)
    stored = lossy(
        tmp_path, pixels, JPEGLSNearLossless, {"PixelPaddingValue": 4000}, modality="MR", rescale=None
    )
    assert (stored[outside] != 4000).any()
    scan = open_folder(tmp_path)
    np.testing.assert_array_equal(scan.read()[0, ..., 0], np.where(outside, 0, stored))
    assert padding_of(scan)[0] == "corrected"


def test_padding_of_an_mr_in_jpeg_2000_is_left_and_the_finding_says_so(tmp_path: Path) -> None:
    pixels, _ = drawn(4000, 100, 900, np.uint16)
    lossy(tmp_path, pixels, JPEG2000, {"PixelPaddingValue": 4000}, modality="MR", rescale=None)
    assert padding_of(open_folder(tmp_path))[0] == "noted"


def test_a_rim_of_another_value_than_the_declared_one_is_padding_as_well(tmp_path: Path) -> None:
    pixels, outside = drawn(-2048, 24, 1100, np.int16)
    lossy(tmp_path, pixels, ExplicitVRLittleEndian, {"PixelPaddingValue": -2000})
    scan = open_folder(tmp_path)
    voxels = scan.read()[0, ..., 0]
    np.testing.assert_array_equal(voxels, np.where(outside, -1000, pixels.astype(int) - 1024))
    assert len([one for one in scan.findings if one.name == "padding values"]) == 2
