"""Is no scan converted as one without label where its label may lie in a folder that cannot be listed?"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from halofeed.prep.layouts import LayoutOptions, Reference, find_layout
from halofeed.prep.sources.files import LocalFiles
from halofeed.schemas.errors import AnnotationsError, JobError
from tests.support.conversions import run_convert
from tests.support.layout_sources import COUNT, LAYOUT_SOURCES, draw_masks, draw_scans
from tests.support.volume_support import rejected


def listed(root: Path, layout: str, **options: object) -> dict[str, Reference]:
    files = LocalFiles(root)
    found = find_layout(layout).list_references(files, files, None, LayoutOptions(**options))
    return {reference.source: reference for reference in found}


@pytest.mark.parametrize(
    ("layout", "images", "labels", "test"),
    [
        ("nnunet", "imagesTs/b_{}_0000.nii", "labelsTs/b_{}.nii", "imagesTs/b_0_0000.nii"),
        ("pairs", "imagesTs/{}.nii", "labelsTs/{}.nii", "imagesTs/0.nii"),
        ("lits", "test/test-volume-{}.nii", "more/test-segmentation-{}.nii", "test/test-volume-0.nii"),
    ],
)
def test_a_test_scan_is_not_for_prediction_where_labels_cannot_be_listed(
    ordinary_folder, ordinary_user, layout, images, labels, test
):
    LAYOUT_SOURCES[layout](ordinary_folder)
    if layout == "pairs":
        for name in ("images", "labels"):
            os.rename(ordinary_folder / name, ordinary_folder / f"{name}Tr")
    draw_scans(ordinary_folder, *(images.format(number) for number in range(2)))
    assert listed(ordinary_folder, layout)[test].problem is None
    draw_masks(ordinary_folder, *(labels.format(number) for number in range(2)))
    (ordinary_folder / labels).parent.chmod(0)
    with ordinary_user():
        problem = listed(ordinary_folder, layout)[test].problem
    assert problem is not None and problem[1] == "image has no label"


def test_dicom_series_are_not_for_prediction_where_a_folder_cannot_be_listed(ordinary_folder, ordinary_user):
    LAYOUT_SOURCES["dicom"](ordinary_folder)
    assert all(one.problem is None for one in listed(ordinary_folder, "dicom").values())
    (ordinary_folder / "masks").mkdir(mode=0)
    with ordinary_user():
        problems = [one.problem for one in listed(ordinary_folder, "dicom").values()]
    assert len(problems) == COUNT
    assert {problem and problem[1] for problem in problems} == {"image has no label"}


def test_a_dicom_series_may_go_on_in_a_folder_that_cannot_be_listed(ordinary_folder, ordinary_user):
    LAYOUT_SOURCES["dicom"](ordinary_folder)
    (ordinary_folder / "p1/more").mkdir(mode=0)
    with ordinary_user():
        found = listed(ordinary_folder, "dicom", missing_masks="prediction")
    assert {source for source, one in found.items() if one.problem} == {"p1"}
    assert found["p1"].problem[2].startswith("p1/more: folder cannot be listed")


def test_class_masks_by_pattern_need_every_folder(ordinary_folder, ordinary_user):
    draw_scans(ordinary_folder, "images/0.nii", "images/1.nii")
    draw_masks(ordinary_folder, "liver/0.nii", "liver/1.nii", "spleen/0.nii", "spleen/1.nii")
    patterns = {"image_pattern": "images/{id}.nii", "label_pattern": "{class}/{id}.nii"}
    (ordinary_folder / "spleen").chmod(0)
    with ordinary_user():
        words = "spleen cannot be listed, and may hold the masks of a class"
        with pytest.raises(AnnotationsError, match=words):
            listed(ordinary_folder, "class-masks", **patterns)
        found = listed(ordinary_folder, "class-masks", classes=("liver",), **patterns)
    assert [one.problem for one in found.values()] == [None, None]


def test_a_scan_whose_label_cannot_be_listed_is_rejected(ordinary_folder, ordinary_user, tmp_path):
    source = LAYOUT_SOURCES["class-masks"](ordinary_folder / "s")
    LAYOUT_SOURCES["class-masks"](tmp_path / "s")
    run_convert(tmp_path / "s", tmp_path / "o", **source.options)
    (ordinary_folder / "s/1/segmentations").chmod(0)
    with ordinary_user():
        done = run_convert(ordinary_folder / "s", ordinary_folder / "o", **source.options)
        with pytest.raises(JobError, match="1 of its inputs were rejected"):
            run_convert(ordinary_folder / "s", ordinary_folder / "o", max_rejected=0, **source.options)
    assert rejected(done)["1/segmentations"] == ("read", "folder cannot be listed", "Permission denied")
    assert rejected(done)["1/ct.nii"][1] == "image has no label"
    assert done.manifest.splits["train"].records == COUNT - 1
