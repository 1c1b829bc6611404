"""A small source of each layout, for tests of what all layouts must do alike."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.support.annotation_writer import boxed, write_annotations
from tests.support.dicom_writer import write_volume
from tests.support.small_scans import msd_document, nnunet_document, write_json
from tests.support.volume_support import save_nifti, write_table

COUNT = 4
"""How many pictures or scans each source has."""
_SHAPE = (3, 8, 9)
_SIZE = {"depth": 3, "height": 8, "width": 9}
_AFFINE = np.diag([3.0, 2.0, 1.5, 1.0])[:, [2, 1, 0, 3]]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A source on disk.

    Args:
        options: of `run_convert`.
        images: relative paths of the files of each picture or scan, the annotations' files left out.
        labels: one file of labels for each image, where there are such.
        tables: files on which all depends.
    """

    options: dict[str, Any]
    images: Sequence[Sequence[str]]
    labels: Sequence[str] = ()
    tables: Sequence[str] = field(default_factory=tuple)


def draw_pictures(root: Path, *names: str) -> None:
    """Pictures of 24 by 16 pixels, each of its own noise."""
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (16, 24, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(root / name)


def draw_scans(root: Path, *names: str) -> None:
    """Scans of three slices, each of its own noise."""
    _draw_volumes(root, names, (-900, 900), np.int16)


def draw_masks(root: Path, *names: str) -> None:
    _draw_volumes(root, names, (0, 2), np.uint8)


def _draw_volumes(root: Path, names: Sequence[str], limits: tuple[int, int], dtype: Any) -> None:
    for number, name in enumerate(names):
        voxels = np.random.default_rng(number).integers(*limits, _SHAPE).astype(dtype)
        save_nifti(root / name, voxels, _AFFINE)


def _folders(root: Path) -> Source:
    names = [f"{('hat', 'coat')[number % 2]}/{number}.png" for number in range(COUNT)]
    draw_pictures(root, *names)
    return Source(options={"layout": "folders"}, images=[[name] for name in names])


def _boxes(layout: str, folder: str, tables: Sequence[str]) -> Callable[[Path], Source]:
    """One hat on each of the pictures of a folder; of VOC the annotations lie in a folder of their own."""

    def draw(root: Path) -> Source:
        names = [f"{folder}/{number}.png" for number in range(COUNT)]
        draw_pictures(root, *names)
        rows = [boxed(name, (2, 2, 9, 9)) for name in names]
        write_annotations(root, layout, rows)
        labels = [f"Annotations/{number}.xml" for number in range(COUNT if layout == "voc" else 0)]
        for label, name in zip(labels, names, strict=bool(labels)):
            (root / label).parent.mkdir(exist_ok=True)
            (root / name).with_suffix(".xml").rename(root / label)
        images = [[name] for name in names]
        return Source(options={"layout": layout}, images=images, labels=labels, tables=tables)

    return draw


def _scans(layout: str, image: str, label: str, **options: Any) -> Callable[[Path], Source]:
    """Scans and their labels under names in which {} is a number; with what the layout reads beside them."""

    def draw(root: Path) -> Source:
        images, labels = ([name.format(number) for number in range(COUNT)] for name in (image, label))
        draw_scans(root, *images)
        draw_masks(root, *labels)
        tables = []
        if layout == "csv":
            write_table(root, [(f"s{n}", *pair) for n, pair in enumerate(zip(images, labels, strict=True))])
            tables = ["table.csv"]
        elif layout in ("msd", "nnunet"):
            cases = (Path(name).name for name in images)
            nnunet = nnunet_document(COUNT, labels=("liver",), file_ending=".nii")
            write_json(root, nnunet if layout == "nnunet" else msd_document(*cases, labels=("liver",)))
            tables = ["dataset.json"]
        given = {"layout": layout, **options, **_SIZE}
        return Source(options=given, images=[[name] for name in images], labels=labels, tables=tables)

    return draw


def _dicom(root: Path) -> Source:
    images = []
    for number in range(COUNT):
        voxels = np.random.default_rng(number).integers(-900, 900, _SHAPE).astype(np.int16)
        ids = {"series": f"1.2.{number + 1}", "patient": f"P{number}"}
        paths = write_volume(root / f"p{number}", voxels, _AFFINE, **ids)
        images.append([str(path.relative_to(root)) for path in paths])
    return Source(options={"layout": "dicom", "missing_masks": "prediction"} | _SIZE, images=images)


LAYOUT_SOURCES: dict[str, Callable[[Path], Source]] = {
    "folders": _folders,
    "csv": _boxes("csv", "pictures", ["boxes.csv"]),
    "jsonl": _boxes("jsonl", "pictures", ["boxes.jsonl"]),
    "coco": _boxes("coco", "images", ["instances.json"]),
    "voc": _boxes("voc", "JPEGImages", []),
    "scan table": _scans("csv", "ct/{}.nii", "seg/{}.nii", task="segmentation"),
    "msd": _scans("msd", "imagesTr/{}.nii", "labelsTr/{}.nii"),
    "nnunet": _scans("nnunet", "imagesTr/a_{}_0000.nii", "labelsTr/a_{}.nii"),
    "lits": _scans("lits", "scans/volume-{}.nii", "scans/segmentation-{}.nii"),
    "pairs": _scans("pairs", "images/{}.nii", "labels/{}.nii"),
    "class-masks": _scans("class-masks", "{}/ct.nii", "{}/segmentations/liver.nii"),
    "dicom": _dicom,
}
"""By the name of a layout, what draws its source into an empty folder."""
