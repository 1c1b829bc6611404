"""Advice about folders, lists and documents of the layouts, those of DICOM left out."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from benchmarks.containers import CONTAINERS, tfrecord_of
from tests.mistakes.annotation_advice import as_coco
from tests.mistakes.option_advice import label_images, regions, write_label
from tests.mistakes.picture_sources import coco, folders, source, voc, voc_lists, write
from tests.mistakes.test_table_mistakes import HEADER, table
from tests.mistakes.volume_sources import MSD, SIZE, medical, pair
from tests.support.advice import Advice, noted, refused, usage
from tests.support.annotation_writer import boxed, coco_document, draw, voc_object, voc_text
from tests.support.clip_writer import moving_square, write_video
from tests.support.layout_references import write_files
from tests.support.mistakes import Prepare, preparing
from tests.support.small_scans import AFFINE, mask, nnunet_document
from tests.support.small_scans import image as volume
from tests.support.volume_support import save_nifti, write_table

SIDES = {
    f"image/object/bbox/{x}{end}": np.array([at]) for x in "xy" for end, at in (("min", 0.1), ("max", 0.6))
}
PICTURE = cv2.imencode(".jpg", np.full((40, 60, 3), 90, np.uint8))[1].tobytes()
RUNS = "sub-1/anat/sub-1_run-1_T1w", "sub-1/anat/sub-1_run-2_T1w"
CLASSES_ARE_FOLDERS = "(--folders-are-classes)"


@preparing
def masks_and_numbers(root: Path) -> list[object]:
    """A table of pyradiomics: Label is the value within the mask."""
    pair(root, "a.nii.gz", "b.nii.gz")
    (root / "cases.csv").write_text("Image,Mask,Label\na.nii.gz,b.nii.gz,1\n")
    return ["--layout", "csv", "--task", "segmentation", "--source", root / "cases.csv", *SIZE]


def drawn(*names: str, layout="folders", files=(), options=()) -> Prepare:
    """Pictures of these names, and empty files."""

    def prepare(root: Path) -> None:
        draw(root, *names)
        for name in files:
            write(root, name, "")

    return source(layout, prepare, *options)


def yolo(root: Path, val: str = "val", files: tuple[str, ...] = ("data.yaml",), label: str = "a.txt") -> None:
    draw(root, "train/hat/a.png", "val/hat/b.png")
    write(root, f"train/hat/{label}", "0 .5 .5 .2 .4\n")
    for name in files:
        write(root, name, f"train: train\nval: {val}\nnames: [hat]\n")


def manifest(root: Path, **meta: object) -> None:
    """A line of SageMaker with a box, or with a label image if `meta` has its colors."""
    boxes = {"image_size": [{"width": 24, "height": 16, "depth": 3}], "annotations": []}
    boxes["annotations"] = [{"class_id": 0, "left": 1, "top": 2, "width": 9, "height": 8}]
    kind = "semantic-segmentation" if meta else "object-detection"
    given = meta or {"class-map": {"0": "hat"}}
    line = {"source-ref": "s3://b/a.png", "x-ref": "s3://b/labels/0.png" if meta else boxes}
    draw(root, "a.png")
    if meta:
        (root / "labels").mkdir()
        cv2.imwrite(str(root / "labels/0.png"), np.full((16, 24, 3), (0, 0, 255), np.uint8))
    line["x-ref-metadata"] = {"type": f"groundtruth/{kind}", **given}
    write(root, "m.manifest", json.dumps(line))


def poses(root: Path) -> None:
    """FiftyOne's samples with keypoints of another class than the object."""
    draw(root, "a.png")
    sample = {
        "filepath": "a.png",
        "truth": {"_cls": "Detections", "detections": [{"label": "cat", "bounding_box": [0, 0, 0.5, 0.5]}]},
        "pose": {"_cls": "Keypoints", "keypoints": [{"label": "dog", "points": [[0.1, 0.2]]}]},
    }
    write(root, "samples.json", json.dumps({"samples": [sample]}))


RED = {"internal-color-map": {"1": {"class-name": "road", "hex-color": "#ff0000"}}}


