"""Each anchor is matched with the right box, on every level and every core."""

import functools
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from halofeed.errors import UsageError
from halofeed.trainer.detection.anchors import retinanet_anchors
from halofeed.trainer.detection.matcher import Matcher, box_overlap, match_boxes, split_alike
from halofeed.trainer.mesh import constrain, make_mesh
from tests.support.training import random_boxes

BOTH_ROWS_FREE = [[1, 1, 1, 3, 1], [2, -1, 2, 0, 4], [3, 0, -1, 0, 0]]
ONE_ROW_LOW = [[1, 1, 1, 3, 1], [-1, 0, -2, -2, -1], [3, 0, -1, 2, 0]]


@functools.partial(jax.jit, static_argnums=0)
def jitted_table(matcher, levels, is_object):
    return matcher.match([lambda level=level: level for level in levels], is_object)


def match_table(matcher, rows, is_object=None):
    """Rows are boxes, columns are anchors, as the TF Object Detection API writes it; two levels of them."""
    table = jnp.array(rows, jnp.float32).T[None, None, :, None, :]
    is_object = jnp.ones((1, len(rows)), bool) if is_object is None else jnp.array([is_object])
    levels = [table[:, :, :2], table[:, :, 2:]]
    found = jitted_table(matcher, levels, is_object)
    return np.concatenate([level.ravel() for level in found]).tolist()


@pytest.mark.parametrize(
    ("rows", "is_object", "thresholds", "options", "expected"),
    [
        (BOTH_ROWS_FREE, None, (3, 3), {}, [2, -1, -1, 0, 1]),
        (BOTH_ROWS_FREE, None, (3, 2), {}, [2, -1, -2, 0, 1]),
        (BOTH_ROWS_FREE, None, (3, 2), {"negatives_lower_than_unmatched": False}, [2, -2, -1, 0, 1]),
        (ONE_ROW_LOW, None, (3, 2), {}, [2, -1, -1, 0, -1]),
        (ONE_ROW_LOW, None, (3, 2), {"force_match_for_each_row": True}, [2, 1, -1, 0, -1]),
        # Ours: of equal anchors the first is taken.
        ([[0, 0, 2, 0, 2]], None, (9, 9), {"force_match_for_each_row": True}, [-1, -1, 0, -1, -1]),
        # Without objects every anchor is background.
        (BOTH_ROWS_FREE, [False] * 3, (0.5, 0.4), {"negatives_lower_than_unmatched": False}, [-1] * 5),
        # Without thresholds every anchor has its best box.
        (ONE_ROW_LOW, None, (0.9, 0.9), {"ignore_thresholds": True}, [2, 0, 0, 0, 0]),
        # A match at the threshold is positive.
        ([[0.5, np.nextafter(np.float32(0.5), 0), 0.25, 0.2, 1]], None, (0.5, 0.25), {}, [0, -2, -2, -1, 0]),
    ],
)
def test_the_matches_of_the_tf_object_detection_api(rows, is_object, thresholds, options, expected):
    """The first five: numbers of tensorflow/models, object_detection/matchers/argmax_matcher_test.py."""
    high, low = thresholds
    matcher = Matcher(
        matched_threshold=high, unmatched_threshold=low, **{"force_match_for_each_row": False, **options}
    )
    assert match_table(matcher, rows, is_object) == expected


def test_thresholds_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match=r"expected at most matched_threshold, got 0\.6 and 0\.5"):
        Matcher(unmatched_threshold=0.6)
    with pytest.raises(UsageError, match="expected less than matched_threshold"):
        Matcher(negatives_lower_than_unmatched=False)


@pytest.fixture(scope="module")
def pyramid():
    levels = {8: (8, 6), 16: (4, 3), 32: (2, 1)}
    return [retinanet_anchors((64, 48), grid, stride=stride, scale=2.0) for stride, grid in levels.items()]


@jax.jit
def jitted_match(anchors, boxes, is_box, is_crowd):
    with_between = Matcher(unmatched_threshold=0.4)
    return match_boxes(with_between, [level[None] for level in anchors], boxes, is_box, is_crowd)


