"""The overlap losses follow their papers, voxel by voxel."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from halofeed.trainer.losses.overlap import OVERLAP_LOSSES, SMOOTHING, cross_entropy, overlap, tversky

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
    shared = overlap(logits, label, background=background)
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


def test_tversky_of_equal_weights_is_dice():
    found = all_losses(*drawn((4, 6)))
    assert np.asarray(found["tversky of halves"]) == pytest.approx(np.asarray(found["dice"]), rel=1e-6)


def test_generalized_dice_does_not_change_with_the_size_of_a_whole_volume():
    logits, label = drawn((4, 6))
    once = all_losses(logits, label)["generalized_dice"]
    more = all_losses(np.tile(logits, (1, 8, 8, 1)), np.tile(label, (1, 8, 8)))["generalized_dice"]
    assert np.asarray(more) == pytest.approx(np.asarray(once), abs=SMOOTHING)
