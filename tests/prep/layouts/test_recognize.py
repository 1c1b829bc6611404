"""Which layout the files of a folder give away, and that class folders are not made of one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from halofeed.prep.annotations.recognize import other_layout
from halofeed.prep.layouts import LAYOUTS
from halofeed.prep.sources.files import LocalFiles
from halofeed.schemas.errors import AnnotationsError, HalofeedError
from tests.support.layout_references import list_references, write_files

VOC = "<?xml version='1.0'?>\n<annotation><object><name>hat</name></object></annotation>"
COCO = json.dumps({"info": {}, "images": [{"id": 1, "file_name": "a.jpg"}], "annotations": []})
LABELME = json.dumps({"shapes": [], "imagePath": "a.jpg"})
MSD = json.dumps({"name": "x", "modality": {"0": "CT"}, "training": []})
BOXES = "filename,class,xmin,ymin,xmax,ymax\n"
NNUNET = json.dumps({"channel_names": {"0": "CT"}, "labels": {}})
DICOM = "\0" * 128 + "DICM"
VOC_FILES = {"Annotations/a.xml": VOC, "JPEGImages/a.jpg": ""}

CASES = {
    "voc": (VOC_FILES, "Annotations/a.xml is a Pascal VOC .*--layout voc"),
    "voc beside": ({"train/a.xml": VOC, "train/a.jpg": "", "test/a.jpg": ""}, "--layout voc"),
    "coco": ({"instances.json": COCO, "images/a.jpg": ""}, "instances.json is COCO's: take --layout coco"),
    "coco below": ({"annotations/i.json": COCO, "train2017/a.jpg": ""}, "annotations/i.json is COCO's"),
    "roboflow": ({"train/_annotations.coco.json": COCO, "train/a.jpg": ""}, "--layout coco"),
    "labelme": ({"x/a.json": LABELME, "x/a.jpg": "", "y/b.jpg": ""}, "labelme"),
    "yolo": ({"images/a.jpg": "", "labels/a.txt": "0 0.5 0.5 0.1 0.2\n1 .5 .5 .1 1e-1\n"}, "YOLO"),
    "yolo split": ({"train/images/a.jpg": "", "train/labels/a.txt": "0 0.5 0.5 0.1 0.2"}, "YOLO"),
    "msd": ({"dataset.json": MSD, "imagesTr/a.nii.gz": ""}, "--layout msd"),
    "nnunet": ({"dataset.json": NNUNET, "imagesTr/a_0000.png": "", "labelsTr/a.png": ""}, "--layout nnunet"),
    "dicom": ({"series/IM1": DICOM}, "series/IM1 is DICOM: take --layout dicom"),
    "dicom named": ({"series/1.dcm": DICOM, "shots/a.jpg": ""}, "--layout dicom"),
    "volumes": ({"ct/a.nii.gz": ""}, "ct/a.nii.gz is a volume: take --layout pairs"),
    "masks": ({"images/a.jpg": "", "masks/a.png": ""}, "masks/a.png is the mask of images/a.jpg"),
    "boxes": ({"t.csv": BOXES, "x/a.jpg": "", "y/b.jpg": ""}, "--layout csv"),
    "classes": ({"t.csv": "filename,class\n", "all/a.jpg": ""}, "table of classes: take --layout csv"),
    "jsonl": ({"t.jsonl": '{"filename": "a.jpg", "class": "hat"}\n', "all/a.jpg": ""}, "--layout jsonl"),
    "one folder": ({"data/images/a.jpg": "", "data/images/b.jpg": ""}, "its name would be the only class"),
    "no folder": ({"a.jpg": "", "b.jpg": ""}, "2 images lie straight in it"),
}


@pytest.mark.parametrize("case", CASES)
def test_another_layout_is_not_taken_for_class_folders(tmp_path: Path, case: str) -> None:
    content, words = CASES[case]
    write_files(tmp_path, content)
    with pytest.raises(AnnotationsError, match=words):
        list_references("folders", tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        {"hat/a.jpg": "", "hat/a.txt": "a note", "coat/b.jpg": "", "labels.txt": "hat\ncoat\n"},
        {"hat/a.jpg": "", "coat/b.jpg": "", "index.csv": "filename,class\nhat/a.jpg,hat\n"},
        {"hat/a.jpg": "", "coat/b.jpg": "", "about.xml": "<about/>", "meta.json": '{"images": 3}'},
        {"masks/a.jpg": "", "hats/b.jpg": ""},
        {"images/a.jpg": "", "paintings/a.jpg": ""},
        {"train/hat/1": "no", "train/hat/a.jpg": "", "LICENSE": "x"},
    ],
)
def test_class_folders_with_other_papers_stay_class_folders(tmp_path: Path, content: dict[str, str]) -> None:
    assert other_layout(write_files(tmp_path, content)) is None
    assert list_references("folders", tmp_path)


def test_whoever_insists_gets_class_folders(tmp_path: Path) -> None:
    write_files(tmp_path, {"instances.json": COCO, "images/a.jpg": "", "others/b.jpg": ""})
    found = list_references("folders", tmp_path, folders_are_classes=True)
    assert [reference.label for reference in found] == ["images", "others"]


@pytest.mark.parametrize(
    ("layout", "content", "words"),
    [
        ("voc", {"instances.json": COCO, "images/a.jpg": ""}, "no .xml file .*instances.json is COCO's"),
        ("coco", VOC_FILES, "found no .json file.*take --layout voc"),
        ("csv", VOC_FILES, "no .csv .*take --layout voc"),
        ("csv", {"hat/a.jpg": "", "coat/b.jpg": ""}, "no .csv .*for a class each, take --layout folders"),
        ("coco", {"deep/er/i.json": COCO, "a.jpg": ""}, "name the file itself$"),
    ],
)
def test_a_folder_without_the_layout_said_names_the_one_it_has(
    tmp_path: Path, layout: str, content: dict[str, str], words: str
) -> None:
    write_files(tmp_path, content)
    with pytest.raises(AnnotationsError, match=words):
        list_references(layout, tmp_path)


FOREIGN = {
    "yolo": "YOLO",
    "yolo_polygons": "YOLO",
    "labelme": "labelme",
    "cvat": "CVAT.*COCO 1.0",
    "via": "VIA",
    "createml": "CreateML",
    "hf_imagefolder": "Hugging Face",
    "supervisely": "Supervisely",
    "label_studio": "Label Studio",
    "kitti": "KITTI",
    "wider": "WIDER FACE",
    "automl_csv": "AutoML",
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_format_that_no_layout_reads_is_named_under_every_layout(test_data: Path, case: str) -> None:
    for layout in LAYOUTS:
        with pytest.raises(AnnotationsError, match=f"(?s){FOREIGN[case]}.*--layout (csv|coco)"):
            list_references(layout, test_data / "cases" / case)


@pytest.mark.parametrize("case", FOREIGN)
def test_the_table_that_a_message_asks_for_is_read_beside_the_files(
    test_data: Path, tmp_path: Path, case: str
) -> None:
    root = shutil.copytree(test_data / "cases" / case, tmp_path / "set")
    image = next(path for path in LocalFiles(root).sizes() if path.endswith((".jpg", ".png")))
    row = "filename,class,xmin,ymin,xmax,ymax"
    with pytest.raises(AnnotationsError, match=rf"columns {row}|COCO 1.0"):
        list_references("folders", root)
    (root / "boxes.csv").write_text(f"{row}\n{image},hat,10,8,40,30\n")
    found = list_references("csv", root, "boxes.csv")
    assert found[0].problem is None and found[0].boxes


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"images/a.jpg": "", "labels/a.txt": "1 2 9 2 9 8 1 8 plane 0\n"}, "DOTA"),
        ({"images/a.jpg": "", "a.json": '[{"name": "a.jpg", "labels": [{"box2d": {"x1": 1}}]}]'}, "BDD100K"),
        ({"images/a.jpg": "", "tracks.xml": "<annotations><track id='0'/></annotations>"}, "CVAT"),
    ],
)
def test_siblings_of_these_formats_are_named_too(tmp_path: Path, content: dict[str, str], words: str) -> None:
    write_files(tmp_path, content)
    for layout in ("folders", "coco", "voc", "csv"):
        with pytest.raises(AnnotationsError, match=f"(?s){words}.*which halofeed does not read"):
            list_references(layout, tmp_path)


def test_an_error_of_a_layout_that_the_files_have_names_no_other_format(tmp_path: Path) -> None:
    write_files(tmp_path, VOC_FILES | {"labels/a.txt": "0 .5 .5 .1 .1\n", "ImageSets/Main/train.txt": "b\n"})
    with pytest.raises(HalofeedError, match=r"^((?!YOLO).)*$"):
        list_references("voc", tmp_path, image_sets=("test",))
