"""Which series of a folder are taken: by modality, description, the largest of a study; and files in gzip."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halofeed.prep.formats.dicom.masks import open_dicom_mask
from halofeed.prep.formats.volume.series_policy import SeriesPolicy
from halofeed.prep.layouts import LayoutOptions
from halofeed.prep.options.recipe import Recipe
from halofeed.prep.sources.files import LocalFiles
from halofeed.schemas.errors import SourceError, UsageError
from tests.support.dicom_folders import listed_by_source, open_folder, write_scan
from tests.support.layout_references import series_at

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


CHOICES: list[tuple[dict[str, Any], set[str]]] = [
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
def test_series_are_chosen_and_the_others_listed_with_the_reason(
    study: Path, policy: dict[str, Any], expected: set[str]
) -> None:
    assert taken(study, **policy) == expected
    found = listed_by_source(study, **policy)
    assert set(found) == {"portal", "native", "mr", "other"}
    assert all(one.problem is None or one.problem[0] == "selection" for one in found.values())
    assert "Jane" not in str(found)


def test_why_a_series_was_not_chosen_names_the_option(study: Path) -> None:
    found = listed_by_source(study, modalities=("CT",), description="portal")
    detail = "MR; --series-modality CT and --series-description 'portal'"
    assert found["mr"].problem == ("selection", "series is not chosen", detail)
    largest = ("selection", "series is not the largest of its study", "CT, 4 of 5 x 6; CT, 6 of 5 x 6 is")
    assert listed_by_source(study, series="largest")["native"].problem == largest


def test_two_series_that_are_both_the_largest_are_refused(study: Path) -> None:
    write_scan(study / "late", 6, "1.5")
    found = listed_by_source(study, series="largest")
    reason = "several series of a study are the largest"
    both = {source for source, one in found.items() if one.problem and one.problem[1] == reason}
    assert both == {"portal", "late"}
    assert "--series-description" in (found["late"].problem or ("", "", ""))[2]


def test_the_phases_of_the_largest_series_are_all_taken(tmp_path: Path) -> None:
    for phase in range(2):
        write_scan(tmp_path / str(phase), 6, "1.1", more={"AcquisitionNumber": phase})
    write_scan(tmp_path / "other", 4, "1.2")
    found = listed_by_source(tmp_path, series="largest")
    assert [one.problem is None for one in found.values()] == [True, True, False]


def test_a_folder_named_by_a_table_means_the_series_that_is_chosen(tmp_path: Path) -> None:
    write_scan(tmp_path / "p", 6, "1.1", names=[f"a{at}" for at in range(6)])
    write_scan(tmp_path / "p", 2, "1.2", names=["b1", "b2"])
    write_scan(tmp_path / "p", 5, "1.3", names=[f"c{at}" for at in range(5)], modality="MR")
    chosen = series_at(tmp_path, "p", LayoutOptions(series=SeriesPolicy(modalities=("CT",))))
    assert len(chosen.members) == 6
    with pytest.raises(SourceError, match="several DICOM series"):
        series_at(tmp_path, "p", LayoutOptions())
    with pytest.raises(SourceError, match="series is not chosen"):
        series_at(
            tmp_path,
            "p",
            LayoutOptions(series=SeriesPolicy(description="x", min_slices=6)),
        )


def test_a_mask_beside_a_scan_and_a_survey_is_the_scan_s(tmp_path: Path) -> None:
    write_scan(tmp_path / "p", 6, "1.1", names=[f"a{at}" for at in range(6)])
    write_scan(tmp_path / "p", 2, "1.2", names=["b1", "b2"])
    (tmp_path / "p" / "mask.nii").write_bytes(b"")
    (mask,) = [one.mask for one in listed_by_source(tmp_path).values() if one.mask]
    assert mask == "p/mask.nii"


def test_wrong_choices_are_refused_with_the_known_ones() -> None:
    volumes = {"layout": "dicom", "depth": 8}
    with pytest.raises(UsageError, match="--series-modality 'CAT': expected some of CT, MR"):
        Recipe(**volumes, series_modality=("CAT",))
    with pytest.raises(UsageError, match="--series-description '\\(': not a regular expression"):
        Recipe(**volumes, series_description="(")
    splits = "volumes, channels, refuse"
    with pytest.raises(UsageError, match=f"--series-split 'frames': expected one of {splits}"):
        Recipe(**volumes, series_split="frames")
    with pytest.raises(UsageError, match="--min-slices 0: expected 1 or more"):
        Recipe(**volumes, min_slices=0)
    for options in ({"series_choice": "largest"}, {"series_modality": ("CT",)}, {"min_slices": 5}):
        with pytest.raises(UsageError, match="has no effect without --layout dicom, csv or jsonl"):
            Recipe(layout="pairs", depth=8, **options).check_used()
    recipe = Recipe(**volumes, series_modality=("CT",), series_description="portal", series_choice="largest")
    assert Recipe.from_json(recipe.to_json()) == recipe
    policy = recipe.layout_options().series
    assert (policy.modalities, policy.description, policy.series) == (("CT",), "portal", "largest")


# Files in gzip ------------------------------------------------------------------------------------------


def pack(folder: Path) -> None:
    for path in list(folder.iterdir()):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


def test_slices_in_gzip_are_those_without(tmp_path: Path) -> None:
    write_scan(tmp_path / "a", 4, "1.1", more={"TextValue": "x" * 100_000})
    expected = open_folder(tmp_path / "a").read()
    pack(tmp_path / "a")
    scan = open_folder(tmp_path / "a")
    assert all(name.endswith(".dcm.gz") for name in scan.files)
    np.testing.assert_array_equal(scan.read(), expected)
    assert taken(tmp_path) == {"a"}


def test_damaged_gzip_refuses_the_scan_beside_it_and_other_gzip_does_not(tmp_path: Path) -> None:
    write_scan(tmp_path / "a", 4, "1.1")
    (tmp_path / "a" / "notes.txt.gz").write_bytes(gzip.compress(b"hello"))
    assert taken(tmp_path) == {"a"}
    pack_of = gzip.compress(next((tmp_path / "a").glob("*.dcm")).read_bytes())
    (tmp_path / "a" / "cut.dcm.gz").write_bytes(pack_of[: len(pack_of) // 2])
    found = listed_by_source(tmp_path)
    assert (found["a"].problem or ("", ""))[1] == "damaged file among the slices"


def test_a_mask_in_gzip_is_read_as_one_without(tmp_path: Path) -> None:
    write_scan(tmp_path, 3, "1.1")
    pack(tmp_path)
    files = LocalFiles(tmp_path)
    with pytest.raises(SourceError, match="neither a segmentation nor a structure set"):
        open_dicom_mask(files, next(iter(files.sizes())))
