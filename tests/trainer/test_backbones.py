"""Maps of the backbones have the sizes, channels and precision that detectors need."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.trainer.mesh import make_mesh
from halofeed.trainer.models import MODELS
from halofeed.trainer.models.fpn import FeaturePyramid, doubled
from halofeed.trainer.models.layers import Layers, Pass
from halofeed.trainer.models.mobilenet import KERAS_PADDING, MobileNet
from halofeed.trainer.models.resnet import ResNet, stem_pass
from tests.support.training import abstract_outputs

BUILD: dict[str, Callable[[Layers], Any]] = {
    "resnet50": ResNet,
    "mobilenet_v1": MobileNet,
    "mobilenet_v1 as Keras pads": lambda layers: MobileNet(layers, padding=KERAS_PADDING),
    "mobilenet_v1 to stride 16": lambda layers: MobileNet(layers, blocks=11, width=8),
}


def abstract(build: Callable[[Layers], Any]) -> Any:
    """A model of shapes without arrays, with activations in bfloat16."""
    return nnx.eval_shape(lambda: build(Layers(rngs=nnx.Rngs(0))))


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("resnet50", (640, 320), [(160, 80, 256), (80, 40, 512), (40, 20, 1024), (20, 10, 2048)]),
        ("resnet50", (301, 75), [(76, 19, 256), (38, 10, 512), (19, 5, 1024), (10, 3, 2048)]),
        ("mobilenet_v1", (640, 300), [(80, 38, 256), (40, 19, 512), (20, 10, 1024)]),
        ("mobilenet_v1 as Keras pads", (640, 300), [(80, 37, 256), (40, 18, 512), (20, 9, 1024)]),
        ("mobilenet_v1 to stride 16", (300, 64), [(38, 8, 64), (19, 4, 128)]),
    ],
)
def test_maps_have_half_the_size_at_each_stride_rounded_up(name, size, expected):
    model = abstract(BUILD[name])
    found = abstract_outputs(model, *size, 3)
    assert [x.shape[1:] for x in found] == expected
    assert model.channels == tuple(shape[-1] for shape in expected)
    assert {x.dtype for x in found} == {np.dtype(jnp.bfloat16)}
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))} == {np.dtype("float32")}


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v1"])
def test_classifiers_of_any_width_give_float32_logits_of_any_image(name):
    options = {"width": 8, **({"blocks": (1, 2, 1, 1)} if name == "resnet50" else {})}
    model = abstract(lambda layers: MODELS[name].build(layers, classes=7, image_shape=(40, 56, 1), **options))
    logits = abstract_outputs(model, 40, 56, 1)
    assert (logits.shape, logits.dtype) == ((2, 7), np.dtype("float32"))
    assert set(options) == set(MODELS[name].options())


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.booleans(), st.booleans())
def test_doubling_repeats_rows_and_cuts_what_an_uneven_map_lacks(height, width, uneven_height, uneven_width):
    x = np.arange(height * width, dtype=np.float32).reshape(1, height, width, 1)
    shape = (1, 2 * height - uneven_height, 2 * width - uneven_width, 1)
    found = np.asarray(doubled(jnp.asarray(x), shape, Pass()))
    assert found.shape == shape
    for row in range(shape[1]):
        for column in range(shape[2]):
            assert found[0, row, column, 0] == x[0, row // 2, column // 2, 0]


def test_the_pyramid_adds_doubled_smoothed_levels_to_laterals():
    """With identities for kernels and norms, each level is the sum of what lies above it."""
    pyramid = FeaturePyramid(Layers(rngs=nnx.Rngs(0), dtype=jnp.float32, norm_epsilon=0.0), (1, 1, 1), 1, 4)
    center = np.zeros((3, 3, 1, 1), np.float32)
    center[1, 1] = 1
    for lateral in pyramid.laterals:
        lateral.kernel[...] = jnp.ones((1, 1, 1, 1))
    for unit in (*pyramid.smoothing, *pyramid.coarser):
        unit.convolution.kernel[...] = jnp.asarray(center)
    maps = [np.full((1, size, size, 1), value, np.float32) for size, value in ((5, 1), (3, 2), (2, -4))]
    maps[2][0, 1, 1] = 1
    finest, middle, coarse, coarser = pyramid([jnp.asarray(x) for x in maps], Pass(training=False))
    np.testing.assert_array_equal(coarse, maps[2])
    np.testing.assert_array_equal(middle[0, :, :, 0], [[0, 0, 0], [0, 0, 0], [0, 0, 3]])
    expected = np.ones((5, 5))
    expected[4, 4] = 4
    np.testing.assert_array_equal(finest[0, :, :, 0], expected)
    assert coarser.shape == (1, 1, 1, 1)


def test_an_image_of_fewer_rows_than_the_first_halo_is_whole_for_the_first_convolution():
    """XLA's partitioner aborts the process where a halo is wider than the neighbor's rows."""
    run = Pass(mesh=make_mesh(8), dims=(1, 8, 1, 1))
    assert stem_pass((2, 24, 64, 3), run) is run
    assert stem_pass((2, 16, 64, 3), run).dims is None
    assert stem_pass((2, 8, 8, 3), Pass()) == Pass()


def test_resnet_on_two_rows_a_core_gives_what_one_device_gives():
    model = ResNet(Layers(rngs=nnx.Rngs(0), dtype=jnp.float32), blocks=(1, 1, 1, 1), width=4)
    image = jnp.asarray(np.random.default_rng(0).normal(size=(1, 8, 16, 3)), jnp.float32)
    run = Pass(mesh=make_mesh(4, jax.devices()[:4]), dims=(1, 4, 1, 1), training=False)
    alone = nnx.jit(lambda model, x: model(x, Pass(training=False)))(model, image)
    for found, expected in zip(nnx.jit(lambda model, x: model(x, run))(model, image), alone, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_backward_pass_keeps_no_more_of_the_stem_than_its_convolution_gives():
    model = ResNet(Layers(rngs=nnx.Rngs(0), dtype=jnp.float32), blocks=(1, 1, 1, 1), width=8)
    graph, parameters, statistics = nnx.split(model, nnx.Param, ...)

    def maps(parameters: Any, image: jax.Array) -> Any:
        return nnx.merge(graph, parameters, statistics, copy=True)(image, Pass())

    backward = jax.eval_shape(lambda *given: jax.vjp(maps, *given)[1], parameters, jnp.ones((2, 64, 64, 3)))
    of_stem = [leaf for leaf in jax.tree.leaves(backward) if leaf.shape == (2, 32, 32, 8)]
    assert len(of_stem) == 2, "the convolution's output, and what its variance is made of"
