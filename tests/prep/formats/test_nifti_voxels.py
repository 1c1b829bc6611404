"""Do the voxels keep their exact values, in the smallest type that holds them, within the stated memory?"""

import contextlib
import gzip
import warnings
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from halofeed.errors import SourceError
from halofeed.prep.formats.volume import voxel_values
from halofeed.prep.formats.volume.streams import MAX_DEFLATE_RATIO
from halofeed.prep.formats.volume_formats import ScanOptions, open_mask, open_scan
from halofeed.prep.geometry.scan import Grid
from tests.support.allocations import traced
from tests.support.nifti_writer import MemoryFiles, open_nifti, open_nifti_mask, write_header, write_nifti

DTYPES = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8")
NAN, INF = float("nan"), float("inf")


def stored_values(name: str) -> Any:
    """Arrays [i, j, k] or with channels, full of a type's extremes; finite."""
    dtype = np.dtype(name)
    elements: Any
    if dtype.kind == "f":
        elements = st.floats(width=8 * dtype.itemsize, allow_nan=False, allow_infinity=False)
    else:
        info = np.iinfo(dtype)
        elements = st.sampled_from([info.min, info.max, 0, 1]) | st.integers(info.min, info.max)
    return arrays.arrays(dtype, arrays.array_shapes(min_dims=3, max_dims=4, max_side=4), elements=elements)


def exact(stored: Any, slope: float, inter: float) -> Any:
    """The values [depth, height, width, channel] in Python's exact integers, or float64."""
    padded = stored.reshape(*stored.shape[:3], -1).transpose(2, 1, 0, 3)
    if stored.dtype.kind in "iu" and slope.is_integer() and inter.is_integer():
        return padded.astype(object) * int(slope) + int(inter)
    return padded.astype(np.float64) * slope + inter


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_every_type_order_and_rescaling_gives_the_exact_values_or_a_refusal(drawn):
    stored = drawn.draw(st.sampled_from(DTYPES).flatmap(stored_values))
    slope = drawn.draw(st.sampled_from([0.0, NAN, 1.0, -1.0, 3.0, 0.5, 0.1, 2.0**20, 2.0**40, 1e30]))
    inter = drawn.draw(st.sampled_from([0.0, -1024.0, 0.25, 2.0**30, 1e30]))
    order, version = drawn.draw(st.sampled_from("<>")), drawn.draw(st.sampled_from((1, 2)))
    data = write_nifti(stored, order, version, scl_slope=slope, scl_inter=inter)
    data = gzip.compress(data, 1) if drawn.draw(st.booleans()) else data
    header_type = float if version == 2 else np.float32
    used = (float(header_type(slope)), float(header_type(inter))) if slope and slope == slope else (1.0, 0.0)
    scan = open_nifti(data)
    with np.errstate(all="ignore"):
        expected = exact(stored, *used)
    limits = np.finfo("f4") if scan.dtype == "float32" else np.iinfo(scan.dtype)
    with np.errstate(all="ignore"):
        rounded = expected.astype(np.float32) if scan.dtype == "float32" else expected
        fits = bool(np.isfinite(rounded).all() if scan.dtype == "float32" else True)
        fits = fits and (
            scan.dtype == "float32" or (limits.min <= expected.min() and expected.max() <= limits.max)
        )
    if not fits:
        with pytest.raises(SourceError, match="do not fit"):
            scan.read()
        return
    voxels = scan.read()
    assert voxels.dtype == np.dtype(scan.dtype).newbyteorder("<")
    assert voxels.shape == (*scan.grid.shape, scan.channels)
    np.testing.assert_array_equal(voxels, rounded.astype(scan.dtype))


