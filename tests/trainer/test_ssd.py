"""Have SSD and its pooling pyramid network the maps and the anchors of their published configurations?"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from halofeed.trainer.models import MODELS
from halofeed.trainer.models.layers import Layers, Pass
from halofeed.trainer.models.ssd import SsdPooling
from tests.support.training import abstract_outputs

SIDES = {300: [19, 10, 5, 3, 2, 1], 512: [32, 16, 8, 4, 2, 1], 75: [5, 3, 2, 1, 1, 1]}


def abstract_model(name: str, **options: Any) -> Any:
    def build() -> Any:
        return MODELS[name].build(Layers(rngs=nnx.Rngs(0)), classes=5, image_shape=(300, 300, 3), **options)

    return nnx.eval_shape(build)


@pytest.mark.parametrize(
    ("name", "finest", "total"), [("ssd_mobilenet_v1", 3, 1917), ("ssd_mobilenet_v1_ppn", 6, 3000)]
)
def test_six_levels_have_outputs_for_each_of_their_anchors(name: str, finest: int, total: int) -> None:
    model = abstract_model(name)
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


def test_the_extra_maps_of_ssd_have_the_published_channels_or_their_share() -> None:
    for options, expected in (({}, [512, 256, 256, 128]), ({"width": 8}, [128, 64, 64, 32])):
        extra = abstract_model("ssd_mobilenet_v1", **options).extra
        assert [block.channels for block in extra] == expected


def test_pooled_levels_share_every_kernel_and_see_the_largest_of_each_window() -> None:
    model = SsdPooling(
        Layers(rngs=nnx.Rngs(0), dtype=jnp.float32), classes=2, image_shape=(64, 64, 3), width=4
    )
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
