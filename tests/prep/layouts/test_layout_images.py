"""Is a box ever put on the picture of another folder, and is anything listed that was not asked for?"""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from halofeed.errors import UsageError
from halofeed.prep.layouts import SourceExample
from tests.support.annotation_writer import boxed, voc_object, voc_text, write_annotations
from tests.support.layout_references import list_references, make, write_files

LAYOUTS_WITH_PATHS = ("csv", "jsonl", "coco", "voc")


def annotate(root: Path, layout: str, names: Sequence[str]) -> str:
    """One box on each of the images, of width 10, 20, ... in their order; the annotation file's name."""
    root.mkdir(parents=True, exist_ok=True)
    rows = [boxed(name, (0, 0, 10 * number, 5)) for number, name in enumerate(names, start=1)]
    if layout != "voc":
        return write_annotations(root, layout, rows)
    (root / "Annotations").mkdir(exist_ok=True)
    for number, row in enumerate(rows):
        text = voc_text(row["filename"], voc_object({**row, "xmin": 1, "ymin": 1}))
        (root / "Annotations" / f"x{number}.xml").write_text(text)
    return ""


def widths(references: Sequence[SourceExample]) -> dict[str, list[float]]:
    """The widths of the boxes of each image that is converted."""
    found = (one for one in references if one.problem is None)
    return {one.source: [box.xmax - box.xmin for box in one.boxes or ()] for one in found}


def reasons(references: Sequence[SourceExample]) -> list[str]:
    """Why the others are not."""
    return sorted(one.problem[1] for one in references if one.problem)


@pytest.mark.parametrize("layout", LAYOUTS_WITH_PATHS)
def test_a_box_of_a_missing_folder_is_never_put_on_the_picture_of_another(tmp_path, layout):
    make(tmp_path, "cam1/0001.jpg", "cam1/0002.jpg")
    annotate(tmp_path, layout, ["cam1/0001.jpg", "cam2/0001.jpg", "cam2/0002.jpg"])
    references = list_references(layout, tmp_path)
    assert widths(references) == {"cam1/0001.jpg": [10]}
    lost = [one for one in references if one.problem and one.problem[1] == "image file not found"]
    assert len(lost) == 2 and all("cam2" in (one.problem or ("", "", ""))[2] for one in lost)
    make(tmp_path / "b" / "set" / "cam1", "0001.jpg", "0002.jpg")
    annotate(tmp_path / "b" / "labels", layout, ["cam1/0001.jpg", "cam2/0001.jpg", "cam2/0002.jpg"])
    references = list_references(layout, tmp_path / "b" / "labels", images=tmp_path / "b" / "set" / "cam1")
    assert widths(references) == {"0001.jpg": [10]}


@pytest.mark.parametrize("layout", LAYOUTS_WITH_PATHS)
def test_paths_are_matched_by_their_end_unless_another_folder_is_meant(tmp_path, layout):
    make(tmp_path, "cam1/0001.jpg", "cam1/0002.jpg")
    annotate(tmp_path, layout, ["/content/cam1/0001.jpg", "/content/cam2/0002.jpg"])
    references = list_references(layout, tmp_path)
    assert widths(references) == {"cam1/0001.jpg": [10]}
    (found,) = [one for one in references if one.problem is None]
    assert "another folder" in found.notes[0]
    make(tmp_path / "b", "set/images/cam1/0001.jpg", "set/images/cam2/0001.jpg")
    annotate(tmp_path / "b", layout, ["cam2/0001.jpg", "cam1/0001.jpg"])
    references = list_references(layout, tmp_path / "b")
    assert widths(references) == {"set/images/cam1/0001.jpg": [20], "set/images/cam2/0001.jpg": [10]}
    assert not any(one.notes for one in references)


@pytest.mark.parametrize("layout", LAYOUTS_WITH_PATHS)
def test_a_file_name_alone_means_no_picture_that_is_named_with_its_folder(tmp_path, layout):
    """And two names that end alike are both refused where neither is whole."""
    for folder, pictures, names, found in (
        ("a", ["cam1/0001.jpg"], ["cam1/0001.jpg", "0001.jpg"], {"cam1/0001.jpg": [10]}),
        (
            "b",
            ["all/0001.jpg", "all/0002.jpg"],
            ["cam1/0001.jpg", "cam2/0001.jpg", "cam1/0002.jpg"],
            {"all/0002.jpg": [30]},
        ),
    ):
        make(tmp_path / folder, *pictures)
        annotate(tmp_path / folder, layout, names)
        assert widths(list_references(layout, tmp_path / folder)) == found


def test_an_xml_in_a_folder_and_a_coco_split_mean_their_own_images_alone(tmp_path):
    make(tmp_path, "JPEGImages/cam1/0001.jpg", "JPEGImages/cam1/0002.jpg", "JPEGImages/cam3/0001.jpg")
    annotate(tmp_path, "voc", ["0001.jpg", "0001.jpg", "0002.jpg", "0001.jpg"])
    for number, place in enumerate(["cam1/0001", "cam2/0001", "cam2/0002", "cam3/0001"]):
        (tmp_path / "Annotations" / place).parent.mkdir(exist_ok=True)
        (tmp_path / "Annotations" / f"x{number}.xml").rename(tmp_path / "Annotations" / f"{place}.xml")
    references = list_references("voc", tmp_path)
    assert widths(references) == {"JPEGImages/cam1/0001.jpg": [10], "JPEGImages/cam3/0001.jpg": [40]}
    make(tmp_path / "b", "train/a.jpg", "train/b.jpg", "valid/b.jpg")
    for split in ("train", "valid"):
        annotate(tmp_path / "b" / split, "coco", ["a.jpg", "b.jpg"])
        (tmp_path / "b" / split / "instances.json").rename(tmp_path / "b" / split / "_annotations.coco.json")
    references = list_references("coco", tmp_path / "b")
    assert {one.source: one.split for one in references if one.problem is None} == {
        "train/a.jpg": "train",
        "train/b.jpg": "train",
        "valid/b.jpg": "valid",
    }
    assert [one.split for one in references if one.problem and one.problem[0] == "annotation"] == ["valid"]


