"""Series with several images at each place, and stacks that interleave: split, taken as channels, or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset
from pydicom.uid import RTStructureSetStorage, SegmentationStorage

from halofeed.pipelines.job import reference_from_json, reference_to_json
from halofeed.prep.formats.dicom.series import check_alternation
from halofeed.prep.formats.dicom.volumes import alternates
from halofeed.prep.formats.volume.options import ScanOptions
from halofeed.prep.formats.volume.series_policy import SeriesPolicy
from halofeed.prep.geometry.scan import Finding, Scan
from halofeed.schemas.errors import SourceError
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


def write_phases(
    folder: Path,
    phases: int,
    places: int,
    mark: Callable[[int, int], Mapping[str, Any]],
    spacing: float = 2.0,
    **options: Any,
) -> list[list[int]]:
    """Phases of so many places, each with the marks of its phase and place; gives the values of each phase."""
    drawn = [
        (spacing * at, 100 * phase + at, mark(phase, at)) for at in range(places) for phase in range(phases)
    ]
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


# Two acquisitions, half a slice apart -------------------------------------------------------------------

HALVES: list[tuple[str, Sequence[Any], Sequence[Any]]] = [
    ("AcquisitionNumber", [1] * 5, [2] * 5),
    ("TriggerTime", [0] * 5, [430.5] * 5),
    ("EchoTime", [2.3] * 5, [4.6] * 5),
    ("TemporalPositionIdentifier", [1] * 5, [2] * 5),
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
def test_two_acquisitions_half_a_slice_apart_are_two_scans(
    tmp_path: Path, keyword: str, first: Sequence[Any], second: Sequence[Any]
) -> None:
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


def test_half_slices_that_nothing_tells_apart_are_refused_when_their_voxels_are_read(tmp_path: Path) -> None:
    write(tmp_path, halves(None, (), ()), thickness=5.0)
    (scan,) = opened(tmp_path)
    with pytest.raises(SourceError, match="every other slice shows something else") as caught:
        scan.read()
    assert "--alternating-slices keep" in caught.value.detail
    (kept,) = opened(tmp_path, alternating="keep")
    assert columns([kept])[0][:4] == [-480, -1024, -481, -1024]


def test_passes_that_alternate_without_overlap_are_one_scan_unless_their_voxels_alternate_too(
    tmp_path: Path,
) -> None:
    """MR takes every other slice first, so as not to disturb its neighbors."""
    passes = [
        {"AcquisitionNumber": 1 + index % 2, "AcquisitionTime": f"10{index % 2}000"} for index in range(8)
    ]
    write(tmp_path / "whole", [(3.0 * at, 10 * at, passes[at]) for at in range(8)], modality="MR")
    (whole,) = opened(tmp_path / "whole")
    assert columns([whole]) == [[10 * at for at in range(8)]]
    write(tmp_path / "mixed", [(3.0 * at, at + 500 * (at % 2), passes[at]) for at in range(8)])
    (mixed,) = opened(tmp_path / "mixed")
    with pytest.raises(SourceError, match="every other slice"):
        mixed.read()


def test_overlapping_slices_of_one_scan_stay_one_however_their_times_jump(tmp_path: Path) -> None:
    seconds = [1, 2, 1, 2, 2, 3, 2, 3, 3, 4, 3, 4]
    drawn = [(1.0 * at, 10 * at, {"ContentTime": f"10000{seconds[at]}"}) for at in range(12)]
    write(tmp_path, drawn, thickness=2.0)
    (scan,) = opened(tmp_path)
    assert columns([scan]) == [[10 * at for at in range(12)]]


def test_two_acquisitions_one_after_the_other_are_one_scan(tmp_path: Path) -> None:
    drawn = [
        (2.0 * at, at, {"AcquisitionNumber": 1 + at // 4, "AcquisitionTime": f"10{at // 4}000"})
        for at in range(8)
    ]
    write(tmp_path, drawn, thickness=4.0)
    assert columns(opened(tmp_path)) == [list(range(8))] and listed(tmp_path)[0].volume is None


def test_acquisitions_that_overlap_at_their_seam_are_two_scans(tmp_path: Path) -> None:
    first = [(5.0 * at, at, {"AcquisitionNumber": 1}) for at in range(6)]
    second = [(17.5 + 5.0 * at, 50 + at, {"AcquisitionNumber": 2}) for at in range(6)]
    write(tmp_path, [*first, *second], thickness=5.0)
    assert columns(opened(tmp_path)) == [list(range(6)), list(range(50, 56))]


def test_alternation_is_judged_by_the_voxels_alone() -> None:
    smooth = np.linspace(0, 1000, 12)[:, None, None, None] * np.ones((1, 4, 4, 1))
    check_alternation(smooth)
    check_alternation(np.random.default_rng(0).normal(size=(12, 4, 4, 1)))
    check_alternation(np.zeros((12, 4, 4, 1)))
    mixed = smooth.copy()
    mixed[::2] -= 2000
    with pytest.raises(SourceError, match="every other slice"):
        check_alternation(mixed)
    assert not alternates([None] * 4)


# Several images at each place ---------------------------------------------------------------------------

PER_VOLUME: list[tuple[str, list[Mapping[str, Any]]]] = [
    ("acquisition number", [{"AcquisitionNumber": number} for number in (1, 2, 3)]),
    ("temporal position", [{"TemporalPositionIdentifier": number} for number in (1, 2, 10)]),
    ("echo number and echo time", [{"EchoNumbers": n, "EchoTime": 2.5 * n} for n in (1, 2, 3)]),
    ("b-value", [{"DiffusionBValue": value} for value in (0.0, 500.0, 1000.0)]),
    (
        "b-value and gradient direction",
        [
            {"DiffusionBValue": 0.0},
            {"DiffusionBValue": 1000.0, "DiffusionGradientOrientation": [0.0, 1.0, 0.0]},
            {"DiffusionBValue": 1000.0, "DiffusionGradientOrientation": [1.0, 0.0, 0.0]},
        ],
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
def test_several_images_at_each_place_become_one_scan_each(
    tmp_path: Path, by: str, marks: list[Mapping[str, Any]]
) -> None:
    def mark(number: int, at: int) -> Mapping[str, Any]:
        more = marks[number]
        return {"InstanceNumber": more["InstanceNumber"] + at} if "InstanceNumber" in more else more

    expected = write_phases(tmp_path, 3, 4, mark)
    scans = opened(tmp_path)
    assert columns(scans) == expected
    assert [one.volume for one in listed(tmp_path)] == [(number, 3, by) for number in (1, 2, 3)]
    assert len({one.group for one in listed(tmp_path)}) == 1
    told = f"2 of 3, distinguished by {by}"
    assert scans[1].findings[0] == Finding.noted("one of several volumes in a series", told)


def test_times_that_differ_from_slice_to_slice_count_by_their_order_at_each_place(tmp_path: Path) -> None:
    """Heart scans: each phase at each slice has a trigger time of its own; every slice an acquisition of its own."""

    def mark(phase: int, at: int) -> Mapping[str, Any]:
        return {"TriggerTime": 40.0 * phase + at, "AcquisitionNumber": at + 1}

    expected = write_phases(tmp_path, 5, 4, mark, spacing=8.0, thickness=8.0, modality="MR")
    assert columns(opened(tmp_path)) == expected


def test_passes_within_each_phase_do_not_halve_the_phases(tmp_path: Path) -> None:
    def mark(phase: int, at: int) -> Mapping[str, Any]:
        return {"AcquisitionNumber": 2 * phase + at % 2, "AcquisitionTime": f"1{phase}{at % 2}000"}

    assert write_phases(tmp_path, 3, 6, mark, spacing=5.0, modality="MR") == columns(opened(tmp_path))


def test_acquisitions_that_end_within_a_phase_do_not_part_it_where_the_phase_is_known(tmp_path: Path) -> None:
    def mark(phase: int, at: int) -> Mapping[str, Any]:
        return {"TemporalPositionIdentifier": phase, "AcquisitionNumber": 1 + (phase + at // 4) % 2}

    assert write_phases(tmp_path, 2, 8, mark) == columns(opened(tmp_path))


def test_phases_whose_places_differ_by_rounding_are_told_apart_by_their_times(tmp_path: Path) -> None:
    shifts = np.random.default_rng(4).uniform(-0.004, 0.004, (5, 6)).round(4)
    drawn = [
        (2.0 * at + shifts[phase, at], 100 * phase + at, {"AcquisitionTime": f"10{phase}0{at}0"})
        for phase in range(5)
        for at in range(6)
    ]
    write(tmp_path, drawn)
    assert columns(opened(tmp_path)) == [[100 * phase + at for at in range(6)] for phase in range(5)]


def test_phases_and_echoes_together_are_split_by_both(tmp_path: Path) -> None:
    def mark(number: int, _: int) -> Mapping[str, Any]:
        return {"TemporalPositionIdentifier": number // 2, "EchoTime": 2.0 + number % 2}

    assert write_phases(tmp_path, 6, 3, mark) == columns(opened(tmp_path))


def test_phases_of_unequal_reach_are_split_where_a_mark_tells_them_apart(tmp_path: Path) -> None:
    ranges = {1: range(5), 2: range(3, 9), 3: range(7, 12)}
    drawn = [
        (2.0 * at, 100 * number + at, {"AcquisitionNumber": number})
        for number in ranges
        for at in ranges[number]
    ]
    write(tmp_path, drawn)
    assert columns(opened(tmp_path)) == [[100 * number + at for at in ranges[number]] for number in ranges]


def test_copies_of_a_file_do_not_hide_what_tells_volumes_apart(tmp_path: Path) -> None:
    drawn = [(2.0 * at, 100 * echo + at, {"EchoTime": 2.0 + echo}) for echo in range(2) for at in range(3)]
    write(tmp_path / "a", drawn)
    write(tmp_path / "b", drawn[:4])
    scans = opened(tmp_path)
    assert columns(scans) == [[0, 1, 2], [100, 101, 102]]
    assert {finding.name for finding in scans[0].findings} >= {"duplicates"}


def test_images_that_nothing_tells_apart_are_refused_and_the_cure_is_named(tmp_path: Path) -> None:
    write_phases(tmp_path, 2, 3, lambda phase, at: {})
    with pytest.raises(SourceError, match="different images at one position") as caught:
        opened(tmp_path)
    assert "--series-identity folder" in caught.value.detail


@pytest.mark.parametrize("word", ["ND", "NORM", "DIS2D", "FM1_1", "SE"])
def test_magnitude_and_phase_are_the_same_channels_whatever_else_the_image_type_says(
    tmp_path: Path, word: str
) -> None:
    def mark(phase: int, _: int) -> Mapping[str, Any]:
        return {"ImageType": ["ORIGINAL", "PRIMARY", "PM"[phase], word]}

    write_phases(tmp_path, 2, 4, mark)
    (scan,) = opened(tmp_path, split="channels")
    assert scan.read()[0, 0, 0].astype(int).tolist() == [100, 0]


def test_volumes_as_channels_share_one_scan(tmp_path: Path) -> None:
    expected = write_phases(tmp_path, 3, 4, echo_time)
    (scan,) = opened(tmp_path, split="channels")
    voxels = scan.read()
    assert scan.channels == 3 and voxels.shape == (4, 4, 5, 3) and str(voxels.dtype) == scan.dtype
    assert voxels[:, 0, 0, :].T.tolist() == expected
    assert scan.findings[0].detail == "3, distinguished by echo time" and len(scan.files) == 12
    half = [(1.0, 7, {"EchoTime": 9.0}), (3.0, 8, {"EchoTime": 9.0}), (5.0, 9, {"EchoTime": 9.0})]
    write(tmp_path / "half", half)
    with pytest.raises(SourceError, match=r"different grids .*--series-split volumes"):
        opened(tmp_path, split="channels")


def test_several_volumes_are_refused_where_that_is_chosen(tmp_path: Path) -> None:
    write_phases(tmp_path, 2, 3, echo_time)
    (found,) = listed(tmp_path, split="refuse")
    detail = "2, distinguished by echo time; --series-split volumes takes each as a scan, channels all as one"
    assert found.problem == ("selection", "series holds several volumes", detail)
    assert refusal(tmp_path, split="refuse").reason == "series holds several volumes"


def test_a_volume_with_few_slices_is_refused_by_itself(tmp_path: Path) -> None:
    drawn = [(2.0 * at, at, {"AcquisitionNumber": 1}) for at in range(4)]
    write(tmp_path, [*drawn, (2.0, 70, {"AcquisitionNumber": 2})])
    first, second = listed(tmp_path)
    assert first.problem is None and len(first.members) == 4
    assert second.problem is not None and second.problem[1] == "series has too few slices"


# Several volumes in one file ----------------------------------------------------------------------------


def enhanced(
    marks: Sequence[Mapping[str, Any]], order: Sequence[int] | None = None, count: int = 3
) -> Dataset:
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
ENHANCED: list[tuple[str, list[Mapping[str, Any]]]] = [
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


@pytest.mark.parametrize(
    ("by", "marks"), ENHANCED, ids=[f"{number} {row[0]}" for number, row in enumerate(ENHANCED)]
)
def test_a_multi_frame_file_of_several_volumes_is_split_by_its_dimensions(
    tmp_path: Path, by: str, marks: list[Mapping[str, Any]]
) -> None:
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


def test_multi_frame_files_that_share_their_volumes_are_read_together(tmp_path: Path) -> None:
    marks = [{"MREchoSequence": {"EffectiveEchoTime": 3.0 * index}} for index in (1, 2)]
    for half in range(2):
        dataset = enhanced(marks)
        for frame in dataset.PerFrameFunctionalGroupsSequence:
            frame.PlanePositionSequence[0].ImagePositionPatient[2] += 6.0 * half
        save(dataset, tmp_path / f"{half}.dcm")
    scans = opened(tmp_path)
    assert columns(scans) == [[0, 1, 2, 0, 1, 2], [100, 101, 102, 100, 101, 102]]
    assert all(scan.files == ("0.dcm", "1.dcm") for scan in scans)


def test_a_multi_frame_file_of_several_orientations_is_split_by_them(tmp_path: Path) -> None:
    dataset = enhanced([{}, {}])
    for number, frame in enumerate(dataset.PerFrameFunctionalGroupsSequence):
        if number >= 3:
            frame.PlaneOrientationSequence = [item(ImageOrientationPatient=[0.0, 1.0, 0.0, 0.0, 0.0, -1.0])]
            frame.PlanePositionSequence[0].ImagePositionPatient = [2.0 * (number - 3), 0.0, 0.0]
    save(dataset, tmp_path / "a.dcm")
    by = "orientation, size or pixel spacing"
    assert {one.volume for one in listed(tmp_path)} == {(1, 2, by), (2, 2, by)}
    # The second runs against its normal, so that its slices come in the other order.
    assert columns(opened(tmp_path)) in ([[0, 1, 2], [102, 101, 100]], [[0, 1, 2], [100, 101, 102]])


# Masks of one volume of several -------------------------------------------------------------------------


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
def test_a_mask_belongs_to_the_volume_whose_images_it_names(tmp_path: Path, kind: str) -> None:
    write_phases(tmp_path, 2, 3, echo_time)
    datasets = [pydicom.dcmread(path) for path in sorted(tmp_path.iterdir())]
    late = [str(one.SOPInstanceUID) for one in datasets if one.EchoTime == 3.0]
    mask_of(tmp_path / "mask", kind, late[1:])
    first, second = [one for one in listed(tmp_path) if one.volume]
    assert (first.problem or ("", ""))[1] == "image has no label" and second.mask == "mask"
    mask_of(tmp_path / "mask", kind, [str(one.SOPInstanceUID) for one in datasets])
    reasons = {one.source: (one.problem or ("", ""))[1] for one in listed(tmp_path)}
    assert reasons["mask"] == "label fits several series"
