"""Scans with one mask file per class, and tables of scans and labels."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from halofeed.errors import AnnotationsError, UsageError
from halofeed.prep.layouts import LayoutOptions
from halofeed.prep.layouts.pairs import class_mask_values
from halofeed.prep.sources.files import LocalFiles
from tests.support.layout_references import by_source, list_references, make, outcome, write_files

read = partial(by_source, "class-masks")


def values(files: LocalFiles, **options: Any) -> dict[int, str]:
    return dict(class_mask_values(files, files, None, LayoutOptions(**options)))


def test_real_masks_beside_their_scan_or_below_another_folder_take_a_pattern(test_data):
    files = LocalFiles(test_data / "volumes" / "totalsegmentator")
    options = {"image_pattern": "example_ct.nii.gz", "label_pattern": "one_file_per_class/{class}.nii.gz"}
    references = read(files, **options)
    (used,) = [one for one in references.values() if one.problem is None]
    classes = ["aorta", "kidney_right", "liver", "lung_upper_lobe_left", "spleen"]
    assert used.source == "example_ct.nii.gz" and used.is_labelled and used.mask is None
    assert used.class_masks == tuple((name, f"one_file_per_class/{name}.nii.gz") for name in classes)
    assert values(files, **options) == {0: "background", **dict(enumerate(classes, start=1))}
    files = LocalFiles(test_data / "volumes" / "totalsegmentator" / "pulmonary_report")
    (found,) = read(files, image_pattern="ct_cropped.nii.gz", label_pattern="{class}.nii.gz").values()
    assert [name for name, _ in found.class_masks] == ["heart", "pulmonary_artery"]
    assert found.paths == ("ct_cropped.nii.gz", "heart.nii.gz", "pulmonary_artery.nii.gz")


def test_the_usual_form_needs_no_pattern(tmp_path):
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


def test_chosen_classes_give_the_values_in_their_order(tmp_path):
    files = make(tmp_path, "ct/1.nii", "ct/2.nii", "ct/3.nii", "b/1.nii", "a/1.nii", "a/2.nii", "c/3.nii")
    options = {"image_pattern": "ct/{id}.nii", "label_pattern": "{class}/{id}.nii"}
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


def test_folders_of_splits_are_splits_and_what_has_no_masks_or_class_is_refused(tmp_path):
    files = make(tmp_path, "train/s1/ct.nii", "train/s1/masks/a.nii", "test/s2/ct.nii", "test/s2/masks/a.nii")
    make(tmp_path, "test/s3/ct.nii")
    references = read(files, missing_masks="prediction")
    assert {source: (one.split, one.is_labelled) for source, one in references.items()} == {
        "train/s1/ct.nii": ("train", True),
        "test/s2/ct.nii": ("test", True),
        "test/s3/ct.nii": ("test", False),
    }
    files = make(tmp_path / "b", "a/ct.nii")
    with pytest.raises(AnnotationsError, match="no mask found"):
        read(files, image_pattern="{id}/ct.nii", label_pattern="{id}/s/{class}.nii")
    with pytest.raises(UsageError, match="class masks need"):
        read(files, image_pattern="{id}/ct.nii", label_pattern="{id}/seg.nii")


read_table = partial(by_source, task="segmentation")


def write_table(root: Path, text: str, *paths: str, table: str = "pairs.csv") -> None:
    write_files(root, {table: text, **dict.fromkeys(paths, "x")})


def test_channels_are_separated_by_semicolons_or_listed_in_json_and_the_table_names_the_split(tmp_path):
    paths = ["a/t1.nii", "a/t2.nii", "a/seg.nii"]
    write_table(tmp_path, "image,label\na/t1.nii; a/t2.nii,a/seg.nii\n", *paths)
    lines = [{"image": ["a/t1.nii", "a/t2.nii"], "label": "a/seg.nii", "id": None}]
    write_table(tmp_path, "\n".join(map(json.dumps, lines)), table="pairs.jsonl")
    for found in (read_table("csv", tmp_path), read_table("jsonl", tmp_path)):
        (reference,) = found.values()
        assert reference.source == reference.key == "a/t1.nii"
        assert (reference.channels, reference.mask) == (("a/t2.nii",), "a/seg.nii")
    write_table(
        tmp_path / "b", "image,label\na/1.png,a/1m.png\n", "a/1.png", "a/1m.png", "a/3.png", table="train.csv"
    )
    write_table(tmp_path / "b", "image,label,split\nb/2.png,,\n", "b/2.png", "c/4.png", table="test.csv")
    both = read_table("csv", tmp_path / "b")
    assert both["a/1.png"].split == "train" and both["b/2.png"].split == "test"
    assert set(both) == {"a/1.png", "b/2.png", "a/3.png", "c/4.png"}
    assert set(read_table("csv", tmp_path / "b", "train.csv")) == {"a/1.png", "a/3.png"}


def test_every_row_and_every_scan_is_accounted_for(tmp_path):
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
    write_table(tmp_path, text, *paths.split())
    references = read_table("csv", tmp_path)
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


def test_a_table_of_other_columns_is_refused(tmp_path):
    for text, words in (
        ("image,outline\na,b\n", "no column label; found image, outline; expected id,image,label"),
        ("filename,class\na,b\n", "no column image, label"),
        ("image,label,label\n", "column label comes twice"),
    ):
        write_table(tmp_path, text)
        with pytest.raises(AnnotationsError, match=words):
            read_table("csv", tmp_path)


@pytest.mark.parametrize("column", ["patient_id", "Subject", "ParticipantID"])
def test_a_column_of_patients_that_is_not_called_group_is_an_attribute_for_shares(tmp_path, column):
    write_files(tmp_path, {"t.csv": f"image,label,{column}\na.nii,,1\n", "a.nii": "x"})
    listed = list_references("csv", tmp_path, task="segmentation", needs_groups=True)
    assert listed[0].attributes == ((column, "1"),)
    assert not list_references("csv", tmp_path, task="segmentation", missing_masks="prediction")[0].attributes
    write_files(tmp_path, {"t.csv": f"image,label,{column},group\na.nii,,1,2\n"})
    assert list_references("csv", tmp_path, task="segmentation", needs_groups=True)[0].group == "2"


def test_a_pattern_chooses_masks_by_the_names_of_their_classes(tmp_path):
    names = ("ct", "segmentations/lung_left", "segmentations/lung_right", "segmentations/liver")
    files = make(tmp_path, *(f"s1/{name}.nii.gz" for name in names))
    (found,) = (one for one in read(files, classes=("liver", "lung*")).values() if one.problem is None)
    assert [name for name, _ in found.class_masks] == ["liver", "lung_left", "lung_right"]
    assert values(files, classes=("liver", "lung*")) == {
        0: "background",
        1: "liver",
        2: "lung_left",
        3: "lung_right",
    }
    joined = read(files, map_classes=("lung*=lung",), classes=("lung",), several_masks="merge")
    assert {one.problem[1] for one in joined.values() if one.problem} <= {"several masks of one class"}
