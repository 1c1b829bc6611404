"""Siemens' mosaics: every slice at its place, as dcm2niix puts it, or listed where the header does not say it."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from typing import Any

import dcm2niix
import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray
from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage, RLELossless

from tests.support.dicom_folders import listed, open_listed
from tests.support.dicom_writer import image_dataset, save

ROWS, COLUMNS, SPACING, GAP = 24, 24, (2.0, 2.5), 3.6


def csa(count: int, normal: NDArray[np.float64], position: NDArray[np.float64]) -> bytes:
    """Siemens' image header of two tags that matter, and one between them."""
    tags = {
        "NumberOfImagesInMosaic": [str(count)],
        "ImaCoilString": [],
        "SliceNormalVector": [f"{value:.8f}" for value in normal],
        "SlicePosition_PCS": [f"{value:.8f}" for value in position],
    }
    data = b"SV10\x04\x03\x02\x01" + struct.pack("<II", len(tags), 77)
    for name, values in tags.items():
        written = [value.encode() + b"\0" for value in values] + [b""] * (6 - len(values))
        data += name.encode().ljust(64, b"\0") + struct.pack("<i4siii", len(values), b"US\0\0", 6, 6, 77)
        for item in written:
            data += struct.pack("<4i", len(item), len(item), 77, len(item))
            data += item.ljust(-(-len(item) // 4) * 4, b"\0")
    return data


def write_mosaic(
    path: Path,
    volume: NDArray[np.uint16],
    orientation: NDArray[np.float64],
    flip: int = 1,
    gap: float = GAP,
    syntax: str = ExplicitVRLittleEndian,
    **more: Any,
) -> None:
    """One file of a volume [slice, row, column], with the first pixel of its first slice at (10, -20, 30)."""
    count = len(volume)
    side = int(np.ceil(np.sqrt(count)))
    image = np.zeros((side * ROWS, side * COLUMNS), np.uint16)
    for index, plane in enumerate(volume):
        top, left = index // side * ROWS, index % side * COLUMNS
        image[top : top + ROWS, left : left + COLUMNS] = plane
    along_row, along_column = orientation
    normal = flip * np.cross(along_row, along_column)
    first = np.array([10.0, -20.0, 30.0])
    corner = first - along_row * SPACING[1] * (side - 1) * COLUMNS / 2
    corner = corner - along_column * SPACING[0] * (side - 1) * ROWS / 2
    dataset = image_dataset(
        image,
        position=corner,
        orientation=orientation.reshape(-1),
        spacing=SPACING,
        thickness=3.0,
        modality="MR",
        rescale=None,
        more={
            "ImageType": ["ORIGINAL", "PRIMARY", "M", "ND", "MOSAIC"],
            "Manufacturer": "SIEMENS",
            "SpacingBetweenSlices": gap,
            "RepetitionTime": 2000.0,
            "EchoTime": 30.0,
            **more,
        },
    )
    dataset.SOPClassUID = MRImageStorage
    block = dataset.private_block(0x0029, "SIEMENS CSA HEADER", create=True)
    block.add_new(0x08, "CS", "IMAGE NUM 4")
    block.add_new(0x10, "OB", csa(count, normal, first))
    save(dataset, path, syntax)


ORIENTATIONS = {
    "axial": [[1, 0, 0], [0, 1, 0]],
    "sagittal": [[0, 1, 0], [0, 0, -1]],
    "coronal": [[1, 0, 0], [0, 0, -1]],
    "oblique": [[1, 0, 0], [0, np.cos(0.4), np.sin(0.4)]],
}


def drawn(count: int, time: int = 0) -> NDArray[np.uint16]:
    """Slices in which every voxel has a value of its own."""
    return (np.arange(count * ROWS * COLUMNS).reshape(count, ROWS, COLUMNS) + 7 * time + 1).astype(np.uint16)


@pytest.mark.parametrize("flip", [1, -1])
@pytest.mark.parametrize("count", [9, 11, 16])
@pytest.mark.parametrize("name", ORIENTATIONS)
def test_the_slices_of_a_mosaic_lie_where_their_header_says(
    tmp_path: Path, name: str, count: int, flip: int
) -> None:
    orientation = np.array(ORIENTATIONS[name], np.float64)
    write_mosaic(tmp_path / "a.dcm", drawn(count), orientation, flip)
    (one,) = listed(tmp_path)
    assert one.problem is None and one.members == ("a.dcm",)
    scan = open_listed(tmp_path, one)
    voxels = scan.read()[..., 0]
    np.testing.assert_array_equal(voxels, drawn(count)[::flip])
    normal = flip * np.cross(*orientation)
    for index in (0, count - 1):
        at = scan.grid.to_mm(np.array([index if flip > 0 else count - 1 - index, 0, 0]))
        expected = np.array([10.0, -20.0, 30.0]) + index * GAP * normal
        np.testing.assert_allclose(at, expected * [-1, -1, 1], atol=1e-6)
    np.testing.assert_allclose(scan.grid.spacing_mm, (GAP, *SPACING), atol=1e-9)


@pytest.mark.parametrize("flip", [1, -1])
@pytest.mark.parametrize("name", ORIENTATIONS)
def test_a_mosaic_is_the_volume_that_dcm2niix_makes_of_it(tmp_path: Path, name: str, flip: int) -> None:
    orientation = np.array(ORIENTATIONS[name], np.float64)
    write_mosaic(tmp_path / "in" / "a.dcm", drawn(11), orientation, flip)
    out = tmp_path / "out"
    out.mkdir()
    command = [dcm2niix.bin, "-z", "n", "-b", "n", "-f", "v", "-o", str(out), str(tmp_path / "in")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (out / "v.nii").exists(), done.stdout
    theirs = nibabel.as_closest_canonical(nibabel.load(out / "v.nii"))
    (one,) = listed(tmp_path / "in")
    scan = open_listed(tmp_path / "in", one)
    image = nibabel.Nifti1Image(scan.read()[..., 0].astype(np.float64).T, scan.grid.affine[:, [2, 1, 0, 3]])
    ours = nibabel.as_closest_canonical(image)
    np.testing.assert_array_equal(ours.get_fdata(), theirs.get_fdata())
    np.testing.assert_allclose(ours.affine, theirs.affine, atol=1e-3)


def test_a_series_of_mosaics_is_one_volume_for_each_time(tmp_path: Path) -> None:
    orientation = np.array(ORIENTATIONS["axial"], np.float64)
    for time in range(4):
        more = {"AcquisitionNumber": time + 1, "InstanceNumber": time + 1}
        syntax = RLELossless if time % 2 else ExplicitVRLittleEndian
        write_mosaic(tmp_path / f"{9 - time}.dcm", drawn(9, time), orientation, syntax=syntax, **more)
    found = listed(tmp_path)
    assert [one.volume for one in found] == [(number, 4, "acquisition number") for number in (1, 2, 3, 4)]
    for time, one in enumerate(found):
        scan = open_listed(tmp_path, one)
        assert one.members == (f"{9 - time}.dcm",)
        np.testing.assert_array_equal(scan.read()[..., 0], drawn(9, time))


@pytest.mark.parametrize(
    "fault",
    [
        {"gap": 0.0},
        {"PrivateCreator": None},
        {"ImageOrientationPatient": [0, 1, 0, 1, 0, 0]},
    ],
)
def test_a_mosaic_whose_header_does_not_place_its_slices_is_listed_with_the_cure(
    tmp_path: Path, fault: dict[str, Any]
) -> None:
    orientation = np.array(ORIENTATIONS["oblique"], np.float64)
    write_mosaic(tmp_path / "whole.dcm", drawn(9), orientation)
    creator = fault.pop("PrivateCreator", "")
    write_mosaic(tmp_path / "mosaic.dcm", drawn(9), orientation, SeriesInstanceUID="1.9", **fault)
    if creator is None:
        data = (tmp_path / "mosaic.dcm").read_bytes()
        (tmp_path / "mosaic.dcm").write_bytes(data.replace(b"SIEMENS CSA HEADER", b"SIEMENS XYZ HEADER"))
    problems = {one.source: one.problem for one in listed(tmp_path)}
    assert problems.pop("mosaic.dcm", ("", "", ""))[2].startswith("mosaic; ")  # type: ignore[index]
    assert list(problems.values()) == [None]


def test_a_large_private_element_of_another_maker_harms_nothing(tmp_path: Path) -> None:
    for index in range(3):
        dataset = image_dataset(np.full((4, 5), index, np.uint16), position=(0, 0, index))
        dataset.private_block(0x0029, "SOMEBODY", create=True).add_new(0x10, "OB", b"x" * 100_000)
        save(dataset, tmp_path / f"{index}.dcm")
    (one,) = listed(tmp_path)
    assert one.problem is None and len(one.members) == 3
