"""Focal loss, smooth L1 and Huber give the published numbers and stay finite."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.trainer.losses.boxes import huber, smooth_l1
from halofeed.trainer.losses.focal import sigmoid_focal


def logit(probability):
    return math.log(probability / (1 - probability))


def slow_focal(logits, targets, alpha, gamma):
    """The definition, in float64: cross-entropy, (1 - p of the truth) ** gamma, and the class's weight."""
    found = np.zeros(logits.shape)
    for index in np.ndindex(*logits.shape):
        probability = 1 / (1 + math.exp(-float(logits[index])))
        of_truth, weight = (probability, alpha) if targets[index] else (1 - probability, 1 - alpha)
        found[index] = -math.log(of_truth) * (1 - of_truth) ** gamma * weight
    return found


def test_focal_loss_is_its_definition():
    generator = np.random.default_rng(2)
    logits, targets = generator.normal(0, 4, (50, 3)).astype(np.float32), generator.random((50, 3)) < 0.3
    for alpha, gamma in ((0.25, 2.0), (0.75, 2.0), (0.5, 0.0), (0.3, 1.5)):
        found = sigmoid_focal(jnp.array(logits), jnp.array(targets), alpha=alpha, gamma=gamma)
        np.testing.assert_allclose(found, slow_focal(logits, targets, alpha, gamma), rtol=2e-5, atol=1e-9)


def test_easy_examples_cost_orders_less_than_in_cross_entropy():
    """Numbers of tensorflow/models, object_detection/core/losses_test.py: 0.97, 0.91 and 0.73 right, both ways."""
    logits = jnp.array([logit(value) for value in (0.97, 0.91, 0.73, 0.27, 0.09, 0.03)])
    targets = jnp.array([1, 1, 1, 0, 0, 0])
    ratio = sigmoid_focal(logits, targets, alpha=None, gamma=0.0) / sigmoid_focal(logits, targets, alpha=None)
    np.testing.assert_array_equal(10 ** np.floor(np.log10(ratio)), [1000, 100, 10, 10, 100, 1000])


def test_certain_logits_cost_what_the_tf_object_detection_api_says():
    """Numbers of tensorflow/models, object_detection/core/losses_test.py: only the logits of 0 cost anything."""
    logits = 100 * jnp.array([[-1, 1, -1], [1, -1, -1], [1, 0, -1], [-1, -1, 1], [-1, 0, 1]])
    targets = jnp.array([[0, 1, 0], [1, 0, 0], [1, 0, 0], [0, 0, 1], [0, 0, 1]])
    loss = sigmoid_focal(logits.astype(jnp.float32), targets, alpha=None, gamma=0.0)
    np.testing.assert_allclose(loss.sum(1), [0, 0, math.log(2), 0, math.log(2)], atol=1e-6)


@pytest.mark.parametrize("size", [1e-30, 80.0, 1e4, 1e30])
def test_focal_loss_and_its_gradient_are_finite_for_any_logit(size):
    logits, targets = jnp.array([size, -size, size, -size]), jnp.array([1, 1, 0, 0])
    value, gradient = jax.value_and_grad(lambda given: sigmoid_focal(given, targets).sum())(logits)
    assert np.isfinite(value) and np.isfinite(gradient).all()


def test_smooth_l1_of_the_tf_object_detection_api():
    """Numbers of tensorflow/models, object_detection/core/losses_test.py."""
    first = [[2.5, 0, 0.4, 0], [0, 0, 0, 0], [0, 2.5, 0, 0.4]]
    second = [[3.5, 0, 0, 0], [0, 0.4, 0, 0.9], [0, 0, 1.5, 0]]
    weights = np.array([[2, 1, 1], [0, 3, 0]])[..., None]
    assert float((smooth_l1(jnp.array([first, second])) * weights).sum()) == pytest.approx(7.695)


@settings(max_examples=50, deadline=None)
@given(st.floats(-100, 100, width=32), st.sampled_from([0.1, 0.5, 1.0, 3.0]))
def test_huber_and_smooth_l1_are_their_definitions(difference, delta):
    size = abs(difference)
    expected = size**2 / 2 if size <= delta else delta * (size - delta / 2)
    found = float(huber(jnp.float32(difference), delta)), float(smooth_l1(jnp.float32(difference), delta))
    assert found == pytest.approx((expected, expected / delta), rel=1e-5, abs=1e-30)


def test_box_losses_have_the_slope_of_their_straight_part():
    slopes = jax.vmap(jax.grad(lambda x: huber(x, 0.5)))(jnp.array([-3.0, -0.5, 0.0, 0.25, 0.5, 3.0]))
    np.testing.assert_allclose(slopes, [-0.5, -0.5, 0, 0.25, 0.5, 0.5])