def test_the_type_follows_from_the_header():
    for stored, slope, inter, expected in (
        *(("u1", 1, 0, "uint8"), ("u1", 0, 5, "uint8"), ("u1", 1, -128, "int8"), ("u1", 1, -1024, "int16")),
        *(("u1", 2, 0, "uint16"), ("u2", 1, -1024, "int32"), ("i2", 1, 0, "int16"), ("i4", 1, 0, "int32")),
        *(("i2", 1, -1024, "int32"), ("i2", 0.5, 0, "float32"), ("i2", 1, 0.5, "float32")),
        *(("u4", 1, 0, "int32"), ("i8", 1, 0, "int32"), ("f4", 1, 0, "float32"), ("f8", 1, -1024, "float32")),
    ):
        scan = open_nifti(write_nifti(np.ones((2, 2, 2), stored), scl_slope=slope, scl_inter=inter))
        assert scan.dtype == expected
        noted = [finding.name for finding in scan.findings]
        assert noted == (["rescale ignored"] if slope == 0 else [])


@pytest.mark.parametrize("stored", ["i8", "u8", "u4"])
def test_integers_beyond_32_bits_are_refused_when_they_are_met(stored):
    values = np.zeros((2, 2, 2), stored)
    values[1, 1, 1] = 2**31
    scan = open_nifti(write_nifti(values))
    with pytest.raises(SourceError, match="voxels do not fit in 32 bits"):
        scan.read()
    values[1, 1, 1] -= 1
    assert open_nifti(write_nifti(values)).read().max() == 2**31 - 1


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("slope", [1.0, 0.5])
def test_voxels_that_are_no_number_are_refused_or_set_to_what_is_asked_for(dtype, order, bad, slope):
    values = np.arange(24, dtype=dtype).reshape(2, 3, 4)
    values[1, 2, 3] = bad
    data = write_nifti(values, order, scl_slope=slope, scl_inter=0)
    with pytest.raises(SourceError, match="voxels that are no number"):
        open_nifti(data).read()
    scan = open_nifti(data, non_finite_value=-1000)
    values[1, 2, 3] = -1000 / slope
    np.testing.assert_array_equal(scan.read()[..., 0], values.transpose(2, 1, 0) * slope)
    (finding,) = scan.findings
    assert finding.treatment == "corrected" and finding.detail == "1 voxel set to -1000"
    clean = write_nifti(np.ones((2, 2, 2), dtype), order)
    assert open_nifti(clean, non_finite_value=0).findings == ()


def test_masks_of_scaled_floats_are_rounded_and_float64_beyond_float32_is_refused():
    data = write_nifti(np.full((2, 2, 2), 1e300))
    for value in (None, 0):
        with pytest.raises(SourceError, match="voxels do not fit in float32"):
            open_nifti(data, non_finite_value=value).read()
    stored = np.array([0, 1, 7, 255], np.float32).reshape(4, 1, 1) / 255
    assert read_mask(stored, scl_slope=255, scl_inter=0).ravel().tolist() == [0, 1, 7, 255]


def quantized(values: Any, dtype: str) -> Any:
    """Return a mask that nibabel stored with a slope, as it does for floats below a header of integers."""
    image = nib.Nifti1Image(np.asarray(values, np.float64).reshape(-1, 1, 1), np.eye(4))
    image.set_data_dtype(dtype)
    return open_nifti_mask(image.to_bytes())


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "u2"])
@pytest.mark.parametrize(
    "labels", [[0, 1, 2], [0, 1, 2, 5, 7], [0, 1], [1, 2, 4], [0, 77, 117], [0, 99, 200], [0, 3, 61]]
)
def test_labels_saved_through_floats_are_the_nearest_whole_numbers(labels, dtype):
    mask = quantized(labels, dtype)
    assert mask.read().ravel().tolist() == labels
    written = nib.Nifti1Image(np.asarray(labels, np.float64).reshape(-1, 1, 1), np.eye(4))
    written.set_data_dtype(dtype)
    distance = np.abs(nib.Nifti1Image.from_bytes(written.to_bytes()).get_fdata().ravel() - labels).max()
    is_noted = any(finding.name == "mask saved through floats" for finding in mask.findings)
    assert is_noted == (distance > voxel_values.LABEL_TOLERANCE)


