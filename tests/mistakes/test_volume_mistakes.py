"""Everyday mistakes with volumes in files and with their labels: each ends in what, where and the cure."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.dicom_mask_writer import frames_of, saved, segmentation
from tests.support.dicom_writer import write_volume
from tests.support.mistakes import Prepare, check, preparing, refused, usage
from tests.support.small_scans import AFFINE, image, mask, msd_document, reference_to, write_json
from tests.support.volume_support import save_nifti, write_table

SIZE = ("--depth", 5, "--height", 8, "--width", 9)
MSD = msd_document("a.nii.gz")
PATTERNS = ("--image-pattern", "{id}/ct.nii.gz", "--label-pattern", "{id}/seg.nii.gz")


def pair(root: Path, image_name: str, mask_name: str) -> None:
    save_nifti(root / image_name, image(), AFFINE)
    save_nifti(root / mask_name, mask(), AFFINE)


@preparing
def medical(
    source: Path, layout: str, document: dict[str, Any], *more: object, channel: str = ""
) -> list[object]:
    """An MSD or nnU-Net folder of one case."""
    pair(source, f"imagesTr/a{channel}.nii.gz", "labelsTr/a.nii.gz")
    write_json(source, document)
    return ["--layout", layout, "--source", source, *SIZE, *more]


@preparing
def pairs(source: Path, *more: object) -> list[object]:
    """A folder for each case, ct.nii.gz and seg.nii.gz in it."""
    pair(source, "p1/ct.nii.gz", "p1/seg.nii.gz")
    return ["--layout", "pairs", "--source", source, *SIZE, *(more or PATTERNS)]


@preparing
def csv(
    source: Path, columns: str, row: tuple[object, ...], *more: object, size: tuple[object, ...] = SIZE
) -> list[object]:
    """A table of one scan."""
    pair(source, "ct.nii.gz", "seg.nii.gz")
    write_table(source, [row], columns)
    return ["--layout", "csv", "--task", "segmentation", "--source", source, *size, *more]


def seg_of(series: str, *names: str) -> bytes:
    parts = {number: mask() == number for number in range(1, len(names) + 1)}
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
def files(source: Path, layout: str, *names: str) -> list[object]:
    """Files of any content."""
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(b"content")
    return ["--layout", layout, "--source", source, *SIZE]


@preparing
def label_map(source: Path, prepare: Prepare, text: str, name: str = "map.txt") -> list[object]:
    """The same with a label map."""
    (source.parent / name).write_text(text)
    return [*prepare(source), "--label-map", source.parent / name]


MISTAKES = {
    "MSD's folder as nnU-Net": refused(medical("nnunet", MSD), r"dataset\.json", "--layout msd"),
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
    "MINC files": refused(files("pairs", "images/a.mnc", "labels/a.mnc"), "MINC", "NIfTI"),
    "the wrong column names": refused(
        csv("id,ct_file,annotation_path", ("a", "ct.nii.gz", "seg.nii.gz")),
        r"table\.csv",
        "image",
        "label",
        "ct_file",
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
    "a spacing in meters": refused(
        pairs(*PATTERNS, "--spacing-mm", "0.000002,0.0000015,0.0000015"), "voxels", "spacing"
    ),
    "a typo in a class": refused(medical("msd", MSD, "--classes", "livr"), "--classes: livr", "found liver"),
    "a class that is kept and left out": usage(
        medical("msd", MSD, "--classes", "liver,spleen", "--map-classes", "liver=background"),
        "--classes: liver is left out by --map-classes; take it out of --classes",
    ),
    "a map of classes without a target": usage(
        medical("msd", MSD, "--map-classes", "liver"), "--map-classes", "FROM=TO"
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
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_in_what_where_and_the_cure(name: str, tmp_path: Path) -> None:
    check(MISTAKES[name], tmp_path)
