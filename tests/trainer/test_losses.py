"""The losses follow their papers: of overlaps voxel by voxel, of boxes with the published numbers; all stay finite."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.trainer.losses import (
    OVERLAP_LOSSES,
    SMOOTHING,
    class_overlap,
    cross_entropy,
    huber,
    sigmoid_focal,
    smooth_l1,
    tversky,
)

SHAPES = ((4, 6), (3, 4, 5))


def drawn(shape, classes=3, batch=2, seed=0):
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(batch, *shape, classes))
    return logits, generator.integers(0, classes, (batch, *shape)).astype(np.uint8)


def probabilities_of(logits):
    exponents = np.exp(logits - logits.max(-1, keepdims=True))
    return exponents / exponents.sum(-1, keepdims=True)


@functools.partial(jax.jit, static_argnames="background")
def all_losses(logits, label, background=False):
    shared = class_overlap(logits, label, background=background)
    found = {name: loss(shared) for name, loss in OVERLAP_LOSSES.items()}
    halves = tversky(shared, false_positives=0.5, false_negatives=0.5)
    return {**found, "cross_entropy": cross_entropy(logits, label), "tversky of halves": halves}


def slow_losses(logits, label, *, background):
    """Each loss of each example, by loops over its voxels."""
    found = {name: [] for name in ("cross_entropy", *OVERLAP_LOSSES)}
    for probabilities, truth in zip(probabilities_of(logits), label, strict=True):
        classes = range(0 if background else 1, logits.shape[-1])
        both, predicted, true = (dict.fromkeys(classes, 0.0) for _ in range(3))
        entropy = 0.0
        for place in np.ndindex(truth.shape):
            entropy -= np.log(probabilities[(*place, truth[place])])
            for index in classes:
                here = float(truth[place] == index)
                both[index] += probabilities[(*place, index)] * here
                predicted[index] += probabilities[(*place, index)]
                true[index] += here
        scores = [2 * both[index] / (predicted[index] + true[index]) for index in classes]
        weight = {index: 1 / true[index] ** 2 for index in classes if true[index]}
        weight = {index: weight.get(index, max(weight.values(), default=1.0)) for index in classes}
        found["cross_entropy"].append(entropy / truth.size)
        found["dice"].append(1 - np.mean(scores))
        shared = sum(weight[index] * both[index] for index in classes)
        all_of_both = sum(weight[index] * (predicted[index] + true[index]) for index in classes)
        found["generalized_dice"].append(1 - 2 * shared / all_of_both)
        adapted = sum(np.exp(-score) * score for score in scores) / (len(scores) * np.exp(-1))
        found["adaptive_dice"].append(1 - adapted)
        parts = []
        for index in classes:
            extra, missed = predicted[index] - both[index], true[index] - both[index]
            parts.append(both[index] / (both[index] + 0.3 * extra + 0.7 * missed))
        found["tversky"].append(1 - np.mean(parts))
    return found


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("absent", [False, True])
def test_every_loss_is_its_papers_sum_over_voxels(shape, background, absent):
    logits, label = drawn(shape)
    if absent:
        label[1][label[1] == 2] = 0
    expected = slow_losses(logits, label, background=background)
    with jax.enable_x64(True):
        found = jax.device_get(all_losses(logits, label, background=background))
    for name, losses in expected.items():
        # The smoothing is a hundred-thousandth of a voxel.
        assert found[name] == pytest.approx(losses, abs=1e-5 if name != "cross_entropy" else 1e-12), name


def test_a_perfect_prediction_loses_nothing_and_a_wrong_one_everything():
    _, label = drawn((4, 4, 4))
    sure = 50.0 * (label[..., None] == np.arange(3))
    opposite = np.roll(sure, 1, axis=-1)
    right, wrong = (all_losses(logits.astype(np.float32), label) for logits in (sure, opposite))
    for name in OVERLAP_LOSSES:
        assert np.asarray(right[name]) == pytest.approx(np.zeros(2), abs=1e-4), name
        assert np.asarray(wrong[name]) == pytest.approx(np.ones(2), abs=1e-4), name


def test_an_example_without_any_class_has_a_finite_loss_and_gradient():
    logits, label = drawn((4, 4))
    label[:] = 0
    gradients = jax.jit(jax.jacobian(lambda given: jax.tree.map(jnp.sum, all_losses(given, label))))
    for gradient in gradients(logits.astype(np.float32)).values():
        assert np.isfinite(gradient).all()
        # More background is better.
        assert (np.asarray(gradient)[..., 0] <= 0).all()


def test_tversky_of_equal_weights_is_dice_and_generalized_dice_does_not_change_with_the_size_of_a_volume():
    logits, label = drawn((4, 6))
    found = all_losses(logits, label)
    assert np.asarray(found["tversky of halves"]) == pytest.approx(np.asarray(found["dice"]), rel=1e-6)
    more = all_losses(np.tile(logits, (1, 8, 8, 1)), np.tile(label, (1, 8, 8)))["generalized_dice"]
    assert np.asarray(more) == pytest.approx(np.asarray(found["generalized_dice"]), abs=SMOOTHING)


def logit(probability):
    return math.log(probability / (1 - probability))


def test_easy_examples_cost_orders_less_than_in_cross_entropy():
    """Numbers of tensorflow/models, object_detection/core/losses_test.py: 0.97, 0.91 and 0.73 right, both ways."""
    logits = jnp.array([logit(value) for value in (0.97, 0.91, 0.73, 0.27, 0.09, 0.03)])
    targets = jnp.array([1, 1, 1, 0, 0, 0])
    ratio = sigmoid_focal(logits, targets, alpha=None, gamma=0.0) / sigmoid_focal(logits, targets, alpha=None)
    np.testing.assert_array_equal(10 ** np.floor(np.log10(ratio)), [1000, 100, 10, 10, 100, 1000])


@pytest.mark.parametrize("size", [1e-30, 80.0, 1e4, 1e30])
def test_focal_loss_and_its_gradient_are_finite_for_any_logit(size):
    logits, targets = jnp.array([size, -size, size, -size]), jnp.array([1, 1, 0, 0])
    value, gradient = jax.value_and_grad(lambda given: sigmoid_focal(given, targets).sum())(logits)
    assert np.isfinite(value) and np.isfinite(gradient).all()


@settings(max_examples=50, deadline=None)
@given(st.floats(-100, 100, width=32), st.sampled_from([0.1, 0.5, 1.0, 3.0]))
def test_huber_and_smooth_l1_are_their_definitions(difference, delta):
    size = abs(difference)
    expected = size**2 / 2 if size <= delta else delta * (size - delta / 2)
    found = float(huber(jnp.float32(difference), delta)), float(smooth_l1(jnp.float32(difference), delta))
    assert found == pytest.approx((expected, expected / delta), rel=1e-5, abs=1e-30)
