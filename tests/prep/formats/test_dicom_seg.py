"""Do the frames of DICOM segmentations land on exactly the voxels that they were made of?"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pydicom
import pytest
from numpy.typing import NDArray

from halofeed.errors import SourceError
from halofeed.prep.formats.dicom.mask_files import class_names, open_dicom_mask
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.sources.files import LocalFiles
from halofeed.prep.voxels.label_volumes import OVERLAP_HINT
from tests.support.dicom_folders import damage, last_wins, mask_outcome
from tests.support.dicom_folders import mask_refusal as refused
from tests.support.dicom_folders import open_mask as opened
from tests.support.dicom_mask_writer import frames_of, saved, segmentation

AXIAL = np.array([[0, 0, -0.8, 90.0], [0, -0.7, 0, 60.0], [2.5, 0, 0, -40.0], [0, 0, 0, 1]])
RLE, JPEG_2000, JPEG_LS = "1.2.840.10008.1.2.5", "1.2.840.10008.1.2.4.90", "1.2.840.10008.1.2.4.80"
IMPLICIT, DEFLATED = "1.2.840.10008.1.2", "1.2.840.10008.1.2.1.99"
NAMES = {1: "liver", 2: "spleen", 7: "Ganglion stellatum"}


def oblique(seed: int, spacing: tuple[float, float, float] = (2.5, 0.7, 0.8)) -> NDArray[np.float64]:
    """An affine of a random rotation."""
    rng = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(rng.standard_normal((3, 3)))
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = rotation * spacing, rng.uniform(-200, 200, 3)
    return affine


def sheared(affine: NDArray[np.float64], share: float = 0.3) -> NDArray[np.float64]:
    """As of a tilted gantry: every slice a bit further along the rows than the one before."""
    tilted = affine.copy()
    tilted[:3, 0] += share * tilted[:3, 1] * 3
    return tilted


def ellipsoids(shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Three ellipsoids that do not touch, classes 1, 2 and 7; the first and last slice are empty."""
    index = np.stack(np.meshgrid(*(np.arange(side) / (side - 1) for side in shape), indexing="ij"), axis=-1)
    labels = np.zeros(shape, np.uint8)
    for value, center, radii in (
        (1, (0.5, 0.3, 0.3), (0.4, 0.2, 0.25)),
        (2, (0.6, 0.7, 0.7), (0.3, 0.2, 0.2)),
        (7, (0.2, 0.8, 0.2), (0.15, 0.12, 0.15)),
    ):
        labels[(((index - center) / radii) ** 2).sum(axis=-1) <= 1] = value
    return labels


LABELS = ellipsoids((12, 37, 43))  # 1591 pixels a frame: no frame but the first begins on a byte
GRID = Grid(shape=LABELS.shape, affine=AXIAL)


def frames(labels: NDArray[Any] = LABELS, seed: int | None = 0) -> list[tuple[int, int, NDArray[Any]]]:
    """Frames of all classes, empty ones left out, shuffled."""
    found = [
        (value, index, pixels)
        for value in np.unique(labels[labels > 0]).tolist()
        for index, pixels in frames_of(labels, value).items()
    ]
    if seed is not None:
        np.random.default_rng(seed).shuffle(found)
    return found


def test_a_mask_is_read_completely_once_and_its_names_from_its_first_bytes(tmp_path, monkeypatch):
    labels = np.repeat(LABELS, 40, axis=0)
    (tmp_path / "seg.dcm").write_bytes(saved(segmentation(frames(labels), AXIAL, NAMES)))
    files, read = LocalFiles(tmp_path), []
    for name in ("read", "head"):
        real = getattr(LocalFiles, name)
        monkeypatch.setattr(
            LocalFiles,
            name,
            lambda self, *given, real=real, name=name: read.append(name) or real(self, *given),
        )
    assert set(class_names(files, "seg.dcm").values()) == set(NAMES.values())
    assert read == ["head"]
    mask = open_dicom_mask(files, "seg.dcm", Grid(shape=labels.shape, affine=AXIAL))
    assert (mask.read() == labels).all() and read == ["head", "read"]
    assert mask.held_bytes == files.size("seg.dcm")


