"""Synthetic CT scans with known organs: the second half of `halofeed demo`.

Each patient has organs of different positions and sizes, in millimeters of the patient. The files differ in properties
that must not matter: NIfTI or a DICOM series, the order of the axes, a rotation, a gantry tilt. The demo compares the
organs in the records with the drawn ones, in patient coordinates. One mask is on another grid than its scan, and the
conversion must refuse it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from halofeed.storage.paths import open_path, save_text
from halofeed.system.errors import JobError
from halofeed.system.wording import plural

if TYPE_CHECKING:
    from halofeed.prep.geometry.scan import Grid, Triple
    from halofeed.prep.voxels.phantom import Organ, Orientation

CENTER_MM, MEAN_HU = 0.5, 1.0
"""Largest distance and difference in HU between an organ of a record and the drawn one."""
_AXES = {"S": (0, 1), "I": (0, -1), "A": (1, 1), "P": (1, -1), "R": (2, 1), "L": (2, -1)}
"""Axis of each letter (0 depth, 1 height, 2 width) and its direction."""
_DICOM_AIR = -1024


@dataclass(frozen=True, kw_only=True)
class DrawnScan:
    """Scan of the demo.

    Args:
        key: key of the scan.
        patient: number of the patient; scans of one patient show the same organs.
        form: NIfTI or DICOM.
        orientation: direction of the first, second and third axis of the file, as in "RAS".
        mask_orientation: the same for the mask.
        spacing_mm: spacing along depth, height, width of the patient.
        turn_degrees: rotation of the scan.
        tilt_degrees: tilt of the gantry.
        split: split of the scan.
        mask_is_cut: True if the mask lacks a slice, so that it is on another grid.
    """

    key: str
    patient: int
    form: str
    orientation: str
    mask_orientation: str = "RAS"
    spacing_mm: Triple = (3.0, 1.5, 1.5)
    turn_degrees: float = 0.0
    tilt_degrees: float = 0.0
    split: str = "train"
    mask_is_cut: bool = False

    @property
    def image(self) -> str:
        """Name of the scan's file or folder."""
        return self.key if self.form == "DICOM" else f"{self.key}.nii.gz"

    @property
    def mask(self) -> str:
        """Name of the file with the labels."""
        return f"{self.key}_organs.nii.gz"

    def grid(self) -> Grid:
        """Return the grid of the voxels in canonical order."""
        from halofeed.prep.voxels.phantom import grid_around

        return grid_around(self.spacing_mm, turn_degrees=self.turn_degrees, tilt_degrees=self.tilt_degrees)

    def organs(self) -> list[Organ]:
        """Return the drawn organs, the body first."""
        from halofeed.prep.voxels.phantom import ORGANS

        generator = np.random.default_rng(self.patient)
        body, *organs = ORGANS
        moved = [
            replace(
                organ,
                center_mm=_triple(np.add(organ.center_mm, generator.uniform(-3, 3, 3))),
                radii_mm=_triple(np.multiply(organ.radii_mm, generator.uniform(0.9, 1.06, 3))),
            )
            for organ in organs
        ]
        return [body, *moved]

    def describe(self) -> str:
        """Return a line about the scan."""
        notes = [f"turned by {self.turn_degrees:g}°"] * bool(self.turn_degrees)
        notes += [f"gantry tilted by {self.tilt_degrees:g}°"] * bool(self.tilt_degrees)
        notes += ["mask lacks a slice"] * self.mask_is_cut
        spacing = " x ".join(f"{side:g}" for side in self.spacing_mm)
        return ", ".join(
            [f"{self.key:<12} {self.form:<5} stored {self.orientation}, every {spacing} mm", *notes]
        )


_SCANS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("1a", "NIfTI", "RAS", {"mask_orientation": "LAS"}),
    ("1b", "DICOM", "LPS", {"mask_orientation": "SPR"}),
    ("2", "DICOM", "LIP", {"spacing_mm": (1.5, 3.0, 1.5)}),
    ("3", "NIfTI", "PIR", {"spacing_mm": (2, 2, 2), "turn_degrees": 9}),
    ("4", "DICOM", "LPS", {"tilt_degrees": 14, "mask_orientation": "LPS"}),
    ("5", "NIfTI", "SLA", {"mask_is_cut": True}),
    ("6", "DICOM", "PIL", {"spacing_mm": (1.5, 1.5, 3.0), "turn_degrees": 4, "split": "test"}),
)
SCANS = tuple(
    DrawnScan(key=f"patient-{name}", patient=int(name[0]), form=form, orientation=orientation, **more)
    for name, form, orientation, more in _SCANS
)
TWINS = ("patient-1a", "patient-1b")
"""Two scans that differ only in how they are stored."""


