"""The segmentation task counts the rows and sizes that it says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from halofeed.errors import UsageError
from halofeed.trainer.losses import class_overlap, cross_entropy, dice
from halofeed.trainer.tasks import build_task
from halofeed.trainer.tasks.segmentation import Segmentation
from tests.support.training import facts_of

LABELS = ("background", "disc", "ring")


def drawn(shape=(8, 8), batch=3, seed=0):
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(batch, *shape, len(LABELS))).astype(np.float32)
    label = generator.integers(0, len(LABELS), (batch, *shape)).astype(np.uint8)
    return logits, {"image": np.zeros((batch, *shape, 1), np.float32), "label": label}


def loss_of(task, outputs, batch):
    loss, parts = jax.jit(task.loss)(outputs, batch)
    return float(loss), {name: float(part) for name, part in parts.items()}


def test_the_loss_is_the_weighted_sum_of_its_parts():
    logits, batch = drawn()
    task = Segmentation(labels=LABELS, losses={"cross_entropy": 2.0, "dice": 0.5}, background=True)
    loss, parts = loss_of(task, {"logits": logits}, batch)
    label = batch["label"]
    shared = class_overlap(logits, label, background=True)
    expected = {"cross_entropy": cross_entropy(logits, label), "dice": dice(shared)}
    assert parts == pytest.approx({name: float(jnp.mean(part)) for name, part in expected.items()}, rel=1e-5)
    assert loss == pytest.approx(2 * parts["cross_entropy"] + 0.5 * parts["dice"], rel=1e-5)


def test_coarse_logits_count_by_halves_against_every_second_voxel():
    logits, batch = drawn()
    coarse, _ = drawn((4, 4), seed=1)
    task = Segmentation(labels=LABELS)
    alone, _ = loss_of(task, {"logits": logits}, batch)
    small = {"image": batch["image"], "label": batch["label"][:, ::2, ::2]}
    below, _ = loss_of(task, {"logits": coarse}, small)
    both, _ = loss_of(task, {"logits": logits, "coarse": [coarse]}, batch)
    assert both == pytest.approx(2 / 3 * alone + 1 / 3 * below, rel=1e-5)


def test_overlap_over_the_batch_is_that_of_its_rows_laid_side_by_side():
    logits, batch = drawn(batch=4)
    batch["label"][0] = 0
    counts = {"valid": np.array([True, True, False, True])}
    kept = [0, 1, 3]
    task = Segmentation(labels=LABELS, losses={"dice": 1.0}, overlap_over_batch=True)
    found, _ = loss_of(task, {"logits": logits}, {**batch, **counts})
    wide_logits, wide_label = (np.concatenate([*each[kept]])[None] for each in (logits, batch["label"]))
    alone = Segmentation(labels=LABELS, losses={"dice": 1.0})
    wide = {"image": wide_logits[..., :1], "label": wide_label}
    assert found == pytest.approx(loss_of(alone, {"logits": wide_logits}, wide)[0], rel=1e-5)
    each, _ = loss_of(alone, {"logits": logits}, {**batch, **counts})
    assert each > found  # a row that lacks a class loses all of it, however little is predicted


def test_rows_of_padding_and_rows_without_a_label_change_neither_loss_nor_gradient():
    logits, batch = drawn(batch=4)
    counts = {"valid": np.array([True, False, True, True]), "labelled": np.array([True, True, False, True])}
    task = Segmentation(labels=LABELS)

    def loss(given, batch):
        return task.loss({"logits": given}, batch)[0]

    found, gradient = jax.jit(jax.value_and_grad(loss))(logits, {**batch, **counts})
    expected = loss(logits[[0, 3]], {key: value[[0, 3]] for key, value in batch.items()})
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    assert not np.asarray(gradient)[[1, 2]].any() and np.asarray(gradient)[[0, 3]].any()
    nothing = {**batch, "labelled": np.zeros(4, bool)}
    assert float(loss(logits, nothing)) == 0


@pytest.mark.parametrize("over_batch", [False, True])
@pytest.mark.parametrize("name", ["cross_entropy", "dice", "generalized_dice", "adaptive_dice", "tversky"])
@pytest.mark.parametrize("ignored", [255, 1])
def test_ignored_voxels_have_no_gradient_and_the_others_the_loss_of_their_own(name, over_batch, ignored):
    logits, batch = drawn((4, 6))
    label = batch["label"]
    label[label == 1] = 2
    label[:, :, 4:] = ignored
    label[2] = ignored  # of this row nothing is known
    options = {"labels": LABELS, "losses": {name: 1.0}, "background": True, "overlap_over_batch": over_batch}
    task = Segmentation(**options, ignore_label=ignored)

    def loss(given):
        return task.loss({"logits": given}, batch)[0]

    found, gradient = jax.jit(jax.value_and_grad(loss))(logits)
    assert not np.asarray(gradient)[label == ignored].any() and np.asarray(gradient)[label != ignored].any()
    known = {"image": batch["image"][:2], "label": label[:2, :, :4]}
    expected, _ = loss_of(Segmentation(**options), {"logits": logits[:2, :, :4]}, known)
    assert float(found) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("classes", "dtype"), [(3, np.uint8), (300, np.uint16)])
def test_predictions_are_the_most_probable_class_and_on_request_its_probabilities(classes, dtype):
    logits = np.random.default_rng(0).normal(size=(2, 3, 4, 5, classes)).astype(np.float32)
    labels = tuple(map(str, range(classes)))
    small = Segmentation(labels=labels).predict({"logits": jnp.asarray(logits)}, {})
    assert list(small) == ["label"] and small["label"].dtype == dtype
    np.testing.assert_array_equal(small["label"], logits.argmax(-1))
    more = Segmentation(labels=labels, with_probabilities=True).predict({"logits": jnp.asarray(logits)}, {})
    assert more["probabilities"].dtype == np.float16
    np.testing.assert_allclose(np.asarray(more["probabilities"], np.float32).sum(-1), 1, atol=2e-2)


def test_volumes_and_pictures_ask_for_what_maps_them_back():
    def task_of(shape, **options):
        return build_task(facts_of("segmentation", {0: "background", 1: "a"}, shape), options)

    assert task_of((8, 8, 1)).include == ("transform", "size")
    assert "spacing_mm" in task_of((4, 8, 8, 1)).include
    assert "hausdorff95_pixels" in task_of((8, 8, 1)).metrics().result()
    assert "hausdorff95_mm" in task_of((4, 8, 8, 1)).metrics().result()
    without = task_of((4, 8, 8, 1), hausdorff=False).metrics().result()
    assert list(without) == ["dice", "dice_per_class", "miou", "iou_per_class", "examples"]
    with pytest.raises(UsageError, match="task_options of segmentation"):
        task_of((8, 8, 1), smooth=1)


def test_a_task_that_cannot_be_is_refused():
    for options, message in (
        ({"labels": ("background",)}, "expected the background and a class or more"),
        ({"losses": {"focal": 1.0}}, "losses: expected weights of cross_entropy, dice, .*, got 'focal'"),
        ({"losses": {}}, "got 'none'"),
        ({"losses": {"dice": 0.0}}, "losses.dice: expected a weight above 0, got 0.0"),
    ):
        with pytest.raises(UsageError, match=message):
            Segmentation(**{"labels": LABELS, **options})
