"""An image split over cores is augmented like the whole image, without a gather."""

import re

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from halofeed.loader.batch import split_id
from halofeed.loader.device import AUGMENTATIONS, GaussianBlur, augment_on_device

ALL = {name: kind(probability=0.8) for name, kind in AUGMENTATIONS.items()}
ALL["GaussianBlur"] = GaussianBlur(probability=0.8, sigma_pixels=(0.5, 1.5), depth=True)
WIDE = GaussianBlur(probability=1.0, sigma_pixels=(3.0, 3.0))
PICTURES, VOLUMES = (4, 32, 24, 3), (4, 16, 8, 12, 1)


def compare(several, shape, dtype, parts, keys):
    """The greatest difference between an image whole and split, and the split program's text."""
    rng = np.random.default_rng(0)
    batch = {
        "image": rng.integers(0, 200, shape).astype(dtype),
        "id": split_id(rng.integers(0, 2**62, shape[0])),
        "epoch": np.arange(shape[0], dtype=np.int32),
        **keys,
    }
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("replica", "a", "b"))
    specs = {key: PartitionSpec("replica") for key in batch} | {"image": PartitionSpec("replica", *parts)}
    placed = {key: jax.device_put(value, NamedSharding(mesh, specs[key])) for key, value in batch.items()}
    step = jax.jit(lambda batch: augment_on_device(batch, several, seed=5, values=(0, 255))["image"])
    split = step.lower(placed).compile()
    found = split(placed)
    assert found.sharding.spec[: 1 + len(parts)] == ("replica", *parts)
    return np.abs(np.asarray(found) - np.asarray(step(batch))).max(), split.as_text()


def check(difference, text):
    assert difference <= 2e-3  # float32 sums in another order, of values to 255
    assert not re.search(r"\b(all-gather|all-to-all)(-start)?\(", text)


@pytest.mark.parametrize("parts", [pytest.param((("a", "b"),), marks=pytest.mark.long), ("a", "b")])
def test_pictures_split_by_rows_and_by_rows_and_columns(parts):
    check(
        *compare(
            [one for name, one in ALL.items() if name not in ("HUWindow", "RandAugmentColors")],
            PICTURES,
            np.uint8,
            parts,
            {},
        )
    )


@pytest.mark.long
@pytest.mark.parametrize("parts", [(("a", "b"),), (None, "a", "b")])
def test_volumes_split_by_depth_and_by_rows_and_columns(parts):
    several = [one for name, one in ALL.items() if name not in ("Saturation", "Hue", "RandAugmentColors")]
    check(*compare(several, VOLUMES, np.int16, parts, {}))


@pytest.mark.long
def test_a_kernel_that_reaches_over_several_cores():
    check(*compare([WIDE], PICTURES, np.uint8, (("a", "b"),), {}))


@pytest.mark.long
def test_padding():
    several = [ALL[name] for name in ("Contrast", "GaussianBlur", "GaussianNoise")]
    size = np.array([[32, 24], [30, 5], [9, 24], [7, 7]], np.int32)
    check(*compare(several, PICTURES, np.uint8, (("a", "b"),), {"size": size}))


def test_noise_is_the_same_to_the_last_bit():
    difference, text = compare([ALL["GaussianNoise"]], PICTURES, np.uint8, (("a", "b"),), {})
    assert difference == 0 and "collective-permute" not in text


def test_the_search_for_gathers_can_fail():
    mesh = Mesh(np.array(jax.devices()), ("a",))
    rows = jax.device_put(np.zeros((8, 4)), NamedSharding(mesh, PartitionSpec("a")))
    gathers = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))
    text = gathers.lower(rows).compile().as_text()
    with pytest.raises(AssertionError):
        check(0, text)
