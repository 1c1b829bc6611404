"""An example's augmentation depends only on its seed, epoch and id, not on its batch or the number of hosts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from halofeed.errors import UsageError
from halofeed.loader import Loader
from halofeed.loader.batch import join_id, split_id
from halofeed.loader.device import (
    AUGMENTATIONS,
    Brightness,
    Contrast,
    GaussianBlur,
    GaussianNoise,
    Hue,
    HUWindow,
    augment_on_device,
    device_keys,
)
from halofeed.loader.device.augmentation import draw_all
from halofeed.loader.device.ops import jax_ops
from tests.support.device_oracles import augmented
from tests.support.level_rows import others

SEED = 2**63 + 12345
IDS = np.array([2**62 + 5, 7, 2**33, 2**40 + 1], np.int64)
EPOCHS = np.array([0, 1, 0, 70000], np.int32)
ALL = {name: kind(probability=1.0) for name, kind in AUGMENTATIONS.items()}
del ALL["RandAugmentColors"]  # test_rand_augment_colors.py compares it with Pillow
ALL["GaussianBlur"] = GaussianBlur(probability=1.0, sigma_pixels=(0.5, 1.5), depth=True)
OF_PICTURES = [name for name in ALL if name != "HUWindow"]
OF_VOLUMES = [name for name in ALL if name not in ("Saturation", "Hue")]


def pictures(shape=(4, 7, 6, 3), dtype=np.uint8, seed=0, **others):
    low, high = (0, 256) if dtype == np.uint8 else (-200, 400)
    image = np.random.default_rng(seed).integers(low, high, shape)
    return {"image": jnp.asarray(image, dtype), "id": split_id(IDS), "epoch": EPOCHS, **others}


def changed(batch, augmentations, values=None, **options):
    step = jax.jit(lambda batch: augment_on_device(batch, augmentations, seed=SEED, values=values, **options))
    return np.asarray(step(batch)["image"], np.float64)


def expected_of(batch, row, several, values):
    image = np.asarray(batch["image"][row])
    return augmented(image, several, seed=SEED, identity=int(IDS[row]), epoch=int(EPOCHS[row]), values=values)


@pytest.mark.parametrize("name", others(OF_PICTURES, ("Hue", "GaussianNoise")))
def test_pictures_are_as_the_oracle_says(name):
    batch = pictures()
    found = changed(batch, [ALL[name]])
    for row in range(4):
        expected = expected_of(batch, row, [ALL[name]], (0, 255))
        np.testing.assert_allclose(found[row], np.clip(expected, 0, 255), atol=2e-3)
        assert np.abs(found[row] - np.asarray(batch["image"][row])).max() > 0.5


@pytest.mark.parametrize("name", others(OF_VOLUMES, ("HUWindow", "BiasField")))
def test_volumes_are_as_the_oracle_says(name):
    batch, values = pictures((4, 5, 4, 6, 2), np.int16), (-160.0, 240.0)
    found = changed(batch, [ALL[name]], values)
    for row in range(4):
        expected = expected_of(batch, row, [ALL[name]], values)
        np.testing.assert_allclose(found[row], expected, rtol=1e-5, atol=5e-3)


def test_a_list_is_applied_in_order_and_some_examples_are_left_out():
    several = [Contrast(), GaussianNoise(probability=0.7), GaussianBlur(), Hue()]
    batch = pictures((4, 7, 6, 3), np.float32)
    found = changed(batch, several, (0, 255))
    chosen = 0
    for row in range(4):
        np.testing.assert_allclose(found[row], expected_of(batch, row, several, (0, 255)), atol=5e-3)
        image = np.asarray(batch["image"][row])
        alone = [expected_of(batch, row, [one], (0, 255)) for one in several]
        chosen += sum(not np.array_equal(one, image) for one in alone)
    assert 0 < chosen < 16


ZERO = {"Brightness": {"shift": (0, 0)}, "Contrast": {"factor": (1, 1)}, "Saturation": {"factor": (1, 1)}}
ZERO |= {"Hue": {"degrees": (0, 0)}, "Gamma": {"exponent": (1, 1)}, "GaussianBlur": {"sigma_pixels": (0, 0)}}
ZERO |= {"GaussianNoise": {"deviation": (0, 0)}, "BiasField": {"strength": (0, 0)}}
UNBOUNDED = ("RandAugmentColors",)
"""Without a strength at which nothing changes."""
ZERO |= {"HUWindow": {"center_hu": (50, 50), "width_hu": (1000, 1000)}}


@pytest.mark.parametrize(
    "name", others([name for name in AUGMENTATIONS if name not in UNBOUNDED], ("Contrast",))
)
def test_nothing_changes_at_zero_strength_or_probability(name):
    batch = pictures((4, 7, 6, 3), np.int16)
    stored, values = np.asarray(batch["image"], np.float64), (-450, 550)
    assert np.array_equal(changed(batch, [AUGMENTATIONS[name](probability=0)], values), stored)
    assert np.array_equal(changed(batch, [AUGMENTATIONS[name](probability=1, **ZERO[name])], values), stored)


@pytest.mark.parametrize("dtype", others(["uint8", "int16", "bfloat16", "float16", "float32"], ("bfloat16",)))
def test_any_stored_dtype_is_computed_in_float32(dtype):
    whole = np.random.default_rng(0).integers(0, 200, (4, 7, 6, 3))
    several = [ALL["Brightness"], ALL["Contrast"], ALL["GaussianNoise"]]
    reference = changed(pictures() | {"image": jnp.asarray(whole, "float32")}, several, (0, 255))
    batch = pictures() | {"image": jnp.asarray(whole, dtype)}
    shaped = jax.eval_shape(lambda batch: augment_on_device(batch, several, seed=1, values=(0, 255)), batch)
    assert shaped["image"].dtype == jnp.float32
    found = changed(batch, several, (0, 255))
    if dtype == "uint8":
        reference = reference.clip(0, 255)
    np.testing.assert_allclose(found, reference, atol=1 if dtype == "bfloat16" else 1e-4)


def test_eight_bits_are_clipped_to_what_they_hold_and_wider_values_are_not():
    batch = pictures()
    up = [Brightness(shift=(0.9, 0.9), probability=1)]
    assert changed(batch, up).max() == 255
    assert changed(batch | {"image": batch["image"].astype("int16")}, up, (0, 255)).max() > 255


def test_one_epoch_for_all_takes_the_place_of_the_batch_s():
    batch = pictures()
    later = changed(batch | {"epoch": np.full(4, 9)}, [GaussianNoise(probability=1)])
    del batch["epoch"]
    assert np.array_equal(changed(batch, [GaussianNoise(probability=1)], epoch=9), later)


@pytest.mark.long
def test_noise_is_normal_and_independent():
    one = draw_all(jax_ops(), 3, split_id(np.arange(2)), np.zeros(2, np.int32), [1.0], 4)[0]
    noise = np.asarray(one.normal((256, 256, 3)), np.float64)
    assert np.abs(noise).max() > 4 and abs(noise.mean()) < 0.01 and abs(noise.std() - 1) < 0.01
    assert abs((noise**4).mean() - 3) < 0.05 and abs((noise**3).mean()) < 0.03
    for other in (noise[::-1], *(np.roll(noise, 1, axis) for axis in (1, 2, 3))):
        assert abs((noise * other).mean()) < 0.01


@pytest.mark.long
def test_chances_and_strengths_are_drawn_evenly():
    ids = split_id(np.arange(20000))
    one = draw_all(jax_ops(), 3, ids, np.int32(0), [0.3], 4)[0]
    assert abs(np.asarray(one.chosen).mean() - 0.3) < 0.01
    counts, _ = np.histogram(np.asarray(one.uniform[:, 1]), 20, (0, 1))
    assert np.abs(counts - 1000).max() < 150


@pytest.mark.long
def test_the_mean_of_a_large_image_is_exact():
    image = jnp.full((1, 3000, 3000, 1), 100.25, jnp.float32)
    batch = {"image": image, "id": split_id(np.array([1])), "epoch": np.array([0])}
    flat = [Contrast(factor=(0, 0), probability=1.0)]
    found = augment_on_device(batch, flat, seed=0, values=(0, 255))["image"]
    np.testing.assert_allclose(np.asarray(found[0, ::500, ::500]), 100.25, rtol=1e-6)


@pytest.mark.long
def test_padding_of_pictures_stays_and_gives_nothing():
    # But for noise and bias fields, which are drawn for places of the frame.
    several = [ALL[name] for name in OF_PICTURES if name not in ("GaussianNoise", "BiasField")]
    small = pictures((4, 5, 4, 3), np.float32)
    framed = np.full((4, 9, 7, 3), 4000.0, np.float32)
    framed[:, :5, :4] = small["image"]
    sizes = np.tile(np.array([[5, 4]], np.int32), (4, 1))
    found = changed(small | {"image": jnp.asarray(framed), "size": sizes}, several, (0, 255))
    assert (found[:, 5:] == 4000).all() and (found[:, :, 4:] == 4000).all()
    np.testing.assert_allclose(found[:, :5, :4], changed(small, several, (0, 255)), atol=2e-3)


def test_padding_of_volumes_stays_and_gives_nothing():
    several = [GaussianBlur(probability=1, depth=True), Contrast(probability=1), HUWindow(probability=1)]
    small = pictures((4, 5, 4, 6, 1), np.int16)
    framed = np.full((4, 8, 8, 8, 1), -1024, np.int16)
    framed[:, 1:6, 2:6, 2:] = small["image"]
    extent = np.tile(np.array([[[1, 2, 2], [6, 6, 8]]], np.int32), (4, 1, 1))
    found = changed(small | {"image": framed, "extent": extent}, several, (-160, 240))
    expected = changed(small, several, (-160, 240))
    np.testing.assert_allclose(found[:, 1:6, 2:6, 2:], expected, rtol=1e-5, atol=1e-3)
    found[:, 1:6, 2:6, 2:] = -1024
    assert (found == -1024).all()


def test_all_but_the_image_stays():
    others = {"label": jnp.arange(4), "boxes": jnp.ones((4, 2, 4)), "valid": jnp.array([True] * 3 + [False])}
    batch = pictures() | others
    found = augment_on_device(batch, [Brightness()], seed=1)
    assert found.keys() == batch.keys() and all(found[key] is batch[key] for key in batch if key != "image")


def test_what_is_not_chosen_by_a_bound_cannot_be_made():
    for name, kind in AUGMENTATIONS.items():
        with pytest.raises(UsageError, match=f"{name}: probability: expected 0 to 1, got 2"):
            kind(probability=2)
        for field in kind.least:
            for wrong in ((2, 1), (1,), "ab", (0, float("nan")), 3):
                with pytest.raises(UsageError, match=f"{name}: {field}: expected a lower and an upper"):
                    kind(**{field: wrong})
        lists = {field: list(getattr(kind(), field)) for field in kind.least}
        assert dataclasses.replace(kind(), **lists) == kind()


@pytest.mark.parametrize(
    ("batch", "augmentations", "message"),
    [
        ({"epoch": None}, [Brightness()], 'epoch.*include=."epoch"'),
        ({"id": None}, [Brightness()], "expected 'id'"),
        ({"id": np.arange(4, dtype=np.int32)}, [Brightness()], r"uint32 \[batch, 2\], got int32 \[4\]"),
        ({"image": np.zeros((4, 5, 5, 1), np.int16)}, [Brightness()], "values: images of int16 do not say"),
        ({"image": np.zeros((4, 5, 5, 1), np.uint8)}, [Hue()], r"Hue: .*have 1 channel"),
        ({}, [HUWindow()], "expected Hounsfield units, the images are uint8"),
        ({}, [Brightness], r"such as Brightness\(\), got <class"),
    ],
)
def test_what_cannot_be_says_why(batch, augmentations, message):
    given = {key: value for key, value in {**pictures(), **batch}.items() if value is not None}
    with pytest.raises(UsageError, match=message):
        augment_on_device(given, augmentations, seed=1)


SEVERAL = [Brightness(), GaussianNoise()]


@pytest.fixture(scope="module")
def folder(draw, write):
    return write(draw(10))


def loader_of(folder, **options):
    keys = device_keys(Loader(folder, batch_size=4).manifest)
    return Loader(folder, **{"batch_size": 8, "include": keys, **options})


def augmented_whole(batch):
    return np.asarray(jax.jit(lambda batch: augment_on_device(batch, SEVERAL, seed=5)["image"])(batch))


def on_one_device(loader, step):
    mesh = Mesh(np.array(jax.devices()[:1]), ("a",))
    return next(loader.on_mesh(mesh, {"image": PartitionSpec("a")}, step))


def test_what_is_asked_for_follows_the_kind(folder):
    assert set(loader_of(folder).spec) - set(Loader(folder, batch_size=8).spec) == {"epoch", "size"}


@pytest.mark.long
def test_an_example_is_the_same_in_batches_of_any_size_and_on_hosts_of_any_number(folder):
    """The second batch of eight of ten straddles two epochs."""
    whole = on_one_device(loader_of(folder), 1)
    assert np.asarray(whole["epoch"]).tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    expected = augmented_whole(whole)
    for half in range(2):
        rows = slice(4 * half, 4 * half + 4)
        smaller = on_one_device(loader_of(folder, batch_size=4), 2 + half)
        np.testing.assert_allclose(augmented_whole(smaller), expected[rows], atol=1e-3)
        host = loader_of(folder, shard_index=half, shard_count=2).batch(1)
        found = np.asarray(augment_on_device(host, SEVERAL, seed=5)["image"])
        np.testing.assert_allclose(found, expected[rows], atol=1e-3)


def test_a_mesh_of_cores_gives_the_same(folder):
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))
    specs = {"image": PartitionSpec("a", "b"), "epoch": PartitionSpec("a"), "id": PartitionSpec("a")}
    split = next(loader_of(folder).on_mesh(mesh, specs, 1))
    expected = augmented_whole(on_one_device(loader_of(folder), 1))
    np.testing.assert_allclose(augmented_whole(split), expected, atol=1e-3)


def test_each_draw_of_a_record_has_a_number_of_its_own(folder):
    loader = loader_of(folder, draw_by=np.array([100.0] + [1.0] * 9))
    batch = loader.batch(3)
    drawn = list(zip(join_id(batch["id"]).tolist(), batch["epoch"].tolist(), strict=True))
    assert len(set(join_id(batch["id"]).tolist())) < 8 == len(set(drawn))
    assert batch["epoch"].dtype == np.int32 and (batch["epoch"] >= 0).all()
