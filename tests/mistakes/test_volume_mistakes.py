"""Everyday mistakes with volumes in files and with their labels: each ends in what, where and the cure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.dicom_mask_writer import frames_of, saved, segmentation
from tests.support.dicom_writer import write_volume
from tests.support.mistakes import Prepare, check, preparing, refused, usage
from tests.support.small_scans import (
    AFFINE,
    SHAPE,
    image,
    mask,
    msd_document,
    nnunet_document,
    reference_to,
    write_json,
)
from tests.support.volume_support import save_nifti, write_table

SIZE = ("--depth", 5, "--height", 8, "--width", 9)
MSD, NNUNET = msd_document("a.nii.gz"), nnunet_document()
PATTERNS = ("--image-pattern", "{id}/ct.nii.gz", "--label-pattern", "{id}/seg.nii.gz")


def pair(root: Path, image_name: str, mask_name: str, **change: Any) -> None:
    save_nifti(root / image_name, change.get("image", image()), AFFINE)
    save_nifti(root / mask_name, change.get("mask", mask()), change.get("affine", AFFINE))


@preparing
def medical(
    source: Path, layout: str, document: dict[str, Any], *more: object, channel: str = ""
) -> list[object]:
    """An MSD or nnU-Net folder of one case."""
    pair(source, f"imagesTr/a{channel}.nii.gz", "labelsTr/a.nii.gz")
    write_json(source, document)
    return ["--layout", layout, "--source", source, *SIZE, *more]


@preparing
def pairs(source: Path, *more: object, **change: Any) -> list[object]:
    """A folder for each case, ct.nii.gz and seg.nii.gz in it."""
    pair(source, "p1/ct.nii.gz", "p1/seg.nii.gz", **change)
    return ["--layout", "pairs", "--source", source, *SIZE, *(more or PATTERNS)]


@preparing
def csv(
    source: Path, columns: str, row: tuple[object, ...], *more: object, size: tuple[object, ...] = SIZE
) -> list[object]:
    """A table of one scan."""
    pair(source, "ct.nii.gz", "seg.nii.gz")
    write_table(source, [row], columns)
    return ["--layout", "csv", "--task", "segmentation", "--source", source, *size, *more]


@preparing
def channels_of(source: Path, classes: int) -> list[object]:
    """A scan with so many masks, whose classes are to be a channel each."""
    for number in range(classes):
        pair(source, "p1/ct.nii.gz", f"p1/segmentations/c{number}.nii.gz", mask=mask(classes=2))
    return ["--layout", "class-masks", "--source", source, *SIZE, "--class-overlap", "channels"]


@preparing
def class_masks(source: Path, *more: object) -> list[object]:
    """A scan with a mask file for each of two classes that overlap."""
    pair(source, "p1/ct.nii.gz", "p1/segmentations/liver.nii.gz", mask=mask(classes=2))
    save_nifti(source / "p1/segmentations/body.nii.gz", np.ones(SHAPE, np.uint8), AFFINE)
    return ["--layout", "class-masks", "--source", source, *SIZE, *more]


def seg_of(series: str, *names: str, overlapping: bool = False) -> bytes:
    parts = {number: (mask() == number) | overlapping for number in range(1, len(names) + 1)}
    frames = [(n, d, pixels) for n, part in parts.items() for d, pixels in frames_of(part, True).items()]
    made = segmentation(frames, AFFINE, dict(enumerate(names, start=1)))
    made.ReferencedSeriesSequence = [reference_to(series)]
    return saved(made)


@preparing
def dicom(source: Path, *more: object, **segs: bytes) -> list[object]:
    """A series with SEG files beside it."""
    write_volume(source / "ct", image(), AFFINE, series="1.2.1")
    for name, data in segs.items():
        (source / f"{name}.dcm").write_bytes(data)
    return ["--layout", "dicom", "--source", source, *SIZE, *more]


@preparing
def label_map(source: Path, prepare: Prepare, text: str, name: str = "map.txt") -> list[object]:
    """The same with a label map."""
    (source.parent / name).write_text(text)
    return [*prepare(source), "--label-map", source.parent / name]


@preparing
def folds(source: Path, document: object, *more: object) -> list[object]:
    """nnU-Net with a file of folds."""
    arguments = medical("nnunet", NNUNET, channel="_0000")(source)
    (source.parent / "splits_final.json").write_text(json.dumps(document))
    return [*arguments, "--nnunet-splits", source.parent / "splits_final.json", *more]


@preparing
def brats(source: Path, *more: object) -> list[object]:
    """Two modalities in a file each."""
    pair(source, "B1/B1_t1.nii.gz", "B1/B1_seg.nii.gz")
    save_nifti(source / "B1/B1_t2.nii.gz", image(), AFFINE)
    patterns = ("{id}/{id}_{channel}.nii.gz", "{id}/{id}_seg.nii.gz")
    return [
        *("--layout", "pairs", "--source", source, *SIZE),
        *("--image-pattern", patterns[0], "--label-pattern", patterns[1], *more),
    ]


@preparing
def files(source: Path, layout: str, *names: str) -> list[object]:
    """Files of any content."""
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(b"content")
    return ["--layout", layout, "--source", source, *SIZE]


def nan_image() -> np.ndarray:
    values = image().astype(np.float32)
    values[0, 0, 0] = np.nan
    return values


MOVED = AFFINE + np.array([[0, 0, 0, 0.75], [0] * 4, [0] * 4, [0] * 4])
MISTAKES = {
    "nnU-Net's folder as MSD": refused(
        medical("msd", NNUNET, channel="_0000"), r"dataset\.json", "--layout nnunet"
    ),
    "MSD's folder as nnU-Net": refused(medical("nnunet", MSD), r"dataset\.json", "--layout msd"),
    "no dataset.json": refused(files("msd", "imagesTr/a.nii.gz"), r"source: expected dataset\.json"),
    "NIfTI as DICOM": refused(
        lambda source: [*pairs()(source)[:1], "dicom", *pairs()(source)[2:-4]],
        "no DICOM series",
        "NIfTI",
        "--layout pairs",
    ),
    "DICOM as pairs": refused(
        lambda source: [*dicom()(source)[:1], "pairs", *dicom()(source)[2:]],
        "no volume, picture or clip",
        "--layout dicom",
    ),
    "LiTS names that are none": refused(files("lits", "ct/case1.nii.gz"), "no volume-N", "--layout pairs"),
    "MINC files": refused(files("pairs", "images/a.mnc", "labels/a.mnc"), "MINC", "NIfTI"),
    "volumes without a static shape": usage(
        csv("id,image,label", ("a", "ct.nii.gz", "seg.nii.gz"), size=()),
        r"ct\.nii\.gz is a volume",
        "--depth, --height and --width",
    ),
    "the wrong column names": refused(
        csv("id,ct_file,annotation_path", ("a", "ct.nii.gz", "seg.nii.gz")),
        r"table\.csv",
        "image",
        "label",
        "ct_file",
    ),
    "a label that is not there": refused(
        csv("id,image,label", ("a", "ct.nii.gz", "segm.nii.gz")), "label file not found", r"segm\.nii\.gz"
    ),
    "image and label swapped": refused(
        csv("id,image,label", ("a", "seg.nii.gz", "ct.nii.gz")), "mask has negative values", "swapped"
    ),
    "one pattern of two": usage(pairs("--image-pattern", "{id}/ct.nii.gz"), "label.pattern", "give both"),
    "a placeholder that is none": usage(
        pairs("--image-pattern", "{ID}/ct.nii.gz", "--label-pattern", "{ID}/seg.nii.gz"),
        r"\{ID\}",
        r"known: \{id\}",
    ),
    "a pattern that matches nothing": refused(
        pairs("--image-pattern", "{id}/CT.nii", "--label-pattern", "{id}/seg.nii.gz"),
        "matches the image pattern",
        r"\{id\}/CT\.nii",
        r"p1/ct\.nii\.gz",
    ),
    "a label pattern that matches nothing": refused(
        pairs("--image-pattern", "{id}/ct.nii.gz", "--label-pattern", "{id}/label.nii.gz"),
        "image has no label",
        "--missing-masks",
    ),
    "a spacing of two numbers": usage(
        pairs(*PATTERNS, "--spacing-mm", "2,1.5"), "--spacing-mm 2,1.5", "depth,height,width"
    ),
    "a spacing in meters": refused(
        pairs(*PATTERNS, "--spacing-mm", "0.000002,0.0000015,0.0000015"), "voxels", "spacing"
    ),
    "a mask half a voxel off": refused(
        pairs(affine=MOVED), "mask lies on another grid", r"0\.75 mm", "--mask-grid resample"
    ),
    "a tolerance in millimeters": usage(
        pairs(*PATTERNS, "--mask-grid-tolerance", "2"),
        "--mask-grid-tolerance 2",
        "share of a voxel",
        "--mask-grid resample",
    ),
    "NaN in a scan": refused(
        pairs(image=nan_image()), "voxels that are no number", r"p1/ct\.nii\.gz", "--non-finite-value"
    ),
    "probabilities as a mask": refused(
        pairs(mask=mask().astype(np.float32) / 3), "not whole numbers", r"0\.\d+"
    ),
    "a typo in a class": refused(medical("msd", MSD, "--classes", "livr"), "--classes: livr", "found liver"),
    "a map of classes without a target": usage(
        medical("msd", MSD, "--map-classes", "liver"), "--map-classes", "FROM=TO"
    ),
    "a class of no mask": refused(class_masks("--classes", "kidney"), "class kidney", "found body, liver"),
    "class masks that overlap": refused(
        class_masks(), "masks of one scan overlap", "--class-overlap last or first"
    ),
    "channels of more classes than a set holds": refused(
        channels_of(17), "--class-overlap channels", "at most 16 classes, got 17", "--classes"
    ),
    "channels where nothing names the classes": refused(
        pairs(*PATTERNS, "--class-overlap", "channels"),
        "--class-overlap channels",
        "nothing names the classes",
        "--classes 1,2",
        "--label-map",
    ),
    "channels and combined regions": usage(
        medical("nnunet", NNUNET, "--class-overlap", "channels", "--regions", "combine", channel="_0000"),
        "--regions combine",
        "--class-overlap channels",
        "leave one of them out",
    ),
    "a value that dataset.json does not name": refused(
        medical("msd", {**MSD, "labels": {"0": "background", "1": "liver"}}),
        "mask has unknown labels",
        "2; known are",
        "1 liver",
    ),
    "too few channels": usage(
        medical("nnunet", {**NNUNET, "channel_names": {"0": "T1", "1": "T2"}}, channel="_0000"),
        r"--channels 1",
        "T1, T2",
        "--channels 2",
    ),
    "regions of nnU-Net": refused(
        medical(
            "nnunet", {**NNUNET, "labels": {"background": 0, "whole": [1, 2], "core": 2}}, channel="_0000"
        ),
        r"dataset\.json: labels: whole",
        "--regions combine",
    ),
    "a wrong number of training cases": refused(
        medical("nnunet", {**NNUNET, "numTraining": 3}, channel="_0000"),
        "numTraining is 3",
        "1 cases",
        "correct the number",
    ),
    "folds without a choice": usage(
        folds([{"train": ["a"], "val": []}] * 5), "5 folds", "--nnunet-fold 0 to 4"
    ),
    "the folds of another data set": refused(
        folds([{"train": ["BRATS_001"], "val": []}]), "BRATS_001", "no such case among the training images"
    ),
    "a fold without folds": usage(
        medical("nnunet", NNUNET, "--nnunet-fold", 0, channel="_0000"), "--nnunet-fold", "--nnunet-splits"
    ),
    "a channel that is none": refused(
        brats("--channels", 2, "--channel-order", "t1,t1ce"), "--channel-order: t1ce", "found t1, t2"
    ),
    "channels that were not counted": refused(brats(), "number of channels", "say --channels 2"),
    "a SEG of another series": refused(
        dicom(seg=seg_of("1.2.77", "liver")), "image has no label", "--missing-masks prediction"
    ),
    "a SEG and no ids for its classes": refused(
        dicom(seg=seg_of("1.2.1", "liver", "spleen")), "'liver', 'spleen'", "--classes", "--label-map"
    ),
    "a label map without a class of the SEG": refused(
        label_map(dicom(seg=seg_of("1.2.1", "liver", "spleen")), "background\nliver\n"),
        "unknown labels",
        "'spleen'",
        "--map-classes 'spleen=background'",
    ),
    "a label map that begins with a class": refused(
        label_map(dicom(seg=seg_of("1.2.1", "liver", "spleen")), "liver\nspleen\n"), "'liver' is 0"
    ),
    "segments that overlap": refused(
        dicom("--classes", "a,b", seg=seg_of("1.2.1", "a", "b", overlapping=True)),
        "segments overlap",
        "--class-overlap last or first",
    ),
    "two SEGs of one series": refused(
        dicom("--classes", "a,b", one=seg_of("1.2.1", "a"), two=seg_of("1.2.1", "b")),
        "several labels for one image",
        r"one\.dcm, two\.dcm",
        "--several-masks merge",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_in_what_where_and_the_cure(name: str, tmp_path: Path) -> None:
    check(MISTAKES[name], tmp_path)
