"""Everyday mistakes with volumes in files and with their labels: each ends in what, where and the cure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydicom.dataset import Dataset

from tests.dicom_mask_writer import frames_of, saved, segmentation
from tests.dicom_writer import write_volume
from tests.mistakes.support import Mistake, check
from tests.volume_support import save_nifti, write_table

SHAPE = (5, 8, 9)
AFFINE = np.array([[0, 0, 1.5, -5], [0, 2.0, 0, 7], [3.0, 0, 0, 11], [0, 0, 0, 1]])
SIZE = ("--depth", 5, "--height", 8, "--width", 9)
MSD = {
    "labels": {"0": "background", "1": "liver", "2": "spleen"},
    "modality": {"0": "CT"},
    "training": [{"image": "./imagesTr/a.nii.gz", "label": "./labelsTr/a.nii.gz"}],
    "test": [],
}
NNUNET = {
    "channel_names": {"0": "CT"},
    "labels": {"background": 0, "liver": 1, "spleen": 2},
    "numTraining": 1,
    "file_ending": ".nii.gz",
}
PATTERNS = ("--image-pattern", "{id}/ct.nii.gz", "--label-pattern", "{id}/seg.nii.gz")
Prepare = Callable[[Path], list[object]]


def image() -> np.ndarray:
    return np.random.default_rng(0).integers(-900, 900, SHAPE).astype(np.int16)


def mask(classes: int = 3) -> np.ndarray:
    return np.random.default_rng(1).integers(0, classes, SHAPE).astype(np.uint8)


def pair(root: Path, image_name: str, mask_name: str, **change: Any) -> None:
    save_nifti(root / image_name, change.get("image", image()), AFFINE)
    save_nifti(root / mask_name, change.get("mask", mask()), change.get("affine", AFFINE))


def medical(layout: str, document: dict[str, Any], *more: object, channel: str = "") -> Prepare:
    """An MSD or nnU-Net folder of one case."""

    def prepare(source: Path) -> list[object]:
        pair(source, f"imagesTr/a{channel}.nii.gz", "labelsTr/a.nii.gz")
        (source / "dataset.json").write_text(json.dumps(document))
        return ["--layout", layout, "--source", source, *SIZE, *more]

    return prepare


def pairs(*more: object, **change: Any) -> Prepare:
    """A folder for each case, ct.nii.gz and seg.nii.gz in it."""

    def prepare(source: Path) -> list[object]:
        pair(source, "p1/ct.nii.gz", "p1/seg.nii.gz", **change)
        return ["--layout", "pairs", "--source", source, *SIZE, *(more or PATTERNS)]

    return prepare


def csv(columns: str, row: tuple[object, ...], *more: object, size: tuple[object, ...] = SIZE) -> Prepare:
    """A table of one scan."""

    def prepare(source: Path) -> list[object]:
        pair(source, "ct.nii.gz", "seg.nii.gz")
        write_table(source, [row], columns)
        return ["--layout", "csv", "--task", "segmentation", "--source", source, *size, *more]

    return prepare


def channels_of(classes: int) -> Prepare:
    """A scan with so many masks, whose classes are to be a channel each."""

    def prepare(source: Path) -> list[object]:
        for number in range(classes):
            pair(source, "p1/ct.nii.gz", f"p1/segmentations/c{number}.nii.gz", mask=mask(2))
        return ["--layout", "class-masks", "--source", source, *SIZE, "--class-overlap", "channels"]

    return prepare


def class_masks(*more: object) -> Prepare:
    """A scan with a mask file for each of two classes that overlap."""

    def prepare(source: Path) -> list[object]:
        pair(source, "p1/ct.nii.gz", "p1/segmentations/liver.nii.gz", mask=mask(2))
        save_nifti(source / "p1/segmentations/body.nii.gz", np.ones(SHAPE, np.uint8), AFFINE)
        return ["--layout", "class-masks", "--source", source, *SIZE, *more]

    return prepare


def seg_of(series: str, *names: str, overlapping: bool = False) -> bytes:
    parts = {number: (mask() == number) | overlapping for number in range(1, len(names) + 1)}
    frames = [(n, d, pixels) for n, part in parts.items() for d, pixels in frames_of(part, True).items()]
    made = segmentation(frames, AFFINE, dict(enumerate(names, start=1)))
    item = Dataset()
    item.SeriesInstanceUID = series
    made.ReferencedSeriesSequence = [item]
    return saved(made)


def dicom(*more: object, **segs: bytes) -> Prepare:
    """A series with SEG files beside it."""

    def prepare(source: Path) -> list[object]:
        write_volume(source / "ct", image(), AFFINE, series="1.2.1")
        for name, data in segs.items():
            (source / f"{name}.dcm").write_bytes(data)
        return ["--layout", "dicom", "--source", source, *SIZE, *more]

    return prepare


def label_map(prepare: Prepare, text: str, name: str = "map.txt") -> Prepare:
    """The same with a label map."""

    def prepared(source: Path) -> list[object]:
        (source.parent / name).write_text(text)
        return [*prepare(source), "--label-map", source.parent / name]

    return prepared


def folds(document: object, *more: object) -> Prepare:
    """nnU-Net with a file of folds."""

    def prepare(source: Path) -> list[object]:
        arguments = medical("nnunet", NNUNET, channel="_0000")(source)
        (source.parent / "splits_final.json").write_text(json.dumps(document))
        return [*arguments, "--nnunet-splits", source.parent / "splits_final.json", *more]

    return prepare


def brats(*more: object) -> Prepare:
    """Two modalities in a file each."""

    def prepare(source: Path) -> list[object]:
        pair(source, "B1/B1_t1.nii.gz", "B1/B1_seg.nii.gz")
        save_nifti(source / "B1/B1_t2.nii.gz", image(), AFFINE)
        patterns = ("{id}/{id}_{channel}.nii.gz", "{id}/{id}_seg.nii.gz")
        return [
            *("--layout", "pairs", "--source", source, *SIZE),
            *("--image-pattern", patterns[0], "--label-pattern", patterns[1], *more),
        ]

    return prepare


def files(layout: str, *names: str) -> Prepare:
    """Files of any content."""

    def prepare(source: Path) -> list[object]:
        for name in names:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(b"content")
        return ["--layout", layout, "--source", source, *SIZE]

    return prepare


def nan_image() -> np.ndarray:
    values = image().astype(np.float32)
    values[0, 0, 0] = np.nan
    return values


MOVED = AFFINE + np.array([[0, 0, 0, 0.75], [0] * 4, [0] * 4, [0] * 4])
MISTAKES = {
    "nnU-Net's folder as MSD": Mistake(
        prepare=medical("msd", NNUNET, channel="_0000"),
        says=(r"dataset\.json", "--layout nnunet"),
        exit_code=1,
    ),
    "MSD's folder as nnU-Net": Mistake(
        prepare=medical("nnunet", MSD), says=(r"dataset\.json", "--layout msd"), exit_code=1
    ),
    "no dataset.json": Mistake(
        prepare=files("msd", "imagesTr/a.nii.gz"), says=(r"source: expected dataset\.json",), exit_code=1
    ),
    "NIfTI as DICOM": Mistake(
        prepare=lambda source: [*pairs()(source)[:1], "dicom", *pairs()(source)[2:-4]],
        says=("no DICOM series", "NIfTI", "--layout pairs"),
        exit_code=1,
    ),
    "DICOM as pairs": Mistake(
        prepare=lambda source: [*dicom()(source)[:1], "pairs", *dicom()(source)[2:]],
        says=("no volume or picture", "--layout dicom"),
        exit_code=1,
    ),
    "LiTS names that are none": Mistake(
        prepare=files("lits", "ct/case1.nii.gz"), says=("no volume-N", "--layout pairs"), exit_code=1
    ),
    "FreeSurfer files": Mistake(
        prepare=files("pairs", "images/a.mgz", "labels/a.mgz"), says=("FreeSurfer", "NIfTI"), exit_code=1
    ),
    "volumes without a static shape": Mistake(
        prepare=csv("id,image,label", ("a", "ct.nii.gz", "seg.nii.gz"), size=()),
        says=(r"ct\.nii\.gz is a volume", "--depth, --height and --width"),
    ),
    "the wrong column names": Mistake(
        prepare=csv("id,ct_file,annotation_path", ("a", "ct.nii.gz", "seg.nii.gz")),
        says=(r"table\.csv", "image", "label", "ct_file"),
        exit_code=1,
    ),
    "a label that is not there": Mistake(
        prepare=csv("id,image,label", ("a", "ct.nii.gz", "segm.nii.gz")),
        says=("label file not found", r"segm\.nii\.gz"),
        exit_code=1,
    ),
    "image and label swapped": Mistake(
        prepare=csv("id,image,label", ("a", "seg.nii.gz", "ct.nii.gz")),
        says=("mask has negative values", "swapped"),
        exit_code=1,
    ),
    "one pattern of two": Mistake(
        prepare=pairs("--image-pattern", "{id}/ct.nii.gz"), says=("label.pattern", "give both")
    ),
    "a placeholder that is none": Mistake(
        prepare=pairs("--image-pattern", "{ID}/ct.nii.gz", "--label-pattern", "{ID}/seg.nii.gz"),
        says=(r"\{ID\}", r"known: \{id\}"),
    ),
    "a pattern that matches nothing": Mistake(
        prepare=pairs("--image-pattern", "{id}/CT.nii", "--label-pattern", "{id}/seg.nii.gz"),
        says=("matches the image pattern", r"\{id\}/CT\.nii", r"p1/ct\.nii\.gz"),
        exit_code=1,
    ),
    "a label pattern that matches nothing": Mistake(
        prepare=pairs("--image-pattern", "{id}/ct.nii.gz", "--label-pattern", "{id}/label.nii.gz"),
        says=("image has no label", "--missing-masks"),
        exit_code=1,
    ),
    "a spacing of two numbers": Mistake(
        prepare=pairs(*PATTERNS, "--spacing-mm", "2,1.5"),
        says=("--spacing-mm 2,1.5", "depth,height,width"),
    ),
    "a spacing in meters": Mistake(
        prepare=pairs(*PATTERNS, "--spacing-mm", "0.000002,0.0000015,0.0000015"),
        says=("voxels", "spacing"),
        exit_code=1,
    ),
    "a mask half a voxel off": Mistake(
        prepare=pairs(affine=MOVED),
        says=("mask lies on another grid", r"0\.75 mm", "--mask-grid resample"),
        exit_code=1,
    ),
    "a tolerance in millimeters": Mistake(
        prepare=pairs(*PATTERNS, "--mask-grid-tolerance", "2"),
        says=("--mask-grid-tolerance 2", "share of a voxel", "--mask-grid resample"),
    ),
    "NaN in a scan": Mistake(
        prepare=pairs(image=nan_image()),
        says=("voxels that are no number", r"p1/ct\.nii\.gz", "--non-finite-value"),
        exit_code=1,
    ),
    "probabilities as a mask": Mistake(
        prepare=pairs(mask=mask().astype(np.float32) / 3), says=("not whole numbers", r"0\.\d+"), exit_code=1
    ),
    "a typo in a class": Mistake(
        prepare=medical("msd", MSD, "--classes", "livr"),
        says=("--classes: livr", "found liver"),
        exit_code=1,
    ),
    "a map of classes without a target": Mistake(
        prepare=medical("msd", MSD, "--map-classes", "liver"), says=("--map-classes", "FROM=TO")
    ),
    "a class of no mask": Mistake(
        prepare=class_masks("--classes", "kidney"), says=("class kidney", "found body, liver"), exit_code=1
    ),
    "class masks that overlap": Mistake(
        prepare=class_masks(),
        says=("masks of one scan overlap", "--class-overlap last or first"),
        exit_code=1,
    ),
    "channels of more classes than a set holds": Mistake(
        prepare=channels_of(17),
        says=("--class-overlap channels", "at most 16 classes, got 17", "--classes"),
        exit_code=1,
    ),
    "channels where nothing names the classes": Mistake(
        prepare=pairs(*PATTERNS, "--class-overlap", "channels"),
        says=("--class-overlap channels", "nothing names the classes", "--classes 1,2", "--label-map"),
        exit_code=1,
    ),
    "channels and combined regions": Mistake(
        prepare=medical(
            "nnunet", NNUNET, "--class-overlap", "channels", "--regions", "combine", channel="_0000"
        ),
        says=("--regions combine", "--class-overlap channels", "leave one of them out"),
    ),
    "a value that dataset.json does not name": Mistake(
        prepare=medical("msd", {**MSD, "labels": {"0": "background", "1": "liver"}}),
        says=("mask has unknown labels", "2; known are", "1 liver"),
        exit_code=1,
    ),
    "too few channels": Mistake(
        prepare=medical("nnunet", {**NNUNET, "channel_names": {"0": "T1", "1": "T2"}}, channel="_0000"),
        says=(r"--channels 1", "T1, T2", "--channels 2"),
    ),
    "regions of nnU-Net": Mistake(
        prepare=medical(
            "nnunet",
            {**NNUNET, "labels": {"background": 0, "whole": [1, 2], "core": 2}},
            channel="_0000",
        ),
        says=(r"dataset\.json: labels: whole", "--regions combine"),
        exit_code=1,
    ),
    "a wrong number of training cases": Mistake(
        prepare=medical("nnunet", {**NNUNET, "numTraining": 3}, channel="_0000"),
        says=("numTraining is 3", "1 cases", "correct the number"),
        exit_code=1,
    ),
    "folds without a choice": Mistake(
        prepare=folds([{"train": ["a"], "val": []}] * 5), says=("5 folds", "--nnunet-fold 0 to 4")
    ),
    "the folds of another data set": Mistake(
        prepare=folds([{"train": ["BRATS_001"], "val": []}]),
        says=("BRATS_001", "no such case among the training images"),
        exit_code=1,
    ),
    "a fold without folds": Mistake(
        prepare=medical("nnunet", NNUNET, "--nnunet-fold", 0, channel="_0000"),
        says=("--nnunet-fold", "--nnunet-splits"),
    ),
    "a channel that is none": Mistake(
        prepare=brats("--channels", 2, "--channel-order", "t1,t1ce"),
        says=("--channel-order: t1ce", "found t1, t2"),
        exit_code=1,
    ),
    "channels that were not counted": Mistake(
        prepare=brats(), says=("number of channels", "say --channels 2"), exit_code=1
    ),
    "a SEG of another series": Mistake(
        prepare=dicom(seg=seg_of("1.2.77", "liver")),
        says=("image has no label", "--missing-masks prediction"),
        exit_code=1,
    ),
    "a SEG and no ids for its classes": Mistake(
        prepare=dicom(seg=seg_of("1.2.1", "liver", "spleen")),
        says=("'liver', 'spleen'", "--classes", "--label-map"),
        exit_code=1,
    ),
    "a label map without a class of the SEG": Mistake(
        prepare=label_map(dicom(seg=seg_of("1.2.1", "liver", "spleen")), "background\nliver\n"),
        says=("unknown labels", "'spleen'", "--map-classes 'spleen=background'"),
        exit_code=1,
    ),
    "a label map that begins with a class": Mistake(
        prepare=label_map(dicom(seg=seg_of("1.2.1", "liver", "spleen")), "liver\nspleen\n"),
        says=("'liver' is 0",),
        exit_code=1,
    ),
    "segments that overlap": Mistake(
        prepare=dicom("--classes", "a,b", seg=seg_of("1.2.1", "a", "b", overlapping=True)),
        says=("segments overlap", "--class-overlap last or first"),
        exit_code=1,
    ),
    "two SEGs of one series": Mistake(
        prepare=dicom("--classes", "a,b", one=seg_of("1.2.1", "a"), two=seg_of("1.2.1", "b")),
        says=("several labels for one image", r"one\.dcm, two\.dcm", "--several-masks merge"),
        exit_code=1,
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_in_what_where_and_the_cure(name: str, tmp_path: Path) -> None:
    check(MISTAKES[name], tmp_path)
