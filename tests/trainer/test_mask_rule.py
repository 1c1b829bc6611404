"""Regions are painted back to the classes they were made of; mirrored predictions are means over mirrored images."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.errors import UsageError
from halofeed.trainer.losses import OVERLAP_LOSSES
from halofeed.trainer.mask_rule import ClassRegions
from halofeed.trainer.metrics import SegmentationMetrics
from halofeed.trainer.step import predict
from halofeed.trainer.tasks.segmentation import Segmentation
from tests.support.parity import Case, first_state

LABELS = ("background", "necrosis", "edema", "enhancing")
BRAIN = {"whole": ["necrosis", "edema", "enhancing"], "core": ["necrosis", "enhancing"], "enh": ["enhancing"]}
"""The regions of BraTS: edema, necrosis and enhancing tumor are what each of them paints."""


@st.composite
def nested(draw):
    """Names of classes and regions, each of which ends with one class and holds any of the later ones."""
    count = draw(st.integers(1, 5))
    labels = tuple(f"class {number}" for number in range(count + 1))
    order = draw(st.permutations(range(1, count + 1)))
    regions = {}
    for place, own in enumerate(order):
        others = [label for label in order[place + 1 :] if draw(st.booleans())]
        regions[f"region {place}"] = [labels[label] for label in draw(st.permutations([own, *others]))]
    return labels, regions


@given(nested(), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_painting_the_true_regions_gives_the_classes_again(drawn, seed):
    labels, given_regions = drawn
    regions = ClassRegions.of(given_regions, labels)
    label = np.random.default_rng(seed).integers(0, len(labels), (4, 5))
    inside = np.stack([np.isin(label, held) for held in regions.members], -1).astype(np.float16)
    assert np.array_equal(regions.paint(inside), label)
    assert np.array_equal(np.asarray(regions.paint(jax.numpy.asarray(inside))), label)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_regions_are_painted_over_each_other_in_their_order(seed):
    regions = ClassRegions.of(BRAIN, LABELS)
    probabilities = np.random.default_rng(seed).random((3, 4, 3))
    found = regions.paint(probabilities)
    for place in np.ndindex(3, 4):
        expected = 0
        for region, painted in enumerate((2, 1, 3)):  # edema, necrosis, enhancing
            if probabilities[(*place, region)] > 0.5:
                expected = painted
        assert found[place] == expected


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        (
            {"whole": ["necrosis", "edema", "enhancing"]},
            "regions.whole: paints the one class .* necrosis, edema",
        ),
        ({"enh": ["enhancing"], **BRAIN, "again": ["enhancing"]}, "it has none; list larger regions"),
        ({"core": ["necrosis"], "enh": ["enhancing"]}, "regions: class edema is in none"),
        ({"whole": ["tumour"]}, "regions.whole: no class 'tumour'; .*known: necrosis, edema, enhancing"),
        ({"whole": "edema"}, r'regions.whole: expected a list of classes, such as \["enhancing"\], got'),
        ({"whole": ["background"]}, "no class 'background'"),
    ],
)
def test_regions_that_cannot_be_painted_back_are_refused(regions, message):
    with pytest.raises(UsageError, match=message):
        Segmentation(labels=LABELS, regions=regions)


def test_options_that_contradict_regions_or_the_kind_of_image_are_refused():
    for options, message in (
        ({"regions": BRAIN, "class_weights": (1, 1, 1, 2)}, "class_weights: weigh classes that exclude"),
        ({"regions": BRAIN, "background": True}, "background: regions have no background"),
        ({"regions": ["whole"]}, "regions: expected a table of lists of classes"),
        ({"window_weights": "flat"}, "window_weights: expected one of gaussian, uniform, got 'flat'"),
        ({"kind": "picture", "mirror_at_test": ["depth"]}, "expected a list of height, width, each once"),
        ({"mirror_at_test": "height"}, "expected a list of depth, height, width, each once, got 'height'"),
        ({"mirror_at_test": ["width", "width"]}, "each once"),
    ):
        with pytest.raises(UsageError, match=message):
            Segmentation(labels=LABELS, **options)


def slow_region_losses(logits, label, known):
    """Binary cross-entropy and Dice of each example, voxel by voxel."""
    members = ((1, 2, 3), (1, 3), (3,))
    entropy, scores = [], []
    for row in range(len(label)):
        total = count = 0
        both, sizes = np.zeros(3), np.zeros(3)
        for place in np.ndindex(label[row].shape):
            if not known[row][place]:
                continue
            for region, held in enumerate(members):
                probability = 1 / (1 + np.exp(-logits[row][(*place, region)]))
                inside = label[row][place] in held
                total -= np.log(probability if inside else 1 - probability)
                count += 1
                both[region] += probability * inside
                sizes[region] += probability + inside
        entropy.append(total / count)
        scores.append(1 - np.mean(2 * both / sizes))
    return np.mean(entropy), np.mean(scores)


@pytest.mark.parametrize("ignored", [None, 255])
def test_losses_of_regions_are_sums_over_voxels_with_gradients_of_finite_differences(ignored):
    generator = np.random.default_rng(0)
    label = generator.integers(0, 4, (2, 5, 6)).astype(np.uint8)
    if ignored is not None:
        label[:, 2] = ignored
    logits = generator.normal(size=(2, 5, 6, 3))
    task = Segmentation(labels=LABELS, regions=BRAIN, ignore_label=ignored)
    batch = {"image": np.zeros((2, 5, 6, 1)), "label": label}
    with jax.enable_x64(True):
        loss = jax.jit(lambda logits: task.loss({"logits": logits}, batch))
        _, parts = loss(logits)
        entropy, dice = slow_region_losses(logits, label, label != ignored)
        assert float(parts["cross_entropy"]) == pytest.approx(entropy, rel=1e-12)
        assert float(parts["dice"]) == pytest.approx(dice, abs=1e-5)
        gradient = np.asarray(jax.grad(lambda logits: loss(logits)[0])(logits))
        for place in [(0, 0, 0, 0), (1, 4, 5, 2), (0, 2, 3, 1)]:
            step = np.zeros_like(logits)
            step[place] = 1e-6
            slope = (float(loss(logits + step)[0]) - float(loss(logits - step)[0])) / 2e-6
            assert gradient[place] == pytest.approx(slope, rel=1e-6, abs=1e-9)
        assert ignored is None or not gradient[:, 2].any()
        for name in OVERLAP_LOSSES:
            other = dataclasses.replace(task, losses={name: 1.0}, overlap_over_batch=True)
            assert 0 < float(other.loss({"logits": logits}, batch)[0]) < 1.5


def test_predictions_of_regions_have_painted_labels_and_a_probability_per_class_that_sums_to_1():
    logits = np.random.default_rng(1).normal(size=(2, 3, 4, 3)).astype(np.float32)
    task = Segmentation(labels=LABELS, kind="picture", regions=BRAIN, with_probabilities=True)
    found = jax.device_get(task.predict({"logits": logits}, {}))
    probabilities = 1 / (1 + np.exp(-logits))
    assert np.array_equal(found["label"], ClassRegions.of(BRAIN, LABELS).paint(probabilities))
    np.testing.assert_allclose(found["regions"], probabilities, atol=1e-3)
    whole, core, enhancing = np.moveaxis(probabilities, -1, 0)
    expected = [
        (1 - whole) * (1 - core) * (1 - enhancing),
        core * (1 - enhancing),
        whole * (1 - core) * (1 - enhancing),
        enhancing,
    ]
    np.testing.assert_allclose(found["probabilities"], np.stack(expected, -1), atol=1e-3)
    assert np.array_equal(task.mask_rule.labels(probabilities), found["label"])


def test_dice_of_regions_is_that_of_their_masks():
    generator = np.random.default_rng(2)
    predicted, true = generator.integers(0, 4, (2, 3, 5, 6))
    regions = ClassRegions.of(BRAIN, LABELS)
    metrics = SegmentationMetrics(LABELS, kind="picture", hausdorff=False, regions=regions)
    metrics.update({"label": predicted}, {"label": true})
    found = metrics.result()["dice_per_region"]
    for name, held in zip(regions.names, regions.members, strict=True):
        one, other = np.isin(predicted, held), np.isin(true, held)
        dice = [2 * (a & b).sum() / (a.sum() + b.sum()) for a, b in zip(one, other, strict=True)]
        assert found[name] == pytest.approx(np.mean(dice))


@pytest.mark.parametrize("regions", [{}, {"both": ["class 1", "class 2"], "one": ["class 2"]}])
def test_mirrored_predictions_are_means_over_all_mirrored_images(regions):
    case = Case(
        model="unet",
        image_shape=(16, 8, 2),
        model_options={"depth": 2, "width": 4, "convolutions": 1},
        task_options={"mirror_at_test": ["height", "width"], "with_probabilities": True, "regions": regions},
    )
    with jax.enable_x64(True):
        setup, state = case.problem("float64"), first_state(case.to_json(), "float64")
        plain = dataclasses.replace(setup, task=dataclasses.replace(setup.task, mirror_at_test=()))
        image = case.batch()["image"]
        found = predict(setup, state.parameters, state.statistics, {"image": image})
        total = 0.0
        for axes in itertools.chain.from_iterable(itertools.combinations((1, 2), size) for size in range(3)):
            outputs, _ = plain.apply(
                state.parameters, state.statistics, {"image": np.flip(image, axes)}, training=False
            )
            total = total + np.flip(np.asarray(plain.task.probabilities(outputs)), axes) / 4
        one = predict(plain, state.parameters, state.statistics, {"image": image})
    name = "regions" if regions else "probabilities"
    np.testing.assert_allclose(np.asarray(found[name], np.float64), total, atol=1e-3)
    expected = setup.task.mask_rule.labels(total) if regions else total.argmax(-1)
    assert np.array_equal(found["label"], expected)
    assert not np.array_equal(one[name], found[name])
