"""Drawn sets of scans with boxes, in the forms of LUNA16, LIDC-IDRI, nnDetection and plain tables.

Each scan is dark, with bright balls or boxes, so that a box can be compared with the voxels that it must enclose.
"""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from numpy.typing import NDArray

from tests.support.dicom_writer import write_volume

BRIGHT = 1000
LPS_OF_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])


def turned_affine(seed: int, spacing: Sequence[float] = (2.0, 1.0, 1.5)) -> NDArray[np.float64]:
    """Return an affine from (depth, height, width) to RAS mm whose axes are patient axes in random order and sign."""
    generator = np.random.default_rng(seed)
    affine = np.eye(4)
    affine[:3, :3] = np.eye(3)[generator.permutation(3)] * generator.choice([-1.0, 1.0], 3)[:, None]
    affine[:3, :3] *= np.array(spacing)
    affine[:3, 3] = generator.uniform(-90, 90, 3).round(2)
    return affine


def oblique_affine(seed: int, spacing: Sequence[float] = (2.0, 1.0, 1.5)) -> NDArray[np.float64]:
    """Return an affine whose orthogonal axes have random directions."""
    generator = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(generator.normal(size=(3, 3)))
    affine = np.eye(4)
    affine[:3, :3] = rotation * np.array(spacing)
    affine[:3, 3] = generator.uniform(-90, 90, 3)
    return affine


def ball(
    shape: Sequence[int], affine: NDArray[np.float64], center_mm: Sequence[float], diameter: float
) -> NDArray[np.bool_]:
    """Return the voxels whose centers are in a ball."""
    voxels = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), -1)
    places = voxels @ affine[:3, :3].T + affine[:3, 3]
    return np.linalg.norm(places - np.array(center_mm), axis=-1) <= diameter / 2


def write_mhd(path: Path, volume: NDArray[Any], affine: NDArray[np.float64]) -> None:
    """Write a MetaImage header and its .raw; `affine` is from (depth, height, width) to RAS mm."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lps = LPS_OF_RAS @ affine
    spacing = np.linalg.norm(lps[:3, :3], axis=0)[::-1]
    directions = (lps[:3, :3] / np.linalg.norm(lps[:3, :3], axis=0))[:, ::-1]
    lines = {
        "ObjectType": "Image",
        "NDims": "3",
        "BinaryData": "True",
        "BinaryDataByteOrderMSB": "False",
        "CompressedData": "False",
        "TransformMatrix": " ".join(f"{value:.17g}" for value in directions.T.ravel()),
        "Offset": " ".join(f"{value:.17g}" for value in lps[:3, 3]),
        "ElementSpacing": " ".join(f"{value:.17g}" for value in spacing),
        "DimSize": " ".join(map(str, volume.shape[::-1])),
        "ElementType": "MET_SHORT",
        "ElementDataFile": path.with_suffix(".raw").name,
    }
    path.write_text("".join(f"{name} = {value}\n" for name, value in lines.items()))
    path.with_suffix(".raw").write_bytes(volume.astype("<i2").tobytes())


def write_nifti(path: Path, volume: NDArray[Any], affine: NDArray[np.float64]) -> None:
    """Write a NIfTI of [depth, height, width]; the file has the axes in reverse order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(volume.T, affine[:, [2, 1, 0, 3]]), path)


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


LUNA_COLUMNS = ("seriesuid", "coordX", "coordY", "coordZ", "diameter_mm")


def draw_luna(
    root: Path, scans: int = 4, shape: Sequence[int] = (24, 40, 36), nodules: int = 2, oblique: bool = False
) -> dict[str, list[tuple[tuple[float, ...], float]]]:
    """Draw scans in subset0, subset1, ..., the last one without a nodule; return (center in RAS mm, diameter)."""
    found: dict[str, list[tuple[tuple[float, ...], float]]] = {}
    rows = []
    for number in range(scans):
        generator = np.random.default_rng(number)
        name = f"1.3.6.1.4.{number}"
        affine = (oblique_affine if oblique else turned_affine)(number)
        volume = np.full(tuple(shape), -900, np.int16)
        found[name] = []
        for _ in range(nodules if number < scans - 1 else 0):
            center = affine[:3, :3] @ (generator.uniform(0.3, 0.7, 3) * np.array(shape)) + affine[:3, 3]
            diameter = round(float(generator.uniform(8, 14)), 3)
            volume[ball(shape, affine, center, diameter)] = BRIGHT
            found[name].append((tuple(center.tolist()), diameter))
            rows.append((name, -center[0], -center[1], center[2], diameter))
        write_mhd(root / f"subset{number}" / f"{name}.mhd", volume, affine)
    rows.append(("1.3.6.1.4.999", 1.0, 2.0, 3.0, 4.0))  # a scan of a subset that was not downloaded
    write_table(root / "annotations.csv", LUNA_COLUMNS, rows)
    write_table(root / "candidates.csv", (*LUNA_COLUMNS[:4], "class"), [(*row[:4], 0) for row in rows])
    return found


