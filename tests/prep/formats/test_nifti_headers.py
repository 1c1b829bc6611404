"""Is everything that a NIfTI or Analyze header can have wrong handled as stated, or refused with a true reason?"""

import gzip
from typing import Any

import nibabel
import numpy as np
import pytest

from halofeed.errors import SourceError
from halofeed.prep.geometry.scan import Scan
from tests.support.nifti_writer import AFFINE, open_nifti, open_nifti_mask, write_header, write_nifti

SHAPE = (4, 3, 5)
STORED = np.arange(60, dtype=np.int16).reshape(SHAPE)
NAN, INF = float("nan"), float("inf")
NO_FORMS = {"sform_code": 0, "qform_code": 0}
QFORM_ONLY = {"sform_code": 0, "qform_code": 1}
BAD_SFORMS = {
    "nan": ({"srow_x__1": NAN}, "affine is not finite"),
    "infinite": ({"srow_y__3": INF}, "affine is not finite"),
    "zero": ({"srow_x": 0, "srow_y": 0, "srow_z": 0}, "voxel size is zero"),
    "two_axes_alike": (
        {"srow_x": [1, 1, 0, 0], "srow_y": [1, 1, 0, 0], "srow_z": [0, 0, 1, 0]},
        "affine is singular",
    ),
    "ones": ({"srow_x": 1, "srow_y": 1, "srow_z": 1}, "affine is singular"),
    "huge": ({"srow_x__0": 1e20}, "voxel size is impossible"),
    "far": ({"srow_x__3": 1e20}, "header is damaged"),
}


def refusal(data: bytes, **options: Any) -> tuple[str, str]:
    with pytest.raises(SourceError) as caught:
        open_nifti(data, **options).read()
    assert caught.value.stage == "decode"
    return caught.value.reason, caught.value.detail


def findings(scan: Scan) -> dict[str, str]:
    return {finding.name: finding.treatment for finding in scan.findings}


def canonical(affine: Any) -> Any:
    """Columns i, j, k as depth, height, width."""
    return np.asarray(affine)[:, [2, 1, 0, 3]]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("version", [1, 2])
def test_axis_i_is_width_and_the_affine_follows(order, version):
    scan = open_nifti(write_nifti(STORED, order, version))
    assert scan.grid.shape == (5, 3, 4) and scan.channels == 1 and scan.dtype == "int16"
    assert scan.findings == () and scan.unit == "" and scan.modality == "" and scan.files == ("a.nii",)
    voxels = scan.read()
    assert voxels.dtype == np.dtype("<i2")
    np.testing.assert_array_equal(voxels[..., 0], STORED.transpose(2, 1, 0))
    np.testing.assert_allclose(scan.grid.affine, canonical(AFFINE), atol=1e-6)
    np.testing.assert_allclose(scan.grid.to_mm(np.array([2, 1, 3])), AFFINE[:3] @ [3, 1, 2, 1], atol=1e-5)
    np.testing.assert_allclose(scan.grid.spacing_mm, (3, 1.5, 2), atol=1e-6)


FALSE_HEADERS = {
    "header has a wrong magic": [{"magic": b"ni2"}, {"magic": b""}],
    "not a NIfTI or Analyze file": [{"sizeof_hdr": 349}],
    "fewer than two axes": [{"dim__0": 1}],
    "voxels of this type are not supported": [{"datatype": code} for code in (0, 1, 32, 1536, 31)],
    "header is damaged": [
        *({"dim__0": 0}, {"dim__0": 8}, {"dim__2": 0}, {"dim__2": -3}),
        *({"vox_offset": offset} for offset in (0, 348, 352.5, -400, NAN, INF)),
        *({"scl_slope": INF}, {"scl_slope": 1, "scl_inter": NAN}, {"scl_slope": 1, "scl_inter": -INF}),
    ],
    "voxels are missing": [{"vox_offset": 1e30}],
    "qform is no rotation": [
        {**QFORM_ONLY, **fields}
        for fields in ({"quatern_b": 0.9, "quatern_c": 0.9}, {"quatern_b": 1e30}, {"pixdim__0": 3})
    ],
    "affine is not finite": [{**QFORM_ONLY, "quatern_b": NAN}, {**NO_FORMS, "pixdim__1": NAN}],
    "voxel size is zero": [{**QFORM_ONLY, "pixdim__2": 0}, {**NO_FORMS, "pixdim__2": 0}],
}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        *((fields, reason) for reason, several in FALSE_HEADERS.items() for fields in several),
        *(({"qform_code": 0, **fields}, reason) for fields, reason in BAD_SFORMS.values()),
        *(({"quatern_b": 9, **fields}, reason) for fields, reason in BAD_SFORMS.values()),
    ],
)
@pytest.mark.parametrize("order", ["<", ">"])
def test_a_header_that_cannot_be_true_is_refused(fields, reason, order):
    assert refusal(write_nifti(STORED, order, **fields))[0] == reason


