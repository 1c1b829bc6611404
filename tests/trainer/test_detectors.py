"""RetinaNet, SSD and its pooling pyramid have the levels, the anchors and the first outputs that their losses need."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from halofeed.schemas.errors import UsageError
from halofeed.trainer.models import MODELS
from halofeed.trainer.models.layers import Layers, Pass
from halofeed.trainer.models.retinanet import RetinaNet
from halofeed.trainer.models.ssd import SsdPooling
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
        ({"backbone": "mobilenet_v1"}, (300, 301), [(38, 38), (19, 19), (10, 10), (5, 5), (3, 3)]),
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


def test_640_pixels_have_the_51150_anchors_of_levels_3_to_7():
    levels = abstract_outputs(abstract_model("retinanet", **SMALL), 640, 640, 3)
    assert sum(math.prod(level.anchors.shape[:3]) for level in levels) == 51150


def test_first_every_class_has_the_probability_of_the_focal_prior_and_boxes_are_their_anchors():
    layers = Layers(rngs=nnx.Rngs(0), dtype=jnp.float32)
    model = RetinaNet(layers, classes=2, image_shape=(64, 64, 3), **SMALL)
    image = jnp.asarray(np.random.default_rng(0).normal(size=(2, 64, 64, 3)), jnp.float32)
    for level in nnx.jit(lambda model, image: model(image))(model, image):
        assert np.abs(jax.nn.sigmoid(level.class_logits) - 0.01).max() < 0.005
        assert np.abs(level.box_codes).max() < 0.5


def test_towers_share_kernels_over_levels_and_have_norms_of_their_own():
    tower = abstract_model("retinanet", **SMALL).class_tower
    assert (len(tower.convolutions), len(tower.norms), len(tower.norms[0])) == (1, 5, 1)
    assert set(SMALL) < set(MODELS["retinanet"].options())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backbone": "vgg"}, "model.backbone 'vgg': not known; known: resnet50, mobilenet_v1"),
        ({"backbone": "mobilenet_v1", "blocks": (1, 1)}, "model.blocks: only resnet50 has them"),
        ({**SMALL, "last_level": 4}, "model.last_level: expected 5 or more, got 4"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        abstract_model("retinanet", **options)


SIDES = {300: [19, 10, 5, 3, 2, 1], 512: [32, 16, 8, 4, 2, 1], 75: [5, 3, 2, 1, 1, 1]}


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


def test_pooled_levels_share_every_kernel_and_see_the_largest_of_each_window():
    layers = Layers(rngs=nnx.Rngs(0), dtype=jnp.float32)
    model = SsdPooling(layers, classes=2, image_shape=(64, 64, 3), width=4)
    paths = [path for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param))]
    kernels = [path for path in paths if path[-1] == "kernel" and path[0] != "backbone"]
    assert len(kernels) == 3
    image = np.random.default_rng(0).normal(size=(1, 64, 64, 3)).astype(np.float32)

    @nnx.jit
    def evaluate(model: SsdPooling, image: jax.Array) -> Any:
        run = Pass(training=False)
        finest = model.backbone(image, run)[-1]
        pooled = jnp.max(finest.reshape(1, 2, 2, 2, 2, -1), (2, 4))
        tower = model.tower(pooled, 1, run)
        return model(image, run)[1].class_logits, model.outputs.logits(tower)

    found, expected = evaluate(model, jnp.asarray(image))
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-5, atol=1e-6)