@pytest.mark.parametrize("layout", ["csv", "jsonl", "coco"])
@pytest.mark.parametrize("under", ["images", "/"])
def test_absolute_paths_are_read_and_nothing_else_is_listed(tmp_path, layout, under, monkeypatch):
    make(tmp_path / "images", "cam1/0001.jpg", "cam1/extra.jpg", "cam2/0001.jpg", "other/0001.jpg")
    names = [str(tmp_path / "images" / name) for name in ("cam1/0001.jpg", "cam2/0001.jpg", "cam1/gone.jpg")]
    file = annotate(tmp_path / "labels", layout, names)
    walked = []
    walk = os.walk
    monkeypatch.setattr(os, "walk", lambda top, **more: walked.append(top) or walk(top, **more))
    root = Path("/") if under == "/" else tmp_path / under
    references = list_references(layout, tmp_path / "labels", file, images=root)
    start = f"{tmp_path}/images/".lstrip("/") if under == "/" else ""
    assert widths(references) == {f"{start}cam1/0001.jpg": [10], f"{start}cam2/0001.jpg": [20]}
    assert reasons(references) == ["image file not found", "image has no annotation"]
    assert not walked


@pytest.mark.parametrize("layout", LAYOUTS_WITH_PATHS)
def test_a_file_outside_of_images_is_read_where_it_is_and_is_no_other_of_its_name(tmp_path, layout):
    make(tmp_path, "other/cam2/0001.jpg", "images/0001.jpg")
    annotate(tmp_path / "labels", layout, [str(tmp_path / "other" / "cam2" / "0001.jpg")])
    for images in (tmp_path / "images", None):
        references = list_references(layout, tmp_path / "labels", images=images)
        assert widths(references) == {str(tmp_path / "other" / "cam2" / "0001.jpg"): [10]}
        assert {one.problem[1] for one in references if one.problem} <= {"image has no annotation"}


@pytest.mark.parametrize("layout", ["csv", "jsonl", "coco"])
def test_paths_may_be_relative_to_the_table_or_lead_through_a_link(tmp_path, layout):
    make(tmp_path, "images/cam1/0001.jpg", "images/cam2/0001.jpg", "images/cam3/0001.jpg")
    (tmp_path / "link").symlink_to(tmp_path / "images")
    names = [
        "../images/cam1/0001.jpg",
        str(tmp_path / "link" / "cam2" / "0001.jpg"),
        r"..\images\cam3\0001.jpg",
    ]
    annotate(tmp_path / "labels", layout, names)
    references = list_references(layout, tmp_path / "labels", images=tmp_path / "images")
    assert widths(references) == {"cam1/0001.jpg": [10], "cam2/0001.jpg": [20], "cam3/0001.jpg": [30]}
    assert not any(one.notes or one.problem for one in references)


def scans(table: Path, images: Path | None) -> list[SourceExample]:
    """What the table scans.csv of a folder gives."""
    return list_references("csv", table, "scans.csv", images=images, task="segmentation")


def test_a_segmentation_table_takes_absolute_paths_and_never_a_file_of_another_folder(tmp_path, monkeypatch):
    make(tmp_path, "p1/ct.nii.gz", "p1/seg.nii.gz", "p2/ct.nii.gz", "p1/x.nii.gz")
    rows = [f"{tmp_path}/{scan}/ct.nii.gz,{tmp_path}/{scan}/seg.nii.gz\n" for scan in ("p1", "p2")]
    write_files(tmp_path, {"labels/scans.csv": "image,label\n" + "".join(rows)})
    monkeypatch.chdir(tmp_path)
    for images in (tmp_path, Path("."), Path("/")):
        references = scans(tmp_path / "labels", images)
        start = f"{tmp_path}/".lstrip("/") if images == Path("/") else ""
        (found,) = [one for one in references if one.problem is None]
        assert (found.source, found.mask) == (f"{start}p1/ct.nii.gz", f"{start}p1/seg.nii.gz")
        assert reasons(references) == ["file is in no row of the table", "label file not found"]


def test_a_segmentation_table_may_lead_upwards_what_lies_outside_is_named_and_the_root_never_listed(tmp_path):
    make(tmp_path, "ct/1.nii.gz", "seg/1.nii.gz")
    write_files(tmp_path, {"tables/scans.csv": "image,label\n../ct/1.nii.gz,..\\seg\\1.nii.gz\n"})
    (found,) = scans(tmp_path / "tables", tmp_path)
    assert (found.source, found.mask, found.problem) == ("ct/1.nii.gz", "seg/1.nii.gz", None)
    for images in (None, tmp_path / "ct"):
        found = scans(tmp_path / "tables", images)[0]
        assert found.problem is not None and "lies outside --images" in found.problem[1]
        assert "use --images with a folder that holds both" in found.problem[2]
    file = annotate(tmp_path / "b", "csv", ["0001.jpg"])
    with pytest.raises(UsageError, match="/: every file of this machine would be listed; name the folder"):
        list_references("csv", tmp_path / "b", file, images=Path("/"))
