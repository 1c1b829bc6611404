"""The streams of tf.data and on a mesh are the loader's own; the slabs of a batch together are the batch."""

import itertools
import math
import os
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
import tensorflow as tf
from jax.sharding import Mesh, PartitionSpec

from halofeed.errors import PartitionError, UsageError
from halofeed.loader import FlipLeftRight, Loader, RandomCrop, stream
from halofeed.loader.batch import AHEAD
from halofeed.loader.stream import PREFETCH
from halofeed.schemas.partition import Partition
from halofeed.trainer.mesh import make_mesh
from tests.support.batches import flip, same


@pytest.fixture(scope="module")
def folder(draw, write):
    return write(draw(11), masks=True)


STREAM = {"batch_size": 4, "seed": 3, "augment": [FlipLeftRight(), RandomCrop(16, 16)]}
OPTIONS = {**STREAM, "batch_size": 8, "include": ["masks", "size"]}
EVERYTHING = ["source", "key", "masks", "size", "transform", "difficult"]


def check(found, batch):
    """That what was found is a batch, its text in UTF-8."""
    text = [name for name, array in batch.items() if array.dtype.hasobject]
    decoded = {name: np.array([one.decode() for one in found[name]], object) for name in text}
    same({name: np.asarray(array) for name, array in found.items()} | decoded, batch)


@pytest.mark.parametrize("dims", [[1, 1, 1, 1], [1, 4, 1, 1], [1, 2, 2, 1], [1, 8, 1, 1]])
def test_the_slabs_together_are_the_batch(folder, dims):
    loader, cores = Loader(folder, **OPTIONS), math.prod(dims)
    partition = Partition(cores_per_replica=cores, dims={"image": dims})
    stream = loader.on_mesh(make_mesh(cores), partition, start_step=5)
    for step, placed in zip(range(5, 8), stream, strict=False):
        check(placed, loader.batch(step))
        tile = placed["image"].addressable_shards[0].data.shape
        assert tile == (8 * cores // 8, 16 // dims[1], 16 // dims[2], 3)


def test_a_finite_stream_ends_and_kept_batches_stay(folder):
    loader = Loader(folder, **OPTIONS, num_epochs=2)
    kept = list(loader.on_mesh(make_mesh(2), Partition(cores_per_replica=2, dims={"image": [1, 2, 1, 1]})))
    assert len(kept) == len(loader) == 3
    for step, placed in enumerate(kept):
        check(placed, loader.batch(step))


def test_the_hosts_of_the_loader_have_no_say(folder):
    other = Loader(folder, **OPTIONS, shard_index=1, shard_count=4)
    placed = next(other.on_mesh(make_mesh(1), Partition()))
    check(placed, Loader(folder, **OPTIONS).batch(0))


def test_a_mesh_of_ones_own_takes_a_spec_per_key(folder):
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "rows"))
    loader = Loader(folder, **OPTIONS)
    specs = {name: PartitionSpec("data") for name in loader.spec}
    specs["image"] = PartitionSpec("data", "rows")
    for step, placed in enumerate(itertools.islice(loader.on_mesh(mesh, specs), 2)):
        check(placed, loader.batch(step))
        assert placed["image"].addressable_shards[0].data.shape == (4, 4, 16, 3)


REFUSED = [
    (Partition(cores_per_replica=2, dims={"masks": [1, 1, 1, 1, 2]}), PartitionError, "masks"),
    (Partition(cores_per_replica=8, dims={"image": [1, 8, 1, 1]}), PartitionError, "mesh"),
    ({"image": PartitionSpec("rows")}, PartitionError, "image: the mesh has no axis 'rows'; it has replica"),
    ({"image": PartitionSpec(("replica", "rows"))}, PartitionError, "no axis 'rows'"),
    ("image=1,4,1,1", UsageError, "Partition.parse reads"),
    (None, UsageError, "expected a Partition"),
]