@pytest.mark.parametrize("dtype", ["u1", "i2"])
@pytest.mark.parametrize(
    "values", [np.linspace(0, 1, 30), [0, 0.5, 1], [0, 0.9], np.linspace(-900, 900, 99), [0, 1, 2, 600]]
)
def test_probabilities_and_scans_saved_through_floats_are_not_rounded(values, dtype):
    if dtype == "i2" and 600 in values:
        pytest.skip("16 bits hold 600 labels in steps below 1")
    mask = quantized(values, dtype)
    with pytest.raises(SourceError, match="mask values are not whole numbers"):
        mask.read()


@pytest.mark.parametrize("slope", [1 / 16384, 1 / 65535, 1e-5])
def test_labels_that_a_wrong_slope_makes_tiny_are_refused_and_do_not_all_become_background(slope):
    stored = np.array([0, 1, 2], np.int16).reshape(3, 1, 1)
    with pytest.raises(SourceError) as caught:
        read_mask(stored, scl_slope=slope, scl_inter=0)
    assert "would all become 0; stored are 0 to 2 with a slope of" in caught.value.detail
    with pytest.raises(SourceError, match="would all become 0; save labels as integers"):
        read_mask(stored.astype(np.float32) * np.float32(slope))
    for empty in (np.zeros_like(stored), np.float32([[[0]], [[1e-8]]])):
        assert not read_mask(empty, scl_slope=slope, scl_inter=0).any()
    assert read_mask(stored[1:2], scl_slope=1 + 1e-7, scl_inter=0).ravel().tolist() == [1]


def test_floats_that_came_through_8_bits_are_refused_with_the_way_to_whole_numbers():
    image = nib.Nifti1Image(np.array([0.0, 1, 2, 5, 7]).reshape(-1, 1, 1), np.eye(4))
    image.set_data_dtype("u1")
    floats = nib.Nifti1Image.from_bytes(image.to_bytes()).get_fdata(dtype=np.float32)
    with pytest.raises(SourceError, match=r"rounded to one of 255 steps: save the nearest whole .*np\.rint"):
        read_mask(floats)
    assert read_mask(np.rint(floats).astype(np.uint8)).ravel().tolist() == [0, 1, 2, 5, 7]
    with pytest.raises(SourceError, match="Probabilities have to be made classes first"):
        read_mask(np.float32([[[0.0]], [[0.3]], [[1.0]]]))


def read_mask(stored: Any, **fields: Any) -> Any:
    return open_nifti_mask(gzip.compress(write_nifti(stored, **fields))).read()


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(DTYPES), st.integers(1, 2**31 - 1), st.booleans(), st.integers(1, 30))
def test_a_mask_of_any_type_keeps_its_classes(dtype, highest, swapped, block):
    if dtype[0] != "f":
        highest = min(highest, int(np.iinfo(dtype).max))
    elif dtype == "f4":
        highest = min(highest, 2**24)
    stored = np.zeros((3, 4, 5), dtype)
    stored[1, 2, 3], stored[2, 3, 4] = min(highest, 200), highest
    normal = voxel_values.BLOCK_VALUES
    voxel_values.BLOCK_VALUES = block  # so that a wider type is needed in the middle
    try:
        labels = read_mask(stored, order=">" if swapped else "<")
    finally:
        voxel_values.BLOCK_VALUES = normal
    assert labels.dtype == ("uint8" if highest < 256 else "uint16" if highest < 65536 else "int32")
    np.testing.assert_array_equal(labels, stored.transpose(2, 1, 0).astype(np.int64))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (0.5, "mask values are not whole numbers"),
        (1.01, "mask values are not whole numbers"),
        (NAN, "mask values are not whole numbers"),
        (INF, "mask values are not whole numbers"),
        (-1.0, "mask has negative values"),
        (2.0**31, "mask values do not fit in 32 bits"),
        (1e30, "mask values do not fit in 32 bits"),
    ],
)
@pytest.mark.parametrize("dtype", ["f4", "f8", "i8"])
def test_values_that_are_no_class_are_refused(value, reason, dtype):
    if dtype == "i8" and not (value.is_integer() and abs(value) < 2**62):
        return
    stored = np.ones((2, 3, 4), dtype)
    stored[1, 1, 1] = value
    with pytest.raises(SourceError) as caught:
        read_mask(stored)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("dtype", "fields", "volumes"),
    [
        ("<i2", {}, 1.0),
        (">i2", {}, 1.0),
        ("<u2", {"scl_slope": 1, "scl_inter": -1024}, 2.0),
        ("<i2", {"scl_slope": 0.5, "scl_inter": 0}, 2.0),
        ("<f8", {}, 0.5),
    ],
)
def test_reading_takes_one_volume_beside_the_file(dtype, fields, volumes):
    """Counted in volumes as stored; 4 MiB are for blocks."""
    stored = np.zeros((128, 128, 512), np.dtype(dtype))
    data = gzip.compress(write_nifti(stored, dtype[0], **fields), 1)
    with traced() as opening:
        scan = open_nifti(data)
    assert opening.peak < 1 << 20
    with traced() as reading:
        voxels = scan.read()
    peak = opening.kept + reading.peak
    assert voxels.nbytes == volumes * stored.nbytes and peak < voxels.nbytes + (4 << 20) + (2 << 20)