def test_a_file_that_is_cut_off_too_long_or_has_more_voxels_than_allowed_is_refused():
    for data, reason in (
        (b"", "not a NIfTI or Analyze file"),
        (b"%PDF-1.7 and so on", "not a NIfTI or Analyze file"),
        (write_nifti(STORED)[:300], "file is truncated"),
        (write_nifti(STORED, version=2)[:500], "file is truncated"),
        (write_nifti(STORED, version=2).replace(b"\r\n\x1a\n", b"\n\n\x1a\n"), "header has a wrong magic"),
        (write_nifti(STORED)[:-1], "voxels are missing"),
        (write_nifti(STORED)[:352], "voxels are missing"),
        (write_nifti(STORED) + bytes(24), "more voxels than the header says"),
        (gzip.compress(write_nifti(STORED)[:-1], mtime=0), "voxels are missing"),
        (gzip.compress(write_nifti(STORED)[:349], mtime=0), "voxels are missing"),
        (gzip.compress(write_nifti(STORED)[:100], mtime=0), "file is truncated"),
        (gzip.compress(write_nifti(STORED) + bytes(24), mtime=0), "more voxels than the header says"),
    ):
        assert refusal(data)[0] == reason
    data = write_nifti(np.zeros((4, 3, 5, 2), np.int16))
    assert open_nifti(data, max_voxels=120).channels == 2
    assert refusal(data, max_voxels=119)[0] == "more voxels than allowed"


def test_compression_is_seen_by_content_and_padding_and_extensions_are_passed_over():
    data = write_nifti(STORED)
    plain, packed = open_nifti(data, "a.nii.gz"), open_nifti(gzip.compress(data), "a.nii")
    np.testing.assert_array_equal(plain.read(), packed.read())
    for pack in (bytes, gzip.compress):
        scan = open_nifti(pack(write_nifti(STORED) + bytes(23)))
        np.testing.assert_array_equal(scan.read()[..., 0], STORED.transpose(2, 1, 0))
    data = write_header(SHAPE, np.int16, vox_offset=352 + 4096) + b"x" * 4096 + STORED.tobytes("F")
    for pack in (bytes, gzip.compress):
        np.testing.assert_array_equal(open_nifti(pack(data)).read()[..., 0], STORED.transpose(2, 1, 0))


def test_time_or_vector_components_become_channels():
    for shape, expected in (
        *(((4, 3), (1, 3, 4, 1)), ((4, 3, 5, 1), (5, 3, 4, 1)), ((4, 3, 5, 6), (5, 3, 4, 6))),
        *(
            ((4, 3, 5, 1, 6), (5, 3, 4, 6)),
            ((4, 3, 1, 6), (1, 3, 4, 6)),
            ((4, 3, 5, 6, 1, 1, 1), (5, 3, 4, 6)),
        ),
    ):
        stored = np.random.default_rng(1).integers(-99, 99, shape).astype(np.int16)
        scan = open_nifti(write_nifti(stored))
        voxels = scan.read()
        assert voxels.shape == expected and (*scan.grid.shape, scan.channels) == expected
        padded = stored.reshape(*(*stored.shape, 1)[:3], -1)
        np.testing.assert_array_equal(voxels, padded.transpose(2, 1, 0, 3))
    for shape in ((4, 3, 5, 2, 2), (4, 3, 5, 1, 1, 2), (2, 2, 2, 1, 1, 1, 3)):
        reason, _ = refusal(write_nifti(np.zeros(shape, np.int16)))
        assert reason == "more axes than an image with channels has"


@pytest.mark.parametrize(("code", "parts"), [(128, 3), (2304, 4)])
def test_colors_become_channels_and_are_never_rescaled(code, parts):
    stored = np.random.default_rng(2).integers(0, 256, (5, 3, 4, parts), np.uint8)
    header = write_header(SHAPE, np.uint8, datatype=code, bitpix=8 * parts, scl_slope=2, scl_inter=1)
    scan = open_nifti(gzip.compress(header + stored.tobytes()))
    np.testing.assert_array_equal(scan.read(), stored)
    assert scan.channels == parts and findings(scan) == {"color voxels": "noted"}
    four_axes = write_header((*SHAPE, 2), np.uint8, datatype=code) + bytes(2 * stored.size)
    assert refusal(four_axes)[0] == "more axes than an image with channels has"


