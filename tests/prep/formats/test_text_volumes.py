"""NRRD and MetaImage files are what SimpleITK and pynrrd read, or are refused with a reason before memory is taken."""

import bz2
import contextlib
import gzip
import random
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.errors import SourceError
from halofeed.prep.formats.volume.reading_options import ScanOptions
from halofeed.prep.formats.volume_formats import open_mask, open_scan
from halofeed.prep.geometry.orientation import plan_canonical
from halofeed.prep.sources.files import LocalFiles
from halofeed.prep.voxels.resample import view_of
from tests.support.allocations import traced
from tests.support.nifti_writer import MemoryFiles
from tests.support.text_volume_writer import AFFINE, meta_parts, nrrd_parts, write_meta, write_nrrd

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
def test_what_itk_writes_is_what_it_reads(tmp_path_factory, drawn):
    """Every type, one or three channels, turned by any angle or with the axes exchanged, compressed or not."""
    folder = tmp_path_factory.mktemp("itk")
    channels, seed = drawn.draw(st.sampled_from((1, 3))), drawn.draw(st.integers(0, 1000))
    voxels = values((4, 5, 6, channels), drawn.draw(st.sampled_from(DTYPES)), seed)
    image = SimpleITK.GetImageFromArray(voxels if channels > 1 else voxels[..., 0], isVector=channels > 1)
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


ENCODINGS = [("a.nrrd", encoding) for encoding in ("raw", "gzip", "bzip2", "hex", "ascii")]
ENCODINGS += [("a.mha", encoding) for encoding in ("raw", "zlib", "gzip", "ascii")]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "encoding"), ENCODINGS)
def test_a_file_of_any_type_order_and_encoding_is_as_others_read_it(tmp_path, name, encoding, dtype, order):
    stored, path, is_nrrd = values((6, 5, 4), dtype), tmp_path / name, name == "a.nrrd"
    path.write_bytes((write_nrrd if is_nrrd else write_meta)(stored, encoding, order))
    # SimpleITK is built without bzip2, and swaps the bytes of text in a MetaImage file too.
    check_voxels(
        path, stored, by_itk_too=encoding != "bzip2" and (name, encoding, order) != ("a.mha", "ascii", ">")
    )
    if is_nrrd and encoding != "hex":  # which pynrrd does not read
        nrrd = pytest.importorskip("nrrd")
        np.testing.assert_array_equal(nrrd.read(str(path))[0], stored)


@pytest.mark.parametrize("name", ["a.nrrd", "a.mha"])
@pytest.mark.parametrize("channel_first", [True, False])
@pytest.mark.parametrize("encoding", ["raw", "gzip"])
def test_vectors_and_times_become_channels(name, channel_first, encoding):
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
        *(
            ("RAS", (1, 1, 1)),
            ("LAS", (-1, 1, 1)),
            ("LPS", (-1, -1, 1)),
            ("right-anterior-superior", (1, 1, 1)),
        ),
        *(("left-anterior-superior", (-1, 1, 1)), ("left-posterior-superior", (-1, -1, 1))),
    ],
)
def test_one_scan_in_the_three_spaces_of_nrrd_is_the_same_in_the_patient(tmp_path, space, signs):
    stored = values((6, 5, 4), "i2")
    columns = (AFFINE[:3] * np.reshape(signs, (3, 1))).T.tolist()
    vectors = ["(" + ",".join(f"{value:g}" for value in column) + ")" for column in columns]
    where = {"space_directions": " ".join(vectors[:3]), "space_origin": vectors[3]}
    (tmp_path / "a.nrrd").write_bytes(write_nrrd(stored, space=space, **where))
    scan = check_beside_itk(tmp_path / "a.nrrd")
    np.testing.assert_allclose(scan.grid.affine, AFFINE[:, IJK])
    turned = view_of(plan_canonical(scan.grid), scan.read())
    expected = open_scan(MemoryFiles({"b.mha": write_meta(stored)}), "b.mha")
    np.testing.assert_array_equal(turned, view_of(plan_canonical(expected.grid), expected.read()))