@pytest.mark.parametrize("affine", [AXIAL, oblique(1), oblique(2), sheared(AXIAL), sheared(oblique(3))])
@pytest.mark.parametrize("syntax", ["1.2.840.10008.1.2.1", IMPLICIT, DEFLATED])
def test_binary_frames_land_on_the_voxels_they_were_made_of(affine, syntax):
    dataset = segmentation(frames(), affine, NAMES, syntax=syntax)
    mask = opened(dataset, Grid(shape=LABELS.shape, affine=affine))
    assert np.array_equal(mask.read(), LABELS)
    assert mask.read().dtype == np.uint8 and np.array_equal(mask.grid.affine, affine)
    assert mask.names == NAMES and mask.files == ("mask.dcm",) and mask.findings == ()


TURNS = list(itertools.product(itertools.permutations(range(3)), itertools.product((1, -1), repeat=3)))


@pytest.mark.parametrize(("order", "signs"), TURNS)
def test_frames_land_on_the_same_voxels_however_the_scan_is_turned(order, signs):
    turned = np.transpose(LABELS, order)[tuple(slice(None, None, sign) for sign in signs)]
    affine = AXIAL.copy()
    affine[:3, :3] = AXIAL[:3, list(order)] * signs
    first = [(LABELS.shape[axis] - 1) if sign < 0 else 0 for axis, sign in zip(order, signs, strict=True)]
    affine[:3, 3] = AXIAL[:3, 3] + AXIAL[:3, list(order)] @ first
    mask = opened(segmentation(frames(), AXIAL, NAMES), Grid(shape=turned.shape, affine=affine))
    assert np.array_equal(mask.read(), turned) and mask.grid.shape == turned.shape


def test_without_a_scan_or_on_another_grid_a_segmentation_has_its_own_that_spans_its_frames():
    kept = [frame for frame in frames() if frame[1] not in (4, 5)]
    labels = LABELS.copy()
    labels[4:6] = 0
    for affine in (AXIAL, oblique(4), sheared(oblique(5))):
        mask = opened(segmentation(kept, affine, NAMES))
        used = np.flatnonzero(labels.any(axis=(1, 2)))
        assert mask.grid.shape == (used[-1] - used[0] + 1, 37, 43)
        # Depth may run either way: voxels are compared where they lie in the patient.
        read = mask.read()
        here = np.argwhere(read > 0)
        there = np.rint((mask.grid.to_mm(here) - affine[:3, 3]) @ np.linalg.inv(affine[:3, :3]).T).astype(int)
        assert np.array_equal(read[tuple(here.T)], labels[tuple(there.T)])
        assert len(here) == np.count_nonzero(labels)
    shifted = AXIAL.copy()
    shifted[:3, 3] += AXIAL[:3, 2] / 2  # half a voxel
    for image in (
        Grid(shape=LABELS.shape, affine=shifted),
        Grid(shape=(5, 37, 43), affine=AXIAL),
        Grid(shape=(24, 74, 86), affine=AXIAL @ np.diag([0.5, 0.5, 0.5, 1])),
    ):
        mask = opened(segmentation(frames(), AXIAL, NAMES), image)
        assert mask.grid is not image and mask.grid.shape[1:] == (37, 43)
        assert np.count_nonzero(mask.read()) == np.count_nonzero(LABELS)


def test_noise_of_written_decimals_does_not_matter_and_a_part_of_the_scan_lands_on_its_voxels():
    noisy = AXIAL + np.random.default_rng(0).normal(0, 1e-5, (4, 4)) * [[1], [1], [1], [0]]
    mask = opened(segmentation(frames(), noisy, NAMES), GRID)
    assert np.array_equal(mask.read(), LABELS)
    part = frames(LABELS[2:10, 1:34, 3:40])
    affine = AXIAL.copy()
    affine[:3, 3] += AXIAL[:3, :3] @ [2, 1, 3]
    expected = np.zeros_like(LABELS)
    expected[2:10, 1:34, 3:40] = LABELS[2:10, 1:34, 3:40]
    mask = opened(segmentation(part, affine, NAMES), GRID)
    assert np.array_equal(mask.read(), expected)


