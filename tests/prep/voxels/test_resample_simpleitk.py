"""Are the voxels of a real scan those that an independent tool gives, and led back those of its label?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK
from numpy.typing import NDArray

from halofeed.prep.geometry.orientation import plan_canonical
from halofeed.prep.geometry.scan import Grid
from halofeed.prep.geometry.volume import compose, plan_crop_or_pad, plan_resample, plan_stretch
from halofeed.prep.voxels.apply import apply_image, apply_mask
from tests.support.phantom import map_back
from tests.support.volume_support import as_simpleitk


def load(path: Path) -> tuple[Grid, NDArray[Any]]:
    nibabel = pytest.importorskip("nibabel")
    file = nibabel.load(path)
    array = np.asarray(file.dataobj).T
    return Grid(shape=array.shape, affine=file.affine[:, [2, 1, 0, 3]].astype(np.float64)), array  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def spleen(test_data: Path) -> tuple[Grid, NDArray[Any], NDArray[Any]]:
    folder = test_data / "volumes" / "spleen"
    grid, image = load(folder / "sub-spleen2_ct.nii.gz")
    _, mask = load(folder / "sub-spleen2_ct_seg-manual.nii.gz")
    return grid, image.astype(np.float32), mask.astype(np.uint8)


@pytest.mark.parametrize("kind", ["spacing", "finer", "stretch", "crop"])
def test_simpleitk_resamples_to_the_same_voxels(spleen: Any, kind: str) -> None:
    grid, image, mask = spleen
    canonical = plan_canonical(grid)
    same: Any = {"antialias": False, "slice_wise": "never"}
    rest = {
        "spacing": lambda grid: plan_resample(grid, (2.0, 2.0, 2.0), **same),
        "finer": lambda grid: plan_resample(grid, (3.1, 0.9, 1.1), **same),
        "stretch": lambda grid: plan_stretch(grid, (40, 100, 120), antialias=False),
        "crop": lambda grid: plan_crop_or_pad(grid, (32, 150, 180)),
    }[kind](canonical.target)
    plan = compose([canonical, rest])
    reference = as_simpleitk(np.zeros(plan.target.shape, np.float32), plan.target)

    def theirs(array: NDArray[Any], *how: Any) -> NDArray[Any]:
        moved = SimpleITK.Resample(as_simpleitk(array, grid), reference, SimpleITK.Transform(), *how)
        return SimpleITK.GetArrayFromImage(moved)

    linear = theirs(image, SimpleITK.sitkLinear, -1024.0, SimpleITK.sitkFloat32)
    difference = np.abs(apply_image(plan, image, -1024) - linear)
    # Positions are rounded to 3e-5 voxels, and neighbors differ by up to 3000 HU.
    assert difference.max() <= 0.2
    assert difference.mean() <= 2e-3
    labels = theirs(mask, SimpleITK.sitkNearestNeighbor, 0, SimpleITK.sitkUInt8)
    places = map_back(rest, np.argwhere(np.ones(plan.target.shape)))
    tie = (np.abs(places % 1 - 0.5) < 1e-4).any(axis=1).reshape(plan.target.shape)
    assert np.array_equal(apply_mask(plan, mask)[~tie], labels[~tie])
