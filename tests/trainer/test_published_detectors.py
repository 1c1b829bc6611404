"""Recipes that name a published configuration have its maps, anchors, targets, losses and rates.

The oracle is tests/support/published_detectors.py, of other code in another framework, with the same weights.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from halofeed.trainer.config import load_config
from halofeed.trainer.detection.anchors import encode
from halofeed.trainer.detection.matcher import IGNORED, match_boxes, take
from halofeed.trainer.optimizers import build_schedule
from tests.support.parity import Case, first_state
from tests.support.published_detectors import PUBLISHED, Weights
from tests.support.training import random_boxes

ROWS, CLASSES = 3, 4
MIDDLE, CORNER = [0.25, 0.25, 0.75, 0.75], [0.0, 0.0, 0.125, 0.125]
EDGES = {
    "none": [],
    "tiny": [[0.5, 0.5, 0.501, 0.5004], [0.3, 0.7, 0.3002, 0.7001], [0.0, 0.99, 1.0, 0.9903]],
    "ties": [MIDDLE, MIDDLE, CORNER, [0, 0, 1, 1], CORNER],
    "outside": [[1.5, 1.5, 1.9, 1.9], [-0.9, -0.9, -0.6, -0.5], [0.2, 3, 0.9, 3.1]],
    "tiny and outside": [[1.5, 1.5, 1.5001, 1.5001], [0.5, 0.5, 0.501, 0.5004], MIDDLE],
}
"""Boxes of one image each; those of a tie have equal overlaps with one anchor, or are one box twice."""


@partial(jax.jit, static_argnums=0)
def targets_of(task, anchors, boxes, labels, num_boxes):
    """The trainer's class, codes and weights of each anchor, from the parts that its loss is made of."""
    is_box = jnp.arange(boxes.shape[1]) < num_boxes[:, None]
    batched = [jnp.broadcast_to(jnp.asarray(one, float), (len(boxes), *one.shape)) for one in anchors]
    matches = match_boxes(task, batched, boxes, is_box, jnp.zeros_like(is_box))
    table = jnp.where(is_box[..., None], jnp.concatenate([boxes, labels[..., None]], -1), 0)
    levels = []
    for level, matched in zip(batched, matches, strict=True):
        values, weight = take(table, matched), matched >= 0
        codes = jnp.where(weight[..., None], encode(values[..., :4], level, task.box_code_scales), 0)
        levels.append([values[..., 4], codes, weight, matched != IGNORED])
    return [
        jnp.concatenate([jnp.reshape(part, (len(boxes), -1, *part.shape[4:])) for part in parts], 1)
        for parts in zip(*levels, strict=True)
    ]


@pytest.mark.parametrize(("name", "variant"), PUBLISHED)
def test_a_recipe_has_the_maps_anchors_targets_and_losses_of_its_source(name, variant):
    config, published = load_config(name), PUBLISHED[name, variant]
    shape, small = (96, 96, 3), {"width": 4}
    if config.model == "retinanet":
        shape, small = (128, 256, 3), {"width": 4, "features": 8, "tower_depth": 2, "variant": variant}
        small |= {"blocks": [1, 2, 2, 1]} if config.model_options["backbone"] == "resnet50" else {}
    given = {"task_options": config.task_options, "layer_options": {"norm_epsilon": config.norm_epsilon}}
    given["model_options"] = {**config.model_options, **small}
    case = Case(model=config.model, image_shape=shape, classes=CLASSES, **given)
    generator = np.random.default_rng(5)
    boxes = random_boxes(generator, ROWS, 5).astype(np.float64)
    labels = generator.integers(1, CLASSES + 1, (ROWS, 5)).astype(np.int32)
    image = generator.integers(0, 256, (ROWS, *shape)).astype(np.uint8)
    batch = {"image": image, "boxes": boxes, "classes": labels, "num_boxes": np.array([5, 0, 4], np.int32)}
    batch["is_crowd"] = np.zeros((ROWS, 5), bool)

    with jax.enable_x64(True):
        setup, state = case.problem("float64"), first_state(case.to_json(), "float64")

        @jax.jit
        def apply(parameters, statistics, batch):
            levels, _ = setup.apply(parameters, statistics, batch, training=True)
            return levels, *setup.task.loss(levels, batch)

        ours, loss, parts = apply(state.parameters, state.statistics, batch)
    flat = jax.tree_util.tree_leaves_with_path(state.parameters)
    arrays = {".".join(str(key.key) for key in path[:-1]): np.asarray(leaf) for path, leaf in flat}
    weights = Weights(arrays=arrays, epsilon=1e-4 if published.tpu else 1e-3, classes=CLASSES)
    mean, std = (np.array(values) for values in (setup.normalization.mean, setup.normalization.std))
    theirs = published.network(weights, (image - mean) / std)
    for level, (logits, codes, anchors) in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(level.class_logits, logits, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(level.box_codes, codes, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(level.anchors, anchors, atol=2e-7)
    # The trainer's anchors are float32.
    rounded = [
        (*level[:2], np.asarray(own.anchors, np.float64)) for level, own in zip(theirs, ours, strict=True)
    ]
    flat = np.concatenate([level[2].reshape(-1, 4) for level in rounded])
    num_edges = np.array([*map(len, EDGES.values())] * 2)
    edges = random_boxes(generator, len(num_edges), 5).astype(np.float64)
    for row, given in zip(edges, EDGES.values(), strict=False):
        row[: len(given)] = np.reshape(given, (-1, 4))
    classes = generator.integers(1, CLASSES + 1, edges.shape[:2])
    with jax.enable_x64(True):
        found = targets_of(setup.task, [level.anchors for level in ours], edges, classes, num_edges)
    for row, count in enumerate(num_edges):
        expected = published.targets(flat, edges[row, :count], classes[row, :count])
        for part, array in zip(found, (*expected, np.ones(len(flat))), strict=True):
            np.testing.assert_allclose(part[row], array, rtol=1e-9, atol=1e-9)
    class_loss, box_loss = published.losses(rounded, boxes, labels, batch["num_boxes"])
    assert float(parts["class_loss"]) == pytest.approx(class_loss, rel=1e-9)
    assert float(parts["box_loss"]) == pytest.approx(box_loss, rel=1e-9)
    assert float(loss) == pytest.approx(class_loss + published.box_weight * box_loss, rel=1e-9)


def test_the_recipe_of_tensorflow_tpu_has_its_rates():
    """Those of the other recipes are compared with their pipeline.config."""
    expected = {0: 0.0067, 250: 0.04335, 500: 0.08, 14999: 0.08, 15000: 0.008, 22499: 0.0008}
    rate = build_schedule(load_config("retinanet_resnet50_fpn_1280"))
    assert {step: float(rate(step)) for step in expected} == pytest.approx(expected, abs=1e-7)
