"""The demo's CT scans are what it says, and it notices a wrong conversion."""

import shutil
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest

from halofeed import demo, demo_volumes
from halofeed.demo_volumes import SCANS, compare_scans, compare_twins, draw_scans
from halofeed.errors import JobError
from tests.support.conversions import run_convert


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "volumes"
    draw_scans(folder)
    return folder


def converted(source: Path, out: Path) -> str:
    run_convert(
        source, out, layout="csv", task="segmentation", label_map=str(source / "labels.txt"),
        depth=64, height=56, width=64, spacing_mm=(2.0, 2.0, 2.0),
    )  # fmt: skip
    return str(out / "set" / "1.0.0")


def altered(drawn: Path, folder: Path, change: Any) -> str:
    """The converted demo after `change` of patient-3's image and mask, each (voxels, affine) to the same."""
    shutil.copytree(drawn, folder / "volumes")
    for name in ("patient-3.nii.gz", "patient-3_organs.nii.gz"):
        path = folder / "volumes" / name
        image = nibabel.load(path)
        voxels, affine = change(np.asarray(image.dataobj), image.affine)
        nibabel.Nifti1Image(voxels, affine).to_filename(path)
    return converted(folder / "volumes", folder / "out")


@pytest.mark.parametrize("scan", SCANS, ids=lambda scan: scan.key)
def test_files_are_stored_along_the_axes_that_the_demo_names(drawn: Path, scan: Any) -> None:
    assert "".join(nibabel.aff2axcodes(nibabel.load(drawn / scan.mask).affine)) == scan.mask_orientation
    if scan.form == "NIfTI":
        axes = nibabel.load(drawn / scan.image).affine[:3, :3]
    else:
        slices = [pydicom.dcmread(path) for path in (drawn / scan.image).iterdir()]
        slices.sort(key=lambda one: int(one.SOPInstanceUID.rpartition(".")[2]))
        numbers = [one.InstanceNumber for one in slices]
        assert len(slices) > 30 and numbers != sorted(numbers)
        along_row, along_column = np.reshape(slices[0].ImageOrientationPatient, (2, 3)).astype(float)
        step = np.subtract(slices[1].ImagePositionPatient, slices[0].ImagePositionPatient)
        axes = np.stack([along_row, along_column, step], axis=1) * np.array([[-1], [-1], [1]])
    matrix = np.eye(4)
    matrix[:3, :3] = axes
    assert "".join(nibabel.aff2axcodes(matrix)) == scan.orientation


@pytest.mark.long
def test_the_demo_ends_with_a_report_and_every_organ_in_its_place(tmp_path, capfd):
    report = demo._run_volumes(tmp_path)
    assert report.stat().st_size > 10_000
    printed = capfd.readouterr().out
    for name in ("phantom", "phantom_2mm"):
        data = str(tmp_path / "data" / name / "1.0.0")
        assert f"$ halofeed verify {data}" in printed
        found = compare_scans(data)
        assert [entry.organ for entry in found] == ["liver", "spleen", "bone", "bladder"]
        assert all(entry.records == 6 and entry.off_mm <= 0.5 and entry.off_hu <= 1 for entry in found)
        assert all(str(entry) in printed for entry in found) and compare_twins(data) in printed
    assert printed.count("1 x geometry: mask lies on another grid than its image") == 2


MIRROR = np.diag([-1, 1, 1, 1])
ALTERED: dict[str, Any] = {
    r"liver is \d\d\.\d\d mm and .* HU from what was drawn": lambda voxels, affine: (voxels, MIRROR @ affine),
    r"liver is 0\.\d\d mm and 2\.\d\d HU": lambda voxels, affine: (
        voxels + 2 * (voxels.dtype == "i2"),
        affine,
    ),
    "other scans than were drawn: patient-3": lambda voxels, affine: (voxels[: 9 + voxels.itemsize], affine),
}


@pytest.mark.parametrize("message", ALTERED, ids=["mirrored", "a little too bright", "missing"])
def test_a_scan_that_differs_is_noticed(drawn: Path, tmp_path: Path, message: str) -> None:
    with pytest.raises(JobError, match=message):
        compare_scans(altered(drawn, tmp_path, ALTERED[message]))


def test_twins_that_differ_are_noticed(drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = converted(drawn, tmp_path)
    assert "stored as NIfTI RAS and as DICOM LPS" in compare_twins(data)
    monkeypatch.setattr(demo_volumes, "TWINS", ("patient-1a", "patient-2"))
    with pytest.raises(JobError, match="gave different records"):
        compare_twins(data)
