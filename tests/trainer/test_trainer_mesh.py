"""Do meshes and activation splits keep their rules?"""

from __future__ import annotations

import jax
import pytest
from jax.sharding import AxisType

from halofeed.schemas.errors import PartitionError
from halofeed.trainer.mesh import activation_spec, constrain, make_mesh


@pytest.mark.parametrize(
    ("cores", "shape"),
    [
        (1, {"replica": 8}),
        (2, {"replica": 4, "core0": 2}),
        (8, {"replica": 1, "core0": 2, "core1": 2, "core2": 2}),
    ],
)
def test_a_mesh_has_replicas_and_core_axes_of_two(cores: int, shape: dict[str, int]) -> None:
    mesh = make_mesh(cores)
    assert dict(mesh.shape) == shape
    assert set(mesh.axis_types) == {AxisType.Auto}
    assert list(mesh.devices.flat) == jax.devices()


def test_devices_that_do_not_divide_are_refused_with_the_cure() -> None:
    with pytest.raises(PartitionError, match="--virtual-devices 16"):
        make_mesh(16)
    with pytest.raises(PartitionError, match="use 4 of them"):
        make_mesh(4, jax.devices()[:6])


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
def test_an_activation_is_split_along_every_axis_of_its_image_or_along_none(
    shape: tuple[int, ...], dims: tuple[int, ...], split: bool
) -> None:
    first, *others, last = activation_spec(shape, dims)
    assert (first, last) == ("replica", None)
    parts = [0 if axes is None else len(axes) if isinstance(axes, tuple) else 1 for axes in others]
    assert parts == [count.bit_length() - 1 if split else 0 for count in dims[1:-1]]


def test_without_a_mesh_an_activation_is_left_alone() -> None:
    activation = jax.numpy.ones((2, 4, 4, 1))
    assert constrain(activation, None, (1, 2, 1, 1)) is activation
