"""The U-Net has the published structure; its convolutions and pools give the same on every split."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from halofeed.errors import UsageError
from halofeed.trainer.mesh import constrain, make_mesh
from halofeed.trainer.models.convolutions import computed_by_planes, convolve_planes
from halofeed.trainer.models.layers import Layers, Pass
from halofeed.trainer.models.norm import GroupNorm
from halofeed.trainer.models.unet import UNet, halvings, pooled
from halofeed.trainer.plan.hlo import Module, collectives


def layers_of(dtype="float32", **more):
    return Layers(dtype=jnp.dtype(dtype), param_dtype=jnp.dtype(dtype), rngs=nnx.Rngs(0), **more)


def shapes_of(image_shape, **options):
    def outputs(image):
        return UNet(layers_of(), classes=5, image_shape=image_shape, **options)(image)

    found = jax.eval_shape(outputs, jax.ShapeDtypeStruct((2, *image_shape), jnp.float32))
    return jax.tree.map(lambda value: value.shape, found)


@pytest.mark.parametrize("upsampling", ["learned", "repeat"])
@pytest.mark.parametrize("image_shape", [(16, 8, 8, 1), (32, 16, 3)])
def test_logits_lie_on_the_images_grid_and_coarse_ones_on_halved_ones(image_shape, upsampling):
    found = shapes_of(image_shape, depth=4, width=2, upsampling=upsampling, deep_supervision=True)
    sizes = np.array(image_shape[:-1])
    assert found == {"logits": (2, *sizes, 5), "coarse": [(2, *(sizes // 2), 5), (2, *(sizes // 4), 5)]}
    assert shapes_of(image_shape, depth=2, width=2)["coarse"] == []


def test_features_double_up_to_the_most_and_the_foreground_has_its_prior_before_training():
    options = {"classes": 2, "image_shape": (16, 16, 1), "depth": 4, "width": 3, "max_width": 10}
    model = nnx.eval_shape(lambda: UNet(layers_of(), **options))
    assert [block[-1].convolution.out_features for block in model.down] == [3, 6, 10, 10]
    options = {"classes": 5, "image_shape": (8, 8, 1), "depth": 2, "width": 4, "norm": "batch"}
    model = UNet(layers_of(), **options, foreground_prior=0.2)
    np.testing.assert_allclose(jax.nn.softmax(model.head.bias[...]), [0.8, 0.05, 0.05, 0.05, 0.05], rtol=1e-6)
    shares = [0.5, 0.2, 0.2, 0.1 - 1e-6, 1e-6]
    model = UNet(layers_of(), **options, class_shares=shares)
    first = np.maximum(shares, 0.05 / 4)
    np.testing.assert_allclose(jax.nn.softmax(model.head.bias[...]), first / first.sum(), rtol=1e-6)
    with pytest.raises(UsageError, match="foreground_prior: expected a share between 0 and 1, got 1"):
        UNet(layers_of(), **options, foreground_prior=1.0)


def test_what_cannot_be_is_refused_with_the_cure():
    for shape, depth, options, message in (
        ((100, 128, 1), 5, {}, "height 100 must divide by 16; the nearest that do are 96 and 112"),
        ((3, 16, 16, 1), 3, {}, "depth 3 must divide by 4; the nearest that do are 4 and 8"),
        ((8, 8, 1), 4, {}, "norm='instance': .* 8x8 ends as a single value.* depth=3"),
        ((8, 8), 2, {}, "image_shape: expected"),
        ((8, 8, 1), 1, {}, "depth: expected 2 or more, got 1"),
        ((8, 8, 1), 2, {"upsampling": "cubic"}, "expected one of learned, transposed, repeat, got 'cubic'"),
        (
            (8, 8, 1),
            3,
            {"strides": [[2, 2]]},
            r"strides: expected 2 lists of 1 and 2 for depth=3.*got \[\[2, 2\]\]",
        ),
        ((8, 8, 1), 2, {"kernels": [[3, 3], [3, 5]]}, "kernels: expected 2 lists of 1 and 3"),
        ((8, 8, 1), 2, {"strides": [[2, 2, 2]]}, "expected 2 numbers for each size of the image"),
        ((8, 9, 1), 2, {"strides": [[1, 2]]}, "width 9 must divide by 2; the nearest that do are 8 and 10"),
        ((8, 8, 1), 2, {"norm": "layer"}, "norm_kind: .*batch, instance, group, got 'layer'"),
    ):
        with pytest.raises(UsageError, match=message):
            UNet(layers_of(), classes=2, image_shape=shape, depth=depth, **options)


def test_strides_and_kernels_of_each_size_are_those_that_were_asked_for():
    strides, kernels = [[1, 2, 2], [2, 2, 2]], [[1, 3, 3], [3, 3, 3], [3, 3, 3]]
    options = {"depth": 3, "width": 2, "strides": strides, "kernels": kernels}
    model = nnx.eval_shape(lambda: UNet(layers_of(), classes=2, image_shape=(4, 16, 16, 1), **options))
    assert [list(block[0].convolution.kernel_size) for block in (*model.down, *model.up)] == [
        *kernels,
        *kernels[:2],
    ]
    found = shapes_of((4, 16, 16, 1), **options, deep_supervision=True)
    assert found == {"logits": (2, 4, 16, 16, 5), "coarse": [(2, 4, 8, 8, 5)]}


def test_a_padded_image_has_the_logits_of_the_same_image_with_zeros_added_by_hand():
    options = {"classes": 3, "depth": 3, "width": 2, "norm": "batch", "upsampling": "repeat"}
    own, whole = (
        UNet(layers_of(), image_shape=shape, **options, pad=pad)
        for shape, pad in (((9, 14, 1), True), ((12, 16, 1), False))
    )
    image = jax.random.normal(jax.random.key(0), (2, 9, 14, 1))
    by_hand = jnp.zeros((2, 12, 16, 1)).at[:, :9, :14].set(image)
    np.testing.assert_array_equal(own(image)["logits"], whole(by_hand)["logits"][:, :9, :14])
    # A model that was built for crops pads complete images.
    of_crops = UNet(layers_of(), image_shape=(8, 8, 1), **options, pad=True)
    np.testing.assert_array_equal(of_crops(image)["logits"], own(image)["logits"])
    supervised = UNet(layers_of(), image_shape=(9, 14, 1), **options, pad=True, deep_supervision=True)
    with pytest.raises(UsageError, match="train on crops that divide"):
        supervised(image, Pass(training=True))


@given(st.lists(st.integers(1, 64), min_size=2, max_size=3), st.integers(2, 6), st.booleans())
def test_halvings_divide_and_thin_axes_wait_for_the_long_ones(sizes, depth, anisotropic):
    try:
        steps = halvings(sizes, depth, anisotropic=anisotropic)
    except UsageError:
        return
    now = np.array(sizes)
    for step in steps:
        assert not (now % step).any()
        halved = np.array(step) == 2
        assert halved.all() or (anisotropic and all((2 * now >= now.max()) == halved))
        now = now // step


def test_the_published_network_is_tensorflow_tpus():
    """Logits and the updated statistics are those of unet3d_base, written in TensorFlow with the same weights."""
    options = {"double_in_block": True, "upsampling": "transposed", "norm": "batch", "images_at_once": 1}
    image = np.random.default_rng(0).normal(size=(2, 16, 8, 8, 2))

    with jax.enable_x64(True):
        model = UNet(
            layers_of("float64"), classes=3, image_shape=image.shape[1:], depth=4, width=2, **options
        )
        found = np.asarray(model(jnp.asarray(image))["logits"])

    def convolved(x, layer):
        x = tf.nn.conv3d(x, np.asarray(layer.convolution.kernel[...]), [1] * 5, "SAME")
        mean, variance = tf.nn.moments(x, [0, 1, 2, 3])
        scale, bias = (np.asarray(value[...]) for value in (layer.norm.scale, layer.norm.bias))
        return tf.nn.relu(tf.nn.batch_normalization(x, mean, variance, bias, scale, 1e-3))

    def enlarged(x, layer):
        kernel = (
            np.asarray(layer.matrix.kernel[...]).reshape(-1, 2, 2, 2, x.shape[-1]).transpose(1, 2, 3, 4, 0)
        )
        shape = [len(x), *(2 * size for size in x.shape[1:-1]), x.shape[-1]]
        return tf.nn.conv3d_transpose(x, kernel, shape, [1, 2, 2, 2, 1], "VALID") + np.asarray(
            layer.bias[...]
        )

    x, skips = tf.constant(image), []
    for level, block in enumerate(model.down):
        if level:  # TensorFlow's pool takes no float64
            x = tf.reduce_max([x[:, a::2, b::2, c::2] for a, b, c in np.ndindex(2, 2, 2)], 0)
        for layer in block:
            x = convolved(x, layer)
        skips.append(x)
    for skip, layers, enlarge in list(zip(skips, model.up, model.enlarge, strict=False))[::-1]:
        x = tf.concat([skip, enlarged(x, enlarge)], -1)
        for layer in layers:
            x = convolved(x, layer)
    expected = tf.tensordot(x, np.asarray(model.head.kernel[...]), 1) + np.asarray(model.head.bias[...])
    assert [int(skip.shape[-1]) for skip in skips] == [4, 8, 16, 32]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize(("groups", "channels"), [(None, 3), (2, 6), (1, 4)])
def test_group_norm_is_that_of_a_loop_over_examples_and_groups(groups, channels):
    x = np.random.default_rng(0).normal(2, 3, (2, 4, 3, 5, channels)).astype(np.float32)
    found = GroupNorm(channels, groups=groups, epsilon=1e-5)(jnp.asarray(x))
    expected = np.empty_like(x)
    for row in range(len(x)):
        for members in np.split(np.arange(channels), groups or channels):
            values = x[row][..., members].astype(np.float64)
            expected[row][..., members] = (values - values.mean()) / np.sqrt(values.var() + 1e-5)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("cores", "dims"),
    [(1, None), (2, (1, 2, 1, 1, 1)), (4, (1, 2, 2, 1, 1)), (8, (1, 2, 2, 2, 1)), (4, (2, 2, 1, 1, 1))],
)
def test_a_convolution_by_planes_and_its_gradients_are_those_of_the_direct_one(cores, dims):
    with jax.enable_x64(True):
        generator = np.random.default_rng(0)
        kernel = (3, 3, 3) if cores > 1 else (3, 1, 5)
        layer = layers_of("float64").convolution(2, 3, kernel, bias=True)
        x = jnp.asarray(generator.normal(size=(4, 4, 8, 8, 2)))
        layer.bias[...] = jnp.asarray(generator.normal(size=3))
        graph, start = nnx.split(layer)
        mesh = make_mesh(cores) if dims else None

        def loss(parameters, x, mesh):
            layer, x = nnx.merge(graph, parameters), constrain(x, mesh, dims)
            out = convolve_planes(layer, x, mesh, dims) if mesh or not dims else layer(x)
            return jnp.sum(jnp.sin(constrain(out, mesh, dims)))

        def direct(parameters, x):
            return jnp.sum(jnp.sin(nnx.merge(graph, parameters)(x)))

        found = jax.jit(jax.value_and_grad(functools.partial(loss, mesh=mesh), argnums=(0, 1)))(start, x)
        expected = jax.jit(jax.value_and_grad(direct, argnums=(0, 1)))(start, x)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


def test_planes_are_taken_for_volumes_of_stride_one_on_a_cpu():
    def taken(choice, kernel=(3, 3, 3), **options):
        layer = nnx.eval_shape(lambda: layers_of().convolution(2, 2, kernel, **options))
        return computed_by_planes(layer, choice, None)

    assert taken("auto")
    assert not taken("direct")
    assert not taken("planes", (3, 3))
    assert not taken("planes", (2, 3, 3))
    for other in ({"stride": 2}, {"groups": 2}, {"padding": "VALID"}):
        assert not taken("planes", **other)
    with pytest.raises(UsageError, match=r"volume_convolution: expected one of auto, .* got 'fast'"):
        layers_of(volume_convolution="fast")


@pytest.mark.parametrize(
    ("shape", "dims", "gathered"),
    [
        ((2, 8, 8, 8, 2), (1, 4, 1, 1, 1), {(2, 4, 4, 4, 2)}),  # 4 rows over 4 cores: pooled, then gathered
        ((2, 12, 8, 8, 2), (1, 4, 1, 1, 1), {(2, 12, 4, 4, 2)}),  # 6 rows do not divide: the other axes first
        ((2, 16, 8, 8, 2), (1, 4, 1, 1, 1), set()),
    ],
)
def test_a_pool_before_a_whole_level_is_that_of_one_device_and_gathers_little(shape, dims, gathered):
    run = Pass(mesh=make_mesh(4, jax.devices()[:4]), dims=dims)
    # Many equal values, to whose first the gradient goes.
    x = jnp.asarray(np.random.default_rng(3).integers(0, 3, shape), jnp.float32)
    halved = (2, *(size // 2 for size in shape[1:-1]), 2)
    weights = jnp.asarray(np.random.default_rng(4).normal(size=halved), jnp.float32)

    def loss(x, run):
        return (pooled(run.hold(x), (2, 2, 2), run) * weights).sum()

    split = jax.jit(jax.value_and_grad(lambda x: loss(x, run)))
    expected, gradient = jax.value_and_grad(lambda x: loss(x, Pass()))(x)
    value, found = split(x)
    np.testing.assert_allclose(value, expected, atol=1e-4)
    np.testing.assert_array_equal(found, gradient)
    text = split.lower(x).compile().as_text()
    shapes = {one.result_shape for one in collectives(Module(text), 4) if one.kind == "gathers"}
    assert {shape for shape in shapes if len(shape) == 5} - {tuple(weights.shape), shape} <= gathered
