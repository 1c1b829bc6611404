"""Which DICOM files are slices, and of which scan; which series are taken; and that all others are listed."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydicom import uid
from pydicom.dataset import Dataset

from halofeed.errors import HalofeedError, SourceError, UsageError
from halofeed.prep.formats.dicom.mask_files import open_dicom_mask
from halofeed.prep.formats.dicom.series import open_series
from halofeed.prep.formats.volume.reading_options import SeriesPolicy
from halofeed.prep.layouts import LayoutOptions, find_layout
from halofeed.prep.layouts.dicom import describe_kind
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import LocalFiles
from tests.support.conversions import run_convert
from tests.support.dicom_folders import listed, listed_by_source, open_folder, refusal, slices, write_scan
from tests.support.dicom_writer import image_dataset, item, multi_frame_dataset, save
from tests.support.layout_references import series_at

NO_SLICE = "file is no slice of a volume"
TOO_FEW = "series has too few slices"


def problems(root: Path, **policy: object) -> dict[str, str | None]:
    found = listed_by_source(root, **policy)
    return {source: one.problem and one.problem[1] for source, one in found.items()}


def test_secondary_captures_are_listed_and_not_taken_and_surveys_where_they_are_asked_for(tmp_path):
    write_scan(tmp_path / "ct")
    capture = {"SOPClassUID": uid.SecondaryCaptureImageStorage}
    write_scan(tmp_path / "captures", series="1.2.4", more=capture)
    found = listed_by_source(tmp_path)
    assert found.pop("ct").problem is None
    refused = ("selection", NO_SLICE, describe_kind("secondary capture"))
    assert {one.problem for one in found.values()} == {refused}
    assert len(found) == 4
    taken = problems(tmp_path, secondary_captures="take")
    assert taken == {"ct": None, "captures": None}
    assert str(refusal(tmp_path / "captures")) == "read: no DICOM series (4 x secondary capture)"
    voxels = open_folder(tmp_path / "captures", secondary_captures="take").read()
    np.testing.assert_array_equal(voxels[..., 0], slices(4).astype(int) - 1024)
    write_scan(tmp_path / "b", more={"SeriesDescription": "Whole body survey"})
    assert problems(tmp_path / "b", description="body SURVEY") == {".": None}
    write_scan(tmp_path / "b" / "other", series="1.2.4", more={"SeriesDescription": "surveyor's phantom"})
    assert problems(tmp_path / "b")["other"] is None


SURVEYS = [
    *({"SeriesDescription": "3-plane Survey"}, {"SeriesDescription": "LOC^scout"}),
    {"ImageType": ["ORIGINAL", "PRIMARY", "LOCALIZER"]},
    {"ImageType": ["DERIVED", "SECONDARY", "SCREEN SAVE"]},
    {"SeriesDescription": "Survey", "SOPClassUID": uid.MRImageStorage},
]


@pytest.mark.parametrize("more", SURVEYS)
def test_surveys_with_positions_are_listed_and_not_taken(tmp_path, more):
    """Nor are screen saves and multi-frame captures."""
    write_scan(tmp_path / "ct")
    write_scan(tmp_path / "survey", series="1.2.4", more=more)
    frames = multi_frame_dataset(slices(4), [(0, 0, index) for index in range(4)], series="1.2.5")
    frames.SOPClassUID = uid.MultiFrameGrayscaleWordSecondaryCaptureImageStorage
    save(frames, tmp_path / "frames.dcm")
    found = problems(tmp_path)
    assert found.pop("ct") is None and set(found.values()) == {NO_SLICE} and len(found) == 5


@pytest.mark.parametrize("count", [1, 2])
def test_a_stack_of_fewer_slices_than_three_is_refused_by_the_name_of_the_option(tmp_path, count):
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


def test_damaged_slices_lone_ones_and_copies_of_one_make_no_scans(tmp_path):
    write_scan(tmp_path)
    path = save(image_dataset(slices(1)[0], position=(0, 0, 9)), tmp_path / "cut.dcm")
    path.write_bytes(path.read_bytes()[:600])
    assert problems(tmp_path) == {".": "damaged file among the slices"}
    for index in range(5):
        dataset = image_dataset(slices(1)[0], position=(0, 0, index), series=f"1.2.{index}")
        save(dataset, tmp_path / "b" / f"each/{index}.dcm")
        save(image_dataset(slices(1)[0]), tmp_path / "b" / f"copies/{index}.dcm")
    assert list(problems(tmp_path / "b" / "each").values()) == [TOO_FEW] * 5
    assert problems(tmp_path / "b" / "copies") == {".": TOO_FEW}
    assert refusal(tmp_path / "b" / "copies", min_slices=3).detail.startswith("1 of at least 3")


def test_a_table_row_that_names_one_slice_is_refused_when_it_is_opened(tmp_path):
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
    dataset.SOPClassUID, dataset.NumberOfFrames = uid.VLWholeSlideMicroscopyImageStorage, 40
    measures = item(PixelSpacing=[0.001, 0.001], SliceThickness=0.01)
    dataset.SharedFunctionalGroupsSequence = [item(PixelMeasuresSequence=[measures])]
    dataset.DimensionOrganizationType = "TILED_FULL"
    save(dataset, path)


def cut_whole_slide(path: Path) -> None:
    whole_slide(path)
    path.write_bytes(path.read_bytes()[:600])


def ultrasound(path: Path) -> None:
    dataset = image_dataset(np.zeros((3, 8, 8), np.uint8), position=None, modality="US", rescale=None)
    dataset.SOPClassUID, dataset.NumberOfFrames, dataset.BitsStored = (
        uid.UltrasoundMultiFrameImageStorage,
        3,
        99,
    )
    save(dataset, path)


def radiograph(path: Path) -> None:
    dataset = image_dataset(np.zeros((8, 8), np.uint16), modality="CR", rescale=None)
    dataset.SOPClassUID, dataset.Rows = uid.ComputedRadiographyImageStorage, 0
    save(dataset, path)


def document(path: Path) -> None:
    dataset = image_dataset(np.zeros((1, 1), np.uint8), more={"PixelData": None})
    dataset.SOPClassUID, dataset.EncapsulatedDocument = uid.EncapsulatedPDFStorage, b"%PDF" + b"\0" * 70000
    save(dataset, path)


def slide_by_modality(path: Path) -> None:
    whole_slide(path)
    dataset = image_dataset(np.zeros((8, 8), np.uint8), position=None, modality="SM", rescale=None)
    dataset.SOPClassUID, dataset.NumberOfFrames = "1.2.3.4.5", 40
    dataset.PerFrameFunctionalGroupsSequence = [Dataset()]
    save(dataset, path)


FOREIGN = [
    (whole_slide, "whole-slide image"),
    (cut_whole_slide, "whole-slide image"),
    (slide_by_modality, "whole-slide image"),
    (ultrasound, "ultrasound multi-frame image"),
    (radiograph, "computed radiography image"),
    (document, "document"),
]


@pytest.mark.parametrize(("write", "kind"), FOREIGN, ids=[row[0].__name__ for row in FOREIGN])
def test_a_foreign_object_beside_a_scan_is_listed_by_its_kind_and_the_scan_is_taken(tmp_path, write, kind):
    write_scan(tmp_path)
    write(tmp_path / "foreign.dcm")
    found = listed_by_source(tmp_path)
    assert found["."].problem is None and len(found["."].members) == 4
    stage, reason, detail = found["foreign.dcm"].problem or ("", "", "")
    assert (stage, reason) == ("selection", NO_SLICE) and detail.partition("; ")[0] == kind
    assert open_folder(tmp_path).findings[0].detail == f"1 x {kind}"


@pytest.mark.parametrize("sop_class", ["MG", "SC", "US"])
def test_single_pictures_lead_to_layouts_of_pictures_where_a_volume_is_asked_for(tmp_path, sop_class):
    classes = {
        "MG": uid.DigitalMammographyXRayImageStorageForPresentation,
        "SC": uid.SecondaryCaptureImageStorage,
        "US": uid.UltrasoundMultiFrameImageStorage,
    }
    dataset = image_dataset(np.full((8, 8), 9, np.uint16), position=None, modality="MG", rescale=None)
    dataset.SOPClassUID = classes[sop_class]
    source = tmp_path / "s"
    save(dataset, source / "benign/a.dcm")
    for more in ({"layout": "dicom"}, {"layout": "pairs"}, {"layout": "dicom", "secondary_captures": "take"}):
        with pytest.raises(
            HalofeedError, match=r"single DICOM pictures are read as pictures: leave --depth out"
        ):
            run_convert(source, tmp_path / "out", depth=4, height=8, width=8, **more)


@pytest.mark.parametrize("empty", [True, False])
def test_of_several_scans_in_a_folder_a_damaged_slice_refuses_the_one_that_lacks_it(tmp_path, empty):
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


SECRET = "Portal phase of Jane Doe"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    write_scan(tmp_path / "portal", 6, "1.1", more={"SeriesDescription": SECRET})
    write_scan(tmp_path / "native", 4, "1.2", more={"SeriesDescription": "native"})
    write_scan(tmp_path / "mr", 5, "1.3", more={"SeriesDescription": "T1 portal"}, modality="MR")
    write_scan(tmp_path / "other", 3, "1.4", more={"StudyInstanceUID": "7.7"})
    return tmp_path


def taken(root: Path, **policy: Any) -> set[str]:
    return {source for source, one in listed_by_source(root, **policy).items() if one.problem is None}


CHOICES = [
    ({}, {"portal", "native", "mr", "other"}),
    ({"modalities": ("CT",)}, {"portal", "native", "other"}),
    ({"modalities": ("MR", "PT")}, {"mr"}),
    ({"description": "PORTAL"}, {"portal", "mr"}),
    ({"description": "^native$"}, {"native"}),
    ({"description": "portal", "modalities": ("CT",)}, {"portal"}),
    ({"min_slices": 5}, {"portal", "mr"}),
    ({"series": "largest"}, {"portal", "other"}),
    ({"series": "largest", "modalities": ("MR",)}, {"mr"}),
]


@pytest.mark.parametrize(("policy", "expected"), CHOICES)
def test_series_are_chosen_and_the_others_listed_with_the_reason(study, policy, expected):
    assert taken(study, **policy) == expected
    found = listed_by_source(study, **policy)
    assert set(found) == {"portal", "native", "mr", "other"}
    assert all(one.problem is None or one.problem[0] == "selection" for one in found.values())
    assert "Jane" not in str(found)


def test_why_a_series_was_not_chosen_names_the_option_and_two_largest_are_refused(study, tmp_path):
    found = listed_by_source(study, modalities=("CT",), description="portal")
    detail = "MR; --series-modality CT and --series-description 'portal'"
    assert found["mr"].problem == ("selection", "series is not chosen", detail)
    largest = ("selection", "series is not the largest of its study", "CT, 4 of 5 x 6; CT, 6 of 5 x 6 is")
    assert listed_by_source(study, series="largest")["native"].problem == largest
    write_scan(study / "late", 6, "1.5")
    found = listed_by_source(study, series="largest")
    reason = "several series of a study are the largest"
    both = {source for source, one in found.items() if one.problem and one.problem[1] == reason}
    assert both == {"portal", "late"}
    assert "--series-description" in (found["late"].problem or ("", "", ""))[2]
    for phase in range(2):
        write_scan(tmp_path / "phases" / str(phase), 6, "1.1", more={"AcquisitionNumber": phase})
    write_scan(tmp_path / "phases" / "other", 4, "1.2")
    found = listed_by_source(tmp_path / "phases", series="largest")
    assert [one.problem is None for one in found.values()] == [True, True, False]


def test_a_folder_named_by_a_table_means_the_chosen_series_and_a_mask_in_it_the_scan(tmp_path):
    write_scan(tmp_path / "p", 6, "1.1", names=[f"a{at}" for at in range(6)])
    write_scan(tmp_path / "p", 2, "1.2", names=["b1", "b2"])
    write_scan(tmp_path / "p", 5, "1.3", names=[f"c{at}" for at in range(5)], modality="MR")
    chosen = series_at(tmp_path, "p", LayoutOptions(series=SeriesPolicy(modalities=("CT",))))
    assert len(chosen.members) == 6
    for policy, words in (
        (SeriesPolicy(), "several DICOM series"),
        (SeriesPolicy(description="x", min_slices=6), "series is not chosen"),
    ):
        with pytest.raises(SourceError, match=words):
            series_at(tmp_path, "p", LayoutOptions(series=policy))
    write_scan(tmp_path / "b" / "p", 6, "1.1", names=[f"a{at}" for at in range(6)])
    write_scan(tmp_path / "b" / "p", 2, "1.2", names=["b1", "b2"])
    (tmp_path / "b" / "p" / "mask.nii").write_bytes(b"")
    (mask,) = [one.mask for one in listed_by_source(tmp_path / "b").values() if one.mask]
    assert mask == "p/mask.nii"


def test_wrong_choices_are_refused_with_the_known_ones():
    volumes = {"layout": "dicom", "depth": 8}
    for options, words in (
        ({"series_modality": ("CAT",)}, "--series-modality 'CAT': expected some of CT, MR"),
        ({"series_description": "("}, r"--series-description '\(': not a regular expression"),
        ({"series_split": "frames"}, "--series-split 'frames': expected one of volumes, channels, refuse"),
        ({"min_slices": 0}, "--min-slices 0: expected 1 or more"),
    ):
        with pytest.raises(UsageError, match=words):
            Recipe(**volumes, **options)
    for options in ({"series_choice": "largest"}, {"series_modality": ("CT",)}, {"min_slices": 5}):
        with pytest.raises(UsageError, match="has no effect without --layout dicom, csv or jsonl"):
            Recipe(layout="pairs", depth=8, **options).check_used()
    recipe = Recipe(**volumes, series_modality=("CT",), series_description="portal", series_choice="largest")
    assert Recipe.from_json(recipe.to_json()) == recipe
    policy = recipe.layout_options().series
    assert (policy.modalities, policy.description, policy.series) == (("CT",), "portal", "largest")


def pack(folder: Path) -> None:
    for path in list(folder.iterdir()):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


def test_slices_and_masks_in_gzip_are_those_without_and_damaged_ones_refuse_the_scan_beside_them(tmp_path):
    write_scan(tmp_path / "a", 4, "1.1", more={"TextValue": "x" * 100_000})
    expected = open_folder(tmp_path / "a").read()
    pack(tmp_path / "a")
    scan = open_folder(tmp_path / "a")
    assert all(name.endswith(".dcm.gz") for name in scan.files)
    np.testing.assert_array_equal(scan.read(), expected)
    assert taken(tmp_path) == {"a"}
    write_scan(tmp_path / "b" / "a", 4, "1.1")
    (tmp_path / "b" / "a" / "notes.txt.gz").write_bytes(gzip.compress(b"hello"))
    assert taken(tmp_path / "b") == {"a"}
    pack_of = gzip.compress(next((tmp_path / "b" / "a").glob("*.dcm")).read_bytes())
    (tmp_path / "b" / "a" / "cut.dcm.gz").write_bytes(pack_of[: len(pack_of) // 2])
    found = listed_by_source(tmp_path / "b")
    assert (found["a"].problem or ("", ""))[1] == "damaged file among the slices"
    write_scan(tmp_path / "c", 3, "1.1")
    pack(tmp_path / "c")
    files = LocalFiles(tmp_path / "c")
    with pytest.raises(SourceError, match="neither a segmentation nor a structure set"):
        open_dicom_mask(files, next(iter(files.sizes())))


SECRETS = ("Doe^Jane", "Roe^Richard", "PAT-1", "PAT-2", "19500101", "19600202", "1.2.77")


OTHER = {
    "PatientID": ("PAT-1", "PAT-2"),
    "PatientName": ("Doe^Jane", "Roe^Richard"),
    "PatientSex": ("F", "M"),
}
OTHER |= {"PatientBirthDate": ("19500101", "19600202"), "StudyInstanceUID": ("1.2", "1.2.77")}
OTHER |= {"StudyDate": ("20200101", "20210101"), "AccessionNumber": ("A1", "A2"), "Modality": ("CT", "PT")}
OTHER |= {"SeriesNumber": (3, 4), "SeriesDescription": ("thin", "thick"), "DeviceSerialNumber": ("11", "12")}
OTHER |= {"FrameOfReferenceUID": ("1.2.9", "1.2.8"), "Manufacturer": ("SIEMENS", "GE")}
OTHER |= {"ManufacturerModelName": ("Force", "Revolution"), "StationName": ("CT1", "CT2")}


def write(folder: Path, start: float, count=5, *, first_number=1, gap=2.0, **more: Any) -> None:
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
    tmp_path, name, folders, start, outcome
):
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
def test_a_stray_file_is_refused_by_its_name_and_a_lacking_value_contradicts_nothing(tmp_path, name):
    first, second = OTHER[name]
    write(tmp_path, 0.0, **{name: first})
    write(tmp_path, 10.0, 1, **{name: second}, first_number=6)
    ((files, problem),) = scans(tmp_path)
    assert files == 6
    assert f"{name}: 010.0.dcm against 000.0.dcm and 4 more" in problem
    root = tmp_path / "lacking"
    if name != "Modality":
        write(root, 0.0, **{name: first})
        write(root, 10.0, 3, **{name: None}, first_number=6)
        assert scans(root) == [(8, "")]
    write(root / "b", 40.0, **{name: second}, first_number=9)
    write(root / "a", 60.0, **{name: first}, first_number=20)
    write(root / "b", 50.0, 2, **{name: ""}, first_number=15)
    assert sorted(files for files, problem in scans(root)) == ([5, 7] if name == "Modality" else [7, 13])


SPELLED = {"PatientName": ("Doe^Jane", "DOE^JANE^^"), "StationName": ("CT1", "ct1 ")}
SPELLED |= {"SeriesDescription": ("Thorax  1.0", "THORAX 1.0")}


@pytest.mark.parametrize("name", SPELLED)
def test_spelling_is_no_contradiction(tmp_path, name):
    for index, text in enumerate(SPELLED[name]):
        write(tmp_path, 10.0 * index, **{name: text}, first_number=1 + 5 * index)
    assert scans(tmp_path) == [(10, "")]


@pytest.mark.parametrize(("name", "refused"), [("FrameOfReferenceUID", False), ("PatientID", True)])
def test_a_value_for_each_file_counts_where_it_is_of_the_patient(tmp_path, name, refused):
    for at in range(5):
        write(tmp_path, 2.0 * at, 1, first_number=at, **{name: f"1.2.{at}"})
    ((_, problem),) = scans(tmp_path)
    assert (name in problem) == refused


def test_files_of_one_series_in_folders_are_one_scan_unless_these_differ_and_of_one_each_by_choice(tmp_path):
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
    for folder in "ab":
        for at in range(4):
            write(tmp_path / "b" / folder, 2.0 * at, 1, SeriesInstanceUID=f"1.2.{ord(folder)}.{at}")
    assert scans(tmp_path / "b", identity="folder") == [(4, "")] * 2
    assert "--series-identity folder" in scans(tmp_path / "b")[0][1]
