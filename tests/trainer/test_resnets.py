"""ResNets have the published numbers of parameters, and shortcuts without parameters take every second pixel."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from halofeed.trainer.models import model_named
from halofeed.trainer.models.layers import Layers, Pass
from halofeed.trainer.models.resnet import BasicBlock

# ResNet-20 to -110: He et al. (arXiv 1512.03385), table 6, in millions; the exact numbers and ResNet-101's are those of
# the networks in torch (akamaster/pytorch_resnet_cifar10; torchvision).
PUBLISHED = [
    ("resnet20", {}, 10, (32, 32, 3), 269_722),
    ("resnet20", {"blocks": 9}, 10, (32, 32, 3), 853_018),
    ("resnet101", {}, 1000, (224, 224, 3), 44_549_160),
]


@pytest.mark.parametrize(("name", "options", "classes", "shape", "count"), PUBLISHED)
def test_the_number_of_parameters_is_the_published_one(name, options, classes, shape, count):
    build: Any = model_named(name).build

    def made() -> nnx.Module:
        module: nnx.Module = build(Layers(rngs=nnx.Rngs(0)), classes=classes, image_shape=shape, **options)
        return module

    leaves = jax.tree.leaves(nnx.state(nnx.eval_shape(made), nnx.Param))
    assert sum(int(np.prod(leaf.shape)) for leaf in leaves) == count


def test_a_block_without_its_convolutions_is_every_second_pixel_with_channels_of_zeros():
    layers = Layers(dtype=jnp.float32, rngs=nnx.Rngs(0))
    block = BasicBlock(layers, 2, 5, stride=2)
    block.second.norm.scale[...] = jnp.zeros(5)
    x = np.random.default_rng(0).random((3, 6, 8, 2)).astype(np.float32)
    found = np.asarray(block(jnp.asarray(x), Pass()))
    np.testing.assert_array_equal(found[..., :2], x[:, ::2, ::2])
    assert not found[..., 2:].any() and found.shape == (3, 3, 4, 5)