def test_one_frame_may_share_everything_and_background_be_a_padding_value():
    labels = LABELS[5:6]
    only = [(1, 0, (labels[0] == 1).astype(np.uint8))]
    dataset = segmentation(only, AXIAL, NAMES, shared=("orientation", "measures", "position", "segment"))
    mask = opened(dataset)
    assert mask.grid.shape == (1, 37, 43) and np.allclose(mask.grid.spacing_mm, (2.5, 0.7, 0.8))
    assert np.array_equal(mask.read(), labels == 1)
    stored = np.where(LABELS == 0, 255, LABELS)
    dataset = segmentation([(0, i, stored[i]) for i in range(12)], AXIAL, NAMES, kind="LABELMAP")
    dataset.add_new(0x00280120, "US", 255)
    assert np.array_equal(opened(dataset, GRID).read(), LABELS)


@pytest.mark.parametrize("syntax", ["1.2.840.10008.1.2.1", RLE, JPEG_2000, JPEG_LS])
def test_fractions_of_one_half_are_inside(syntax):
    ramp = np.tile(np.arange(200, dtype=np.uint8), (40, 1))
    dataset = segmentation(
        [(2, 0, ramp), (2, 1, ramp[:, ::-1])], AXIAL, NAMES, kind="FRACTIONAL", largest=199, syntax=syntax
    )
    mask = opened(dataset, Grid(shape=(2, 40, 200), affine=AXIAL))
    assert np.array_equal(mask.read(), np.stack([ramp >= 100, ramp[:, ::-1] >= 100]) * 2)
    (finding,) = mask.findings
    assert (finding.name, finding.treatment) == ("fractional segmentation", "corrected")
    assert "probability" in finding.detail and "stored as 100" in finding.detail


@pytest.mark.parametrize("syntax", ["1.2.840.10008.1.2.1", RLE, JPEG_2000, JPEG_LS])
@pytest.mark.parametrize("bits", [8, 16])
def test_label_maps_come_back(syntax, bits):
    labels = LABELS.astype(np.uint16)
    names = {0: "Background", **NAMES}
    if bits == 16:
        labels[labels == 7] = 40000
        names[40000] = names.pop(7)
    stored = [(0, index, labels[index]) for index in (3, 2, 5, 4, 6)]
    mask = opened(segmentation(stored, AXIAL, names, kind="LABELMAP", bits=bits, syntax=syntax), GRID)
    expected = labels.copy()
    expected[[0, 1, *range(7, 12)]] = 0
    assert np.array_equal(mask.read(), expected)
    assert mask.read().dtype == (np.uint8 if bits == 8 else np.uint16)
    assert 0 not in mask.names and set(mask.names.values()) == set(NAMES.values())


@pytest.mark.parametrize("syntax", ["1.2.840.10008.1.2.1", RLE])
def test_binary_segments_of_a_byte_per_pixel_are_read_and_other_values_refused(syntax):
    dataset = segmentation(frames(), AXIAL, NAMES, bits=8, syntax=syntax)
    assert np.array_equal(opened(dataset, GRID).read(), LABELS)
    wrong = [(number, index, pixels * 3) for number, index, pixels in frames()]
    error = refused(segmentation(wrong, AXIAL, NAMES, bits=8, syntax=syntax))
    assert error.reason == "binary segmentation holds other values than 0 and 1"


def test_overlapping_segments_are_refused_with_their_numbers_and_voxels_or_the_last_wins():
    both = np.zeros((4, 5), np.uint8)
    both[1, 1:4] = 1
    first, other = np.ones((4, 5), np.uint8), np.zeros((4, 5), np.uint8)
    other[1, 1] = 1
    stored = [(7, 0, other), (1, 0, first), (2, 0, both), (2, 1, both)]
    dataset = segmentation(stored, AXIAL, NAMES)
    error = refused(dataset)
    assert (error.stage, error.reason) == ("annotation", "segments overlap")
    assert error.detail == f"3 voxels are in more than one of the segments 1, 2, 7; {OVERLAP_HINT}"
    assert last_wins(opened(dataset))[0, 1].tolist() == [1, 7, 2, 2, 1]


def test_irregular_frames_and_those_larger_than_their_header_says_are_refused():
    far = [frame for frame in frames() if frame[1] in (2, 5, 7)]
    dataset = segmentation(far, AXIAL, NAMES, spacing_between=False)
    assert refused(dataset).reason == "segmentation frames lie on no regular grid"
    labels = np.zeros_like(LABELS)
    labels[[2, 5, 7]] = LABELS[[2, 5, 7]]
    assert np.array_equal(opened(dataset, GRID).read(), labels)
    for syntax in (JPEG_2000, JPEG_LS):
        empty = [(1, 0, np.zeros((64, 64), np.uint8))]
        dataset = segmentation(empty, AXIAL, NAMES, kind="FRACTIONAL", syntax=syntax)
        dataset.Rows = 32
        assert refused(dataset).reason == "pixel data is damaged"