@pytest.mark.parametrize("version", [1, 2])
def test_a_header_that_claims_terabytes_is_refused_by_its_figures(version):
    length = 32767 if version == 1 else 2**40
    data = write_header(SHAPE, np.float64, version=version, dim__1=length, dim__2=length, dim__3=length)
    assert refusal(data)[0] == refusal(gzip.compress(data))[0] == "more voxels than allowed"
    for packed in (data, gzip.compress(data)):
        assert refusal(packed, max_voxels=10**60)[0] == "voxels are missing"


OTHER = {"qoffset_x": 45.0}  # of the qform


def test_of_an_sform_and_a_qform_that_disagree_the_sform_counts_or_the_chosen_one():
    scan = open_nifti(write_nifti(STORED, **OTHER))
    np.testing.assert_allclose(scan.grid.affine, canonical(AFFINE), atol=1e-6)
    assert findings(scan) == {"sform and qform disagree": "noted"}
    assert "differ by 5" in scan.findings[0].detail
    scan = open_nifti(write_nifti(STORED, **OTHER), sform_qform="qform")
    assert scan.grid.affine[0, 3] == 45 and findings(scan) == {"sform and qform disagree": "noted"}
    only_sform = open_nifti(write_nifti(STORED, qform_code=0), sform_qform="qform")
    np.testing.assert_allclose(only_sform.grid.affine, canonical(AFFINE), atol=1e-6)
    assert refusal(write_nifti(STORED, **OTHER), sform_qform="refuse")[0] == "sform and qform disagree"
    assert refusal(write_nifti(STORED, quatern_b=9), sform_qform="refuse")[0] == "sform and qform disagree"
    assert open_nifti(write_nifti(STORED, qoffset_x=40.01), sform_qform="refuse").findings == ()


@pytest.mark.parametrize("choice", ["sform", "qform"])
@pytest.mark.parametrize("name", BAD_SFORMS)
def test_an_sform_that_is_none_beside_a_good_qform_is_noted(name, choice):
    fields, reason = BAD_SFORMS[name]
    scan = open_nifti(write_nifti(STORED, **fields), sform_qform=choice)
    (finding,) = scan.findings
    assert (finding.name, finding.treatment) == ("sform and qform disagree", "noted")
    assert f"the sform is invalid ({reason}); the qform is used" in finding.detail
    np.testing.assert_allclose(scan.grid.affine, canonical(AFFINE), atol=1e-5)
    _, detail = refusal(write_nifti(STORED, **fields), sform_qform="refuse")
    assert detail.endswith("--sform-qform qform takes the qform")


def test_a_qform_alone_is_used_a_factor_of_0_means_1_and_one_that_is_none_is_noted():
    scan = open_nifti(write_nifti(STORED, **QFORM_ONLY))
    np.testing.assert_allclose(scan.grid.affine, canonical(AFFINE), atol=1e-5)
    right_handed = nibabel.Nifti1Header()
    right_handed.set_qform(np.diag([2, 3, 4, 1]), 1)
    fields = {name: right_handed[name] for name in ("quatern_b", "quatern_c", "quatern_d", "pixdim")}
    fields["pixdim"][0] = 0
    scan = open_nifti(write_nifti(STORED, **QFORM_ONLY, **fields))
    np.testing.assert_allclose(scan.grid.affine[:3, :3], np.diag([2.0, 3, 4])[:, ::-1], atol=1e-6)
    for choice in ("sform", "qform"):
        scan = open_nifti(write_nifti(STORED, pixdim__2=0), sform_qform=choice)
        assert "the qform is invalid (voxel size is zero); the sform is used" in scan.findings[0].detail
        np.testing.assert_allclose(scan.grid.affine, canonical(AFFINE), atol=1e-6)


def test_files_without_orientation_are_radiological_and_those_of_spm_have_their_origin_and_slope():
    data = write_nifti(STORED, **NO_FORMS, pixdim=[1, 2, 3, 4, 1, 1, 1, 1])
    scan = open_nifti(data)
    expected = nibabel.Nifti1Image.from_bytes(data).affine
    np.testing.assert_allclose(scan.grid.affine, canonical(expected))
    assert scan.grid.affine[0, 2] == -2
    assert findings(scan) == {"no orientation given": "noted"}
    assert refusal(data, unoriented="refuse")[0] == "file does not say how it lies in the patient"
    scan = open_nifti(data, unoriented="neurological")
    assert findings(scan) == {"no orientation given": "noted"} and scan.grid.affine[0, 2] == 2
    np.testing.assert_array_equal(scan.read()[..., 0], STORED.transpose(2, 1, 0))
    sizes, rescale = {"pixdim": [0, 2, 3, 4, 0, 0, 0, 0]}, {"scl_slope": 0.5, "scl_inter": NAN}
    scan = open_nifti(pair("analyze", origin=[2, 3, 1, 0, 0], **sizes, **rescale), "f/a.hdr")
    np.testing.assert_allclose(scan.grid.to_mm(np.array([0, 2, 1])), (0, 0, 0))
    assert scan.dtype == "float32"
    np.testing.assert_array_equal(scan.read()[..., 0], STORED.transpose(2, 1, 0) / 2)


