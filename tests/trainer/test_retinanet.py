"""Has RetinaNet the levels and the first outputs that its losses count on, and the same gradients when it is split?"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from halofeed.schemas.errors import UsageError
from halofeed.trainer.mesh import make_mesh
from halofeed.trainer.models import MODELS
from halofeed.trainer.models.layers import Layers, Pass
from halofeed.trainer.models.retinanet import RetinaNet

SMALL = {"blocks": (1, 1, 1, 1), "width": 8, "features": 8, "tower_depth": 1}


def abstract_levels(model: Any, *shape: int) -> Any:
    image = jax.ShapeDtypeStruct((2, *shape), jnp.bfloat16)
    return nnx.eval_shape(lambda model, image: model(image, Pass()), model, image)


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        (
            {},
            {
                (640, 640): [(80, 80), (40, 40), (20, 20), (10, 10), (5, 5)],
                (2560, 1300): [(320, 163), (160, 82), (80, 41), (40, 21), (20, 11)],
            },
        ),
        (
            {"backbone": "mobilenet_v1"},
            {
                (300, 301): [(38, 38), (19, 19), (10, 10), (5, 5), (3, 3)],
                (129, 64): [(17, 8), (9, 4), (5, 2), (3, 1), (2, 1)],
            },
        ),
        ({**SMALL, "last_level": 5, "scales_per_octave": 3}, {(64, 96): [(8, 12), (4, 6), (2, 3)]}),
    ],
)
def test_each_level_has_outputs_for_each_of_its_anchors(options: dict[str, Any], sizes: Any) -> None:
    model = nnx.eval_shape(
        lambda: RetinaNet(Layers(rngs=nnx.Rngs(0)), classes=7, image_shape=(0, 0, 3), **options)
    )
    anchors = 9 if options.get("scales_per_octave") == 3 else 6
    for size, expected in sizes.items():
        levels = abstract_levels(model, *size, 3)
        assert [level.class_logits.shape for level in levels] == [(2, *grid, anchors, 7) for grid in expected]
        assert [level.box_codes.shape for level in levels] == [(2, *grid, anchors, 4) for grid in expected]
        assert [level.anchors.shape for level in levels] == [(*grid, anchors, 4) for grid in expected]
        assert {leaf.dtype for leaf in jax.tree.leaves(levels)} == {np.dtype("float32")}
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model))} == {np.dtype("float32")}


def test_640_pixels_have_the_51150_anchors_of_levels_3_to_7() -> None:
    model = nnx.eval_shape(
        lambda: RetinaNet(Layers(rngs=nnx.Rngs(0)), classes=1, image_shape=(640, 640, 3), **SMALL)
    )
    levels = abstract_levels(model, 640, 640, 3)
    assert sum(math.prod(level.anchors.shape[:3]) for level in levels) == 51150


def test_first_every_class_has_the_probability_of_the_focal_prior_and_boxes_are_their_anchors() -> None:
    model = RetinaNet(
        Layers(rngs=nnx.Rngs(0), dtype=jnp.float32), classes=2, image_shape=(64, 64, 3), **SMALL
    )
    image = jnp.asarray(np.random.default_rng(0).normal(size=(2, 64, 64, 3)), jnp.float32)
    for level in nnx.jit(lambda model, image: model(image))(model, image):
        assert np.abs(jax.nn.sigmoid(level.class_logits) - 0.01).max() < 0.005
        assert np.abs(level.box_codes).max() < 0.5


def test_towers_share_kernels_over_levels_and_have_norms_of_their_own() -> None:
    model = nnx.eval_shape(
        lambda: RetinaNet(Layers(rngs=nnx.Rngs(0)), classes=2, image_shape=(64, 64, 3), **SMALL)
    )
    tower = model.class_tower
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
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RetinaNet(Layers(rngs=nnx.Rngs(0)), classes=2, image_shape=(64, 64, 3), **options)


def gradients_of(graph: Any, parameters: Any, statistics: Any, image: Any, run: Pass) -> Any:
    """Of the outputs' squared distance from fixed numbers: all outputs count, and none is where it should be."""

    def loss(parameters: Any) -> jax.Array:
        model = nnx.merge(graph, parameters, statistics, copy=True)
        outputs = [(level.class_logits, level.box_codes) for level in model(image, run)]
        return sum(
            jnp.sum(jnp.square(x - jnp.cos(jnp.arange(x.size)).reshape(x.shape)))
            for x in jax.tree.leaves(outputs)
        )

    return jax.jit(jax.value_and_grad(loss))(parameters)


@pytest.mark.long
@pytest.mark.parametrize(("cores", "dims"), [(4, (1, 4, 1, 1))])
def test_gradients_of_split_images_are_those_of_whole_ones(cores: int, dims: tuple[int, ...]) -> None:
    with jax.enable_x64(True):
        layers = Layers(rngs=nnx.Rngs(0), dtype=jnp.float64, param_dtype=jnp.float64)
        model = RetinaNet(layers, classes=2, image_shape=(64, 64, 3), **SMALL)
        graph, parameters, statistics = nnx.split(model, nnx.Param, ...)
        image = np.random.default_rng(1).normal(size=(2, 64, 64, 3))
        mesh = make_mesh(cores, jax.devices()[:cores])
        expected_loss, expected = gradients_of(graph, parameters, statistics, image, Pass())
        loss, found = gradients_of(graph, parameters, statistics, image, Pass(mesh=mesh, dims=dims))
        assert float(loss) == pytest.approx(float(expected_loss), rel=1e-12)
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(expected)]
        everything = np.sqrt(sum(np.sum(leaf**2) for leaf in leaves))
        for ours, leaf in zip(jax.tree.leaves(found), leaves, strict=True):
            assert np.linalg.norm(ours - leaf) <= 1e-9 * (np.linalg.norm(leaf) + everything)
