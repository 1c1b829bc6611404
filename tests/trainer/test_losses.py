"""Are the losses what their definitions say?"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from halofeed.trainer.losses import LOSSES, classes_present
from halofeed.trainer.optimizers import warmup_cosine

LOGITS = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
IMAGE = jnp.zeros((4, 1, 1, 1))


def test_classification_is_the_mean_negative_log_probability_over_valid_rows() -> None:
    label, valid = np.array([0, 2, 1, 1]), np.array([True, True, False, True])
    probability = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    rows = [-np.log(probability[row, label[row]]) for row in range(4) if valid[row]]
    batch = {"image": IMAGE, "label": jnp.array(label), "valid": jnp.array(valid)}
    assert LOSSES["classification"](jnp.array(LOGITS), batch) == pytest.approx(np.mean(rows), rel=1e-6)


def test_detection_is_the_mean_over_classes_of_presence_whatever_the_padding_holds() -> None:
    num_boxes = np.array([2, 0, 1, 3])
    classes = np.array([[1, 3, -1], [2, 2, 2], [2, 0, 0], [1, 2, 3]])
    present = [[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]]
    probability = 1 / (1 + np.exp(-LOGITS))
    expected = -np.mean(np.where(present, np.log(probability), np.log(1 - probability)))
    batch = {"image": IMAGE, "classes": jnp.array(classes), "num_boxes": jnp.array(num_boxes)}
    assert classes_present(batch["classes"], batch["num_boxes"], 3).astype(int).tolist() == present
    assert LOSSES["detection"](jnp.array(LOGITS), batch) == pytest.approx(expected, rel=1e-6)


def test_a_batch_of_padding_alone_has_loss_zero() -> None:
    batch = {"image": IMAGE, "label": jnp.zeros(4, int), "valid": jnp.zeros(4, bool)}
    assert LOSSES["classification"](jnp.array(LOGITS), batch) == 0


@pytest.mark.parametrize("steps", [1, 2, 19, 20, 1000])
def test_the_rate_rises_to_its_peak_and_falls_to_almost_nothing(steps: int) -> None:
    rates = [float(warmup_cosine(0.1, steps)(step)) for step in range(steps)]
    assert max(rates) == pytest.approx(0.1)
    assert all(rate > 0 for rate in rates)
    peak = rates.index(max(rates))
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert float(warmup_cosine(0.1, steps)(steps)) == pytest.approx(0, abs=1e-7)
