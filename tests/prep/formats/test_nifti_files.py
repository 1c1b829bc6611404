"""Real files of volumes are read as nibabel reads them, and every path goes to the reader of its kind."""

import gzip
import io
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import nibabel
import numpy as np
import pytest

from halofeed.errors import SourceError
from halofeed.prep.formats.volume_formats import READABLE_EXTENSIONS, open_mask, open_scan
from halofeed.prep.sources.files import LocalFiles
from tests.support.nifti_writer import AFFINE, MemoryFiles, open_nifti, write_nifti

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
    """Every NIfTI file of the data, and one of FreeSurfer, by its path."""
    folders = (root / name for name in ("odd/nifti", "volumes", "cases/freesurfer_mgz"))
    found = (path.relative_to(root).as_posix() for folder in folders for path in folder.rglob("*"))
    return sorted(path for path in found if path.endswith(READABLE_EXTENSIONS))


def by_name(table: Mapping[str, Any], path: str) -> Any:
    return table.get(path.removeprefix("odd/nifti/"))


def test_every_file_is_read_as_nibabel_reads_it_or_refused(test_data):
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
        image = nibabel.load(test_data / path)
        np.testing.assert_allclose(scan.grid.affine, image.affine[:, [2, 1, 0, 3]], atol=1e-6)
        stored = np.asanyarray(image.dataobj)
        colors = stored.dtype.names
        stored = np.stack([stored[name] for name in colors], -1) if colors else image.get_fdata()
        expected = stored.reshape(*stored.shape[:3], -1).transpose(2, 1, 0, 3)
        np.testing.assert_array_equal(voxels, expected.astype(scan.dtype), err_msg=path)
        if scan.dtype != "float32":
            np.testing.assert_array_equal(voxels, expected, err_msg=path)
    assert refused == REFUSED


VOLUME = write_nifti(np.ones((2, 3, 4), np.uint8))
DICOM = bytes(128) + b"DICM" + bytes(300)


MEMORY = MemoryFiles(
    dict.fromkeys(("a.nii", "B.NII.GZ", "nameless"), VOLUME)
    | dict.fromkeys(("series/1", "series/deep/2", "mask/only"), DICOM)
    | {"notes": b"words", "empty": b""}
)


@pytest.mark.parametrize("path", ["a.nii", "B.NII.GZ", "nameless"])
def test_a_nifti_file_is_known_by_its_name_or_content(path):
    scan = open_scan(MEMORY, path)
    assert scan.grid.shape == (4, 3, 2) and scan.files == (path,)
    assert open_mask(MEMORY, path, scan.grid).read().shape == (4, 3, 2)


def test_what_is_not_read_says_what_it_is_and_a_mask_is_one_file():
    for path, reason, detail in (
        ("notes", "not a volume format that is read", "begins with 77 6f 72 64 73"),
        ("empty", "not a volume format that is read", "begins with nothing"),
        ("absent", "file cannot be read", "no such file"),
        ("absent.nii", "file cannot be read", "no such file"),
    ):
        with pytest.raises(SourceError, match=detail) as caught:
            open_scan(MEMORY, path)
        assert (caught.value.stage, caught.value.reason) == ("read", reason)
    grid = open_scan(MEMORY, "a.nii").grid
    with pytest.raises(SourceError, match="file is truncated"):  # by the reader of masks
        open_mask(MEMORY, "mask", grid)
    with pytest.raises(SourceError, match="a mask is one file"):
        open_mask(MEMORY, "series", grid)


def test_the_table_loads_no_reader_before_it_is_needed():
    heavy = {"nibabel", "pydicom", "isal"}
    code = f"import halofeed.prep.formats.volume_formats, sys\nprint({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


MGH = np.arange(4 * 3 * 5).reshape(4, 3, 5)


def write_mgh(array: np.ndarray, at: int = 0, put: bytes = b"") -> bytes:
    """A file as nibabel writes it, with other bytes put at one place."""
    data = bytes(nibabel.MGHImage(array, AFFINE).to_bytes())
    return data[:at] + put + data[at + len(put) :]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int32, np.float32])
