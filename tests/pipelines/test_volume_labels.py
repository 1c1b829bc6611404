"""Is a label taken for what it is, whatever file it comes from, or refused with a cure that works?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halofeed.schemas.errors import JobError
from tests.dicom_mask_writer import frames_of, saved, segmentation
from tests.dicom_writer import write_volume
from tests.pipelines.support import run_convert
from tests.volume_support import by_name, rejected, save_nifti, write_table

SHAPE = (5, 8, 9)
SIZE = {"depth": 5, "height": 8, "width": 9}
AFFINE = np.array([[0, 0, 1.5, -5], [0, 2.0, 0, 7], [3.0, 0, 0, 11], [0, 0, 0, 1]])


def image(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-900, 900, SHAPE).astype(np.int16)


def mask(seed: int = 0, classes: int = 3) -> np.ndarray:
    return np.random.default_rng(1000 + seed).integers(0, classes, SHAPE).astype(np.uint8)


def moved(shift_mm: float, scale: float = 1.0) -> np.ndarray:
    """The grid of the scan, off along each axis and stretched."""
    affine = AFFINE.copy()
    affine[:3, :3] *= scale
    affine[:3, 3] += shift_mm
    return affine


def table_of(root: Path, **masks: tuple[np.ndarray, np.ndarray]) -> Path:
    """A table of scans, each with a mask [depth, height, width] and the affine of the mask."""
    rows = []
    for name, (values, affine) in masks.items():
        save_nifti(root / f"{name}.nii", image(), AFFINE)
        save_nifti(root / f"{name}_mask.nii", values, affine)
        rows.append((name, f"{name}.nii", f"{name}_mask.nii"))
    return write_table(root, rows)


def convert(source: Path, out: Path, **options: Any) -> Any:
    return run_convert(source, out, **{"layout": "csv", "task": "segmentation", **SIZE, **options})


def test_a_resampled_mask_that_lies_beside_its_scan_is_refused(tmp_path: Path) -> None:
    table_of(tmp_path / "s", beside=(mask(), moved(500)), near=(mask(), moved(1.5)))
    done = convert(tmp_path / "s", tmp_path / "o", mask_grid="resample")
    assert rejected(done) == {"beside.nii": ("geometry", "mask lies outside of its image", "")}
    assert by_name(done)["near.nii"].label.any()


def test_a_folder_whose_only_segmentation_is_of_another_series_makes_no_records(tmp_path: Path) -> None:
    write_volume(tmp_path / "s/a", image(), AFFINE, series="1.2.1")
    frames = [(1, depth, pixels) for depth, pixels in frames_of(mask(), 1).items()]
    made = segmentation(frames, AFFINE, {1: "liver"})
    made.FrameOfReferenceUID = "1.2.77"
    (tmp_path / "s/seg.dcm").write_bytes(saved(made))
    with pytest.raises(JobError, match="image has no label"):
        convert(tmp_path / "s", tmp_path / "o", layout="dicom", task=None)
