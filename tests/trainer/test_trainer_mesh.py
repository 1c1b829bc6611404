"""Meshes, activation splits and the environment of JAX keep their rules; processes find each other and agree."""

import jax
import pytest
from jax.sharding import AxisType

from halofeed.errors import UsageError
from halofeed.trainer.distributed import start_processes
from halofeed.trainer.mesh import activation_spec, constrain, make_mesh
from halofeed.trainer.platform import configure_platform, platform_environment
from tests.support.training import run_processes

MESHES = [(1, {"replica": 8}), (2, {"replica": 4, "core0": 2})]
MESHES += [(8, {"replica": 1, "core0": 2, "core1": 2, "core2": 2})]


@pytest.mark.parametrize(("cores", "shape"), MESHES)
def test_a_mesh_has_replicas_and_core_axes_of_two_and_without_one_an_activation_is_left_alone(cores, shape):
    mesh = make_mesh(cores)
    assert dict(mesh.shape) == shape
    assert set(mesh.axis_types) == {AxisType.Auto}
    assert list(mesh.devices.flat) == jax.devices()
    activation = jax.numpy.ones((2, 4, 4, 1))
    assert constrain(activation, None, (1, 2, 1, 1)) is activation


ACTIVATIONS = [((8, 16, 16, 4), (1, 8, 1, 1), True), ((8, 8, 16, 4), (1, 8, 1, 1), False)]
ACTIVATIONS += [((8, 20, 20, 4), (1, 8, 1, 1), False), ((8, 8, 4, 4), (1, 4, 2, 1), True)]
ACTIVATIONS += [((8, 8, 2, 4), (1, 4, 2, 1), False), ((8, 4, 1, 4), (1, 1, 1, 1), False)]
ACTIVATIONS += [((8, 16, 8, 8, 4), (1, 4, 2, 1, 1), True), ((8, 16, 2, 8, 4), (1, 4, 2, 1, 1), False)]
ACTIVATIONS += [((8, 3, 16, 5, 4), (1, 1, 8, 1, 1), True), ((8, 16, 8, 8, 4), (1, 8, 1, 1, 1), True)]
ACTIVATIONS += [((8, 12, 8, 8, 4), (1, 8, 1, 1, 1), False)]


@pytest.mark.parametrize(("shape", "dims", "split"), ACTIVATIONS)
def test_an_activation_is_split_along_every_axis_of_its_image_or_along_none(shape, dims, split):
    first, *others, last = activation_spec(shape, dims)
    assert (first, last) == ("replica", None)
    parts = [0 if axes is None else len(axes) if isinstance(axes, tuple) else 1 for axes in others]
    assert parts == [count.bit_length() - 1 if split else 0 for count in dims[1:-1]]


def test_other_xla_flags_are_kept_and_an_old_count_is_replaced():
    assert platform_environment({"XLA_FLAGS": "--a"}, None) == {}, "without virtual devices nothing changes"
    before = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false --xla_force_host_platform_device_count=2"}
    after = platform_environment(before, 16)
    assert after["XLA_FLAGS"] == "--xla_cpu_enable_fast_math=false --xla_force_host_platform_device_count=16"
    assert after["JAX_PLATFORMS"] == "cpu"


def test_it_is_refused_once_jax_is_imported_and_for_fewer_than_one_device():
    with pytest.raises(UsageError, match="JAX is already imported"):
        configure_platform(8)
    with pytest.raises(UsageError, match="expected 1 or more, got 0"):
        platform_environment({}, 0)


PROGRAM = """
import sys
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
from halofeed.trainer.distributed import agree_any, is_chief, start_processes
coordinator, count, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
start_processes(coordinator, count, number)
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
mesh = Mesh(np.array(jax.devices()), ("replica",))
rows = np.arange(8 * count, dtype=np.float32)
split = NamedSharding(mesh, PartitionSpec("replica"))
array = jax.make_array_from_callback(rows.shape, split, lambda index: rows[index])
total = jax.jit(lambda x: (x * x).sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))(array)
answers = [agree_any(False), agree_any(number == count - 1), agree_any(True)]
print(jax.device_count(), float(total), is_chief(), answers, flush=True)
"""


def test_two_processes_sum_over_all_their_devices_and_agree():
    outputs = run_processes(PROGRAM, 2)
    total = float(sum(number**2 for number in range(16)))
    expected = f"4 {total} {{}} [False, True, True]"
    assert outputs == [expected.format(True), expected.format(False)]


def test_partial_and_impossible_settings_are_refused():
    for settings, message in (
        (("127.0.0.1:1234", None, None), "process count, process id: expected together with coordinator"),
        ((None, 2, 0), "coordinator: expected together with process count, process id"),
        (("127.0.0.1:1234", 2, None), "process id: expected together with coordinator, process count"),
        (("127.0.0.1", 2, 0), "coordinator: expected host:port"),
        (("127.0.0.1:port", 2, 0), "coordinator: expected host:port"),
        (("127.0.0.1:70000", 2, 0), "coordinator: expected host:port"),
        (("127.0.0.1:1234", 0, 0), "process count: expected 1 or more, got 0"),
        (("127.0.0.1:1234", 2, 2), "process id: expected 0 to 1, got 2"),
        (("127.0.0.1:1234", 2, -1), "process id: expected 0 to 1, got -1"),
    ):
        with pytest.raises(UsageError, match=message):
            start_processes(*settings)
