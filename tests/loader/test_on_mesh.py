"""The stream on a mesh is the loader's own; the slabs of a batch together are the batch."""

import itertools
import math
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from halofeed.errors import PartitionError, UsageError
from halofeed.loader import FlipLeftRight, Loader, RandomCrop
from halofeed.schemas.partition import Partition
from halofeed.trainer.mesh import make_mesh
from tests.support.batches import same


@pytest.fixture(scope="module")
def folder(draw, write):
    return write(draw(11), masks=True)


AUGMENT = [FlipLeftRight(), RandomCrop(16, 16)]
OPTIONS = {"batch_size": 8, "seed": 3, "augment": AUGMENT, "include": ["masks", "size"]}


def check(placed, batch):
    found = {name: np.asarray(array) for name, array in placed.items()}
    same(found, batch)


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
