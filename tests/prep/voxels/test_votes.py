"""Several readings of one scan become one label as SimpleITK combines them."""

import numpy as np
import pytest
import SimpleITK
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from halofeed.prep.voxels.votes import combine_readings
from halofeed.system.errors import SourceError

UNDECIDED = 255


def readings_of(seed: int, readers: int, classes: int) -> list[NDArray[np.uint8]]:
    """Balls of each class, moved a little and disturbed more by each reader."""
    draw = np.random.default_rng(seed)
    shape = (8, 20, 20)
    z, y, x = np.indices(shape)
    truth = np.zeros(shape, np.uint8)
    for one in range(1, classes):
        at = draw.uniform(0.25, 0.75, 3) * shape
        truth[((z - at[0]) * 2) ** 2 + (y - at[1]) ** 2 + (x - at[2]) ** 2 < 20 + 10 * one] = one
    found = []
    for reader in range(readers):
        drawn = np.roll(truth, draw.integers(-1, 2, 3), (0, 1, 2))
        wrong = draw.random(shape) < 0.1 * (reader + 1) / readers
        drawn[wrong] = draw.integers(0, classes, wrong.sum())
        found.append(drawn)
    return found


@pytest.mark.parametrize(("readers", "classes"), [(2, 2), (2, 4), (3, 2), (3, 5), (4, 2), (4, 3), (5, 4)])
def test_both_rules_give_the_voxels_of_simpleitk_where_ties_are_background(
    readers: int, classes: int
) -> None:
    readings = readings_of(10 * readers + classes, readers, classes)
    images = [SimpleITK.GetImageFromArray(reading) for reading in readings]
    voted = SimpleITK.GetArrayFromImage(SimpleITK.LabelVoting(images, UNDECIDED))
    ours, undecided = combine_readings(readings, "majority")
    assert np.array_equal(ours, np.where(voted == UNDECIDED, 0, voted))
    assert undecided == np.count_nonzero(voted == UNDECIDED)
    weigh = SimpleITK.MultiLabelSTAPLEImageFilter()
    weigh.SetLabelForUndecidedPixels(UNDECIDED)
    likely = SimpleITK.GetArrayFromImage(weigh.Execute(images))
    ours, _ = combine_readings(readings, "staple")
    assert np.array_equal(ours, np.where(likely == UNDECIDED, 0, likely))
    # Of a single class, these are the voxels with a probability of one half and more in STAPLE of 2004.
    if classes == 2:
        assert np.array_equal(ours, SimpleITK.GetArrayFromImage(SimpleITK.STAPLE(images, 1.0)) >= 0.5)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.sampled_from([np.uint8, np.uint16]))
def test_the_majority_is_that_of_counting_each_voxel(seed: int, readers: int, dtype: type) -> None:
    draw = np.random.default_rng(seed)
    values = np.array([0, 1, 7, 200])
    readings = [draw.choice(values, (2, 3, 4)).astype(dtype) for _ in range(readers)]
    ours, undecided = combine_readings(readings, "majority")
    expected, ties = np.zeros((2, 3, 4), dtype), 0
    for place in np.ndindex(2, 3, 4):
        answers = [int(reading[place]) for reading in readings]
        counts = sorted(((answers.count(one), one) for one in set(answers)), reverse=True)
        if len(counts) > 1 and counts[0][0] == counts[1][0]:
            ties += 1
        else:
            expected[place] = counts[0][1]
    assert np.array_equal(ours, expected) and ours.dtype == dtype
    assert undecided == ties


def test_a_reader_who_errs_often_counts_less_in_staple() -> None:
    """Two careful readers agree against three who draw at random; most votes are not always right."""
    draw = np.random.default_rng(3)
    truth = np.zeros((6, 30, 30), np.uint8)
    truth[1:5, 8:22, 8:22] = 1
    careful = [truth.copy(), truth.copy()]
    hasty = [np.where(draw.random(truth.shape) < 0.4, 1 - truth, truth).astype(np.uint8) for _ in range(3)]
    wrong = {
        rule: np.count_nonzero(combine_readings(careful + hasty, rule)[0] != truth)
        for rule in ("majority", "staple")
    }
    assert wrong["staple"] == 0 < wrong["majority"]


def test_readings_that_cannot_be_combined_are_refused() -> None:
    with pytest.raises(SourceError, match="differ in shape"):
        combine_readings([np.zeros((1, 2, 3), np.uint8), np.zeros((1, 3, 2), np.uint8)], "majority")
    many = [np.arange(300, dtype=np.uint16).reshape(1, 1, 300)] * 9
    with pytest.raises(SourceError, match=r"too many classes.*--classes"):
        combine_readings(many, "staple")
    empty = np.zeros((2, 2, 2), np.uint8)
    assert not combine_readings([empty, empty], "staple")[0].any()
