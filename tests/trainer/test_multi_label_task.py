"""Loss, predictions and metrics of multi-label classification follow their definitions."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halofeed.system.errors import UsageError
from halofeed.trainer.tasks.multi_label import MultiLabel, area_under_roc, average_precision

LABELS = ("coat", "hat", "shoe")
TASK = MultiLabel(labels=LABELS)
LOGITS = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
IMAGE = jnp.zeros((4, 1, 1, 1))
TRUE = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]], np.uint8)


def sigmoid(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return 1 / (1 + np.exp(-logits))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_the_mean_negative_log_probability_of_each_answer_over_valid_rows(smoothing):
    valid = np.array([True, True, False, True])
    targets = TRUE * (1 - smoothing) + smoothing / 2
    each = -targets * np.log(sigmoid(LOGITS)) - (1 - targets) * np.log(1 - sigmoid(LOGITS))
    batch = {"image": IMAGE, "labels": jnp.array(TRUE), "valid": jnp.array(valid)}
    loss, parts = MultiLabel(labels=LABELS, label_smoothing=smoothing).loss(jnp.array(LOGITS), batch)
    assert loss == pytest.approx(each[valid].mean(), rel=1e-6)
    assert parts == {"cross_entropy": loss}
    assert TASK.loss(jnp.array(LOGITS), {**batch, "valid": jnp.zeros(4, bool)})[0] == 0


def test_classes_from_the_threshold_on_are_predicted():
    predicted = MultiLabel(labels=LABELS, threshold=0.6).predict(jnp.array(LOGITS), {"image": IMAGE})
    np.testing.assert_allclose(predicted["probabilities"], sigmoid(LOGITS), rtol=1e-5)
    np.testing.assert_array_equal(predicted["labels"], sigmoid(LOGITS) >= 0.6)
    assert predicted["labels"].dtype == jnp.uint8
    halves = TASK.predict(jnp.array(LOGITS, jnp.bfloat16), {"image": IMAGE})
    assert halves["probabilities"].dtype == jnp.float32
    for options in ({"threshold": 0.0}, {"threshold": 1.0}, {"label_smoothing": 1.0}):
        with pytest.raises(UsageError, match=next(iter(options))):
            MultiLabel(labels=LABELS, **options)


Column = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.booleans()), min_size=1, max_size=12
)


def slow_average_precision(scores: list[float], truth: list[bool]) -> float | None:
    """Sum over the distinct scores, as scikit-learn defines it: gain in recall times precision."""
    if not any(truth):
        return None
    total, recall = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        taken = [true for score, true in zip(scores, truth, strict=True) if score >= threshold]
        total += (sum(taken) / sum(truth) - recall) * sum(taken) / len(taken)
        recall = sum(taken) / sum(truth)
    return total


def slow_area(scores: list[float], truth: list[bool]) -> float | None:
    """Compare each true example with each other one."""
    yes = [score for score, true in zip(scores, truth, strict=True) if true]
    no = [score for score, true in zip(scores, truth, strict=True) if not true]
    won = [1.0 if a > b else 0.5 if a == b else 0.0 for a in yes for b in no]
    return sum(won) / len(won) if won else None


@given(column=Column)
def test_average_precision_and_area_are_those_of_slow_counts(column):
    scores, truth = (list(values) for values in zip(*column, strict=True))
    arrays = np.array(scores), np.array(truth)
    assert average_precision(*arrays) == pytest.approx(slow_average_precision(scores, truth), abs=1e-12)
    assert area_under_roc(*arrays) == pytest.approx(slow_area(scores, truth), abs=1e-12)


def test_metrics_of_a_worked_example():
    """The last row is not valid; no valid row has a shoe, and only the first has a hat."""
    metrics = TASK.metrics()
    probabilities = np.array([[0.9, 0.6, 0.1], [0.2, 0.7, 0.3], [0.8, 0.4, 0.6], [0.1, 0.1, 0.1]])
    predicted = {"probabilities": probabilities, "labels": (probabilities >= 0.5).astype(np.uint8)}
    true = np.array([[1, 1, 0], [0, 0, 0], [1, 0, 0], [1, 1, 1]], np.uint8)
    scores = metrics.update(predicted, {"labels": true, "valid": np.array([True, True, True, False])})
    np.testing.assert_allclose(scores, [0.6, 0.3, 0.4, np.nan])
    assert metrics.result() == {
        "mAP": pytest.approx((1.0 + 0.5) / 2),
        "mean AUROC": pytest.approx((1.0 + 0.5) / 2),
        "examples": 3,
        "AP": {"coat": pytest.approx(1.0), "hat": pytest.approx(0.5), "shoe": None},
        "AUROC": {"coat": pytest.approx(1.0), "hat": pytest.approx(0.5), "shoe": None},
        "F1": {"coat": pytest.approx(1.0), "hat": pytest.approx(2 / 3), "shoe": 0.0},
    }
    assert TASK.metrics().result()["mAP"] == 0.0
