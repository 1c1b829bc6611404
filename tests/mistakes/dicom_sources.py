"""Small sources of DICOM series."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from pydicom.uid import SegmentationStorage

from tests.support.dicom_writer import image_dataset, item, save, write_series
from tests.support.mistakes import preparing

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


def own_series_each(folder: Path) -> None:
    for index in range(5):
        pixels = np.full((4, 5), 1000 + index, np.uint16)
        save(image_dataset(pixels, position=(0, 0, index), series=f"1.2.{index}"), folder / f"{index}.dcm")


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
