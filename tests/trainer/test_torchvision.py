"""The parts of detectors give torchvision's numbers; tests/support/torchvision_oracle.py computes those."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from halofeed.trainer.detection.anchors import decode, encode, retinanet_anchors, ssd_anchors
from halofeed.trainer.detection.matcher import Matcher, match_boxes
from halofeed.trainer.detection.selection import suppress
from halofeed.trainer.losses import huber, sigmoid_focal, smooth_l1
from tests.support.torchvision_oracle import ask
from tests.support.training import random_boxes

pytestmark = pytest.mark.long


def test_retinanet_anchors_are_those_of_torchvision_but_for_its_rounded_sides():
    """torchvision rounds an anchor's corners to pixels and puts the first center at 0."""
    image, feature, stride = (100, 132), (13, 17), 8
    sizes = tuple(4.0 * stride * 2 ** (octave / 2) for octave in range(2))
    grid = {"feature": feature, "stride": stride}
    theirs = ask("retinanet_anchors", **grid, sizes=sizes, aspect_ratios=(1.0, 0.5, 2.0))
    ours = retinanet_anchors(image, feature, stride=stride) * [*image, *image]
    np.testing.assert_allclose(ours.reshape(-1, 4), theirs[:, [1, 0, 3, 2]], atol=0.501)


def test_ssd_anchors_are_those_of_torchvision():
    sizes = (8, 4, 3, 2, 2, 1)
    features, scales = [(size, size) for size in sizes], [*np.linspace(0.2, 0.95, 6).tolist(), 1.0]
    theirs = ask("ssd_anchors", image=(64, 64), features=features, scales=scales, aspect_ratios=[2, 3])
    ours = [
        ssd_anchors((64, 64), (size, size), level=level, levels=6, reduce_boxes_in_lowest_layer=False)
        for level, size in enumerate(sizes)
    ]
    of_ours = np.concatenate([anchors[:, :, [0, 5, 1, 2, 3, 4]].reshape(-1, 4) for anchors in ours])
    np.testing.assert_allclose(of_ours, theirs[:, [1, 0, 3, 2]] / 64, atol=1e-5)


def test_codes_and_boxes_are_those_of_torchvision():
    generator = np.random.default_rng(5)
    low, size = generator.random((2, 40, 2)), generator.random((2, 40, 2)) + 0.05
    boxes, anchors = np.concatenate([low, low + size], -1).astype(np.float32)
    swapped = [1, 0, 3, 2]
    codes = np.array(encode(jnp.array(boxes), jnp.array(anchors)))
    given = {"boxes": boxes[:, swapped], "anchors": anchors[:, swapped], "codes": codes[:, swapped]}
    theirs, decoded = ask("box_codes", **given, weights=(10.0, 10.0, 5.0, 5.0))
    np.testing.assert_allclose(codes[:, swapped], theirs, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(decode(jnp.array(codes), jnp.array(anchors))[:, swapped], decoded, atol=1e-5)


def test_matches_are_those_of_torchvision():
    grids = {8: (8, 6), 16: (4, 3), 32: (2, 1)}
    pyramid = [retinanet_anchors((64, 48), grid, stride=stride, scale=2.0) for stride, grid in grids.items()]
    boxes = random_boxes(np.random.default_rng(21), 1, 4)
    flat = np.concatenate([level.reshape(-1, 4) for level in pyramid])
    best, retinanets, ssds = ask("matches", boxes=boxes[0], anchors=flat, high=0.5, low=0.4)
    assert len(set(best)) == 4, "two boxes share an anchor, which torchvision gives to the last"
    levels, is_box = [jnp.array(level[None]) for level in pyramid], np.ones((1, 4), bool)
    retinanets_rule = Matcher(unmatched_threshold=0.4, force_match=False)
    for theirs, ours in ((retinanets, retinanets_rule), (ssds, Matcher())):
        found = jax.jit(functools.partial(match_boxes, ours))(levels, boxes, is_box, ~is_box)
        assert np.concatenate([np.ravel(level) for level in found]).tolist() == theirs


def test_focal_loss_and_box_losses_are_those_of_torchvision():
    generator = np.random.default_rng(4)
    logits, targets = generator.normal(0, 5, (40, 4)).astype(np.float32), generator.random((40, 4)) < 0.2
    for alpha, gamma in ((0.25, 2.0), (0.75, 1.0)):
        theirs = ask("focal_loss", logits=logits, targets=targets, alpha=alpha, gamma=gamma)
        ours = sigmoid_focal(jnp.array(logits), jnp.array(targets), alpha=alpha, gamma=gamma)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    for delta in (0.1, 1.0, 2.0):
        their_smooth, their_huber = ask("box_losses", difference=logits, delta=delta)
        np.testing.assert_allclose(smooth_l1(jnp.array(logits), delta), their_smooth, rtol=1e-5)
        np.testing.assert_allclose(huber(jnp.array(logits), delta), their_huber, rtol=1e-5)


def test_suppression_is_that_of_torchvision():
    generator = np.random.default_rng(9)
    boxes, scores = random_boxes(generator, 30), generator.random(30).astype(np.float32)
    classes = generator.integers(0, 3, 30)
    theirs = ask("suppression", boxes=boxes, scores=scores, classes=classes, threshold=0.3)
    most = 12
    kept, found = suppress(boxes[None], scores[None], classes[None], iou_threshold=0.3, max_detections=most)
    assert np.asarray(kept)[0][np.asarray(found)[0]].tolist() == theirs[:most]