def test_what_does_not_fit_is_refused_before_a_record_is_read(folder):
    for partition, error, message in REFUSED:
        cores = 2 if isinstance(partition, Partition) else 4
        with pytest.raises(error, match=message):
            Loader(folder, **OPTIONS).on_mesh(make_mesh(cores), partition)
    with pytest.raises(UsageError, match="source is text"):
        Loader(folder, batch_size=8, include=["source"]).on_mesh(make_mesh(1), Partition())


AT_THE_END = """
import sys
import jax
from halofeed.loader import Loader
from halofeed.schemas.partition import Partition
from halofeed.trainer.mesh import make_mesh

loader = Loader(sys.argv[1], batch_size=4)
streams = [loader.batches(), loader.on_mesh(make_mesh(1), Partition())]
kept = [[next(stream) for _ in range(3)] for stream in streams]
"""


@pytest.mark.long
def test_a_program_that_holds_streams_and_batches_ends_without_a_word(folder):
    command, on_cpu = [sys.executable, "-c", AT_THE_END, folder], {**os.environ, "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=on_cpu)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize("start", [0, 1, 5, 10**9])
def test_the_stream_is_the_batches_from_any_step(folder, start):
    loader = Loader(folder, **STREAM, include=EVERYTHING)
    for step, element in enumerate(loader.dataset(start, repeat=True).take(4).as_numpy_iterator(), start):
        check(element, loader.batch(step))


def test_a_finite_stream_of_tf_data_ends_and_knows_its_length(folder):
    loader = Loader(folder, **STREAM, num_epochs=2)
    for start in range(7):
        dataset = loader.dataset(start)
        assert dataset.cardinality().numpy() == 6 - start
        assert len(list(dataset)) == 6 - start
    assert Loader(folder, **STREAM).dataset(repeat=True).cardinality() == tf.data.INFINITE_CARDINALITY
    with pytest.raises(UsageError, match="start_step 7: expected 0 to 6"):
        loader.dataset(7)


def test_a_damaged_record_stops_the_stream_with_file_place_and_cure(draw, write):
    folder = write(draw(4))
    path = next(folder.glob("*.tfrecord-00000-of-?????"))
    flip(path, -20)
    with pytest.raises(tf.errors.OpError) as caught:
        list(Loader(folder, batch_size=4, training=False).dataset())
    message = str(caught.value)
    assert str(path) in message and "halofeed convert` with --overwrite" in message
    assert re.search(r"byte [\d,]+: .*\(id \d+\)", message), message


def test_shapes_and_dtypes_are_static(folder):
    loader = Loader(folder, **STREAM, include=EVERYTHING, shard_count=2)
    element = loader.dataset(static_shapes=True).element_spec
    assert element == loader.element_spec
    assert list(element) and set(element) == set(loader.spec)
    for name, spec in element.items():
        expected = loader.spec[name]
        assert spec.shape == expected.shape
        assert spec.dtype == (tf.string if expected.dtype.hasobject else tf.as_dtype(expected.dtype))
    assert element["image"].shape == (2, 16, 16, 3)


def test_the_memory_is_adopted_and_returned(folder):
    loader = Loader(folder, **STREAM)
    made = set()
    original = loader._rows_in_order

    def noting(step, start, stop):
        batch = original(step, start, stop)
        made.add(batch["image"].ctypes.data)
        return batch

    loader._rows_in_order = noting
    batches = itertools.islice(loader.dataset(repeat=True).as_numpy_iterator(), 40)  # `take` holds one more
    assert {one["image"].ctypes.data for one in batches} <= made
    # AHEAD being made, PREFETCH waiting, one in use here, and two that change hands.
    assert len(made) <= AHEAD + PREFETCH + 3


def test_batches_that_fill_the_machine_are_made_one_by_one(folder, monkeypatch):
    monkeypatch.setattr(stream, "batches_ahead", lambda spec: 0)
    loader = Loader(folder, **STREAM)
    for step, element in enumerate(loader.dataset(repeat=True).take(4).as_numpy_iterator()):
        check(element, loader.batch(step))


def test_elements_that_are_kept_stay_as_they_are(folder):
    loader = Loader(folder, **STREAM)
    for step, element in enumerate(list(loader.dataset(repeat=True).take(30).as_numpy_iterator())):
        check(element, loader.batch(step))
