"""A U-Net is planned by nnU-Net's rules: the same strides and kernels, patches that fit the records and divide."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halofeed.trainer.auto.unet_plan import (
    SMALLEST_FEATURE_MAP,
    fitting_patch,
    patches,
    pooling_of,
    target_spacing,
)

# Spacings and patches of three sets of the Medical Segmentation Decathlon; the rest is worked out by hand.
WORKED_OUT = {
    "hippocampus": ((1.0, 1.0, 1.0), (40, 56, 40), ((2, 2, 2),) * 3, ((3, 3, 3),) * 4),
    "spleen": (
        (1.6, 0.79, 0.79),
        (64, 192, 160),
        ((1, 2, 2), (2, 2, 2), (2, 2, 2), (2, 2, 2), (2, 2, 2)),
        ((1, 3, 3), *((3, 3, 3),) * 5),
    ),
    "prostate": (
        (3.6, 0.62, 0.62),
        (20, 320, 256),
        ((1, 2, 2), (1, 2, 2), (2, 2, 2), (2, 2, 2), (1, 2, 2), (1, 2, 2)),
        ((1, 3, 3), (1, 3, 3), *((3, 3, 3),) * 5),
    ),
}


@pytest.mark.parametrize("name", WORKED_OUT)
def test_strides_and_kernels_follow_the_spacing_of_real_data_sets(name):
    spacing, patch, strides, kernels = WORKED_OUT[name]
    found = pooling_of(spacing, patch)
    assert found is not None and (found.strides, found.kernels) == (strides, kernels)


def by_the_source(spacing, patch):
    """Strides as in nnU-Net's `get_pool_and_conv_props` (nnunetv2, experiment_planners/network_topology.py)."""
    now, size, rows = list(spacing), list(patch), []
    while True:
        valid = [axis for axis in range(len(patch)) if size[axis] >= 2 * 4]
        if len(valid) < 1:
            return tuple(rows)
        least = min(now[axis] for axis in valid)
        valid = [axis for axis in valid if now[axis] / least < 2]
        if len(valid) == 1 and size[valid[0]] < 3 * 4:
            return tuple(rows)
        rows.append(tuple(2 if axis in valid else 1 for axis in range(len(patch))))
        for axis in valid:
            now[axis] *= 2
            size[axis] = math.ceil(size[axis] / 2)


SPACINGS = st.tuples(*[st.floats(0.4, 6.0)] * 3)
SIDES = st.tuples(*[st.integers(1, 200)] * 3)


@given(SPACINGS, SIDES)
def test_strides_are_those_of_the_source(spacing, sides):
    found = pooling_of(spacing, sides)
    assert (() if found is None else found.strides) == by_the_source(spacing, sides)


@given(SPACINGS, SIDES, SIDES)
def test_every_patch_fits_the_record_divides_and_is_smaller_than_the_one_before(spacing, record, image):
    median = tuple(map(min, image, record))
    before = math.inf
    for number, (patch, pooling) in enumerate(patches(spacing, median, record)):
        assert all(1 <= side <= most for side, most in zip(patch, record, strict=True))
        coarsest = np.array(patch) / pooling.divisors
        assert (coarsest == coarsest.round()).all()
        # An axis is halved only to 4 values or more; rounding up may only add to them.
        halved = np.array(pooling.divisors) > 1
        assert (coarsest[halved] >= SMALLEST_FEATURE_MAP / 2).all()
        assert len(pooling.kernels) == len(pooling.strides) + 1
        assert math.prod(patch) < before
        before = math.prod(patch)
        assert number < 500


def test_a_small_image_has_no_patch():
    assert list(patches((1.0, 1.0), (7, 7), (7, 7))) == []
    assert fitting_patch((1.0, 1.0), (7, 7), (8, 8)) is None


@pytest.mark.parametrize(
    ("median", "tenth", "sizes", "expected"),
    [
        ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0), (36, 50, 35), (1.0, 1.0, 1.0)),
        ((5.0, 0.8, 0.8), (2.5, 0.7, 0.7), (30, 512, 512), (2.5, 0.8, 0.8)),
        # Thick slices, but many of them: they are kept.
        ((5.0, 0.8, 0.8), (2.5, 0.7, 0.7), (300, 512, 512), (5.0, 0.8, 0.8)),
        # Not finer than the other axes.
        ((5.0, 0.8, 0.8), (0.5, 0.7, 0.7), (30, 512, 512), (0.8, 0.8, 0.8)),
        ((0.8, 0.8, 5.0), (0.7, 0.7, 2.0), (512, 512, 30), (0.8, 0.8, 2.0)),
    ],
)
def test_the_target_spacing_is_the_median_and_finer_for_few_thick_slices(median, tenth, sizes, expected):
    assert target_spacing(median, tenth, sizes) == expected
