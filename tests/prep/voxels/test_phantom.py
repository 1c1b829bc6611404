"""Organs of a drawn patient keep place, shape and values, however they are stored and resampled."""

from itertools import product

import numpy as np
import pytest

from halofeed.prep.geometry import volume
from halofeed.prep.geometry.orientation import plan_canonical, plan_orthogonal
from halofeed.prep.voxels import phantom
from halofeed.prep.voxels.label_volumes import label_box, plan_foreground_crop
from halofeed.prep.voxels.resample import apply_image, apply_mask
from tests.support.level_rows import others
from tests.support.phantom import ORIENTATIONS, dice
from tests.support.volume_support import lead_back

MODES = {
    "unchanged": volume.plan_nothing,
    "spacing": lambda grid: volume.plan_resample(grid, (2.0, 2.0, 2.0)),
    "spacing, not antialiased": lambda grid: volume.plan_resample(grid, (2.0, 2.0, 2.0), antialias=False),
    "spacing, one-hot": lambda grid: volume.plan_resample(grid, (2.0, 2.0, 2.0), mask_kernel="onehot-linear"),
    "spacing, cubic": lambda grid: volume.plan_resample(grid, (1.7, 1.3, 1.1), image_kernel="cubic"),
    "spacing, slice by slice": lambda grid: volume.plan_resample(grid, (2.5, 1.0, 1.0), slice_wise="always"),
    "crop or pad": lambda grid: volume.plan_crop_or_pad(grid, (96, 81, 112)),
    "about the foreground": lambda grid: volume.plan_crop_or_pad(grid, (80, 80, 90), (40, 40, 50)),
    "crop": lambda grid: volume.plan_window(grid, (1, 2, 3), (78, 79, 96)),
    "stretch": lambda grid: volume.plan_stretch(grid, (32, 64, 96)),
    "all": lambda grid: volume.join_plans(
        [
            # Nearest, three times over, moves the spleen by 0.52 mm.
            plan := volume.plan_resample(grid, (2.0, 1.8, 1.8), mask_kernel="onehot-linear"),
            crop := volume.plan_crop_or_pad(plan.target, (64, 56, 70)),
            volume.plan_stretch(crop.target, (60, 60, 60), mask_kernel="onehot-linear"),
        ]
    ),
}
REACH = {"spacing, cubic": 2.0, "all": 2.0}
GRIDS = {
    "straight": phantom.grid_around((1.5, 1.25, 1.25), center_mm=(0.4, -0.3, 0.2)),
    "oblique": phantom.grid_around((1.5, 1.25, 1.25), turn_degrees=12),
    "tilted": phantom.grid_around((1.5, 1.25, 1.25), tilt_degrees=17),
}

QUICK = [("straight", "crop"), ("oblique", "spacing"), ("tilted", "spacing, one-hot"), ("oblique", "all")]


@pytest.mark.parametrize(("name", "mode"), others(product(GRIDS, MODES), QUICK))
def test_organs_keep_their_place_and_their_hounsfield_units(name, mode):
    """Centroids are of the record's mask; mean HU of what lies inside, further than interpolation reaches."""
    grid = GRIDS[name]
    image, mask = phantom.draw(grid)
    upright = plan_orthogonal(grid)
    plan = volume.join_plans([upright, MODES[mode](upright.target)])
    ours, labels = apply_image(plan, image, phantom.PHANTOM_AIR_HU), apply_mask(plan, mask)
    assert set(np.unique(labels)) == set(np.unique(mask))
    for organ in phantom.LABELED_ORGANS:
        assert np.abs(phantom.centroid_mm(plan.target, labels, organ.label) - organ.center_mm).max() < 0.5, (
            organ.name
        )
        inner = phantom.interior(
            plan.target, organ, phantom.margin_mm(upright.target, plan.target, REACH.get(mode, 1.0))
        )
        assert inner.sum() > 20
        assert abs(ours[inner].mean() - organ.hu) < 1, organ.name


@pytest.mark.parametrize(
    ("name", "mode"),
    others(product(["straight", "oblique"], ["unchanged", "spacing", "all"]), [("oblique", "spacing")]),
)
def test_all_48_orientations_give_the_same_voxels(name, mode):
    grid = GRIDS[name]
    image, mask = phantom.draw(grid)
    expected = []
    for orientation in ORIENTATIONS:
        canonical = plan_canonical(phantom.stored_grid(grid, orientation))
        plan = volume.join_plans([canonical, MODES[mode](canonical.target)])
        ours = [
            apply_image(plan, phantom.stored(image, orientation), phantom.PHANTOM_AIR_HU),
            apply_mask(plan, phantom.stored(mask, orientation)),
        ]
        expected = expected or ours
        assert all(np.array_equal(one, other) for one, other in zip(ours, expected, strict=True)), orientation
    if mode == "unchanged":
        assert np.array_equal(expected[0], image) and np.array_equal(expected[1], mask)


@pytest.mark.parametrize(
    ("mode", "least"),
    [
        ("unchanged", 1.0),
        ("crop or pad", 1.0),
        ("crop", 1.0),
        ("about the foreground", 1.0),
        ("spacing", 0.9),
        pytest.param("spacing, one-hot", 0.9, marks=pytest.mark.long),
        pytest.param("stretch", 0.9, marks=pytest.mark.long),
    ],
)
def test_a_label_led_back_covers_the_source_mask(mode, least):
    grid = GRIDS["oblique"]
    _, mask = phantom.draw(grid)
    for orientation in ORIENTATIONS[::11]:
        canonical = plan_canonical(phantom.stored_grid(grid, orientation))
        plan = volume.join_plans([canonical, MODES[mode](canonical.target)])
        kept = phantom.stored(mask, orientation)
        labels = lead_back(plan, apply_mask(plan, kept), kept.shape)
        for organ in phantom.LABELED_ORGANS:
            assert dice(labels == organ.label, kept == organ.label) >= least, organ.name


def test_a_foreground_crop_of_a_mask_holds_the_whole_mask():
    _, mask = phantom.draw(GRIDS["straight"])
    plan = plan_foreground_crop(GRIDS["straight"], label_box(mask))
    assert (apply_mask(plan, mask) != 0).sum() == (mask != 0).sum()