ONES = np.ones((6, 5, 4), np.uint8)


NOTHING = dict.fromkeys(("space", "space_directions", "space_origin"))
UNORIENTED = {
    "spacings": write_nrrd(ONES, **NOTHING, spacings="2 3 1.5", axis_mins="10 20 30", centerings="node " * 3),
    "no space": write_nrrd(ONES, space=None, space_dimension="3"),
    "a scanner's space": write_nrrd(ONES, space="scanner-xyz"),
    "a left-handed space": write_nrrd(ONES, space="3D-left-handed"),
    "no matrix": write_meta(ONES, TransformMatrix=None),
    "letters that say nothing": write_meta(ONES, TransformMatrix=None, AnatomicalOrientation="???"),
}


@pytest.mark.parametrize("case", UNORIENTED)
def test_a_file_that_nothing_ties_to_the_patient_lies_as_itk_takes_it_or_by_choice(tmp_path, case):
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
    ("ends", "centerings"),
    [
        (("10 20 30", "20 32 34.5"), "node node node"),
        (("9 18.5 29.25", "21 33.5 35.25"), "cell cell cell"),
        (("9 18.5 29.25", "21 33.5 35.25"), None),
        (("10 18.5 30", "20 33.5 34.5"), "node cell node"),
    ],
)
def test_the_ends_of_axes_give_the_voxel_size_where_no_spacings_do(
    ends: tuple[str, str], centerings: str | None
):
    """The first and last samples of nodes, and the borders of the first and last cells; cells are the default."""
    low, high = ends
    given = {**NOTHING, "axis_mins": low, "axis_maxs": high, "centerings": centerings}
    expected = {**NOTHING, "spacings": "2 3 1.5", "axis_mins": "10 20 30", "centerings": "node " * 3}
    files = MemoryFiles({"a.nrrd": write_nrrd(ONES, **given), "b.nrrd": write_nrrd(ONES, **expected)})
    np.testing.assert_allclose(open_scan(files, "a.nrrd").grid.affine, open_scan(files, "b.nrrd").grid.affine)
    with pytest.raises(SourceError, match=r"voxel size is not given.*nor axis mins and axis maxs"):
        open_scan(MemoryFiles({"a.nrrd": write_nrrd(ONES, **NOTHING, axis_mins=low)}), "a.nrrd")
    swapped = {**given, "axis_mins": high, "axis_maxs": low}
    with pytest.raises(SourceError, match="voxel size is negative"):
        open_scan(MemoryFiles({"a.nrrd": write_nrrd(ONES, **swapped)}), "a.nrrd")


PLAIN_WAYS = [
    {"AnatomicalOrientation": "RSA"},  # where the axes come from: to left, inferior, posterior
    *({"CenterOfRotation": "0 0 0"}, {"DistanceUnits": "mm"}, {"Modality": "MET_MOD_CT"}),
    *({"Offset": None, name: "-40 50 60"} for name in ("Position", "Origin")),
    *({"TransformMatrix": None, name: "1 0 0 0 0 -1 0 1 0"} for name in ("Orientation", "Rotation")),
    {"TransformMatrix": None, "AnatomicalOrientation": "RAI"},
    {"ElementSpacing": None, "ElementSize": "2 3 1.5"},
    {"BinaryDataByteOrderMSB": None, "ElementByteOrderMSB": "False"},
]
NOTED_WAYS = [
    ({"AnatomicalOrientation": "LPS"}, "orientations disagree"),
    ({"CenterOfRotation": "5 0 0"}, "center of rotation is ignored"),
    ({"DistanceUnits": "furlong"}, "unit of length is unknown"),
    ({"ElementSpacing": None}, "voxel size is not given"),
    ({"BinaryDataByteOrderMSB": None}, "order of bytes is not given"),
]


@pytest.mark.parametrize(("fields", "finding"), [*((fields, None) for fields in PLAIN_WAYS), *NOTED_WAYS])
def test_every_way_to_say_where_a_metaimage_lies_is_read_as_itk_does(tmp_path, fields, finding):
    (tmp_path / "a.mha").write_bytes(write_meta(values((6, 5, 4), "i2"), **fields))
    scan = check_beside_itk(tmp_path / "a.mha")
    assert [one.name for one in scan.findings] == ([] if finding is None else [finding])


