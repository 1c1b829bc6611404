"""MINC files of both versions against nibabel, with its own test files, and against values computed by hand."""

import gzip
import io
import warnings
from pathlib import Path

import h5py
import nibabel
import numpy as np
import pytest

from halofeed.errors import SourceError
from halofeed.prep.formats.volumes import open_mask
from tests.support.nifti_writer import MemoryFiles, open_nifti

FILES = {path.name: path for path in (Path(nibabel.__file__).parent / "tests" / "data").glob("*.mnc")}


@pytest.mark.parametrize("name", sorted(FILES))
def test_voxels_and_affine_are_those_that_nibabel_reads(name):
    data = FILES[name].read_bytes()
    with warnings.catch_warnings(action="ignore"):
        real = nibabel.load(FILES[name])
        expected = real.get_fdata()
    for scan in (open_nifti(data, "a.mnc"), open_nifti(gzip.compress(data), "a.MNC.gz")):
        voxels = np.moveaxis(expected, 0, -1) if expected.ndim == 4 else expected[..., None]  # time
        np.testing.assert_allclose(scan.read(), voxels, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(scan.grid.affine, real.affine, atol=1e-9)
    assert len(FILES) == 10


def edited(change) -> bytes:
    """A file of version 2 whose image, image-min, image-max and axis x were changed; its scale is that of a slice."""
    with h5py.File(data := io.BytesIO(FILES["small.mnc"].read_bytes()), "r+") as file:
        parts = [file[f"minc-2.0/image/0/{name}"] for name in ("image", "image-min", "image-max")]
        change(*parts, file["minc-2.0/dimensions/xspace"].attrs)
    return data.getvalue()


def test_scans_and_labels_are_those_computed_by_hand():
    def scale(image, least, most, axis):
        image[...] = 0
        image[:2, 1, :2] = [[5, 7], [2, 9]]
        image.attrs["valid_range"] = np.array([0.0, 255.0])
        least[...], most[...] = 0, 255
        most[1] = 3 * 255
        axis["step"], axis["start"], axis["direction_cosines"] = -2.0, 7.0, np.array([0.6, 0.8, 0.0])

    data = edited(scale)
    scan, labels = open_nifti(data, "a.mnc"), open_mask(MemoryFiles({"a.mnc": data}), "a.mnc", None).read()
    assert scan.read()[:3, 1, :2, 0].tolist() == [[5, 7], [6, 27], [0, 0]] == labels[:3, 1, :2].tolist()
    assert scan.grid.affine[:3, 2].tolist() == pytest.approx([-1.2, -1.6, 0])


def test_faulty_files_are_refused_with_the_reason():
    old = FILES["tiny.mnc"].read_bytes()
    for data, reason in (
        (old[:-2000], "voxels are missing"),
        (old[:60], "header is damaged"),
        (FILES["small.mnc"].read_bytes()[:900], "HDF5 file is damaged"),
        (b"\1\2\3", "not a MINC volume"),
        (old.replace(b"regular__", b"irregular"), "slices lie at irregular distances"),
        (old.replace(b"xspace", b"wspace"), "not three axes of space"),
        (edited(lambda image, *_: image.attrs.update(valid_range=[0.0, 1.0])), "valid range"),
        (edited(lambda *parts: parts[3].update(step=0.0)), "voxel size is zero"),
        (
            edited(lambda *parts: parts[3].update(direction_cosines=[1.0, 1, 0])),
            "header is damaged",
        ),
    ):
        with pytest.raises(SourceError, match=reason):
            open_nifti(data, "a.mnc").read()
