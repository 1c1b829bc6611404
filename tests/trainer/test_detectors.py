"""Detectors and their backbones have the maps, levels, anchors and first outputs that their losses need."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from halofeed.errors import UsageError
from halofeed.trainer.mesh import make_mesh
from halofeed.trainer.models import MODELS
from halofeed.trainer.models.layers import Layers, Pass
from halofeed.trainer.models.mobilenet import KERAS_PADDING, MobileNet
from halofeed.trainer.models.pyramid import doubled
from halofeed.trainer.models.resnet import ResNet, stem_pass
from halofeed.trainer.models.retinanet import RetinaNet
from tests.support.training import abstract_outputs

SMALL = {"blocks": (1, 1, 1, 1), "width": 8, "features": 8, "tower_depth": 1}


def abstract_model(name: str, **options: Any) -> Any:
    """A model for five classes whose arrays are not drawn."""

    def build() -> Any:
        return MODELS[name].build(Layers(rngs=nnx.Rngs(0)), classes=5, image_shape=(64, 64, 3), **options)

    return nnx.eval_shape(build)


@pytest.mark.parametrize(
    ("options", "size", "expected"),
    [
        ({}, (2560, 1300), [(320, 163), (160, 82), (80, 41), (40, 21), (20, 11)]),
        ({"backbone": "mobilenet_v1"}, (129, 64), [(17, 8), (9, 4), (5, 2), (3, 1), (2, 1)]),
        ({**SMALL, "last_level": 5, "scales_per_octave": 3}, (64, 96), [(8, 12), (4, 6), (2, 3)]),
    ],
)
def test_each_level_has_outputs_for_each_of_its_anchors(options, size, expected):
    model = abstract_model("retinanet", **options)
    anchors = 9 if options.get("scales_per_octave") == 3 else 6
    levels = abstract_outputs(model, *size, 3)
    assert [level.class_logits.shape for level in levels] == [(2, *grid, anchors, 5) for grid in expected]
    assert [level.box_codes.shape for level in levels] == [(2, *grid, anchors, 4) for grid in expected]
    assert [level.anchors.shape for level in levels] == [(*grid, anchors, 4) for grid in expected]
    assert {leaf.dtype for leaf in jax.tree.leaves(levels)} == {np.dtype("float32")}
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model))} == {np.dtype("float32")}


def test_first_every_class_has_the_probability_of_the_focal_prior_and_boxes_are_their_anchors():
    layers = Layers(rngs=nnx.Rngs(0), dtype=jnp.float32)
    model = RetinaNet(layers, classes=2, image_shape=(64, 64, 3), **SMALL)
    image = jnp.asarray(np.random.default_rng(0).normal(size=(2, 64, 64, 3)), jnp.float32)
    for level in nnx.jit(lambda model, image: model(image))(model, image):
        assert np.abs(jax.nn.sigmoid(level.class_logits) - 0.01).max() < 0.005
        assert np.abs(level.box_codes).max() < 0.5


def test_options_that_do_not_fit_are_refused():
    for options, message in (
        ({"backbone": "vgg"}, "model.backbone 'vgg': not known; known: resnet50, mobilenet_v1"),
        ({"backbone": "mobilenet_v1", "blocks": (1, 1)}, "model.blocks: only resnet50 has them"),
        ({**SMALL, "last_level": 4}, "model.last_level: expected 5 or more, got 4"),
    ):
        with pytest.raises(UsageError, match=message):
            abstract_model("retinanet", **options)


SIDES = {300: [19, 10, 5, 3, 2, 1], 75: [5, 3, 2, 1, 1, 1]}


@pytest.mark.parametrize(("name", "finest", "total"), [("", 3, 1917), ("_ppn", 6, 3000)])
def test_six_levels_have_outputs_for_each_of_their_anchors(name, finest, total):
    model = abstract_model(f"ssd_mobilenet_v1{name}")
    for side, expected in SIDES.items():
        levels = abstract_outputs(model, side, side, 3)
        anchors = [finest, *[6] * 5]
        grids = [(size, size, count) for size, count in zip(expected, anchors, strict=True)]
        assert [level.class_logits.shape for level in levels] == [(2, *grid, 5) for grid in grids]
        assert [level.box_codes.shape for level in levels] == [(2, *grid, 4) for grid in grids]
        assert [level.anchors.shape for level in levels] == [(*grid, 4) for grid in grids]
        assert {leaf.dtype for leaf in jax.tree.leaves(levels)} == {np.dtype("float32")}
        if side == 300:
            assert sum(math.prod(grid) for grid in grids) == total
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model))} == {np.dtype("float32")}


def test_the_extra_maps_of_ssd_have_the_published_channels_or_their_share():
    for options, expected in (({}, [512, 256, 256, 128]), ({"width": 8}, [128, 64, 64, 32])):
        extra = abstract_model("ssd_mobilenet_v1", **options).extra
        assert [block.channels for block in extra] == expected


BUILD: dict[str, Callable[[Layers], Any]] = {
    "resnet50": ResNet,
    "mobilenet_v1": MobileNet,
    "mobilenet_v1 as Keras pads": lambda layers: MobileNet(layers, padding=KERAS_PADDING),
    "mobilenet_v1 to stride 16": lambda layers: MobileNet(layers, blocks=11, width=8),
}


def abstract_of(build: Callable[[Layers], Any]) -> Any:
    """A model of shapes without arrays, with activations in bfloat16."""
    return nnx.eval_shape(lambda: build(Layers(rngs=nnx.Rngs(0))))


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("resnet50", (301, 75), [(76, 19, 256), (38, 10, 512), (19, 5, 1024), (10, 3, 2048)]),
        ("mobilenet_v1", (640, 300), [(80, 38, 256), (40, 19, 512), (20, 10, 1024)]),
        ("mobilenet_v1 as Keras pads", (640, 300), [(80, 37, 256), (40, 18, 512), (20, 9, 1024)]),
        ("mobilenet_v1 to stride 16", (300, 64), [(38, 8, 64), (19, 4, 128)]),
    ],
)
def test_maps_have_half_the_size_at_each_stride_rounded_up(name, size, expected):
    model = abstract_of(BUILD[name])
    found = abstract_outputs(model, *size, 3)
    assert [x.shape[1:] for x in found] == expected
    assert model.channels == tuple(shape[-1] for shape in expected)
    assert {x.dtype for x in found} == {np.dtype(jnp.bfloat16)}
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))} == {np.dtype("float32")}


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v1"])
def test_classifiers_of_any_width_give_float32_logits_of_any_image(name):
    options = {"width": 8, **({"blocks": (1, 2, 1, 1)} if name == "resnet50" else {})}
    given = {"classes": 7, "image_shape": (40, 56, 1), **options}
    model = abstract_of(lambda layers: MODELS[name].build(layers, **given))
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