def test_other_units_of_length_become_millimeters_and_a_fourth_direction_channels():
    axes = {"space_directions": "(.002,0,0) (0,0,-.003) (0,.0015,0)", "space_origin": "(-.04,.05,.06)"}
    by_name = {
        "a.mha": write_meta(ONES, ElementSpacing=".2 .3 .15", Offset="-4 5 6", DistanceUnits="cm"),
        "a.nrrd": write_nrrd(ONES, space_units='"m" "m" "m"', **axes),
    }
    for name in by_name:
        scan = open_scan(MemoryFiles(by_name), name)
        assert [one.name for one in scan.findings] == ["unit of length is not mm"]
        np.testing.assert_allclose(scan.grid.affine, AFFINE[:, IJK], atol=1e-9)
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


def test_the_first_bytes_say_the_format_whatever_the_name_says():
    nrrd, meta = write_nrrd(ONES), write_meta(ONES)
    files = MemoryFiles({"a.nii": nrrd, "a.nrrd": meta, "a.mha": nrrd, "b": nrrd})
    for name in files.files:
        assert open_scan(files, name).grid.shape == (4, 5, 6)
    stored = values((6, 5, 4), "i2")
    files = MemoryFiles({"a.nhdr": write_nrrd(stored), "a.mhd": write_meta(stored)})
    for name in files.files:
        scan = open_scan(files, name)
        assert scan.files == (name,)
        np.testing.assert_array_equal(scan.read()[..., 0], stored.transpose(2, 1, 0))


SIX = np.arange(120, dtype=np.int16).reshape(6, 5, 4)


def refusal(data: bytes, name: str, read: bool = True, **options: Any) -> str:
    """The reason and the detail of the error."""
    try:
        scan = open_scan(MemoryFiles({name: data}), name, (), ScanOptions(**options))
        if read:
            scan.read()
    except SourceError as error:
        return str(error)
    raise AssertionError("it is read")


FALSE_NRRD = {
    "voxels of this type are not supported": [{"type": "block"}],
    "voxels of this type are not supported .*'half'": [{"type": "half"}],
    "type is missing": [{"type": None}],
    "dimension": [{"dimension": "0"}, {"dimension": "17"}],
    "sizes: expected 4 whole numbers": [{"dimension": "4"}],
    "sizes: expected numbers from 1": [{"sizes": "6 5 0"}],
    "sizes: expected 3 whole numbers": [{"sizes": "6 5 4.5"}, {"sizes": f"6 5 {'9' * 5000}"}],
    "voxels are missing": [{"sizes": "6 5 5"}, {"byte_skip": "1"}],
    "more voxels than the header says": [{"sizes": "6 5 3"}],
    "more voxels than allowed": [{"sizes": "99999 99999 99999"}],
    "endian: expected little or big": [{"endian": None}],
    "space is not known .*'moon'": [{"space": "moon"}],
    "space directions: expected 3": [{"space_directions": "(2,0,0) (0,3,0)"}],
    "space directions: expected 3 numbers": [
        {"space_directions": "(2,0,0) (0,3,0) (0,0,x)"},
        {"space_directions": "(2,0,0) (0,3,0) (0,0,nan)"},
    ],
    "not three axes of space": [
        {"space_directions": "(2,0,0) (0,3,0) none"},
        {"space_directions": "(2,0,0) (0,3,0) (0,0,0)"},
        {"space_directions": None, "spacings": "2 3 nan"},
    ],
    "affine is singular": [{"space_directions": "(2,0,0) (0,3,0) (2,3,0)"}],
    "voxel size is impossible": [{"space_directions": "(2,0,0) (0,3,0) (0,0,1e300)"}],
    "space dimension 2": [{"space_directions": "(2,0) (0,3) none", "space": None, "space_dimension": "2"}],
    "voxel size is not given": [{"space_directions": None, "space_origin": None}],
    "voxel size is negative": [{"space_directions": None, "spacings": "2 -3 1"}],
    "voxel size is zero": [{"space_directions": None, "spacings": "2 0 1"}],
    "lies 1e\\+09 mm from the origin": [{"space_origin": "(0,0,1e9)"}],
    "axes have several units": [{"space_units": '"mm" "mm" "m"'}],
    "space units: expected 3 texts in quotation marks": [{"space_units": "mm mm mm"}],
    "complex numbers; store the magnitude": [{"kinds": "complex space space"}],
    "kinds: expected 3": [{"kinds": "space space"}],
    "line skip 99: the file has fewer lines": [{"line_skip": "99"}],
    "line skip": [{"line_skip": "-1"}],
    "byte skip": [{"byte_skip": "-2"}],
    "voxels lie in another file than the name says .*name it .nhdr": [{"data_file": "a.raw"}],
    "voxels lie in several files .*save it with all voxels in one file": [{"data_file": "LIST"}],
    "voxels lie in several files": [{"data_file": "a%03d.raw 1 4 1"}],
    "data file is named by an absolute path": [{"data_file": "/etc/passwd"}],
    "data file lies outside": [{"data_file": "../a.raw"}],
}


