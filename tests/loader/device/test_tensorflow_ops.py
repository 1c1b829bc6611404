"""TensorFlow draws the same numbers and gives the same values as JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from halofeed.loader import Loader
from halofeed.loader.batch import split_id
from halofeed.loader.device import AUGMENTATIONS, GaussianBlur, Normalization, augment_on_device
from halofeed.loader.device.augmentation import draw_all
from halofeed.loader.device.ops import jax_ops, tensorflow_ops
from tests.support.level_rows import others

IDS, EPOCHS = split_id([5, 2**62 + 1, 77, 2**33]), np.array([0, 1, 2, 3], np.int32)
ALL = {name: kind(probability=0.7) for name, kind in AUGMENTATIONS.items()}
ALL["GaussianBlur"] = GaussianBlur(probability=1.0, sigma_pixels=(0.5, 2.0), depth=True)


def both(image, several, **keys):
    """The same by JAX, eagerly by TensorFlow, and in a graph of it, float32 each."""
    whole = {"image": image, "epoch": EPOCHS, **keys}
    options = {"seed": 2**40 + 3, "values": (0, 255)}

    def changed(batch):
        return augment_on_device(batch, several, **options)["image"]

    ours = jax.jit(changed)({**whole, "id": IDS})
    batch = {key: tf.constant(value) for key, value in {**whole, "id": IDS}.items()}
    return np.asarray(ours), changed(batch).numpy(), tf.function(changed)(batch).numpy()


def test_the_numbers_are_the_same():
    ours = draw_all(jax_ops(), 3, IDS, EPOCHS, [0.5, 0.5], 4)
    theirs = draw_all(tensorflow_ops(), 3, tf.constant(IDS), tf.constant(EPOCHS), [0.5, 0.5], 4)
    for one, other in zip(ours, theirs, strict=True):
        assert np.array_equal(one.uniform, other.uniform) and np.array_equal(one.chosen, other.chosen)
        np.testing.assert_allclose(one.normal((5, 6, 3)), other.normal((5, 6, 3)), atol=1e-5)


@pytest.mark.parametrize("name", others([name for name in ALL if name != "HUWindow"], ["GaussianNoise"]))
def test_pictures(name):
    image = np.random.default_rng(0).integers(0, 256, (4, 9, 8, 3)).astype(np.uint8)
    ours, eager, graph = both(image, [ALL[name]], size=np.array([[9, 8], [3, 8], [9, 2], [1, 1]], np.int32))
    np.testing.assert_allclose(eager, ours, atol=5e-4)
    np.testing.assert_allclose(graph, ours, atol=5e-4)
    assert eager.dtype == np.float32


@pytest.mark.long
def test_volumes():
    image = np.random.default_rng(0).integers(-300, 300, (4, 5, 6, 7, 1)).astype(np.int16)
    several = [ALL[name] for name in ALL if name not in ("Saturation", "Hue", "RandAugmentColors")]
    ours, *others = both(image, several)
    for found in others:
        np.testing.assert_allclose(found, ours, rtol=1e-4, atol=5e-3)


@pytest.mark.long
def test_a_kernel_longer_than_the_image():
    image = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 1)).astype(np.uint8)
    ours, eager, _ = both(image, [GaussianBlur(probability=1, sigma_pixels=(2, 4))])
    np.testing.assert_allclose(eager, ours, atol=5e-4)


@pytest.mark.parametrize("dtype", others(["float32", "bfloat16", "float64"], ["float32"]))
def test_normalization(dtype):
    image = np.random.default_rng(0).integers(-300, 300, (2, 4, 4, 3)).astype(np.int16)
    for normalization in (
        Normalization(mean=(10.0, 20.0, 30.0), std=(40.0, 50.0, 60.0), limits=(-100.0, 200.0)),
        Normalization(mean=(10.0, 20.0, 30.0), std=(40.0, 50.0, 60.0), reverse_channels=True),
    ):
        found = normalization(tf.constant(image), dtype)
        assert found.dtype.name == dtype
        ours = normalization(jnp.asarray(image), "float32" if dtype == "float64" else dtype)
        rtol = 1e-2 if dtype == "bfloat16" else 1e-5
        np.testing.assert_allclose(tf.cast(found, tf.float32), ours.astype("float32"), rtol=rtol)


@pytest.mark.long
def test_a_dataset_is_augmented_as_batches_are(draw, write):
    loader = Loader(write(draw(6)), batch_size=4, include=["epoch", "size"])
    several = [ALL["Contrast"], ALL["GaussianNoise"]]
    dataset = loader.dataset(repeat=True).map(lambda batch: augment_on_device(batch, several, seed=3))
    for step, element in enumerate(dataset.take(4).as_numpy_iterator()):
        batch = loader.batch(step)
        expected = augment_on_device(batch, several, seed=3)
        np.testing.assert_allclose(element["image"], expected["image"], atol=5e-4)
        assert np.array_equal(element["boxes"], batch["boxes"])
        epochs = np.arange(step * 4, step * 4 + 4) // 6
        assert batch["epoch"].dtype == np.int32 and np.array_equal(batch["epoch"], epochs)
    assert "epoch" not in Loader(loader._arguments["path"], batch_size=4).spec
