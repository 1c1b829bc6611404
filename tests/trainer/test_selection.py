"""The selection gives the surest boxes and leaves out what overlaps them, as other implementations do."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from halofeed.trainer.detection.anchors import Level, decode, retinanet_anchors
from halofeed.trainer.detection.selection import candidates, select, suppress
from halofeed.trainer.mesh import constrain, make_mesh
from tests.support.training import random_boxes, slow_overlap

MOST = 12


def slow_suppress(boxes, scores, classes, iou_threshold, most):
    kept = []
    for index in sorted(range(len(boxes)), key=lambda index: (-scores[index], index)):
        rivals = [other for other in kept if classes[other] == classes[index]]
        clear = all(slow_overlap(boxes[index], boxes[other]) <= iou_threshold for other in rivals)
        if clear and scores[index] >= 0 and len(kept) < most:
            kept.append(index)
    return kept


@jax.jit
def jitted_suppress(boxes, scores, classes):
    return suppress(boxes, scores, classes, iou_threshold=0.3, max_detections=MOST)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_suppression_equals_a_loop(seed, classes):
    generator = np.random.default_rng(seed)
    boxes = np.stack([random_boxes(generator, 30) for _ in range(2)])
    scores = (generator.integers(-2, 12, (2, 30)) / 12).astype(np.float32)
    labels = generator.integers(0, classes, (2, 30))
    kept, found = map(np.asarray, jitted_suppress(boxes, scores, labels))
    for row in range(2):
        expected = slow_suppress(boxes[row], scores[row], labels[row], 0.3, MOST)
        assert kept[row, : len(expected)].tolist() == expected
        assert found[row].tolist() == [True] * len(expected) + [False] * (MOST - len(expected))


jitted_decode = jax.jit(decode)
jitted_candidates = jax.jit(candidates, static_argnums=1)


def random_levels(seed, batch=2, classes=3, sides=(16, 8, 5), size=128):
    generator = np.random.default_rng(seed)
    levels = []
    for side in sides:
        shape = (batch, side, side, 6)
        logits = generator.normal(-2, 2, (*shape, classes)).astype(np.float32)
        codes = generator.normal(0, 2, (*shape, 4)).astype(np.float32)
        anchors = retinanet_anchors((size, size), (side, side), stride=size // side)
        levels.append(Level(class_logits=logits, box_codes=codes, anchors=anchors))
    return levels


@pytest.mark.parametrize("count", [7, 10**6])
def test_candidates_are_the_best_pairs_of_anchor_and_class(count):
    for level in random_levels(3, sides=(16, 5)):
        boxes, scores, classes = map(np.asarray, jitted_candidates(level, count))
        decoded = np.asarray(jitted_decode(level.box_codes, level.anchors))
        for row, logits in enumerate(level.class_logits):
            pairs = logits.reshape(-1, 3)
            order = np.argsort(-pairs, axis=None)[:count]
            np.testing.assert_allclose(scores[row], 1 / (1 + np.exp(-pairs.ravel()[order])), rtol=1e-5)
            np.testing.assert_array_equal(classes[row], order % 3)
            best = decoded[row].reshape(-1, 4)[order // 3]
            np.testing.assert_allclose(boxes[row], best, rtol=1e-5, atol=1e-5)


def slow_select(levels, row, score_threshold, iou_threshold, most):
    boxes, scores, classes = [], [], []
    for level in levels:
        decoded = np.asarray(jitted_decode(level.box_codes[row], level.anchors))
        for index in np.ndindex(*level.class_logits[row].shape):
            box = np.clip(decoded[index[:3]], 0, 1)
            score = 1 / (1 + np.exp(-level.class_logits[row][index]))
            if score > score_threshold and box[0] < box[2] and box[1] < box[3]:
                boxes.append(box)
                scores.append(score)
                classes.append(index[3])
    kept = slow_suppress(boxes, scores, classes, iou_threshold, most)
    return [(boxes[index], scores[index], classes[index] + 1) for index in kept]


def test_the_selection_equals_a_loop_over_all_anchors():
    levels = random_levels(5, sides=(5, 3))
    limits = {"score_threshold": 0.6, "iou_threshold": 0.4, "max_detections": 150}
    found = jax.jit(lambda levels: select(levels, **limits))(levels)
    for row in range(2):
        expected = slow_select(levels, row, 0.6, 0.4, 150)
        assert 10 < len(expected) < 150 and int(found["num_detections"][row]) == len(expected)
        boxes, scores, classes = zip(*expected, strict=True)
        np.testing.assert_allclose(found["boxes"][row, : len(expected)], np.stack(boxes), atol=1e-5)
        np.testing.assert_allclose(found["scores"][row, : len(expected)], scores, rtol=1e-5)
        np.testing.assert_array_equal(found["classes"][row, : len(expected)], classes)
        for values in (found["boxes"], found["scores"], found["classes"]):
            assert not np.asarray(values)[row, len(expected) :].any()
    assert found["classes"].dtype == found["num_detections"].dtype == jnp.int32


@pytest.mark.parametrize(("cores", "dims"), [(8, (1, 8, 1, 1, 1)), (4, (1, 2, 2, 1, 1))])
def test_of_a_split_level_only_candidates_leave_their_core(cores, dims):
    levels, mesh, count, blocks = random_levels(7, sides=(32,)), make_mesh(cores), 10, 16 * 2

    def detections(levels, split):
        if split:
            held = [
                (constrain(one.class_logits, mesh, dims), constrain(one.box_codes, mesh, dims))
                for one in levels
            ]
            levels = [
                Level(class_logits=logits, box_codes=codes, anchors=level.anchors)
                for (logits, codes), level in zip(held, levels, strict=True)
            ]
        return select(levels, max_candidates_per_level=count, max_detections=20)

    expected = jax.jit(lambda levels: detections(levels, split=False))(levels)
    whole = NamedSharding(mesh, PartitionSpec())
    given_levels = jax.device_put(levels, whole)
    jitted = jax.jit(lambda levels: detections(levels, split=True), out_shardings=whole)
    compiled = jitted.lower(given_levels).compile()
    for name, values in compiled(given_levels).items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-6, atol=1e-6, err_msg=name)
    sent = re.findall(r"= \w+\[([\d,]+)\]\S* (?:all-|collective-|reduce-)[\w-]+\(", compiled.as_text())
    largest = max(np.prod([int(side) for side in shape.split(",")]) for shape in sent)
    assert largest <= 2 * blocks * count * 4 < levels[0].class_logits.size / 4
