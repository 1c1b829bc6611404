"""Series with several images at each place, mosaics and interleaved stacks: split, taken as channels or refused."""

import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dcm2niix
import nibabel
import numpy as np
import pydicom
import pytest
from numpy.typing import NDArray
from pydicom.uid import (
    ExplicitVRLittleEndian,
    MRImageStorage,
    RLELossless,
    RTStructureSetStorage,
    SegmentationStorage,
)

from halofeed.errors import SourceError
from halofeed.pipelines.job import reference_from_json, reference_to_json
from halofeed.prep.formats.volume.reading_options import ScanOptions, SeriesPolicy
from halofeed.prep.geometry.scan import Finding, Scan
from tests.support.dicom_folders import listed, open_listed, refusal
from tests.support.dicom_writer import image_dataset, item, multi_frame_dataset, save

Drawn = tuple[float, int, Mapping[str, Any]]
"""A slice: its height in mm, the value of all its pixels in HU, and further elements."""


def write(folder: Path, drawn: Sequence[Drawn], thickness: float | None = 2.0, **options: Any) -> None:
    for number, (height, value, more) in enumerate(drawn):
        name = f"{(number * 37) % 101:03d}-{number}.dcm"
        pixels = np.full((4, 5), value + 1024, np.uint16)
        place = {"position": (0, 0, height), "thickness": thickness}
        save(image_dataset(pixels, more=dict(more), **place, **options), folder / name)


def write_phases(folder, phases, places, mark, spacing=2.0, **options):
    """Phases of so many places, each with the marks of its phase and place; gives the values of each phase."""
    drawn = [(spacing * at, 100 * n + at, mark(n, at)) for at in range(places) for n in range(phases)]
    write(folder, drawn, **options)
    return [[100 * phase + at for at in range(places)] for phase in range(phases)]


def opened(root: Path, **policy: Any) -> list[Scan]:
    """The scans as a conversion opens them, from what crosses to its workers."""
    options = ScanOptions(series=SeriesPolicy(**policy))
    found = [reference_from_json(reference_to_json(one)) for one in listed(root, **policy)]
    assert all(one.problem is None for one in found), [one.problem for one in found]
    return [open_listed(root, one, options) for one in found]


def echo_time(echo: int, _: int) -> Mapping[str, Any]:
    return {"EchoTime": 2.0 + echo}


def columns(scans: Sequence[Scan]) -> list[list[int]]:
    """The values of each scan along its depth."""
    return [scan.read()[:, 0, 0, 0].astype(int).tolist() for scan in scans]


HALVES = [
    ("AcquisitionNumber", [1] * 5, [2] * 5),
    ("TriggerTime", [0] * 5, [430.5] * 5),
    ("ContentTime", ["101500"] * 5, ["101742"] * 5),
    ("ContentTime", [f"10150{index}" for index in range(5)], [f"10174{index}" for index in range(5)]),
    ("AcquisitionTime", ["101500.5"] * 5, ["101742"] * 5),
    ("AcquisitionTime", [f"10174{9 - index}" for index in range(5)], [f"10150{index}" for index in range(5)]),
]


def halves(keyword: str | None, first: Sequence[Any], second: Sequence[Any]) -> list[Drawn]:
    tissue = [(5.0 * index, -480 - index, {keyword: first[index]} if keyword else {}) for index in range(5)]
    air = [(5.0 * index + 2.5, -1024, {keyword: second[index]} if keyword else {}) for index in range(5)]
    return [*tissue, *air]


@pytest.mark.parametrize(("keyword", "first", "second"), HALVES)
def test_two_acquisitions_half_a_slice_apart_are_two_scans(tmp_path, keyword, first, second):
    write(tmp_path, halves(keyword, first, second), thickness=5.0)
    scans = opened(tmp_path)
    expected = [[-480 - index for index in range(5)], [-1024] * 5]
    assert sorted(columns(scans)) == sorted(expected)
    assert all(scan.grid.spacing_mm[0] == 5 and len(scan.files) == 5 for scan in scans)
    ends = [column[-1] for column in columns(scans)]
    origins = [scan.grid.affine[2, 3] for scan in scans]
    assert dict(zip(ends, origins, strict=True)) == {-484: 0.0, -1024: 2.5}
    said = [finding.detail for scan in scans for finding in scan.findings]
    assert sorted(said)[0].startswith("1 of 2, distinguished by ")