@preparing
def masks_beside(root: Path) -> list[object]:
    """Pictures and their label images, taken for two classes."""
    given = label_images()(root)
    for name in "ab":
        picture = np.random.default_rng(ord(name)).integers(0, 256, (16, 24), np.uint8)
        cv2.imwrite(str(root / f"images/{name}.png"), picture)
    return ["--layout", "folders", "--source", (root / "labels").rename(root / "trimaps").parent, *given[4:]]


@preparing
def videos(root: Path) -> list[object]:
    for name in ("left", "right"):
        (root / name).mkdir()
        write_video(root / name / "0.mp4", moving_square(name, 4, np.random.default_rng(0)))
    return ["--layout", "folders", "--source", root, "--height", 16, "--width", 24]


@preparing
def scans(root: Path, layout: str, image: str, label: str, *more: object) -> list[object]:
    save_nifti(root / image, volume(), AFFINE)
    save_nifti(root / label, mask(classes=2), AFFINE)
    return ["--layout", layout, "--source", root, *SIZE, *more]


@preparing
def bids(root: Path, *names: str, labels: str = "m/sub-1/anat/sub-1_dseg") -> list[object]:
    for name in names:
        save_nifti(root / f"{name}.nii.gz", volume(), AFFINE)
    for name in labels.split():
        save_nifti(root / f"derivatives/{name}.nii.gz", mask(classes=2), AFFINE)
    return ["--layout", "bids", "--source", root, *SIZE]


@preparing
def scan_table(root: Path) -> list[object]:
    pair(root, "ct.nii.gz", "seg.nii.gz")
    return ["--layout", "pairs", "--source", write_table(root, [("a", "ct.nii.gz", "seg.nii.gz")]), *SIZE]


@preparing
def roboflow(root: Path) -> list[object]:
    """Label images of two splits, whose lists of classes differ."""
    for split, names in {"train": "hat", "valid": "cap"}.items():
        draw(root, f"{split}/images/a.png")
        write_label(root / f"{split}/labels/a.png")
        write(root, f"{split}/_classes.csv", f"Pixel Value, Class\n0, background\n1, {names}\n")
    return ["--layout", "pairs", "--source", root, "--height", 16, "--width", 24]


@preparing
def names_conflict(root: Path, *conflicts: tuple[int, str, int], sizes=(24, 20), **more) -> list[object]:
    """VOC files 1 and 2, whose <filename> may be another's, beside pictures of these widths."""
    for number, width in enumerate(sizes, start=1):
        draw(root, f"{number}.png", size=(16, width))
    for number, name, width in conflicts:
        said = (width, 16) if width else ()
        write(root, f"{number}.xml", voc_text(name, voc_object(boxed(name, (1, 2, 9, 9))), *said))
    return ["--layout", "voc", "--source", root]


def without_other_lists(root: Path) -> None:
    (root / "valid/_classes.csv").unlink()


def absolute(root: Path) -> list[object]:
    return [*table([HEADER, f"{root}/a.png,hat,1,2,9,9"])(root)[:3], root, "--images", "/"]


def keypoints(root: Path) -> None:
    row = boxed("images/a.png", (1, 2, 9, 9))
    write(root, "instances.json", coco_document([row], keypoints=[3, 3, 2]))
    draw(root, "images/a.png")


def cameras(root: Path) -> None:
    for folder in ("cam1", "cam2"):
        write(
            root, f"Annotations/{folder}/a.xml", voc_text("a.png", voc_object(boxed("a.png", (3, 2, 20, 8))))
        )
        draw(root, f"JPEGImages/{folder}/a.png")
    write(root, "ImageSets/Main/train.txt", "a\n")


SPLIT = ("train=0.5,test=0.5",)
PAIRS = r"take (--layout pairs --image-pattern) '(\S+)' (--label-pattern) '(\S+)';"
TRIED = r"use (--layout pairs --image-pattern) '(\S+)' (--label-pattern) '(\S+)', which"