def edited(edit: Callable[[pydicom.Dataset], object]) -> pydicom.Dataset:
    dataset = segmentation(frames(), AXIAL, NAMES)
    edit(dataset)
    return dataset


def changed(**values: Any) -> pydicom.Dataset:
    return edited(lambda dataset: dataset.update(values))


def with_spacing(dataset: pydicom.Dataset, side: str) -> None:
    dataset.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].PixelSpacing = [side, "1"]


FAULTS = {
    "rows of terabytes": (changed(Rows=65535, Columns=65535), "file is truncated"),
    "frames of terabytes": (changed(NumberOfFrames=2147483647), "DICOM file is damaged"),
    "no rows": (changed(Rows=0), "segmentation has no pixels"),
    "unknown type": (changed(SegmentationType="QUIXOTE"), "DICOM file is damaged"),
    "no segments": (changed(SegmentSequence=[]), "DICOM file is damaged"),
    "not a mask": (
        changed(SOPClassUID="1.2.840.10008.5.1.4.1.1.2"),
        "DICOM file is neither a segmentation nor a structure set",
    ),
    "pixels cut": (changed(PixelData=b"\0" * 10), "file is truncated"),
    "no position": (
        edited(lambda d: d.PerFrameFunctionalGroupsSequence[3].pop("PlanePositionSequence")),
        "segmentation frame lacks a position in the patient",
    ),
    "no orientation": (
        edited(lambda d: d.SharedFunctionalGroupsSequence[0].pop("PlaneOrientationSequence")),
        "segmentation frame lacks an orientation in the patient",
    ),
    **{
        f"pixels of {side} mm": (edited(partial(with_spacing, side=side)), "DICOM file is damaged")
        for side in ("1e-200", "1e-300", "1e200")
    },
    "repeated frame": (
        segmentation([*frames(), frames()[0]], AXIAL, NAMES),
        "segmentation has several frames of one segment at one place",
    ),
    "undescribed segment": (segmentation(frames(), AXIAL, {1: "liver"}), "DICOM file is damaged"),
    "undescribed label": (
        segmentation([(0, 0, np.full((4, 4), 9, np.uint8))], AXIAL, NAMES, kind="LABELMAP"),
        "label map holds values that are no segments",
    ),
    "far apart": (
        segmentation([(1, depth, LABELS[5]) for depth in (0, 1, 300000)], AXIAL, NAMES, bits=8),
        "segmentation spans too many voxels",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_segmentations_are_refused_with_their_reason(fault):
    dataset, reason = FAULTS[fault]
    assert refused(dataset).reason == reason


def test_another_file_is_refused_and_a_truncated_one_wherever_it_ends():
    whole = saved(segmentation(frames()[:2], AXIAL, NAMES))
    expected = opened(whole).read()
    for end in range(0, len(whole), 7):
        result = mask_outcome(whole[:end])
        assert isinstance(result, SourceError) or np.array_equal(result, expected), end
    assert refused(b"not DICOM" * 100).reason == "file is not DICOM"


@pytest.mark.parametrize(
    ("syntax", "kind"), [(IMPLICIT, "BINARY"), (RLE, "FRACTIONAL"), (JPEG_2000, "FRACTIONAL")]
)
def test_damaged_bytes_end_in_no_other_error(syntax, kind):
    damage(saved(segmentation(frames()[:2], AXIAL, NAMES, kind=kind, syntax=syntax)), None, 7, 200)


def test_names_are_read_in_the_file_s_characters():
    dataset = segmentation(frames()[:1], AXIAL, {1: "Müller", 2: "肝臓", 7: "x"})
    assert opened(dataset).names == {1: "Müller", 2: "肝臓", 7: "x"}
    mask = opened(segmentation(frames(), AXIAL, {1: "liver", 2: "", 7: "x"}))
    assert mask.names[2] == "segment 2"
    assert [finding.name for finding in mask.findings] == ["segments without a label"]
