"""Colors change as by Pillow's operations, on one device, split over cores, within the source, and in TensorFlow."""

import re

import jax
import numpy as np
import pytest
import tensorflow as tf
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from PIL import Image, ImageEnhance, ImageOps

from halofeed.errors import UsageError
from halofeed.loader.batch import split_id
from halofeed.loader.device import RandAugmentColors, augment_on_device
from halofeed.loader.device.augmentation import DeviceImages, draw_all
from halofeed.loader.device.ops import jax_ops, tensorflow_ops
from halofeed.loader.device.rand_augment import CHANGES

SEED, COUNT = 12, 96
ONE = RandAugmentColors(operations=1, magnitude=6.0)
BY_PILLOW = {
    "auto contrast": lambda image, factor: ImageOps.autocontrast(image),
    "solarize": lambda image, factor: ImageOps.solarize(image, 256 * 0.4),
    "posterize": lambda image, factor: ImageOps.posterize(image, 8 - round(4 * 0.6)),
    "color": lambda image, factor: ImageEnhance.Color(image).enhance(factor),
    "contrast": lambda image, factor: ImageEnhance.Contrast(image).enhance(factor),
    "brightness": lambda image, factor: ImageEnhance.Brightness(image).enhance(factor),
    "sharpness": lambda image, factor: ImageEnhance.Sharpness(image).enhance(factor),
    "equalize": lambda image, factor: ImageOps.equalize(image),
}


def batch_of(shape=(COUNT, 12, 10, 3), **more):
    image = np.random.default_rng(0).integers(30, 220, shape).astype(np.uint8)
    ids = np.random.default_rng(1).integers(0, 2**62, shape[0])
    return {"image": image, "id": split_id(ids), "epoch": np.zeros(shape[0], np.int32), **more}


def augmented(batch, one=ONE):
    return jax.jit(lambda batch: augment_on_device(batch, [one], seed=SEED))(batch)


def changed(batch, one=ONE):
    return np.asarray(augmented(batch, one)["image"], np.float64)


def draws_of(batch):
    draw = draw_all(jax_ops(), SEED, batch["id"], batch["epoch"], [1.0], 4)[0]
    return [divmod(int(number * 28), 2) for number in np.asarray(draw.uniform)[:, 1]]


def test_each_operation_is_that_of_pillow_and_objects_stay():
    objects = {
        "boxes": np.random.default_rng(2).random((COUNT, 3, 4)).astype(np.float32),
        "masks": np.random.default_rng(2).integers(0, 2, (COUNT, 3, 12, 10)).astype(np.uint8),
        "label": np.random.default_rng(2).integers(0, 5, (COUNT, 12, 10)).astype(np.uint8),
    }
    batch, seen = batch_of(**objects), set()
    after = augmented(batch)
    assert after.keys() == batch.keys()
    for name in objects:
        np.testing.assert_array_equal(after[name], batch[name])
    found = np.asarray(after["image"], np.float64)
    for row, (place, side) in enumerate(draws_of(batch)):
        expected = batch["image"][row]
        if place < len(CHANGES):
            name = list(CHANGES)[place]
            seen.add((name, side))
            factor = 1 + 0.9 * 0.6 * (2 * side - 1)
            expected = np.asarray(BY_PILLOW[name](Image.fromarray(expected), factor), np.float64)
        # Pillow cuts fractions off, after it has rounded the gray or the smoothed value.
        assert np.abs(found[row] - expected).max() <= 2.0, (place, side)
    assert {name for name, _ in seen} == set(CHANGES)


def equalized(image, ops=None):
    ops = ops or jax_ops()
    image = ops.cast(image, np.float32)
    pixels = DeviceImages(ops=ops, image=image, black=0.0, white=255.0, extent=None)
    return CHANGES["equalize"](pixels, 0.6, 1.0)


def drawn_for_histograms():
    """Pictures of few and many levels, also of a single one and of fewer pixels than steps."""
    random = np.random.default_rng(3)
    shape = (37, 41, 3)
    rows = [
        random.normal(120, 12, shape),
        random.choice([3, 200], shape),
        np.full(shape, 77.0),
        random.integers(0, 256, shape),
        np.where(random.random(shape) < 0.9, 255, random.integers(0, 256, shape)),
        random.exponential(20, shape),
    ]
    return np.stack(rows).clip(0, 255).astype(np.uint8)


def test_equalize_is_that_of_pillow_to_the_level():
    for images, is_changed in ((drawn_for_histograms(), True), (drawn_for_histograms()[:, :12, :20], False)):
        expected = np.stack([np.asarray(ImageOps.equalize(Image.fromarray(one))) for one in images])
        np.testing.assert_array_equal(equalized(images), expected)
        # Pillow leaves a channel of fewer than 255 pixels below its highest level as it is.
        assert (np.abs(expected.astype(int) - images) > 20).any() == is_changed


def test_equalize_of_an_image_split_over_cores_exchanges_counts_alone():
    images = drawn_for_histograms()[:, :36, :40]
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("replica", "a", "b"))
    placed = jax.device_put(images, NamedSharding(mesh, PartitionSpec("replica", "a", "b")))
    program = jax.jit(equalized).lower(placed).compile()
    np.testing.assert_array_equal(program(placed), equalized(images))
    assert not re.search(r"\b(all-gather|all-to-all|collective-permute)(-start)?\(", program.as_text())
    np.testing.assert_array_equal(equalized(tf.constant(images), tensorflow_ops()), equalized(images))


@pytest.mark.long
def test_padding_stays_and_gives_nothing():
    size = np.tile(np.array([[7, 10]], np.int32), (COUNT, 1))
    batch = batch_of(size=size)
    batch["image"][:, 7:] = 255
    found = changed(batch)
    assert (found[:, 7:] == 255).all()
    np.testing.assert_allclose(
        found[:, :7], changed({**batch_of(), "image": batch["image"][:, :7]}), atol=1e-3
    )


@pytest.mark.long
def test_an_image_split_over_cores_and_tensorflow_give_the_same():
    several = RandAugmentColors(operations=3)
    batch = batch_of((16, 16, 12, 3))
    whole = changed(batch, several)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("replica", "a", "b"))
    specs = {key: PartitionSpec("replica") for key in batch} | {"image": PartitionSpec("replica", "a", "b")}
    placed = {key: jax.device_put(value, NamedSharding(mesh, specs[key])) for key, value in batch.items()}
    np.testing.assert_allclose(changed(placed, several), whole, atol=2e-3)
    theirs = augment_on_device(
        {key: tf.constant(value) for key, value in batch.items()}, [several], seed=SEED
    )
    np.testing.assert_allclose(theirs["image"].numpy(), whole, atol=2e-3)


def test_images_of_other_kinds_and_invalid_arguments_are_refused():
    for arguments in ({"operations": 0}, {"operations": 9}, {"magnitude": 11}):
        with pytest.raises(UsageError, match=f"RandAugmentColors: {next(iter(arguments))}: expected"):
            RandAugmentColors(**arguments)
    gray = {**batch_of(), "image": np.zeros((COUNT, 4, 4, 1), np.uint8)}
    with pytest.raises(UsageError, match="red, green and blue"):
        augment_on_device(gray, [ONE], seed=1)
    wide = {**batch_of(), "image": np.zeros((COUNT, 4, 4, 3), np.int16)}
    with pytest.raises(UsageError, match="8-bit pictures, the images are int16"):
        augment_on_device(wide, [ONE], seed=1, values=(0, 255))
