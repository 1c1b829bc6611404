"""MINC files of both versions against nibabel and values computed by hand."""

import gzip
import io

import h5py
import numpy as np
import pytest
from nibabel import Minc1Image, Minc2Image
from nibabel.externals.netcdf import netcdf_file

from halofeed.errors import SourceError
from halofeed.prep.formats.volumes import open_mask
from tests.support.nifti_writer import MemoryFiles, open_nifti

SIZES = {"time": 2, "zspace": 3, "yspace": 4, "xspace": 5, "vector_dimension": 3}
SPACE = ("zspace", "yspace", "xspace")
TURNED = {"xspace": (0.6, 0.8, 0.0), "yspace": (-0.8, 0.6, 0.0), "zspace": (0.0, 0.0, 1.0)}
TURNED |= {"time": (1.0, 0.0, 0.0), "vector_dimension": (1.0, 0.0, 0.0)}  # which nobody reads
STEPS = {"xspace": -1.5, "yspace": 2.0, "zspace": -3.0, "time": 1.0, "vector_dimension": 1.0}
ORDERS = (SPACE, ("xspace", "zspace", "yspace"), ("time", *SPACE), (*SPACE, "vector_dimension"))


def write(version, dims=SPACE, dtype="u1", scales=1, least=-2.0, unit=1.0, valid=(0, 255), axis=()):
    """A file with its voxels 0, 1, 2 ... and image-min and image-max along the first `scales` axes."""
    shape = tuple(SIZES[name] for name in dims)
    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    steps = unit * np.arange(1.0, 1 + np.prod(shape[:scales], dtype=int)).reshape(shape[:scales])
    common = {"spacing": b"regular__", "start": 7.0, "units": b"mm"}
    axes = {
        name: common | {"step": STEPS[name], "direction_cosines": TURNED[name], **dict(axis)} for name in dims
    }
    parts = {
        f"dimensions/{name}": ((), np.int32(0), kept | {"length": SIZES[name]}) for name, kept in axes.items()
    }
    parts["image/0/image-min"] = (dims[:scales], least + 0 * steps, {})
    parts["image/0/image-max"] = (dims[:scales], least + steps, {})
    sign = {"signtype": b"unsigned" if dtype == "u1" else b"signed__"}
    parts["image/0/image"] = (dims, values, sign | {"valid_range": np.array(valid, float)})
    file = io.BytesIO()
    if version == 1:
        with netcdf_file(file, "w") as out:
            for name in dims:
                out.createDimension(name, SIZES[name])
            for path, (names, array, attributes) in parts.items():
                stored = array.view("i1") if array.dtype == "u1" else array
                variable = out.createVariable(path.rpartition("/")[2], stored.dtype, names)
                variable[...] = stored
                for key, value in attributes.items():
                    setattr(variable, key, value)
            out.flush()
            return file.getvalue()
    with h5py.File(file, "w") as out:
        for path, (names, array, attributes) in parts.items():
            packed = {"chunks": (2, *shape[1:]), "compression": "gzip"} if names == dims else {}
            stored = out.create_dataset(f"minc-2.0/{path}", data=array, **packed)
            for key, one in (attributes | {"dimorder": ",".join(names).encode()}).items():
                stored.attrs[key] = np.bytes_(one) if isinstance(one, bytes) else one
    return file.getvalue()


@pytest.mark.parametrize("version", [1, 2])
def test_voxels_and_affine_are_those_that_nibabel_reads(tmp_path, version):
    for dims in ORDERS:
        for dtype, scales in (("u1", 0), ("u1", 1), ("i2", 2), ("f4", 1), ("f8", 0)):
            path = tmp_path / f"{''.join(dims)}{dtype}{scales}.mnc"
            path.write_bytes(data := write(version, dims, dtype, scales))
            real = (Minc1Image, Minc2Image)[version - 1].from_filename(path)
            scan = open_nifti(gzip.compress(data) if scales else data, "a.mnc.gz" if scales else "a.mnc")
            expected = real.get_fdata()
            shape = (*scan.grid.shape, -1)
            expected = np.moveaxis(expected, 0, -1) if dims[0] == "time" else expected.reshape(shape)
            np.testing.assert_allclose(scan.read(), expected, rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(scan.grid.affine, real.affine, atol=1e-9)


def test_voxels_and_labels_are_those_computed_by_hand():
    scan = open_nifti(write(2), "a.mnc")  # slices of -2 to -1, 0 and 1
    assert scan.read()[2, 1, 3, 0] == np.float32(-2 + (2 * 20 + 5 + 3) / 255 * 3)
    assert scan.grid.affine[:3, 2].tolist() == pytest.approx([-0.9, -1.2, 0])
    whole, by_slice = (write(1, scales=scales, least=0.0, unit=255.0) for scales in (0, 1))
    assert open_nifti(whole, "a.mnc").dtype == "uint8"  # one scale of 1
    for data, factors in ((whole, (1, 1, 1)), (by_slice, (1, 2, 3))):
        labels = open_mask(MemoryFiles({"a.mnc": data}), "a.mnc", scan.grid).read()
        np.testing.assert_array_equal(labels, np.arange(60).reshape(3, 4, 5) * np.reshape(factors, (3, 1, 1)))


@pytest.mark.parametrize("version", [1, 2])
def test_faulty_files_are_refused_with_the_reason(version):
    whole = write(version)
    for data, reason in (
        (whole[:-40], "voxels are missing|HDF5 file is damaged"),
        (whole[:60], "header is damaged|HDF5 file is damaged"),
        (b"\1\2\3", "not a MINC volume"),
        (write(version, axis={"spacing": "irregular"}), "slices lie at irregular distances"),
        (write(version, axis={"step": 0.0}), "voxel size is zero"),
        (write(version, axis={"direction_cosines": (1.0, 1.0, 0.0)}), "header is damaged"),
        (write(version, ("xspace", "yspace")), "not three axes of space"),
        (write(version, valid=(0, 9)), "voxels outside of the valid range"),
        (write(version, valid=(9, 9)), "header is damaged"),
    ):
        with pytest.raises(SourceError, match=reason):
            open_nifti(data, "a.mnc").read()
