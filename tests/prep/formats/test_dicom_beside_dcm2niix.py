"""Our DICOM reader beside dcm2niix on real series and on pydicom's own files: equal, or the difference explained."""

import gzip
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import dcm2niix
import nibabel
import numpy as np
import pydicom.data
import pytest
from numpy.typing import NDArray

from halofeed.errors import SourceError
from halofeed.prep.formats.dicom.series import group_series, open_series
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.geometry.scan import Scan
from halofeed.prep.sources.files import LocalFiles

pytestmark = pytest.mark.long

PYDICOM = Path(pydicom.data.__file__).parent / "test_files"
POLICY = SeriesPolicy(min_slices=1)
Volume = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Voxels and affine, turned so that the axes run to the right, anterior and superior."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One series: what each of the two makes of it."""

    folder: Path
    members: tuple[str, ...]
    volume: tuple[int, int, str] | None
    scratch: Path

    def open(self) -> Scan:
        return open_series(LocalFiles(self.folder), self.members, POLICY, self.volume)

    def ours(self) -> Volume:
        return volume_of(self.open())

    def theirs(self, merge: str = "y") -> list[Volume]:
        """dcm2niix's volumes by name; it is given the files of the series alone, unpacked."""
        given, out = self.scratch / "given", self.scratch / "out"
        given.mkdir()
        out.mkdir()
        for number, member in enumerate(self.members):
            data = (self.folder / member).read_bytes()
            data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
            (given / f"{number:04d}.dcm").write_bytes(data)
        options = ["-z", "n", "-b", "n", "-m", merge, "-f", "v", "-o", str(out)]
        subprocess.run([dcm2niix.bin, *options, str(given)], capture_output=True, check=False)
        # Overlays come as volumes of their own, and stacks with unequal gaps once more, resampled.
        paths = sorted(out.glob("*.nii"))
        images = [nibabel.load(path) for path in paths if "ROI" not in path.name and "Eq" not in path.name]
        return [turned(image.get_fdata(), image.affine) for image in images]


def volume_of(scan: Scan) -> Volume:
    return turned(scan.read()[..., 0].transpose(2, 1, 0), scan.grid.affine[:, [2, 1, 0, 3]])


def turned(voxels: NDArray[np.floating], affine: NDArray[np.floating]) -> Volume:
    image = nibabel.as_closest_canonical(nibabel.Nifti1Image(voxels.astype(np.float64), affine))
    return image.get_fdata(), image.affine


def same(case: Case) -> None:
    (theirs,) = case.theirs()
    voxels, affine = case.ours()
    np.testing.assert_array_equal(voxels, theirs[0])
    np.testing.assert_allclose(affine, theirs[1], atol=1e-4)


def same_but_padding(case: Case) -> None:
    (theirs,) = case.theirs()
    voxels, _ = case.ours()
    padding = theirs[0] < -1024
    assert padding.any() and (voxels[padding] == -1000).all()
    np.testing.assert_array_equal(voxels[~padding], theirs[0][~padding])


def same_as_pydicom(case: Case) -> None:
    (theirs,) = case.theirs()
    assert theirs[0].min() >= 0, "dcm2niix has no negative Hounsfield units"
    (name,) = case.members
    dataset = pydicom.dcmread(case.folder / name)
    expected = dataset.pixel_array.astype(np.float64) * dataset.RescaleSlope + dataset.RescaleIntercept
    expected[expected == -2000] = -1000
    np.testing.assert_array_equal(case.open().read()[0, ..., 0], expected)


def same_slices(case: Case) -> None:
    (theirs,) = case.theirs()
    files = LocalFiles(case.folder)
    slices = [volume_of(open_series(files, [name], POLICY)) for name in case.members]
    slices.sort(key=lambda volume: volume[1][2, 3])
    assert theirs[0].shape[2] == len(slices)
    for at, (voxels, _) in enumerate(slices):
        expected = theirs[0][:, :, at]
        expected = np.where(expected < -1024, -1000, expected)
        np.testing.assert_array_equal(voxels[..., 0], expected)