def test_half_slices_and_passes_are_one_scan_unless_their_voxels_alternate_too(tmp_path):
    """MR takes every other slice first, so as not to disturb its neighbors."""
    write(tmp_path, halves(None, (), ()), thickness=5.0)
    (scan,) = opened(tmp_path)
    with pytest.raises(SourceError, match="every other slice shows something else") as caught:
        scan.read()
    assert "--alternating-slices keep" in caught.value.detail
    (kept,) = opened(tmp_path, alternating="keep")
    assert columns([kept])[0][:4] == [-480, -1024, -481, -1024]
    passes = [{"AcquisitionNumber": 1 + at % 2, "AcquisitionTime": f"10{at % 2}000"} for at in range(8)]
    write(tmp_path / "whole", [(3.0 * at, 10 * at, passes[at]) for at in range(8)], modality="MR")
    (whole,) = opened(tmp_path / "whole")
    assert columns([whole]) == [[10 * at for at in range(8)]]
    write(tmp_path / "mixed", [(3.0 * at, at + 500 * (at % 2), passes[at]) for at in range(8)])
    (mixed,) = opened(tmp_path / "mixed")
    with pytest.raises(SourceError, match="every other slice"):
        mixed.read()


JUMPS = [1, 2, 1, 2, 2, 3, 2, 3, 3, 4, 3, 4]
RUNS = {  # heights, thickness, marks and scans of slices whose values are their places
    "times that jump": (range(12), 2.0, [{"ContentTime": f"10000{second}"} for second in JUMPS], [range(12)]),
    "one after the other": (
        range(0, 16, 2),
        4.0,
        [{"AcquisitionNumber": 1 + at // 4, "AcquisitionTime": f"10{at // 4}000"} for at in range(8)],
        [range(8)],
    ),
    "overlapping at a seam": (
        [*range(0, 30, 5), *(17.5 + 5 * at for at in range(6))],
        5.0,
        [{"AcquisitionNumber": 1 + at // 6} for at in range(12)],
        [range(6), range(6, 12)],
    ),
}


@pytest.mark.parametrize("run", RUNS)
def test_slices_are_one_scan_unless_their_acquisitions_overlap_at_a_seam(tmp_path, run):
    heights, thickness, marks, expected = RUNS[run]
    drawn = [(float(height), at, mark) for at, (height, mark) in enumerate(zip(heights, marks, strict=True))]
    write(tmp_path, drawn, thickness=thickness)
    assert columns(opened(tmp_path)) == [list(scan) for scan in expected]
    assert [one.volume is None for one in listed(tmp_path)] == [len(expected) == 1] * len(expected)


PER_VOLUME = [
    ("acquisition number", [{"AcquisitionNumber": number} for number in (1, 2, 3)]),
    ("temporal position", [{"TemporalPositionIdentifier": number} for number in (1, 2, 10)]),
    ("echo number and echo time", [{"EchoNumbers": n, "EchoTime": 2.5 * n} for n in (1, 2, 3)]),
    ("b-value", [{"DiffusionBValue": value} for value in (0.0, 500.0, 1000.0)]),
    (
        "b-value and gradient direction",
        [{"DiffusionBValue": 0.0}]
        + [{"DiffusionBValue": 1e3, "DiffusionGradientOrientation": [x, 1 - x, 0.0]} for x in (0.0, 1.0)],
    ),
    ("trigger time", [{"TriggerTime": time} for time in (0, 33.5, 410)]),
    ("frame reference time", [{"FrameReferenceTime": time} for time in (500, 2500, 30000)]),
    ("tube voltage", [{"KVP": value} for value in (80, 100, 140)]),
    ("acquisition time", [{"AcquisitionTime": text} for text in ("095959.5", "100000", "100001")]),
    ("acquisition time", [{"AcquisitionDateTime": f"2020010{day}080000"} for day in (1, 2, 3)]),
    ("content time", [{"ContentTime": f"10{minute}00"} for minute in (10, 20, 30)]),
    ("instance number", [{"InstanceNumber": 10 * number} for number in (1, 2, 3)]),
]


@pytest.mark.parametrize(("by", "marks"), PER_VOLUME)
def test_several_images_at_each_place_become_one_scan_each(tmp_path, by, marks):
    def mark(number, at):
        more = marks[number]
        return {"InstanceNumber": more["InstanceNumber"] + at} if "InstanceNumber" in more else more

    expected = write_phases(tmp_path, 3, 4, mark)
    scans = opened(tmp_path)
    assert columns(scans) == expected
    assert [one.volume for one in listed(tmp_path)] == [(number, 3, by) for number in (1, 2, 3)]
    assert len({one.group for one in listed(tmp_path)}) == 1
    told = f"2 of 3, distinguished by {by}"
    assert scans[1].findings[0] == Finding.noted("one of several volumes in a series", told)


PHASES = {
    # Heart scans: each phase at each slice has a trigger time of its own; every slice an acquisition of its own.
    "times in order at each place": (
        (5, 4, lambda phase, at: {"TriggerTime": 40.0 * phase + at, "AcquisitionNumber": at + 1}),
        {"spacing": 8.0, "thickness": 8.0, "modality": "MR"},
    ),
    "passes within each phase": (
        (3, 6, lambda p, at: {"AcquisitionNumber": 2 * p + at % 2, "AcquisitionTime": f"1{p}{at % 2}000"}),
        {"spacing": 5.0, "modality": "MR"},
    ),
    "acquisitions that end within a known phase": (
        (2, 8, lambda p, at: {"TemporalPositionIdentifier": p, "AcquisitionNumber": 1 + (p + at // 4) % 2}),
        {},
    ),
    "phases and echoes together": (
        (6, 3, lambda n, _: {"TemporalPositionIdentifier": n // 2, "EchoTime": 2.0 + n % 2}),
        {},
    ),
}


@pytest.mark.parametrize("case", PHASES)
def test_phases_stay_whole_whatever_else_changes_from_slice_to_slice(tmp_path, case):
    phases, options = PHASES[case]
    assert write_phases(tmp_path, *phases, **options) == columns(opened(tmp_path))


def test_phases_at_rounded_places_or_of_unequal_reach_are_split_by_their_marks(tmp_path):
    shifts = np.random.default_rng(4).uniform(-0.004, 0.004, (5, 6)).round(4)
    every = [(phase, at) for phase in range(5) for at in range(6)]
    marks = [{"AcquisitionTime": f"10{phase}0{at}0"} for phase, at in every]
    drawn = [(2.0 * p[1] + shifts[p], 100 * p[0] + p[1], mark) for p, mark in zip(every, marks, strict=True)]
    write(tmp_path / "rounded", drawn)
    expected = [[100 * phase + at for at in range(6)] for phase in range(5)]
    assert columns(opened(tmp_path / "rounded")) == expected
    reach = {1: range(5), 2: range(3, 9), 3: range(7, 12)}
    drawn = [(2.0 * at, 100 * n + at, {"AcquisitionNumber": n}) for n in reach for at in reach[n]]
    write(tmp_path / "reach", drawn)
    assert columns(opened(tmp_path / "reach")) == [[100 * n + at for at in reach[n]] for n in reach]


def test_copies_hide_nothing_and_images_that_nothing_tells_apart_are_refused(tmp_path):
    drawn = [(2.0 * at, 100 * echo + at, {"EchoTime": 2.0 + echo}) for echo in range(2) for at in range(3)]
    write(tmp_path / "a", drawn)
    write(tmp_path / "b", drawn[:4])
    scans = opened(tmp_path)
    assert columns(scans) == [[0, 1, 2], [100, 101, 102]]
    assert {finding.name for finding in scans[0].findings} >= {"duplicates"}
    write_phases(tmp_path / "b", 2, 3, lambda phase, at: {})
    with pytest.raises(SourceError, match="different images at one position") as caught:
        opened(tmp_path / "b")
    assert "--series-identity folder" in caught.value.detail


@pytest.mark.parametrize("word", ["ND", "NORM", "DIS2D", "FM1_1", "SE"])
def test_magnitude_and_phase_are_the_same_channels_whatever_else_the_image_type_says(tmp_path, word):
    def mark(phase, _):
        return {"ImageType": ["ORIGINAL", "PRIMARY", "PM"[phase], word]}

    write_phases(tmp_path, 2, 4, mark)
    (scan,) = opened(tmp_path, split="channels")
    assert scan.read()[0, 0, 0].astype(int).tolist() == [100, 0]


def test_several_volumes_are_channels_or_refused_by_choice(tmp_path):
    expected = write_phases(tmp_path, 3, 4, echo_time)
    (scan,) = opened(tmp_path, split="channels")
    voxels = scan.read()
    assert scan.channels == 3 and voxels.shape == (4, 4, 5, 3) and str(voxels.dtype) == scan.dtype
    assert voxels[:, 0, 0, :].T.tolist() == expected
    assert scan.findings[0].detail == "3, distinguished by echo time" and len(scan.files) == 12
    write_phases(tmp_path / "b", 2, 3, echo_time)
    assert refusal(tmp_path / "b", split="refuse").reason == "series holds several volumes"
    drawn = [(2.0 * at, at, {"AcquisitionNumber": 1}) for at in range(4)]
    write(tmp_path / "c", [*drawn, (2.0, 70, {"AcquisitionNumber": 2})])
    first, second = listed(tmp_path / "c")
    assert first.problem is None and len(first.members) == 4
    assert second.problem is not None and second.problem[1] == "series has too few slices"


def enhanced(marks, order=None, count=3):
    """A multi-frame file of one volume for each of some marks: frame [mark, place], shuffled."""
    places = [(number, at) for number in range(len(marks)) for at in range(count)]
    places = [places[index] for index in order or range(len(places))]
    volume = np.stack([np.full((4, 5), 1024 + 100 * number + at, np.uint16) for number, at in places])
    dataset = multi_frame_dataset(volume, [(0, 0, 2.0 * at) for _, at in places])
    for frame, (number, _) in zip(dataset.PerFrameFunctionalGroupsSequence, places, strict=True):
        for sequence, elements in marks[number].items():
            setattr(frame, sequence, [item(**elements)])
    return dataset


ALONG = {"DiffusionGradientDirectionSequence": [item(DiffusionGradientOrientation=[0.0, 0.0, 1.0])]}
ENHANCED = [
    ("temporal position", [{"FrameContentSequence": {"TemporalPositionIndex": n}} for n in (1, 2, 3)]),
    ("dimension 2", [{"FrameContentSequence": {"DimensionIndexValues": [1, index]}} for index in (1, 2, 3)]),
    ("echo time", [{"MREchoSequence": {"EffectiveEchoTime": 3.0 * index}} for index in (1, 2, 3)]),
    (
        "b-value and gradient direction",
        [
            {"MRDiffusionSequence": {"DiffusionBValue": 0.0}},
            {"MRDiffusionSequence": {"DiffusionBValue": 50.0}},
            {"MRDiffusionSequence": {"DiffusionBValue": 50.0, **ALONG}},
        ],
    ),
    ("image type", [{"CTImageFrameTypeSequence": {"FrameType": ["ORIGINAL", word]}} for word in "ABC"]),
    (
        "acquisition time",
        [{"FrameContentSequence": {"FrameAcquisitionDateTime": f"2020010112{at}000"}} for at in "012"],
    ),
]


@pytest.mark.parametrize(("by", "marks"), ENHANCED, ids=[row[0] for row in ENHANCED])
def test_a_multi_frame_file_of_several_volumes_is_split_by_its_dimensions(tmp_path, by, marks):
    order = np.random.default_rng(3).permutation(9).tolist()
    save(enhanced(marks, order), tmp_path / "a.dcm")
    found = listed(tmp_path)
    assert [one.volume for one in found] == [(number, 3, by) for number in (1, 2, 3)]
    assert len({one.source for one in found}) == 3 and all(one.members == ("a.dcm",) for one in found)
    expected = [[100 * number + at for at in range(3)] for number in range(3)]
    assert sorted(columns(opened(tmp_path))) == expected
    if by != "image type":
        assert columns(opened(tmp_path)) == expected
    (channels,) = opened(tmp_path, split="channels")
    assert channels.channels == 3 and sorted(channels.read()[:, 0, 0, :].T.tolist()) == expected
    assert "several" in refusal(tmp_path, min_slices=3).reason


def test_multi_frame_files_that_share_volumes_are_read_together_and_of_several_orientations_split(tmp_path):
    marks = [{"MREchoSequence": {"EffectiveEchoTime": 3.0 * index}} for index in (1, 2)]
    for half in range(2):
        dataset = enhanced(marks)
        for frame in dataset.PerFrameFunctionalGroupsSequence:
            frame.PlanePositionSequence[0].ImagePositionPatient[2] += 6.0 * half
        save(dataset, tmp_path / f"{half}.dcm")
    scans = opened(tmp_path)
    assert columns(scans) == [[0, 1, 2, 0, 1, 2], [100, 101, 102, 100, 101, 102]]
    assert all(scan.files == ("0.dcm", "1.dcm") for scan in scans)
    dataset = enhanced([{}, {}])
    for number, frame in enumerate(dataset.PerFrameFunctionalGroupsSequence):
        if number >= 3:
            frame.PlaneOrientationSequence = [item(ImageOrientationPatient=[0.0, 1.0, 0.0, 0.0, 0.0, -1.0])]
            frame.PlanePositionSequence[0].ImagePositionPatient = [2.0 * (number - 3), 0.0, 0.0]
    save(dataset, tmp_path / "b" / "a.dcm")
    by = "orientation, size or pixel spacing"
    assert {one.volume for one in listed(tmp_path / "b")} == {(1, 2, by), (2, 2, by)}
    # The second runs against its normal, so that its slices come in the other order.
    assert columns(opened(tmp_path / "b")) in ([[0, 1, 2], [102, 101, 100]], [[0, 1, 2], [100, 101, 102]])


def mask_of(path: Path, kind: str, images: Sequence[str]) -> None:
    """A SEG or RTSTRUCT that names a series and some of its images; its voxels are not read here."""
    instances = [item(ReferencedSOPInstanceUID=uid) for uid in images]
    dataset = image_dataset(np.zeros((2, 2), np.uint8), series="1.9", modality=kind)
    if kind == "SEG":
        series = item(SeriesInstanceUID="1.2.3", ReferencedInstanceSequence=instances)
        dataset.ReferencedSeriesSequence = [series]
        dataset.SOPClassUID = SegmentationStorage
    else:
        series = item(SeriesInstanceUID="1.2.3", ContourImageSequence=instances)
        study = item(RTReferencedSeriesSequence=[series])
        dataset.ReferencedFrameOfReferenceSequence = [item(RTReferencedStudySequence=[study])]
        dataset.SOPClassUID = RTStructureSetStorage
    save(dataset, path)


@pytest.mark.parametrize("kind", ["SEG", "RTSTRUCT"])
def test_a_mask_belongs_to_the_volume_whose_images_it_names(tmp_path, kind):
    write_phases(tmp_path, 2, 3, echo_time)
    datasets = [pydicom.dcmread(path) for path in sorted(tmp_path.iterdir())]
    late = [str(one.SOPInstanceUID) for one in datasets if one.EchoTime == 3.0]
    mask_of(tmp_path / "mask", kind, late[1:])
    first, second = [one for one in listed(tmp_path) if one.volume]
    assert (first.problem or ("", ""))[1] == "image has no label" and second.mask == "mask"
    mask_of(tmp_path / "mask", kind, [str(one.SOPInstanceUID) for one in datasets])
    reasons = {one.source: (one.problem or ("", ""))[1] for one in listed(tmp_path)}
    assert reasons["mask"] == "label fits several series"


ROWS, COLUMNS, SPACING, GAP = 24, 24, (2.0, 2.5), 3.6


def csa(count: int, normal: NDArray[np.float64], position: NDArray[np.float64]) -> bytes:
    """Siemens' image header of two tags that matter, and one between them."""
    tags = {
        "NumberOfImagesInMosaic": [str(count)],
        "ImaCoilString": [],
        "SliceNormalVector": [f"{value:.8f}" for value in normal],
        "SlicePosition_PCS": [f"{value:.8f}" for value in position],
    }
    data = b"SV10\x04\x03\x02\x01" + struct.pack("<II", len(tags), 77)
    for name, values in tags.items():
        written = [value.encode() + b"\0" for value in values] + [b""] * (6 - len(values))
        data += name.encode().ljust(64, b"\0") + struct.pack("<i4siii", len(values), b"US\0\0", 6, 6, 77)
        for text in written:
            data += struct.pack("<4i", len(text), len(text), 77, len(text))
            data += text.ljust(-(-len(text) // 4) * 4, b"\0")
    return data


def write_mosaic(path, volume, orientation, flip=1, gap=GAP, syntax=ExplicitVRLittleEndian, **more):
    """One file of a volume [slice, row, column], with the first pixel of its first slice at (10, -20, 30)."""
    count = len(volume)
    side = int(np.ceil(np.sqrt(count)))
    image = np.zeros((side * ROWS, side * COLUMNS), np.uint16)
    for index, plane in enumerate(volume):
        top, left = index // side * ROWS, index % side * COLUMNS
        image[top : top + ROWS, left : left + COLUMNS] = plane
    along_row, along_column = orientation
    normal = flip * np.cross(along_row, along_column)
    first = np.array([10.0, -20.0, 30.0])
    corner = first - along_row * SPACING[1] * (side - 1) * COLUMNS / 2
    corner = corner - along_column * SPACING[0] * (side - 1) * ROWS / 2
    named = {"ImageType": ["ORIGINAL", "PRIMARY", "M", "ND", "MOSAIC"], "Manufacturer": "SIEMENS"}
    named |= {"SpacingBetweenSlices": gap, "RepetitionTime": 2000.0, "EchoTime": 30.0, **more}
    lying = {"position": corner, "orientation": orientation.reshape(-1), "spacing": SPACING, "thickness": 3.0}
    dataset = image_dataset(image, **lying, modality="MR", rescale=None, more=named)
    dataset.SOPClassUID = MRImageStorage
    block = dataset.private_block(0x0029, "SIEMENS CSA HEADER", create=True)
    block.add_new(0x08, "CS", "IMAGE NUM 4")
    block.add_new(0x10, "OB", csa(count, normal, first))
    save(dataset, path, syntax or ExplicitVRLittleEndian)


ORIENTATIONS = {
    "axial": [[1, 0, 0], [0, 1, 0]],
    "sagittal": [[0, 1, 0], [0, 0, -1]],
    "coronal": [[1, 0, 0], [0, 0, -1]],
    "oblique": [[1, 0, 0], [0, np.cos(0.4), np.sin(0.4)]],
}


def drawn(count: int, time: int = 0) -> NDArray[np.uint16]:
    """Slices in which every voxel has a value of its own."""
    return (np.arange(count * ROWS * COLUMNS).reshape(count, ROWS, COLUMNS) + 7 * time + 1).astype(np.uint16)


@pytest.mark.parametrize("flip", [1, -1])
@pytest.mark.parametrize("count", [9, 11, 16])
@pytest.mark.parametrize("name", ORIENTATIONS)
def test_the_slices_of_a_mosaic_lie_where_their_header_says_and_dcm2niix_puts_them(
    tmp_path, name, count, flip
):
    orientation = np.array(ORIENTATIONS[name], np.float64)
    write_mosaic(tmp_path / "in" / "a.dcm", drawn(count), orientation, flip)
    (one,) = listed(tmp_path / "in")
    assert one.problem is None and one.members == ("a.dcm",)
    scan = open_listed(tmp_path / "in", one)
    voxels = scan.read()[..., 0]
    np.testing.assert_array_equal(voxels, drawn(count)[::flip])
    normal = flip * np.cross(*orientation)
    for index in (0, count - 1):
        at = scan.grid.to_mm(np.array([index if flip > 0 else count - 1 - index, 0, 0]))
        expected = np.array([10.0, -20.0, 30.0]) + index * GAP * normal
        np.testing.assert_allclose(at, expected * [-1, -1, 1], atol=1e-6)
    np.testing.assert_allclose(scan.grid.spacing_mm, (GAP, *SPACING), atol=1e-9)
    if count != 11:  # one number is enough for dcm2niix
        return
    command = [dcm2niix.bin, "-z", "n", "-b", "n", "-f", "v", "-o", str(tmp_path), str(tmp_path / "in")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (tmp_path / "v.nii").exists(), done.stdout
    theirs = nibabel.as_closest_canonical(nibabel.load(tmp_path / "v.nii"))
    image = nibabel.Nifti1Image(voxels.astype(np.float64).T, scan.grid.affine[:, [2, 1, 0, 3]])
    ours = nibabel.as_closest_canonical(image)
    np.testing.assert_array_equal(ours.get_fdata(), theirs.get_fdata())
    np.testing.assert_allclose(ours.affine, theirs.affine, atol=1e-3)


def test_a_series_of_mosaics_is_one_volume_for_each_time(tmp_path):
    orientation = np.array(ORIENTATIONS["axial"], np.float64)
    for time in range(4):
        more = {"AcquisitionNumber": time + 1, "InstanceNumber": time + 1}
        syntax = RLELossless if time % 2 else ExplicitVRLittleEndian
        write_mosaic(tmp_path / f"{9 - time}.dcm", drawn(9, time), orientation, syntax=syntax, **more)
    found = listed(tmp_path)
    assert [one.volume for one in found] == [(number, 4, "acquisition number") for number in (1, 2, 3, 4)]
    for time, one in enumerate(found):
        scan = open_listed(tmp_path, one)
        assert one.members == (f"{9 - time}.dcm",)
        np.testing.assert_array_equal(scan.read()[..., 0], drawn(9, time))
    for index in range(3):
        dataset = image_dataset(np.full((4, 5), index, np.uint16), position=(0, 0, index))
        dataset.private_block(0x0029, "SOMEBODY", create=True).add_new(0x10, "OB", b"x" * 100_000)
        save(dataset, tmp_path / "b" / f"{index}.dcm")
    (one,) = listed(tmp_path / "b")
    assert one.problem is None and len(one.members) == 3


@pytest.mark.parametrize(
    "fault", [{"gap": 0.0}, {"PrivateCreator": None}, {"ImageOrientationPatient": [0, 1, 0, 1, 0, 0]}]
)
def test_a_mosaic_whose_header_does_not_place_its_slices_is_listed_with_the_cure(tmp_path, fault):
    orientation = np.array(ORIENTATIONS["oblique"], np.float64)
    write_mosaic(tmp_path / "whole.dcm", drawn(9), orientation)
    creator = fault.pop("PrivateCreator", "")
    write_mosaic(tmp_path / "mosaic.dcm", drawn(9), orientation, SeriesInstanceUID="1.9", **fault)
    if creator is None:
        data = (tmp_path / "mosaic.dcm").read_bytes()
        (tmp_path / "mosaic.dcm").write_bytes(data.replace(b"SIEMENS CSA HEADER", b"SIEMENS XYZ HEADER"))
    problems = {one.source: one.problem for one in listed(tmp_path)}
    assert problems.pop("mosaic.dcm", ("", "", ""))[2].startswith("mosaic; ")
    assert list(problems.values()) == [None]
