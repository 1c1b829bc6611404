"""FreeSurfer volumes, compared with what nibabel reads."""

from __future__ import annotations

import gzip
from typing import Any

import nibabel
import numpy as np
import pytest

from halofeed.schemas.errors import SourceError
from tests.support.nifti_writer import AFFINE, open_nifti

ARRAY = np.arange(4 * 3 * 5).reshape(4, 3, 5)


def write(array: np.ndarray, at: int = 0, put: bytes = b"") -> bytes:
    """A file as nibabel writes it, with other bytes put at one place."""
    data = bytes(nibabel.MGHImage(array, AFFINE).to_bytes())
    return data[:at] + put + data[at + len(put) :]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.float32])
@pytest.mark.parametrize("name", ["a.mgh", "a.mgz", "b.MGZ"])
@pytest.mark.parametrize("frames", [1, 2])
def test_voxels_and_affine_are_those_that_nibabel_reads(name: str, dtype: Any, frames: int) -> None:
    array = np.stack([ARRAY, ARRAY + 60][:frames], axis=3).astype(dtype)
    data = write(array.squeeze()) + b"names of structures " * 500
    scan = open_nifti(gzip.compress(data) if name.lower().endswith("z") else data, name)
    assert scan.grid.shape == (5, 3, 4) and scan.channels == frames and scan.findings == ()
    np.testing.assert_array_equal(scan.read(), array.transpose(2, 1, 0, 3))
    np.testing.assert_allclose(scan.grid.affine, AFFINE[:, [2, 1, 0, 3]], atol=1e-4)


def test_a_header_without_a_good_orientation_is_noted_or_refused() -> None:
    data = write(ARRAY.astype(np.uint8), 28, b"\0\0")
    scan = open_nifti(data, "a.mgh")
    assert [finding.name for finding in scan.findings] == ["no orientation given"]
    assert scan.grid.affine[0].tolist() == [0, 0, -1, 2]
    assert open_nifti(data, "a.mgh", unoriented="neurological").grid.affine[0].tolist() == [0, 0, 1, -2]
    with pytest.raises(SourceError, match="--unoriented"):
        open_nifti(data, "a.mgh", unoriented="refuse")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a FreeSurfer volume"),
        (write(ARRAY.astype(np.uint8))[:200], "file is truncated"),
        (write(ARRAY.astype(np.uint8))[:300], "voxels are missing"),
        (write(ARRAY.astype(np.uint8), 20, b"\0\0\0\6"), "voxels of this type are not supported"),
        (write(ARRAY.astype(np.uint8), 8, bytes(4)), "header is damaged"),
        (write(ARRAY.astype(np.uint8), 30, bytes(4)), "voxel size is zero"),
    ],
)
def test_a_damaged_file_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(SourceError) as caught:
        open_nifti(data, "a.mgh").read()
    assert caught.value.reason == reason
