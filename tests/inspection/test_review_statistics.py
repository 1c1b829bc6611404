"""Robust limits and connected regions of a review, against slow and obvious ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from halofeed.inspection.review.regions import find_regions
from halofeed.inspection.review.robust import Limits, distance_between, unusual

LIMITS = Limits(least=0.5)


@pytest.mark.parametrize("draw", ["normal", "laplace", "lognormal", "uniform", "exponential"])
@pytest.mark.parametrize("count", [20, 100, 2000])
def test_tails_of_usual_distributions_are_hardly_ever_unusual(draw, count):
    random = np.random.default_rng(5)
    values = getattr(random, draw)(size=(50, count))
    if draw == "lognormal":
        values = np.log(values)
    found = sum(np.count_nonzero(np.abs(unusual(one, LIMITS)) > 1) for one in values)
    assert found <= max(2, 0.005 * values.size)


def test_few_values_are_never_unusual():
    values = np.r_[np.zeros(18), 1e9]
    assert not unusual(values, LIMITS).any()
    assert unusual(np.r_[values, 0], LIMITS)[18] > 1


@given(
    st.integers(20, 60),
    st.floats(-100, 100),
    st.floats(5, 50),
    st.sampled_from([-1, 1]),
)
def test_one_far_value_is_found_on_either_side(count, center, far, sign):
    values = center + np.random.default_rng(count).uniform(-0.4, 0.4, count)
    values[3] = center + sign * far
    scores = unusual(values, LIMITS)
    assert np.flatnonzero(np.abs(scores) > 1).tolist() == [3]
    assert np.sign(scores[3]) == sign


def test_a_group_of_the_values_is_not_unusual():
    values = np.r_[np.zeros(90), np.full(10, 50.0)]
    assert not (np.abs(unusual(values, LIMITS)) > 1).any()


def test_missing_values_change_nothing():
    values = np.r_[np.zeros(30), 9.0]
    mixed = np.r_[np.nan, values, np.nan, np.inf]
    np.testing.assert_array_equal(unusual(mixed, LIMITS)[1:-2], unusual(values, LIMITS))


@given(arrays(np.int64, st.integers(1, 15), elements=st.integers(0, 5)), st.integers(0, 2))
def test_distance_of_samples_is_the_largest_difference_of_their_shares(first, tolerance):
    second = (first * 3 + 1) % 6
    shares = [
        (np.mean(one <= value), np.mean(other <= value + tolerance))
        for one, other in ((first, second), (second, first))
        for value in range(-3, 9)
    ]
    expected = max(0.0, *(here - there for here, there in shares))
    assert distance_between(first, second, tolerance) == pytest.approx(expected)


def flooded(label):
    """Return the regions of a label as sorted (value, size, faces), by following neighbors one at a time."""
    left, found = {tuple(place) for place in np.argwhere(label >= 0).tolist()}, []
    sides = [(0, 0, 1), (0, 1, 0), (1, 0, 0)]
    diagonal = [(0, 1, 1), (0, 1, -1), (1, 0, 1), (1, 0, -1)]
    while left:
        region, waiting = set(), [left.pop()]
        while waiting:
            place = waiting.pop()
            region.add(place)
            for step in sides + diagonal * int(label[place] != 0):
                for sign in (-1, 1):
                    other = tuple(at + sign * by for at, by in zip(place, step, strict=True))
                    if other in left and label[other] == label[place]:
                        left.remove(other)
                        waiting.append(other)
        touched = [label.shape[axis] > 1 or axis > 0 for axis in range(3) for _ in range(2)]
        faces = tuple(
            touched[2 * axis + end] and any(one[axis] == end * (label.shape[axis] - 1) for one in region)
            for axis in range(3)
            for end in range(2)
        )
        found.append((int(label[next(iter(region))]), len(region), faces))
    return sorted(found)


@given(
    arrays(
        np.uint8,
        st.tuples(st.integers(1, 4), st.integers(1, 7), st.integers(1, 7)),
        elements=st.integers(0, 2),
    )
)
def test_regions_are_those_that_following_neighbors_finds(label):
    found = find_regions(label)
    rows = zip(found.values.tolist(), found.sizes.tolist(), map(tuple, found.faces.tolist()), strict=True)
    assert sorted(rows) == flooded(label)
    assert (label[tuple(found.places.T)] == found.values).all()


def test_background_inside_of_one_class_is_a_hole_of_it():
    label = np.zeros((5, 9, 9), np.uint8)
    label[1:4, 1:8, 1:5] = 1
    label[1:4, 1:8, 5:8] = 2
    label[2, 3, 3] = 0
    label[2, 3, 4:6] = 0
    label[2, 5, 5] = 0  # between the classes 1 and 2
    label[2, 6, 6] = 0
    found = find_regions(label)
    holes = {(int(one), size) for one, size in zip(found.around, found.sizes, strict=True) if one >= 0}
    assert holes == {(2, 1)}
    label[2, 3, 4:6] = 1
    label[2, 5, 5] = 2
    found = find_regions(label)
    assert sorted(found.around[found.around >= 0].tolist()) == [1, 2]


def test_a_tunnel_through_a_volume_is_no_hole():
    label = np.ones((4, 5, 5), np.uint8)
    label[:, 2, 2] = 0
    assert (find_regions(label).around == -1).all()
    label[0, 2, 2] = label[3, 2, 2] = 1
    assert (find_regions(label).around == 1).any()
