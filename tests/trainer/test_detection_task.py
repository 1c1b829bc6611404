"""The detection task counts the right anchors and gives finite gradients."""

import functools

import jax
import numpy as np
import pytest

from halofeed.errors import UsageError
from halofeed.trainer.detection.anchors import Level, retinanet_anchors
from halofeed.trainer.tasks import build_task
from halofeed.trainer.tasks.detection import Detection
from tests.support.training import facts_of

LABELS = ("cup", "spoon", "plate")
BATCH, BOXES, SIDE = 4, 6, 64
GRIDS = {stride: (SIDE // stride, SIDE // stride) for stride in (8, 32)}
ANCHORS = [retinanet_anchors((SIDE, SIDE), grid, stride=stride, scale=2.0) for stride, grid in GRIDS.items()]


def batch_of(seed=0):
    """Images with 3, 0, 6 and 2 boxes, some of them crowds; the third image is not valid."""
    generator = np.random.default_rng(seed)
    low, size = generator.random((2, BATCH, BOXES, 2))
    boxes = np.concatenate([low * 0.6, low * 0.6 + 0.1 + size * 0.3], -1)
    num_boxes = np.array([3, 0, 6, 2], np.int32)
    is_crowd = np.zeros((BATCH, BOXES), bool)
    is_crowd[0, 1] = True
    boxes[np.arange(BOXES) >= num_boxes[:, None]] = -1
    classes = generator.integers(1, len(LABELS) + 1, (BATCH, BOXES)).astype(np.int32)
    objects = {"boxes": boxes.astype(np.float32), "classes": classes, "num_boxes": num_boxes}
    objects |= {"is_crowd": is_crowd, "area": np.ones((BATCH, BOXES), np.float32)}
    valid = np.array([True, True, False, True])
    return {"image": np.zeros((BATCH, SIDE, SIDE, 3), np.uint8), "valid": valid, **objects}


def outputs_of(seed=0, dtype=np.float64):
    generator = np.random.default_rng(seed)
    outputs = []
    for anchors in ANCHORS:
        logits = generator.normal(-1, 2, (BATCH, *anchors.shape[:3], len(LABELS))).astype(dtype)
        codes = generator.normal(0, 2, (BATCH, *anchors.shape)).astype(dtype)
        outputs.append(Level(class_logits=logits, box_codes=codes, anchors=anchors))
    return outputs


@jax.jit
@functools.partial(jax.value_and_grad, has_aux=True)
def loss_and_gradients(outputs, batch):
    return Detection(labels=LABELS).loss(outputs, batch)


def test_without_any_match_the_loss_is_that_of_the_background():
    batch = {**batch_of(), "num_boxes": np.zeros(BATCH, np.int32)}
    (loss, parts), _ = loss_and_gradients(outputs_of(dtype=np.float32), batch)
    assert float(parts["box_loss"]) == 0 and float(loss) > 0


def test_what_is_not_valid_or_padding_changes_nothing():
    task, batch, outputs = Detection(labels=LABELS), batch_of(), outputs_of(dtype=np.float32)
    alone = jax.value_and_grad(lambda outputs, batch: task.loss(outputs, batch)[0], allow_int=True)
    loss, gradients = jax.jit(alone)(outputs, batch)
    changed = {name: values.copy() for name, values in batch.items()}
    padding = np.arange(BOXES) >= batch["num_boxes"][:, None]
    changed["boxes"][padding], changed["classes"][padding] = np.nan, 2
    changed["boxes"][2], changed["num_boxes"][2] = [0.1, 0.1, 0.9, 0.9], 1
    (again, _), _ = loss_and_gradients(outputs, changed)
    assert float(again) == float(loss)
    for level in gradients:
        assert np.isfinite(level.class_logits).all() and np.isfinite(level.box_codes).all()
        assert not np.asarray(level.class_logits)[2].any() and not np.asarray(level.box_codes)[2].any()


def test_a_crowd_is_neither_object_nor_background():
    batch, outputs = batch_of(), outputs_of(dtype=np.float32)
    batch["boxes"][:, 0], batch["num_boxes"][:] = [0, 0, 1, 1], 1
    batch["is_crowd"][:, 0] = True
    _, gradients = loss_and_gradients(outputs, batch)
    center = np.asarray(gradients[0].class_logits)[0, 4, 4]
    assert not center.any()
    batch["is_crowd"][:, 0] = False
    _, gradients = loss_and_gradients(outputs, batch)
    assert np.asarray(gradients[0].class_logits)[0, 4, 4].all()


def test_the_task_is_built_by_name_and_refuses_what_it_does_not_know():
    facts = facts_of("detection", {1: "a", 3: "c"}, (8, 8, 3))
    task = build_task(facts, {"alpha": 0.75, "box_loss": "huber"})
    assert isinstance(task, Detection) and task.labels == ("a", "class 2", "c") and task.alpha == 0.75
    former = build_task(facts, {"force_match": False})  # as in stored configs
    assert isinstance(former, Detection) and not former.force_match_for_each_row
    for options, message in (
        ({"box_loss": "l2"}, "box_loss: expected one of smooth_l1, huber, weighted_smooth_l1, got 'l2'"),
        ({"delta": 0.0}, "delta: expected a value above 0"),
        ({"normalizer": "boxes"}, "normalizer: expected one of matches, matches_plus_one, got 'boxes'"),
        ({"box_code_scales": [1, 1]}, "box_code_scales: expected four values above 0"),
        ({"unmatched_threshold": 0.7}, "unmatched_threshold: expected at most"),
        ({"beta": 1}, "task_options of detection"),
    ):
        with pytest.raises(UsageError, match=message):
            build_task(facts, options)
