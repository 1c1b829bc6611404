"""Everyday mistakes with DICOM series: each ends in what, where and the cure, before a record is written."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydicom.uid import SegmentationStorage, VLWholeSlideMicroscopyImageStorage

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


def own_series_each(folder: Path) -> None:
    for index in range(5):
        pixels = np.full((4, 5), 1000 + index, np.uint16)
        save(image_dataset(pixels, position=(0, 0, index), series=f"1.2.{index}"), folder / f"{index}.dcm")


def echoes(folder: Path) -> None:
    for echo in range(2):
        scan(folder / f"echo{echo}", more={"EchoTime": 2.0 + echo})


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


def half_of_it_in_train(folder: Path) -> None:
    scan(folder / "train" / "p1")
    scan(folder / "p2", series="1.2.4")


MISTAKES = {
    "a folder without scans": refused(
        drawn(lambda folder: (folder / "notes.txt").write_text("see the other disk")),
        "found no file; name with --source the folder",
    ),
    "pictures as DICOM": refused(drawn(pictures), r"found 3 x \.png; pictures: take --layout folders"),
    "DICOM as class folders": refused(
        drawn(scan, "--layout", "folders"), "is DICOM: take --layout dicom and --depth"
    ),
    "one slice as the source": refused(
        drawn(partial(scan, names=list("abcd")), "--source", "{source}/a"),
        "a: series are found in a folder, not in a file; say --source FOLDER",
    ),
    "a modality that no series has": refused(
        drawn(scan, "--series-modality", "MR"),
        "nothing was converted",
        "series is not chosen",
        "CT; --series-modality MR",
    ),
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
    "Siemens mosaics": refused(
        drawn(partial(scan, more={"ImageType": ["ORIGINAL", "PRIMARY", "MOSAIC"]}, modality="MR")),
        "found 4 x mosaic",
        "dcm2niix, then --layout pairs",
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
    "a choice that is none": usage(
        drawn(echoes, "--series-choice", "biggest"),
        "--series-choice: invalid choice: 'biggest'",
        "all.*largest",
    ),
    "a split for some patients alone": refused(
        drawn(half_of_it_in_train), "train/p1 names a split and p2", "--split-folders no"
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_in_what_where_and_the_cure(name: str, tmp_path: Path) -> None:
    check(MISTAKES[name], tmp_path)