@pytest.mark.parametrize("name", ["a.mgh", "a.mgz", "b.MGZ"])
@pytest.mark.parametrize("frames", [1, 2])
def test_voxels_and_affine_are_those_that_nibabel_reads(name, dtype, frames):
    array = np.stack([MGH, MGH + 60][:frames], axis=3).astype(dtype)
    data = write_mgh(array.squeeze()) + b"names of structures " * 500
    scan = open_nifti(gzip.compress(data) if name.lower().endswith("z") else data, name)
    assert scan.grid.shape == (5, 3, 4) and scan.channels == frames and scan.findings == ()
    np.testing.assert_array_equal(scan.read(), array.transpose(2, 1, 0, 3))
    np.testing.assert_allclose(scan.grid.affine, AFFINE[:, [2, 1, 0, 3]], atol=1e-4)


def test_a_header_without_a_good_orientation_is_noted_or_refused():
    data = write_mgh(MGH.astype(np.uint8), 28, b"\0\0")
    scan = open_nifti(data, "a.mgh")
    assert [finding.name for finding in scan.findings] == ["no orientation given"]
    assert scan.grid.affine[0].tolist() == [0, 0, -1, 2]
    assert open_nifti(data, "a.mgh", unoriented="neurological").grid.affine[0].tolist() == [0, 0, 1, -2]
    with pytest.raises(SourceError, match="--unoriented"):
        open_nifti(data, "a.mgh", unoriented="refuse")


MINC_FILES = {path.name: path for path in (Path(nibabel.__file__).parent / "tests" / "data").glob("*.mnc")}


