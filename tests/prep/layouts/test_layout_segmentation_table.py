"""Tables of scans and labels."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from halofeed.schemas.errors import AnnotationsError
from tests.support.layout_references import by_source, list_references, outcome, write_files

read = partial(by_source, task="segmentation")


def write(root: Path, text: str, *paths: str, table: str = "pairs.csv") -> None:
    write_files(root, {table: text, **dict.fromkeys(paths, "x")})


def test_real_volumes_and_a_dicom_folder_with_its_nifti_mask(test_data: Path, tmp_path: Path) -> None:
    text = (
        "id,image,label,group,split\n"
        "spleen2,volumes/spleen/sub-spleen2_ct.nii.gz,volumes/spleen/sub-spleen2_ct_seg-manual.nii.gz,p1,train\n"
        "ts,dicom/totalsegmentator_jpeg2000,volumes/totalsegmentator/example_seg_dicom.nii.gz,,test\n"
        "17,dicom/torchio_17/,,p3,test\n"
    )
    (tmp_path / "pairs.csv").write_text(text)
    references = read("csv", tmp_path, "pairs.csv", images=test_data)
    named = {one.key: one for one in references.values() if one.problem is None}
    assert set(named) == {"spleen2", "ts", "17"}
    series = named["ts"]
    assert series.source == "dicom/totalsegmentator_jpeg2000" and len(series.members) == 20
    assert series.mask == "volumes/totalsegmentator/example_seg_dicom.nii.gz" and series.split == "test"
    assert series.paths == (*series.members, series.mask)
    assert len(named["17"].members) == 17 and not named["17"].is_labelled and named["17"].group == "p3"
    assert named["spleen2"].group == "p1" and named["spleen2"].split == "train"


def test_several_channels_are_separated_by_semicolons_or_listed_in_json(tmp_path: Path) -> None:
    paths = ["a/t1.nii", "a/t2.nii", "a/seg.nii"]
    write(tmp_path, "image,label\na/t1.nii; a/t2.nii,a/seg.nii\n", *paths)
    lines = [{"image": ["a/t1.nii", "a/t2.nii"], "label": "a/seg.nii", "id": None}]
    write(tmp_path, "\n".join(map(json.dumps, lines)), table="pairs.jsonl")
    for found in (read("csv", tmp_path), read("jsonl", tmp_path)):
        (reference,) = found.values()
        assert reference.source == reference.key == "a/t1.nii"
        assert (reference.channels, reference.mask) == (("a/t2.nii",), "a/seg.nii")


def test_every_row_and_every_scan_is_accounted_for(tmp_path: Path) -> None:
    text = (
        "id;image;label\n"
        "1;good.nii.gz;good_seg.nii.gz\n"
        "2;test.nii.gz;\n"
        "3;missing.nii.gz;good_seg.nii.gz\n"
        "4;nolabel.nii.gz;nowhere/good_seg.nii.gz\n"
        "5;;good_seg.nii.gz\n"
        "6;twice.png;a.png\n"
        "7;./twice.png;b.png\n"
        "8;self.nii;self.nii\n"
        "9;pair.img;pair_seg.hdr\n"
        "10;half.hdr;good_seg.nii.gz\n"
        "11;short.nii\n"
        '12;"c1.nii;c1.nii";good_seg.nii.gz\n'
        "13;masked.nii;masks/13\n"
        "14;unclear.nii;masks\n"
    )
    paths = (
        "good.nii.gz good_seg.nii.gz test.nii.gz nolabel.nii.gz twice.png a.png b.png self.nii pair.hdr pair.img "
        "pair_seg.hdr pair_seg.img half.hdr short.nii c1.nii masked.nii masks/13/LICENSE masks/13/seg.nii "
        "masks/other.nii unclear.nii extra.nii slices/1 slices/2 README.md"
    )
    write(tmp_path, text, *paths.split())
    references = read("csv", tmp_path)
    assert outcome(references) == {
        "good.nii.gz": "good_seg.nii.gz",
        "test.nii.gz": None,
        "missing.nii.gz": "image file not found",
        "nolabel.nii.gz": "label file not found",
        "pairs.csv:6": "row names no file",
        "twice.png": "image is in several rows",
        "self.nii": "image and label are one file",
        "pair.hdr": "pair_seg.hdr",
        "half.hdr": "the .img file with the voxels is missing",
        "short.nii": "row has the wrong number of cells",
        "c1.nii": "channel is listed twice",
        "masked.nii": "masks/13/seg.nii",
        "unclear.nii": "label folder holds several files",
        "extra.nii": "file is in no row of the table",
        "slices": "folder is in no row of the table",
    }
    assert references["test.nii.gz"].key == "2"
    assert references["pair.hdr"].paths == ("pair.hdr", "pair.img", "pair_seg.hdr", "pair_seg.img")
    problem = references["nolabel.nii.gz"].problem
    assert problem is not None and problem[2].startswith("pairs.csv:5: 'nowhere/good_seg.nii.gz' below")


def test_the_tables_name_is_the_split_and_one_named_table_is_read_alone(tmp_path: Path) -> None:
    write(tmp_path, "image,label\na/1.png,a/1m.png\n", "a/1.png", "a/1m.png", "a/3.png", table="train.csv")
    write(tmp_path, "image,label,split\nb/2.png,,\n", "b/2.png", "c/4.png", table="test.csv")
    both = read("csv", tmp_path)
    assert both["a/1.png"].split == "train" and both["b/2.png"].split == "test"
    assert set(both) == {"a/1.png", "b/2.png", "a/3.png", "c/4.png"}
    assert set(read("csv", tmp_path, "train.csv")) == {"a/1.png", "a/3.png"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("image,outline\na,b\n", "no column label; found image, outline; expected id,image,label"),
        ("filename,class\na,b\n", "no column image, label"),
        ("image,label,label\n", "column label comes twice"),
    ],
)
def test_a_table_of_other_columns_is_refused(tmp_path: Path, text: str, words: str) -> None:
    write(tmp_path, text)
    with pytest.raises(AnnotationsError, match=words):
        read("csv", tmp_path)


def test_without_the_task_a_segmentation_table_is_refused_with_the_cure(tmp_path: Path) -> None:
    write(tmp_path, "image,label\na.nii,b.nii\n", "a.nii", "b.nii")
    with pytest.raises(AnnotationsError, match="image,label need --task segmentation"):
        by_source("csv", tmp_path)


@pytest.mark.parametrize("column", ["patient_id", "Subject", "ParticipantID"])
def test_a_column_of_patients_that_is_not_called_group_is_refused_for_shares(
    tmp_path: Path, column: str
) -> None:
    write_files(tmp_path, {"t.csv": f"image,label,{column}\na.nii,,1\n", "a.nii": "x"})
    with pytest.raises(AnnotationsError, match=f"column '{column}' is not read.*call it group"):
        list_references("csv", tmp_path, task="segmentation", needs_groups=True)
    assert list_references("csv", tmp_path, task="segmentation", missing_masks="prediction")
    write_files(tmp_path, {"t.csv": f"image,label,{column},group\na.nii,,1,2\n"})
    assert list_references("csv", tmp_path, task="segmentation", needs_groups=True)[0].group == "2"
