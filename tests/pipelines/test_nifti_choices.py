"""Can the advice of each refusal be followed: with the option that it names, does the file convert as it says?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from halofeed.schemas.errors import JobError, UsageError
from tests.support.conversions import run_convert
from tests.support.small_scans import AFFINE, SHAPE, SIZE, image
from tests.support.volume_support import by_name, findings, rejected, save_nifti, write_table

TABLE = {"layout": "csv", "task": "segmentation", **SIZE}


def draw() -> np.ndarray:
    return np.asarray(image(), np.float32)


def table_of(root: Path, image: Path, label: Path | None = None) -> Path:
    return write_table(root, [("a", image.name, "" if label is None else label.name)])


def only(done: Any) -> Any:
    (record,) = by_name(done).values()
    return record


def test_voxels_that_are_no_number_are_set_by_the_option_that_the_refusal_names(tmp_path: Path) -> None:
    values = draw()
    values[1, 2, 3], values[4, 0, 0] = np.nan, np.inf
    table = table_of(tmp_path / "s", save_nifti(tmp_path / "s/a.nii", values, AFFINE))
    with pytest.raises(JobError, match=r"voxels that are no number .*--non-finite-value, such as -1024"):
        run_convert(table, tmp_path / "a", **TABLE)
    done = run_convert(table, tmp_path / "b", non_finite_value=-1024.0, **TABLE)
    image = only(done).image[..., 0]
    assert image[1, 2, 3] == image[4, 0, 0] == -1024
    assert np.count_nonzero(image != draw()) == 2
    assert findings(done) == {"voxels that are no number (corrected)": 1}
    with pytest.raises(UsageError, match=r"--non-finite-value nan: expected a number"):
        run_convert(table, tmp_path / "c", non_finite_value=float("nan"), **TABLE)


def test_label_voxels_that_are_no_number_are_background_by_choice(tmp_path: Path) -> None:
    label = np.random.default_rng(1).integers(0, 3, SHAPE).astype(np.float32)
    expected = label.copy()
    label[0, :2], expected[0, :2] = np.nan, 0
    image = save_nifti(tmp_path / "s/a.nii", draw(), AFFINE)
    table = table_of(tmp_path / "s", image, save_nifti(tmp_path / "s/m.nii", label, AFFINE))
    with pytest.raises(JobError, match=r"not whole numbers .*--non-finite-labels background"):
        run_convert(table, tmp_path / "a", **TABLE)
    done = run_convert(table, tmp_path / "b", non_finite_labels="background", **TABLE)
    assert np.array_equal(only(done).label, expected)
    assert findings(done) == {"mask voxels that are no number (corrected)": 1}


def test_of_two_affines_that_disagree_the_user_chooses(tmp_path: Path) -> None:
    path = save_nifti(tmp_path / "s/a.nii", draw(), AFFINE)
    stored = nibabel.load(path)
    moved = stored.affine.copy()
    moved[0, 3] += 40
    stored.header.set_qform(moved, 1)
    stored.header.set_sform(stored.affine, 1)
    nibabel.save(nibabel.Nifti1Image(np.asarray(stored.dataobj).copy(), None, stored.header), path)
    table = table_of(tmp_path / "s", path)
    done = run_convert(table, tmp_path / "a", **TABLE)
    assert findings(done) == {"sform and qform disagree (noted)": 1}
    assert only(done).grid.affine[0, 3] == AFFINE[0, 3]
    done = run_convert(table, tmp_path / "b", sform_qform="qform", **TABLE)
    assert only(done).grid.affine[0, 3] == AFFINE[0, 3] + 40
    with pytest.raises(JobError, match=r"disagree .*--sform-qform sform or qform says which counts"):
        run_convert(table, tmp_path / "c", sform_qform="refuse", **TABLE)


def test_of_a_file_without_orientation_the_user_says_how_it_lies(tmp_path: Path) -> None:
    path = save_nifti(tmp_path / "s/a.nii", draw(), AFFINE)
    stored = nibabel.load(path)
    stored.header["sform_code"] = stored.header["qform_code"] = 0
    nibabel.save(nibabel.Nifti1Image(np.asarray(stored.dataobj).copy(), None, stored.header), path)
    table = table_of(tmp_path / "s", path)
    done = run_convert(table, tmp_path / "a", **TABLE)
    assert findings(done) == {"no orientation given (noted)": 1}
    assert np.array_equal(only(done).image[..., 0], draw()[:, :, ::-1])
    done = run_convert(table, tmp_path / "b", unoriented="neurological", **TABLE)
    assert np.array_equal(only(done).image[..., 0], draw())
    assert findings(done) == {"no orientation given (noted)": 1}
    with pytest.raises(JobError, match=r"how it lies .*--unoriented radiological or neurological"):
        run_convert(table, tmp_path / "c", unoriented="refuse", **TABLE)


def test_more_voxels_than_allowed_are_allowed_by_the_option_that_is_named(tmp_path: Path) -> None:
    table = table_of(tmp_path / "s", save_nifti(tmp_path / "s/a.nii", draw(), AFFINE))
    with pytest.raises(JobError, match=r"more voxels than allowed .*--max-voxels allows more"):
        run_convert(table, tmp_path / "a", max_voxels=359, **TABLE)
    assert not rejected(run_convert(table, tmp_path / "b", max_voxels=360, **TABLE))


@pytest.mark.parametrize(("flip", "advice"), [(False, "--mask-grid voxels"), (True, "--mask-grid resample")])
def test_a_mask_whose_axes_run_otherwise_is_not_to_be_taken_voxel_for_voxel(
    tmp_path: Path, flip: bool, advice: str
) -> None:
    affine = np.array(AFFINE, float)
    affine[:, 0] *= -1 if flip else 1
    affine[:3, 3] += 3.3
    image = save_nifti(tmp_path / "s/a.nii", draw(), AFFINE)
    label = save_nifti(tmp_path / "s/b.nii", (draw() > 0).astype(np.uint8), affine)
    with pytest.raises(JobError, match=advice):
        run_convert(table_of(tmp_path / "s", image, label), tmp_path / "a", **TABLE)
