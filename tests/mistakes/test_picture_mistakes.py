"""Everyday mistakes with pictures: COCO, Pascal VOC, class folders, label maps."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.annotation_writer import boxed, draw, voc_object, voc_text
from tests.support.mistakes import check, preparing, refused, usage


def write(root: Path, name: str, content: object) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def coco(root: Path, **changes: Any) -> None:
    """Two pictures in images/ and a box of the class `hat` on each."""
    draw(root, "images/a.png", "images/b.png")
    box = {"category_id": 1, "bbox": [2, 3, 8, 6], "area": 48, "iscrowd": 0}
    document = {
        "images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}],
        "annotations": [{"id": number, "image_id": number, **box} for number in (1, 2)],
        "categories": [{"id": 1, "name": "hat"}],
    }
    write(root, "instances.json", document | changes)


def exported(root: Path, split: str, name: str) -> None:
    """A split as Roboflow exports it, with one class."""
    draw(root, f"{split}/a.png")
    document = {
        "images": [{"id": 1, "file_name": "a.png"}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [2, 3, 8, 6]}],
        "categories": [{"id": 1, "name": name}],
    }
    write(root, f"{split}/_annotations.coco.json", document)


def voc(root: Path, name: str = "a") -> None:
    text = voc_text(f"{name}.png", voc_object(boxed(f"{name}.png", (3, 2, 20, 8))))
    write(root, f"Annotations/{name}.xml", text)
    draw(root, f"JPEGImages/{name}.png")


def folders(root: Path) -> None:
    draw(root, "hat/a.png", "coat/b.png")


@preparing
def source(
    root: Path, layout: str, draw: Callable[[Path], object], *more: object, below: str = ""
) -> list[object]:
    """What `draw` draws, converted with these options."""
    draw(root)
    return ["--layout", layout, "--source", root / below, "--height", 16, "--width", 24, *more]


@preparing
def label_map(root: Path, name: str, content: object, layout: str = "folders") -> list[object]:
    path = write(root, name, content)
    return source(layout, voc if layout == "voc" else folders, "--label-map", path)(root / "source")


def voc_lists(root: Path, **lists: str) -> None:
    for name in "abc":
        voc(root, name)
    for name, entries in lists.items():
        write(root, f"ImageSets/Main/{name}.txt", "\n".join(entries.split()) + "\n")


def many(root: Path, annotation: dict[str, Any]) -> None:
    """A COCO file of which twenty objects have the same fault."""
    plain = {"image_id": 1, "category_id": 1, "bbox": [2, 3, 8, 6]}
    coco(root, annotations=[{**plain, **annotation, "id": number} for number in range(20)])


MISTAKES = {
    # wrong layout
    "VOC as class folders": refused(
        source("folders", voc), r"Annotations/a\.xml is a Pascal VOC annotation", "--layout voc"
    ),
    "COCO as class folders": refused(source("folders", coco), r"instances\.json is COCO's", "--layout coco"),
    "YOLO as class folders": refused(
        source(
            "folders",
            lambda root: (draw(root, "images/a.png"), write(root, "labels/a.txt", "0 0.5 0.5 0.2 0.2\n")),
        ),
        r"labels/a\.txt is a YOLO label",
        "filename,class,xmin,ymin,xmax,ymax.*--layout csv",
    ),
    "nnU-Net as class folders": refused(
        source(
            "folders",
            lambda root: (
                draw(root, "imagesTr/a_0000.png", "labelsTr/a.png"),
                write(root, "dataset.json", {"channel_names": {"0": "R"}, "labels": {"background": 0}}),
            ),
        ),
        r"dataset\.json is nnU-Net's",
        "--layout nnunet",
    ),
    "VOC as COCO": refused(
        source("coco", voc), r"no \.json file", r"a\.xml is a Pascal VOC annotation", "--layout voc"
    ),
    "COCO as VOC": refused(
        source("voc", coco), r"no \.xml file", r"instances\.json is COCO's", "--layout coco"
    ),
    "class folders as VOC": refused(source("voc", folders), r"no \.xml file", "take --layout folders"),
    "class folders as COCO": refused(source("coco", folders), r"no \.json file", "take --layout folders"),
    # wrong folder
    "captions of COCO": refused(
        source("coco", lambda root: coco(root, annotations=[{"id": 1, "image_id": 1, "caption": "a hat"}])),
        "no annotation has a bbox",
        "not captions",
    ),
    "COCO of two files that differ in categories": refused(
        source("coco", lambda root: (exported(root, "train", "hat"), exported(root, "valid", "cap"))),
        r"valid/_annotations\.coco\.json: category 1 is 'cap', and 'hat' in a file before",
        "make their categories agree",
    ),
    # wrong content
    "categories left out": refused(
        source("coco", lambda root: coco(root, categories=[])),
        "category_id 1, which is no category",
        "defined:",
    ),
    "an image set of another name": refused(
        source("voc", lambda root: voc_lists(root, train="a b", val="c"), "--image-sets", "test"),
        "no list test in ImageSets/Main",
        "found train, val",
    ),
    "image sets where there are none": refused(
        source("voc", voc, "--image-sets", "train"), "image sets train asked for", "leave --image-sets out"
    ),
    # label maps
    "a label map of detection that begins at 0": refused(
        label_map("map.json", {"hat": 0}, "voc"),
        "in detection id 0 is the background",
        "let classes start at 1",
    ),
    "a label map of another format": refused(
        label_map("map.yaml", "hat: 0"), r"\.txt, \.json, \.pbtxt, not \.yaml"
    ),
    # swapped or useless options
    "masks of VOC": usage(source("voc", voc, "--masks"), "layout voc holds no masks", "leave it out"),
    "a wrong choice for bad objects": usage(
        source("coco", coco, "--on-bad-object", "skip"), "--on-bad-object", "choose from|expected one of"
    ),
    "the folder above class folders": refused(
        source("folders", lambda root: draw(root, "photos/images/a.png")),
        "would be the only class",
        "--folders-are-classes",
    ),
    "splits beside classes": refused(
        source("folders", lambda root: draw(root, "train/hat/a.png", "coat/b.png")),
        "split and class folders stand side by side",
        "--split-folders",
    ),
    "masks asked for of boxes": refused(
        source("coco", lambda root: many(root, {}), "--masks"),
        "object has no segmentation",
        "leave --masks out",
    ),
    "an option of another layout": usage(
        source("coco", coco, "--image-sets", "train"), "--image-sets has no effect without --layout voc"
    ),
    "keeping keypoints of annotations without": refused(
        source("coco", coco, "--keep", "keypoints"),
        r"instances\.json: --keep keypoints: no annotation says it; leave it out",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_with_pictures_ends_in_what_where_and_the_cure(tmp_path: Path, name: str) -> None:
    check(MISTAKES[name], tmp_path)