FALSE_META = {
    "not a MetaImage file .*'Tube'": [{"ObjectType": "Tube"}],
    "not three axes of space": [{"NDims": "2", "DimSize": "6 20"}],
    "NDims: expected 1 whole number": [{"NDims": "five"}],
    "NDims is missing": [{"NDims": None}],
    "DimSize: expected 3": [{"DimSize": "6 5"}],
    "DimSize: expected numbers from 1": [{"DimSize": "6 5 -4"}],
    "voxels are missing": [{"DimSize": "6 5 5"}, {"HeaderSize": "1"}],
    "more voxels than the header says": [{"DimSize": "6 5 3"}],
    "more voxels than allowed": [
        {"DimSize": "99999 99999 99999"},
        {"ElementNumberOfChannels": "99999999999"},
    ],
    "voxels of this type are not supported .*'MET_STRING'": [{"ElementType": "MET_STRING"}],
    "voxels of this type are not supported": [{"ElementType": "MET_FLOAT_ARRAY"}],
    "TransformMatrix: expected 9 numbers": [
        {"TransformMatrix": "1 0 0 0 1 0"},
        {"TransformMatrix": "1 0 0 0 1 0 0 0 inf"},
    ],
    "affine is singular": [{"TransformMatrix": "1 0 0 0 1 0 1 1 0"}],
    "voxel size is zero": [{"TransformMatrix": "0 0 0 0 0 0 0 0 0"}],
    "Offset and Position have different values": [{"Position": "1 2 3"}],
    "voxel size is negative": [{"ElementSpacing": "2 -3 1"}],
    "orientation contradicts itself": [{"TransformMatrix": None, "AnatomicalOrientation": "LPI"}],
    "AnatomicalOrientation: expected three letters": [{"AnatomicalOrientation": "RAR"}],
    "values are to be rescaled": [{"ElementToIntensityFunctionSlope": "2"}],
    "BinaryData: expected True or False": [{"BinaryData": "perhaps"}],
    "HeaderSize": [{"HeaderSize": "-2"}],
    "zlib data is damaged": [{"CompressedData": "True"}],
    "CompressedDataSize is 999": [{"CompressedData": "True", "CompressedDataSize": "999"}],
    "voxels lie in another file than the name says .*name it .mhd": [{"ElementDataFile": "a.raw"}],
    "voxels lie in several files": [{"ElementDataFile": "LIST"}, {"ElementDataFile": "a%03d.raw 1 4 1"}],
    "data file is named by an absolute path": [{"ElementDataFile": "C:\\scans\\a.raw"}],
    "data file lies outside": [{"ElementDataFile": "../a.raw"}],
    "header names no data file": [{"ElementDataFile": ""}],
}


FALSE = [("a.nrrd", write_nrrd(SIX, **one), reason) for reason, some in FALSE_NRRD.items() for one in some]
FALSE += [("a.mha", write_meta(SIX, **one), reason) for reason, some in FALSE_META.items() for one in some]


