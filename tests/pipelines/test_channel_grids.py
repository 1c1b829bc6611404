"""Channels on other grids: brought onto the grid of one of them as SimpleITK does it, or refused with a reason."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK
from numpy.typing import NDArray

from halofeed.errors import JobError, UsageError
from halofeed.prep.convert.channel_grids import background_of, bring_channel, plan_channel
from halofeed.prep.geometry.scan import Grid, Scan
from tests.support.conversions import run_convert
from tests.support.small_scans import AFFINE, SHAPE, SIZE, image, mask, nnunet_document
from tests.support.volume_support import by_name, findings, rejected, save_nifti, write_table

COARSE = AFFINE @ np.diag([1.0, 2.0, 2.0, 1.0])
"""A PET of twice the voxel size within slices, whose first voxel is that of the CT."""
COARSE_SHAPE = (SHAPE[0], (SHAPE[1] + 1) // 2, (SHAPE[2] + 1) // 2)


def activity(shape: tuple[int, ...] = COARSE_SHAPE) -> NDArray[np.float32]:
    """Activity of 0 and more, as float."""
    return np.random.default_rng(0).random(shape, np.float32) * 20


def pet_and_ct(root: Path, pet: NDArray[Any] | None = None, grid: NDArray[np.float64] = COARSE) -> Path:
    """A source of one CT, its PET and its label."""
    save_nifti(root / "images/C1__CT.nii", image().astype(np.int16), AFFINE)
    save_nifti(root / "images/C1__PT.nii", activity() if pet is None else pet, grid)
    save_nifti(root / "labels/C1.nii", mask(), AFFINE)
    return root


def convert(source: Path, out: Path, **options: Any) -> Any:
    given = {
        "layout": "pairs",
        "image_pattern": "images/{id}__{channel}.nii",
        "label_pattern": "labels/{id}.nii",
        "channels": 2,
        "dtype": "float32",
        "channel_grid": "resample",
    }
    return run_convert(source, out, **{**SIZE, **given, **options})


def by_simpleitk(moving: Path, fixed: Path, fill: float, kernel: int = SimpleITK.sitkLinear) -> NDArray[Any]:
    """The moving image on the grid of the fixed one, [depth, height, width]; an identity transform."""
    read = [SimpleITK.ReadImage(str(path)) for path in (moving, fixed)]
    args = (SimpleITK.Transform(), kernel, fill, SimpleITK.sitkFloat32)
    return SimpleITK.GetArrayFromImage(SimpleITK.Resample(*read, *args))


# Without a shift, some voxels are exactly halfway, and SimpleITK leaves the last half of the last voxel out.
@pytest.mark.parametrize("shift_mm", [0.1, 1.3])
def test_a_coarse_channel_gets_the_values_that_simpleitk_gives_it(tmp_path: Path, shift_mm: float) -> None:
    grid = COARSE.copy()
    grid[:3, 3] += shift_mm
    source = pet_and_ct(tmp_path / "s", grid=grid)
    record = by_name(convert(source, tmp_path / "o"))["images/C1__CT.nii"]
    least = float(activity().min())
    theirs = by_simpleitk(source / "images/C1__PT.nii", source / "images/C1__CT.nii", least)
    np.testing.assert_allclose(
        record.image[..., 1], theirs, atol=1e-3
    )  # positions are rounded to 3e-5 voxels
    assert np.array_equal(record.image[..., 0], image())
    assert np.array_equal(record.label, mask())


def test_all_channels_and_the_label_get_the_grid_of_a_named_channel(tmp_path: Path) -> None:
    source = pet_and_ct(tmp_path / "s")
    save_nifti(source / "labels/C1.nii", mask()[:, ::2, ::2], COARSE)
    sides = dict(zip(("depth", "height", "width"), COARSE_SHAPE, strict=True))
    for name in ("PT", "1"):
        done = convert(source, tmp_path / name, **sides, channel_grid=f"resample:{name}")
        record = by_name(done)["images/C1__CT.nii"]
        np.testing.assert_allclose(record.image[..., 1], activity(), rtol=1e-6)
        assert np.array_equal(record.label, mask()[:, ::2, ::2])
        np.testing.assert_allclose(record.grid.affine, COARSE, atol=1e-5)
    with pytest.raises(
        JobError, match=r"no channel has this name.*MR.*the channels of this scan are ct, pt, or 0 to 1"
    ):
        convert(source, tmp_path / "o", channel_grid="resample:MR")
    with pytest.raises(UsageError, match="resample:NAME such as resample:CT"):
        convert(source, tmp_path / "o", channel_grid="align")


def test_a_channel_of_labels_keeps_its_values(tmp_path: Path) -> None:
    zones = np.zeros(COARSE_SHAPE, np.float32)
    zones[1:4, 1, 1:], zones[1:4, 2:, 1:] = 1, 3
    grid = COARSE.copy()
    grid[:3, 3] += 0.1  # no voxel is exactly halfway
    source = pet_and_ct(tmp_path / "s", pet=zones, grid=grid)
    done = convert(source, tmp_path / "o")
    stored = by_name(done)["images/C1__CT.nii"].image[..., 1]
    theirs = by_simpleitk(
        source / "images/C1__PT.nii", source / "images/C1__CT.nii", 0, SimpleITK.sitkNearestNeighbor
    )
    assert np.array_equal(stored, theirs)
    assert {*np.unique(stored)} == {0, 1, 3}
    assert findings(done) == {"channel on another grid (corrected)": 1}


def test_what_a_channel_does_not_cover_is_said_and_gets_the_background_of_its_modality(
    tmp_path: Path,
) -> None:
    source = pet_and_ct(tmp_path / "s", pet=activity()[:-1])
    done = convert(source, tmp_path / "o", depth=SHAPE[0] + 4)
    assert findings(done)["channel covers less than the first (noted)"] == 1
    stored = by_name(done)["images/C1__CT.nii"].image
    least = float(activity()[:-1].min())
    # Two slices of padding on each side, and the slice that the PET lacks.
    for at, background in enumerate((image().min(), least)):
        assert (stored[[0, 1, -2, -1], ..., at] == background).all()
    assert (stored[-3, ..., 1] == np.float32(least)).all()
    assert stored[-3, ..., 0].std() > 0


def test_a_ct_without_air_gets_air_around_it() -> None:
    voxels = np.full((*SHAPE, 1), 40, np.uint8)
    voxels[::2] = 60
    scan = Scan(
        grid=Grid(shape=SHAPE, affine=AFFINE),
        channels=1,
        dtype="uint8",
        unit="HU",
        modality="CT",
        findings=(),
        files=("ct",),
        read=lambda: voxels,
    )
    wide = Grid(shape=(SHAPE[0] + 3, *SHAPE[1:]), affine=AFFINE)
    noisy = voxels + np.random.default_rng(1).integers(0, 40, voxels.shape, np.uint8)
    found, (_, beyond) = bring_channel(plan_channel(wide, scan, "resample", 0.05), scan, noisy)
    assert np.array_equal(found[: SHAPE[0]], noisy) and (found[SHAPE[0] :] == -1024).all()
    assert beyond.detail == f"{3 / (SHAPE[0] + 3):.1%} of the other scan gets -1024"
    assert [background_of(modality, 7.0) for modality in ("CT", "PT", "NM", "MR", "")] == [-1024, 0, 0, 7, 7]


def test_channels_that_do_not_overlap_are_refused_by_file(tmp_path: Path) -> None:
    far = COARSE.copy()
    far[:3, 3] += 500
    source = pet_and_ct(tmp_path / "s", grid=far)
    save_nifti(source / "images/C2__CT.nii", image(), AFFINE)
    save_nifti(source / "images/C2__PT.nii", activity(), COARSE)
    save_nifti(source / "labels/C2.nii", mask(), AFFINE)
    done = convert(source, tmp_path / "o")
    stage, reason, detail = rejected(done)["images/C1__CT.nii"]
    assert (stage, reason) == ("geometry", "channel lies outside of the first")
    assert "images/C1__PT.nii" in detail


def test_folders_of_a_table_name_channels(tmp_path: Path) -> None:
    """As in a_T1w.nii beside a_ce-gd_T1w.nii, the shortest of the names counts."""
    root = tmp_path / "s"
    save_nifti(root / "a_ce-gd_T1w.nii", activity(), COARSE)
    save_nifti(root / "a_T1w.nii", image(), AFFINE)
    table = write_table(root, [("train", "a_ce-gd_T1w.nii;a_T1w.nii", "")])
    options = {"layout": "csv", "task": "segmentation", "image_pattern": None, "label_pattern": None}
    for name in ("T1w", "1"):
        done = convert(
            table, tmp_path / name, **options, missing_masks="prediction", channel_grid=f"resample:{name}"
        )
        assert np.array_equal(by_name(done)["a_ce-gd_T1w.nii"].image[..., 1], image())


@pytest.mark.parametrize("rule", ["refuse", "resample"])
@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_each_channel_is_padded_with_its_own_background_also_where_grids_are_equal(tmp_path, rule, dtype):
    pet = np.round(activity(SHAPE) * 10).astype(np.int16)
    source = pet_and_ct(tmp_path / "s", pet=pet, grid=AFFINE)
    done = convert(source, tmp_path / "o", channel_grid=rule, dtype=dtype, depth=SHAPE[0] + 2)
    stored = by_name(done)["images/C1__CT.nii"].image
    assert (stored[[0, -1]] == [image().min(), pet.min()]).all()
    given = convert(
        source, tmp_path / "p", channel_grid=rule, dtype=dtype, depth=SHAPE[0] + 2, pad_value=(-1024, 0)
    )
    stored = by_name(given)["images/C1__CT.nii"].image
    assert (stored[[0, -1]] == [-1024, 0]).all()
    assert np.array_equal(stored[1:-1, ..., 1], pet)
    assert given.manifest.field("image").fill == (-1024, 0)
    with pytest.raises(UsageError, match="--pad-value: expected 1 or 2 values, got 3"):
        convert(source, tmp_path / "q", pad_value=(1, 2, 3))


def test_a_window_of_percentiles_of_a_channel_does_not_depend_on_the_background_of_another(tmp_path):
    pet = activity(SHAPE)
    pet[:, :4] = 0
    source = pet_and_ct(tmp_path / "s", pet=pet, grid=AFFINE)
    options = {"window_percentiles": (0.0, 50.0), "dtype": "uint8", "channel_grid": "refuse"}
    stored = by_name(convert(source, tmp_path / "o", **options))["images/C1__CT.nii"].image[..., 1]
    # Half of the voxels above its background reach white, and not half of all, as if -900 of the CT were its own.
    assert np.mean(stored[pet > 0] == 255) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("rule", ["resample:PET", "resample:pet", "resample:1"])
def test_channels_of_nnunet_are_named_as_in_its_document(tmp_path, rule):
    source = tmp_path / "s"
    for number, (pixels, grid) in enumerate(((image(), AFFINE), (activity(), COARSE))):
        save_nifti(source / f"imagesTr/c_000{number}.nii.gz", pixels, grid)
    save_nifti(source / "labelsTr/c.nii.gz", mask()[:, ::2, ::2], COARSE)
    (source / "dataset.json").write_text(json.dumps(nnunet_document(channels=("CT", "PET"))))
    sides = dict(zip(("depth", "height", "width"), COARSE_SHAPE, strict=True))
    options = {"layout": "nnunet", "channels": 2, "dtype": "float32", **sides}
    done = run_convert(source, tmp_path / "o", **options, channel_grid=rule)
    (record,) = by_name(done).values()
    np.testing.assert_allclose(record.image[..., 1], activity(), rtol=1e-6)
    assert np.array_equal(record.label, mask()[:, ::2, ::2])
    with pytest.raises(JobError, match="no channel has this name"):
        run_convert(source, tmp_path / "q", **options, channel_grid="resample:MR")
