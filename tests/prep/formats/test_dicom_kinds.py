"""Which DICOM files are slices of a volume, and that everything else is listed and left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pydicom.dataset import Dataset
from pydicom.uid import (
    ComputedRadiographyImageStorage,
    EncapsulatedPDFStorage,
    MRImageStorage,
    MultiFrameGrayscaleWordSecondaryCaptureImageStorage,
    SecondaryCaptureImageStorage,
    UltrasoundMultiFrameImageStorage,
    VLWholeSlideMicroscopyImageStorage,
)

from halofeed.prep.formats.dicom.series import open_series
from halofeed.prep.formats.volume.series_policy import SeriesPolicy
from halofeed.prep.layouts import LayoutOptions, find_layout
from halofeed.prep.layouts.dicom import kind_and_cure
from halofeed.prep.sources.files import LocalFiles
from halofeed.schemas.errors import SourceError, UsageError
from tests.support.dicom_folders import listed_by_source, open_folder, refusal, slices, write_scan
from tests.support.dicom_writer import image_dataset, item, multi_frame_dataset, save

NO_SLICE = "file is no slice of a volume"
TOO_FEW = "series has too few slices"


def problems(root: Path, **policy: object) -> dict[str, str | None]:
    found = listed_by_source(root, **policy)
    return {source: one.problem and one.problem[1] for source, one in found.items()}


def test_secondary_captures_with_positions_are_listed_and_not_taken(tmp_path: Path) -> None:
    write_scan(tmp_path / "ct")
    capture = {"SOPClassUID": SecondaryCaptureImageStorage}
    write_scan(tmp_path / "captures", series="1.2.4", more=capture)
    found = listed_by_source(tmp_path)
    assert found.pop("ct").problem is None
    assert {one.problem for one in found.values()} == {
        ("selection", NO_SLICE, kind_and_cure("secondary capture"))
    }
    assert len(found) == 4
    taken = problems(tmp_path, secondary_captures="take")
    assert taken == {"ct": None, "captures": None}
    assert str(refusal(tmp_path / "captures")) == "read: no DICOM series (4 x secondary capture)"
    voxels = open_folder(tmp_path / "captures", secondary_captures="take").read()
    np.testing.assert_array_equal(voxels[..., 0], slices(4).astype(int) - 1024)


def test_a_multi_frame_capture_and_a_screen_save_are_no_volumes_either(tmp_path: Path) -> None:
    write_scan(tmp_path / "ct")
    frames = multi_frame_dataset(slices(4), [(0, 0, index) for index in range(4)], series="1.2.4")
    frames.SOPClassUID = MultiFrameGrayscaleWordSecondaryCaptureImageStorage
    save(frames, tmp_path / "frames.dcm")
    saved = {"ImageType": ["DERIVED", "SECONDARY", "SCREEN SAVE"]}
    write_scan(tmp_path / "saved", series="1.2.5", more=saved)
    found = problems(tmp_path)
    assert found.pop("ct") is None and set(found.values()) == {NO_SLICE} and len(found) == 5


@pytest.mark.parametrize(
    "more",
    [
        {"SeriesDescription": "3-plane Survey"},
        {"SeriesDescription": "LOC^scout"},
        {"ImageType": ["ORIGINAL", "PRIMARY", "LOCALIZER"]},
        {"SeriesDescription": "Survey", "SOPClassUID": MRImageStorage},
    ],
)
def test_surveys_with_positions_are_listed_and_not_taken(tmp_path: Path, more: dict[str, object]) -> None:
    write_scan(tmp_path / "ct")
    write_scan(tmp_path / "survey", series="1.2.4", more=more)
    found = problems(tmp_path)
    assert found.pop("ct") is None and set(found.values()) == {NO_SLICE} and len(found) == 4


def test_a_series_that_is_called_survey_is_taken_where_its_description_is_asked_for(tmp_path: Path) -> None:
    write_scan(tmp_path, more={"SeriesDescription": "Whole body survey"})
    assert problems(tmp_path, description="body SURVEY") == {".": None}
    write_scan(tmp_path / "other", series="1.2.4", more={"SeriesDescription": "surveyor's phantom"})
    assert problems(tmp_path)["other"] is None


@pytest.mark.parametrize("count", [1, 2])
def test_a_stack_of_fewer_slices_than_three_is_refused_by_the_name_of_the_option(
    tmp_path: Path, count: int
) -> None:
    write_scan(tmp_path / "ct")
    write_scan(tmp_path / "survey", count, "1.2.4", (2, 0, 0), orientation=(0, 1, 0, 0, 0, -1))
    found = listed_by_source(tmp_path)
    assert found["ct"].problem is None
    detail = f"{count} of at least 3; --min-slices {count} takes it"
    assert found["survey"].problem == ("selection", TOO_FEW, detail)
    assert problems(tmp_path, min_slices=count) == {"ct": None, "survey": None}
    assert refusal(tmp_path / "survey", min_slices=3).reason == TOO_FEW
    with pytest.raises(UsageError, match="min_slices: expected 1 or more, got 0"):
        SeriesPolicy(min_slices=0)


def test_files_that_have_a_series_uid_of_their_own_each_are_no_scans(tmp_path: Path) -> None:
    for index in range(5):
        dataset = image_dataset(slices(1)[0], position=(0, 0, index), series=f"1.2.{index}")
        save(dataset, tmp_path / f"{index}.dcm")
    assert list(problems(tmp_path).values()) == [TOO_FEW] * 5


def test_copies_of_one_slice_do_not_make_a_stack(tmp_path: Path) -> None:
    for index in range(5):
        save(image_dataset(slices(1)[0]), tmp_path / f"{index}.dcm")
    assert problems(tmp_path) == {".": TOO_FEW}
    assert refusal(tmp_path, min_slices=3).detail.startswith("1 of at least 3")


def test_a_table_row_that_names_one_slice_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    write_scan(tmp_path)
    first = sorted(path.name for path in tmp_path.iterdir())[0]
    (tmp_path / "t.csv").write_text(f"image,label\n{first},\n")
    files = LocalFiles(tmp_path)
    listing = find_layout("csv").list_references(files, files, None, LayoutOptions(task="segmentation"))
    (row,) = [one for one in listing if one.source == first]
    with pytest.raises(SourceError, match=TOO_FEW):
        open_series(files, row.members)


def whole_slide(path: Path) -> None:
    """A tiled slide: many frames, which no functional group describes one by one."""
    dataset = image_dataset(
        np.zeros((8, 8), np.uint8), position=None, orientation=None, modality="SM", rescale=None
    )
    dataset.SOPClassUID, dataset.NumberOfFrames = VLWholeSlideMicroscopyImageStorage, 40
    measures = item(PixelSpacing=[0.001, 0.001], SliceThickness=0.01)
    dataset.SharedFunctionalGroupsSequence = [item(PixelMeasuresSequence=[measures])]
    dataset.DimensionOrganizationType = "TILED_FULL"
    save(dataset, path)


def cut_whole_slide(path: Path) -> None:
    whole_slide(path)
    path.write_bytes(path.read_bytes()[:600])


def ultrasound(path: Path) -> None:
    dataset = image_dataset(np.zeros((3, 8, 8), np.uint8), position=None, modality="US", rescale=None)
    dataset.SOPClassUID, dataset.NumberOfFrames, dataset.BitsStored = UltrasoundMultiFrameImageStorage, 3, 99
    save(dataset, path)


def radiograph(path: Path) -> None:
    dataset = image_dataset(np.zeros((8, 8), np.uint16), modality="CR", rescale=None)
    dataset.SOPClassUID, dataset.Rows = ComputedRadiographyImageStorage, 0
    save(dataset, path)


def document(path: Path) -> None:
    dataset = image_dataset(np.zeros((1, 1), np.uint8), more={"PixelData": None})
    dataset.SOPClassUID, dataset.EncapsulatedDocument = EncapsulatedPDFStorage, b"%PDF" + b"\0" * 70000
    save(dataset, path)


def slide_by_modality(path: Path) -> None:
    whole_slide(path)
    dataset = image_dataset(np.zeros((8, 8), np.uint8), position=None, modality="SM", rescale=None)
    dataset.SOPClassUID, dataset.NumberOfFrames = "1.2.3.4.5", 40
    dataset.PerFrameFunctionalGroupsSequence = [Dataset()]
    save(dataset, path)


FOREIGN: list[tuple[Callable[[Path], None], str]] = [
    (whole_slide, "whole-slide image"),
    (cut_whole_slide, "whole-slide image"),
    (slide_by_modality, "whole-slide image"),
    (ultrasound, "ultrasound multi-frame image"),
    (radiograph, "computed radiography image"),
    (document, "document"),
]


@pytest.mark.parametrize(("write", "kind"), FOREIGN, ids=[row[0].__name__ for row in FOREIGN])
def test_a_foreign_object_beside_a_scan_is_listed_by_its_kind_and_the_scan_is_taken(
    tmp_path: Path, write: Callable[[Path], None], kind: str
) -> None:
    write_scan(tmp_path)
    write(tmp_path / "foreign.dcm")
    found = listed_by_source(tmp_path)
    assert found["."].problem is None and len(found["."].members) == 4
    stage, reason, detail = found["foreign.dcm"].problem or ("", "", "")
    assert (stage, reason) == ("selection", NO_SLICE) and detail == kind
    assert open_folder(tmp_path).findings[0].detail == f"1 x {kind}"


def test_a_damaged_slice_still_refuses_the_scan_beside_it(tmp_path: Path) -> None:
    write_scan(tmp_path)
    path = save(image_dataset(slices(1)[0], position=(0, 0, 9)), tmp_path / "cut.dcm")
    path.write_bytes(path.read_bytes()[:600])
    assert problems(tmp_path) == {".": "damaged file among the slices"}


@pytest.mark.parametrize("empty", [True, False])
def test_of_several_scans_in_a_folder_a_damaged_slice_refuses_the_one_that_lacks_it(
    tmp_path: Path, empty: bool
) -> None:
    """An export of a whole study in one folder was refused for one file that was not copied."""
    for series in range(3):
        for index in range(6):
            path = tmp_path / f"{series}{index}.dcm"
            save(image_dataset(slices(1)[0], position=(0, 0, 3 * index), series=f"1.2.{series}"), path)
            if (series, index) == (1, 2):
                path.write_bytes(b"" if empty else path.read_bytes()[:400])
    found = problems(tmp_path)
    assert sorted(map(str, found.values())) == ["None", "None", "damaged file among the slices"]
    (refused,) = (one for one in listed_by_source(tmp_path).values() if one.problem)
    assert refused.problem is not None and refused.problem[2].startswith("12.dcm; ")
    assert len(refused.members) == 5
    path = tmp_path / "20.dcm"  # the first slice of the third: no gap says whose it was
    path.write_bytes(b"")
    assert set(problems(tmp_path).values()) == {"damaged file among the slices"}
