"""Advice about boxes in volumes: their layouts, units and readers."""

from pathlib import Path

import numpy as np

from tests.mistakes.volume_advice import one
from tests.support.advice import Advice, refused, usage
from tests.support.mistakes import preparing
from tests.support.scan_box_sets import (
    draw_lidc,
    draw_luna,
    turned_affine,
    write_nifti,
    write_table,
)

SIZE = "--depth 24 --height 40 --width 40"
HEADER = ("scan", "class", "xmin", "ymin", "zmin", "xmax", "ymax", "zmax")
BOX = (3, 4, 5, 9, 12, 7)


@preparing
def table(root: Path, *more: object, layout: str = "scan-boxes", far: int = 0) -> list[object]:
    """Two scans and a table of boxes in voxels; `far` of them are outside of their scans."""
    for name in ("a", "b"):
        write_nifti(
            root / "scans" / f"{name}.nii.gz",
            np.arange(12_000, dtype=np.int16).reshape(20, 30, 20) % 999,
            turned_affine(1),
        )
    rows = [("a", "hat", *BOX), ("b", "hat", *BOX), *[("a", "hat", *np.add(BOX, 500))] * far]
    write_table(root / "boxes.csv", HEADER, rows)
    return ["--layout", layout, "--source", root, *SIZE.split(), *more]


@preparing
def two_tables(root: Path) -> list[object]:
    words = table()(root)
    (root / "more.csv").write_bytes((root / "boxes.csv").read_bytes())
    return words


@preparing
def apart(root: Path) -> list[object]:
    """A table whose scans are in another folder."""
    words = table()(root)
    (root / "tables").mkdir()
    (root / "boxes.csv").rename(root / "tables/boxes.csv")
    return [root / "tables" if word == root else word for word in words]


@preparing
def luna(root: Path, *more: object, tables: int = 1) -> list[object]:
    draw_luna(root)
    for number in range(1, tables):
        (root / f"more{number}.csv").write_bytes((root / "annotations.csv").read_bytes())
    return ["--layout", "luna16", "--source", root, *SIZE.split(), *more]


@preparing
def lidc(root: Path, *more: object, documents: bool = True) -> list[object]:
    draw_lidc(root)
    for path in [] if documents else list(root.rglob("*.xml")):
        path.unlink()
    return ["--layout", "lidc", "--source", root, *SIZE.split(), *more]


ADVICE: dict[str, Advice] = {
    "boxes in volumes of a layout of masks": usage(
        one("--task", "detection"), r"them, (--task segmentation), or leave", without=("--task",)
    ),
    "boxes in volumes of another table": usage(
        table("--task", "detection", layout="csv"), r"from (--layout scan-boxes)", without=("--layout",)
    ),
    "a task that volumes with boxes do not have": usage(
        luna("--task", "classification"), r"goes with (--task detection)", without=("--task",)
    ),
    "boxes that fit in no unit": refused(table(far=1), r"unit with (--scan-box-units voxels)"),
    "two tables of boxes": refused(two_tables(), (r"them with (--source)", "{source}/boxes.csv")),
    "scans in another folder than their table": refused(
        apart(), (r"folder with (--images)", "{source}/scans")
    ),
    "a table that is not LUNA16's": refused(
        table(layout="luna16"), r"boxes: (--layout scan-boxes)", without=("--layout",)
    ),
    "two tables of LUNA16": refused(luna(tables=2), (r"them with (--source)", "{source}/annotations.csv")),
    "DICOM without LIDC's documents": refused(
        lidc(documents=False), r"them: (--layout dicom)", without=("--layout",)
    ),
    "more readers than a document has": refused(
        lidc("--min-readers", "5"), r"take (--min-readers 4) or less", without=("--min-readers",)
    ),
}