def test_negative_voxel_sizes_lose_their_sign_and_unknown_units_and_shears_are_noted():
    data = write_nifti(STORED, **NO_FORMS, pixdim=[1, -2, 3, 4, 1, 1, 1, 1])
    scan = open_nifti(data)
    assert findings(scan) == {"negative voxel size": "corrected", "no orientation given": "noted"}
    np.testing.assert_allclose(scan.grid.spacing_mm, (4, 3, 2))
    assert open_nifti(write_nifti(STORED, qform_code=0, pixdim__1=-2)).findings == ()
    assert findings(open_nifti(write_nifti(STORED, xyzt_units=5))) == {"unit of length is unknown": "noted"}
    scan = open_nifti(write_nifti(STORED, qform_code=0, srow_y=[0, np.tan(np.radians(17)) * 1.5, 3, 0]))
    assert findings(scan) == {"sheared axes": "noted"} and "73.00 degrees" in scan.findings[0].detail


@pytest.mark.parametrize(("code", "scale"), [(1, 1e3), (2, 1.0), (3, 1e-3), (0, 1.0), (10, 1.0), (17, 1e3)])
@pytest.mark.parametrize("forms", [{}, QFORM_ONLY, NO_FORMS])
def test_every_unit_of_length_becomes_millimeters(code, scale, forms):
    scan = open_nifti(write_nifti(STORED, **forms, xyzt_units=code))
    np.testing.assert_allclose(scan.grid.spacing_mm, np.array([3, 1.5, 2]) * scale, rtol=1e-5)
    assert ("unit of length is not mm" in findings(scan)) == (scale != 1)


def pair(kind: str = "pair", order: str = "<", **fields: Any) -> dict[str, bytes]:
    header = write_header(SHAPE, np.int16, order, kind=kind, **fields)
    return {"f/a.hdr": header, "f/a.img": STORED.astype(f"{order}i2").tobytes("F")}


@pytest.mark.parametrize("kind", ["pair", "analyze"])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("path", ["f/a.hdr", "f/a.img"])
def test_a_pair_is_opened_by_either_of_its_files(kind, order, path):
    scan = open_nifti(pair(kind, order), path)
    np.testing.assert_array_equal(scan.read()[..., 0], STORED.transpose(2, 1, 0))
    assert scan.files == ("f/a.hdr", "f/a.img")
    assert findings(scan) == ({"no orientation given": "noted"} if kind == "analyze" else {})


def test_the_files_of_a_pair_may_be_compressed_or_in_capitals_and_half_of_one_is_refused():
    for names, path in (
        (("a.hdr", "a.img.gz"), "a.hdr"),
        (("a.hdr.gz", "a.img.gz"), "a.hdr.gz"),
        (("a.hdr.gz", "a.img.gz"), "a.img.gz"),
        (("a.hdr", "a.img.gz"), "a.img.gz"),
        (("A.HDR", "A.IMG"), "A.IMG"),
        (("A.HDR", "A.IMG"), "A.HDR"),
    ):
        contents = zip(names, pair().values(), strict=True)
        files = {name: gzip.compress(data) if name.endswith("gz") else data for name, data in contents}
        scan = open_nifti(files, path)
        np.testing.assert_array_equal(scan.read()[..., 0], STORED.transpose(2, 1, 0))
        assert scan.files == tuple(sorted(names))
    with pytest.raises(SourceError, match=r"the \.img file"):
        open_nifti({"a.nii": pair()["f/a.hdr"]}, "a.nii")
    files = {"a.hdr": write_nifti(STORED), "a.img": b"something else"}
    assert open_nifti(files, "a.hdr").files == ("a.hdr",)
    for left, missing in (("f/a.hdr", ".img"), ("f/a.img", ".hdr")):
        with pytest.raises(SourceError, match=f"the {missing} file with the .* is missing") as caught:
            open_nifti({left: pair()[left]}, left)
        assert caught.value.stage == "read"


def test_a_mask_lies_where_its_image_lies_and_has_one_channel():
    with pytest.raises(SourceError, match="mask has several channels"):
        open_nifti_mask(write_nifti(np.zeros((4, 3, 5, 2), np.uint8)))
    data = write_nifti(STORED, **OTHER)
    mask, scan = open_nifti_mask(data), open_nifti(data)
    np.testing.assert_array_equal(mask.grid.affine, scan.grid.affine)
    assert (mask.findings, mask.files, mask.names) == (scan.findings, scan.files, {})
