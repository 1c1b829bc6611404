"""LiTS names."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from halofeed.prep.layouts import LayoutOptions, find_layout
from halofeed.schemas.errors import AnnotationsError
from tests.support.layout_references import by_source, make, outcome

read = partial(by_source, "lits")


def test_lits_names_pair_by_number_wherever_they_lie(tmp_path: Path) -> None:
    files = make(
        tmp_path,
        *("pt1/volume-0.nii", "pt2/volume-1.nii.gz", "segs/segmentation-0.nii", "segs/segmentation-1.nii.gz"),
        *("volume-2.nii", "segmentation-3.nii", "test-volume-0.nii", "liver.nii", "README.md"),
        *("volume-4.nii", "volume-04.nii", "segmentation-4.nii"),
    )
    references = read(files)
    assert outcome(references) == {
        "pt1/volume-0.nii": "segs/segmentation-0.nii",
        "pt2/volume-1.nii.gz": "segs/segmentation-1.nii.gz",
        "volume-2.nii": "image has no label",
        "segmentation-3.nii": "label has no image",
        "test-volume-0.nii": None,
        "liver.nii": "file is neither image nor label by its name",
        "volume-4.nii": "several images for one label",
        "volume-04.nii": "several images for one label",
    }
    assert references["test-volume-0.nii"].split == "test"


def test_lits_numbers_may_start_anew_in_each_split(tmp_path: Path) -> None:
    files = make(tmp_path, *(f"{s}/{n}-0.nii" for s in ("train", "val") for n in ("ct", "segmentation")))
    references = read(files)
    assert {(one.split, one.mask) for one in references.values()} == {
        ("train", "train/segmentation-0.nii"),
        ("val", "val/segmentation-0.nii"),
    }
    layout = find_layout("lits")
    assert layout.label_values is not None
    assert layout.label_values(files, files, None, LayoutOptions())[2] == "tumour"
    with pytest.raises(AnnotationsError, match="no volume-N"):
        read(make(tmp_path / "empty", "a.nii"))


def test_a_test_segmentation_that_fits_none_does_not_make_test_volumes_for_prediction(tmp_path: Path) -> None:
    files = make(tmp_path, "test-volume-0.nii", "test-segmentation-7.nii")
    assert outcome(read(files)) == {
        "test-volume-0.nii": "image has no label",
        "test-segmentation-7.nii": "label has no image",
    }
