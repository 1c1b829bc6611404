"""Mixed images and their shares are those of a count by hand, on one device, split over cores, and in TensorFlow."""

import re

import jax
import numpy as np
import pytest
import tensorflow as tf
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from scipy import special

from halofeed.errors import UsageError
from halofeed.loader.batch import split_id
from halofeed.loader.device import BatchMix, Brightness, augment_on_device
from halofeed.loader.device.augmentation import draw_all
from halofeed.loader.device.mixing import beta_quantiles
from halofeed.loader.device.ops import jax_ops

SEED, IDS = 2**63 + 5, np.array([9, 2**40, 5, 77, 1, 2**33, 8, 4], np.int64)
BOTH = BatchMix(mixup_alpha=0.4, cutmix_alpha=1.0, probability=0.8)


def batch_of(shape=(8, 8, 6, 3), **more):
    generator = np.random.default_rng(0)
    image = generator.integers(0, 256, shape).astype(np.uint8)
    batch = {"image": image, "id": split_id(IDS), "epoch": np.arange(8, dtype=np.int32)}
    return {**batch, "label": generator.integers(0, 5, 8).astype(np.int32), **more}


def mixed(batch, augmentation=BOTH):
    return jax.jit(lambda batch: augment_on_device(batch, [augmentation], seed=SEED, values=(0, 255)))(batch)


def expected_of(batch, one):
    """Return image and share of each row, pixel by pixel, from the same random numbers."""
    axes = batch["image"].ndim
    draw = draw_all(jax_ops(), SEED, batch["id"], batch["epoch"], [one.probability], axes)[0]
    chances = np.asarray(draw.uniform, np.float64)
    images, shares = batch["image"].astype(np.float64), []
    found = images.copy()
    for row in range(len(images)):
        other, numbers = images[row - 1], chances[row]
        share = 1.0
        if numbers[0] < one.probability:
            kind = "cut" if numbers[2] < (0.5 if one.mixup_alpha else 1) and one.cutmix_alpha else "mixup"
            alpha = one.cutmix_alpha if kind == "cut" else one.mixup_alpha
            share = special.betaincinv(alpha, alpha, numbers[1])
            if kind == "mixup":
                found[row] = share * images[row] + (1 - share) * other
            else:
                height, width = images.shape[-3:-1]
                cut = np.sqrt(1 - share)
                half_height, half_width = int(height * cut) // 2, int(width * cut) // 2
                top, left = int(numbers[3] * height), int(numbers[4] * width)
                count = 0
                for y in range(height):
                    for x in range(width):
                        if -half_height <= y - top < half_height and -half_width <= x - left < half_width:
                            found[row][..., y, x, :] = other[..., y, x, :]
                            count += 1
                share = 1 - count / (height * width)
        shares.append(share)
    return found, np.array(shares)


@pytest.mark.parametrize("shape", [(8, 8, 6, 3), (8, 3, 9, 5, 1)])
def test_images_and_shares_are_those_of_a_count_by_hand(shape):
    for one in (BOTH, BatchMix(), BatchMix(mixup_alpha=0, cutmix_alpha=2.0)):
        batch = batch_of(shape)
        found = mixed(batch, one)
        images, shares = expected_of(batch, one)
        np.testing.assert_allclose(found["image"], images, atol=0.15)
        np.testing.assert_allclose(found["own_share"], shares, atol=5e-4)
        np.testing.assert_array_equal(found["partner_label"], np.roll(batch["label"], 1))
        assert (np.abs(found["image"] - batch["image"]).max(axis=(1, 2, 3)) > 1).any()


@pytest.mark.parametrize("alpha", [0.1, 0.2, 1.0, 1.5, 3.0, 32.0, 2000.0])
def test_weights_have_the_distribution_of_beta(alpha):
    quantiles = beta_quantiles(alpha)
    expected = special.betaincinv(alpha, alpha, np.arange(4097) / 4096)
    np.testing.assert_allclose(quantiles, expected, atol=1e-5)


@pytest.mark.long
def test_rows_that_do_not_count_are_not_mixed_into_others():
    valid = np.array([True, False, True, True, False, True, True, True])
    batch = batch_of(labels=np.eye(8, dtype=np.uint8), valid=valid)
    del batch["label"]
    found = mixed(batch, BatchMix(mixup_alpha=1.0))
    alone = ~(valid & np.roll(valid, 1))
    np.testing.assert_array_equal(found["own_share"] == 1, alone)
    np.testing.assert_array_equal(found["image"][alone], batch["image"][alone])
    np.testing.assert_array_equal(found["partner_labels"], np.roll(np.eye(8), 1, axis=0))


@pytest.mark.long
@pytest.mark.parametrize("parts", [("a", "b"), (("a", "b"),)])
def test_images_split_over_cores_and_replicas_are_mixed_alike(parts):
    batch = batch_of((8, 16, 12, 3))
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("replica", "a", "b"))
    specs = {key: PartitionSpec("replica") for key in batch} | {"image": PartitionSpec("replica", *parts)}
    placed = {key: jax.device_put(value, NamedSharding(mesh, specs[key])) for key, value in batch.items()}
    step = jax.jit(lambda batch: augment_on_device(batch, [BOTH], seed=SEED))
    program = step.lower(placed).compile()
    found, whole = step(placed), step(batch)
    for key in ("image", "own_share", "partner_label"):
        np.testing.assert_allclose(found[key], whole[key], atol=1e-3)
    assert not re.search(r"\b(all-gather|all-to-all)(-start)?\(", program.as_text())


@pytest.mark.long
def test_tensorflow_mixes_the_same():
    batch = batch_of()
    theirs = augment_on_device({key: tf.constant(value) for key, value in batch.items()}, [BOTH], seed=SEED)
    for key, value in mixed(batch).items():
        np.testing.assert_allclose(theirs[key].numpy(), value, atol=2e-3)


@pytest.mark.long
def test_what_cannot_be_mixed_says_why():
    boxes = batch_of(boxes=np.zeros((8, 2, 4), np.float32))
    del boxes["label"]
    for batch, several, message in (
        (boxes, [BOTH], r"classes of whole images.*leave BatchMix out"),
        (batch_of(label=np.zeros((8, 8, 6), np.uint8)), [BOTH], "classes of whole images"),
        (batch_of(), [BOTH, Brightness()], "BatchMix: combines finished images; list it last"),
    ):
        with pytest.raises(UsageError, match=message):
            augment_on_device(batch, several, seed=1)
    for options, message in (
        ({"mixup_alpha": 0}, "above 0"),
        ({"mixup_alpha": -1}, "mixup_alpha: expected a number"),
        ({"cutmix_alpha": "1"}, "cutmix_alpha: expected a number"),
    ):
        with pytest.raises(UsageError, match=message):
            BatchMix(**options)
