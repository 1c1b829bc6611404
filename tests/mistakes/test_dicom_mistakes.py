"""Everyday mistakes with DICOM series: each ends in what, where and the cure, before a record is written."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydicom.uid import SecondaryCaptureImageStorage, SegmentationStorage, VLWholeSlideMicroscopyImageStorage

from tests.support.dicom_writer import image_dataset, item, save, write_series
from tests.support.mistakes import check, preparing, refused, usage

SHAPE = ("--depth", 4, "--height", 4, "--width", 5)
DICOM = ("--layout", "dicom", *SHAPE)


def scan(folder: Path, count: int = 4, series: str = "1.2.3", **options: Any) -> None:
    """A whole series of a few small slices."""
    volume = np.arange(count * 20, dtype=np.uint16).reshape(count, 4, 5) + 1000
    write_series(folder, volume, [(0, 0, 2.0 * at) for at in range(count)], series=series, **options)


@preparing
def drawn(source: Path, draw: Callable[[Path], object], *arguments: object) -> list[object]:
    """Draw the source, then convert it, as DICOM unless said; a path below the source is written as {source}/..."""
    draw(source)
    given = [str(one).replace("{source}", str(source)) for one in arguments]
    layout = [] if "--layout" in given else DICOM
    return [*layout, *([] if "--source" in given else ["--source", source]), *given]


def pictures(folder: Path) -> None:
    for index in range(3):
        Image.new("L", (8, 8)).save(folder / f"{index}.png")


def nifti_by_name(folder: Path) -> None:
    (folder / "ct.nii.gz").write_bytes(gzip.compress(b"\0" * 400))


def own_series_each(folder: Path) -> None:
    for index in range(5):
        pixels = np.full((4, 5), 1000 + index, np.uint16)
        save(image_dataset(pixels, position=(0, 0, index), series=f"1.2.{index}"), folder / f"{index}.dcm")


def no_positions(folder: Path) -> None:
    for index in range(4):
        dataset = image_dataset(np.full((4, 5), 1000 + index, np.uint16), position=None)
        save(dataset, folder / f"{index}.dcm")


def echoes(folder: Path) -> None:
    for echo in range(2):
        scan(folder / f"echo{echo}", more={"EchoTime": 2.0 + echo})


def unnamed_phases(folder: Path) -> None:
    for phase in range(2):
        for at in range(3):
            pixels = np.full((4, 5), 1000 + 10 * phase + at, np.uint16)
            save(image_dataset(pixels, position=(0, 0, at)), folder / f"{phase}-{at}.dcm")


def cut(folder: Path) -> None:
    scan(folder)
    path = sorted(folder.glob("*.dcm"))[0]
    path.write_bytes(path.read_bytes()[:400])


def cut_gzip(folder: Path) -> None:
    scan(folder)
    for path in list(folder.glob("*.dcm")):
        packed = gzip.compress(path.read_bytes())
        path.with_name(path.name + ".gz").write_bytes(packed[: len(packed) // 2])
        path.unlink()


def missing_slice(folder: Path) -> None:
    scan(folder, 8)
    sorted(folder.glob("*-3.dcm"))[0].unlink()


def alone(folder: Path, modality: str, sop_class: str, **options: Any) -> None:
    """One file of something else than slices."""
    more = {"SOPClassUID": sop_class, **options}
    dataset = image_dataset(
        np.zeros((4, 5), np.uint8), position=None, modality=modality, rescale=None, more=more
    )
    save(dataset, folder / "alone.dcm")


def segmentation_of_another_series(folder: Path) -> None:
    scan(folder / "ct")
    alone(folder, "SEG", SegmentationStorage, ReferencedSeriesSequence=[item(SeriesInstanceUID="1.2.99")])


def tabled(folder: Path, image: str, *series: str) -> None:
    """Series in one folder, and a table that names an image."""
    for one in series:
        scan(folder / "p1", series=one, names=[f"{one}-{at}.dcm" for at in range(4)])
    (folder / "t.csv").write_text(f"image,label\n{image},\n")


def half_of_it_in_train(folder: Path) -> None:
    scan(folder / "train" / "p1")
    scan(folder / "p2", series="1.2.4")


def alternating(folder: Path) -> None:
    for at in range(8):
        pixels = np.full((4, 5), 1000 + 900 * (at % 2), np.uint16)
        save(image_dataset(pixels, position=(0, 0, at), thickness=2.0), folder / f"{at}.dcm")


TABLE = ("--layout", "csv", *SHAPE, "--source", "{source}/t.csv")
MISTAKES = {
    "an empty folder": refused(
        drawn(lambda folder: None), "no DICOM series lies below it; found no file", "--source"
    ),
    "a folder without scans": refused(
        drawn(lambda folder: (folder / "notes.txt").write_text("see the other disk")),
        "found no file; name with --source the folder",
    ),
    "a folder that is not there": usage(
        drawn(scan, "--source", "{source}/ct"), "--source .*/ct: no such folder"
    ),
    "pictures as DICOM": refused(drawn(pictures), r"found 3 x \.png; pictures: take --layout folders"),
    "NIfTI as DICOM": refused(
        drawn(nifti_by_name), r"found 1 x \.nii\.gz; NIfTI, NRRD or MetaImage volumes: take --layout pairs"
    ),
    "DICOM as pairs": refused(
        drawn(scan, "--layout", "pairs", *SHAPE), r"0003-0\.dcm is DICOM: take --layout dicom"
    ),
    "DICOM as class folders": refused(
        drawn(scan, "--layout", "folders"), "is DICOM: take --layout dicom and --depth"
    ),
    "no --depth": usage(drawn(scan, "--layout", "dicom"), "is a volume: say its static shape with --depth"),
    "one slice as the source": refused(
        drawn(partial(scan, names=list("abcd")), "--source", "{source}/a"),
        "a: series are found in a folder, not in a file; say --source FOLDER",
    ),
    "a modality that is none": usage(
        drawn(scan, "--series-modality", "CAT"), "--series-modality 'CAT': expected some of CT, MR"
    ),
    "a modality in small letters": usage(
        drawn(scan, "--series-modality", "ct"), "--series-modality 'ct': expected some of CT"
    ),
    "a modality that no series has": refused(
        drawn(scan, "--series-modality", "MR"),
        "nothing was converted",
        "series is not chosen",
        "CT; --series-modality MR",
    ),
    "a pattern of the shell as a description": usage(
        drawn(scan, "--series-description", "*portal"),
        r"--series-description '\*portal': not a regular expression",
    ),
    "a description that no series has": refused(
        drawn(scan, "--series-description", "portal"),
        "series is not chosen",
        "CT; --series-description 'portal'",
    ),
    "no slices at least": usage(drawn(scan, "--min-slices", 0), "--min-slices 0: expected 1 or more"),
    "more slices at least than any series has": refused(
        drawn(scan, "--min-slices", 100),
        "series has too few slices",
        "4 of at least 100; --min-slices 4 takes it",
    ),
    "a series UID for each file, as some anonymizers write": refused(
        drawn(own_series_each),
        "5 x selection: series has too few slices",
        "1 of at least 3; 5 series of its folder .* say --series-identity folder",
    ),
    "screenshots alone": refused(
        drawn(partial(scan, more={"SOPClassUID": SecondaryCaptureImageStorage})),
        "found 4 x secondary capture",
        "--secondary-captures take",
    ),
    "a survey alone": refused(
        drawn(partial(scan, more={"SeriesDescription": "Survey"})),
        "found 4 x survey by its description",
        "--series-description",
    ),
    "Siemens mosaics": refused(
        drawn(partial(scan, more={"ImageType": ["ORIGINAL", "PRIMARY", "MOSAIC"]}, modality="MR")),
        "found 4 x mosaic",
        "dcm2niix, then --layout pairs",
    ),
    "slices that lie nowhere": refused(
        drawn(no_positions), "found 4 x image without position", "original series"
    ),
    "a mask without its series": refused(
        drawn(partial(alone, modality="SEG", sop_class=SegmentationStorage)),
        "found 1 x segmentation",
        "masks need the series",
    ),
    "a slide alone": refused(
        drawn(partial(alone, modality="SM", sop_class=VLWholeSlideMicroscopyImageStorage)),
        "found 1 x whole-slide image",
        "--source",
    ),
    "a mask of another series": refused(
        drawn(segmentation_of_another_series),
        "label has no image",
        r"alone\.dcm: the series that it was drawn on is not below the folder",
    ),
    "echoes as channels without their number": refused(
        drawn(echoes, "--series-split", "channels"),
        r"number of channels \(found 2, expected 1; say --channels 2",
    ),
    "echoes where several are refused": refused(
        drawn(echoes, "--series-split", "refuse"),
        "series holds several volumes",
        "2, distinguished by echo time; --series-split volumes",
    ),
    "a split that is none": usage(
        drawn(echoes, "--series-split", "frames"),
        "--series-split: invalid choice: 'frames'",
        "volumes.*channels.*refuse",
    ),
    "a choice that is none": usage(
        drawn(echoes, "--series-choice", "biggest"),
        "--series-choice: invalid choice: 'biggest'",
        "all.*largest",
    ),
    "an option of DICOM with another layout": usage(
        drawn(nifti_by_name, "--layout", "pairs", *SHAPE, "--series-split", "channels"),
        "--series-split has no effect without --layout dicom, csv or jsonl",
    ),
    "three channels of a series of one": refused(
        drawn(scan, "--channels", 3), r"number of channels \(found 1, expected 3; say --channels 1"
    ),
    "two phases in one series that nothing tells apart": refused(
        drawn(unnamed_phases),
        r"different images at one position \(3 positions more than once; 0-0\.dcm and 1-0\.dcm",
        "--series-identity folder",
    ),
    "two acquisitions mixed that nothing tells apart": refused(
        drawn(alternating), "every other slice shows something else", "--alternating-slices keep"
    ),
    "a slice cut off by a copy": refused(
        drawn(cut), "damaged file among the slices", r"0003-0\.dcm; copy it again"
    ),
    "files in gzip cut off": refused(
        drawn(cut_gzip), r"0003-0\.dcm\.gz: gzip data is truncated; copy it again"
    ),
    "a slice left behind": refused(drawn(missing_slice), "slices are missing", "--fill-missing-slices"),
    "a split for some patients alone": refused(
        drawn(half_of_it_in_train), "train/p1 names a split and p2", "--split-folders no"
    ),
    "a flaw that is none": usage(
        drawn(scan, "--refuse-flaws", "tilted"), "--refuse-flaws 'tilted': expected some of tilt"
    ),
    "a label pattern that fits nothing": refused(
        drawn(scan, "--label-pattern", "labels/{id}.nii.gz"),
        r"--label-pattern labels/\{id\}\.nii\.gz: no volume file fits it; \{id\} is a series' folder",
    ),
    "a table that names a folder of two series": refused(
        drawn(lambda folder: tabled(folder, "p1", "1.2.3", "1.2.4"), *TABLE),
        "folder holds several DICOM series",
        r"p1: t\.csv:2: write one of p1#\w+ \(CT, 4 of 4 x 5\), p1#",
    ),
    "a table with a folder that is not there": refused(
        drawn(lambda folder: tabled(folder, "p01", "1.2.3"), *TABLE),
        "image file not found",
        r"t\.csv:2: 'p01' below",
    ),
    "a table that names one slice": refused(
        drawn(lambda folder: tabled(folder, "p1/1.2.3-0.dcm", "1.2.3"), *TABLE),
        r"p1/1\.2\.3-0\.dcm: series has too few slices \(1 of at least 3; --min-slices 1",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_in_what_where_and_the_cure(name: str, tmp_path: Path) -> None:
    check(MISTAKES[name], tmp_path)