FALSE += [
    ("a.nrrd", b"", "not an NRRD file .*begins with nothing"),
    ("a.nrrd", b"\x89PNG\r\n", "not an NRRD file"),
    ("a.nrrd", write_nrrd(SIX).replace(b": raw", b": zrl"), "encoding is not read .*'zrl'; supported: raw"),
    ("a.nrrd", write_nrrd(SIX).replace(b"encoding:", b"coding:"), "encoding is missing"),
    ("a.nrrd", b"NRRD0009\n\n", "version of NRRD is not read"),
    ("a.nrrd", b"NRRD0004\n" + b"# words\n" * 200_000, "no empty line ends it"),
    ("a.nrrd", b"NRRD0004\nwords\n\n", "line 2 has no colon"),
    ("a.nrrd", b"NRRD0004\ntype: int\ntype: int\n\n", "'type' occurs twice"),
    ("a.mha", b"", "not a MetaImage file"),
    ("a.mha", b"\x89PNG\r\n", "not a MetaImage file"),
    ("a.mha", b"Width = 7\nElementDataFile = LOCAL\n", "not a MetaImage file"),
    ("a.mha", b"NDims = 3\nDimSize = 1 1 1\n", "no ElementDataFile"),
    ("a.mha", write_meta(SIX).partition(b" = LOCAL")[0], "ElementDataFile is missing"),
    ("a.mha", b"NDims = 3\nNDims = 3\n", "'NDims' occurs twice"),
    ("a.mha", b"NDims = 3\nComment = " + b"x" * (1 << 21), "no ElementDataFile within 1048576 bytes"),
    ("a.nrrd", write_nrrd(SIX, "ascii")[:-40], "voxels are missing"),
    ("a.nrrd", write_nrrd(SIX, "ascii") + b" " + b"1 " * 99, "more voxels than the header says"),
    ("a.nrrd", write_nrrd(SIX, "ascii") + b"x", "voxels are no numbers"),
    ("a.nrrd", write_nrrd(SIX.astype("u1"), "ascii", type="int8", sizes="6 5 4") + b"900", "do not fit in"),
    ("a.nrrd", write_nrrd(SIX, "hex")[:-1], "the last byte has one digit"),
    ("a.nrrd", write_nrrd(SIX, "hex") + b"x", "hexadecimal digits are damaged"),
    ("a.nrrd", write_nrrd(SIX, "bzip2")[:-9], "bzip2 data is truncated"),
    ("a.nrrd", write_nrrd(SIX, "bzip2") + b"more", "bzip2 data is damaged"),
    ("a.nrrd", write_nrrd(SIX, "gzip", byte_skip="-1"), "byte skip -1 is for raw voxels"),
    ("a.nrrd", write_nrrd(SIX, "gzip")[:-9], "gzip data is truncated"),
    ("a.mha", write_meta(SIX, "zlib")[:-1], "CompressedDataSize is"),
    ("a.mha", write_meta(SIX, "zlib", CompressedDataSize=None)[:-9], "zlib data is truncated"),
]


@pytest.mark.parametrize(("name", "data", "reason"), FALSE, ids=lambda part: str(part)[:40])
def test_a_header_that_cannot_be_true_and_a_damaged_file_are_refused_with_what_is_wrong(name, data, reason):
    assert re.search(reason, refusal(data, name))


def test_bytes_and_lines_before_the_voxels_are_skipped():
    raw = nrrd_parts(SIX)[1]
    headers = {
        "1.nhdr": nrrd_parts(SIX, data_file="sub/a.bin", line_skip="2", byte_skip="3"),
        "2.nhdr": nrrd_parts(SIX, data_file="b.bin", byte_skip="-1"),
        "3.nhdr": nrrd_parts(SIX, "gzip", data_file="c.gz", byte_skip="7"),
        "4.mhd": meta_parts(SIX, HeaderSize="5", ElementDataFile="d.raw"),
        "5.mhd": meta_parts(SIX, HeaderSize="-1", ElementDataFile="b.bin"),
    }
    files = {"sub/a.bin": b"one\ntwo\nxxx" + raw, "b.bin": b"an old header of any length" + raw}
    files |= {"c.gz": gzip.compress(b"skipped" + raw), "d.raw": b"12345" + raw}
    files |= {name: header for name, (header, _) in headers.items()}
    for name in headers:
        scan = open_scan(MemoryFiles(files), name)
        np.testing.assert_array_equal(scan.read(), SIX.transpose(2, 1, 0)[..., None])
        assert len(scan.files) == 2 and name in scan.files


