"""Every device of a mesh gets exactly its slab of the batch."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from halofeed.errors import PartitionError
from halofeed.loader.batch import join_id, split_id
from halofeed.loader.mesh_batches import mesh_specs, needed_rows, place_batch
from halofeed.schemas.partition import Partition
from halofeed.trainer.mesh import make_mesh


def batch_of(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray[Any, Any]]:
    return {key: np.arange(math.prod(shape), dtype=np.int32).reshape(shape) for key, shape in shapes.items()}


DIMS = [[1, 1, 1, 1], [1, 2, 1, 1], [2, 1, 1, 1], [1, 4, 1, 1], [1, 2, 2, 1], [1, 8, 1, 1], [1, 4, 2, 1]]


@pytest.mark.parametrize("dims", [*DIMS, [1, 2, 2, 2], [2, 2, 2, 1]])
def test_each_core_of_each_replica_holds_its_row_major_tile(dims: list[int]) -> None:
    cores = math.prod(dims)
    shapes = {"image": (16, 8, 8, 2), "label": (16,)}
    batch = batch_of(shapes)
    mesh = make_mesh(cores)
    specs = mesh_specs(mesh, Partition(cores_per_replica=cores, dims={"image": dims}), shapes)
    placed = place_batch(mesh, specs, shapes, lambda a, b: {key: value[a:b] for key, value in batch.items()})

    replicas, rows = 8 // cores, 16 // (8 // cores)
    by_device = {key: {s.device: s.data for s in array.addressable_shards} for key, array in placed.items()}
    for replica, core in itertools.product(range(replicas), range(cores)):
        device = mesh.devices.reshape(replicas, cores)[replica, core]
        part = {key: value[replica * rows : (replica + 1) * rows] for key, value in batch.items()}
        tile = part["image"]
        for axis, (parts, at) in enumerate(zip(dims, np.unravel_index(core, dims), strict=True)):
            tile = np.split(tile, parts, axis)[at]
        np.testing.assert_array_equal(by_device["image"][device], tile)
        np.testing.assert_array_equal(by_device["label"][device], part["label"])
    for key, value in batch.items():
        np.testing.assert_array_equal(np.asarray(placed[key]), value)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_spec_of_any_axes_on_any_mesh_gives_what_device_put_gives(data: st.DataObject) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))
    axes = data.draw(st.permutations(["x", "y", None]))
    spec = PartitionSpec(*axes[: data.draw(st.integers(0, 3))])
    batch = batch_of({"image": (8, 4, 4)})
    shapes = {"image": (8, 4, 4)}
    placed = place_batch(mesh, {"image": spec}, shapes, lambda a, b: {"image": batch["image"][a:b]})
    expected = jax.device_put(batch["image"], NamedSharding(mesh, spec))
    for ours, theirs in zip(placed["image"].addressable_shards, expected.addressable_shards, strict=True):
        assert ours.device == theirs.device and ours.index == theirs.index
        np.testing.assert_array_equal(ours.data, theirs.data)


def test_a_mesh_over_some_devices_asks_for_all_rows_once() -> None:
    mesh = make_mesh(2, jax.devices()[2:6])
    shapes = {"image": (4, 4, 4, 1)}
    asked = []

    def rows(start: int, stop: int) -> dict[str, np.ndarray[Any, Any]]:
        asked.append((start, stop))
        return {"image": np.zeros((stop - start, 4, 4, 1), np.uint8)}

    specs = mesh_specs(mesh, Partition(cores_per_replica=2, dims={"image": [1, 2, 1, 1]}), shapes)
    place_batch(mesh, specs, shapes, rows)
    assert asked == [(0, 4)]
    assert needed_rows(mesh, specs, {"image": (4, 4, 4, 1)}) == (0, 4)


def test_ids_keep_all_their_bits_and_other_64_bit_integers_are_refused_rather_than_cut() -> None:
    ids = np.array([0, 1, -1, 2**63 - 1, -(2**63), 2**32, 2**40 + 7])
    np.testing.assert_array_equal(join_id(split_id(ids)), ids)
    with pytest.raises(PartitionError, match="count: int64 would be cut to 32 bits"):
        place_batch(make_mesh(1), {}, {"count": (8,)}, lambda a, b: {"count": np.arange(a, b)})


def test_what_does_not_fit_is_refused_with_the_cure() -> None:
    mesh = make_mesh(4)
    partition = Partition(cores_per_replica=4, dims={"image": [1, 4, 1, 1]})
    with pytest.raises(PartitionError, match=r"build it with halofeed.trainer.mesh.make_mesh\(4\)"):
        mesh_specs(make_mesh(2), partition, {"image": (8, 8, 8, 3)})
    specs = {"image": PartitionSpec(None, ("core0", "core1"))}
    with pytest.raises(PartitionError, match="axis 1 of size 6 does not divide by the 4 parts"):
        place_batch(mesh, specs, {"image": (2, 6, 8, 3)}, lambda a, b: {})
    with pytest.raises(PartitionError, match="expected rows 0 to 2 as"):
        place_batch(mesh, {}, {"image": (2, 8, 8, 3)}, lambda a, b: {"image": np.zeros((b - a, 4, 8, 3))})
