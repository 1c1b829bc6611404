"""Files of one series UID that are not one scan: each ends in scans of their own, or in words that name the difference.

The healthy neighbors of each case stay one scan.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.dicom_folders import listed
from tests.support.dicom_writer import image_dataset, save

SECRETS = ("Doe^Jane", "Roe^Richard", "PAT-1", "PAT-2", "19500101", "19600202", "1.2.77")
OTHER: dict[str, tuple[Any, Any]] = {
    "PatientID": ("PAT-1", "PAT-2"),
    "PatientName": ("Doe^Jane", "Roe^Richard"),
    "PatientBirthDate": ("19500101", "19600202"),
    "PatientSex": ("F", "M"),
    "StudyInstanceUID": ("1.2", "1.2.77"),
    "StudyDate": ("20200101", "20210101"),
    "AccessionNumber": ("A1", "A2"),
    "Modality": ("CT", "PT"),
    "SeriesNumber": (3, 4),
    "SeriesDescription": ("thin", "thick"),
    "FrameOfReferenceUID": ("1.2.9", "1.2.8"),
    "Manufacturer": ("SIEMENS", "GE"),
    "ManufacturerModelName": ("Force", "Revolution"),
    "StationName": ("CT1", "CT2"),
    "DeviceSerialNumber": ("11", "12"),
}


def write(
    folder: Path, start: float, count: int = 5, *, first_number: int = 1, gap: float = 2.0, **more: Any
) -> None:
    """Slices of one series UID from a height on, each with pixels of its own."""
    for at in range(count):
        pixels = np.random.default_rng([int(10 * start), at]).integers(900, 1200, (5, 6)).astype(np.uint16)
        height = start + gap * at
        named = {"InstanceNumber": first_number + at, **more}
        save(image_dataset(pixels, position=(0, 0, height), more=named), folder / f"{height:05.1f}.dcm")


def scans(root: Path, **policy: Any) -> list[tuple[int, str]]:
    """How many files each scan has, and what refuses it."""
    found = listed(root, **policy)
    told = repr([(one.problem, one.volume, one.source) for one in found])
    assert not [secret for secret in SECRETS if secret in told]
    return [(len(one.members), "; ".join(one.problem or ())) for one in found]


@pytest.mark.parametrize("name", OTHER)
@pytest.mark.parametrize(
    ("folders", "start", "outcome"),
    [
        pytest.param(("a", "b"), 10.0, "two scans", id="folder by folder"),
        pytest.param((".", "."), 3.0, "two scans", id="in one folder, between each other"),
        pytest.param((".", "."), 10.0, "words", id="in one folder, one after the other"),
    ],
)
def test_files_of_one_series_uid_that_contradict_each_other_are_two_scans_or_refused(
    tmp_path: Path, name: str, folders: tuple[str, str], start: float, outcome: str
) -> None:
    first, second = OTHER[name]
    write(tmp_path / folders[0], 0.0, **{name: first})
    write(tmp_path / folders[1], start + 0.3 * (start < 9), **{name: second}, first_number=6)
    if outcome == "two scans" or name in ("StudyInstanceUID", "Modality"):
        assert scans(tmp_path) == [(5, "")] * 2
        assert {one.volume for one in listed(tmp_path)} == {(1, 2, name), (2, 2, name)}
        return
    ((files, problem),) = scans(tmp_path)
    assert files == 10
    assert f"{name}: 000.0.dcm against 010.0.dcm" in problem
    assert "--series-identity uid" in problem
    assert scans(tmp_path, identity="uid") == [(10, "")]


@pytest.mark.parametrize("name", OTHER)
def test_a_stray_file_of_another_scan_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    first, second = OTHER[name]
    write(tmp_path, 0.0, **{name: first})
    write(tmp_path, 10.0, 1, **{name: second}, first_number=6)
    ((files, problem),) = scans(tmp_path)
    assert files == 6
    assert f"{name}: 010.0.dcm against 000.0.dcm and 4 more" in problem


@pytest.mark.parametrize("name", OTHER)
def test_a_value_that_some_files_lack_contradicts_nothing(tmp_path: Path, name: str) -> None:
    first, second = OTHER[name]
    if name != "Modality":
        write(tmp_path, 0.0, **{name: first})
        write(tmp_path, 10.0, 3, **{name: None}, first_number=6)
        assert scans(tmp_path) == [(8, "")]
    write(tmp_path / "b", 40.0, **{name: second}, first_number=9)
    write(tmp_path / "a", 60.0, **{name: first}, first_number=20)
    write(tmp_path / "b", 50.0, 2, **{name: ""}, first_number=15)
    assert sorted(files for files, problem in scans(tmp_path)) == ([5, 7] if name == "Modality" else [7, 13])


@pytest.mark.parametrize(
    "values",
    [
        {"PatientName": ("Doe^Jane", "DOE^JANE^^")},
        {"StationName": ("CT1", "ct1 ")},
        {"SeriesDescription": ("Thorax  1.0", "THORAX 1.0")},
    ],
)
def test_spelling_is_no_contradiction(tmp_path: Path, values: dict[str, tuple[str, str]]) -> None:
    for index in range(2):
        of_file = {name: both[index] for name, both in values.items()}
        write(tmp_path, 10.0 * index, **of_file, first_number=1 + 5 * index)
    assert scans(tmp_path) == [(10, "")]


@pytest.mark.parametrize(("name", "refused"), [("FrameOfReferenceUID", False), ("PatientID", True)])
def test_a_value_for_each_file_counts_where_it_is_of_the_patient(
    tmp_path: Path, name: str, refused: bool
) -> None:
    for at in range(5):
        write(tmp_path, 2.0 * at, 1, first_number=at, **{name: f"1.2.{at}"})
    ((_, problem),) = scans(tmp_path)
    assert (name in problem) == refused


def test_a_series_in_several_folders_is_one_scan_unless_these_hold_different_ones(tmp_path: Path) -> None:
    healthy, anew, between = (tmp_path / name for name in ("healthy", "anew", "between"))
    write(healthy / "1", 0.0)
    write(healthy / "2", 10.0, first_number=6)
    assert scans(healthy) == [(10, "")]
    write(anew / "1", 0.0)
    write(anew / "2", 10.0)
    write(between / "1", 0.0)
    write(between / "2", 1.3, first_number=6)
    for root, words in ((anew, "number their slices anew"), (between, "between each other's")):
        ((_, problem),) = scans(root)
        assert f"1 and 2 {words}" in problem.replace("hold slices ", "")
        assert scans(root, identity="folder") == [(5, "")] * 2
        assert scans(root, identity="uid") == [(10, "")]


def test_files_with_a_series_uid_each_are_one_scan_of_their_folder_where_that_is_said(tmp_path: Path) -> None:
    for folder in "ab":
        for at in range(4):
            write(tmp_path / folder, 2.0 * at, 1, SeriesInstanceUID=f"1.2.{ord(folder)}.{at}")
    assert scans(tmp_path, identity="folder") == [(4, "")] * 2
    assert "--series-identity folder" in scans(tmp_path)[0][1]
