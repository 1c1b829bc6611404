"""Loss, predictions and metrics of classification follow their definitions."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halofeed.trainer.tasks.classification import Classification
from halofeed.trainer.tasks.multi_label import MultiLabel

LABELS = ("cat", "dog", "bird")
TASK = Classification(labels=LABELS)
LOGITS = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
IMAGE = jnp.zeros((4, 1, 1, 1))


def probabilities(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def test_the_loss_is_the_mean_negative_log_probability_over_valid_rows():
    label, valid = np.array([0, 2, 1, 1]), np.array([True, True, False, True])
    rows = [-np.log(probabilities(LOGITS)[row, label[row]]) for row in range(4) if valid[row]]
    batch = {"image": IMAGE, "label": jnp.array(label), "valid": jnp.array(valid)}
    loss, parts = TASK.loss(jnp.array(LOGITS), batch)
    assert loss == pytest.approx(np.mean(rows), rel=1e-6)
    assert parts == {"cross_entropy": loss}
    padding = {**batch, "valid": jnp.zeros(4, bool)}
    assert TASK.loss(jnp.array(LOGITS), padding)[0] == 0
    all_valid, unsaid = {**batch, "valid": jnp.ones(4, bool)}, {"image": IMAGE, "label": batch["label"]}
    assert TASK.loss(jnp.array(LOGITS), unsaid)[0] == TASK.loss(jnp.array(LOGITS), all_valid)[0]


def test_label_smoothing_spreads_its_share_of_the_target_over_all_classes():
    label, smoothing = np.array([0, 2, 1, 1]), 0.3
    targets = np.full((4, 3), smoothing / 3)
    targets[np.arange(4), label] += 1 - smoothing
    expected = -np.mean(np.sum(targets * np.log(probabilities(LOGITS)), axis=1))
    task = Classification(labels=LABELS, label_smoothing=smoothing)
    loss, _ = task.loss(jnp.array(LOGITS), {"image": IMAGE, "label": jnp.array(label)})
    assert loss == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("several", [False, True])
def test_the_loss_of_mixed_images_is_the_weighted_sum_of_the_losses_of_both_classes(several):
    """Cross-entropy is linear in its targets."""
    label, partner = np.array([0, 2, 1, 1]), np.array([1, 0, 2, 1])
    share = np.array([1.0, 0.25, 0.5, 0.75], np.float32)
    task: Any = MultiLabel(labels=LABELS) if several else TASK
    key = task.keys[0]
    classes, partners = (np.eye(3, dtype=np.uint8)[one] if several else one for one in (label, partner))

    def loss_of(row: int, target: Any, **more: Any) -> float:
        batch = {"image": IMAGE[:1], key: jnp.array(target[row : row + 1]), **more}
        return float(task.loss(jnp.array(LOGITS[row : row + 1]), batch)[0])

    for row in range(4):
        mixed = {f"partner_{key}": jnp.array(partners[row : row + 1]), "own_share": share[row : row + 1]}
        found = loss_of(row, classes, **mixed)
        expected = share[row] * loss_of(row, classes) + (1 - share[row]) * loss_of(row, partners)
        assert found == pytest.approx(expected, rel=1e-5)


def test_what_is_predicted_is_the_most_probable_class_and_all_probabilities():
    predicted = TASK.predict(jnp.array(LOGITS), {"image": IMAGE})
    np.testing.assert_allclose(predicted["probabilities"], probabilities(LOGITS), rtol=1e-5)
    np.testing.assert_array_equal(predicted["label"], LOGITS.argmax(1))
    assert predicted["label"].dtype == jnp.int32
    predicted = TASK.predict(jnp.array(LOGITS, jnp.bfloat16), {"image": IMAGE})
    assert predicted["probabilities"].dtype == jnp.float32


def test_metrics_of_a_worked_example():
    """Two cats, one seen as a dog; one dog, seen as a dog; no bird; one row that is not valid."""
    metrics = TASK.metrics()
    probabilities = [[0.7, 0.2, 0.1], [0.3, 0.6, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]]
    predicted = {"probabilities": np.array(probabilities), "label": np.array([0, 1, 1, 2], np.int32)}
    valid = np.array([True, True, True, False])
    scores = metrics.update(predicted, {"label": np.array([0, 0, 1, 2], np.int32), "valid": valid})
    np.testing.assert_array_equal(scores, [0.7, 0.3, 0.8, np.nan])
    assert metrics.result() == {
        "accuracy": pytest.approx(2 / 3),
        "examples": 3,
        "recall": {"cat": 0.5, "dog": 1.0, "bird": None},
        "precision": {"cat": 1.0, "dog": 0.5, "bird": None},
        "confusion": [[1, 1, 0], [0, 1, 0], [0, 0, 0]],
        "confused": [{"true": "cat", "predicted": "dog", "count": 1}],
    }


Rows = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()), min_size=1, max_size=12)


@given(rows=Rows, first=st.integers(1, 11))
def test_metrics_count_each_valid_row_once_in_any_batches(rows, first):
    metrics = TASK.metrics()
    for part in (rows[:first], rows[first:]):
        if part:
            true, predicted, valid = (np.array(column) for column in zip(*part, strict=True))
            one_hot = np.eye(3)[predicted]
            metrics.update({"probabilities": one_hot, "label": predicted}, {"label": true, "valid": valid})
    counted = [(true, predicted) for true, predicted, valid in rows if valid]
    found = metrics.result()
    assert found["examples"] == len(counted)
    assert found["accuracy"] == pytest.approx(sum(a == b for a, b in counted) / max(1, len(counted)))
    table = [[counted.count((true, predicted)) for predicted in range(3)] for true in range(3)]
    assert found["confusion"] == table
    pairs = {
        (LABELS.index(one["true"]), LABELS.index(one["predicted"])): one["count"] for one in found["confused"]
    }
    assert pairs == {(a, b): table[a][b] for a in range(3) for b in range(3) if a != b and table[a][b]}
    assert list(pairs.values()) == sorted(pairs.values(), reverse=True)
