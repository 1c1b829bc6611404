"""Are NRRD and MetaImage files the volumes that SimpleITK, and of NRRD pynrrd, reads, on the same grid?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.prep.formats.volume.options import ScanOptions
from halofeed.prep.formats.volumes import open_mask, open_scan
from halofeed.prep.geometry.orientation import plan_canonical
from halofeed.prep.sources.files import LocalFiles
from halofeed.prep.voxels.apply import view_of
from halofeed.schemas.errors import SourceError
from tests.support.nifti_writer import MemoryFiles
from tests.support.text_volume_writer import AFFINE, write_meta, write_nrrd

DTYPES = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8")
IJK = [2, 1, 0, 3]


def values(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    """Values that int32 and float32 hold, with the ends of the type where it is no wider."""
    generator = np.random.default_rng(seed)
    if dtype[0] == "f":
        return generator.normal(scale=500, size=shape).astype(np.float32).astype(dtype)
    info = np.iinfo(dtype)
    low, high = max(info.min, -(2**31)), min(info.max, 2**31 - 1)
    drawn = generator.integers(low, high, shape, endpoint=True)
    drawn.flat[:2] = low, high
    return drawn.astype(dtype)


def by_itk(path: Path) -> tuple[Any, Any]:
    """The voxels [depth, height, width, channel], and the affine of [depth, height, width] to right, anterior,
    superior."""
    image: Any = SimpleITK.ReadImage(str(path))
    affine = np.eye(4)
    affine[:3, :3] = np.reshape(image.GetDirection(), (3, 3)) * image.GetSpacing()
    affine[:3, 3] = image.GetOrigin()
    voxels = SimpleITK.GetArrayFromImage(image)
    return voxels.reshape(*voxels.shape[:3], -1), (np.diag([-1, -1, 1, 1]) @ affine)[:, IJK]


def check_beside_itk(path: Path) -> Any:
    scan, (voxels, affine) = open_scan(LocalFiles(path.parent), path.name), by_itk(path)
    np.testing.assert_array_equal(scan.read(), voxels.astype(scan.dtype))
    np.testing.assert_allclose(scan.grid.affine, affine, atol=1e-6)
    assert (scan.unit, scan.modality) == ("", "")
    return scan


def check_voxels(path: Path, stored: Any, *, by_itk_too: bool) -> None:
    """The scan of a file is what was stored with AFFINE."""
    scan = check_beside_itk(path) if by_itk_too else open_scan(LocalFiles(path.parent), path.name)
    np.testing.assert_array_equal(scan.read()[..., 0], stored.transpose(2, 1, 0).astype(scan.dtype))
    np.testing.assert_allclose(scan.grid.affine, AFFINE[:, IJK])


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_what_itk_writes_is_what_it_reads(tmp_path_factory: Any, drawn: st.DataObject) -> None:
    """Every type, one or three channels, turned by any angle or with the axes exchanged, compressed or not."""
    folder = tmp_path_factory.mktemp("itk")
    channels, seed = drawn.draw(st.sampled_from((1, 3))), drawn.draw(st.integers(0, 1000))
    voxels = values((4, 5, 6, channels), drawn.draw(st.sampled_from(DTYPES)), seed)
    image: Any = SimpleITK.GetImageFromArray(
        voxels if channels > 1 else voxels[..., 0], isVector=channels > 1
    )
    generator = np.random.default_rng(seed)
    axes = np.eye(3)[generator.permutation(3)] * generator.choice([-1, 1], 3)
    turned, _ = np.linalg.qr(axes + drawn.draw(st.sampled_from((0, 0.2))) * generator.normal(size=(3, 3)))
    turned *= np.sign((turned * axes).sum(axis=0))
    image.SetDirection(turned.ravel().tolist())
    image.SetSpacing(generator.uniform(0.3, 5, 3).tolist())
    image.SetOrigin(generator.normal(scale=200, size=3).tolist())
    name = drawn.draw(st.sampled_from(("a.nrrd", "a.nhdr", "a.mha", "a.mhd")))
    SimpleITK.WriteImage(image, str(folder / name), drawn.draw(st.booleans()))
    scan = check_beside_itk(folder / name)
    assert scan.findings == ()
    assert set(scan.files) == {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("encoding", ["raw", "gzip", "bzip2", "hex", "ascii"])
def test_an_nrrd_file_of_any_type_order_and_encoding_is_that_of_the_other_readers(
    tmp_path: Path, encoding: str, dtype: str, order: str
) -> None:
    stored = values((6, 5, 4), dtype)
    path = tmp_path / "a.nrrd"
    path.write_bytes(write_nrrd(stored, encoding, order))
    check_voxels(path, stored, by_itk_too=encoding != "bzip2")  # which SimpleITK is built without
    if encoding != "hex":  # which pynrrd does not read
        nrrd = pytest.importorskip("nrrd")
        np.testing.assert_array_equal(nrrd.read(str(path))[0], stored)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("encoding", ["raw", "zlib", "gzip", "ascii"])
def test_a_metaimage_file_of_any_type_order_and_encoding_is_that_of_itk(
    tmp_path: Path, encoding: str, dtype: str, order: str
) -> None:
    stored = values((6, 5, 4), dtype)
    path = tmp_path / "a.mha"
    path.write_bytes(write_meta(stored, encoding, order))
    # Of the other SimpleITK swaps the bytes of text too.
    check_voxels(path, stored, by_itk_too=(encoding, order) != ("ascii", ">"))


@pytest.mark.parametrize("name", ["a.nrrd", "a.mha"])
@pytest.mark.parametrize("channel_first", [True, False])
@pytest.mark.parametrize("encoding", ["raw", "gzip"])
def test_vectors_and_times_become_channels(name: str, channel_first: bool, encoding: str) -> None:
    voxels = values((4, 5, 6, 3), "i2")  # [depth, height, width, channel]
    stored = voxels.transpose(3, 2, 1, 0) if channel_first else voxels.transpose(2, 1, 0, 3)
    if name == "a.mha":
        data = write_meta(stored, encoding, parts=3 if channel_first else 1)
    else:
        axes, kinds = ["(2,0,0)", "(0,0,-3)", "(0,1.5,0)"], ["space"] * 3
        axes.insert(0 if channel_first else 3, "none")
        kinds.insert(0 if channel_first else 3, "vector" if channel_first else "time")
        data = write_nrrd(stored, encoding, space_directions=" ".join(axes), kinds=" ".join(kinds))
    files = MemoryFiles({name: data})
    scan = open_scan(files, name)
    assert scan.channels == 3
    np.testing.assert_array_equal(scan.read(), voxels)
    with pytest.raises(SourceError, match="mask has several channels"):
        open_mask(files, name, scan.grid)


@pytest.mark.parametrize(
    ("space", "signs"),
    [
        ("right-anterior-superior", (1, 1, 1)),
        ("RAS", (1, 1, 1)),
        ("left-anterior-superior", (-1, 1, 1)),
        ("LAS", (-1, 1, 1)),
        ("left-posterior-superior", (-1, -1, 1)),
        ("LPS", (-1, -1, 1)),
    ],
)
def test_one_scan_in_the_three_spaces_of_nrrd_is_the_same_in_the_patient(
    tmp_path: Path, space: str, signs: tuple[int, ...]
) -> None:
    stored = values((6, 5, 4), "i2")
    vectors = [
        "(" + ",".join(f"{sign * value:g}" for sign, value in zip(signs, column, strict=True)) + ")"
        for column in AFFINE[:3].T
    ]
    path = tmp_path / "a.nrrd"
    path.write_bytes(
        write_nrrd(stored, space=space, space_directions=" ".join(vectors[:3]), space_origin=vectors[3])
    )
    scan = check_beside_itk(path)
    np.testing.assert_allclose(scan.grid.affine, AFFINE[:, IJK])
    turned = view_of(plan_canonical(scan.grid), scan.read())
    expected = open_scan(MemoryFiles({"b.mha": write_meta(stored)}), "b.mha")
    np.testing.assert_array_equal(turned, view_of(plan_canonical(expected.grid), expected.read()))


def test_time_as_a_fourth_direction_of_space_becomes_channels() -> None:
    voxels = values((4, 5, 6, 2), "i2")
    data = write_nrrd(
        voxels.transpose(2, 1, 0, 3),
        space="right-anterior-superior-time",
        space_directions="(-2,0,0,0) (0,0,-3,0) (0,-1.5,0,0) (0,0,0,40)",
        space_origin="(40,-50,60,0)",
    )
    scan = open_scan(MemoryFiles({"a.nrrd": data}), "a.nrrd")
    np.testing.assert_array_equal(scan.read(), voxels)
    np.testing.assert_allclose(scan.grid.affine, AFFINE[:, IJK])


ONES = np.ones((6, 5, 4), np.uint8)
UNORIENTED = {
    "spacings alone": write_nrrd(
        ONES,
        space=None,
        space_directions=None,
        space_origin=None,
        spacings="2 3 1.5",
        axis_mins="10 20 30",
        centerings="node node node",
    ),
    "no space": write_nrrd(ONES, space=None, space_dimension="3"),
    "a scanner's space": write_nrrd(ONES, space="scanner-xyz"),
    "a left-handed space": write_nrrd(ONES, space="3D-left-handed"),
    "no matrix": write_meta(ONES, TransformMatrix=None),
    "letters that say nothing": write_meta(ONES, TransformMatrix=None, AnatomicalOrientation="???"),
}


@pytest.mark.parametrize("case", UNORIENTED)
def test_a_file_that_nothing_ties_to_the_patient_lies_as_itk_takes_it_or_by_choice(
    tmp_path: Path, case: str
) -> None:
    name = "a.nrrd" if UNORIENTED[case].startswith(b"NRRD") else "a.mha"
    (tmp_path / name).write_bytes(UNORIENTED[case])
    scan = check_beside_itk(tmp_path / name)
    (finding,) = scan.findings
    assert finding.name == "no orientation given" and "radiological" in finding.detail
    files = LocalFiles(tmp_path)
    mirrored = open_scan(files, name, (), ScanOptions(unoriented="neurological"))
    np.testing.assert_allclose(mirrored.grid.affine, np.diag([-1, 1, 1, 1]) @ scan.grid.affine)
    with pytest.raises(SourceError, match="does not say how it lies in the patient"):
        open_scan(files, name, (), ScanOptions(unoriented="refuse"))


@pytest.mark.parametrize(
    ("fields", "finding"),
    [
        ({"AnatomicalOrientation": "RSA"}, None),  # where the axes come from: to left, inferior, posterior
        ({"AnatomicalOrientation": "LPS"}, "orientations disagree"),
        ({"CenterOfRotation": "0 0 0"}, None),
        ({"CenterOfRotation": "5 0 0"}, "center of rotation is ignored"),
        ({"Offset": None, "Position": "-40 50 60"}, None),
        ({"Offset": None, "Origin": "-40 50 60"}, None),
        ({"TransformMatrix": None, "Orientation": "1 0 0 0 0 -1 0 1 0"}, None),
        ({"TransformMatrix": None, "Rotation": "1 0 0 0 0 -1 0 1 0"}, None),
        ({"ElementSpacing": None, "ElementSize": "2 3 1.5"}, None),
        ({"DistanceUnits": "mm"}, None),
        ({"DistanceUnits": "furlong"}, "unit of length is unknown"),
        ({"Modality": "MET_MOD_CT"}, None),
        # What is left open, the lack of a matrix first:
        ({"TransformMatrix": None, "AnatomicalOrientation": "RAI"}, None),
        ({"ElementSpacing": None}, "voxel size is not given"),
        ({"BinaryDataByteOrderMSB": None}, "order of bytes is not given"),
        ({"BinaryDataByteOrderMSB": None, "ElementByteOrderMSB": "False"}, None),
    ],
)
def test_every_way_to_say_where_a_metaimage_lies_is_read_as_itk_does(
    tmp_path: Path, fields: dict[str, Any], finding: str | None
) -> None:
    (tmp_path / "a.mha").write_bytes(write_meta(values((6, 5, 4), "i2"), **fields))
    scan = check_beside_itk(tmp_path / "a.mha")
    assert [one.name for one in scan.findings] == ([] if finding is None else [finding])


def test_a_header_with_its_voxels_under_the_name_of_one_without_is_read() -> None:
    stored = values((6, 5, 4), "i2")
    files = MemoryFiles({"a.nhdr": write_nrrd(stored), "a.mhd": write_meta(stored)})
    for name in files.files:
        scan = open_scan(files, name)
        assert scan.files == (name,)
        np.testing.assert_array_equal(scan.read()[..., 0], stored.transpose(2, 1, 0))


def test_other_units_of_length_become_millimeters() -> None:
    by_name = {
        "a.mha": write_meta(ONES, ElementSpacing=".2 .3 .15", Offset="-4 5 6", DistanceUnits="cm"),
        "a.nrrd": write_nrrd(
            ONES,
            space_units='"m" "m" "m"',
            space_directions="(.002,0,0) (0,0,-.003) (0,.0015,0)",
            space_origin="(-.04,.05,.06)",
        ),
    }
    for name in by_name:
        scan = open_scan(MemoryFiles(by_name), name)
        assert [one.name for one in scan.findings] == ["unit of length is not mm"]
        np.testing.assert_allclose(scan.grid.affine, AFFINE[:, IJK], atol=1e-9)


def test_the_first_bytes_say_the_format_whatever_the_name_says() -> None:
    nrrd, meta = write_nrrd(ONES), write_meta(ONES)
    files = MemoryFiles({"a.nii": nrrd, "a.nrrd": meta, "a.mha": nrrd, "b": nrrd})
    for name in files.files:
        assert open_scan(files, name).grid.shape == (4, 5, 6)