def draw_nndetection(
    root: Path, cases: int = 3, shape: Sequence[int] = (20, 32, 28), channels: int = 1
) -> dict[str, NDArray[Any]]:
    """Draw cases whose labels number objects of two classes; return the label of each case."""
    labels: dict[str, NDArray[Any]] = {}
    for number in range(cases):
        generator = np.random.default_rng(100 + number)
        affine, name = turned_affine(100 + number), f"case_{number}"
        label = np.zeros(tuple(shape), np.uint8)
        instances: Mapping[str, int] = {}
        for instance in range(1, (4 if number else 0) + 1):
            low = [int(generator.integers(0, side - 6)) for side in shape]
            size = generator.integers(2, 6, 3)
            label[tuple(slice(a, a + int(b)) for a, b in zip(low, size, strict=True))] = instance
            instances |= {str(instance): instance % 2}
        # A later object may cover an earlier one.
        instances = {key: one for key, one in instances.items() if (label == int(key)).any()}
        for channel in range(channels):
            image = np.where(label > 0, BRIGHT, 0).astype(np.int16)
            write_nifti(root / "imagesTr" / f"{name}_{channel:04d}.nii.gz", image, affine)
        write_nifti(root / "labelsTr" / f"{name}.nii.gz", label, affine)
        (root / "labelsTr" / f"{name}.json").write_text(json.dumps({"instances": instances}))
        labels[name] = label
    document = {
        "task": "Task000_Drawn",
        "name": "Drawn",
        "dim": 3,
        "labels": {"0": "cyst", "1": "nodule"},
        "modalities": {str(channel): f"CT{channel}" for channel in range(channels)},
    }
    (root / "dataset.json").write_text(json.dumps(document))
    return labels


_LIDC = """<?xml version="1.0" encoding="UTF-8"?>
<LidcReadMessage uid="1.3.6.1.4.1.14519.5.2.1.6279.6001.1308168927505.0" xmlns="http://www.nih.gov">
<ResponseHeader><Version>1.8.1</Version><SeriesInstanceUid>{series}</SeriesInstanceUid>
<StudyInstanceUID>1.9.9</StudyInstanceUID></ResponseHeader>
{sessions}
</LidcReadMessage>
"""


def lidc_document(
    series: str, sessions: Sequence[Sequence[Mapping[float, Sequence[tuple[int, int]]]]]
) -> str:
    """Return a document: for each reader the nodules, each {slice position: points (x, y) of its outline}."""
    written = []
    for reader in sessions:
        nodules = []
        for number, slices in enumerate(reader):
            rois = "".join(
                f"<roi><imageZposition>{position}</imageZposition><imageSOP_UID>1.2</imageSOP_UID>"
                "<inclusion>TRUE</inclusion>"
                + "".join(f"<edgeMap><xCoord>{x}</xCoord><yCoord>{y}</yCoord></edgeMap>" for x, y in points)
                + "</roi>"
                for position, points in slices.items()
            )
            nodules.append(f"<unblindedReadNodule><noduleID>N{number}</noduleID>{rois}</unblindedReadNodule>")
        marks = (
            "<nonNodule><nonNoduleID>X</nonNoduleID><imageZposition>1</imageZposition><locus><xCoord>3</xCoord>"
            "<yCoord>4</yCoord></locus></nonNodule>"
        )
        written.append(f"<readingSession>{''.join(nodules)}{marks}</readingSession>")
    return _LIDC.format(series=series, sessions="".join(written))


def outline(low: Sequence[int], high: Sequence[int]) -> list[tuple[int, int]]:
    """Return an outline (x, y) just outside of the pixels low .. high (y, x), both inclusive."""
    top, left, bottom, right = low[0] - 1, low[1] - 1, high[0] + 1, high[1] + 1
    upper = [(x, top) for x in range(left, right + 1)]
    lower = [(x, bottom) for x in range(right, left - 1, -1)]
    return [
        *upper,
        *((right, y) for y in range(top, bottom)),
        *lower,
        *((left, y) for y in range(bottom, top, -1)),
    ]


LIDC_AFFINE = np.array([[0, 0, -0.7, 60], [0, -0.7, 0, 55], [1.25, 0, 0, -300.5], [0, 0, 0, 1]])
"""An axial CT: slices to superior, rows to posterior, columns to the left, as scanners write them."""


def draw_lidc(root: Path, shape: Sequence[int] = (16, 40, 36)) -> None:
    """Draw one series with a nodule of four readers, one of a single reader, and a small one of two readers."""
    volume = np.full(tuple(shape), -900.0)
    volume[4:8, 10:16, 12:20] = BRIGHT
    volume[10:12, 25:30, 5:9] = BRIGHT
    write_volume(
        root / "LIDC-IDRI-0001" / "scan", volume, LIDC_AFFINE, series="1.7.1", patient="LIDC-IDRI-0001"
    )

    def place(number: int) -> float:
        return -300.5 + 1.25 * number

    full = {place(number): outline((10, 12), (15, 19)) for number in range(4, 8)}
    wide = {place(number): outline((9, 11), (15, 19)) for number in range(3, 8)}
    other = {place(number): outline((25, 5), (29, 8)) for number in range(10, 12)}
    small = {place(13): [(30, 33)]}
    sessions = [[full, small], [full, other], [wide, small], [full]]
    (root / "LIDC-IDRI-0001" / "scan" / "069.xml").write_text(lidc_document("1.7.1", sessions))