BOMB = bytes(100 << 20)


def test_compressed_data_that_expands_without_end_takes_no_memory():
    for name, data in (
        ("a.nrrd", nrrd_parts(SIX, encoding="gzip")[0] + gzip.compress(BOMB, 9)),
        ("a.nrrd", nrrd_parts(SIX, encoding="bzip2")[0] + bz2.compress(BOMB, 9)),
        ("a.mha", meta_parts(SIX, "zlib", CompressedDataSize=None)[0] + zlib.compress(BOMB, 9)),
    ):
        with traced() as memory:
            assert "more voxels than the header says" in refusal(data, name)
        assert memory.peak < 2 << 20


@pytest.mark.parametrize("encoding", ["raw", "gzip", "hex", "ascii"])
def test_a_header_that_claims_what_its_file_cannot_hold_takes_no_memory(encoding):
    claims = write_nrrd(SIX, encoding, sizes="1000 1000 1000")
    with traced() as memory:
        assert "voxels are missing" in refusal(claims, "a.nrrd", read=False)
        zlib_claims = write_meta(SIX, "zlib", DimSize="1000 1000 1000")
        assert "voxels are missing" in refusal(zlib_claims, "a.mha", read=False)
    assert memory.peak < 1 << 20


def test_reading_takes_one_volume_beside_the_file_and_raw_voxels_none():
    stored = np.zeros((256, 128, 128), np.int16)
    cases = {
        "a.nrrd": (write_nrrd(stored, "gzip"), 1),
        "b.nrrd": (write_nrrd(stored), 0),
        "c.mha": (write_meta(stored, "zlib"), 1),
        "d.mha": (write_meta(stored), 0),
    }
    for name, (data, volumes) in cases.items():
        files = MemoryFiles({name: data})
        with traced() as memory:
            scan = open_scan(files, name)
            voxels = scan.read()
        assert voxels.nbytes == stored.nbytes
        assert scan.held_bytes == len(data) and scan.read_bytes == volumes * stored.nbytes
        assert memory.peak < volumes * stored.nbytes + (4 << 20), name


SOUND = {
    **{f"{way}.nrrd": write_nrrd(SIX, way) for way in ("raw", "gzip", "bzip2", "hex", "ascii")},
    **{f"{encoding}.mha": write_meta(SIX, encoding) for encoding in ("raw", "zlib", "ascii")},
}


@pytest.mark.parametrize("name", SOUND)
def test_whatever_is_changed_in_a_file_it_is_read_or_refused_in_little_memory(name):
    draw = random.Random(name)
    options = ScanOptions(max_voxels=10**6)
    for number in range(120):
        data = bytearray(SOUND[name])
        for _ in range(draw.choice((1, 1, 2, 8))):
            place = draw.randrange(min(len(data), draw.choice((400, 10**6))))
            kind = draw.randrange(4)
            if kind == 0:
                data[place] = draw.randrange(256)
            elif kind == 1:
                data[place : place + draw.randrange(1, 9)] = draw.choice(
                    (b"", b"9", b"-", b"nan", b" ", b"\n")
                )
            elif kind == 2:
                data[place:place] = data[draw.randrange(len(data)) :][: draw.randrange(60)]
            elif number % 3 == 0:
                del data[place:]
            if not data:
                break
        files = MemoryFiles({name: bytes(data)})
        with traced() as memory, contextlib.suppress(SourceError):
            scan = open_scan(files, name, (), options)
            scan.read()
            open_mask(files, name, scan.grid, options).read()
        assert memory.peak < 16 << 20
