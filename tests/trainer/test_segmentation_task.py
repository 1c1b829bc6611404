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


def slow_weighted(logits, label, weights, counts, ignored):
    """Voxel by voxel, over the complete batch."""
    loss = total = 0.0
    for place in np.ndindex(label.shape):
        if counts[place[0]] and label[place] != ignored:
            scores = logits[place].astype(np.float64)
            entropy = np.log(np.exp(scores).sum()) - scores[label[place]]
            loss, total = loss + weights[label[place]] * entropy, total + weights[label[place]]
    return loss / total


@pytest.mark.parametrize("ignored", [None, 255])
def test_class_weights_are_those_of_a_weighted_mean_over_the_batch(ignored):
    logits, batch = drawn((4, 6), batch=4)
    if ignored is not None:
        batch["label"][:, 1:3] = ignored
    counts = np.array([True, False, True, True])
    weights = {"background": 0.25, "ring": 3.0}
    options = {"labels": LABELS, "losses": {"cross_entropy": 1.0}, "ignore_label": ignored}
    found, _ = loss_of(
        Segmentation(**options, class_weights=weights), {"logits": logits}, {**batch, "valid": counts}
    )
    expected = slow_weighted(logits, batch["label"], (0.25, 1.0, 3.0), counts, ignored)
    assert found == pytest.approx(expected, rel=1e-5)
    # The scale of the weights cancels, and equal ones change nothing.
    equal = Segmentation(**options, class_weights=(7.0, 7.0, 7.0))
    plain = Segmentation(**options)
    values = [loss_of(task, {"logits": logits}, batch)[0] for task in (equal, plain)]
    assert values[0] == pytest.approx(values[1], rel=1e-5)


def test_balanced_weights_give_each_class_the_same_total_and_need_counts():
    facts = facts_of("segmentation", dict(enumerate(LABELS)), (8, 8, 1), label_voxels=(900, 90, 10))
    task = build_task(facts, {"class_weights": "balanced"})
    totals = [weight * count for weight, count in zip(task.class_weights, (900, 90, 10), strict=True)]
    assert totals == pytest.approx([1000 / 3] * 3)
    with pytest.raises(UsageError, match=r"no counts of voxels .* --set 'task.class_weights={\"ring\"=2.0}'"):
        Segmentation(labels=LABELS, class_weights="balanced")


def test_gradients_of_weighted_losses_are_finite_differences():
    logits, batch = drawn((3, 4), batch=2)
    task = Segmentation(labels=LABELS, class_weights=(0.5, 1.0, 4.0), overlap_over_batch=True)
    with jax.enable_x64(True):
        given = logits.astype(np.float64)
        loss = jax.jit(lambda logits: task.loss({"logits": logits}, batch)[0])
        gradient = np.asarray(jax.grad(loss)(given))
        for place in [(0, 0, 0, 0), (0, 2, 3, 1), (1, 1, 2, 2), (1, 2, 0, 0)]:
            step = np.zeros_like(given)
            step[place] = 1e-6
            slope = (float(loss(given + step)) - float(loss(given - step))) / 2e-6
            assert gradient[place] == pytest.approx(slope, rel=1e-6, abs=1e-9)


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
        ({"class_weights": "even"}, 'expected "balanced", or a weight for each of background, disc, ring'),
        ({"class_weights": {"rng": 2}}, "class_weights.rng: no such class; did you mean ring"),
        ({"class_weights": (1.0, 2.0)}, "class_weights: expected 3, for background, disc, ring, got 2"),
        ({"class_weights": {"ring": -1}}, "class_weights.ring: expected a number of 0 or more, got -1"),
        ({"class_weights": (0, 0, 0)}, "expected a weight above 0 for a class"),
        ({"class_weights": {"ring": 2}, "losses": {"dice": 1.0}}, "class_weights: weigh the cross-entropy"),
        ({"losses": {"dice": 0.0}}, "losses.dice: expected a weight above 0, got 0.0"),
    ):
        with pytest.raises(UsageError, match=message):
            Segmentation(**{"labels": LABELS, **options})