def draw_scans(folder: Path) -> None:
    """Draw all `SCANS` into `folder`, with their masks, the table scans.csv and the classes in labels.txt."""
    from halofeed.prep.voxels.phantom import LABELED_ORGANS, draw, stored, stored_grid

    folder.mkdir(parents=True, exist_ok=True)
    for scan in SCANS:
        grid, orientation = scan.grid(), _orientation(scan.orientation)
        image, mask = draw(grid, scan.organs())
        voxels, axes = stored(image, orientation), stored_grid(grid, orientation)
        if scan.form == "DICOM":
            _save_series(folder / scan.image, voxels, axes, scan)
        else:
            _save_nifti(folder / scan.image, voxels, axes)
        masked = _orientation(scan.mask_orientation)
        labels = stored(mask, masked)
        _save_nifti(folder / scan.mask, labels[1:] if scan.mask_is_cut else labels, stored_grid(grid, masked))
    names = ["background", *(organ.name for organ in LABELED_ORGANS)]
    save_text(folder / "labels.txt", "".join(f"{name}\n" for name in names))
    with open_path(folder / "scans.csv", "w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["id", "image", "label", "group", "split"])
        table.writerows([s.key, s.image, s.mask, f"patient-{s.patient}", s.split] for s in SCANS)


def _orientation(letters: str) -> Orientation:
    """Return the order and direction of the axes of an array whose last axis is the file's first."""
    order, direction = zip(*(_AXES[letter] for letter in reversed(letters)), strict=True)
    return order, direction


def _triple(values: NDArray[Any]) -> Triple:
    first, second, third = values.tolist()
    return first, second, third


def _save_nifti(path: Path, array: NDArray[Any], grid: Grid) -> None:
    """Write an array of three axes and its grid; its axes are those of the file in reverse order."""
    import nibabel

    nibabel.Nifti1Image(array.transpose(), grid.affine[:, [2, 1, 0, 3]]).to_filename(path)


def _save_series(folder: Path, array: NDArray[np.int16], grid: Grid, scan: DrawnScan) -> None:
    """Write one file per slice; neither the names nor the instance numbers follow the order of the slices."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian

    folder.mkdir(exist_ok=True)
    # DICOM's axes point to the left and to posterior, NIfTI's to the right and to anterior (PS3.3 C.7.6.2.1.1).
    to_left_posterior = np.diag([-1.0, -1.0, 1.0, 1.0]) @ grid.affine
    sides = np.linalg.norm(to_left_posterior[:3, :3], axis=0)
    along = to_left_posterior[:3, :3] / sides
    series = f"1.2.826.0.1.3680043.8.498.{scan.patient}.{len(scan.key)}"
    shuffled = np.random.default_rng(scan.patient).permutation(len(array)).tolist()
    for number, pixels in enumerate(array):
        dataset = Dataset()
        dataset.file_meta = FileMetaDataset()
        dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID = CTImageStorage
        dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = f"{series}.{number}"
        dataset.Modality, dataset.PatientID = "CT", f"P{scan.patient}"
        dataset.StudyInstanceUID, dataset.SeriesInstanceUID = f"{series}.1", f"{series}.2"
        dataset.FrameOfReferenceUID, dataset.InstanceNumber = f"{series}.3", shuffled[number] + 1
        # A decimal string has at most 16 characters (PS3.5 6.2, DS).
        dataset.ImagePositionPatient = [
            round(value, 6) for value in to_left_posterior[:3] @ (number, 0, 0, 1)
        ]
        dataset.ImageOrientationPatient = [round(value, 9) for value in (*along[:, 2], *along[:, 1])]
        dataset.PixelSpacing, dataset.SliceThickness = sides[1:].round(6).tolist(), round(float(sides[0]), 6)
        dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
        dataset.Rows, dataset.Columns = pixels.shape
        dataset.BitsAllocated = dataset.BitsStored = 16
        dataset.HighBit, dataset.PixelRepresentation = 15, 0
        dataset.RescaleSlope, dataset.RescaleIntercept, dataset.RescaleType = 1, _DICOM_AIR, "HU"
        dataset.PixelData = (pixels - _DICOM_AIR).astype("<u2").tobytes()
        dataset["PixelData"].VR = "OW"  # of more than 8 bits (PS3.5 A.2)
        dataset.save_as(folder / f"{shuffled[number]:03d}.dcm", enforce_file_format=True)


@dataclass(frozen=True, kw_only=True)
class OrganComparison:
    """Largest differences between an organ in all records and the drawn one; HU are measured inside the organ."""

    organ: str
    drawn_hu: int
    records: int
    mean_hu: float
    off_hu: float
    off_mm: float

    def __str__(self) -> str:
        return (
            f"{self.organ:<8} in {plural(self.records, 'record')}: center at most {self.off_mm:.2f} mm away, "
            f"mean {self.mean_hu:.1f} HU (drawn {self.drawn_hu}), at most {self.off_hu:.2f} off"
        )


def compare_scans(data: str) -> list[OrganComparison]:
    """Compare each organ in a converted demo with the drawn one.

    Raises:
        JobError: an organ has another position or brightness than the drawn one, or a scan is missing.
    """
    from halofeed.prep.voxels.phantom import LABELED_ORGANS

    measured: dict[str, list[tuple[float, float]]] = {organ.name: [] for organ in LABELED_ORGANS}
    keys = set()
    for key, image, label, grid in _records(data):
        keys.add(key)
        for name, values in _measure_organs(data, key, image, label, grid).items():
            measured[name].append(values)
    # A scan whose mask was cut must be rejected, and no other one.
    if expected := {scan.key for scan in SCANS if not scan.mask_is_cut} ^ keys:
        raise JobError(f"{data}: holds other scans than were drawn: {', '.join(sorted(expected))}")
    return [_compare_organ(data, organ, measured[organ.name]) for organ in LABELED_ORGANS]


def _measure_organs(
    data: str, key: str, image: NDArray[Any], label: NDArray[Any], grid: Grid
) -> dict[str, tuple[float, float]]:
    """Return for each organ of a record how far its center is from the drawn one in mm, and its mean HU."""
    from halofeed.prep.voxels.phantom import centroid_mm, interior, margin_mm

    scan = next(scan for scan in SCANS if scan.key == key)
    margin = margin_mm(scan.grid(), grid)
    found = {}
    for organ in scan.organs()[1:]:
        if not (label == organ.label).any():
            raise JobError(f"{data}: {key} has no {organ.name}")
        # Resampling mixes organs at their borders, so only voxels inside are compared.
        inside = interior(grid, organ, margin)
        away = np.linalg.norm(centroid_mm(grid, label, organ.label) - organ.center_mm)
        found[organ.name] = (float(away), float(image[inside].mean()))
    return found


def _compare_organ(data: str, organ: Organ, measured: list[tuple[float, float]]) -> OrganComparison:
    """Return the comparison of an organ, from its (distance in mm, mean HU) in each record."""
    off_mm, means = np.transpose(measured)
    entry = OrganComparison(
        organ=organ.name,
        drawn_hu=organ.hu,
        records=len(measured),
        mean_hu=float(means.mean()),
        off_hu=float(np.abs(means - organ.hu).max()),
        off_mm=float(off_mm.max()),
    )
    if entry.off_mm > CENTER_MM or entry.off_hu > MEAN_HU:
        raise JobError(
            f"{data}: {entry.organ} is {entry.off_mm:.2f} mm and {entry.off_hu:.2f} HU from what was drawn"
        )
    return entry


def compare_twins(data: str) -> str:
    """Return a line that the `TWINS` gave equal records; raise JobError if they did not."""
    records = {key: (image, label, grid.affine) for key, image, label, grid in _records(data)}
    pairs = zip(records[TWINS[0]], records[TWINS[1]], strict=True)
    if not all(np.array_equal(one, other) for one, other in pairs):
        raise JobError(f"{data}: {' and '.join(TWINS)} hold the same scan and gave different records")
    ways = " and as ".join(f"{s.form} {s.orientation}" for s in SCANS if s.key in TWINS)
    return f"{' and '.join(TWINS)}, one scan stored as {ways}: the same voxels, labels and affine"


def _records(data: str) -> Iterator[tuple[str, NDArray[Any], NDArray[Any], Grid]]:
    """Yield the key, image [depth, height, width] in HU, label and grid of every record."""
    from halofeed.loader import Loader
    from halofeed.prep.geometry.scan import Grid

    for split in ("train", "test"):
        loader = Loader(data, split=split, batch_size=1, training=False, include=("affine", "key"))
        for batch in loader.batches():
            image, label = batch["image"][0, ..., 0], batch["label"][0]
            affine = np.asarray(batch["affine"][0], np.float64)
            yield str(batch["key"][0]), image, label, Grid(shape=label.shape, affine=affine)
