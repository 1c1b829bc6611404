"""A window in Hounsfield units is refused for other values unless the unit is overridden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halofeed.pipelines.convert import Conversion
from halofeed.schemas.errors import JobError, UsageError
from tests.support.conversions import run_convert
from tests.support.dicom_writer import write_volume
from tests.support.level_rows import others
from tests.support.small_scans import msd_document, write_json
from tests.support.volume_support import findings, save_nifti, stored_volumes, write_table

SHAPE = (4, 6, 8)
REFUSED = "the window is in HU and the values are not"
WINDOWS = ({"window_hu": (-160.0, 240.0)}, {"window": "abdomen"}, {"window": "40/400", "dtype": "int16"})


def draw(low: int, high: int) -> np.ndarray:
    return np.random.default_rng(0).integers(low, high, SHAPE).astype(np.int16)


def convert(folder: Path, layout: str, **options: Any) -> Conversion:
    sizes = {"depth": 4, "height": 6, "width": 8}
    given = {"layout": layout, "task": "segmentation", "missing_masks": "prediction", "max_rejected": 0}
    return run_convert(
        folder / "s", folder / f"out{len(list(folder.iterdir()))}", **given, **(sizes | options)
    )


def write_scan(folder: Path, array: np.ndarray) -> None:
    save_nifti(folder / "s/a.nii", array)
    write_table(folder / "s", [("a", "a.nii", "")])


@pytest.mark.parametrize(
    "header",
    [{"modality": "MR", "rescale": None}, {"rescale": None}, {"modality": "PT"}, {"rescale_type": "US"}],
    ids=lambda header: "-".join(map(str, header.values())),
)
def test_a_series_that_is_not_in_hounsfield_units_is_refused(tmp_path, header):
    write_volume(tmp_path / "s", draw(-900, 900), np.eye(4)[:, [2, 1, 0, 3]], **header)
    window = WINDOWS[0]
    with pytest.raises(JobError, match=REFUSED):
        convert(tmp_path, "dicom", **window)
    assert convert(tmp_path, "dicom", **window, window_unit="any").manifest.splits["train"].records == 1


def test_a_ct_in_hounsfield_units_is_windowed_without_a_finding(tmp_path):
    write_volume(tmp_path / "s", draw(0, 900), np.eye(4)[:, [2, 1, 0, 3]])
    assert not findings(convert(tmp_path, "dicom", window="abdomen"))


@pytest.mark.parametrize("window", WINDOWS)
def test_a_file_without_unit_is_refused_unless_its_values_speak_for_hounsfield_units(tmp_path, window):
    write_scan(tmp_path, draw(0, 900))
    with pytest.raises(JobError, match=REFUSED):
        convert(tmp_path, "csv", **window)
    assert stored_volumes(convert(tmp_path, "csv", **window, window_unit="any"))
    write_scan(tmp_path, draw(-900, 900))
    assert findings(convert(tmp_path, "csv", **window)) == {"values taken for Hounsfield units (noted)": 1}


def test_a_stored_ct_with_its_offset_of_1024_is_refused(tmp_path):
    write_scan(tmp_path, draw(-900, 900) + np.int16(1024))
    with pytest.raises(JobError, match=REFUSED):
        convert(tmp_path, "csv", window="abdomen")


def test_percentiles_and_no_window_need_no_unit(tmp_path):
    write_scan(tmp_path, draw(0, 900))
    assert not findings(convert(tmp_path, "csv", window_percentiles=(0.5, 99.5)))
    assert not findings(convert(tmp_path, "csv"))


def test_one_channel_of_several_that_is_not_in_hounsfield_units_is_refused(tmp_path):
    save_nifti(tmp_path / "s/a.nii", draw(-900, 900))
    save_nifti(tmp_path / "s/b.nii", draw(0, 900))
    write_table(tmp_path / "s", [("a", "a.nii;b.nii", "")])
    with pytest.raises(JobError, match=REFUSED):
        convert(tmp_path, "csv", window="abdomen", channels=2)


@pytest.mark.parametrize("name", others(["MRI", "T1w", "FLAIR", "PET"], ["T1w"]))
def test_a_data_set_that_calls_its_channel_mr_is_refused_before_any_scan_is_read(tmp_path, name):
    save_nifti(tmp_path / "s/imagesTs/a.nii.gz", draw(-900, 900))
    write_json(tmp_path / "s", msd_document(test=("a.nii.gz",), channels=(name,)))
    with pytest.raises(UsageError, match=f"Hounsfield units.*{name}.*--window-percentiles"):
        convert(tmp_path, "msd", window="abdomen")
    assert convert(tmp_path, "msd", window="abdomen", window_unit="any").manifest.splits
