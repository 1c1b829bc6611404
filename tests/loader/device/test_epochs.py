"""A batch holds the epoch of each example, so that all hosts augment alike."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from halofeed.loader import Loader
from halofeed.loader.device import Brightness, GaussianNoise, augment_on_device, device_keys

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

SEVERAL = [Brightness(), GaussianNoise()]


@pytest.fixture(scope="module")
def folder(draw, write):
    return write(draw(10))


def loader_of(folder, **options):
    keys = device_keys(Loader(folder, batch_size=4).manifest)
    return Loader(folder, **{"batch_size": 8, "include": keys, **options})


def augmented(batch):
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
    expected = augmented(whole)
    for half in range(2):
        rows = slice(4 * half, 4 * half + 4)
        smaller = on_one_device(loader_of(folder, batch_size=4), 2 + half)
        np.testing.assert_allclose(augmented(smaller), expected[rows], atol=1e-3)
        host = loader_of(folder, shard_index=half, shard_count=2).batch(1)
        found = np.asarray(augment_on_device(host, SEVERAL, seed=5)["image"])
        np.testing.assert_allclose(found, expected[rows], atol=1e-3)


def test_a_mesh_of_cores_gives_the_same(folder):
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))
    specs = {"image": PartitionSpec("a", "b"), "epoch": PartitionSpec("a"), "id": PartitionSpec("a")}
    split = next(loader_of(folder).on_mesh(mesh, specs, 1))
    np.testing.assert_allclose(augmented(split), augmented(on_one_device(loader_of(folder), 1)), atol=1e-3)


def test_each_draw_of_a_record_has_a_number_of_its_own(folder):
    loader = loader_of(folder, draw_by=np.array([100.0] + [1.0] * 9))
    batch = loader.batch(3)
    drawn = list(zip(batch["id"].tolist(), batch["epoch"].tolist(), strict=True))
    assert len(set(batch["id"].tolist())) < 8 == len(set(drawn))
    assert batch["epoch"].dtype == np.int32 and (batch["epoch"] >= 0).all()
