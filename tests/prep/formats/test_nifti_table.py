"""Does every path go to the reader of its kind?"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from halofeed.prep.formats.volumes import open_mask, open_scan
from halofeed.schemas.errors import SourceError
from tests.support.nifti_writer import MemoryFiles, write_nifti

VOLUME = write_nifti(np.ones((2, 3, 4), np.uint8))
DICOM = bytes(128) + b"DICM" + bytes(300)
FILES = MemoryFiles(
    {
        "a.nii": VOLUME,
        "B.NII.GZ": VOLUME,
        "nameless": VOLUME,
        "series/1": DICOM,
        "series/deep/2": DICOM,
        "mask/only": DICOM,
        "a.mnc": bytes(8),
        "notes": b"words",
        "empty": b"",
    }
)


@pytest.mark.parametrize("path", ["a.nii", "B.NII.GZ", "nameless"])
def test_a_nifti_file_is_known_by_its_name_or_content(path: str) -> None:
    scan = open_scan(FILES, path)
    assert scan.grid.shape == (4, 3, 2) and scan.files == (path,)
    assert open_mask(FILES, path, scan.grid).read().shape == (4, 3, 2)


def test_a_folder_of_one_dicom_file_is_a_mask_and_of_several_none() -> None:
    grid = open_scan(FILES, "a.nii").grid
    with pytest.raises(SourceError, match="file is truncated"):  # by the reader of masks
        open_mask(FILES, "mask", grid)
    with pytest.raises(SourceError, match="a mask is one file"):
        open_mask(FILES, "series", grid)


@pytest.mark.parametrize(
    ("path", "reason", "detail"),
    [
        ("a.mnc", "not a volume format that is read", "a MINC volume; read are .nii"),
        ("notes", "not a volume format that is read", "begins with 77 6f 72 64 73"),
        ("empty", "not a volume format that is read", "begins with nothing"),
        ("absent", "file cannot be read", "no such file"),
        ("absent.nii", "file cannot be read", "no such file"),
    ],
)
def test_what_is_not_read_says_what_it_is(path: str, reason: str, detail: str) -> None:
    with pytest.raises(SourceError, match=detail) as caught:
        open_scan(FILES, path)
    assert (caught.value.stage, caught.value.reason) == ("read", reason)


def test_the_table_loads_no_reader_before_it_is_needed() -> None:
    heavy = {"nibabel", "pydicom", "isal"}
    code = f"import halofeed.prep.formats.volumes, sys\nprint({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