def test_an_uncompressed_file_is_not_copied_and_one_that_claims_much_allocates_what_it_can_hold():
    stored = np.zeros((128, 128, 512), np.int16)
    scan = open_nifti(write_nifti(stored))
    with traced() as memory:
        voxels = scan.read()
    assert voxels.shape == (512, 128, 128, 1) and memory.peak < 1 << 20
    data = gzip.compress(write_header((30000, 30000, 30000), np.float64))
    assert try_to_read(data, HUGE) < 1 << 20
    bomb = gzip.compress(write_header((4, 4, 4), np.uint8) + bytes(50_000_000))
    assert try_to_read(bomb, HUGE) < BLOCKS_BYTES


RANDOM = np.random.default_rng(5)
NOISE = RANDOM.integers(-999, 999, (9, 8, 7)).astype(np.int16)
BLOCKS_BYTES = 6 << 20
SEEDS = [
    write_nifti(NOISE),
    write_nifti(NOISE, ">"),
    write_nifti(NOISE.astype(np.float32), version=2, scl_slope=2, scl_inter=1),
    write_nifti(NOISE.astype(np.float64), ">", sform_code=0),
    write_nifti(NOISE, sform_code=0, qform_code=0, xyzt_units=1),
]
NO_GRID = Grid(shape=(1, 1, 1), affine=np.eye(4))  # which masks of these files do without
PAIR = {"a.hdr": write_header(NOISE.shape, np.int16, kind="analyze"), "a.img": NOISE.tobytes("F")}


def try_to_read(data: bytes, options: ScanOptions) -> int:
    """The most bytes allocated on the way; anything but SourceError, warnings too, is raised."""
    files = MemoryFiles({"a.nii": data})
    with traced() as memory:
        with contextlib.suppress(SourceError):
            open_scan(files, "a.nii", (), options).read()
        with contextlib.suppress(SourceError):
            open_mask(files, "a.nii", NO_GRID, options).read()
    return memory.peak


HUGE = ScanOptions(max_voxels=2**200, non_finite_value=0)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(0, 560), st.integers(0, 255)), min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from([ScanOptions(), HUGE]),
)
def test_changed_header_bytes_raise_only_source_errors(seed, changes, packed, options):
    data = bytearray(seed)
    for at, value in changes:
        data[at] = value
    content = gzip.compress(bytes(data), 1) if packed else bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        peak = try_to_read(content, options)
    # A byte may become a float32, and a mask may grow from one type to the next.
    assert peak < 8 * MAX_DEFLATE_RATIO * len(content) + BLOCKS_BYTES


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 347), st.integers(0, 255), st.integers(0, 1100))
def test_a_damaged_analyze_pair_raises_only_source_errors(at, value, length):
    header = bytearray(PAIR["a.hdr"])
    header[at] = value
    for body in (PAIR["a.img"], PAIR["a.img"][:length]):
        with contextlib.suppress(SourceError):
            open_nifti({"a.hdr": bytes(header), "a.img": body}, "a.hdr").read()