TAKEN = [
    ("VOC", voc, "folders", r"Annotations/a\.xml is a Pascal VOC annotation.*take (--layout voc)"),
    ("COCO", coco, "folders", r"instances\.json is COCO's.*take (--layout coco)"),
    ("VOC", voc, "coco", r"no \.json file.*a\.xml is a Pascal VOC annotation.*take (--layout voc)"),
    ("COCO", coco, "voc", r"no \.xml file.*instances\.json is COCO's.*take (--layout coco)"),
    ("class folders", folders, "voc", r"no \.xml file.*take (--layout folders)"),
    ("class folders", folders, "coco", r"no \.json file.*take (--layout folders)"),
]


def container(layout: str, name: str, *options: object, like: str = "", **more: Any) -> Prepare:
    """A container file with two pictures, as another layout reads it or with an option too many."""
    record = {"image/encoded": PICTURE, "image/class/label": np.array([1]), **more}
    record |= {"image/object/class/label": np.array([1])} if more else {}
    data = tfrecord_of([record, record]) if more else CONTAINERS[like or layout][1]([PICTURE] * 2)
    return source(layout, lambda root: write_files(root, {name: data}), *options)


# fmt: off
CONTAINERS_ADVICE = {
    **{f"{like} as folders": refused(container("folders", name, like=like), rf"{name}.*take (--layout {like})")
       for like, (name, _) in CONTAINERS.items()},
    "one shard of two": refused(container("webdataset", t := "t-00000-of-00002.tar"), "shard with (--source)",
                                more=(f"{{source}}/{t}",)),
    "records without boxes": refused(container("tfrecord", "t.record", "--task detection"), "leave (--task) out"),
    "boxes without masks": refused(container("tfrecord", "t.record", "--masks", **SIDES), "leave (--masks) out"),
    "members and pictures": refused(container("jsonl", "t.parquet", "--images", "/usr/share"), "leave (--images) out"),
}
# fmt: on
ADVICE: dict[str, Advice] = {
    **CONTAINERS_ADVICE,
    **{
        f"{what} as {layout}": refused(source(layout, prepare), words)
        for what, prepare, layout, words in TAKEN
    },
    # class folders
    "masks as a class": refused(masks_beside(), TRIED, f"use {CLASSES_ARE_FOLDERS} if"),
    "annotations in the only class": refused(
        drawn("hat/a.png", files=("hat/a.mat",)),
        "and take (--layout coco)",
        first=lambda root: (draw(root, "a.png"), as_coco(root)),
    ),
    "annotations beside the only class": refused(
        drawn("hat/a.png", files=("hat/a.mat",)), f"use {CLASSES_ARE_FOLDERS} if", proves=r"1 class"
    ),
    "the folder above class folders": refused(
        drawn("photos/images/a.png"), f"would be the only class.*use {CLASSES_ARE_FOLDERS}"
    ),
    "splits beside classes": refused(
        drawn("train/hat/a.png", "coat/b.png"),
        "split and class folders are mixed.*state with (--split-folders) yes or (no)",
    ),
    "splits below a folder": refused(
        drawn("photos/train/a.png", "photos/test/b.png"), f"use {CLASSES_ARE_FOLDERS}", proves=r"1 class"
    ),
    "a folder above splits of classes": refused(
        drawn("photos/train/hat/a.png", "photos/test/hat/b.png", "photos/test/coat/c.png"),
        "such as (--source)",
        more=("{source}/photos",),
        proves=r"2 classes",
    ),
    "a folder above the classes": refused(
        drawn("data/cat/1.png", "data/dog/1.png", "samples/1.png"),
        "name the folder data with (--source)",
        more=("{source}/data",),
        proves=r"2 classes",
    ),
    "a folder above classes that is one": refused(
        drawn("data/cat/1.png", "data/dog/1.png", "samples/1.png"),
        f"or use {CLASSES_ARE_FOLDERS}",
        proves=r"2 classes",
    ),
    "class folders and COCO": refused(source("folders", coco), f"or use {CLASSES_ARE_FOLDERS} to take each"),
    "videos as pictures": refused(videos(), "(--frames) takes", more=(2,), proves=r"train +4 records"),
    "splits without classes": refused(
        drawn("train/a.png", "test/b.png"),
        "such as (--layout csv)",
        first=lambda root: write(root, "x.csv", "filename,class\ntrain/a.png,hat\n"),
    ),
    "classes called train and test": refused(
        drawn("train/a.png", "test/b.png"), "(--split-folders no) treats", proves=r"2 classes"
    ),
    "views as classes": refused(
        drawn("left/a.png", "right/b.png", layout="auto"),
        "may show the same objects.*: (--layout folders)",
        proves=r"2 classes",
    ),
    "labels with other names than BIDS has": refused(
        bids("sub-1/anat/sub-1_T1w", labels="m/sub-1/anat/sub-1_T1w_seg-manual"), TRIED
    ),
    "masks of no class in BIDS": refused(
        bids("sub-1/anat/sub-1_T1w", labels="m/sub-1/anat/sub-1_desc-lesion_mask"),
        r"use (--label-pattern) '(\S+)', which pairs 1 image with labels",
        r"without labels: (--missing-masks prediction)",
    ),
    # documents of volumes
    "nnU-Net's first version as the Decathlon": refused(
        medical("msd", {**MSD, "numTraining": 1}, channel="_0000"), "use (--layout nnunet)"
    ),
    "nnU-Net as the Decathlon": refused(
        medical("msd", nnunet_document(), channel="_0000"), "use (--layout nnunet)", proves=r"3 classes"
    ),
    "the Decathlon as nnU-Net": refused(medical("nnunet", MSD), r"dataset\.json.*use (--layout msd)"),
    # BIDS
    "runs of a session whose labels have other names": refused(
        bids(*RUNS, labels="m/sub-1/anat/sub-1_label-lesion_roi"),
        r"(--image-pattern) '(\S+)' (--label-pattern) '(\S+)' takes",
        proves=r"train +1 record",
    ),
    "runs of a session": refused(bids(*RUNS), r"(--image-pattern) '(\S+)' takes"),
    "runs beside a channel": refused(
        bids(*RUNS, "sub-1/anat/sub-1_T2w"), r"(--channel-order) (\S+) takes one", more=("--channels", 2)
    ),
    "labels of two pipelines": refused(
        bids(RUNS[0], labels="a/sub-1/anat/sub-1_dseg b/sub-1/anat/sub-1_dseg"),
        r"(--label-pattern) '(\S+)' takes",
    ),
    "sessions without a common suffix": refused(
        bids(RUNS[0], "sub-2/anat/sub-2_T2w"), r"(--channel-order) (\S+) takes the sessions"
    ),
    "two data sets": refused(
        bids(RUNS[0], "x/" + RUNS[0]),
        "one with (--source)",
        more=("{source}/x", "--missing-masks prediction"),
    ),
    "regions": refused(regions(), "(--regions combine)", "(--class-overlap channels)"),
    "a table of pairs": refused(scan_table(), "or (--layout csv)"),
    "label maps that differ": refused(
        roboflow(), "with (--label-map)", first=without_other_lists, more=("{source}/train/_classes.csv",)
    ),
    "pairs of other names": refused(
        scans("pairs", "p1/ct.nii.gz", "p1/liver.nii.gz"),
        r"use (--image-pattern) '(\S+)' (--label-pattern) '(\S+)', which pairs 1 image with 1 label",
        proves=r"segmentation, 2 classes",
    ),
    "masks of classes of other names": refused(
        scans("class-masks", "images/a.nii.gz", "liver/a.nii.gz"),
        r"use (--image-pattern) '(\S+)' (--label-pattern) '(\S+)', which pairs 1 image with 1 mask",
    ),
    # tables
    "a table of label images": refused(table(["image,mask", "a.png,b.png"]), "need (--task segmentation)"),
    "a column to keep that is not there": refused(
        table([HEADER, "a.png,hat,1,2,9,9"], "--keep occluded"), "(--keep) occluded.*leave it out"
    ),
    "several classes of boxes": usage(
        table([HEADER, "a.png,hat,1,2,9,9", "a.png,cap,1,2,9,9"], "--several-classes keep"),
        "add (--task classification)",
        "(--several-classes) keep.*leave it out",
    ),
    "a column that could be kept": noted(
        table([f"{HEADER},occluded", "a.png,hat,1,2,9,9,1"]), "(--keep) would keep: (occluded)"
    ),
    "two classes of a picture": refused(
        table(["filename,class", "a.png,hat", "a.png,cap"]), "(--several-classes keep)", proves=r"2 classes"
    ),
    "absolute paths with --images /": usage(absolute, "leave (--images) out"),
    # VOC
    "VOC masks": usage(source("voc", voc, "--masks"), "(--masks).*layout voc holds no masks.*leave it out"),
    "image sets where there are none": refused(
        source("voc", voc, "--image-sets train"), "image sets train asked for.*leave (--image-sets) out"
    ),
    "an option of another layout": usage(
        source("coco", coco, "--image-sets train"), "(--image-sets) has .*without --layout voc.*leave it out"
    ),
    "a table of masks and numbers": refused(masks_and_numbers(), "(--ignore-columns Label), which takes"),
    "VOC pose": usage(source("voc", voc, "--ignore-columns pose"), "(--ignore-columns) pose.*leave it out"),
    "lists that share names": refused(
        source("voc", partial(voc_lists, train="a b", extra="b c")), "with (--image-sets)", more=("train",)
    ),
    "lists that share names and give no splits": refused(
        source("voc", partial(voc_lists, train="a b", extra="b c")), "let (--split-shares) make", more=SPLIT
    ),
    "YOLO, one folder": refused(source("yolo", partial(yolo, val="train")), r"(--split-shares \S+,val=0.2)"),
    "YOLO twice": refused(source("yolo", partial(yolo, files=("a.yml", "b.yml"))), r"(--source \S+/a.yml)"),
    "YOLO without labels": refused(
        source("yolo", partial(yolo, label="a.md")), "take (--layout folders --folders-are-classes)"
    ),
    "a list that names two files": refused(source("voc", cameras), "let (--split-shares) make", more=SPLIT),
    "an XML file of another picture's name": noted(
        names_conflict((1, "2.png", 0), (3, "9.png", 0), sizes=(24, 24, 24)), "(--voc-images filename) takes"
    ),
    "an XML file of its picture's name": noted(
        names_conflict((1, "2.png", 0), (9, "3.png", 0), sizes=(24, 24, 24)), "(--voc-images xml-name) takes"
    ),
    "an XML file of either picture": refused(
        names_conflict((1, "2.png", 0), sizes=(24, 24)), "(--voc-images filename)", "(--voc-images xml-name)"
    ),
    # COCO
    "boxes for pixels": refused(source("coco", coco, "--task segmentation"), "take (--task detection)"),
    "files of boxes for pixels": refused(
        source("coco", lambda root: (coco(root), write(root, "other.json", "{}")), "--task segmentation"),
        "take (--task detection)",
    ),
    "label images of a manifest": refused(
        source("sagemaker", partial(manifest, **RED)), "is a label image; take (--task segmentation)"
    ),
    "a manifest without label images": refused(
        source("sagemaker", manifest, "--task segmentation"),
        "have no label images; (--task detection) takes objects",
    ),
    "points of no object": refused(
        source("fiftyone", poses, "--keep keypoints"), "or leave (--keep) keypoints out"
    ),
    "no occlusion": refused(source("coco", coco, "--keep occluded"), "(--keep) occluded.*leave it out"),
    "what COCO does not say": usage(source("coco", coco, "--keep view"), "(--keep) view.*leave it out"),
    "no keypoints": refused(source("coco", coco, "--keep keypoints"), "(--keep) keypoints.*leave it out"),
    "nameless points": refused(source("coco", keypoints, "--keep keypoints"), "leave (--keep) keypoints out"),
    "boxes of a mode": refused(
        source(
            "coco",
            lambda root: coco(
                root,
                annotations=[
                    {"id": 1, "image_id": 1, "category_id": 1, "bbox": [2, 3, 9, 9], "bbox_mode": 0}
                ],
            ),
        ),
        "state with (--box-form)",
        more=("corners",),
    ),
}