def refused(reason: str) -> Callable[[Case], None]:
    def check(case: Case) -> None:
        with pytest.raises(SourceError, match=reason):
            case.open().read()

    return check


DIFFERENCES = {
    "ge_tilt_variable_spacing": (
        "gaps of 1 to 35 mm: dcm2niix stacks the slices as if they were even, we resample between them; the stored "
        "slices are the same, but for padding",
        same_slices,
    ),
    "693_J2KI.dcm": (
        "padding of -3024 HU that JPEG 2000 has spread from -3995: dcm2niix keeps it, we make it air; it takes the "
        "thickness of the only slice from the spacing between slices, we from the slice's thickness",
        same_but_padding,
    ),
    "J2K_pixelrep_mismatch.dcm": (
        "the JPEG 2000 stream says unsigned and the header signed: dcm2niix takes the stream's word and has no value "
        "below 0, we and pydicom the header's; padding of -2000 HU becomes air",
        same_as_pydicom,
    ),
    "MR_truncated.dcm": (
        "62 bytes of pixels are missing: both refuse it",
        refused("pixel data is truncated"),
    ),
    "dicomdirtests/77654033/CT2": (
        "one slice lies 202 mm from the three others: dcm2niix stacks all four, we refuse",
        refused("slices are missing"),
    ),
}
"""By the name of a file or folder: why the two differ, and what is checked in place of equality."""

NO_SCANS = {
    "no image",  # character sets, plans, doses without pixels
    *("color image", "computed radiography image", "rt image", "ultrasound image"),
    *("ultrasound multi-frame image", "image without position"),
    *("dose", "plan", "rt ion plan", "report", "segmentation", "structure set", "waveform"),
    *("DICOMDIR", "localizer", "survey by its description", "secondary capture"),
    "not DICOM",  # READMEs, dumps, JSON
    "damaged",  # two files of a few elements that pydicom tests its own reader with
}
"""What pydicom's other files are; dcm2niix makes stacks without a place of some of them."""


def cases_of(folder, names):
    series, apart = group_series(LocalFiles(folder), names, POLICY)
    assert {one.kind for one in apart} <= NO_SCANS
    for one in series:
        yield folder, one.members, one.volume


def check(case: Case) -> None:
    common = Path(case.members[0]).parent.as_posix() if "/" in case.members[0] else case.members[0]
    name = case.folder.name if case.folder != PYDICOM else common
    _, compare = DIFFERENCES.get(name, ("", same))
    compare(case)


REAL = ["ge_tilt_variable_spacing", "torchio_17", "totalsegmentator_jpeg2000"]


@pytest.mark.parametrize("name", REAL)
def test_real_series_are_those_of_dcm2niix_or_the_difference_is_explained(test_data, tmp_path, name):
    folder = test_data / "dicom" / name
    assert {path.name for path in folder.parent.iterdir() if path.is_dir()} == set(REAL)
    ((_, members, volume),) = cases_of(folder, list(LocalFiles(folder).sizes()))
    check(Case(folder=folder, members=members, volume=volume, scratch=tmp_path))


def test_each_of_pydicoms_files_and_folders_is_that_of_dcm2niix_or_the_difference_is_explained(tmp_path):
    names = [name for name in LocalFiles(PYDICOM).sizes() if "/" not in name]
    compared = []
    for name in names:
        for folder, members, volume in cases_of(PYDICOM, [name]):
            (scratch := tmp_path / name).mkdir()
            check(Case(folder=folder, members=members, volume=volume, scratch=scratch))
            compared.append(name)
    assert {"CT_small.dcm", "MR_small_RLE.dcm", "zipMR.gz", "693_J2KI.dcm"} <= set(compared)
    assert len(compared) >= 14
    names = [name for name in LocalFiles(PYDICOM).sizes() if "/" in name]
    found = list(cases_of(PYDICOM, names))
    for number, (folder, members, volume) in enumerate(found):
        (scratch := tmp_path / str(number)).mkdir()
        check(Case(folder=folder, members=members, volume=volume, scratch=scratch))
    assert len(found) >= 15