@pytest.mark.parametrize("name", sorted(MINC_FILES))
def test_voxels_and_affine_of_minc_files_of_both_versions_are_those_that_nibabel_reads(name):
    data = MINC_FILES[name].read_bytes()
    with warnings.catch_warnings(action="ignore"):
        real = nibabel.load(MINC_FILES[name])
        expected = real.get_fdata()
    for scan in (open_nifti(data, "a.mnc"), open_nifti(gzip.compress(data), "a.MNC.gz")):
        voxels = np.moveaxis(expected, 0, -1) if expected.ndim == 4 else expected[..., None]  # time
        np.testing.assert_allclose(scan.read(), voxels, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(scan.grid.affine, real.affine, atol=1e-9)
    assert len(MINC_FILES) == 10


def edited_minc(change) -> bytes:
    """A file of version 2 whose image, image-min, image-max and axis x were changed; its scale is that of a slice."""
    with h5py.File(data := io.BytesIO(MINC_FILES["small.mnc"].read_bytes()), "r+") as file:
        parts = [file[f"minc-2.0/image/0/{name}"] for name in ("image", "image-min", "image-max")]
        change(*parts, file["minc-2.0/dimensions/xspace"].attrs)
    return data.getvalue()


def test_scans_and_labels_of_minc_files_are_those_computed_by_hand():
    def scale(image, least, most, axis):
        image[...] = 0
        image[:2, 1, :2] = [[5, 7], [2, 9]]
        image.attrs["valid_range"] = np.array([0.0, 255.0])
        least[...], most[...] = 0, 255
        most[1] = 3 * 255
        axis["step"], axis["start"], axis["direction_cosines"] = -2.0, 7.0, np.array([0.6, 0.8, 0.0])

    data = edited_minc(scale)
    scan, labels = open_nifti(data, "a.mnc"), open_mask(MemoryFiles({"a.mnc": data}), "a.mnc", None).read()
    assert scan.read()[:3, 1, :2, 0].tolist() == [[5, 7], [6, 27], [0, 0]] == labels[:3, 1, :2].tolist()
    assert scan.grid.affine[:3, 2].tolist() == pytest.approx([-1.2, -1.6, 0])


@pytest.mark.parametrize("highest", [[2.0, 2.0], [1.0, 2.0, 3.0], [5.0, 117.0]])
def test_labels_in_the_fractional_range_of_minc_slices_are_the_nearest_whole_numbers(highest):
    labels = [0, 1, 2, 3, 5, 117]

    def scale(image, least, most, axis):
        image[...] = 0
        image.attrs["valid_range"] = np.array([0.0, 255.0])
        least[...] = 0
        for at in range(len(image)):
            most[at] = top = highest[at % len(highest)]
            held = [round(label / top * 255) for label in labels if label <= top]
            image[at, 1, : len(held)] = held

    mask = open_mask(MemoryFiles({"a.mnc": edited_minc(scale)}), "a.mnc", None)
    for at, row in enumerate(mask.read()[:, 1]):
        expected = [label for label in labels if label <= highest[at % len(highest)]]
        assert row[: len(expected)].tolist() == expected
    assert [finding.name for finding in mask.findings] == ["mask saved through floats"]


def test_a_damaged_or_faulty_file_of_freesurfer_or_minc_is_refused():
    packed = gzip.compress(write_mgh(MGH.astype(np.uint8)) + b"names of structures " * 500)
    mgh = (
        (packed[:-4], "gzip data is truncated"),
        (packed[:-8] + bytes(8), "gzip checksum is wrong"),
        (b"", "not a FreeSurfer volume"),
        (write_mgh(MGH.astype(np.uint8))[:200], "file is truncated"),
        (write_mgh(MGH.astype(np.uint8))[:300], "voxels are missing"),
        (write_mgh(MGH.astype(np.uint8), 20, b"\0\0\0\6"), "voxels of this type are not supported"),
        (write_mgh(MGH.astype(np.uint8), 8, bytes(4)), "header is damaged"),
        (write_mgh(MGH.astype(np.uint8), 30, bytes(4)), "voxel size is zero"),
    )
    old = MINC_FILES["tiny.mnc"].read_bytes()
    new = MINC_FILES["small.mnc"].read_bytes()
    minc = (
        (new[:49] + b"\x63" + new[50:], "HDF5 file is damaged"),  # an address beyond 63 bits
        (old[:-2000], "voxels are missing"),
        (old[:60], "header is damaged"),
        (new[:900], "HDF5 file is damaged"),
        (b"\1\2\3", "not a MINC volume"),
        (old.replace(b"regular__", b"irregular"), "slices lie at irregular distances"),
        (old.replace(b"xspace", b"wspace"), "not three axes of space"),
        (edited_minc(lambda image, *_: image.attrs.update(valid_range=[0.0, 1.0])), "valid range"),
        (edited_minc(lambda *parts: parts[3].update(step=0.0)), "voxel size is zero"),
        (edited_minc(lambda *parts: parts[3].update(direction_cosines=[1.0, 1, 0])), "header is damaged"),
    )
    for name, data, reason in (*(("a.mgh", *row) for row in mgh), *(("a.mnc", *row) for row in minc)):
        with pytest.raises(SourceError) as caught:
            open_nifti(data, name).read()
        assert reason in caught.value.reason


@pytest.mark.parametrize("save", [np.save, lambda file, array: np.savez_compressed(file, a=array)])
def test_arrays_of_a_stated_spacing_are_read_and_others_refused(save):
    def saved(array: Any) -> bytes:
        save(file := io.BytesIO(), array)
        return file.getvalue()

    data, spacing = saved(MGH.astype(">f4")), {"array_spacing_mm": (3, 2, 1)}
    scan = open_nifti(data, "a.npz", **spacing)
    np.testing.assert_array_equal(scan.read()[..., 0], MGH)
    assert scan.grid.affine[:3, :3].tolist() == [[0, 0, -1], [0, -2, 0], [3, 0, 0]]
    assert [finding.name for finding in scan.findings] == ["no orientation given"]
    for bad, options, reason in (
        (data, {}, "array has no voxel size"),
        (data[:100], spacing, "not a NumPy array|npz archive is damaged"),
        (data[:-30], spacing, "npz archive is damaged|voxels are missing"),
        (saved(np.asfortranarray(MGH)), spacing, "array is in Fortran order"),
        (saved(MGH[None]), spacing, "not three axes of space"),
        (saved(MGH.astype(complex)), spacing, "voxels of this type are not supported"),
    ):
        with pytest.raises(SourceError, match=reason):
            open_nifti(bad, "a.npy", **options).read()
