"""What real series get wrong: gaps, tilt, duplicates, padding and rescale, each corrected by name or refused."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.uid import JPEG2000, ExplicitVRLittleEndian, JPEGLSNearLossless

from halofeed.errors import SourceError
from halofeed.prep.formats.dicom.header_fields import PixelFormat
from halofeed.prep.formats.dicom.pixels import extract_values
from halofeed.prep.formats.dicom.slice_geometry import MAX_GROWTH, find_missing_slices, plan_slices
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.geometry.scan import Scan
from tests.support.dicom_folders import details, open_folder, refusal
from tests.support.dicom_writer import AXIAL, image_dataset, item, save, write_series

ROWS, COLUMNS = 6, 7


def ramp(heights: list[float]) -> np.ndarray[Any, Any]:
    """Stored slices whose value in HU is ten times their height in mm."""
    return np.stack([np.full((ROWS, COLUMNS), round(10 * height) + 1024, np.uint16) for height in heights])


def write_at(folder: Path, heights: list[float], **options: Any) -> None:
    write_series(folder, ramp(heights), [(0, 0, height) for height in heights], **options)


HEIGHTS_AND_HOLES = [
    *(([3, 3, 3, 3], {}), ([3, 3, 6, 3, 3], {2: 1}), ([3, 6, 3], {1: 1}), ([3, 3, 3, 12], {3: 3})),
    *(([3, 3, 3, 6, 6, 3, 3, 3], {3: 1, 4: 1}), ([4, 4, 4, 8, 8, 8], {}), ([4, 4, 4, 7, 7, 7], {})),
    *(([4, 4, 4, 5.3, 4], {}), ([5, 5, 5, 2.5, 5, 5], {}), ([28.01, 4.0, 4.0, 1.08, 7.0, 7.0, 35.0], {})),
    ([1, 1, 1, 1, 2, 5, 5, 5, 10, 5], {4: 1, 8: 1}),
]


def test_a_gap_is_a_hole_where_it_is_a_multiple_of_the_regular_gap_beside_it():
    for gaps, expected in HEIGHTS_AND_HOLES:
        assert find_missing_slices(np.array(gaps, np.float64)) == expected, gaps


def test_a_missing_slice_is_refused_or_filled_and_unequal_gaps_are_resampled_or_refused(tmp_path):
    write_at(tmp_path, [0, 3, 6, 12, 15, 18])
    error = refusal(tmp_path)
    assert (error.stage, error.reason) == ("read", "slices are missing")
    missing = "1 of them, at gaps of 6.0 mm; 3.00 mm is typical"
    assert error.detail == f"{missing}; --fill-missing-slices interpolates them"
    scan = open_folder(tmp_path, missing_slice="correct")
    assert scan.grid.shape[0] == 7 and scan.grid.spacing_mm[0] == 3
    assert details(scan) == {"slices are missing": ("corrected", "1 interpolated, at gaps of 6.0 mm")}
    assert scan.read()[:, 0, 0, 0].tolist() == [0, 30, 60, 90, 120, 150, 180]
    heights = [0, 4, 8, 12, 18.5, 25, 31.5, 38]
    write_at(tmp_path / "b", heights)
    scan = open_folder(tmp_path / "b")
    depth, spacing = scan.grid.shape[0], scan.grid.spacing_mm[0]
    assert spacing == pytest.approx(38 / (depth - 1)) and abs(spacing - 4) < 0.3
    assert details(scan)["unequal gaps"] == ("corrected", f"4.0 to 6.5 mm; resampled every {spacing:.2f} mm")
    np.testing.assert_allclose(scan.read()[:, 0, 0, 0], 10 * spacing * np.arange(depth), atol=0.5)
    assert refusal(tmp_path / "b", unequal_gaps="refuse").reason == "gaps between slices are unequal"


@pytest.mark.parametrize("lost", [[1, 5, 8], [1, 2, 4, 7], [2, 4, 6, 7]])
def test_slices_missing_at_random_are_refused_or_filled_where_the_thickness_says_how_they_lay(tmp_path, lost):
    """Gaps of 6, 3, 3, 6, 3, 6 mm have no gap that most share; slices 3 mm thick say that 3 mm was meant."""
    heights = [3.0 * index for index in range(10) if index not in lost]
    write_at(tmp_path, heights, thickness=3.0)
    error = refusal(tmp_path)
    assert error.reason == "slices are missing" and "--fill-missing-slices" in error.detail
    scan = open_folder(tmp_path, missing_slice="correct")
    assert set(details(scan)) == {"slices are missing"}
    assert scan.grid.spacing_mm[0] == 3
    assert scan.read()[:, 0, 0, 0].tolist() == [30 * index for index in range(10)]


@pytest.mark.parametrize("heights", [[0, 3, 6, 185, 188], [0, 3, 7, 186], [0, 5, 9, 70, 75]])
def test_two_stacks_far_apart_are_refused_under_every_policy(tmp_path, heights):
    write_at(tmp_path, heights)
    assert refusal(tmp_path, missing_slice="correct").reason == "slices are missing"


@settings(max_examples=60, deadline=None)
@given(
    gaps=st.lists(st.floats(0.02, 40), min_size=2, max_size=12),
    values=st.lists(st.integers(0, 99), min_size=13),
)
def test_the_plan_interpolates_between_neighboring_slices_and_never_grows_without_bound(gaps, values):
    heights = np.concatenate([[0], np.cumsum(gaps)])
    positions = np.outer(heights, [0, 0, 1.0])
    try:
        plan = plan_slices(positions, AXIAL, None, SeriesPolicy(missing_slice="correct"))
    except SourceError as error:
        if error.reason != "slices are missing":
            raise
        return
    lower, weight = np.array(plan.lower), np.array(plan.weight)
    stored = np.array(values[: len(heights)], np.float64)
    made = stored[lower] * (1 - weight) + stored[np.minimum(lower + 1, len(gaps))] * weight
    at = plan.step_mm[2] * np.arange(len(lower))
    assert at[-1] == pytest.approx(heights[-1])
    names = {finding.name for finding in plan.findings}
    if names:
        np.testing.assert_allclose(made, np.interp(at, heights, stored), atol=0.2)
    if "slices are missing" not in names:
        assert len(lower) <= MAX_GROWTH * len(gaps) + 1


@pytest.mark.parametrize("degrees", [-18, 16])
def test_gantry_tilt_leaves_every_voxel_where_its_slice_says(tmp_path, degrees):
    angle = np.radians(degrees)
    orientation = (1, 0, 0, 0, np.cos(angle), np.sin(angle))
    positions = [(5.0, 6.0, 4.0 * index) for index in range(6)]
    write_series(tmp_path, ramp([0] * 6), positions, orientation=orientation, thickness=None)
    scan = open_folder(tmp_path)
    tilt = f"{abs(degrees)}.0 degrees; sheared back by resampling"
    assert details(scan) == {"gantry tilt": ("corrected", tilt)}
    firsts = scan.grid.to_mm(np.array([[index, 0, 0] for index in range(6)]))
    # Along the normal, which points down for neither tilt, slices keep their order.
    np.testing.assert_allclose(firsts, np.array(positions) * [-1, -1, 1], atol=1e-9)
    rows = scan.grid.to_mm(np.array([[0, 2, 0]]))[0] - firsts[0]
    np.testing.assert_allclose(rows, [0, -2 * np.cos(angle), 2 * np.sin(angle)], atol=1e-9)
    assert refusal(tmp_path, tilt="refuse").reason == "gantry is tilted"


STRAYS = [  # the places of slices, x or y where it is not 0, and what is advised
    ([0, 2, (0, 9, 4), 6, 8], r"\d+-2.dcm alone: take it out of the folder"),
    ([(0, 9, 0), 2, 4, 6, 8], r"\d+-0.dcm alone: take it out of the folder"),
    ([0, 2, (9, 0, 4), (9, 0, 6)], "--series-identity folder"),
    ([0, 2, 4, 90], r"\d+-3.dcm lies alone .* take it out of the folder"),
    ([0, 2, 90, 92], r"-1.dcm and \d+-2.dcm; .* --series-identity folder"),
    ([0, (0, 3, 2), 4, 6], "slices are shifted against each other"),
]


@pytest.mark.parametrize(("places", "advice"), STRAYS)
def test_a_stray_slice_is_named_and_two_ranges_are_told_how_to_become_two_scans(tmp_path, places, advice):
    lying = [place if isinstance(place, tuple) else (0, 0, place) for place in places]
    write_series(tmp_path, ramp(list(range(len(places)))), lying)
    error = refusal(tmp_path)
    assert re.search(advice, str(error)) and "--fill-missing-slices" not in error.detail


def test_the_same_image_twice_is_dropped_and_another_image_at_its_place_is_refused(tmp_path):
    write_at(tmp_path, [0, 2, 4])
    write_at(tmp_path / "again", [2, 4])
    scan = open_folder(tmp_path)
    treatment, detail = details(scan)["duplicates"]
    assert treatment == "corrected" and detail.startswith("2 of 5")
    assert scan.read()[:, 0, 0, 0].tolist() == [0, 20, 40] and len(scan.files) == 3
    assert refusal(tmp_path, duplicates="refuse").reason == "slices are duplicated"
    save(image_dataset(ramp([7])[0], position=(0, 0, 4)), tmp_path / "other.dcm")
    assert refusal(tmp_path).reason == "different images at one position"


def test_overlapping_slices_are_noted_and_positions_rounded_to_tenths_of_a_millimeter_regular(tmp_path):
    write_at(tmp_path, [0, 2, 4], thickness=3)
    overlap = "slices 3 mm thick lie 2.00 mm apart"
    assert details(open_folder(tmp_path)) == {"overlapping slices": ("noted", overlap)}
    assert refusal(tmp_path, overlapping="refuse").reason == "slices overlap"
    write_at(tmp_path / "b", [round(0.625 * index, 1) for index in range(20)], thickness=None)
    assert open_folder(tmp_path / "b").findings == ()


def round_field(values: np.ndarray, padding: int) -> tuple[np.ndarray, np.ndarray]:
    """A square slice with padding outside a circle, and where that is."""
    side = len(values)
    outside = np.hypot(*(np.indices(values.shape) - (side - 1) / 2)) > side / 2
    return np.where(outside, np.array(padding).astype(values.dtype), values), outside


LOW, HIGH = {"PixelPaddingValue": -2010}, {"PixelPaddingValue": -2000}
PADDINGS = [
    ("signed, declared as unsigned 63536", np.int16, -2000, (1, -1024), {"PixelPaddingValue": 63536}, 16),
    ("signed, -2000 declared", np.int16, -2000, (1, -1024), HIGH, 16),
    ("unsigned 63536", np.uint16, 63536, (1, -1024), {"PixelPaddingValue": 63536}, 16),
    ("outside the 12 bits stored", np.uint16, 0xF830, (1, -1024), {"PixelPaddingValue": 63536}, 12),
    ("a range", np.int16, -2005, (1, 0), {**LOW, "PixelPaddingRangeLimit": -2000}, 16),
    ("a range the other way", np.int16, -2005, (1, 0), {**HIGH, "PixelPaddingRangeLimit": -2010}, 16),
    ("not declared, but all corners are -3024 HU", np.int16, -2000, (1, -1024), {}, 16),
    ("an intercept that makes it -1024 HU", np.int16, 0, (1, -1024), {"PixelPaddingValue": 0}, 16),
]


def with_padding(dataset: Dataset, tags: dict[str, int]) -> Dataset:
    """Padding tags whose bits are what they are, whatever the sign of the pixels says about their VR."""
    for keyword, value in tags.items():
        dataset.add_new(keyword, "SS" if value < 0 else "US", value)
    return dataset


@pytest.mark.parametrize(("kind", "dtype", "padding", "rescale", "tags", "bits"), PADDINGS, ids=lambda _: "")
def test_padding_becomes_air_and_nothing_else_does(tmp_path, kind, dtype, padding, rescale, tags, bits):
    real = np.random.default_rng(1).integers(1030, 2500, (16, 16)).astype(dtype)
    pixels, outside = round_field(real, padding)
    for index in range(3):
        dataset = image_dataset(pixels, position=(0, 0, index), rescale=rescale, bits_stored=bits)
        save(with_padding(dataset, tags), tmp_path / f"{index}.dcm")
    scan = open_folder(tmp_path)
    expected = np.where(outside, -1000, real.astype(np.int64) + rescale[1])
    np.testing.assert_array_equal(scan.read()[..., 0], np.stack([expected] * 3))
    assert scan.unit == "HU" and details(scan)["padding values"][0] == "corrected"
    assert refusal(tmp_path, padding="refuse").reason == "series has padding values"


def test_padding_of_an_mr_becomes_0_unless_tissue_has_it_or_jpeg_2000_spread_it(tmp_path):
    """In JPEG-LS it is found by the tolerance that the file states."""
    zeros = np.zeros((ROWS, COLUMNS), np.int16)
    save(image_dataset(zeros, rescale=(1, 0), more={"PixelPaddingValue": 0}), tmp_path / "ct/a.dcm")
    scan = open_folder(tmp_path / "ct")
    assert details(scan)["padding values"][0] == "noted" and not scan.read().any()
    pixels, outside = round_field(np.full((16, 16), 300, np.uint16), 65535)
    mr = image_dataset(pixels, modality="MR", rescale=None, more={"PixelPaddingValue": 65535})
    save(mr, tmp_path / "mr/a.dcm")
    scan = open_folder(tmp_path / "mr")
    np.testing.assert_array_equal(scan.read()[0, ..., 0], np.where(outside, 0, 300))
    assert scan.dtype == "uint16" and scan.unit == "" and scan.modality == "MR"
    pixels, outside = drawn(4000, 100, 900, np.uint16)
    given = {"PixelPaddingValue": 4000}, {"modality": "MR", "rescale": None}
    lossy(tmp_path / "2000", pixels, JPEG2000, given[0], **given[1])
    assert padding_of(open_folder(tmp_path / "2000"))[0] == "noted"
    stored = lossy(tmp_path / "ls", pixels, JPEGLSNearLossless, given[0], **given[1])
    assert (stored[outside] != 4000).any()
    scan = open_folder(tmp_path / "ls")
    np.testing.assert_array_equal(scan.read()[0, ..., 0], np.where(outside, 0, stored))
    assert padding_of(scan)[0] == "corrected"


NOT_CERTAIN = "values are not certain to be Hounsfield units"
RESCALES = [
    ("CT", {"rescale": (1, -1024), "bits_stored": 12}, "int16", "HU", None),
    ("CT", {"rescale": (1, -1024), "rescale_type": "HU"}, "int32", "HU", None),
    ("CT", {"rescale": (0.5, -1000)}, "float32", "HU", None),
    ("CT", {"rescale": None}, "uint16", "", "no rescale slope"),
    ("CT", {"rescale": (1, 0), "rescale_type": "US"}, "uint16", "", NOT_CERTAIN),
    ("CT", {"rescale": (1, 0), "rescale_type": "DOE^JOHN"}, "uint16", "", NOT_CERTAIN),
    ("MR", {"rescale": None, "bits_stored": 8}, "uint8", "", None),
    ("MR", {"rescale": (2, 0), "bits_stored": 12}, "int16", "", None),
    ("PT", {"rescale": (0.123, 0)}, "float32", "", None),
]


@pytest.mark.parametrize(("modality", "options", "dtype", "unit", "finding"), RESCALES)
def test_rescaled_values_are_exact_in_the_smallest_dtype_and_hounsfield_units_only_where_the_header_says_so(
    tmp_path, modality, options, dtype, unit, finding
):
    pixels = np.arange(ROWS * COLUMNS, dtype=np.uint16).reshape(ROWS, COLUMNS)
    save(image_dataset(pixels, modality=modality, **options), tmp_path / "a.dcm")
    scan = open_folder(tmp_path)
    slope, intercept = options["rescale"] or (1, 0)
    expected = (pixels.astype(float) * slope + intercept).astype(dtype)
    np.testing.assert_array_equal(scan.read()[0, ..., 0], expected)
    assert (scan.dtype, scan.unit, str(scan.read().dtype)) == (dtype, unit, dtype)
    assert set(details(scan)) - {"single slice"} == ({finding} if finding else set())
    assert "DOE" not in str(scan.findings)


@settings(max_examples=100, deadline=None)
@given(
    allocated=st.sampled_from([8, 16, 32]),
    signed=st.booleans(),
    data=st.data(),
    words=st.lists(st.integers(0, 2**32 - 1), min_size=1),
)
def test_unused_bits_never_reach_a_value(allocated, signed, data, words):
    stored = data.draw(st.integers(1, allocated))
    high = data.draw(st.integers(stored - 1, allocated - 1))
    array = np.array([word % 2**allocated for word in words], f"u{allocated // 8}")
    pixels = {"size": (1, 1), "samples": 1, "photometric": "", "padding": None, "signed": signed}
    kind = PixelFormat(**pixels, bits_allocated=allocated, bits_stored=stored, high_bit=high)
    expected = []
    for word in array.tolist():
        bits = f"{word:0{allocated}b}"[allocated - 1 - high : allocated - 1 - high + stored]
        expected.append(int(bits, 2) - (2**stored if signed and bits[0] == "1" else 0))
    assert extract_values(array, kind).tolist() == expected


OBLIQUE = {"orientation": (1, 0, 0, 1, 0, 0)}
FLOATS = {"more": {"PixelData": None, "FloatPixelData": b"\0" * 168}}
PADDED = {
    "more": FLOATS["more"]
    | {"BitsAllocated": 32, "BitsStored": None, "HighBit": None, "FloatPixelPaddingValue": -1.0}
}
REFUSALS = [
    ("several series, or several stacks in one", {}, {"spacing": (1, 1.1)}),
    ("pixel spacing is missing", {}, {"more": {"PixelSpacing": None}}),
    ("pixel spacing is not positive", {"spacing": (1, 0)}, {"spacing": (1, 0)}),
    ("orientation is not two perpendicular unit vectors", OBLIQUE, OBLIQUE),
    ("some slices have no rescale slope", {}, {"rescale": None}),
    ("rescale slope is 0", {"rescale": (0, 1)}, {}),
    ("floating-point pixels are not supported", FLOATS, FLOATS),
    ("floating-point pixels are not supported", PADDED, PADDED),
    ("DICOM file is damaged", {}, {"more": {"BitsStored": 17}}),
    ("DICOM file is damaged", {}, {"more": {"Rows": 0}}),
    ("DICOM file is damaged", {}, {"more": {"Columns": None}}),
]


@pytest.mark.parametrize(("reason", "first", "second"), REFUSALS)
def test_slices_that_do_not_fit_together_are_refused(tmp_path, reason, first, second):
    for index, options in enumerate([first, second]):
        dataset = image_dataset(ramp([index])[0], position=(0, 0, index), **options)
        save(dataset, tmp_path / f"{index}.dcm")
    assert refusal(tmp_path).reason == reason


def test_look_up_tables_are_refused_and_monochrome1_leaves_the_values(tmp_path):
    table = item(LUTDescriptor=[2, 0, 16], ModalityLUTType="HU", LUTData=[0, 1])
    for element in (table["LUTDescriptor"], table["LUTData"]):
        element.VR = "US"
    save(image_dataset(ramp([1])[0], more={"ModalityLUTSequence": [table]}), tmp_path / "a.dcm")
    assert refusal(tmp_path).reason == "modality look-up tables are not supported"
    save(image_dataset(ramp([5])[0], more={"PhotometricInterpretation": "MONOCHROME1"}), tmp_path / "a.dcm")
    scan = open_folder(tmp_path)
    assert (scan.read() == 50).all() and details(scan)["MONOCHROME1"][0] == "noted"


SIDE = 64


def drawn(padding: int, least: int, most: int, dtype: type) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """A slice of a smooth body in noise with padding outside a circle, and where that is."""
    rows, columns = np.indices((SIDE, SIDE)) - (SIDE - 1) / 2
    radius = np.hypot(rows, columns)
    body = np.interp(radius, [0, 20, 24, 32], [most, most, least, least])
    body = body + np.random.default_rng(2).normal(0, 8, radius.shape)
    body = np.clip(body, least, most)
    outside = radius > SIDE / 2 - 2
    return np.where(outside, padding, np.rint(body)).astype(dtype), outside


def lossy(folder, pixels, syntax, more, **options):
    """Write three slices in a lossy transfer syntax; gives the stored values that the decoder makes of one."""
    for index in range(3):
        dataset = image_dataset(pixels, position=(0, 0, index), more=more, **options)
        path = save(dataset, folder / f"{index}.dcm")
        if syntax == JPEGLSNearLossless:
            dataset.compress(syntax, jls_error=6, encoding_plugin="pyjpegls", generate_instance_uid=False)
        elif syntax == JPEG2000:
            dataset.compress(syntax, j2k_cr=[12], encoding_plugin="pylibjpeg", generate_instance_uid=False)
        dataset.save_as(path, enforce_file_format=True)
        decoded = dataset.pixel_array
    return decoded


def padding_of(scan: Scan) -> tuple[str, str]:
    (finding,) = [one for one in scan.findings if one.name == "padding values"]
    return finding.treatment, finding.detail


TAGS = [{"PixelPaddingValue": -2000}, {"PixelPaddingValue": -2000, "PixelPaddingRangeLimit": -2010}, {}]


@pytest.mark.parametrize("syntax", [JPEG2000, JPEGLSNearLossless])
@pytest.mark.parametrize("tags", TAGS, ids=["value", "range", "not declared"])
def test_no_value_below_air_is_left_of_spread_padding(tmp_path, syntax, tags):
    pixels, outside = drawn(-2000, 24, 1100, np.int16)
    stored = lossy(tmp_path, pixels, syntax, tags)
    assert len(np.unique(stored[outside])) > 1, "the rim is not of one value"
    scan = open_folder(tmp_path)
    voxels = scan.read()[1, ..., 0]
    assert voxels.min() >= -1024
    deep = np.hypot(*(np.indices((SIDE, SIDE)) - (SIDE - 1) / 2)) > SIDE / 2 + 4
    assert (voxels[deep] == -1000).all()
    kept = stored.astype(int) - 1024 >= -1024
    np.testing.assert_array_equal(voxels[kept], (stored.astype(int) - 1024)[kept])
    treatment, detail = padding_of(scan)
    assert treatment == "corrected" and "below -1024 HU are set to -1000 HU" in detail
    assert refusal(tmp_path, padding="refuse").reason == "series has padding values"


def test_padding_spread_before_the_file_was_unpacked_or_of_another_rim_than_declared_is_padding_too(tmp_path):
    pixels, outside = drawn(-2000, 24, 1100, np.int16)
    pixels[outside] += np.random.default_rng(1).integers(-900, 900, outside.sum()).astype(np.int16)
    more = {"PixelPaddingValue": -2000, "LossyImageCompression": "01"}
    lossy(tmp_path, pixels, ExplicitVRLittleEndian, more)
    voxels = open_folder(tmp_path).read()[0, ..., 0]
    assert (voxels[outside] == -1000).mean() > 0.95 and voxels.min() >= -1024
    pixels, outside = drawn(-2048, 24, 1100, np.int16)
    lossy(tmp_path, pixels, ExplicitVRLittleEndian, {"PixelPaddingValue": -2000})
    scan = open_folder(tmp_path)
    voxels = scan.read()[0, ..., 0]
    np.testing.assert_array_equal(voxels, np.where(outside, -1000, pixels.astype(int) - 1024))
    assert len([one for one in scan.findings if one.name == "padding values"]) == 2


def test_high_padding_is_cut_halfway_and_padding_beside_air_left_with_a_finding(tmp_path):
    pixels, _ = drawn(63536, 24, 1100, np.uint16)
    lossy(tmp_path, pixels, JPEG2000, {"PixelPaddingValue": 63536})
    scan = open_folder(tmp_path)
    assert scan.read().max() <= 32756 and "above 32756 HU" in padding_of(scan)[1]
    pixels, _ = drawn(0, 24, 1100, np.uint16)
    stored = lossy(tmp_path, pixels, JPEG2000, {"PixelPaddingValue": 0})
    scan = open_folder(tmp_path)
    np.testing.assert_array_equal(scan.read()[0, ..., 0], stored.astype(int) - 1024)
    treatment, detail = padding_of(scan)
    assert treatment == "noted" and "left as they are: lossy compression has changed them" in detail
