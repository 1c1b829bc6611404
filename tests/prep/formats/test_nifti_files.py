"""Is every real file read as nibabel reads it, or refused with a true reason?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

from halofeed.prep.formats.volumes import VOLUME_EXTENSIONS, open_scan
from halofeed.prep.geometry.scan import Scan
from halofeed.prep.sources.files import LocalFiles
from halofeed.schemas.errors import SourceError

REFUSED = {
    "nibabel/nifti1.hdr": "the .img file with the voxels is missing",
    "niivue/complex_image.nii.gz": "voxels of this type are not supported",
    "reader-js/not-nifti.nii": "not a NIfTI or Analyze file",
}
FINDINGS = {"niivue/minimal.nii.gz": "no orientation given", "niivue/ct_perfusion.nii.gz": "color voxels"}
SHAPES = {
    "reader-js/5D_small.nii": (3, 2, 1, 3),
    "nibabel/example4d.nii.gz": (24, 96, 128, 2),
    "niivue/ct_perfusion.nii.gz": (15, 286, 256, 3),
    "reader-js/little.nii.gz": (21, 64, 64, 1),
}


def volumes(root: Path) -> list[str]:
    """Every NIfTI file of the data, by its path."""
    found = (
        path.relative_to(root).as_posix()
        for name in ("odd/nifti", "volumes")
        for path in (root / name).rglob("*")
    )
    return sorted(path for path in found if path.endswith(VOLUME_EXTENSIONS))


def by_name(table: Mapping[str, Any], path: str) -> Any:
    return table.get(path.removeprefix("odd/nifti/"))


def test_every_file_is_read_as_nibabel_reads_it_or_refused(test_data: Path) -> None:
    files, refused, paths = LocalFiles(test_data), {}, volumes(test_data)
    assert len(paths) > 60
    for path in paths:
        try:
            scan = open_scan(files, path)
            voxels = scan.read()
        except SourceError as error:
            refused[path.removeprefix("odd/nifti/")] = error.reason
            continue
        expected_finding = by_name(FINDINGS, path)
        assert [finding.name for finding in scan.findings] == [expected_finding] * bool(expected_finding)
        assert voxels.dtype == scan.dtype and voxels.shape == (*scan.grid.shape, scan.channels)
        assert voxels.shape == (by_name(SHAPES, path) or voxels.shape)
        image: Any = nibabel.load(test_data / path)
        np.testing.assert_allclose(scan.grid.affine, image.affine[:, [2, 1, 0, 3]], atol=1e-6)
        stored = np.asanyarray(image.dataobj)
        colors = stored.dtype.names
        stored = np.stack([stored[name] for name in colors], -1) if colors else image.get_fdata()
        expected = stored.reshape(*stored.shape[:3], -1).transpose(2, 1, 0, 3)
        np.testing.assert_array_equal(voxels, expected.astype(scan.dtype), err_msg=path)
        if scan.dtype != "float32":
            np.testing.assert_array_equal(voxels, expected, err_msg=path)
    assert refused == REFUSED


def sample_at(scan: Scan, points_mm: Any) -> Any:
    """The values at points in the patient, of the nearest voxels."""
    matrix = np.linalg.inv(scan.grid.affine)
    voxels = np.rint(points_mm @ matrix[:3, :3].T + matrix[:3, 3]).astype(int)
    assert (voxels >= 0).all() and (voxels < scan.grid.shape).all()
    return scan.read()[tuple(voxels.T)]


def test_one_scan_in_six_orientations_is_the_same_in_the_patient(test_data: Path) -> None:
    files = LocalFiles(test_data / "odd/nifti/niivue/nifti_space")
    scans = {path: open_scan(files, path) for path in files.sizes()}
    assert len(scans) == 6
    reference = scans["RAS.nii.gz"]
    inside = np.argwhere(np.ones(reference.grid.shape, bool))[::97]
    expected = sample_at(reference, reference.grid.to_mm(inside))
    assert len(np.unique(expected)) > 50
    for path, scan in scans.items():
        np.testing.assert_array_equal(sample_at(scan, reference.grid.to_mm(inside)), expected, err_msg=path)
