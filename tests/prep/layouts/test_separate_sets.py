"""A folder with two sets side by side is refused with the command for each; masks of series in a folder are no set."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from halofeed.errors import AnnotationsError
from halofeed.prep.layouts.separate_sets import refuse_two_sets
from halofeed.prep.sources.files import LocalFiles
from tests.support.annotation_writer import draw
from tests.support.conversions import run_convert
from tests.support.dicom_writer import write_series
from tests.support.layout_references import detected, write_files
from tests.support.small_scans import AFFINE, image, mask
from tests.support.volume_support import save_nifti


def save_scans(root: Path, *folders: str, names: tuple[str, ...] = ("1.dcm", "2.dcm", "3.dcm")) -> None:
    """Save a DICOM series in each folder."""
    for number, folder in enumerate(folders):
        volume = np.random.default_rng(number).integers(0, 99, (len(names), 6, 5)).astype(np.int16)
        positions = [(0, 0, 2 * depth) for depth in range(len(names))]
        write_series(root / folder, volume, positions, names=names, series=f"1.2.{number}")


def save_pairs(root: Path, *cases: str) -> None:
    for case in cases:
        save_nifti(root / f"images/{case}.nii.gz", image(), AFFINE)
        save_nifti(root / f"labels/{case}.nii.gz", mask(), AFFINE)


@pytest.mark.parametrize(
    "names", [("1.dcm", "2.dcm", "3.dcm"), ("IM1", "IM2", "IM3"), ("1.2.1", "1.2.2", "1.2.3")]
)
def test_series_beside_pairs_of_volumes_are_two_sets_and_each_command_works(tmp_path, names):
    save_scans(tmp_path / "data/Test volumes", "p1/T1", "p2/T1", names=names)
    save_pairs(tmp_path / "data/Train", "a", "b", "c")
    write_files(tmp_path, {"README.md": "", "LICENSE": ""})
    with pytest.raises(AnnotationsError, match="two sets in two folders") as caught:
        detected(tmp_path)
    text = str(caught.value)
    assert "6 DICOM files in data/Test volumes, and 6 volumes in data/Train" in text
    typed = [shlex.split(words) for words in re.findall(r"use (--source .+? --layout \S+),", text)]
    assert [words[3] for words in typed] == ["dicom", "pairs"]
    for _, source, _, layout in typed:
        assert detected(source) == layout
    if names[0] == "1.dcm":
        for _, source, _, layout in typed:
            sides = {"depth": 8, "height": 8, "width": 8, "missing_masks": "prediction"}
            done = run_convert(source, tmp_path / layout, layout=layout, **sides)
            records = sum(split.records for split in done.manifest.splits.values())
            assert records == {"dicom": 2, "pairs": 3}[layout]


def test_masks_of_series_in_a_folder_of_their_own_are_no_second_set(tmp_path):
    save_scans(tmp_path / "scans", "p1", "p2", "p3")
    for case in ("p1", "p2", "p3"):
        save_nifti(tmp_path / f"masks/{case}.nii.gz", mask(), AFFINE)
    assert detected(tmp_path) == "dicom"


def test_volumes_that_the_layout_of_series_uses_as_masks_are_no_second_set(tmp_path):
    write_files(tmp_path, {f"{name}": "" for name in ("a/1.dcm", "a/2.dcm", "b/1.nii", "b/2.nii", "b/3.nii")})
    files = LocalFiles(tmp_path)
    refuse_two_sets(files, lambda: 2, lambda folder: ("pairs", "fits"))
    refuse_two_sets(files, lambda: 0, lambda folder: None)
    with pytest.raises(
        AnnotationsError, match=r"2 DICOM files in a, and 3 volumes in b; use --source .*/a --layout"
    ):
        refuse_two_sets(files, lambda: 1, lambda folder: ("pairs", "fits"))


def test_volumes_inside_the_folders_of_the_series_or_a_single_one_are_no_second_set(tmp_path):
    save_scans(tmp_path, "p1/dicom", "p2/dicom")
    for case in ("p1", "p2"):
        save_pairs(tmp_path / case / "nifti", "scan")
    assert detected(tmp_path) == "dicom"
    save_scans(tmp_path / "other/a", "p1", "p2")
    save_nifti(tmp_path / "other/b/example.nii.gz", image(), AFFINE)
    assert detected(tmp_path / "other") == "dicom"


def test_exports_of_two_tools_in_two_folders_are_named_with_a_command_for_each(tmp_path):
    draw(tmp_path, "one/images/a.png", "two/images/a.png")
    write_files(
        tmp_path,
        {
            "one/data.yaml": "train: images\nnames: [hat]\n",
            "one/labels/a.txt": "0 .5 .5 .2 .4\n",
            "two/instances.json": '{"images": [{"id": 1, "file_name": "images/a.png", "height": 16, "width": 24}], '
            '"annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "area": 12}], '
            '"categories": [{"id": 1, "name": "hat"}]}',
        },
    )
    with pytest.raises(AnnotationsError, match="files of several layouts") as caught:
        detected(tmp_path)
    for folder, layout in (("one", "yolo"), ("two", "coco")):
        assert f"use --source {tmp_path}/{folder} --layout {layout}" in str(caught.value)
        assert detected(tmp_path / folder) == layout
