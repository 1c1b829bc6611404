"""Advice about classes, groups and splits."""

import json
from pathlib import Path

import numpy as np

from tests.mistakes.option_advice import label_images, plain
from tests.mistakes.test_table_mistakes import table
from tests.mistakes.volume_sources import MSD, PATTERNS, SIZE, medical
from tests.pipelines.test_names_in_labels import LIVER, SPLEEN, slicer, total_segmentator
from tests.support.advice import Advice, noted, refused, usage
from tests.support.annotation_writer import draw
from tests.support.dicom_writer import write_volume
from tests.support.mistakes import preparing
from tests.support.small_scans import AFFINE, image, mask, msd_document, nnunet_document
from tests.support.volume_support import save_nifti, write_table

SHARES = ("--split-shares", "train=0.5,test=0.5")
EACH = r"; (--group-pattern) '(\(\.\+\))' makes"
SAID = r"use (--group-pattern).*--group-pattern '(\(\.\+\))'"


@preparing
def folds(root: Path, *more: object, count: int = 1) -> list[object]:
    """nnU-Net's folder of one case, and its splits."""
    (root / "splits_final.json").write_text(json.dumps([{"train": ["a"], "val": []}] * count))
    given = medical("nnunet", nnunet_document(), channel="_0000")(root)
    return [*given, "--nnunet-splits", root / "splits_final.json", *more]


@preparing
def listed(root: Path, *more: object) -> list[object]:
    """Class folders and a list of the images of a split."""
    (root.parent / "train.txt").write_text("hat/a.png\ncoat/b.png\n")
    return plain(*more, f"--split-lists train={root.parent}/train.txt --height 16 --width 24")(root)


@preparing
def pictures(root: Path, *names: str) -> list[object]:
    draw(root, *names)
    return ["--layout", "folders", "--source", root, *SHARES]


@preparing
def nameless(root: Path) -> list[object]:
    """Series without a patient's id."""
    for number in range(2):
        write_volume(root / str(number), image(number), AFFINE, series=f"1.2.{number}", patient="")
    return ["--layout", "dicom", "--source", root, *SIZE, *SHARES]


@preparing
def labels(root: Path, *more: object, values: int = 3, **files: str) -> list[object]:
    """A scan whose label has these values, and label maps."""
    save_nifti(root / "p1/ct.nii.gz", image(), AFFINE)
    save_nifti(root / "p1/seg.nii.gz", mask(classes=2).astype(np.uint16) * values, AFFINE)
    for name, text in files.items():
        (root / f"{name}.json").write_text(text)
    words = [str(word).replace("{source}", str(root)) for word in more]
    return ["--layout", "pairs", "--source", root, *SIZE, *PATTERNS, *words]


@preparing
def slicers(root: Path, *names: dict[int, str], options=(), classes: int = 3) -> list[object]:
    """A scan for each list of names, beside a segmentation of 3D Slicer's."""
    for number, named in enumerate(names):
        save_nifti(root / f"{number}.nii", image(number), AFFINE)
        slicer(root / f"{number}.seg.nrrd", mask(classes=classes), named)
    table = write_table(root, [(n, f"{n}.nii", f"{n}.seg.nrrd") for n in range(len(names))])
    return ["--layout", "csv", "--task", "segmentation", "--source", table, *SIZE, *options]


@preparing
def decathlon(root: Path) -> list[object]:
    """A folder of the Decathlon, whose label names its values otherwise than dataset.json."""
    given = medical("msd", msd_document("a.nii.gz"))(root)
    total_segmentator(root / "labelsTr/a.nii.gz", mask(), SPLEEN)
    return given


ADVICE: dict[str, Advice] = {
    # splits
    "two splits": usage(listed(*SHARES), "(--split-shares) and .*give one", "(--split-lists) .*give one"),
    "shares and nnU-Net's splits": usage(folds(*SHARES), "(--nnunet-splits) and .*give one"),
    "several folds": usage(folds(count=2), "use (--nnunet-fold 0) to", proves=r"train +1 record "),
    "few groups": refused(table(["filename,class,group", "a.png,hat,p1", "b.png,cap,"], *SHARES), SAID, EACH),
    "series without patients": refused(nameless(), SAID),
    "one group": refused(table(["filename,class,group", "a.png,hat,p1", "b.png,cap,p1"], *SHARES), SAID),
    "files named after one patient": refused(
        pictures("hat/patient1_a.png", "cap/patient1_b.png", "cap/patient2.png"),
        r"use (--group-pattern) '(\S+)' to keep",
    ),
    # classes
    "the background": usage(label_images("--classes background"), "(--classes): background.*leave it out"),
    "a class in other capitals": noted(
        slicers(LIVER, {1: "liver", 2: "Spleen"}, options=("--classes liver,spleen",)),
        r"(--map-classes) '(\S+)' takes it",
        r"(--map-classes) '.*, '(\S+)' leaves it out",
    ),
    "a class that is kept and left out": usage(
        medical("msd", MSD, "--classes liver,spleen --map-classes liver=background"),
        "out of (--classes) or",
        more=("spleen",),
    ),
    "a class that is left out and kept": usage(
        medical("msd", MSD, "--classes liver --map-classes liver=background"),
        "by (--map-classes); take it out",
        more=("spleen=background",),
    ),
    "a large value without a name": refused(
        labels(values=300, map='{"tumor": 300}'), "to 255; (--label-map) or", more=("{source}/map.json",)
    ),
    "a large value without a class": refused(
        labels(values=300), "or (--classes) takes larger", more=(300,), proves=r"2 classes"
    ),
    "a value of no class": refused(
        labels("--label-map {source}/map.json", values=3, map='{"liver": 1}'),
        "(--map-classes 3=background) leaves it out",
        proves=r"2 classes",
    ),
    "a value that the document does not name": refused(
        medical("msd", msd_document("a.nii.gz", labels=("liver",))),
        "(--map-classes 2=background) leaves it out",
        proves=r"2 classes",
    ),
    "one number twice": refused(
        table(["filename,class", "a.png,1", "b.png,1.0"]),
        "an id with (--label-map)",
        more=("{source}/map.json",),
        first=lambda root: (root / "map.json").write_text('{"1": 0, "1.0": 1}'),
    ),
    # label volumes
    "names of other values": refused(
        decathlon(),
        "; (--label-map) with",
        more=("{source}/map.json",),
        first=lambda root: (root / "map.json").write_text('{"spleen": 1, "liver": 2}'),
    ),
    "a value that a file does not name": refused(
        slicers(LIVER, classes=4), r"with (--map-classes 3=background)", proves=r"3 classes"
    ),
    "a label of none of the classes": noted(
        slicers(LIVER, {1: "kidney"}, options=("--classes liver",), classes=2), "(--missing-classes empty)"
    ),
}
