"""Is a label taken for what it is, whatever file it comes from, or refused with a cure that works?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halofeed.schemas.errors import JobError, UsageError
from tests.dicom_mask_writer import frames_of, saved, segmentation
from tests.dicom_writer import write_volume
from tests.pipelines.support import run_convert
from tests.volume_support import by_name, findings, rejected, save_nifti, write_table

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


def test_a_mask_off_by_less_than_the_tolerance_is_its_scans_and_its_offset_is_noted(tmp_path: Path) -> None:
    table_of(
        tmp_path / "s",
        same=(mask(), AFFINE),
        dcm2niix=(mask(), moved(0.0011)),
        scaled=(mask(), moved(0, 1 + 1e-5)),
        rounded=(mask(), moved(0.05)),
        tenth=(mask(), moved(0.15)),
        half=(mask(), moved(0.75)),
    )
    done = convert(tmp_path / "s", tmp_path / "o")
    assert set(by_name(done)) == {"same.nii", "dcm2niix.nii", "scaled.nii", "rounded.nii"}
    assert all(np.array_equal(record.label, mask()) for record in by_name(done).values())
    assert findings(done) == {"mask slightly off its image's grid (noted)": 1}
    stage, reason, detail = rejected(done)["half.nii"]
    assert (stage, reason) == ("geometry", "mask lies on another grid than its image")
    assert "(0.5 voxels); --mask-grid resample" in detail and "tolerance" not in detail
    assert "--mask-grid-tolerance above 0.1" in rejected(done)["tenth.nii"][2]
    done = convert(tmp_path / "s", tmp_path / "p", mask_grid_tolerance=0.2)
    assert set(rejected(done)) == {"half.nii"}
    done = convert(tmp_path / "s", tmp_path / "q", mask_grid_tolerance=0.0001)
    assert set(by_name(done)) == {"same.nii", "scaled.nii"}
    with pytest.raises(UsageError, match=r"--mask-grid-tolerance 0\.5: expected"):
        convert(tmp_path / "s", tmp_path / "r", mask_grid_tolerance=0.5)


def test_channels_and_segmentations_have_the_same_tolerance(tmp_path: Path) -> None:
    save_nifti(tmp_path / "s/a.nii", image(), AFFINE)
    save_nifti(tmp_path / "s/b.nii", image(1), moved(0.0011))
    save_nifti(tmp_path / "s/c.nii", image(2), moved(0.15))
    table = write_table(tmp_path / "s", [("near", "a.nii;b.nii", ""), ("far", "b.nii;c.nii", "")])
    done = convert(table, tmp_path / "o", channels=2)
    assert np.array_equal(by_name(done)["a.nii"].image[..., 1], image(1))
    assert rejected(done)["b.nii"][1] == "channels lie on different grids"
    assert "--mask-grid-tolerance above" in rejected(done)["b.nii"][2]
    assert len(by_name(convert(table, tmp_path / "p", channels=2, mask_grid_tolerance=0.2))) == 2
    write_volume(tmp_path / "d/ct", image(), AFFINE, series="1.2.1")
    frames = [(1, depth, pixels) for depth, pixels in frames_of(mask(), 1).items()]
    (tmp_path / "d/seg.dcm").write_bytes(saved(segmentation(frames, moved(0.15), {1: "liver"})))
    (tmp_path / "map.txt").write_text("background\nliver\n")
    table = write_table(tmp_path / "d", [("x", "ct", "seg.dcm")])
    options = {"label_map": str(tmp_path / "map.txt")}
    with pytest.raises(JobError, match="another grid"):
        convert(table, tmp_path / "e", **options)
    done = convert(table, tmp_path / "f", mask_grid_tolerance=0.2, **options)
    assert np.array_equal(by_name(done)["ct"].label, mask() == 1)


def test_a_folder_whose_only_segmentation_is_of_another_series_makes_no_records(tmp_path: Path) -> None:
    write_volume(tmp_path / "s/a", image(), AFFINE, series="1.2.1")
    frames = [(1, depth, pixels) for depth, pixels in frames_of(mask(), 1).items()]
    made = segmentation(frames, AFFINE, {1: "liver"})
    made.FrameOfReferenceUID = "1.2.77"
    (tmp_path / "s/seg.dcm").write_bytes(saved(made))
    with pytest.raises(JobError, match="image has no label"):
        convert(tmp_path / "s", tmp_path / "o", layout="dicom", task=None)
