"""Scans with one mask file per class."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from halofeed.prep.layouts import LayoutOptions
from halofeed.prep.layouts.class_masks import label_values
from halofeed.prep.sources.files import LocalFiles
from halofeed.schemas.errors import AnnotationsError, UsageError
from tests.support.layout_references import by_source, make, outcome

read = partial(by_source, "class-masks")


def values(files: LocalFiles, **options: Any) -> dict[int, str]:
    return dict(label_values(files, files, None, LayoutOptions(**options)))


def test_real_masks_below_a_folder_of_another_name_take_a_pattern(test_data: Path) -> None:
    files = LocalFiles(test_data / "volumes" / "totalsegmentator")
    options = {"image_pattern": "example_ct.nii.gz", "label_pattern": "one_file_per_class/{class}.nii.gz"}
    references = read(files, **options)
    (used,) = [one for one in references.values() if one.problem is None]
    classes = ["aorta", "kidney_right", "liver", "lung_upper_lobe_left", "spleen"]
    assert used.source == "example_ct.nii.gz" and used.is_labelled and used.mask is None
    assert used.class_masks == tuple((name, f"one_file_per_class/{name}.nii.gz") for name in classes)
    assert values(files, **options) == {0: "background", **dict(enumerate(classes, start=1))}


def test_real_masks_beside_their_scan_take_a_pattern(test_data: Path) -> None:
    files = LocalFiles(test_data / "volumes" / "totalsegmentator" / "pulmonary_report")
    (found,) = read(files, image_pattern="ct_cropped.nii.gz", label_pattern="{class}.nii.gz").values()
    assert [name for name, _ in found.class_masks] == ["heart", "pulmonary_artery"]
    assert found.paths == ("ct_cropped.nii.gz", "heart.nii.gz", "pulmonary_artery.nii.gz")


def test_the_usual_form_needs_no_pattern(tmp_path: Path) -> None:
    names = ("ct", "segmentations/liver", "segmentations/aorta")
    files = make(
        tmp_path,
        *(f"s{number:04d}/{name}.nii.gz" for number in (1, 2) for name in names),
        *("s0003/ct.nii.gz", "s0004/segmentations/liver.nii.gz", "s0004/segmentations/aorta.nii.gz"),
        *("s0005/ct.nii.gz", "s0005/mri.nii.gz", "s0005/segmentations/liver.nii.gz"),
        *("s0006/ct.nii.gz", "s0006/segmentations/liver.nii.gz", "meta.csv"),
        *("s0007/mri.nii", "s0007/segmentations/liver.nii", "s0007/segmentations/liver.nii.gz"),
    )
    references = read(files)
    assert outcome(references) == {
        **dict.fromkeys(("s0001/ct.nii.gz", "s0002/ct.nii.gz"), None),
        "s0003/ct.nii.gz": "image has no label",
        "s0004/segmentations/aorta.nii.gz": "label has no image",
        **dict.fromkeys(("s0005/ct.nii.gz", "s0005/mri.nii.gz"), "several images for one label"),
        "s0006/ct.nii.gz": "mask of a class is missing",
        "s0007/mri.nii": "several masks of one class",
    }
    assert references["s0002/ct.nii.gz"].class_masks == (
        ("aorta", "s0002/segmentations/aorta.nii.gz"),
        ("liver", "s0002/segmentations/liver.nii.gz"),
    )
    assert values(files) == {0: "background", 1: "aorta", 2: "liver"}


def test_chosen_classes_give_the_values_in_their_order(tmp_path: Path) -> None:
    files = make(tmp_path, "ct/1.nii", "ct/2.nii", "ct/3.nii", "b/1.nii", "a/1.nii", "a/2.nii", "c/3.nii")
    options: dict[str, Any] = {"image_pattern": "ct/{id}.nii", "label_pattern": "{class}/{id}.nii"}
    assert values(files, **options) == {0: "background", 1: "a", 2: "b", 3: "c"}
    options["classes"] = ("b", "a")
    assert values(files, **options) == {0: "background", 1: "b", 2: "a"}
    strict = read(files, **options)
    assert strict["ct/1.nii"].class_masks == (("b", "b/1.nii"), ("a", "a/1.nii"))
    assert strict["ct/2.nii"].problem == ("annotation", "mask of a class is missing", "b")
    lenient = read(files, missing_classes="empty", **options)
    assert lenient["ct/2.nii"].class_masks == (("a", "a/2.nii"),)
    problem = lenient["ct/3.nii"].problem
    assert problem is not None and problem[1] == "scan has no mask of any class"
    with pytest.raises(AnnotationsError, match="no mask of class kidney anywhere; found a, b, c"):
        read(files, **{**options, "classes": ("kidney",)})


def test_folders_of_splits_are_splits_and_scans_without_masks_may_be_kept(tmp_path: Path) -> None:
    files = make(tmp_path, "train/s1/ct.nii", "train/s1/masks/a.nii", "test/s2/ct.nii", "test/s2/masks/a.nii")
    make(tmp_path, "test/s3/ct.nii")
    references = read(files, missing_masks="prediction")
    assert {source: (one.split, one.is_labelled) for source, one in references.items()} == {
        "train/s1/ct.nii": ("train", True),
        "test/s2/ct.nii": ("test", True),
        "test/s3/ct.nii": ("test", False),
    }


def test_what_has_no_masks_and_patterns_without_class_are_refused(tmp_path: Path) -> None:
    files = make(tmp_path, "a/ct.nii")
    with pytest.raises(AnnotationsError, match="no image is found by the rule"):
        read(files)
    with pytest.raises(AnnotationsError, match="no mask is found"):
        read(files, image_pattern="{id}/ct.nii", label_pattern="{id}/s/{class}.nii")
    with pytest.raises(UsageError, match="class masks need"):
        read(files, image_pattern="{id}/ct.nii", label_pattern="{id}/seg.nii")