def test_boxes_without_area_and_padding_never_match(pyramid):
    boxes = [[0.2, 0.2, 0.2, 0.6], [0.1, 0.1, 0.6, 0.6], [0.5, 0.5, 0.4, 0.4], [0.0, 0.0, 1.0, 1.0]]
    is_box = np.array([[True, True, True, False]])
    found = jitted_match(pyramid, np.float32([boxes]), is_box, np.zeros((1, 4), bool))
    assert set(np.concatenate([np.ravel(level) for level in found])) <= {1, -1, -2}


def test_anchors_in_a_crowd_are_ignored_and_none_stands_for_it(pyramid):
    boxes = np.array([[[0.0, 0.0, 0.5, 1.0], [0.05, 0.1, 0.3, 0.4]]], np.float32)
    is_box, is_crowd = np.ones((1, 2), bool), np.array([[True, False]])
    found = jitted_match(pyramid, boxes, is_box, is_crowd)
    alone = jitted_match(pyramid, boxes, is_box & ~is_crowd, np.zeros((1, 2), bool))
    for anchors, with_crowd, without in zip(pyramid, found, alone, strict=True):
        inside = np.zeros(anchors.shape[:3], bool)
        for index in np.ndindex(*inside.shape):
            top, left, bottom, right = anchors[index]
            common = max(0, min(bottom, 0.5) - max(top, 0)) * max(0, min(right, 1.0) - max(left, 0))
            inside[index] = common >= 0.5 * (bottom - top) * (right - left)
        assert 0 not in np.asarray(with_crowd)
        np.testing.assert_array_equal(with_crowd[0], np.where((without[0] < 0) & inside, -2, without[0]))
    assert any((np.asarray(level) == -2).any() for level in found)


@pytest.mark.parametrize(("cores", "dims"), [(8, (1, 8, 1, 1, 1)), (4, (1, 2, 2, 1, 1))])
def test_split_levels_stay_split_and_match_alike(cores, dims, monkeypatch):
    """No core holds overlaps of more than its own rows and columns, and only the best of each box is sent."""
    if cores == 4:  # without shard_alike, as in jax 0.11
        monkeypatch.setitem(sys.modules, "jax.experimental.shard_alike", None)
    mesh = make_mesh(cores)
    anchors = [retinanet_anchors((128, 128), (side, side), stride=128 // side) for side in (32, 16)]
    boxes, is_box = random_boxes(np.random.default_rng(9), 4, 7), np.ones((4, 7), bool)
    boxes[:, 0], boxes[:, 2] = (0.25, 0.25, 0.75, 0.75), boxes[:, 1]
    nearest = [box_overlap(jnp.asarray(level)[None], boxes[:1, :1]).ravel() for level in anchors]
    assert int((np.concatenate(nearest) == np.max(np.concatenate(nearest))).sum()) > 1, "anchors tie"
    is_crowd = np.zeros((4, 7), bool)
    is_crowd[:, 6] = True
    expected = jitted_match(anchors, boxes, is_box, is_crowd)

    def split(codes, *truth):
        held = [constrain(level, mesh, dims) for level in codes]
        alike = [split_alike(level, code) for level, code in zip(anchors, held, strict=True)]
        return match_boxes(Matcher(unmatched_threshold=0.4), alike, *truth), held

    codes = [np.zeros((4, *level.shape), np.float32) for level in anchors]
    by_replica = NamedSharding(mesh, PartitionSpec("replica"))
    arguments = jax.device_put((codes, boxes, is_box, is_crowd), by_replica)
    compiled = jax.jit(split).lower(*arguments).compile()
    for ours, theirs in zip(compiled(*arguments)[0], expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    program = compiled.as_text()
    held = {tuple(map(int, shape)) for shape in re.findall(r"\[\d+,(\d+),(\d+),6,7\]", program)}
    assert max(held) == (32 // dims[1], 32 // dims[2])
    sent = re.findall(r"= \w+\[([\d,]+)\]\S* (?:all-|collective-|reduce-)[\w-]+\(", program)
    assert sent and max(np.prod([int(side) for side in shape.split(",")]) for shape in sent) <= 4 * 7 * cores
