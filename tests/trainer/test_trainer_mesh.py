"""Meshes, activation splits and the environment of JAX keep their rules."""

import jax
import pytest
from jax.sharding import AxisType

from halofeed.schemas.errors import UsageError
from halofeed.trainer.mesh import activation_spec, constrain, make_mesh
from halofeed.trainer.platform import configure_platform, platform_environment
from tests.support.scripts import run_script


@pytest.mark.parametrize(
    ("cores", "shape"),
    [
        (1, {"replica": 8}),
        (2, {"replica": 4, "core0": 2}),
        (8, {"replica": 1, "core0": 2, "core1": 2, "core2": 2}),
    ],
)
def test_a_mesh_has_replicas_and_core_axes_of_two(cores, shape):
    mesh = make_mesh(cores)
    assert dict(mesh.shape) == shape
    assert set(mesh.axis_types) == {AxisType.Auto}
    assert list(mesh.devices.flat) == jax.devices()


@pytest.mark.parametrize(
    ("shape", "dims", "split"),
    [
        ((8, 16, 16, 4), (1, 8, 1, 1), True),
        ((8, 8, 16, 4), (1, 8, 1, 1), False),
        ((8, 20, 20, 4), (1, 8, 1, 1), False),
        ((8, 8, 4, 4), (1, 4, 2, 1), True),
        ((8, 8, 2, 4), (1, 4, 2, 1), False),
        ((8, 4, 1, 4), (1, 1, 1, 1), False),
        ((8, 16, 8, 8, 4), (1, 4, 2, 1, 1), True),
        ((8, 16, 2, 8, 4), (1, 4, 2, 1, 1), False),
        ((8, 3, 16, 5, 4), (1, 1, 8, 1, 1), True),
        ((8, 16, 8, 8, 4), (1, 8, 1, 1, 1), True),
        ((8, 12, 8, 8, 4), (1, 8, 1, 1, 1), False),
    ],
)
def test_an_activation_is_split_along_every_axis_of_its_image_or_along_none(shape, dims, split):
    first, *others, last = activation_spec(shape, dims)
    assert (first, last) == ("replica", None)
    parts = [0 if axes is None else len(axes) if isinstance(axes, tuple) else 1 for axes in others]
    assert parts == [count.bit_length() - 1 if split else 0 for count in dims[1:-1]]


def test_without_a_mesh_an_activation_is_left_alone():
    activation = jax.numpy.ones((2, 4, 4, 1))
    assert constrain(activation, None, (1, 2, 1, 1)) is activation


def test_other_xla_flags_are_kept_and_an_old_count_is_replaced():
    before = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false --xla_force_host_platform_device_count=2"}
    after = platform_environment(before, 16)
    assert after["XLA_FLAGS"] == "--xla_cpu_enable_fast_math=false --xla_force_host_platform_device_count=16"
    assert after["JAX_PLATFORMS"] == "cpu"


def test_without_virtual_devices_nothing_changes():
    assert platform_environment({"XLA_FLAGS": "--a"}, None) == {}


def test_a_new_process_sees_the_virtual_devices():
    program = (
        "import sys\n"
        "from halofeed.trainer.platform import configure_platform\n"
        "assert 'jax' not in sys.modules\n"
        "configure_platform(3)\n"
        "import jax; print(jax.devices())"
    )
    assert run_script(program).strip() == "[CpuDevice(id=0), CpuDevice(id=1), CpuDevice(id=2)]"


def test_it_is_refused_once_jax_is_imported():
    with pytest.raises(UsageError, match="JAX is already imported"):
        configure_platform(8)


def test_fewer_than_one_virtual_device_is_refused():
    with pytest.raises(UsageError, match="expected 1 or more, got 0"):
        platform_environment({}, 0)
