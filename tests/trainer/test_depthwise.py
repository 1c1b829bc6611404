"""Gradients of depthwise convolutions are right where cores of a replica do the same work."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from halofeed.trainer.mesh import constrain, make_mesh
from halofeed.trainer.models.convolutions import convolve_depthwise, is_depthwise
from halofeed.trainer.models.layers import ConvolutionPadding, Layers

BATCH, CHANNELS = 4, 6


def layer(stride: int, padding: ConvolutionPadding, bias: bool = False) -> nnx.Conv:
    layers = Layers(rngs=nnx.Rngs(0), dtype=jnp.float64, param_dtype=jnp.float64)
    given = {"stride": stride, "padding": padding, "bias": bias, "bias_init": nnx.initializers.ones}
    return layers.convolution(CHANNELS, CHANNELS, groups=CHANNELS, **given)


def slow_weight_gradient(x: Any, of_y: Any, stride: int, pads: Any) -> np.ndarray[Any, Any]:
    """Each kernel position meets the input it was multiplied with, and the output's gradient there."""
    padded = np.pad(x, ((0, 0), *pads, (0, 0)))
    gradient = np.zeros((3, 3, 1, CHANNELS))
    for row in range(of_y.shape[1]):
        for column in range(of_y.shape[2]):
            window = padded[:, row * stride :, column * stride :][:, :3, :3]
            gradient[:, :, 0] += np.einsum("nhwc,nc->hwc", window, of_y[:, row, column])
    return gradient


@pytest.mark.parametrize(
    ("height", "stride", "padding", "pads", "cores", "dims"),
    [
        (8, 1, "SAME", ((1, 1), (1, 1)), 4, (1, 2, 2, 1)),  # whole: a column a core
        (8, 2, "SAME", ((0, 1), (0, 1)), 2, (1, 2, 1, 1)),  # split to split
        (4, 2, "SAME", ((0, 1), (0, 1)), 2, (1, 2, 1, 1)),  # split to whole
        (5, 2, ((0, 1), (0, 1)), ((0, 1), (0, 1)), 2, None),  # images whole on two cores
    ],
)
def test_weight_gradients_are_those_of_one_device(height, stride, padding, pads, cores, dims):
    generator = np.random.default_rng(0)
    mesh = make_mesh(cores)
    with jax.enable_x64(True):
        convolution = layer(stride, padding, bias=True)
        x = generator.normal(size=(8, height, 2, CHANNELS))
        expected, gradient_of = jax.vjp(convolution, jnp.asarray(x))
        of_y = generator.normal(size=expected.shape)
        graph, parameters = nnx.split(convolution)

        def outputs(parameters: Any, x: jax.Array) -> jax.Array:
            x = constrain(x, mesh, dims)
            y = convolve_depthwise(nnx.merge(graph, parameters), x, mesh, dims)
            return constrain(y, mesh, dims)

        @jax.jit
        def all_of(parameters: Any, x: jax.Array, of_y: jax.Array) -> Any:
            y, gradients = jax.vjp(outputs, parameters, x)
            return y, gradients(constrain(of_y, mesh, dims))

        sharding = NamedSharding(mesh, PartitionSpec("replica"))  # type: ignore[no-untyped-call]
        y, (of_parameters, of_x) = all_of(parameters, jax.device_put(x, sharding), of_y)
        np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(of_x, gradient_of(jnp.asarray(of_y))[0], rtol=1e-12, atol=1e-12)
        slow = slow_weight_gradient(x, of_y, stride, pads)
        np.testing.assert_allclose(of_parameters["kernel"][...], slow, rtol=1e-11, atol=1e-11)


def test_without_the_sum_a_level_that_is_whole_on_two_cores_has_twice_the_weight_gradient():
    """What `convolve_depthwise` is for. If XLA fixes the fault, this test fails; the detour may then go."""
    mesh = make_mesh(2)
    with jax.enable_x64(True):
        graph, parameters = nnx.split(layer(1, "SAME"))
        x = np.random.default_rng(0).normal(size=(BATCH, 2, 2, CHANNELS))

        def loss(parameters: Any, x: jax.Array, mesh: Any) -> jax.Array:
            y = nnx.merge(graph, parameters)(constrain(x, mesh, None))
            return jnp.sum(constrain(y, mesh, None) * x)

        expected = jax.jit(jax.grad(lambda parameters, x: loss(parameters, x, None)))(parameters, x)
        sharding = NamedSharding(mesh, PartitionSpec("replica"))  # type: ignore[no-untyped-call]
        split = jax.device_put(x, sharding)
        found = jax.jit(jax.grad(lambda parameters, x: loss(parameters, x, mesh)))(parameters, split)
        np.testing.assert_allclose(found["kernel"][...], 2 * expected["kernel"][...], rtol=1e-12, atol=1e-12)


def test_only_convolutions_of_each_channel_apart_take_the_detour():
    layers = Layers(rngs=nnx.Rngs(0))
    groups = {(6, 6, 6): True, (6, 6, 1): False, (6, 6, 3): False, (6, 12, 6): False, (1, 1, 1): False}
    for (before, after, count), expected in groups.items():
        assert is_depthwise(layers.convolution(before, after, groups=count)) is expected
